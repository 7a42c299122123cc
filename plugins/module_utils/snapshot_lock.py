# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One run per snapshot: ``flock``, and a lease for file systems on which ``flock`` does nothing.

The lease says who holds it (host, process, boot) and is touched every few seconds. One whose process is gone, whose
host has rebooted, or which nobody has touched for two minutes by the waiter's own clock is taken over. A holder that
was stopped for so long notices, and ends.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any

from ansible_collections.llmops.vllm.plugins.module_utils.errors import PreconditionError

HEARTBEAT_SECONDS = 15.0
STALE_SECONDS = 120.0
_POLL_SECONDS = 0.5


class SnapshotLock:
    """A context manager around the work on one snapshot.

    ``path`` is the lock file; ``sleep`` and ``monotonic`` count seconds; waiting ends after ``timeout_seconds`` with a
    ``PreconditionError`` that names the holder. ``on_lost`` is called when somebody else has taken the lease over;
    leaving then raises ``PreconditionError``. ``root`` is the root of the file system that /proc and /etc are in.
    """

    def __init__(
        self,
        path: str,
        *,
        timeout_seconds: float,
        sleep: Callable[[float], object],
        monotonic: Callable[[], float],
        on_lost: Callable[[], object] = lambda: None,
        root: str = "",
    ) -> None:
        self._path = path
        self._lease_path = f"{path}.lease"
        self._timeout_seconds = timeout_seconds
        self._sleep = sleep
        self._monotonic = monotonic
        self._on_lost = on_lost
        self._root = root
        self._me = {**identity(root), "token": uuid.uuid4().hex}
        self._lost = False
        self._descriptor = -1
        self._ended = threading.Event()
        self._beating = threading.Thread(target=self._beat, daemon=True)
        self._last_seen: tuple[int, float] | None = None

    def __enter__(self) -> SnapshotLock:
        """Wait for the lock and hold it."""
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        self._descriptor = os.open(self._path, flags, 0o600)
        try:
            self._wait()
        except BaseException:
            os.close(self._descriptor)
            raise
        self._beating.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        """Give it up."""
        self._ended.set()
        self._beating.join()
        if self._is_mine():
            _unlink(self._lease_path)
        os.close(self._descriptor)
        if self._lost:
            raise PreconditionError(
                f"This run stood still for so long that another one took over ({self._holder()}); wait for that one, "
                "then run again."
            )

    def _wait(self) -> None:
        deadline = self._monotonic() + self._timeout_seconds
        while not (self._flock() and self._take_lease()):
            if self._monotonic() >= deadline:
                raise PreconditionError(
                    f"Another run works on this snapshot ({self._holder()}) and did not finish within "
                    f"{self._timeout_seconds:g} seconds; wait for it or end it, then run again."
                )
            self._sleep(_POLL_SECONDS)

    def _flock(self) -> bool:
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP):
                return True
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                return False
            raise
        return True

    def _take_lease(self) -> bool:
        if self._make_lease():
            return True
        seen = _identity_of(self._lease_path)
        return self._is_stale() and self._put_away(seen) and self._make_lease()

    def _make_lease(self) -> bool:
        try:
            descriptor = os.open(self._lease_path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644)
        except FileExistsError:
            return False
        with open(descriptor, "w", encoding="utf-8") as stream:
            json.dump(self._me, stream)
        return True

    def _put_away(self, seen: tuple[int, int]) -> bool:
        """Remove the stale lease, unless another waiter has just replaced it by its own."""
        aside = f"{self._lease_path}.{self._me['token']}"
        try:
            os.rename(self._lease_path, aside)
        except FileNotFoundError:
            return True
        right = _identity_of(aside) == seen
        if not right:
            with contextlib.suppress(FileExistsError):
                os.link(aside, self._lease_path)
        _unlink(aside)
        return right

    def _is_stale(self) -> bool:
        answer = is_dead(_read(self._lease_path), self._root)
        if answer is not None:
            return answer
        touched = _identity_of(self._lease_path)[1]
        now = self._monotonic()
        if self._last_seen is None or self._last_seen[0] != touched:
            self._last_seen = (touched, now)
        return now - self._last_seen[1] >= STALE_SECONDS

    def _is_mine(self) -> bool:
        return bool(_read(self._lease_path).get("token") == self._me["token"])

    def _holder(self) -> str:
        holder = _read(self._lease_path)
        return f"process {holder.get('pid', 'unknown')} on {holder.get('host', 'an unknown host')}"

    def _beat(self) -> None:
        while not self._ended.wait(HEARTBEAT_SECONDS):
            # What cannot be read now, on a network or half written, is read at the next beat.
            with contextlib.suppress(OSError, ValueError):
                self._touch()

    def _touch(self) -> None:
        try:
            with open(self._lease_path, encoding="utf-8") as stream:
                mine = dict(json.load(stream)).get("token") == self._me["token"]
        except FileNotFoundError:
            mine = self._make_lease()
        if mine:
            os.utime(self._lease_path, follow_symlinks=False)
        else:
            self._lost = True
            self._ended.set()
            self._on_lost()


def is_held(path: str, root: str = "", clock: Callable[[], float] = time.time) -> bool:
    """Whether a run holds the lock at ``path``, as far as can be told without taking it.

    ``clock`` gives seconds since the epoch.
    """
    lease = f"{path}.lease"
    if os.path.lexists(lease):
        dead = is_dead(_read(lease), root)
        if dead is None:
            dead = clock() - _identity_of(lease)[1] / 1e9 >= STALE_SECONDS
        if not dead:
            return True
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno == errno.EWOULDBLOCK
    finally:
        os.close(descriptor)
    return False


def is_dead(holder: dict[str, Any], root: str = "") -> bool | None:
    """Whether the ``holder`` of a lease is gone; None when that cannot be seen from here.

    Processes are seen only within one boot and one PID namespace. Host names alone do not tell hosts apart.
    """
    me = identity(root)
    if holder.get("boot_id") == me["boot_id"] and holder.get("pid_namespace") == me["pid_namespace"]:
        return process_start(holder.get("pid"), f"{root}/proc") != holder.get("start_time")
    same_host = bool(me["machine_id"]) and all(holder.get(key) == me[key] for key in ("host", "machine_id"))
    return True if same_host and holder.get("boot_id") != me["boot_id"] else None


def identity(root: str = "") -> dict[str, Any]:
    """Return what a lease says about this process."""
    pid = os.getpid()
    try:
        namespace = os.readlink(f"{root}/proc/self/ns/pid")
    except OSError:
        namespace = ""
    return {
        "host": socket.gethostname(),
        "machine_id": _line(f"{root}/etc/machine-id"),
        "boot_id": boot_id(f"{root}/proc"),
        "pid_namespace": namespace,
        "pid": pid,
        "start_time": process_start(pid, f"{root}/proc"),
    }


def boot_id(proc: str = "/proc") -> str:
    """Return the kernel's id of this boot, or an empty string where there is none."""
    return _line(f"{proc}/sys/kernel/random/boot_id")


def process_start(pid: Any, proc: str = "/proc") -> int | None:
    """Return the start time of process ``pid`` in clock ticks since boot (proc(5), field 22), None when it is gone."""
    try:
        with open(f"{proc}/{int(pid)}/stat", encoding="utf-8", errors="replace") as stream:
            return int(stream.read().rpartition(")")[2].split()[19])
    except (OSError, ValueError, TypeError, IndexError):
        return None


def _line(path: str) -> str:
    try:
        with open(path, encoding="ascii") as stream:
            return stream.read().strip()
    except (OSError, ValueError):
        return ""


def _read(path: str) -> dict[str, Any]:
    try:
        with open(path, encoding="utf-8") as stream:
            data = json.load(stream)
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}


def _identity_of(path: str) -> tuple[int, int]:
    """Return inode and modification time (ns) of a lease, zeros when there is none."""
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return 0, 0
    return status.st_ino, status.st_mtime_ns


def _unlink(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        return
