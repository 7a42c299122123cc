# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who uses a shared-memory object or a socket: what ``/proc`` shows, and what the kernel answers.

The kernel grants a write lease on a file only while nobody else has it open or mapped (fcntl(2), F_SETLEASE), in
whatever namespace, by whatever name and whoever asks; and it refuses a connection to a socket that nobody listens on.
``/proc`` names the processes, by device and inode. The two must agree; the open files of all processes, by far the most
work, are looked through only for objects that the kernel did not call unused and that no process maps.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import signal
import socket
from collections.abc import Collection, Iterable, Sequence
from functools import partial
from typing import Callable

from ansible_collections.llmops.vllm.plugins.module_utils.procfs import ProcFs
from ansible_collections.llmops.vllm.plugins.module_utils.shares import shared
from ansible_collections.llmops.vllm.plugins.module_utils.shm import (
    IN_USE,
    NOT_PROVABLE,
    SOCKET,
    UNUSED,
    ShmObject,
    Usage,
)

GONE = "gone"
CHANGED = "changed"
NOT_PERMITTED = "not_permitted"
DELETED = " (deleted)"
MAPS_BYTES = 65536


def find_usage(proc: ProcFs, candidates: Sequence[ShmObject], unproven: Sequence[ShmObject]) -> Usage:
    """Look through every process for the candidates, and through its open files for those of them that are unproven.

    Costs nothing when there are no candidates.
    """
    if not candidates:
        return Usage({}, frozenset(), frozenset(), 0)
    return _Search(proc, candidates, unproven).run()


class _Search:
    def __init__(self, proc: ProcFs, candidates: Sequence[ShmObject], unproven: Sequence[ShmObject]) -> None:
        self._proc = proc
        files = [found for found in candidates if found.family.kind != SOCKET]
        self._keys = {found.key for found in files}
        self._unproven = [found for found in unproven if found.family.kind != SOCKET]
        self._want_sockets = len(files) < len(candidates)
        self._users: dict[tuple[int, int], set[int]] = {}
        self._socket_names: set[str] = set()
        self._unreadable: dict[int, frozenset[int]] = {}
        devices = {f"{os.major(device):02x}:{os.minor(device):02x}": device for device, _inode in self._keys}
        self._devices = {text.encode("ascii"): device for text, device in devices.items()}
        self._mapping = re.compile(rb" (%s) (\d+) " % b"|".join(self._devices)) if devices else None

    def run(self) -> Usage:
        """Look at all processes."""
        pids = self._proc.pids()
        if self._want_sockets:
            self._look_at_sockets(pids)
        if self._mapping is not None:
            self._ask(pids, self._mapped)
        # What is mapped is in use whoever else has it open.
        names = {found.name for found in self._unproven if found.key not in self._users}
        if names:
            self._ask(pids, partial(self._opened, names))
        uids = frozenset(uid for some in self._unreadable.values() for uid in some)
        users = {key: frozenset(some) for key, some in self._users.items()}
        return Usage(users, frozenset(self._socket_names), uids, len(self._unreadable))

    def _ask(self, pids: Sequence[int], find: Callable[[int], Iterable[tuple[int, int]]]) -> None:
        """Note which process uses which candidates; ``find`` returns devices and inodes."""
        for uses, hidden in shared(partial(self._find, find), pids):
            for pid, device, inode in uses:
                self._users.setdefault((device, inode), set()).add(pid)
            for pid in hidden:
                self._note_unreadable(pid)

    def _find(
        self, find: Callable[[int], Iterable[tuple[int, int]]], pids: Iterable[int]
    ) -> tuple[list[tuple[int, int, int]], list[int]]:
        uses: list[tuple[int, int, int]] = []
        hidden: list[int] = []
        for pid in pids:
            try:
                uses += [(pid, *key) for key in find(pid) if key in self._keys]
            except PermissionError:
                hidden.append(pid)
        return uses, hidden

    def _look_at_sockets(self, pids: Iterable[int]) -> None:
        """Note the names of all bound sockets, of each network namespace once."""
        self._add_sockets("")
        seen: set[str] = set()
        for pid in pids:
            try:
                namespace = _link(f"{self._proc.root}/{pid}/ns/net")
            except PermissionError:
                self._note_unreadable(pid)
                continue
            if namespace and namespace not in seen:
                seen.add(namespace)
                self._add_sockets(str(pid))

    def _mapped(self, pid: int) -> Iterable[tuple[int, int]]:
        maps = self._maps(pid)
        if self._mapping and any(device in maps for device in self._devices):
            return {(self._devices[device], int(inode)) for device, inode in self._mapping.findall(maps)}
        return ()

    def _maps(self, pid: int) -> bytes:
        try:
            with open(f"{self._proc.root}/{pid}/maps", "rb", buffering=0) as stream:
                return b"".join(iter(partial(stream.read, MAPS_BYTES), b""))
        except (FileNotFoundError, ProcessLookupError):
            return b""

    def _opened(self, names: Collection[str], pid: int) -> Iterable[tuple[int, int]]:
        found = []
        with self._proc.open_files(pid) as files:
            for number, link in zip(files.names, files.links):
                # The last part of the link is the object's name in whatever mount namespace it was opened; comparing it
                # first spares a stat of all else, which may lie on a dead network filesystem and never return.
                opened = link[link.rfind("/") + 1 :]
                if opened in names or (opened.endswith(DELETED) and opened[: -len(DELETED)] in names):
                    status = files.status(number)
                    if status is not None:
                        found.append((status.st_dev, status.st_ino))
        return found

    def _add_sockets(self, pid: str) -> None:
        self._socket_names.update(path.rpartition("/")[2] for _inode, path in self._proc.unix_sockets(pid))

    def _note_unreadable(self, pid: int) -> None:
        process = self._proc.process(pid)
        if process is not None and process.alive and not process.kernel_thread:
            self._unreadable[pid] = frozenset(process.uids)


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except PermissionError:
        raise
    except OSError:
        return ""


class Kernel:
    """Asks the kernel about objects, and removes those that it calls unused; for use in a ``with`` block.

    An open by somebody else breaks a lease with SIGIO, which by default would end this process: meanwhile it is
    ignored. Directories stay open, and names are looked up relative to them.
    """

    def __enter__(self) -> Kernel:
        """Ignore SIGIO where that is possible; without, no lease is taken."""
        self._directories: dict[str, int] = {}
        self._leases = True
        try:
            self._handler = signal.signal(signal.SIGIO, signal.SIG_IGN)
        except ValueError:  # not the main thread
            self._leases = False
        return self

    def __exit__(self, *error: object) -> None:
        """Restore SIGIO, close the directories."""
        if self._leases:
            signal.signal(signal.SIGIO, signal.SIG_DFL if self._handler is None else self._handler)
        for directory in self._directories.values():
            os.close(directory)

    def ask(self, found: ShmObject) -> str:
        """Return UNUSED, IN_USE or NOT_PROVABLE; CHANGED or GONE when the object is not what was found."""
        return self._with_object(found, self._answer)

    def remove(self, found: ShmObject, must_confirm: bool) -> str:
        """Remove an object that the kernel still reports unused (or, unless ``must_confirm``, says nothing about).

        Returns UNUSED when it is removed, and otherwise the reason why not. The name is removed relative to its open
        directory, only while it means the very object that was judged. No symbolic link is followed.
        """
        return self._with_object(found, partial(self._remove, must_confirm))

    def _with_object(self, found: ShmObject, act: Callable[[ShmObject, int, int], str]) -> str:
        try:
            directory = self._directory(found.directory)
            descriptor = _open(found, directory)
            try:
                return act(found, directory, descriptor)
            finally:
                os.close(descriptor)
        except FileNotFoundError:
            return GONE
        except OSError as error:
            return CHANGED if error.errno in (errno.ELOOP, errno.ENXIO) else NOT_PROVABLE

    def _directory(self, path: str) -> int:
        if path not in self._directories:
            self._directories[path] = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        return self._directories[path]

    def _answer(self, found: ShmObject, _directory: int, descriptor: int) -> str:
        if not found.is_still(os.fstat(descriptor)):
            return CHANGED
        if found.family.kind == SOCKET:
            return _answer_of_socket(descriptor)
        return _answer_of_file(descriptor) if self._leases else NOT_PROVABLE

    def _remove(self, must_confirm: bool, found: ShmObject, directory: int, descriptor: int) -> str:
        answer = self._answer(found, directory, descriptor)
        if answer == UNUSED or (answer == NOT_PROVABLE and not must_confirm):
            return _unlink(found, directory)
        return answer


def _open(found: ShmObject, directory: int) -> int:
    """Open the object itself; a socket, or a file that may not be read, only as a path."""
    flags = os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        kind = os.O_PATH if found.family.kind == SOCKET else os.O_RDONLY | os.O_NONBLOCK
        return os.open(found.name, flags | kind, dir_fd=directory)
    except PermissionError:
        return os.open(found.name, flags | os.O_PATH, dir_fd=directory)


def _answer_of_file(descriptor: int) -> str:
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    except OSError as error:
        # Every other error means that no lease can be had on this filesystem or by this user.
        return IN_USE if error.errno == errno.EAGAIN else NOT_PROVABLE
    return UNUSED


def _answer_of_socket(descriptor: int) -> str:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.setblocking(False)
        code = client.connect_ex(f"/proc/self/fd/{descriptor}")
    if code == errno.ECONNREFUSED:
        return UNUSED
    return IN_USE if code in (0, errno.EAGAIN, errno.EINPROGRESS, errno.EPROTOTYPE) else NOT_PROVABLE


def _unlink(found: ShmObject, directory: int) -> str:
    if not found.is_still(os.stat(found.name, dir_fd=directory, follow_symlinks=False)):
        return CHANGED
    try:
        os.unlink(found.name, dir_fd=directory)
    except PermissionError:
        return NOT_PERMITTED
    return UNUSED
