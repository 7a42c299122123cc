# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One teardown from request to proof: plan, refuse what is foreign, end, and show that the host is clean."""

from __future__ import annotations

import os
import pwd
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Callable

from ansible_collections.llmops.vllm.plugins.module_utils.cgroups import CgroupLayout
from ansible_collections.llmops.vllm.plugins.module_utils.errors import (
    InvalidInputError,
    LlmopsError,
    PreconditionError,
)
from ansible_collections.llmops.vllm.plugins.module_utils.patterns import anchored
from ansible_collections.llmops.vllm.plugins.module_utils.procfs import Process, ProcFs
from ansible_collections.llmops.vllm.plugins.module_utils.signals import Executor, Host, Outcome, Sender, Survivor
from ansible_collections.llmops.vllm.plugins.module_utils.systemd import Runner, run_command, show_unit
from ansible_collections.llmops.vllm.plugins.module_utils.teardown import Foreign, Plan, Selector, tree
from ansible_collections.llmops.vllm.plugins.module_utils.teardown_host import (
    GpuMemory,
    GpuProcess,
    GpuUse,
    LivingUnits,
    TeardownHost,
    find_devices,
    find_unit,
    read_pid_file,
)
from ansible_collections.llmops.vllm.plugins.module_utils.unit_stop import is_stopped, stop_unit
from ansible_collections.llmops.vllm.plugins.module_utils.users import find_uid, user_name

PORT_SECONDS = 5.0
NAMED = 5  # processes in a message; the result has them all
ACTIVE_STATES = ("active", "activating", "reloading")


@dataclass(frozen=True)
class TeardownRequest:
    """The parameters of the module, named as there."""

    unit: str | None = None
    stop_unit: bool = False
    cgroup: str | None = None
    pid_file: str | None = None
    port: int | None = None
    socket_path: str | None = None
    devices: Sequence[str] = ()
    exe: str | None = None
    title: str | None = None
    orphans: bool = False
    owner: str | None = None
    include: Sequence[str] = ()
    allow_foreign: Sequence[str] = ()
    tolerate_foreign: Sequence[str] = ()
    grace_seconds: float = 30.0
    kill_seconds: float = 10.0
    expect_port_free: bool | None = None
    gpu_memory_floor_bytes: int | None = None
    gpu_wait_seconds: float = 60.0

    def check(self) -> None:
        """Raise InvalidInputError for a request that selects nothing, too much, or waits for a negative time."""
        holders = {"port": self.port is not None, "socket_path": self.socket_path, "devices": self.devices}
        others = (self.unit, self.cgroup, self.pid_file, self.exe, self.title, self.orphans)
        if self.stop_unit and not self.unit:
            raise InvalidInputError("stop_unit needs to know which unit; give unit.")
        if not any(others) and not any(holders.values()):
            raise InvalidInputError(
                "Nothing is selected; "
                "give one of unit, cgroup, pid_file, port, socket_path, devices, exe, title, orphans."
            )
        asked = sorted(name for name, given in holders.items() if given)
        if asked and not (self.unit or self.cgroup or self.owner or self.pid_file):
            raise InvalidInputError(f"{asked[0]} needs an owner to tell ours from others'; give unit, cgroup or owner.")
        if self.port is not None and not 0 < self.port < 65536:
            raise InvalidInputError(f"port {self.port} is not between 1 and 65535.")
        for name in ("grace_seconds", "kill_seconds", "gpu_wait_seconds", "gpu_memory_floor_bytes"):
            if (getattr(self, name) or 0) < 0:
                raise InvalidInputError(f"{name} is negative; give 0 or more.")


@dataclass
class TeardownRun:
    """A request on this host. The plan is made at once; ``apply`` carries it out, ``report`` only tells it.

    Raises InvalidInputError and PreconditionError; the latter names what is foreign, before any signal.
    """

    request: TeardownRequest
    proc: ProcFs = field(default_factory=ProcFs)
    run: Runner = run_command
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    now: Callable[[], float] = time.time
    self_pid: int = field(default_factory=os.getpid)
    warnings: list[str] = field(default_factory=list)
    check_mode: bool = False

    def __post_init__(self) -> None:
        """Stop the unit if that is asked for, then plan, and refuse a host that cannot come clean."""
        self.request.check()
        self._stopped = self._stop()
        self._unit_state = ""
        self._user_name = lru_cache(maxsize=None)(user_name)
        self._layout = CgroupLayout(self.proc)
        self._devices = find_devices(self.request.devices)
        self._host = TeardownHost(
            self.proc,
            self._layout,
            self._selector(),
            LivingUnits(self.run),
            self.self_pid,
            port=self.request.port,
            socket_path=self.request.socket_path or "",
            devices=self._devices,
        )
        self._gpu_processes: list[GpuProcess] = []
        self._gpus = GpuMemory(self.run, self._devices.values(), self.proc)
        self._plan = self._host.look()
        self._refuse_foreign(self._plan)
        if self._unit_state in ACTIVE_STATES and self._plan.targets and not self.request.stop_unit:
            self.warnings.append(
                f"Unit {self.request.unit} is {self._unit_state}: systemd may start it again; stop it first."
            )
        if self._devices and self._host.unreadable_count:
            self.warnings.append(
                f"{self._host.unreadable_count} processes may not be looked at by this user, so holders of devices "
                "among them are unknown; run as root."
            )

    @property
    def diff(self) -> dict[str, str]:
        """The tree of what is ended."""
        return {"before": tree(self._plan), "after": ""}

    def report(self) -> dict[str, Any]:
        """Return what would be done."""
        return self._result(None, 0.0, [], None, "check mode" if self._plan.targets else "")

    def apply(self) -> dict[str, Any]:
        """End the targets and prove the end state; LlmopsError with the whole result when the host is not clean."""
        start = self.clock()
        before, _skipped = self._gpu_memory()
        outcome = self._end() if self._plan.targets else None
        problems = self._survivor_problems(outcome.survivors) if outcome else []
        problems += self._port_problems()
        gpus, skipped, memory_problems = self._wait_for_gpus()
        freed = self._freed(before, gpus)
        result = self._result(outcome, self.clock() - start, gpus, freed, skipped)
        problems += memory_problems
        if problems:
            raise LlmopsError("The host is not clean: " + "; ".join(problems) + ".", **result)
        return result

    def _stop(self) -> bool:
        if not self.request.stop_unit or self.request.unit is None:
            return False
        if self.check_mode:
            return not is_stopped(show_unit(self.run, self.request.unit))
        return stop_unit(self.run, self.request.unit)

    def _selector(self) -> Selector:
        request = self.request
        groups = [self._layout.resolve(request.cgroup)] if request.cgroup else []
        main_pid = 0
        if request.unit:
            unit = find_unit(self.run, request.unit)
            self._unit_state, main_pid = unit.active_state, unit.main_pid
            if unit.control_group.strip("/"):
                groups.append(self._layout.control_group(unit.control_group))
        written = read_pid_file(request.pid_file, self.now(), self.proc) if request.pid_file else None
        return Selector(
            unit=request.unit or "",
            main_pid=main_pid or (written.pid if written else 0),
            groups=tuple(groups),
            pid_file=written,
            owner_uid=find_uid(request.owner) if request.owner else None,
            exe=anchored("exe", request.exe) if request.exe else None,
            title=anchored("title", request.title) if request.title else None,
            orphans=request.orphans,
            include=frozenset(request.include),
            allowed=_names(request.allow_foreign),
            tolerated=_names(request.tolerate_foreign),
        )

    def _end(self) -> Outcome:
        host = Host(
            rescan=self._host.look,
            is_alive=self.proc.is_alive,
            send=Sender(self.proc),
            clock=self.clock,
            sleep=self.sleep,
            kill_groups=self._host.kill_groups,
            waits_in=self.proc.waits_in,
        )
        return Executor(host, self.request.grace_seconds, self.request.kill_seconds).run(self._plan)

    def _refuse_foreign(self, plan: Plan) -> None:
        problems = _first([self._foreign_sentence(other) for other in plan.blocking])
        problems += [f"{label} is held by a process that this user may not look at" for label in self._host.unseen]
        if problems:
            raise PreconditionError(
                "Left alone, nothing was signalled: "
                + "; ".join(problems)
                + ". End it by its owner, or name it in allow_foreign.",
                **self._result(None, 0.0, [], None, ""),
            )

    def _foreign_sentence(self, other: Foreign) -> str:
        one = other.process
        unit = f"unit {other.unit}" if other.unit else "no unit"
        return (
            f"{', '.join(other.via)}: PID {one.pid} of user {self._user_name(one.uid)}, {unit}, "
            f"running {self.proc.running_seconds(one):.0f} s: {one.command}"
        )

    @staticmethod
    def _survivor_problems(survivors: Iterable[Survivor]) -> list[str]:
        return _first([f"PID {one.process.pid} ({one.process.command}) survives: {one.detail}" for one in survivors])

    def _port_problems(self) -> list[str]:
        port = self.request.port
        if port is None or self.request.expect_port_free is False:
            return []
        end = self.clock() + PORT_SECONDS
        while self.proc.tcp_listeners(port):
            if self.clock() >= end:
                return [f"TCP port {port} still has a listener"]
            self.sleep(0.1)
        return []

    def _gpu_memory(self) -> tuple[list[GpuUse], str]:
        if self.request.gpu_memory_floor_bytes is None:
            return [], "gpu_memory_floor_bytes is not given"
        return self._gpus.read()

    def _wait_for_gpus(self) -> tuple[list[GpuUse], str, list[str]]:
        floor = self.request.gpu_memory_floor_bytes
        end = self.clock() + self.request.gpu_wait_seconds
        while True:
            uses, skipped = self._gpu_memory()
            above = [use for use in uses if floor is not None and use.used_bytes > floor]
            if not above or self.clock() >= end:
                return uses, skipped, self._memory_problems(above)
            self.sleep(1.0)

    def _memory_problems(self, above: Sequence[GpuUse]) -> list[str]:
        if not above:
            return []
        self._gpu_processes = self._gpus.processes({use.bus_id for use in above})
        visible = set(self.proc.pids())
        problems = []
        for use in above:
            users = [
                f"PID {one.pid} ({one.name})" + ("" if one.pid in visible else ", which is not visible here")
                for one in self._gpu_processes
                if one.bus_id == use.bus_id
            ]
            text = f"GPU {use.bus_id} still has {use.used_bytes} bytes in use, more than the floor"
            problems.append(text + (", of " + ", ".join(_first(users)) if users else ""))
        return problems

    @staticmethod
    def _freed(before: list[GpuUse], after: list[GpuUse]) -> int | None:
        left = {use.bus_id: use.used_bytes for use in after}
        pairs = [(use.used_bytes, left[use.bus_id]) for use in before if use.bus_id in left]
        return max(0, sum(old - new for old, new in pairs)) if pairs else None

    def _result(
        self, outcome: Outcome | None, waited: float, gpus: list[GpuUse], freed: int | None, skipped: str
    ) -> dict[str, Any]:
        last = outcome.plan if outcome else self._plan
        ended = outcome.ended if outcome else ()
        survivors = [
            {**self._describe(one.process), "reason": one.reason, "detail": one.detail}
            for one in (*(outcome.survivors if outcome else ()), *_zombies(last, {one.process.pid for one in ended}))
        ]
        return {
            "changed": self._stopped or bool(self._plan.targets),
            "stopped": self._stopped,
            "targets": [
                {**self._describe(one.process), "via": one.via, "main": one.main} for one in self._plan.targets
            ],
            "ended": [
                {**self._describe(one.process), "signal": one.signal, "after_seconds": round(one.after_seconds, 3)}
                for one in ended
            ],
            "survivors": survivors,
            "foreign": [self._describe_foreign(one) for one in last.foreign],
            "protected": [self._describe_foreign(one) for one in last.protected],
            "waited_seconds": round(waited, 3),
            "port_free": None if self.request.port is None else not self.proc.tcp_listeners(self.request.port),
            "freed_bytes": freed,
            "gpu_memory": {
                "gpus": [{"bus_id": use.bus_id, "used_bytes": use.used_bytes} for use in gpus],
                "processes": [
                    {"bus_id": one.bus_id, "pid": one.pid, "name": one.name, "used_bytes": one.used_bytes}
                    for one in self._gpu_processes
                ],
                "skipped": skipped,
            },
            "unit_state": self._unit_state,
            "unreadable_processes": self._host.unreadable_count,
        }

    def _describe(self, process: Process) -> dict[str, Any]:
        return {
            "pid": process.pid,
            "ppid": process.ppid,
            "user": self._user_name(process.uid),
            "unit": self._layout.unit_of(process),
            "command": process.command,
            "state": process.state,
            "running_seconds": round(self.proc.running_seconds(process), 1),
        }

    def _describe_foreign(self, other: Foreign) -> dict[str, Any]:
        return {**self._describe(other.process), "via": other.via, "blocking": other.blocking}


def _zombies(plan: Plan, ended_pids: set[int]) -> list[Survivor]:
    """Return what was dead before; what this teardown ended is ended, however late its parent collects it."""
    zombies = [one for one in plan.zombies if one.pid not in ended_pids]
    return [Survivor(one, "zombie", f"dead; its parent {one.ppid} has not collected it") for one in zombies]


def _first(sentences: list[str]) -> list[str]:
    """Return few enough sentences for a person to read, and how many more there are."""
    more = len(sentences) - NAMED
    return [*sentences[:NAMED], f"and {more} more"] if more > 0 else sentences


def _names(names: Iterable[str]) -> frozenset[object]:
    """Return unit names as they are, and user names also as ids where the user exists."""
    found: set[object] = set(names)
    for name in names:
        try:
            found.add(pwd.getpwnam(name).pw_uid)
        except KeyError:
            continue
    return frozenset(found)
