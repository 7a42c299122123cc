# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Making a damaged file right again without fetching all of it.

The damaged file is read chunk by chunk into a new one; a chunk after which the digest is not what was noted when the
file was right is fetched. The damaged file itself is only read, because an engine may still have it mapped.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence

from ansible_collections.llmops.vllm.plugins.module_utils import digests
from ansible_collections.llmops.vllm.plugins.module_utils.digests import (
    MARK_DIGITS,
    READ_BYTES,
    MarkedDigester,
    StoppedError,
)
from ansible_collections.llmops.vllm.plugins.module_utils.download import disk_error
from ansible_collections.llmops.vllm.plugins.module_utils.errors import LlmopsError
from ansible_collections.llmops.vllm.plugins.module_utils.file_source import Source, SourceError
from ansible_collections.llmops.vllm.plugins.module_utils.http_client import TransferError, transient, without_query
from ansible_collections.llmops.vllm.plugins.module_utils.hub import expired_link
from ansible_collections.llmops.vllm.plugins.module_utils.part_file import Part, continues_at
from ansible_collections.llmops.vllm.plugins.module_utils.transfer_progress import Counters


class Repair:
    """Rebuilds the file of ``part`` from its ``damaged`` version (a path), ``marks`` and ``sources``."""

    def __init__(
        self,
        part: Part,
        damaged: str,
        marks: str,
        sources: Sequence[Source],
        *,
        counters: Counters,
        stop: threading.Event,
    ) -> None:
        self._part = part
        self._file = part.file
        self._damaged = damaged
        self._marks = marks
        self._sources = sources
        self._counters = counters
        self._stop = stop
        self._kept = 0
        self._buffer = memoryview(bytearray(READ_BYTES))

    def run(self, install: Callable[[int, str], None]) -> bool:
        """Rebuild the file and call ``install`` with its open descriptor and its marks.

        False means that no source gives the ranges that are needed. The part then holds the beginning of the file.
        """
        try:
            return self._run(install)
        except OSError as error:
            raise disk_error(error, self._part, 0) from error

    def _run(self, install: Callable[[int, str], None]) -> bool:
        self._part.forget()
        flags = os.O_CLOEXEC | os.O_NOFOLLOW
        old = os.open(self._damaged, os.O_RDONLY | flags)
        try:
            new = os.open(self._part.path, os.O_RDWR | os.O_CREAT | os.O_EXCL | flags, 0o600)
            try:
                return self._rebuild(old, new, install)
            finally:
                os.close(new)
        finally:
            os.close(old)

    def _rebuild(self, old: int, new: int, install: Callable[[int, str], None]) -> bool:
        digester = MarkedDigester(self._file)
        while digester.position < self._file.size:
            start = digester.position
            end = min(start + digests.CHUNK_BYTES, self._file.size)
            fixed = self._copied(old, new, digester, end) or self._fetched(new, digester, end)
            if fixed is None:
                os.ftruncate(new, start)
                os.fdatasync(new)
                self._part.save(start, "", "")
                return False
            digester = fixed
            os.fdatasync(new)
            for descriptor in (old, new):
                os.posix_fadvise(descriptor, start, end - start, os.POSIX_FADV_DONTNEED)
        install(new, digester.marks)
        self._counters.add(resumed=self._kept)
        return True

    def _is_right(self, digester: MarkedDigester) -> bool:
        """Whether the digest is as it was noted here; after the last chunk, whether it is the file's."""
        if digester.position == self._file.size:
            return digester.hexdigest() == self._file.digest
        index = digester.position // digests.CHUNK_BYTES - 1
        mark = self._marks[index * MARK_DIGITS : (index + 1) * MARK_DIGITS]
        return digester.hexdigest()[:MARK_DIGITS] == mark

    def _copied(self, old: int, new: int, before: MarkedDigester, end: int) -> MarkedDigester | None:
        digester = before.copy()
        while digester.position < end:
            if self._stop.is_set():
                raise StoppedError
            view = self._buffer[: min(READ_BYTES, end - digester.position)]
            try:
                count = os.preadv(old, [view], digester.position)
            except OSError:
                # What the disk cannot give is fetched.
                return None
            if not count:
                return None
            self._write(new, view[:count], digester)
        if not self._is_right(digester):
            return None
        self._kept += end - before.position
        return digester

    def _fetched(self, new: int, before: MarkedDigester, end: int) -> MarkedDigester | None:
        """Return the digester after the chunk came from the first source that has it right; None when none has."""
        for source in self._sources:
            if source.usage.down:
                continue

            def ask(source: Source = source) -> MarkedDigester:
                return self._received(source, new, before.copy(), end)

            try:
                for _attempt in range(2):
                    digester = source.policy.call(ask, f"Repairing {self._file.path} from {source.location}")
                    if self._is_right(digester):
                        return digester
            except StoppedError:
                raise
            except LlmopsError:
                continue
        return None

    def _received(self, source: Source, new: int, digester: MarkedDigester, end: int) -> MarkedDigester:
        start = digester.position
        with source.asked(self._file, {"Range": f"bytes={start}-{end - 1}"}, {}) as answer:
            later = transient(answer) or expired_link(answer)
            if later:
                raise later
            served = answer.headers.get("Content-Range", "")
            if answer.status != 206 or not continues_at(served, start, self._file.size):
                raise SourceError(f"{without_query(answer.url)} does not give ranges.")
            while digester.position < end:
                if self._stop.is_set():
                    raise StoppedError
                view = self._buffer[: min(READ_BYTES, end - digester.position)]
                count = answer.read_into(view)
                if not count:
                    raise TransferError(f"{without_query(answer.url)} ended at byte {digester.position}")
                self._write(new, view[:count], digester)
                source.usage.add(received=count)
                self._counters.add(received=count)
        return digester

    def _write(self, new: int, data: memoryview, digester: MarkedDigester) -> None:
        done = 0
        while done < len(data):
            done += os.pwrite(new, data[done:], digester.position + done)
        digester.update(data)
