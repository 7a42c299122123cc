# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One run per snapshot: ``flock``, and a lease for file systems on which ``flock`` does nothing.

The lease says who holds it (host, process, boot) and is touched every few seconds. One whose process is gone, whose
host has rebooted, or which nobody has touched for two minutes by the waiter's own clock is taken over.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import threading
from collections.abc import Callable
from typing import Any

from ansible_collections.llmops.vllm.plugins.module_utils.errors import PreconditionError

HEARTBEAT_SECONDS = 15.0
STALE_SECONDS = 120.0
_POLL_SECONDS = 0.5


class SnapshotLock:
    """A context manager around the work on one snapshot.

    ``path`` is the lock file; ``sleep`` and ``monotonic`` count seconds; waiting ends after ``timeout_seconds`` with a
    ``PreconditionError`` that names the holder. ``proc`` is the root of procfs.
    """

    def __init__(
        self,
        path: str,
        *,
        timeout_seconds: float,
        sleep: Callable[[float], object],
        monotonic: Callable[[], float],
        proc: str = "/proc",
    ) -> None:
        self._path = path
        self._lease_path = f"{path}.lease"
        self._timeout_seconds = timeout_seconds
        self._sleep = sleep
        self._monotonic = monotonic
        self._proc = proc
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
        _unlink(self._lease_path)
        os.close(self._descriptor)

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
        for _attempt in range(2):
            try:
                descriptor = os.open(self._lease_path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644)
            except FileExistsError:
                if not self._is_stale():
                    return False
                _unlink(self._lease_path)
                continue
            with open(descriptor, "w", encoding="utf-8") as stream:
                json.dump(self._me(), stream)
            return True
        return False

    def _is_stale(self) -> bool:
        holder = self._read()
        if holder.get("host") == socket.gethostname():
            if holder.get("boot_id") != boot_id(self._proc):
                return True
            return process_start(holder.get("pid"), self._proc) != holder.get("start_time")
        try:
            touched = os.lstat(self._lease_path).st_mtime_ns
        except FileNotFoundError:
            return True
        now = self._monotonic()
        if self._last_seen is None or self._last_seen[0] != touched:
            self._last_seen = (touched, now)
        return now - self._last_seen[1] >= STALE_SECONDS

    def _me(self) -> dict[str, Any]:
        pid = os.getpid()
        start = process_start(pid, self._proc)
        return {"host": socket.gethostname(), "pid": pid, "start_time": start, "boot_id": boot_id(self._proc)}

    def _read(self) -> dict[str, Any]:
        try:
            with open(self._lease_path, encoding="utf-8") as stream:
                data = json.load(stream)
        except (OSError, ValueError):
            return {}
        return data if isinstance(data, dict) else {}

    def _holder(self) -> str:
        holder = self._read()
        return f"process {holder.get('pid', 'unknown')} on {holder.get('host', 'an unknown host')}"

    def _beat(self) -> None:
        while not self._ended.wait(HEARTBEAT_SECONDS):
            try:
                os.utime(self._lease_path, follow_symlinks=False)
            except OSError:
                continue


def boot_id(proc: str = "/proc") -> str:
    """Return the kernel's id of this boot, or an empty string where there is none."""
    try:
        with open(f"{proc}/sys/kernel/random/boot_id", encoding="ascii") as stream:
            return stream.read().strip()
    except OSError:
        return ""


def process_start(pid: Any, proc: str = "/proc") -> int | None:
    """Return the start time of process ``pid`` in clock ticks since boot (proc(5), field 22), None when it is gone."""
    try:
        with open(f"{proc}/{int(pid)}/stat", encoding="utf-8", errors="replace") as stream:
            return int(stream.read().rpartition(")")[2].split()[19])
    except (OSError, ValueError, TypeError, IndexError):
        return None


def _unlink(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        return
