# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The gate's eyes: one host, one unit, one port."""

from __future__ import annotations

import os
from typing import Callable

from ansible_collections.llmops.vllm.plugins.module_utils.canary import Canary, CanaryResult, judge
from ansible_collections.llmops.vllm.plugins.module_utils.engine_api import Answer, EngineApi
from ansible_collections.llmops.vllm.plugins.module_utils.journal import Entry, Journal
from ansible_collections.llmops.vllm.plugins.module_utils.listener import Listener, look_at_port
from ansible_collections.llmops.vllm.plugins.module_utils.procfs import ProcFs
from ansible_collections.llmops.vllm.plugins.module_utils.systemd import Runner, UnitState, show_unit

QUESTION_TIMEOUT_SECONDS = 5.0
# systemd keeps the invocation ID of every running unit here (unit_export_invocation_id in its sources).
UNITS_DIRECTORY = "/run/systemd/units"
FULL_LOOK_SECONDS = 5.0


class UnitWatch:
    """Looks at a unit often and cheaply.

    As long as the invocation link and the main process (PID and start time) are those of the last full look, that look
    still holds; ``systemctl`` is asked again when one differs, and every few seconds in any case.
    """

    def __init__(
        self,
        runner: Runner,
        unit: str,
        procfs: ProcFs,
        now: Callable[[], float],
        units_directory: str = UNITS_DIRECTORY,
    ) -> None:
        self._runner = runner
        self._unit = unit
        self._procfs = procfs
        self._now = now
        self._link = os.path.join(units_directory, f"invocation:{unit}")
        self._state: UnitState | None = None
        self._ticks = 0
        self._looked = 0.0

    def look(self, fresh: bool = False) -> UnitState:
        """Return the unit as it is now; ``fresh`` asks systemd in any case."""
        recent = not fresh and self._now() - self._looked < FULL_LOOK_SECONDS
        if self._state is not None and recent and self._unchanged(self._state):
            return self._state
        self._state = show_unit(self._runner, self._unit)
        self._looked = self._now()
        self._ticks = self._start_ticks(self._state.main_pid)
        return self._state

    def _start_ticks(self, pid: int) -> int:
        process = self._procfs.process(pid) if pid else None
        return process.start_ticks if process is not None and process.alive else 0

    def _unchanged(self, state: UnitState) -> bool:
        if not self._ticks or self._start_ticks(state.main_pid) != self._ticks:
            return False
        try:
            return os.readlink(self._link) == state.invocation_id
        except OSError:
            return False


class HostObserver:
    """The ``Observer`` of a real host."""

    def __init__(
        self,
        watch: UnitWatch,
        journal: Journal,
        procfs: ProcFs,
        api: EngineApi,
        *,
        port: int,
        served_model: str,
        canary_timeout_seconds: float,
        now: Callable[[], float],
    ) -> None:
        self._watch = watch
        self._journal = journal
        self._procfs = procfs
        self._api = api
        self._port = port
        self._served_model = served_model
        self._canary_timeout_seconds = canary_timeout_seconds
        self._now = now

    def unit(self, fresh: bool = False) -> UnitState:
        """Return the unit; whether it is active is known of some seconds ago, unless a ``fresh`` look is asked."""
        return self._watch.look(fresh)

    def entries(self) -> list[Entry]:
        """Return the launch's journal entries since the last call."""
        return self._journal.read_new()

    def unmarked(self, invocation_id: str) -> list[Entry]:
        """Return the last words of the launch's main process that journald assigned to no launch."""
        state = self._watch.look()
        if state.invocation_id != invocation_id or not state.exec_main_pid:
            return []
        return self._journal.read_unmarked(state.name, state.exec_main_pid, state.exec_main_start_seconds)

    def listener(self, control_group: str, main_pid: int) -> Listener:
        """Return who listens on the port."""
        # The kernel's table of sockets can be long, and a launch is waited for over many minutes.
        if self._api.refuses():
            return Listener(self._port)
        return look_at_port(self._procfs, self._port, control_group, main_pid)

    def models(self) -> Answer:
        """Return the answer of ``GET /v1/models``."""
        return self._api.get("/v1/models", QUESTION_TIMEOUT_SECONDS)

    def version(self) -> Answer:
        """Return the answer of ``GET /version``."""
        return self._api.get("/version", QUESTION_TIMEOUT_SECONDS)

    def canary(self, canary: Canary) -> CanaryResult:
        """Send one canary and judge its answer."""
        start = self._now()
        ask = self._api.stream if canary.stream else self._api.post
        answer = ask(canary.path, canary.body(self._served_model), self._canary_timeout_seconds)
        return judge(canary, answer, self._now() - start)
