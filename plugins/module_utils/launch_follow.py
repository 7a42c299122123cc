# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One gate over one launch: what is observed, in which order, and what it adds up to.

The order is that of the proof: the unit is this launch, it moves on, its own process listens, it serves the model, it
answers checked requests, and it still is the same launch some seconds later.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any, Callable, Generic, Protocol, TypeVar

from ansible_collections.llmops.vllm.plugins.module_utils.canary import Canary, CanaryResult
from ansible_collections.llmops.vllm.plugins.module_utils.diagnosis import diagnose
from ansible_collections.llmops.vllm.plugins.module_utils.diagnosis_lines import lines_of_entries
from ansible_collections.llmops.vllm.plugins.module_utils.engine_api import Answer
from ansible_collections.llmops.vllm.plugins.module_utils.gate import (
    Failed,
    NotYet,
    Ready,
    Verdict,
    listener_ours,
    model_served,
    not_fatal,
    progressing,
    unit_active,
    unit_alive,
    version_matches,
    within_budget,
    within_time,
)
from ansible_collections.llmops.vllm.plugins.module_utils.journal import MAIN_PROCESS_EXITED, Entry
from ansible_collections.llmops.vllm.plugins.module_utils.launch_evidence import settled_diagnosis
from ansible_collections.llmops.vllm.plugins.module_utils.listener import Listener
from ansible_collections.llmops.vllm.plugins.module_utils.phases import PhaseTracker
from ansible_collections.llmops.vllm.plugins.module_utils.systemd import UnitState

JOURNAL_SECONDS = 2.0
UNSEEN_LOOKS = 3
SHOWN_PROBLEMS = 5
Result = TypeVar("Result")


class Observer(Protocol):
    """Everything that the gate reads from the host."""

    def unit(self, fresh: bool = False) -> UnitState:
        """Return the unit; whether it is active is known of some seconds ago, unless a ``fresh`` look is asked."""

    def entries(self) -> list[Entry]:
        """Return the launch's journal entries since the last call."""

    def unmarked(self, invocation_id: str) -> list[Entry]:
        """Return the last words of the launch's main process that the journal assigns to no launch."""

    def listener(self, control_group: str, main_pid: int) -> Listener:
        """Return who listens on the port."""

    def models(self) -> Answer:
        """Return the answer of ``GET /v1/models``."""

    def version(self) -> Answer:
        """Return the answer of ``GET /version``."""

    def canary(self, canary: Canary) -> CanaryResult:
        """Send one canary and judge its answer."""


@dataclass(frozen=True)
class GateSettings:
    """What the gate must know; times in seconds, 0 for no limit; ``waited_seconds`` is what earlier calls waited.

    The soak asks ``soak_completions`` times over ``soak_seconds``; ``soak_failures`` of them may fail. An empty
    ``version`` expects none. ``starting`` is for a gate that is itself part of the unit's start: the unit becomes
    active by its end.
    """

    unit: str
    invocation_id: str
    served_model: str
    canaries: tuple[Canary, ...] = ()
    stall_timeout_seconds: float = 600.0
    timeout_seconds: float = 0.0
    soak_seconds: float = 2.0
    waited_seconds: float = 0.0
    soak_completions: int = 0
    soak_failures: int = 0
    version: str = ""
    starting: bool = False


@dataclass(frozen=True)
class Clock:
    """``now`` is CLOCK_MONOTONIC, ``epoch`` the time of day, both in seconds; ``sleep`` waits."""

    now: Callable[[], float]
    epoch: Callable[[], float]
    sleep: Callable[[float], None]


class Background(Generic[Result]):
    """A call in a thread of its own, so that a hanging engine cannot hide the death of its process."""

    def __init__(self, work: Callable[[], Result]) -> None:
        self._result: Result | None = None
        self._error: BaseException | None = None
        self._work = work
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._result = self._work()
        except BaseException as exc:
            self._error = exc

    def wait(self, seconds: float) -> None:
        """Wait until the call has ended, and no longer than ``seconds``."""
        self._thread.join(seconds)

    def poll(self) -> Result | None:
        """Return the result, or None while the call runs; an exception of the call is raised here."""
        if self._error is not None:
            raise self._error
        return self._result


@dataclass
class _Findings:
    """What the gate has learned so far."""

    main_pid: int = 0
    phase: str = "starting"
    progress: str = "starting"
    canaries: list[CanaryResult] = field(default_factory=list)
    extra_phases: list[dict[str, Any]] = field(default_factory=list)
    soak_asked: int = 0
    soak_problems: list[str] = field(default_factory=list)


class LaunchGate:
    """Follows one launch; ``step`` is one look, to be repeated by a waiter until it is not ``NotYet``."""

    def __init__(
        self,
        settings: GateSettings,
        observer: Observer,
        clock: Clock,
        start: Callable[[Callable[[], CanaryResult]], Background[CanaryResult]] = Background,
    ) -> None:
        self._settings = settings
        self._observer = observer
        self._clock = clock
        self._start = start
        self._tracker = PhaseTracker()
        self._entries: list[Entry] = []
        self._begun = clock.now()
        self._next_journal = 0.0
        self._unseen = 0
        self._pending: Background[CanaryResult] | None = None
        self._pending_since = 0.0
        self._soak_since: float | None = None
        self.found = _Findings()

    def step(self) -> Verdict:
        """Look once."""
        state = self._observer.unit()
        verdict = unit_alive(state, self._settings.invocation_id, self.found.main_pid)
        if isinstance(verdict, Failed):
            return verdict
        self.found.main_pid = state.main_pid
        fatal = self._read_journal(force=False)
        if isinstance(fatal, Failed):
            return fatal
        if isinstance(verdict, NotYet):
            return self._patient(state, verdict)
        if self._pending is None and self._soak_since is None:
            serving = self._serving(state)
            if isinstance(serving, NotYet):
                return self._patient(state, serving)
            if isinstance(serving, Failed):
                return serving
        return self._proof(state)

    def may_pause(self) -> bool:
        """Whether a slice may end here: not while a request or the soak is under way."""
        return self._pending is None and self._soak_since is None and not self.found.canaries

    def pause(self, seconds: float) -> None:
        """Wait for so long, or until the answer to the request that is under way."""
        if self._pending is None:
            self._clock.sleep(seconds)
        else:
            self._pending.wait(seconds)

    @property
    def waited_seconds(self) -> float:
        """The seconds since the first call's start."""
        return self._settings.waited_seconds + self._clock.now() - self._begun

    def death_to_verdict_seconds(self) -> float | None:
        """Return how long ago the main process of this launch ended, None while it has not."""
        state = self._observer.unit()
        ended = state.exec_main_exit_seconds
        if state.invocation_id != self._settings.invocation_id or ended <= state.exec_main_start_seconds:
            return None
        return max(0.0, self._clock.now() - ended)

    def soak(self) -> dict[str, Any]:
        """Return what the soak asked and what became of it."""
        problems = self.found.soak_problems
        return {"asked": self.found.soak_asked, "failed": len(problems), "problems": problems[:SHOWN_PROBLEMS]}

    def timeline(self) -> list[dict[str, Any]]:
        """Return the phases with their durations, canaries and soak included."""
        return self._tracker.timeline() + self.found.extra_phases

    def diagnosis(self) -> dict[str, Any]:
        """Diagnose the launch from its own journal; lines written at the very end are waited for."""
        found = settled_diagnosis(self._entries_until_now, self._clock.sleep)
        if found.verdict != "cause" and self._main_process_ended():
            self._entries += self._observer.unmarked(self._settings.invocation_id)
            self._entries.sort(key=lambda entry: entry.realtime_usec)
            found = diagnose(lines_of_entries(self._entries))
        return found.as_dict()

    def _entries_until_now(self) -> list[Entry]:
        self._read_journal(force=True)
        return self._entries

    def _main_process_ended(self) -> bool:
        """Whether systemd saw this launch's main process end; what it shows of a main process then is this launch's."""
        return any(entry.from_manager and MAIN_PROCESS_EXITED in entry.message for entry in self._entries)

    def _read_journal(self, force: bool) -> Verdict:
        now = self._clock.now()
        if not force and now < self._next_journal:
            return Ready()
        self._next_journal = now + JOURNAL_SECONDS
        entries = self._observer.entries()
        self._entries += entries
        self._tracker.feed(entries)
        if self._pending is None and self._soak_since is None and not self.found.canaries:
            progress = self._tracker.progress
            self.found.phase, self.found.progress = progress.phase, progress.text
        return not_fatal(entries)

    def _patient(self, state: UnitState, verdict: NotYet) -> Verdict:
        """Turn a NotYet into Failed when nothing moves any more or the time is over."""
        last = self._tracker.progress.last_seconds
        if last:
            silent = self._clock.epoch() - last
        else:
            silent = self._clock.now() - (state.exec_main_start_seconds or self._begun)
        doing = f"{self.found.progress} ({verdict.reason})"
        for limit in (
            progressing(silent, self._settings.stall_timeout_seconds, doing),
            within_time(self.waited_seconds, self._settings.timeout_seconds, doing),
        ):
            if isinstance(limit, Failed):
                return limit
        return verdict

    def _serving(self, state: UnitState) -> Verdict:
        verdict = listener_ours(listener := self._observer.listener(state.control_group, state.main_pid))
        self._unseen = self._unseen + 1 if listener.unseen else 0
        if isinstance(verdict, NotYet) and self._unseen >= UNSEEN_LOOKS:
            return Failed(verdict.reason)
        if isinstance(verdict, Ready):
            verdict = model_served(self._observer.models(), self._settings.served_model)
        if isinstance(verdict, Ready) and self._settings.version:
            verdict = version_matches(self._observer.version(), self._settings.version)
        return verdict

    def _proof(self, state: UnitState) -> Verdict:
        """Send the canaries one after the other, then soak."""
        result = self._pending.poll() if self._pending is not None else None
        if self._pending is not None and result is None:
            return self._in_time(NotYet(self.found.progress))
        self._pending = None
        if self._soak_since is not None:
            return self._soak(state, result)
        done = len(self.found.canaries)
        if result is not None:
            self.found.canaries.append(result)
            self._note("canary", self._clock.now() - self._pending_since)
            done += 1
            if result.problem:
                return Failed(f"canary {done} ({result.kind}) failed: {result.problem}")
        if done < len(self._settings.canaries):
            self.found.phase = "canary"
            return self._send(self._settings.canaries[done], f"canary {done + 1}/{len(self._settings.canaries)}")
        return self._soak(state, None)

    def _in_time(self, verdict: NotYet) -> Verdict:
        limit = within_time(self.waited_seconds, self._settings.timeout_seconds, verdict.reason)
        return limit if isinstance(limit, Failed) else verdict

    def _send(self, canary: Canary, progress: str) -> Verdict:
        self.found.progress = progress
        self._pending_since = self._clock.now()
        self._pending = self._start(lambda: self._observer.canary(canary))
        return NotYet(self.found.progress)

    def _soak(self, state: UnitState, result: CanaryResult | None) -> Verdict:
        """Ask again and again over the time of the soak; then the launch must still be what it was at its start."""
        now, found, settings = self._clock.now(), self.found, self._settings
        if self._soak_since is None:
            self._soak_since, found.phase = now, "soak"
        if result is not None and result.problem:
            found.soak_problems.append(result.problem)
        budget = within_budget(found.soak_problems, found.soak_asked, settings.soak_failures)
        if isinstance(budget, Failed):
            return budget
        passed, wanted = now - self._soak_since, settings.soak_completions
        found.progress = f"soak, {passed:.0f} of {settings.soak_seconds:g} s"
        if found.soak_asked < wanted and passed >= found.soak_asked * settings.soak_seconds / wanted:
            found.soak_asked += 1
            canary = settings.canaries[(found.soak_asked - 1) % len(settings.canaries)]
            return self._send(canary, f"{found.progress}, completion {found.soak_asked}/{wanted}")
        if passed < settings.soak_seconds or found.soak_asked < wanted:
            return self._in_time(NotYet(found.progress))
        return self._still_the_same(state, passed)

    def _still_the_same(self, state: UnitState, passed: float) -> Verdict:
        verdict = self._serving(state)
        if isinstance(verdict, Ready) and not self._settings.starting:
            verdict = unit_active(self._observer.unit(fresh=state.active_state != "active"))
        if isinstance(verdict, NotYet):
            self.found.progress = "proven, and waiting for systemd to know"
            return self._patient(state, verdict)
        if isinstance(verdict, Ready):
            self._note("soak", passed)
            self.found.phase, self.found.progress = "ready", "ready"
            return Ready("the launch has proved itself")
        return verdict

    def _note(self, phase: str, seconds: float) -> None:
        self.found.extra_phases.append({"phase": phase, "seconds": round(seconds, 3)})
