# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How much to read at once, and a limit on bytes per second that all threads of a run share: a token bucket."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import Any, cast

from ansible_collections.llmops.vllm.plugins.module_utils.errors import InvalidInputError

_BURST_SECONDS = 0.25
_SMALLEST_READ_BYTES = 16 * 1024
LEAST_BYTES_PER_SECOND = 64 * 1024
_FIRST_READ_BYTES = 64 * 1024
_LARGEST_READ_BYTES = 8 * 1024 * 1024
_QUICK_SECONDS = 0.2
_SLOW_SECONDS = 1.0


class ReadSize:
    """How many bytes to ask a connection for at once, as it is found to be; ``monotonic`` counts seconds.

    A large read costs least and returns only when all has arrived, so a slow connection gets small ones: what it brings
    is counted, can be stopped, and is not lost when it breaks.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self.monotonic = monotonic
        self.bytes = _FIRST_READ_BYTES

    def read(self, readinto: Callable[[memoryview], int], view: memoryview) -> int:
        """Let ``readinto`` fill as much of ``view`` as is due, and return the number of bytes it read."""
        piece = view[: self.bytes]
        began = self.monotonic()
        count = readinto(piece)
        seconds = self.monotonic() - began
        if seconds > _SLOW_SECONDS:
            self.bytes = max(_SMALLEST_READ_BYTES, self.bytes // 2)
        elif seconds < _QUICK_SECONDS and count == self.bytes:
            self.bytes = min(_LARGEST_READ_BYTES, self.bytes * 2)
        return count


class TimedReads:
    """Lets a read of many bytes return after a second with those that have come. ``raw`` is a socket's raw stream.

    A buffered reader asks its raw stream until all is there. A connection that was fast and then drips would keep it
    for ever, as every byte ends a stall. It returns with what it has when the raw stream says None: nothing now. A read
    that nobody has begun here is left as it is.
    """

    def __init__(self, raw: Any, monotonic: Callable[[], float]) -> None:
        self._readinto = raw.readinto
        self._monotonic = monotonic
        self._until = math.inf
        self._begun = False
        raw.readinto = self._read

    def begin(self) -> None:
        """Count the second from here."""
        self._until = self._monotonic() + _SLOW_SECONDS
        self._begun = False

    def _read(self, buffer: Any) -> int | None:
        if self._begun and self._monotonic() >= self._until:
            return None
        self._begun = True  # without a single byte None would be taken for the end
        return cast("int | None", self._readinto(buffer))


class Bandwidth:
    """What may still be taken now, and how long to wait where it is more.

    ``bytes_per_second`` holds for every stretch of time but for a burst of a quarter of a second. ``monotonic`` counts
    seconds; ``sleep`` takes seconds and may return early, for example when the run is to stop. Raises
    ``InvalidInputError`` for less than 64 KiB a second.
    """

    def __init__(
        self, bytes_per_second: int, *, monotonic: Callable[[], float], sleep: Callable[[float], object]
    ) -> None:
        if bytes_per_second < LEAST_BYTES_PER_SECOND:
            raise InvalidInputError(
                f"bandwidth_bytes_per_second must be 0 or at least {LEAST_BYTES_PER_SECOND}, not {bytes_per_second}: "
                "servers give up connections that take so little."
            )
        self._rate = float(bytes_per_second)
        self._monotonic = monotonic
        self._sleep = sleep
        self._lock = threading.Lock()
        self._paid_until = monotonic()
        self.read_bytes = max(_SMALLEST_READ_BYTES, int(self._rate * _BURST_SECONDS))

    def take(self, count: int) -> float:
        """Pay for ``count`` bytes that arrived: return when the rate allows the next ones, and how long that took."""
        with self._lock:
            now = self._monotonic()
            self._paid_until = max(self._paid_until, now - _BURST_SECONDS) + count / self._rate
            debt = self._paid_until - now
        if debt > 0:
            self._sleep(debt)
        return self._monotonic() - now
