# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How far a transfer is: what the working threads count, and what a person is told about it."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.llmops.vllm.plugins.module_utils.repo_listing import RepoFile

RATE_WINDOW_SECONDS = 15.0
_UNITS = ((10**12, "TB"), (10**9, "GB"), (10**6, "MB"), (10**3, "kB"))


@dataclass
class Counters:
    """Bytes of file content: ``received`` over the network, ``resumed`` from earlier parts."""

    received: int = 0
    resumed: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, received: int = 0, resumed: int = 0) -> None:
        """Count bytes, from any thread."""
        with self.lock:
            self.received += received
            self.resumed += resumed


@dataclass
class Progress:
    """What a run is at. ``phase`` is ``planning``, ``waiting`` (for the lock), ``verifying``, ``fetching`` or ``done``.

    ``present_bytes`` are those of files that need not be fetched, or that have been read.
    """

    phase: str = "planning"
    files: int = 0
    files_done: int = 0
    total_bytes: int = 0
    present_bytes: int = 0
    counters: Counters = field(default_factory=Counters)

    def begin(self, phase: str, files: Collection[RepoFile], missing: Collection[RepoFile]) -> None:
        """Begin a phase that is about ``files``, of which ``missing`` have yet to be read or fetched."""
        self.files, self.files_done = len(files), len(files) - len(missing)
        self.total_bytes = sum(file.size for file in files)
        self.present_bytes = self.total_bytes - sum(file.size for file in missing)
        self.phase = phase

    def finish(self, read_bytes: int = 0) -> None:
        """Count a file, and its bytes unless the counters have them, from any thread."""
        with self.counters.lock:
            self.files_done += 1
            self.present_bytes += read_bytes

    @property
    def done_bytes(self) -> int:
        """Bytes that are there; what had to come twice counts once."""
        return min(self.total_bytes, self.present_bytes + self.counters.received + self.counters.resumed)


class RateMeter:
    """Bytes per second over the last seconds; ``monotonic`` counts seconds."""

    def __init__(self, monotonic: Callable[[], float], window_seconds: float = RATE_WINDOW_SECONDS) -> None:
        self._monotonic = monotonic
        self._window_seconds = window_seconds
        self._samples: deque[tuple[float, int]] = deque()

    def rate(self, received_bytes: int) -> float:
        """Take in what has been received by now and return the rate."""
        now = self._monotonic()
        self._samples.append((now, received_bytes))
        while len(self._samples) > 2 and self._samples[1][0] <= now - self._window_seconds:
            self._samples.popleft()
        since, before = self._samples[0]
        return (received_bytes - before) / (now - since) if now > since else 0.0


def snapshot_of(progress: Progress, rate: float) -> dict[str, Any]:
    """Return ``progress`` at ``rate`` bytes per second as plain values; ``remaining_seconds`` None when not known."""
    left = progress.total_bytes - progress.done_bytes
    remaining = round(left / rate) if progress.phase == "fetching" and rate > 0 else None
    return {
        "phase": progress.phase,
        "files": progress.files,
        "files_done": progress.files_done,
        "total_bytes": progress.total_bytes,
        "done_bytes": progress.done_bytes,
        "bytes_per_second": round(rate),
        "remaining_seconds": remaining,
        "text": describe(progress, rate, remaining),
    }


def describe(progress: Progress, rate: float, remaining_seconds: int | None) -> str:
    """Return one line for a person, such as ``37/119 files, 171 of 540 GB, 1.9 GB/s, 3m10s left``."""
    if progress.phase == "waiting":
        return "waiting for another run on this snapshot"
    if progress.phase in ("planning", "done"):
        return progress.phase
    done, total = amount(progress.done_bytes), amount(progress.total_bytes)
    if done.split(" ")[1] == total.split(" ")[1]:
        done = done.split(" ")[0]
    if progress.phase == "verifying":
        return f"read {progress.files_done}/{progress.files} files, {done} of {total}"
    left = f", {duration(remaining_seconds)} left" if remaining_seconds is not None else ""
    return f"{progress.files_done}/{progress.files} files, {done} of {total}, {amount(rate)}/s{left}"


def amount(size_bytes: float) -> str:
    """Return a size as people read it, two or three digits of it: 540 GB, 1.9 GB, 12 B."""
    for factor, unit in _UNITS:
        if size_bytes >= factor:
            value = size_bytes / factor
            return f"{value:.1f} {unit}" if value < 9.95 else f"{value:.0f} {unit}"
    return f"{size_bytes:.0f} B"


def duration(seconds: float) -> str:
    """Return ``seconds`` as people read them: 42s, 4m10s, 1h02m."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h{minutes:02d}m"
    return f"{minutes}m{rest:02d}s" if minutes else f"{rest}s"
