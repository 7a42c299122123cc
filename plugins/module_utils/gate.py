# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""When a launch is ready, has failed, or is neither yet.

Predicates are pure: they take one observation and return ``Ready``, ``NotYet`` or ``Failed`` with a reason. A
``Waiter`` drives them with an injected clock; check mode uses ``NoWaiter``. ``gate_host`` reads the host.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Callable, Union

from ansible_collections.llmops.vllm.plugins.module_utils.diagnosis_report import as_line
from ansible_collections.llmops.vllm.plugins.module_utils.engine_api import Answer
from ansible_collections.llmops.vllm.plugins.module_utils.journal import Entry
from ansible_collections.llmops.vllm.plugins.module_utils.listener import Listener
from ansible_collections.llmops.vllm.plugins.module_utils.systemd import UnitState

POLL_SECONDS = 0.5
# Lines after which no launch ever served: waiting for the process to notice would only cost time.
_FATAL = re.compile(
    r"EngineCore failed to start\.|Engine core initialization failed\.|EngineCore encountered a fatal error"
    r"|Engine core proc \S+ died unexpectedly|Application startup failed\. Exiting"
)
_FATAL_TO_SYSTEMD = re.compile(r"has been killed by the OOM killer")


@dataclass(frozen=True)
class Ready:
    """The condition holds."""

    reason: str = ""


@dataclass(frozen=True)
class NotYet:
    """The condition can still come to hold."""

    reason: str


@dataclass(frozen=True)
class Failed:
    """The condition cannot come to hold in this launch; ``stalled`` when it only stands still."""

    reason: str
    stalled: bool = False


Verdict = Union[Ready, NotYet, Failed]
_GIVEN_UP = "the engine has given up"


def unit_alive(state: UnitState, invocation_id: str, main_pid: int) -> Verdict:
    """Whether the unit still is the launch ``invocation_id``, with ``main_pid`` (0: not known yet) alive."""
    problem = _has_left(state, invocation_id) or _has_ended(state)
    if problem:
        return Failed(problem)
    if state.main_pid == 0:
        return NotYet(f"{state.name} has not started its main process yet")
    if main_pid and state.main_pid != main_pid:
        return Failed(f"the main process of {state.name} was {main_pid} and is {state.main_pid} now")
    return Ready(f"{state.name} runs as process {state.main_pid}")


def _has_left(state: UnitState, invocation_id: str) -> str:
    if not state.systemd:
        return "systemd does not answer on this host"
    if not state.exists:
        return f"systemd does not know {state.name}"
    if state.invocation_id == invocation_id:
        return ""
    now = f"launch {state.invocation_id} of it runs now" if state.invocation_id else "it is not loaded any more"
    return f"{state.name} has left this launch: {now} ({_restarts(state)})"


def _has_ended(state: UnitState) -> str:
    if state.sub_state == "auto-restart":
        return f"{state.name} has ended ({_end_of(state)}) and waits for its restart ({_restarts(state)})"
    if state.active_state not in ("active", "activating", "reloading"):
        return f"{state.name} is {state.active_state or 'gone'} ({_end_of(state)})"
    # In start-post the process was there, and systemd waits for what was started beside it.
    if state.main_pid == 0 and (state.active_state != "activating" or state.sub_state == "start-post"):
        return f"the main process of {state.name} is gone ({_end_of(state)})"
    return ""


def _restarts(state: UnitState) -> str:
    return f"{state.n_restarts} automatic restart{'' if state.n_restarts == 1 else 's'}"


def _end_of(state: UnitState) -> str:
    how = {1: "exit status", 2: "killed by signal", 3: "dumped core on signal"}.get(state.exec_main_code, "")
    said = f", status {state.status_text!r}" if state.status_text else ""
    return f"result {state.result or 'unknown'}" + (f", {how} {state.exec_main_status}" if how else "") + said


def unit_active(state: UnitState) -> Verdict:
    """Whether systemd calls the unit active; one that proves itself to systemd is activating until it has."""
    if state.active_state == "active":
        return Ready(f"{state.name} is active")
    said = f" ({state.status_text})" if state.status_text else ""
    return NotYet(f"{state.name} is still {state.active_state or 'gone'}{said}")


def not_fatal(entries: Iterable[Entry]) -> Verdict:
    """Whether no line of this launch says that it is over."""
    for entry in entries:
        pattern = _FATAL_TO_SYSTEMD if entry.from_manager else _FATAL
        for line in entry.lines:
            if pattern.search(line):
                return Failed(f"its journal says so: {line.strip()[:300]}" if entry.from_manager else _GIVEN_UP)
    return Ready()


def progressing(silent_seconds: float, stall_timeout_seconds: float, doing: str) -> Verdict:
    """Whether the launch said anything within ``stall_timeout_seconds`` (0: never stalls)."""
    if stall_timeout_seconds and silent_seconds >= stall_timeout_seconds:
        return Failed(f"no progress for {silent_seconds:.0f} s while {doing}", stalled=True)
    return Ready()


def within_time(waited_seconds: float, timeout_seconds: float, doing: str) -> Verdict:
    """Whether the whole wait is shorter than ``timeout_seconds`` (0: no limit)."""
    if timeout_seconds and waited_seconds >= timeout_seconds:
        return Failed(f"not ready after {waited_seconds:.0f} s, still {doing}")
    return Ready()


def listener_ours(listener: Listener) -> Verdict:
    """Whether every process that listens on the port belongs to the unit."""
    for owner in listener.owners:
        if not owner.ours:
            where = f" in {owner.cgroup}" if owner.cgroup else ""
            who = f"{owner.pid} ({owner.command}) of user {owner.user}{where}"
            return Failed(f"port {listener.port} is answered by a foreign process: {who}")
    if listener.unseen:
        return NotYet(f"somebody listens on port {listener.port}, but who cannot be seen (is become: true missing?)")
    if not listener.owners:
        return NotYet(f"nothing listens on port {listener.port} yet")
    return Ready(f"process {listener.owners[0].pid} listens on port {listener.port}")


def model_served(answer: Answer, served_model: str) -> Verdict:
    """Whether ``GET /v1/models`` names ``served_model``."""
    if answer.status in (401, 403):
        return Failed(
            f"/v1/models refuses the API key (HTTP {answer.status}); set api_key_file to the service's own key"
        )
    if answer.status != 200:
        return NotYet(f"/v1/models: {answer.problem}")
    data = answer.body.get("data") if isinstance(answer.body, dict) else None
    ids = [item.get("id") for item in data if isinstance(item, dict)] if isinstance(data, list) else []
    if served_model in ids:
        return Ready(f"/v1/models serves {served_model}")
    return Failed(f"/v1/models serves {', '.join(map(str, ids)) or 'nothing'} instead of {served_model}")


def version_matches(answer: Answer, expected: str) -> Verdict:
    """Whether ``GET /version`` names the version of the runtime; its local part (``+cpu``) does not count."""
    if not expected:
        return Ready("no version is expected")
    if answer.status in (0, 500, 502, 503, 504):
        return NotYet(f"/version: {answer.problem}")
    served = answer.body.get("version") if isinstance(answer.body, dict) else None
    if answer.status != 200 or not isinstance(served, str):
        return Failed(f"/version does not tell a version (HTTP {answer.status}); {expected} is expected")
    if served.partition("+")[0] != expected.partition("+")[0]:
        return Failed(f"vLLM {served} answers, but the runtime of this release is {expected}")
    return Ready(f"vLLM {served} answers")


def within_budget(failures: Sequence[str], asked: int, budget: int) -> Verdict:
    """Whether no more completions of the soak failed than may."""
    if len(failures) <= budget:
        return Ready()
    allowed = f", {budget} may" if budget else ""
    return Failed(f"{len(failures)} of {asked} completions of the soak failed{allowed}: {failures[-1]}")


Step = Callable[[], Verdict]


class Waiter:
    """Repeats a step until it is Ready or Failed, or until ``slice_seconds`` are over (0: for ever)."""

    def __init__(
        self,
        clock: Callable[[], float],
        sleep: Callable[[float], None],
        poll_seconds: float = POLL_SECONDS,
    ) -> None:
        self._clock = clock
        self._sleep = sleep
        self._poll_seconds = poll_seconds

    def wait(self, step: Step, slice_seconds: float, may_pause: Callable[[], bool] = lambda: True) -> Verdict:
        """Return the last verdict; a slice never ends while ``may_pause`` says no."""
        start = self._clock()
        while True:
            verdict = step()
            if not isinstance(verdict, NotYet):
                return verdict
            if slice_seconds and may_pause() and self._clock() - start + self._poll_seconds > slice_seconds:
                return verdict
            self._sleep(self._poll_seconds)


class NoWaiter:
    """Takes the place of ``Waiter`` in check mode: looks at nothing and waits for nothing."""

    def wait(self, step: Step, slice_seconds: float, may_pause: Callable[[], bool] | None = None) -> Verdict:
        """Return ``NotYet`` at once."""
        del step, slice_seconds, may_pause
        return NotYet("check mode: not waited")


def failure_message(
    unit: str, invocation_id: str, reason: str, diagnosis: dict[str, Any], command: str, *, state: str = "is not ready"
) -> str:
    """Return the text for the operator: what failed, why, how that is known, what to do, where to read on."""
    lines = [f"{unit} {state}: {reason.rstrip('.')}."]
    if diagnosis.get("verdict") == "cause":
        lines.append(f"Cause: {diagnosis['title']} ({diagnosis['cause_class']}).")
    else:
        lines.append("Cause: not in this launch's own lines.")
    evidence: Sequence[dict[str, Any]] = diagnosis.get("evidence") or ()
    for number, item in enumerate(evidence):
        source = ", ".join(part for part in (item.get("process"), item.get("time")) if part)
        label = "Evidence" if number == 0 else "    and"
        lines.append(f"{label} of this launch ({invocation_id}){', ' + source if source else ''}: {item['text']}")
    if diagnosis.get("remedy"):
        lines.append(f"Remedy: {diagnosis['remedy'].rstrip('.')}.")
    lines += [f"Foreseen by the preflight: {as_line(finding)}" for finding in diagnosis.get("related", ())]
    lines.append(f"All of it: {command}")
    return "\n".join(lines)
