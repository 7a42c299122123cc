# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A file that is still arriving: its bytes, and the journal that says which of them can be trusted.

The names come from the digest, so a part can never be continued with another file's bytes and never looks like a
finished shard.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import mmap
import os
import re
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from ansible_collections.llmops.vllm.plugins.module_utils.repo_listing import RepoFile

BLOCK_BYTES = 4096
BUFFER_BYTES = 4 * 1024 * 1024
_ALL_BUFFERS_BYTES = 20 * 1024 * 1024
_NOT_SUPPORTED = (errno.EINVAL, errno.EOPNOTSUPP)
_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)")


class Writer(Protocol):
    """Where the bytes of a part go: fill ``space()``, then say how much with ``advance()``."""

    @property
    def position(self) -> int:
        """Number of bytes taken in so far."""

    def space(self, limit: int) -> memoryview:
        """Return memory for at most ``limit`` bytes, at least one."""

    def advance(self, count: int) -> None:
        """Take in the first ``count`` bytes of the last ``space()``."""

    def sync(self) -> int:
        """Bring what is written to the disk and return the number of bytes that are safe there."""

    def finish(self) -> int:
        """Write the rest and return the file descriptor, still open; whoever gives the file its name syncs it."""

    def restart(self) -> None:
        """Drop all bytes."""

    def close(self) -> None:
        """Close the file without writing what is still in memory."""


class PartWriter:
    """Writes whole aligned buffers past the page cache (O_DIRECT), which costs less and evicts nobody's pages.

    Where the file system has no O_DIRECT, and for the tail that fills no block, it writes through the page cache and
    drops the pages after the sync. ``offset`` (bytes, a multiple of 4096) is where it continues.
    """

    def __init__(self, path: str, offset: int, *, direct: bool = True, buffer_bytes: int = BUFFER_BYTES) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        os.ftruncate(self._fd, offset)
        self._buffer = _huge_pages(buffer_bytes)
        self._written = offset
        self._filled = 0
        self._wants_direct = direct
        self.direct = False
        if direct:
            self._set_direct(True)

    @property
    def position(self) -> int:
        """Number of bytes taken in so far."""
        return self._written + self._filled

    def space(self, limit: int) -> memoryview:
        """Return memory for at most ``limit`` bytes, at least one."""
        return self._buffer[self._filled : self._filled + limit]

    def advance(self, count: int) -> None:
        """Take in the first ``count`` bytes of the last ``space()``; raises ``OSError`` when they cannot be written."""
        self._filled += count
        if self._filled == len(self._buffer):
            self._flush()

    def sync(self) -> int:
        """Bring what is written to the disk and return the number of bytes that are safe there."""
        os.fdatasync(self._fd)
        if not self.direct:
            os.posix_fadvise(self._fd, 0, 0, os.POSIX_FADV_DONTNEED)
        return self._written

    def finish(self) -> int:
        """Write the rest and return the file descriptor, still open; whoever gives the file its name syncs it."""
        direct = self.direct
        self._set_direct(False)
        self._flush()
        if not direct:
            self.sync()
        return self._fd

    def restart(self) -> None:
        """Drop all bytes."""
        os.ftruncate(self._fd, 0)
        self._written = self._filled = 0
        if self._wants_direct:
            self._set_direct(True)

    def close(self) -> None:
        """Close the file without writing what is still in memory."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _set_direct(self, wanted: bool) -> None:
        flags = fcntl.fcntl(self._fd, fcntl.F_GETFL)
        flags = flags | os.O_DIRECT if wanted else flags & ~os.O_DIRECT
        try:
            fcntl.fcntl(self._fd, fcntl.F_SETFL, flags)
            self.direct = wanted
        except OSError as error:
            if error.errno not in _NOT_SUPPORTED:
                raise
            self.direct = False

    def _flush(self) -> None:
        done = 0
        try:
            while done < self._filled:
                try:
                    done += os.pwrite(self._fd, self._buffer[done : self._filled], self._written + done)
                except OSError as error:
                    if not self.direct or error.errno not in _NOT_SUPPORTED:
                        raise
                    self._set_direct(False)
        finally:
            if done < self._filled:
                self._buffer[: self._filled - done] = bytes(self._buffer[done : self._filled])
            self._written += done
            self._filled -= done


def buffer_bytes_for(workers: int) -> int:
    """Return how large the buffer of each of ``workers`` writers can be without their sum being noticed on a host."""
    return min(BUFFER_BYTES, _ALL_BUFFERS_BYTES // workers // BLOCK_BYTES * BLOCK_BYTES)


def _huge_pages(size: int) -> memoryview:
    """Return aligned memory, in huge pages where there are some: direct writes then pin a few pages, not a thousand."""
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memoryview(memory)


@dataclass(frozen=True)
class Journal:
    """What is known about a part: ``good_until`` bytes are on the disk, written under boot ``boot_id``."""

    digest: str
    size: int
    good_until: int = 0
    boot_id: str = ""
    origin: str = ""
    etag: str = ""


class Part:
    """The two files of one arriving file in ``directory``."""

    def __init__(self, directory: str, file: RepoFile, boot_id: str) -> None:
        self.file = file
        self.path = os.path.join(directory, f"{file.digest}.part")
        self._journal_path = os.path.join(directory, f"{file.digest}.json")
        self._boot_id = boot_id

    def load(self) -> Journal:
        """Return the journal, an empty one when there is none that belongs to this file."""
        empty = Journal(self.file.digest, self.file.size)
        try:
            with open(self._journal_path, encoding="utf-8") as stream:
                data = json.load(stream)
            journal = Journal(**data)
        except (OSError, ValueError, TypeError):
            return empty
        return journal if _is_sound(journal, self.file) else empty

    def save(self, good_until: int, origin: str, etag: str, *, durably: bool = True) -> None:
        """Replace the journal by rename. A full disk is not an error here: the old journal stays true.

        What is not written ``durably`` may be gone after a power loss, and the file starts over.
        """
        journal = Journal(self.file.digest, self.file.size, good_until, self._boot_id, origin, etag)
        temporary = f"{self._journal_path}.new"
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)
            with open(temporary, "x", encoding="utf-8") as stream:
                json.dump(asdict(journal), stream)
                stream.flush()
                if durably:
                    os.fsync(stream.fileno())
            os.replace(temporary, self._journal_path)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise

    def detach(self) -> None:
        """Remove a part that is another file too, since writing on would change that one."""
        with contextlib.suppress(FileNotFoundError):
            if os.lstat(self.path).st_nlink > 1:
                os.unlink(self.path)

    def resumable_bytes(self) -> int:
        """Return from which byte the part can be continued, 0 when it has to start over."""
        try:
            status = os.lstat(self.path)
        except OSError:
            return 0
        if status.st_nlink > 1:
            return 0
        return resume_offset(self.load(), status.st_size, self._boot_id)

    def forget(self) -> None:
        """Remove the journal and what is left of the part."""
        for path in (self.path, self._journal_path, f"{self._journal_path}.new"):
            try:
                os.unlink(path)
            except FileNotFoundError:
                continue


def resume_offset(journal: Journal, length: int, boot_id: str) -> int:
    """Return how many leading bytes of a part of ``length`` bytes are what was received, on a block boundary.

    A killed process loses nothing that it wrote, so within the same boot the whole length counts. After a power loss
    only what was synced does.
    """
    same_boot = bool(boot_id) and journal.boot_id == boot_id
    trusted = min(length if same_boot else min(journal.good_until, length), journal.size)
    return trusted // BLOCK_BYTES * BLOCK_BYTES


def continues_at(content_range: str, offset: int, size: int) -> bool:
    """Whether a ``Content-Range`` value (RFC 9110, 14.4) continues a file of ``size`` bytes exactly at ``offset``."""
    match = _CONTENT_RANGE.fullmatch(content_range.strip())
    if not match:
        return False
    first, last, total = match.groups()
    return int(first) == offset and offset <= int(last) < size and total in ("*", str(size))


def _is_sound(journal: Journal, file: RepoFile) -> bool:
    texts: list[Any] = [journal.boot_id, journal.origin, journal.etag]
    return (
        journal.digest == file.digest
        and journal.size == file.size
        and isinstance(journal.good_until, int)
        and all(isinstance(text, str) for text in texts)
    )
