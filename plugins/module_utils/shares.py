# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Share a look at very many processes among forked helpers.

Nearly all of such a look is short system calls, which the threads of one interpreter would make one after another.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Sequence
from typing import Callable, NamedTuple, TypeVar

T = TypeVar("T")

WORTH_SHARING = 1000  # fewer are looked at sooner than helpers start
PARTS = 4


class Helper(NamedTuple):
    """A forked process, and where its answer is read."""

    pid: int
    descriptor: int

    def answer(self) -> bytes:
        """Return what it wrote, once it has ended; empty when it did not come to its end."""
        with os.fdopen(self.descriptor, "rb") as stream:
            written = stream.read()
        try:
            _pid, status = os.waitpid(self.pid, 0)
        except ChildProcessError:  # collected by the kernel, where SIGCHLD is ignored
            status = 0
        return written if status == 0 else b""


def shared(work: Callable[[Sequence[int]], T], items: Sequence[int]) -> list[T]:
    """Return what ``work``, a JSON value, is for each part of ``items``; the parts have all of them, each once.

    Few items are one part. What a helper does not do is done here.
    """
    count = 1
    if len(items) >= WORTH_SHARING and threading.active_count() == 1:
        count = min(PARTS, len(os.sched_getaffinity(0)))
    parts = [items[number::count] for number in range(count)]
    helpers = [_start(work, part) for part in parts[1:]]
    answers: list[bytes] = []
    try:
        results = [work(parts[0])]
    finally:
        answers += [helper.answer() if helper else b"" for helper in helpers]
    for part, answer in zip(parts[1:], answers):
        results.append(json.loads(answer) if answer else work(part))
    return results


def _start(work: Callable[[Sequence[int]], T], part: Sequence[int]) -> Helper | None:
    reading, writing = os.pipe()
    try:
        pid = os.fork()
    except OSError:
        os.close(reading)
        os.close(writing)
        return None
    if pid == 0:
        status = 1
        try:
            with os.fdopen(writing, "wb") as stream:
                stream.write(json.dumps(work(part)).encode("ascii"))
            status = 0
        finally:
            os._exit(status)
    os.close(writing)
    return Helper(pid, reading)
