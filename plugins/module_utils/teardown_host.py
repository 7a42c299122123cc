# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a teardown asks of its host: units, PID files, device nodes, who holds what, and GPU memory."""

from __future__ import annotations

import glob
import os
import re
import stat
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Callable

from ansible_collections.llmops.vllm.plugins.module_utils.cgroups import CgroupLayout
from ansible_collections.llmops.vllm.plugins.module_utils.errors import InvalidInputError, PreconditionError
from ansible_collections.llmops.vllm.plugins.module_utils.procfs import (
    Identity,
    Process,
    ProcFs,
    Wanted,
    read_file,
)
from ansible_collections.llmops.vllm.plugins.module_utils.redaction import redacted
from ansible_collections.llmops.vllm.plugins.module_utils.signals import kill_group
from ansible_collections.llmops.vllm.plugins.module_utils.sizes import MIB
from ansible_collections.llmops.vllm.plugins.module_utils.systemd import Runner, UnitState, show_unit
from ansible_collections.llmops.vllm.plugins.module_utils.teardown import PidFile, Plan, Selector, Surroundings, plan

DEAD_STATES = ("inactive", "failed")
UNIT_SUFFIXES = (".service", ".scope")


def find_unit(run: Runner, name: str) -> UnitState:
    """Return what systemd says about a unit; PreconditionError on a host where systemd does not answer."""
    unit = show_unit(run, name)
    if not unit.systemd:
        raise PreconditionError(
            f"unit {name} cannot be looked up because systemd does not answer on this host; "
            "select by cgroup, pid_file or port instead."
        )
    return unit


class LivingUnits:
    """Whether another unit runs: false only where systemd says that it does not."""

    def __init__(self, run: Runner) -> None:
        self._run = run
        self._known: dict[str, bool] = {}

    def __call__(self, name: str) -> bool:
        """Return whether ``name``, a unit or a container as ``CgroupLayout.unit_of`` names it, may be running."""
        if not name.endswith(UNIT_SUFFIXES) or "/" in name:
            return True
        if name not in self._known:
            self._known[name] = show_unit(self._run, name).active_state not in DEAD_STATES
        return self._known[name]


def read_pid_file(path: str, now: float, proc: ProcFs) -> PidFile | None:
    """Read a PID file; None when there is none. ``now`` is the time of day in seconds.

    Raises InvalidInputError when it is no regular file or holds no PID.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InvalidInputError(f"pid_file {path} cannot be read: {error.strerror}.") from error
    with os.fdopen(descriptor, "rb") as stream:
        status = os.fstat(descriptor)
        text = stream.read(64).strip() if stat.S_ISREG(status.st_mode) else b""
    if not re.fullmatch(rb"[0-9]{1,10}", text) or int(text) == 0:
        raise InvalidInputError(f"pid_file {path} does not hold a process id; name the file that the service writes.")
    process = proc.process(int(text))
    written = proc.boot_seconds(max(0.0, now - status.st_mtime))
    return PidFile(path, int(text), status.st_uid, written, process.start_ticks if process else None)


def find_devices(patterns: Iterable[str]) -> dict[int, str]:
    """Return the character devices that match the globs, device number to path."""
    found: dict[int, str] = {}
    for pattern in patterns:
        if not pattern.startswith("/dev/"):
            raise InvalidInputError(
                f"devices: {pattern!r} does not lie below /dev; give device nodes like /dev/nvidia*."
            )
        for path in sorted(glob.glob(pattern)):
            status = os.stat(path)
            if stat.S_ISCHR(status.st_mode):
                found.setdefault(status.st_rdev, path)
    return found


@dataclass
class TeardownHost:
    """One look after another at the host, each giving a plan."""

    proc: ProcFs
    layout: CgroupLayout
    selector: Selector
    is_living: Callable[[str], bool]
    self_pid: int
    port: int | None = None
    socket_path: str = ""
    devices: Mapping[int, str] = field(default_factory=dict)
    unseen: tuple[str, ...] = ()
    _processes: Mapping[int, Process] = field(default_factory=dict)
    _looked_for: Wanted = field(default_factory=Wanted)
    _held: dict[Identity, tuple[str, ...]] = field(default_factory=dict)
    _unreadable: set[Identity] = field(default_factory=set)

    @property
    def unreadable_count(self) -> int:
        """How many processes could not be asked what they hold."""
        return len(self._unreadable)

    def look(self, known: Iterable[Process] = ()) -> Plan:
        """Look at every process and plan. ``unseen`` then says which sockets nobody visible holds.

        Open files are by far the most to read. Those of all are read at first, and again before it is said that nothing
        is left; in between only those of processes that are new.
        """
        earlier = {process.identity: process for process in known}
        self._processes = self.proc.processes()
        wanted = self._wanted()
        found = self._plan(earlier, self._holders(wanted, everybody=not earlier))
        if earlier and wanted and not found.targets:
            found = self._plan(earlier, self._holders(wanted, everybody=True))
        for target in found.targets:
            target.process.remember(earlier.get(target.process.identity))
        return found

    def _plan(self, known: Mapping[Identity, Process], holders: Mapping[int, tuple[str, ...]]) -> Plan:
        around = Surroundings(self.self_pid, holders, self.layout.unit_of, self.is_living, self.proc.started_seconds)
        return plan(self.selector, self._processes, around, known.values())

    def _holders(self, wanted: Wanted, *, everybody: bool) -> dict[int, tuple[str, ...]]:
        if not wanted:
            self.unseen = ()
            return {}
        if everybody or not wanted.is_part_of(self._looked_for):
            self._held, self._unreadable, self._looked_for = {}, set(), wanted
        new = {pid: one for pid, one in self._processes.items() if one.identity not in self._held}
        found = self.proc.holders(wanted, new)
        self._held.update((one.identity, found.by_pid.get(pid, ())) for pid, one in new.items())
        self._unreadable.update(new[pid].identity for pid in found.unreadable)
        current = wanted.labels
        by_pid: dict[int, tuple[str, ...]] = {}
        for pid, one in self._processes.items():
            labels = tuple(label for label in self._held[one.identity] if label in current)
            if labels:
                by_pid[pid] = labels
        self.unseen = tuple(sorted(set(wanted.sockets.values()).difference(*by_pid.values())))
        return by_pid

    def _wanted(self) -> Wanted:
        sockets: dict[int, str] = {}
        if self.port is not None:
            sockets.update(dict.fromkeys(self.proc.tcp_listeners(self.port), f"TCP port {self.port}"))
        if self.socket_path:
            found = (inode for inode, path in self.proc.unix_sockets() if path == self.socket_path)
            sockets.update(dict.fromkeys(found, f"socket {self.socket_path}"))
        return Wanted(sockets, self.devices)

    def kill_groups(self, current: Plan) -> set[int]:
        """Use ``cgroup.kill`` on the selected groups in which nothing but targets lives; return whom that killed."""
        killed: set[int] = set()
        targets = {target.process.pid for target in current.targets}
        for group in self.selector.groups:
            path = self.layout.kill_file(group)
            members = {one.pid for one in self._processes.values() if group.holds(one) and one.alive}
            if path and members and members <= targets and kill_group(path):
                killed |= members
        return killed


@dataclass(frozen=True)
class GpuUse:
    """Memory in use on one GPU; ``minor`` is N of ``/dev/nvidiaN`` where the driver tells."""

    bus_id: str
    minor: int | None
    used_bytes: int


@dataclass(frozen=True)
class GpuProcess:
    """A process with memory on a GPU, as the driver names it; its PID may be one of another PID namespace."""

    bus_id: str
    pid: int
    name: str
    used_bytes: int


class GpuMemory:
    """Memory in use on the selected GPUs, as ``nvidia-smi`` reports it."""

    def __init__(self, run: Runner, devices: Iterable[str], proc: ProcFs) -> None:
        self._run = run
        self._proc = proc
        numbers = (re.fullmatch(r"/dev/nvidia([0-9]+)", path) for path in devices)
        self._minors = {int(match.group(1)) for match in numbers if match}

    def read(self) -> tuple[list[GpuUse], str]:
        """Return the use of the selected GPUs (all when no /dev/nvidiaN is selected), or why it cannot be told."""
        done = self._run(["nvidia-smi", "--query-gpu=pci.bus_id,memory.used", "--format=csv,noheader,nounits"])
        if done.returncode == 127:
            return [], "nvidia-smi is not installed"
        if done.returncode != 0:
            # nvidia-smi writes its errors to stdout.
            first = ((done.stdout + done.stderr).strip().splitlines() or ["no output"])[0][:200]
            return [], f"nvidia-smi ended with status {done.returncode}: {first}"
        uses = []
        for line in done.stdout.splitlines():
            bus_id, _comma, used = (part.strip() for part in line.partition(","))
            minor = self._minor(bus_id)
            # Unified-memory GPUs answer [N/A]: there is no GPU memory to wait for.
            if used.isdigit() and (minor is None or not self._minors or minor in self._minors):
                uses.append(GpuUse(bus_id, minor, int(used) * MIB))
        return uses, "" if uses else "nvidia-smi reports no GPU memory for the selected devices"

    def processes(self, bus_ids: Collection[str]) -> list[GpuProcess]:
        """Return whom the driver names as users of some GPUs; none where it does not tell."""
        query = "--query-compute-apps=gpu_bus_id,pid,used_memory,process_name"
        done = self._run(["nvidia-smi", query, "--format=csv,noheader,nounits"])
        found = []
        for line in done.stdout.splitlines() if done.returncode == 0 else ():
            parts = [part.strip() for part in line.split(",", 3)]
            if len(parts) == 4 and parts[0] in bus_ids and parts[1].isdigit():
                used = int(parts[2]) * MIB if parts[2].isdigit() else 0
                found.append(GpuProcess(parts[0], int(parts[1]), redacted(parts[3].split())[:200], used))
        return found

    def _minor(self, bus_id: str) -> int | None:
        # nvidia-smi writes 00000000:0A:00.0 what the kernel calls 0000:0a:00.0.
        text = read_file(f"{self._proc.root}/driver/nvidia/gpus/{bus_id.lower()[-12:]}/information")
        match = re.search(rb"Device Minor:\s*([0-9]+)", text)
        return int(match.group(1)) if match else None
