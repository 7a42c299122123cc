# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Processes, listeners and open files as ``/proc`` tells them; see proc(5) for every format read here.

The cost of each call grows linearly with the number of processes (and, for holders, of their open files). What only few
processes are asked for (user, command line, executable) is read when it is asked for.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from operator import itemgetter
from typing import Callable, NamedTuple

from ansible_collections.llmops.vllm.plugins.module_utils.redaction import redacted
from ansible_collections.llmops.vllm.plugins.module_utils.shares import shared

KERNEL_THREAD_FLAG = 0x00200000  # PF_KTHREAD in linux/sched.h
LISTENING_STATE = b"0A"  # TCP_LISTEN in net/tcp_states.h
SOCKET_LINK = "socket:["
NUMBERS = tuple(map(str, range(1024)))  # of open files


class Identity(NamedTuple):
    """What tells a process from a later one with the same PID."""

    pid: int
    start_ticks: int


@dataclass(frozen=True)
class Process:
    """One process; ``start_ticks`` counts clock ticks since boot, ``cgroups`` maps a hierarchy to a path.

    The hierarchy is ``""`` for cgroup v2, ``name=systemd`` or a controller list for v1.
    """

    pid: int
    ppid: int
    pgid: int
    sid: int
    start_ticks: int
    comm: str
    state: str
    threads: int
    kernel_thread: bool
    cgroups: Mapping[str, str] = field(compare=False)
    directory: str = field(compare=False, repr=False)

    @property
    def identity(self) -> Identity:
        """PID and start time."""
        return Identity(self.pid, self.start_ticks)

    @property
    def alive(self) -> bool:
        """False for a zombie; one whose main thread ended while others run still holds everything."""
        return _runs(self.state, self.threads)

    @cached_property
    def uids(self) -> tuple[int, ...]:
        """Real, effective, saved and filesystem user id; empty when the process has gone."""
        _before, found, after = _read_record(f"{self.directory}/status").partition(b"\nUid:")
        return tuple(int(word) for word in after[: after.find(b"\n")].split()) if found else ()

    @property
    def uid(self) -> int | None:
        """The effective user id, or None when the process has gone."""
        return self.uids[1] if self.uids else None

    @cached_property
    def cmdline(self) -> tuple[str, ...]:
        """The arguments; one element for a process that set its title; empty for kernel threads and zombies."""
        raw = _read_record(f"{self.directory}/cmdline").rstrip(b"\0")
        return tuple(os.fsdecode(word) for word in raw.split(b"\0")) if raw else ()

    @cached_property
    def exe(self) -> str:
        """The executable's path, or an empty string where it may not be read."""
        try:
            return os.readlink(f"{self.directory}/exe")
        except OSError:
            return ""

    def remember(self, earlier: Process | None = None) -> None:
        """Read now what is told about the process after its end, or take it from an ``earlier`` look."""
        for cached in ("uids", "cmdline"):
            self.__dict__.setdefault(cached, getattr(earlier or self, cached))

    @property
    def title(self) -> str:
        """The command line as one string, or ``[comm]`` where there is none; may hold secrets."""
        return " ".join(self.cmdline) or f"[{self.comm}]"

    @cached_property
    def command(self) -> str:
        """``title`` without what looks like a secret, at most 500 characters."""
        return (redacted(self.cmdline) or f"[{self.comm}]")[:500]


class OpenFiles(NamedTuple):
    """The open files of a process: their numbers, what each is a link to, and the directory that holds these links."""

    names: Sequence[str]
    links: Sequence[str]
    directory: int

    def status(self, name: str) -> os.stat_result | None:
        """Return the status of the file itself, None when it was closed. Raises PermissionError."""
        try:
            return os.stat(name, dir_fd=self.directory)
        except PermissionError:
            raise
        except OSError:
            return None


@dataclass(frozen=True)
class Holders:
    """Who holds the wanted things: PID to their labels; what nobody visible holds; and who could not be looked at."""

    by_pid: Mapping[int, tuple[str, ...]]
    unseen: tuple[str, ...]
    unreadable: frozenset[int]


@dataclass(frozen=True)
class Wanted:
    """Things a process can hold open: socket inodes and character devices (``st_rdev``), each with its label."""

    sockets: Mapping[int, str] = field(default_factory=dict)
    devices: Mapping[int, str] = field(default_factory=dict)

    def __bool__(self) -> bool:
        """Whether anything is wanted."""
        return bool(self.sockets or self.devices)

    @property
    def labels(self) -> frozenset[str]:
        """All labels."""
        return frozenset((*self.sockets.values(), *self.devices.values()))

    def is_part_of(self, other: Wanted) -> bool:
        """Whether who was looked at for ``other`` was looked at for this."""
        return self.sockets.keys() <= other.sockets.keys() and self.devices.keys() <= other.devices.keys()


class ProcFs:
    """A mounted proc filesystem at ``root``.

    ``boot_clock`` returns the seconds since boot on the clock in which ``/proc/PID/stat`` counts (CLOCK_BOOTTIME).
    """

    def __init__(
        self,
        root: str = "/proc",
        boot_clock: Callable[[], float] = lambda: time.clock_gettime(time.CLOCK_BOOTTIME),
        ticks_per_second: int = os.sysconf("SC_CLK_TCK"),
    ) -> None:
        self.root = root
        self._boot_clock = boot_clock
        self._ticks_per_second = ticks_per_second
        self._parsed_cgroups: dict[str, Mapping[str, str]] = {}

    def processes(self) -> dict[int, Process]:
        """Return every process that can be seen, by PID in ascending order."""
        records = (record for part in shared(self._records, self.pids()) for record in part)
        return {record[0]: self._parsed(*record) for record in sorted(records, key=itemgetter(0))}

    def pids(self) -> list[int]:
        """Return the numbers of all visible processes, ascending."""
        return sorted(int(name) for name in os.listdir(self.root) if name.isdigit())

    def process(self, pid: int) -> Process | None:
        """Return one process as it is now, or None when it has gone."""
        return next((self._parsed(*record) for record in self._records([pid])), None)

    def _records(self, pids: Iterable[int]) -> list[tuple[int, str, str]]:
        """Return PID, ``stat`` and ``cgroup`` of those that are there, as text in which every byte is a character."""
        found = []
        for pid in pids:
            stat = _read_record(f"{self.root}/{pid}/stat")
            if stat:
                cgroup = _read_record(f"{self.root}/{pid}/cgroup")
                found.append((pid, stat.decode("latin-1"), cgroup.decode("latin-1")))
        return found

    def _parsed(self, pid: int, stat: str, cgroup: str) -> Process:
        comm, fields = _stat_fields(stat)
        return Process(
            pid=pid,
            ppid=int(fields[1]),
            pgid=int(fields[2]),
            sid=int(fields[3]),
            start_ticks=int(fields[19]),
            comm=os.fsdecode(comm.encode("latin-1")),
            state=fields[0],
            threads=int(fields[17]),
            kernel_thread=bool(int(fields[6]) & KERNEL_THREAD_FLAG),
            cgroups=self._cgroups(cgroup),
            directory=f"{self.root}/{pid}",
        )

    def _cgroups(self, text: str) -> Mapping[str, str]:
        """Parse once what is the same for most processes."""
        found = self._parsed_cgroups.get(text)
        if found is None:
            found = self._parsed_cgroups[text] = parse_cgroups(text.encode("latin-1"))
        return found

    def is_alive(self, process: Process) -> bool:
        """Whether the very same process still runs, whoever has its PID today."""
        raw = _read_record(f"{self.root}/{process.pid}/stat")
        if not raw:
            return False
        _comm, fields = _stat_fields(raw.decode("latin-1"))
        return int(fields[19]) == process.start_ticks and _runs(fields[0], int(fields[17]))

    def started_seconds(self, process: Process) -> float:
        """Return when a process started, in seconds since boot."""
        return process.start_ticks / self._ticks_per_second

    def running_seconds(self, process: Process) -> float:
        """Return for how long a process has run."""
        return max(0.0, self._boot_clock() - self.started_seconds(process))

    def boot_seconds(self, age_seconds: float) -> float:
        """Return what the boot clock showed ``age_seconds`` ago."""
        return self._boot_clock() - age_seconds

    def waits_in(self, process: Process) -> str:
        """Return the kernel function a process sleeps in, or an empty string where the kernel does not tell."""
        name = os.fsdecode(read_file(f"{self.root}/{process.pid}/wchan")).strip()
        return "" if name == "0" else name

    def tcp_listeners(self, port: int) -> dict[int, int]:
        """Return socket inode to user id for everything that listens on a TCP port of this network namespace."""
        wanted = b"%04X" % port
        found: dict[int, int] = {}
        for name in ("tcp", "tcp6"):
            for line in read_file(f"{self.root}/net/{name}").splitlines()[1:]:
                fields = line.split()
                if len(fields) > 9 and fields[3] == LISTENING_STATE and fields[1].rpartition(b":")[2] == wanted:
                    found[int(fields[9])] = int(fields[7])
        return found

    def unix_sockets(self, pid: str = "") -> Iterator[tuple[int, str]]:
        """Yield inode and path of every bound unix socket, of the network namespace of ``pid`` when given."""
        for line in read_file(f"{self.root}/{pid}/net/unix").splitlines()[1:]:
            fields = line.split(maxsplit=7)
            if len(fields) == 8:
                yield int(fields[6]), os.fsdecode(fields[7])

    def holders(self, wanted: Wanted, processes: Mapping[int, Process]) -> Holders:
        """Find who holds the wanted sockets and devices open, among ``processes``."""
        if not wanted:
            return Holders({}, (), frozenset())
        sockets = {f"{SOCKET_LINK}{inode}]": label for inode, label in wanted.sockets.items()}
        pids = [pid for pid, process in processes.items() if not process.kernel_thread]
        by_pid: dict[int, tuple[str, ...]] = {}
        unreadable: set[int] = set()
        for held, hidden in shared(partial(self._look_for, sockets, wanted.devices), pids):
            by_pid.update((pid, tuple(labels)) for pid, labels in held)
            unreadable.update(hidden)
        unseen = tuple(sorted(set(wanted.sockets.values()).difference(*by_pid.values())))
        return Holders(dict(sorted(by_pid.items())), unseen, frozenset(unreadable))

    def _look_for(
        self, sockets: Mapping[str, str], devices: Mapping[int, str], pids: Iterable[int]
    ) -> tuple[list[tuple[int, list[str]]], list[int]]:
        """Return who of ``pids`` holds which, and who may not be looked at."""
        held: list[tuple[int, list[str]]] = []
        hidden: list[int] = []
        for pid in pids:
            try:
                labels = self._labels(pid, sockets, devices)
            except PermissionError:
                if os.path.exists(f"{self.root}/{pid}/stat"):  # the answer for one that has gone meanwhile is the same
                    hidden.append(pid)
                continue
            if labels:
                held.append((pid, sorted(labels)))
        return held, hidden

    def _labels(self, pid: int, sockets: Mapping[str, str], devices: Mapping[int, str]) -> set[str]:
        with self.open_files(pid) as files:
            labels = {sockets[link] for link in sockets.keys() & files.links}
            # Only device nodes are looked at: a stat of a file on a dead network filesystem would never return.
            nodes = [name for name, link in zip(files.names, files.links) if link[:5] == "/dev/"] if devices else ()
            for name in nodes:
                status = files.status(name)
                if status is not None and status.st_rdev in devices and stat.S_ISCHR(status.st_mode):
                    labels.add(devices[status.st_rdev])
        return labels

    @contextmanager
    def open_files(self, pid: int) -> Iterator[OpenFiles]:
        """Look at the open files of a process; there are none when it has gone.

        Raises PermissionError where this user may not look.
        """
        try:
            directory = os.open(f"{self.root}/{pid}/fd", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except (FileNotFoundError, ProcessLookupError):
            yield OpenFiles((), (), -1)
            return
        try:
            yield _links(directory)
        finally:
            os.close(directory)


def _links(directory: int) -> OpenFiles:
    # The directory's size is the number of open files (Linux 6.2, proc_fd_getattr). Mostly they are those from 0 on,
    # and to list them would cost half as much as to read their links.
    count = os.fstat(directory).st_size
    names, links = NUMBERS[:count], []
    with suppress(FileNotFoundError, ProcessLookupError):
        for name in names:
            links.append(os.readlink(name, dir_fd=directory))
        if len(links) == count > 0:
            return OpenFiles(names, links, directory)
    found = dict(zip(names, links))
    try:
        for name in os.listdir(directory):
            if name not in found:
                with suppress(FileNotFoundError, ProcessLookupError):
                    found[name] = os.readlink(name, dir_fd=directory)
    except (FileNotFoundError, ProcessLookupError):
        pass
    return OpenFiles(tuple(found), tuple(found.values()), directory)


def parse_cgroups(raw: bytes) -> dict[str, str]:
    """Parse ``/proc/PID/cgroup`` (cgroups(7)) into hierarchy to path."""
    found: dict[str, str] = {}
    for line in os.fsdecode(raw).splitlines():
        _number, _colon, rest = line.partition(":")
        hierarchy, colon, path = rest.partition(":")
        if colon:
            found[hierarchy] = path
    return found


def _runs(state: str, threads: int) -> bool:
    return state not in "ZX" or threads > 1


def _stat_fields(record: str) -> tuple[str, list[str]]:
    """Return the command's name, which can hold blanks and brackets (the last one ends it), and 20 fields after it."""
    end = record.rindex(")")
    return record[record.index("(") + 1 : end], record[end + 2 :].split(" ", 20)


def _open(path: str) -> int | None:
    """Open a proc file, or return None when the process has gone or does not let us look."""
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ESRCH, errno.EACCES, errno.EPERM, errno.ENOTDIR):
            return None
        raise


def read_file(path: str) -> bytes:
    """Return a proc file's content; empty when the process has gone or does not let us look."""
    descriptor = _open(path)
    return b"" if descriptor is None else _read_and_close(descriptor, 65536, one_record=False)


def _read_record(path: str) -> bytes:
    """Read a file that the kernel writes as one record: a read that returns less than was asked for has all of it."""
    descriptor = _open(path)
    return b"" if descriptor is None else _read_and_close(descriptor, 4096, one_record=True)


def _read_and_close(descriptor: int, size: int, *, one_record: bool) -> bytes:
    try:
        content = chunk = os.read(descriptor, size)
        while chunk and (len(chunk) == size or not one_record):
            chunk = os.read(descriptor, size)
            content += chunk
        return content
    except (ProcessLookupError, PermissionError):
        return b""
    finally:
        os.close(descriptor)
