# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Fetching files whose size and digest are known, resumably, several at a time.

A file is one sequential GET whose bytes are hashed while they are written; the number of files gives the parallelism.
Whatever a server or a cache does, only bytes with the right digest are handed on.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed

from ansible_collections.llmops.vllm.plugins.module_utils.digests import MarkedDigester, StoppedError
from ansible_collections.llmops.vllm.plugins.module_utils.errors import LlmopsError, PreconditionError
from ansible_collections.llmops.vllm.plugins.module_utils.file_source import (
    Source,
    SourceError,
    WrongDigestError,
    none_delivers,
)
from ansible_collections.llmops.vllm.plugins.module_utils.http_client import (
    Answer,
    TransferError,
    origin_of,
    transient,
    without_query,
)
from ansible_collections.llmops.vllm.plugins.module_utils.hub import expired_link
from ansible_collections.llmops.vllm.plugins.module_utils.part_file import Part, PartWriter, Writer, continues_at
from ansible_collections.llmops.vllm.plugins.module_utils.repo_listing import RepoFile
from ansible_collections.llmops.vllm.plugins.module_utils.transfer_progress import Counters

_READ_BYTES = 1024 * 1024
_SYNC_BYTES = 256 * 1024 * 1024
_COMPRESSIONS = ("gzip", "x-gzip", "deflate", "br", "zstd", "compress")
_PACE_SECONDS = 60.0
_SLOWEST_BYTES_PER_SECOND = 16 * 1024
_JOURNAL_FROM_BYTES = 4 * 1024 * 1024


class Transfer:
    """One file on its way into its part, from the first of ``sources`` that delivers the right bytes.

    ``stop`` ends it early, ``open_writer`` takes a path and a byte offset, ``monotonic`` counts seconds.
    """

    def __init__(
        self,
        part: Part,
        sources: Sequence[Source],
        *,
        counters: Counters,
        stop: threading.Event,
        open_writer: Callable[[str, int], Writer] = PartWriter,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._part = part
        self._file = part.file
        self._sources = sources
        self._counters = counters
        self._stop = stop
        self._open_writer = open_writer
        self._monotonic = monotonic
        self._digester = MarkedDigester(part.file)
        journal = part.load()
        self._origin, self._etag = journal.origin, journal.etag
        self._safe = self._synced = 0
        self._last_url = ""
        self._answered = False
        self._taken = -1
        try:
            part.detach()
            self._writer = open_writer(part.path, self._hash_prefix(part.resumable_bytes()))
            counters.add(resumed=self._writer.position)
        except OSError as error:
            raise disk_error(error, part, 0) from error
        self._safe = min(journal.good_until, self._writer.position)

    def run(self, install: Callable[[int, str], None]) -> None:
        """Fetch and verify the file and call ``install`` with its open descriptor and its marks.

        Raises ``LlmopsError`` or ``StoppedError``. The part stays resumable unless its bytes were wrong.
        """
        try:
            self._fetch_verified(install)
        except OSError as error:
            self._keep()
            raise disk_error(error, self._part, self._writer.position) from error
        except BaseException:
            self._keep()
            raise
        finally:
            self._writer.close()
            if self._taken >= 0:
                os.close(self._taken)

    def _fetch_verified(self, install: Callable[[int, str], None]) -> None:
        refusals: list[tuple[Source, LlmopsError]] = []
        for source in self._sources:
            if self._stop.is_set():
                raise StoppedError
            if source.usage.down:
                refusals.append((source, SourceError(source.usage.down)))
                continue
            try:
                descriptor = self._adopted(source) if source.adopt else self._received(source)
            except SourceError as error:
                refusals.append((source, error))
                continue
            install(descriptor, self._digester.marks)
            source.usage.add(files=1 if self._file.size else 0)
            return
        raise none_delivers(self._file, refusals)

    def _received(self, source: Source) -> int:
        got = ""
        for _attempt in range(2):
            self._receive_all(source)
            descriptor = self._writer.finish()
            got = self._digester.hexdigest()
            if got == self._file.digest:
                return descriptor
            self._restart()
        raise self._wrong(got, "is wrong twice")

    def _adopted(self, source: Source) -> int:
        """Let the source put its file into the part's place and verify it there; it is never opened for writing."""
        if source.adopt:
            source.adopt(self._file, self._part.path)
        self._last_url = source.location
        self._writer.close()
        self._digester = MarkedDigester(self._file)
        self._hash_prefix(self._file.size)
        source.usage.add(received=self._file.size)
        self._counters.add(received=self._file.size)
        got = self._digester.hexdigest()
        if got == self._file.digest:
            self._taken = os.open(self._part.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            return self._taken
        self._part.forget()
        self._writer = self._open_writer(self._part.path, 0)
        self._restart()
        raise self._wrong(got, "is wrong")

    def _wrong(self, got: str, fault: str) -> WrongDigestError:
        file = self._file
        return WrongDigestError(
            f"{file.path} from {self._last_url} {fault}: its {file.algorithm} should be "
            f"{file.digest} and is {got}; nothing of it was kept. Try another endpoint, or later.",
            file=file.path,
            expected=file.digest,
            got=got,
        )

    def _receive_all(self, source: Source) -> None:
        failures, furthest, answered = 0, self._writer.position, False
        while self._writer.position < self._file.size:
            if self._stop.is_set():
                raise StoppedError
            if source.usage.down:
                raise SourceError(source.usage.down)
            self._answered = False
            try:
                self._attempt(source)
            except TransferError as error:
                answered = answered or self._answered
                failures = 1 if self._writer.position > furthest else failures + 1
                furthest = max(furthest, self._writer.position)
                if failures > source.policy.retries:
                    raise self._given_up(source, failures, error.reason, answered) from error
                source.policy.pause(failures, error)

    def _given_up(self, source: Source, failures: int, reason: str, answered: bool) -> SourceError:
        if not answered and len(self._sources) > 1:
            source.usage.down = f"{failures} failures in a row, the last time because {reason}."
        return SourceError(
            f"{self._file.path} could not be fetched: {failures} failures without progress at byte "
            f"{self._writer.position} of {self._file.size}, the last time because {reason}; "
            "what arrived is kept, run again to resume."
        )

    def _attempt(self, source: Source) -> None:
        offset = self._writer.position
        headers = {"Range": f"bytes={offset}-"} if offset else {}
        usable = offset and self._etag.startswith('"')
        conditions = {self._origin: self._etag} if usable else {}
        with source.asked(self._file, headers, conditions) as answer:
            self._answered = True
            self._last_url = without_query(answer.url)
            _check_plain(answer)
            self._accept(source, answer, offset)
            self._origin, self._etag = origin_of(answer.url), answer.headers.get("ETag", "")
            if self._file.size > _JOURNAL_FROM_BYTES:
                self._part.save(self._safe, self._origin, self._etag, durably=self._safe > 0)
            self._receive(source, answer)

    def _accept(self, source: Source, response: Answer, offset: int) -> None:
        """Return when the body continues this file; restart it when the server starts over."""
        if response.status == 206 and continues_at(response.headers.get("Content-Range", ""), offset, self._file.size):
            return
        if offset and response.status in (200, 206, 416):
            self._restart()
            if response.status != 200:
                raise TransferError(f"{without_query(response.url)} cannot continue at byte {offset}")
        later = transient(response) or expired_link(response)
        if later:
            raise later
        if response.status != 200:
            refused = source.refusal(response)
            raise SourceError(refused.message, **refused.details)
        length = response.headers.get("Content-Length", "")
        if length.isdecimal() and int(length) != self._file.size:
            raise TransferError(
                f"{without_query(response.url)} offers {length} bytes where the hub's API says {self._file.size}"
            )

    def _receive(self, source: Source, response: Answer) -> None:
        pace = (self._monotonic(), self._writer.position)
        while self._writer.position < self._file.size:
            if self._stop.is_set():
                raise StoppedError
            view = self._writer.space(self._file.size - self._writer.position)
            count = response.read_into(view)
            if not count:
                raise TransferError(f"{without_query(response.url)} ended at byte {self._writer.position}")
            self._digester.update(view[:count])
            self._counters.add(received=count)
            source.usage.add(received=count)
            self._writer.advance(count)
            if self._writer.position - self._synced >= _SYNC_BYTES:
                self._save()
            pace = self._paced(source, response, *pace)

    def _paced(self, source: Source, response: Answer, since: float, before: int) -> tuple[float, int]:
        """Leave a source that drips, unless it is the last one; return time and position that the pace counts from."""
        now, position = self._monotonic() - response.held_back_seconds, self._writer.position
        if now - since < _PACE_SECONDS or source is self._sources[-1]:
            return since, before
        rate = (position - before) / (now - since)
        if rate < _SLOWEST_BYTES_PER_SECOND:
            raise SourceError(f"{self._file.path} came at {rate:.0f} bytes per second for {now - since:.0f} seconds.")
        return now, position

    def _hash_prefix(self, offset: int) -> int:
        """Take the kept bytes into the digest (its state cannot be saved) and return how many there are."""
        done = 0
        if offset:
            buffer = memoryview(bytearray(_READ_BYTES))
            with open(self._part.path, "rb", buffering=0, opener=_no_follow) as stream:
                while done < offset:
                    count = stream.readinto(buffer[: min(_READ_BYTES, offset - done)]) or 0
                    if not count:
                        raise PreconditionError(
                            f"{self._part.path} changed while it was read; is another program at it?"
                        )
                    self._digester.update(buffer[:count])
                    done += count
        return done

    def _restart(self) -> None:
        self._writer.restart()
        self._digester = MarkedDigester(self._file)
        self._safe = self._synced = 0
        self._origin = self._etag = ""

    def _save(self) -> None:
        self._safe = self._writer.sync()
        self._synced = self._writer.position
        self._part.save(self._safe, self._origin, self._etag)

    def _keep(self) -> None:
        if not self._writer.position:
            self._part.forget()
            return
        try:
            self._save()
        except OSError:
            # The journal saved before still tells the truth about fewer bytes.
            return


def disk_error(error: OSError, part: Part, position: int) -> LlmopsError:
    """Return the sentence for an ``OSError`` of the disk at byte ``position`` of ``part``."""
    where = os.path.dirname(part.path)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return PreconditionError(
            f"The disk is full under {where} at byte {position} of {part.file.size} of {part.file.path}; "
            "free space and run again, what arrived is kept and will be resumed."
        )
    return LlmopsError(f"{part.file.path} cannot be written under {where}: {error.strerror or error}.")


def fetch_all(
    files: Iterable[RepoFile], fetch: Callable[[RepoFile], None], *, workers: int, stop: threading.Event
) -> None:
    """Call ``fetch`` for every file in the order given, ``workers`` at a time.

    Files of one digest share a part, so they go one after the other. A wrong digest does not keep the others from
    arriving; any other failure stops them. Raises the first failure, naming further wrong files in it.
    """
    groups: dict[str, list[RepoFile]] = {}
    for file in files:
        groups.setdefault(file.digest, []).append(file)

    def fetch_group(group: Sequence[RepoFile]) -> None:
        for file in group:
            if stop.is_set():
                raise StoppedError
            try:
                fetch(file)
            except (StoppedError, WrongDigestError):
                raise
            except BaseException:
                stop.set()  # here, or this worker takes up the next file before the caller has seen the failure
                raise

    with ThreadPoolExecutor(max_workers=workers) as pool:
        try:
            failures, stopped = _collect([pool.submit(fetch_group, group) for group in groups.values()])
        except BaseException:
            stop.set()
            raise
    if failures:
        raise _combined(failures)
    if stopped:
        raise StoppedError


def _collect(futures: Sequence[Future[None]]) -> tuple[list[BaseException], bool]:
    failures: list[BaseException] = []
    stopped = False
    for future in as_completed(futures):
        error = future.exception()
        stopped = stopped or isinstance(error, StoppedError)
        if error is None or isinstance(error, StoppedError):
            continue
        failures.append(error)
    return failures, stopped


def _combined(failures: Sequence[BaseException]) -> BaseException:
    final = [error for error in failures if not isinstance(error, WrongDigestError)]
    if final:
        return final[0]
    wrong = [error for error in failures if isinstance(error, WrongDigestError)]
    return WrongDigestError(" ".join(error.message for error in wrong), **wrong[0].details)


def _check_plain(answer: Answer) -> None:
    """Refuse a compressed body: it was not asked for, and its bytes are not the file's.

    Other codings are let pass. Some object stores name one (``aws-chunked``) that they have taken off again.
    """
    coding = answer.headers.get("Content-Encoding", "").lower()
    if answer.status in (200, 206) and coding in _COMPRESSIONS:
        raise TransferError(f"{without_query(answer.url)} is compressed on the way ({coding}), which was not asked for")


def _no_follow(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC)
