# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Starting a unit, and knowing from that moment on which launch it is.

systemd queues a start and gives the launch its InvocationID when it is the unit's turn. Until then ``systemctl show``
still shows the launch before, so it is read first and waited out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable

from ansible_collections.llmops.vllm.plugins.module_utils.difference import DifferenceTracker
from ansible_collections.llmops.vllm.plugins.module_utils.errors import LlmopsError, PreconditionError
from ansible_collections.llmops.vllm.plugins.module_utils.systemd import Runner, UnitState, show_unit

POLL_SECONDS = 0.1
# A start that is in no queue and has begun nothing in so many looks will not begin any more.
IDLE_LOOKS = 5
_RUNNING = ("active", "activating", "reloading")


@dataclass(frozen=True)
class StartPlan:
    """What is to be done to ``unit``: ``enable`` it for the next boot, ``start`` it now."""

    unit: UnitState
    enable: bool
    start: bool

    @property
    def changed(self) -> bool:
        """Whether anything is to be done."""
        return self.enable or self.start

    def differences(self) -> DifferenceTracker:
        """Return what changes."""
        tracker = DifferenceTracker()
        if self.enable:
            tracker.add(f"{self.unit.name} at boot", self.unit.unit_file_state or "not known", "enabled")
        if self.start:
            tracker.add(self.unit.name, self.unit.active_state or "not known", "started")
        return tracker

    def apply(
        self, runner: Runner, monotonic: Callable[[], float], sleep: Callable[[float], None], wait_seconds: float
    ) -> str:
        """Do it, and return the InvocationID of the launch that has begun, or of the one that runs.

        Earlier starts are forgotten, as the unit's start limit counts them. Raises ``LlmopsError`` when systemd
        refuses, drops the start, or does not begin it within ``wait_seconds``.
        """
        name = self.unit.name
        if self.enable:
            _must(runner, f"enable {name}", "enable", "--", name)
        if not self.start:
            return self.unit.invocation_id
        _must(runner, "read its unit files again", "daemon-reload")
        runner(["systemctl", "reset-failed", "--", name])  # it says no more than that a unit is not loaded
        _must(runner, f"start {name}", "--no-block", "start", "--", name)
        return _begun(runner, self.unit, monotonic, sleep, wait_seconds)


def plan_start(runner: Runner, name: str, enable: bool) -> StartPlan:
    """Plan the start of the unit ``name``. Raises ``LlmopsError`` where systemd cannot be asked."""
    unit = show_unit(runner, name)
    if not unit.systemd:
        raise PreconditionError(f"systemd does not answer on this host, so {name} cannot be started.")
    return StartPlan(
        unit=unit,
        enable=enable and unit.unit_file_state != "enabled",
        start=unit.active_state not in _RUNNING or unit.sub_state.startswith("auto-restart"),
    )


def _must(runner: Runner, what: str, *words: str) -> None:
    done = runner(["systemctl", *words])
    if done.returncode:
        reason = " ".join(done.stderr.split()) or f"exit status {done.returncode}"
        raise LlmopsError(f"systemd did not {what}: {reason}")


def _begun(
    runner: Runner,
    before: UnitState,
    monotonic: Callable[[], float],
    sleep: Callable[[float], None],
    wait_seconds: float,
) -> str:
    until, idle, name = monotonic() + wait_seconds, 0, before.name
    while True:
        unit = show_unit(runner, name)
        if unit.invocation_id not in ("", before.invocation_id):
            return unit.invocation_id
        idle = 0 if _queued(runner, name) else idle + 1
        if idle >= IDLE_LOOKS:
            raise LlmopsError(
                f"systemd dropped the start of {name}: it is {unit.active_state or 'not known'} "
                f"({unit.result or unit.load_state}). See systemctl status {name}, and what it depends on."
            )
        if monotonic() >= until:
            raise LlmopsError(
                f"systemd has not begun to start {name} within {wait_seconds:g} s. See what it waits for with "
                "systemctl list-jobs."
            )
        sleep(POLL_SECONDS)


def _queued(runner: Runner, name: str) -> bool:
    """Whether a job of the unit waits or runs; ``Job`` is its number (``org.freedesktop.systemd1``)."""
    done = runner(["systemctl", "show", "--property=Job", "--value", "--", name])
    return done.stdout.strip() not in ("", "0")
