# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Decide which processes a teardown ends, in which order, and which it must leave alone; signals nothing.

Ownership decides, never a name: a process is ours when it is in the given control group, or when it runs as the given
owner and belongs to no other unit or container. Whatever else holds what we need is foreign.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Callable

from ansible_collections.llmops.vllm.plugins.module_utils.cgroups import Cgroup
from ansible_collections.llmops.vllm.plugins.module_utils.procfs import Process

ORPHAN_TITLE = re.compile(r"VLLM::\S+")


@dataclass(frozen=True)
class PidFile:
    """What a PID file says; who wrote it, and when in seconds since boot, decide whether it is believed.

    ``start_ticks`` is that of the process which had the PID when the file was read: whoever gets the PID later is not
    meant. None when there was no such process.
    """

    path: str
    pid: int
    owner_uid: int
    written_seconds: float
    start_ticks: int | None


@dataclass(frozen=True)
class Selector:
    """What the operator asked for. ``allowed`` and ``tolerated`` hold user ids and unit names."""

    unit: str = ""
    main_pid: int = 0
    groups: tuple[Cgroup, ...] = ()
    pid_file: PidFile | None = None
    owner_uid: int | None = None
    exe: re.Pattern[str] | None = None
    title: re.Pattern[str] | None = None
    orphans: bool = False
    include: frozenset[str] = frozenset()
    allowed: frozenset[object] = frozenset()
    tolerated: frozenset[object] = frozenset()


@dataclass(frozen=True)
class Surroundings:
    """What the plan needs to know about the host besides its processes."""

    self_pid: int
    holders: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    unit_of: Callable[[Process], str | None] = lambda process: None
    is_living: Callable[[str], bool] = lambda unit: True
    started_seconds: Callable[[Process], float] = lambda process: 0.0


@dataclass(frozen=True)
class Target:
    """A process to end; ``via`` says which selectors found it, ``depth`` how far below a main process it is."""

    process: Process
    via: tuple[str, ...]
    main: bool
    depth: int


@dataclass(frozen=True)
class Foreign:
    """A process that is left alone; ``blocking`` when it holds something that was asked for."""

    process: Process
    unit: str | None
    via: tuple[str, ...]
    blocking: bool


@dataclass(frozen=True)
class Plan:
    """Targets in the order in which they are ended, and everything that matched and is left alone."""

    targets: tuple[Target, ...] = ()
    foreign: tuple[Foreign, ...] = ()
    protected: tuple[Foreign, ...] = ()
    zombies: tuple[Process, ...] = ()

    @property
    def blocking(self) -> tuple[Foreign, ...]:
        """What makes a clean host impossible."""
        return tuple(other for other in self.protected + self.foreign if other.blocking)


def protected_pids(processes: Mapping[int, Process], self_pid: int) -> frozenset[int]:
    """Return PID 1, kernel threads, ``self_pid`` and all its ancestors (the connection, sudo, the module's shell)."""
    protected = {pid for pid, process in processes.items() if process.kernel_thread} | {0, 1, self_pid}
    current = processes.get(self_pid)
    while current is not None and current.ppid not in protected:
        protected.add(current.ppid)
        current = processes.get(current.ppid)
    return frozenset(protected)


def plan(
    selector: Selector,
    processes: Mapping[int, Process],
    surroundings: Surroundings,
    known: Iterable[Process] = (),
) -> Plan:
    """Select what to end among ``processes`` (by PID).

    ``known`` are processes that an earlier plan of the same teardown selected: they remain selected although the death
    of their parent or of a PID file's process has cut the tie that found them, and so do their groups and sessions.
    """
    return _Planner(selector, processes, surroundings, tuple(known)).plan()


class _Planner:
    def __init__(
        self,
        selector: Selector,
        processes: Mapping[int, Process],
        surroundings: Surroundings,
        known: tuple[Process, ...],
    ) -> None:
        self._known = known
        self._selector = selector
        self._processes = processes
        self._around = surroundings
        self._protected = protected_pids(processes, surroundings.self_pid)
        self._selected: dict[int, set[str]] = {}
        self._foreign: dict[int, Foreign] = {}
        self._spared: dict[int, Foreign] = {}
        self._zombies: dict[int, Process] = {}
        self._owner_uids = set() if selector.owner_uid is None else {selector.owner_uid}
        if known and not self._owner_uids and not selector.groups and known[0].uid is not None:
            self._owner_uids = {known[0].uid}  # the PID file's process, which may be gone

    def plan(self) -> Plan:
        """Run all selectors, then follow what is included."""
        for earlier in self._known:
            process = self._processes.get(earlier.pid)
            if process is not None and process.identity == earlier.identity:
                self._take(process, "selected before")
        self._select_members()
        self._select_from_pid_file()
        for pid, labels in sorted(self._around.holders.items()):
            for label in labels:
                self._offer(pid, label, blocking=True)
        if self._selector.exe or self._selector.title:
            self._select_programs()
        if self._selector.orphans:
            self._select_orphans()
        self._follow()
        return Plan(
            self._ordered(),
            tuple(self._foreign[pid] for pid in sorted(self._foreign)),
            tuple(self._spared[pid] for pid in sorted(self._spared)),
            tuple(self._zombies[pid] for pid in sorted(self._zombies)),
        )

    def _select_members(self) -> None:
        for process in self._processes.values():
            if self._in_own_group(process):
                self._take(process, self._selector.unit or "cgroup")

    def _select_from_pid_file(self) -> None:
        written = self._selector.pid_file
        process = self._processes.get(written.pid) if written else None
        if written is None or process is None or process.start_ticks != written.start_ticks:
            return
        # A process younger than the file that names it only inherited the number.
        if self._around.started_seconds(process) > written.written_seconds + 1.0:
            return
        if not self._owner_uids and not self._selector.groups and process.uid is not None:
            believed = written.owner_uid in (0, process.uid)
            if believed and process.pid not in self._protected:
                self._owner_uids = {process.uid}
        self._offer(process.pid, written.path, blocking=True)

    def _select_programs(self) -> None:
        exe, title = self._selector.exe, self._selector.title
        for process in self._processes.values():
            if process.kernel_thread or (exe and not exe.fullmatch(process.exe)):
                continue
            if title and not title.fullmatch(process.title):
                continue
            # Another user's use of the same program is no news; another user's process with our title is.
            if title or process.uid in self._owner_uids:
                self._offer(process.pid, "title" if title else "exe", blocking=False)

    def _select_orphans(self) -> None:
        for process in self._processes.values():
            if self._is_reparented(process) and ORPHAN_TITLE.fullmatch("".join(process.cmdline[:1])):
                self._offer(process.pid, "orphan", blocking=False)
        # An engine's workers are children of an orphan, hence not reparented themselves.
        orphans = {pid for pid, via in self._selected.items() if "orphan" in via}
        self._follow_children(orphans)

    def _is_reparented(self, process: Process) -> bool:
        """Whether its parent is PID 1 or a user's service manager, which adopts the orphans of its sessions."""
        if process.ppid == 1:
            return True
        parent = self._processes.get(process.ppid)
        return parent is not None and parent.comm == "systemd" and parent.ppid == 1

    def _follow(self) -> None:
        before = -1
        while before != len(self._selected):
            before = len(self._selected)
            if "descendants" in self._selector.include:
                self._follow_children(set(self._selected))
            for name in ("group", "session"):
                if name in self._selector.include:
                    self._follow_shared(name)

    def _follow_children(self, parents: set[int]) -> None:
        children: dict[int, list[int]] = {}
        for process in self._processes.values():
            children.setdefault(process.ppid, []).append(process.pid)
        waiting = sorted(parents)
        while waiting:
            for pid in children.get(waiting.pop(), ()):
                if pid not in self._selected and self._offer(pid, "descendant", blocking=False):
                    waiting.append(pid)

    def _follow_shared(self, name: str) -> None:
        def key(process: Process) -> int:
            return process.pgid if name == "group" else process.sid

        # A group with this module or one of its ancestors in it is a login's, not a service's.
        ours = {key(self._processes[pid]) for pid in self._protected if pid in self._processes}
        wanted = {key(self._processes[pid]) for pid in self._selected}
        wanted |= {key(process) for process in self._known if not self._is_new(key(process), process)}
        wanted -= ours | {0}
        for process in self._processes.values():
            if key(process) in wanted and process.pid not in self._selected:
                self._offer(process.pid, name, blocking=False)

    def _is_new(self, number: int, member: Process) -> bool:
        """Whether a group or session was founded after ``member`` lived, and only has the number of its own."""
        leader = self._processes.get(number)
        return leader is not None and leader.start_ticks > member.start_ticks

    def _offer(self, pid: int, via: str, *, blocking: bool) -> bool:
        """Select a process that is ours or allowed; note it as foreign otherwise. Returns whether it is selected."""
        process = self._processes.get(pid)
        if process is None:
            return False
        unit = self._around.unit_of(process)
        if self._is_ours(process, unit) or not self._selector.allowed.isdisjoint({process.uid, unit}):
            return self._take(process, via, blocking=blocking)
        if not process.alive:
            return False
        blocks = blocking and self._selector.tolerated.isdisjoint({process.uid, unit})
        earlier = self._foreign.get(pid)
        vias = tuple(sorted({*earlier.via, via})) if earlier else (via,)
        self._foreign[pid] = Foreign(process, unit, vias, blocks or (earlier is not None and earlier.blocking))
        return False

    def _take(self, process: Process, via: str, *, blocking: bool = True) -> bool:
        if process.pid in self._protected:
            earlier = self._spared.get(process.pid)
            vias = tuple(sorted({*earlier.via, via})) if earlier else (via,)
            blocks = blocking or (earlier is not None and earlier.blocking)
            self._spared[process.pid] = Foreign(process, self._around.unit_of(process), vias, blocks)
            return False
        if not process.alive:
            self._zombies[process.pid] = process
            return False
        self._selected.setdefault(process.pid, set()).add(via)
        return True

    def _in_own_group(self, process: Process) -> bool:
        if any(group.holds(process) for group in self._selector.groups):
            return True
        return bool(self._selector.unit) and self._around.unit_of(process) == self._selector.unit

    def _is_ours(self, process: Process, unit: str | None) -> bool:
        if self._in_own_group(process):
            return True
        # All four ids: a process that borrowed a user's identity for a while is not that user's.
        if not process.uids or not set(process.uids) <= self._owner_uids:
            return False
        return unit is None or not self._around.is_living(unit)

    def _ordered(self) -> tuple[Target, ...]:
        mains = {self._selector.main_pid} & set(self._selected)
        if not mains:
            mains = {pid for pid in self._selected if self._processes[pid].ppid not in self._selected}
        targets = [
            Target(self._processes[pid], tuple(sorted(via)), pid in mains, self._depth(pid))
            for pid, via in self._selected.items()
        ]
        return tuple(sorted(targets, key=lambda target: (not target.main, target.depth, target.process.identity)))

    def _depth(self, pid: int) -> int:
        depth, seen = 0, {pid}
        parent = self._processes[pid].ppid
        while parent in self._selected and parent not in seen:
            seen.add(parent)
            depth += 1
            parent = self._processes[parent].ppid
        return depth


def tree(found: Plan) -> str:
    """Render the targets as an indented tree for the diff, one process a line."""
    selected = {target.process.pid for target in found.targets}
    children: dict[int, list[Process]] = {}
    for target in found.targets:
        parent = target.process.ppid
        children.setdefault(parent if parent in selected else 0, []).append(target.process)
    lines: list[str] = []
    waiting = [(process, 0) for process in sorted(children.get(0, ()), key=lambda one: one.pid, reverse=True)]
    while waiting:
        process, depth = waiting.pop()
        lines.append(f"{'  ' * depth}{process.pid} {process.command}\n")
        below = sorted(children.get(process.pid, ()), key=lambda one: one.pid, reverse=True)
        waiting.extend((child, depth + 1) for child in below)
    return "".join(lines)
