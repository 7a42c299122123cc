# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A digest that remembers the way: what it was after every chunk of a file.

The digest of a file is computed anyway, over its bytes in order, so a note of it every 64 MiB costs nothing. Later the
notes tell where a damaged file begins to differ, and once that chunk is right again, where the next damage is. They
are shortened: they only say where to look, and the whole digest decides.
"""

from __future__ import annotations

import errno
import io
import os
import threading
from dataclasses import dataclass

from ansible_collections.llmops.vllm.plugins.module_utils.errors import LlmopsError
from ansible_collections.llmops.vllm.plugins.module_utils.repo_listing import Digester, RepoFile

CHUNK_BYTES = 64 * 1024 * 1024
MARK_DIGITS = 16
READ_BYTES = 1024 * 1024


class StoppedError(LlmopsError):
    """The run ends; this file was put aside and can be resumed."""

    def __init__(self) -> None:
        super().__init__("The run was stopped; what arrived is kept, run again to resume.")


class MarkedDigester:
    """The digest of ``file``, and in ``marks`` what it was after each chunk but the last."""

    def __init__(self, file: RepoFile) -> None:
        self._size = file.size
        self._digester: Digester = file.digester()
        self.position = 0
        self.marks = ""

    def update(self, data: memoryview) -> None:
        """Take in more bytes."""
        while data:
            piece = data[: CHUNK_BYTES - self.position % CHUNK_BYTES]
            data = data[len(piece) :]
            self._digester.update(piece)
            self.position += len(piece)
            if self.position % CHUNK_BYTES == 0 and self.position < self._size:
                self.marks += self._digester.hexdigest()[:MARK_DIGITS]

    def hexdigest(self) -> str:
        """Return the digest of the bytes so far."""
        return self._digester.hexdigest()

    def copy(self) -> MarkedDigester:
        """Return another one in the same state."""
        other = object.__new__(MarkedDigester)
        other._size, other._digester = self._size, self._digester.copy()
        other.position, other.marks = self.position, self.marks
        return other

    def agrees_with(self, marks: str) -> bool:
        """Whether the last note is the one in ``marks``, as far as they go."""
        end = len(self.marks)
        return end > len(marks) or self.marks[end - MARK_DIGITS :] == marks[max(0, end - MARK_DIGITS) : end]


@dataclass(frozen=True)
class Examination:
    """Whether a file was found right, and the marks it has."""

    right: bool
    marks: str = ""


def examine(path: str, file: RepoFile, marks: str, stop: threading.Event) -> Examination:
    """Read ``path`` until it differs from ``file``; what was read does not stay in the page cache.

    ``marks`` are those noted before, empty when there are none. Bytes that the disk cannot give are wrong bytes. Raises
    ``StoppedError`` when ``stop`` is set.
    """
    digester = MarkedDigester(file)
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    with open(descriptor, "rb", buffering=0) as stream:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_SEQUENTIAL)
        try:
            _read(stream, digester, marks, stop)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            return Examination(False)
        finally:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    return Examination(digester.position == file.size and digester.hexdigest() == file.digest, digester.marks)


def _read(stream: io.FileIO, digester: MarkedDigester, marks: str, stop: threading.Event) -> None:
    buffer = memoryview(bytearray(READ_BYTES))
    dropped = 0
    while digester.agrees_with(marks):
        if stop.is_set():
            raise StoppedError
        count = stream.readinto(buffer) or 0
        if not count:
            return
        digester.update(buffer[:count])
        if digester.position - dropped >= CHUNK_BYTES:
            os.posix_fadvise(stream.fileno(), dropped, digester.position - dropped, os.POSIX_FADV_DONTNEED)
            dropped = digester.position
