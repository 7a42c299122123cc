# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Carry out a teardown plan: TERM the main processes, grace, TERM the rest, grace, KILL; and say what became of each.

vLLM's API server ends its engine and workers itself when it alone gets TERM; while it loads it ignores TERM altogether,
and an engine whose API server was killed lives on for ever. Hence the three steps, and the look around between them.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Callable

from ansible_collections.llmops.vllm.plugins.module_utils.procfs import Identity, Process, ProcFs
from ansible_collections.llmops.vllm.plugins.module_utils.teardown import Plan, Target

SENT = "sent"
GONE = "gone"
NOT_PERMITTED = "not_permitted"

SETTLE_SECONDS = 1.0  # vLLM's API server goes last of all; whoever is still there so long after it needs a TERM too
TRACKER_SECONDS = 2.0
FREEZE_ROUNDS = 20
POLL_SECONDS = (0.01, 0.25)
KILL_POLL_SECONDS = 0.05  # the killed are gone as soon as the kernel gets to them
RESOURCE_TRACKER = "multiprocessing.resource_tracker"


class Sender:
    """Sends a signal to exactly the process that was looked at, never to a later one with its PID."""

    def __init__(self, proc: ProcFs, open_pidfd: Callable[[int], int] | None = getattr(os, "pidfd_open", None)) -> None:
        self._proc = proc
        self._open_pidfd = open_pidfd

    def __call__(self, process: Process, number: int) -> str:
        """Return SENT, GONE or NOT_PERMITTED."""
        try:
            descriptor = self._open_pidfd(process.pid) if self._open_pidfd else None
        except ProcessLookupError:
            return GONE
        except OSError:
            descriptor = None  # Linux before 5.3, or a sandbox without pidfd_open
        try:
            # Checked after the descriptor is open: from then on it can only mean this process.
            if not self._proc.is_alive(process):
                return GONE
            if descriptor is None:
                os.kill(process.pid, number)
            else:
                signal.pidfd_send_signal(descriptor, number)
        except ProcessLookupError:
            return GONE
        except PermissionError:
            return NOT_PERMITTED
        finally:
            if descriptor is not None:
                os.close(descriptor)
        return SENT


@dataclass(frozen=True)
class Ended:
    """A process that is gone; ``signal`` is the last one it got, empty when it went by itself."""

    process: Process
    signal: str
    after_seconds: float


@dataclass(frozen=True)
class Survivor:
    """A process that is still there, and why: one of the ``reason`` values in the module's documentation."""

    process: Process
    reason: str
    detail: str = ""


@dataclass(frozen=True)
class Outcome:
    """What a teardown achieved. ``plan`` is the last look around."""

    ended: tuple[Ended, ...]
    survivors: tuple[Survivor, ...]
    waited_seconds: float
    plan: Plan


@dataclass
class _Track:
    process: Process
    signal: str = ""
    denied: bool = False
    late: bool = False
    gone_after: float | None = None


@dataclass(frozen=True)
class Host:
    """How the executor sees and touches the host."""

    rescan: Callable[[Iterable[Process]], Plan]
    is_alive: Callable[[Process], bool]
    send: Callable[[Process, int], str]
    clock: Callable[[], float]
    sleep: Callable[[float], None]
    kill_groups: Callable[[Plan], Collection[int]] = lambda plan: ()
    waits_in: Callable[[Process], str] = lambda process: ""


@dataclass
class Executor:
    """Ends what a plan selected. ``grace_seconds`` is granted twice at most.

    ``kill_seconds`` is granted once, and anew whenever fewer are left than ever before: a loaded host takes its time.
    """

    host: Host
    grace_seconds: float
    kill_seconds: float
    _tracks: dict[Identity, _Track] = field(default_factory=dict)
    _start: float = 0.0

    def run(self, plan: Plan) -> Outcome:
        """Carry out ``plan`` and return what became of every process that it or a later look selected."""
        self._start = self.host.clock()
        self._note(plan, late=False)
        self._terminate([target for target in plan.targets if target.main])
        self._wait_for_mains([target.process for target in plan.targets if target.main])
        plan = self._look()
        if self._terminate(plan.targets):
            self._wait(self.grace_seconds, lambda: not self._alive())
            plan = self._look()
        plan = self._kill(plan)
        survivors = tuple(self._survivor(target) for target in plan.targets)
        return Outcome(self._ended(plan), survivors, self.host.clock() - self._start, plan)

    def _note(self, plan: Plan, *, late: bool) -> None:
        for target in plan.targets:
            self._tracks.setdefault(target.process.identity, _Track(target.process, late=late))

    def _look(self, *, late: bool = False) -> Plan:
        plan = self.host.rescan([track.process for track in self._tracks.values()])
        self._note(plan, late=late)
        return plan

    def _terminate(self, targets: Iterable[Target]) -> bool:
        """Send TERM to those that have not had it; return whether any got it."""
        sent = False
        for target in targets:
            track = self._tracks[target.process.identity]
            if track.signal:
                continue
            self._send(track, signal.SIGTERM)
            sent = sent or bool(track.signal)
            # A stopped process takes TERM only once it goes on; systemd does the same (systemd.kill(5)).
            if target.process.state == "T":
                self.host.send(target.process, signal.SIGCONT)
        return sent

    def _send(self, track: _Track, number: signal.Signals) -> None:
        answer = self.host.send(track.process, number)
        track.denied = answer == NOT_PERMITTED
        if answer == SENT:
            track.signal = number.name[len("SIG") :]

    def _alive(self) -> list[_Track]:
        """Return the tracks that still run, noting when the others went."""
        alive = []
        for track in self._tracks.values():
            if track.gone_after is not None:
                continue
            if self.host.is_alive(track.process):
                alive.append(track)
            else:
                track.gone_after = self.host.clock() - self._start
        return alive

    def _wait_for_mains(self, mains: list[Process]) -> None:
        """Wait until all are gone, or the mains are and nobody has followed them for a while."""
        identities = {process.identity for process in mains}
        progress = [len(self._tracks), self.host.clock()]

        def done() -> bool:
            alive = self._alive()
            if len(alive) != progress[0]:
                progress[:] = [len(alive), self.host.clock()]
            settled = self.host.clock() - progress[1] >= SETTLE_SECONDS
            return not alive or (settled and not any(track.process.identity in identities for track in alive))

        self._wait(self.grace_seconds, done)

    def _wait(self, seconds: float, done: Callable[[], bool], longest: float = POLL_SECONDS[1]) -> None:
        pause = POLL_SECONDS[0]
        end = self.host.clock() + seconds
        while not done():
            left = end - self.host.clock()
            if left <= 0:
                return
            self.host.sleep(min(pause, left))
            pause = min(pause * 1.5, longest)

    def _kill(self, plan: Plan) -> Plan:
        """Kill in rounds until a look around finds nothing, so that children born meanwhile do not get away."""
        plan = self._kill_whole_groups(plan)
        plan = self._kill_before_trackers(self._freeze(plan, self.host.clock() + self.kill_seconds))
        pause = POLL_SECONDS[0]
        fewest, end = len(plan.targets), self.host.clock() + self.kill_seconds
        while self._killable(plan) and self.host.clock() < end:
            self._kill_groups(plan)
            self._kill_all(plan.targets)
            self._wait(min(pause, max(0.0, end - self.host.clock())), lambda: not self._alive())
            pause = min(pause * 2, 1.0)
            plan = self._look(late=True)
            if len(plan.targets) < fewest:
                fewest, end = len(plan.targets), self.host.clock() + self.kill_seconds
        return plan

    def _kill_whole_groups(self, plan: Plan) -> Plan:
        """Let the kernel kill control groups, in which nobody is born meanwhile; unless trackers must go last."""
        killed = set() if any(map(_is_tracker, plan.targets)) else self._kill_groups(plan)
        if not killed:
            return plan
        seconds = min(self.kill_seconds, SETTLE_SECONDS)
        self._wait(
            seconds,
            lambda: killed.isdisjoint(track.process.identity for track in self._alive()),
            longest=KILL_POLL_SECONDS,
        )
        return self._look(late=True)

    def _kill_groups(self, plan: Plan) -> set[Identity]:
        pids = self.host.kill_groups(plan)
        killed = {target.process.identity for target in plan.targets if target.process.pid in pids}
        for identity in killed:
            self._tracks[identity].signal = "KILL"
        return killed

    def _freeze(self, plan: Plan, end: float) -> Plan:
        """Stop everything until a look around finds nobody new, so that no child is born unseen while it dies."""
        stopped: set[Identity] = set()
        for _round in range(FREEZE_ROUNDS):
            new = [one for one in plan.targets if one.process.identity not in stopped and not _is_tracker(one)]
            if not new or self.host.clock() >= end:
                break
            for target in new:
                stopped.add(target.process.identity)
                self.host.send(target.process, signal.SIGSTOP)
            plan = self._look(late=True)
        return plan

    def _kill_all(self, targets: Sequence[Target]) -> None:
        """Kill children before their parents, whose death would wake them (an orphaned group is continued)."""
        for target in reversed(targets):
            self._send(self._tracks[target.process.identity], signal.SIGKILL)

    def _killable(self, plan: Plan) -> bool:
        return any(not self._tracks[target.process.identity].denied for target in plan.targets)

    def _kill_before_trackers(self, plan: Plan) -> Plan:
        """Kill all but Python's resource trackers first: theirs is to remove shared memory once the others are gone."""
        others = [target for target in plan.targets if not _is_tracker(target)]
        if not others or len(others) == len(plan.targets):
            return plan
        self._kill_all(others)
        self._wait(min(TRACKER_SECONDS, self.kill_seconds), lambda: not self._alive())
        return self._look(late=True)

    def _ended(self, plan: Plan) -> tuple[Ended, ...]:
        left = {target.process.identity for target in plan.targets}
        self._alive()
        total = self.host.clock() - self._start
        return tuple(
            Ended(track.process, track.signal, total if track.gone_after is None else track.gone_after)
            for identity, track in self._tracks.items()
            if identity not in left
        )

    def _survivor(self, target: Target) -> Survivor:
        process, track = target.process, self._tracks[target.process.identity]
        if track.denied:
            return Survivor(process, "not_permitted", "this user may not signal it; run as root or as its owner")
        if process.state == "D":
            place = self.host.waits_in(process) or "an unknown kernel function"
            return Survivor(
                process, "uninterruptible", f"waits in {place}; it ends when the kernel lets it, or at a reboot"
            )
        if process.state == "t":
            return Survivor(process, "traced", "a debugger holds it; end the debugger")
        if track.late:
            return Survivor(
                process, "respawned", f"appeared while the others were killed; its parent is {process.ppid}"
            )
        return Survivor(process, "ignored_kill", f"still in state {process.state} after KILL")


def _is_tracker(target: Target) -> bool:
    return RESOURCE_TRACKER in target.process.title


def kill_group(path: str) -> bool:
    """Kill every process of a control group at once by its ``cgroup.kill`` file; False where it could not be used."""
    try:
        with open(path, "w", encoding="ascii") as stream:
            stream.write("1")
    except (FileNotFoundError, PermissionError):
        return False
    return True
