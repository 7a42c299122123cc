# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A directory that files can come from: a network mount, a USB disk, the cache of another program.

A file lies at its repository path or at ``blobs/<digest>``. The directory itself may be reached through links, which
are the operator's own; nothing inside it is followed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from collections.abc import Callable, Mapping
from typing import TypeVar

from ansible_collections.llmops.vllm.plugins.module_utils.directories import opened_parent_below
from ansible_collections.llmops.vllm.plugins.module_utils.file_source import Source, SourceError
from ansible_collections.llmops.vllm.plugins.module_utils.http_client import Answer, RetryPolicy, TransferError
from ansible_collections.llmops.vllm.plugins.module_utils.repo_listing import RepoFile

COPY = "copy"
REFLINK = "reflink"
HARDLINK = "hardlink"
LINKS = (COPY, REFLINK, HARDLINK)
_FICLONE = 0x40049409  # linux/fs.h, _IOW(0x94, 9, int); the module fcntl has it from Python 3.12 on only
_DROP_BYTES = 64 * 1024 * 1024

T = TypeVar("T")


class LocalAnswer:
    """The bytes of an open file from ``offset`` on, read like the body of an HTTP answer."""

    foreign = False
    held_back_seconds = 0.0

    def __init__(self, descriptor: int, path: str, offset: int, size: int) -> None:
        self._descriptor = descriptor
        self._path = path
        self._position = self._dropped = offset
        self.url = f"file://{path}"
        self.status = 206 if offset else 200
        self.headers: Mapping[str, str] = {"Content-Range": f"bytes {offset}-{size - 1}/{size}"} if offset else {}

    def __enter__(self) -> LocalAnswer:
        """Return itself."""
        return self

    def __exit__(self, *_exc: object) -> None:
        """Close."""
        self._drop()
        os.close(self._descriptor)

    def read_into(self, view: memoryview) -> int:
        """Fill ``view`` and return the number of bytes, 0 at the end; raises ``TransferError``."""
        try:
            count = os.preadv(self._descriptor, [view], self._position)
        except OSError as error:
            raise TransferError(f"{self._path} cannot be read ({error.strerror})") from error
        self._position += count
        if self._position - self._dropped >= _DROP_BYTES:
            self._drop()
        return count

    def _drop(self) -> None:
        with contextlib.suppress(OSError):
            os.posix_fadvise(self._descriptor, 0, self._position, os.POSIX_FADV_DONTNEED)
        self._dropped = self._position


class LocalDirectory:
    """The files under ``path``. ``link`` says whether they are copied, reflinked or hard-linked into the store."""

    def __init__(self, path: str, link: str = COPY) -> None:
        self._path = path
        self._link = link

    def source(self) -> Source:
        """Return the source that these files are."""
        policy = RetryPolicy(0, sleep=lambda _seconds: None, jitter=lambda: 0.0)
        adopt = None if self._link == COPY else self._adopt
        return Source("directory", self._path, policy, self._ask, self._refused, adopt=adopt)

    def _ask(self, file: RepoFile, headers: Mapping[str, str], _conditions: Mapping[str, str]) -> Answer:
        first = int(headers.get("Range", "bytes=0-")[len("bytes=") :].partition("-")[0])

        def answer(parent: int, name: str, path: str) -> Answer:
            return LocalAnswer(_opened(parent, name, file, path), path, first, file.size)

        return self._found(file, answer)

    def _refused(self, answer: Answer) -> SourceError:
        return SourceError(f"{answer.url} cannot be used.")

    def _adopt(self, file: RepoFile, part: str) -> None:
        """Make ``part`` the file's content without moving its bytes; raises ``SourceError`` where that cannot be."""

        def adopt(parent: int, name: str, path: str) -> None:
            descriptor = _opened(parent, name, file, path)
            temporary = f"{part}.new"
            try:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(temporary)
                if self._link == HARDLINK:
                    os.link(name, temporary, src_dir_fd=parent, follow_symlinks=False)
                else:
                    _clone(descriptor, temporary)
                os.replace(temporary, part)
            except OSError as error:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(temporary)
                raise SourceError(
                    f"{path} cannot be {self._link}ed into the store ({error.strerror}); both must lie on one file "
                    "system that can do that, or use link copy."
                ) from error
            finally:
                os.close(descriptor)

        self._found(file, adopt)

    def _found(self, file: RepoFile, use: Callable[[int, str, str], T]) -> T:
        reasons = []
        for relative in (file.path, f"blobs/{file.digest}"):
            path = os.path.join(self._path, relative)
            try:
                with opened_parent_below(self._path, relative) as (parent, name):
                    return use(parent, name, path)
            except FileNotFoundError:
                continue
            except OSError as error:
                reasons.append(f"{path} cannot be used ({error.strerror})")
            except SourceError as error:
                reasons.append(error.message.rstrip("."))
        missing = f"{self._path} holds neither {file.path} nor blobs/{file.digest}"
        raise SourceError(f"{'; '.join(reasons) or missing}.")


def _opened(parent: int, name: str, file: RepoFile, path: str) -> int:
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    descriptor = os.open(name, flags, dir_fd=parent)
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_size != file.size:
        os.close(descriptor)
        found = f"has {status.st_size} bytes, not {file.size}" if stat.S_ISREG(status.st_mode) else "is no regular file"
        raise SourceError(f"{path} {found}.")
    return descriptor


def _clone(descriptor: int, path: str) -> None:
    clone = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.ioctl(clone, _FICLONE, descriptor)
    finally:
        os.close(clone)
