# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The store on the disk: where a snapshot lies, what is in it, and how a file gets in.

``<store>/<org>--<name>/<commit>/`` holds the files at their repository paths; ``.llmops`` in it holds the manifest and
the parts that are still arriving.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from ansible_collections.llmops.vllm.plugins.module_utils.directories import opened_parent_below, sync_directory
from ansible_collections.llmops.vllm.plugins.module_utils.errors import InvalidInputError, PreconditionError
from ansible_collections.llmops.vllm.plugins.module_utils.repo_listing import (
    RESERVED_DIRECTORY,
    RepoFile,
    check_repo,
    is_commit,
)

MANIFEST = f"{RESERVED_DIRECTORY}/manifest.json"
PARTIAL = f"{RESERVED_DIRECTORY}/partial"


class NoRoomError(PreconditionError):
    """A file system is too small by ``missing_bytes``."""

    def __init__(self, message: str, missing_bytes: int, **details: Any) -> None:
        super().__init__(message, **details)
        self.missing_bytes = missing_bytes


@dataclass(frozen=True)
class Attributes:
    """Who owns the files and how they may be used; ``uid`` and ``gid`` None leave the owner as it is."""

    file_mode: int = 0o644
    directory_mode: int = 0o755
    uid: int | None = None
    gid: int | None = None

    def differences(self, status: os.stat_result) -> dict[str, tuple[str, str]]:
        """Return ``{attribute: (is, shall be)}`` for a file or directory that has ``status``."""
        wanted = self.directory_mode if stat.S_ISDIR(status.st_mode) else self.file_mode
        mode = stat.S_IMODE(status.st_mode)
        result = {"mode": (f"{mode:04o}", f"{wanted:04o}")} if mode != wanted else {}
        if self.uid is not None and status.st_uid != self.uid:
            result["owner"] = (str(status.st_uid), str(self.uid))
        if self.gid is not None and status.st_gid != self.gid:
            result["group"] = (str(status.st_gid), str(self.gid))
        return result

    def apply(self, descriptor: int) -> None:
        """Give an open file or directory its owner, then its mode (chown(2) clears mode bits)."""
        status = os.fstat(descriptor)
        if self.uid is not None or self.gid is not None:
            os.fchown(descriptor, -1 if self.uid is None else self.uid, -1 if self.gid is None else self.gid)
        os.fchmod(descriptor, self.directory_mode if stat.S_ISDIR(status.st_mode) else self.file_mode)


@dataclass(frozen=True)
class Snapshot:
    """The place of ``repo`` at ``commit`` under ``store`` (an absolute path)."""

    store: str
    repo: str
    commit: str

    def __post_init__(self) -> None:
        """Refuse names that are no repository or commit."""
        check_repo(self.repo)
        if not is_commit(self.commit):
            raise InvalidInputError(f"{self.commit!r} is not a full commit id of 40 hexadecimal digits.")

    @property
    def path(self) -> str:
        """The directory of the snapshot."""
        return os.path.join(self.store, self.repo.replace("/", "--"), self.commit)

    @property
    def manifest(self) -> str:
        """The path of the manifest."""
        return os.path.join(self.path, MANIFEST)

    @property
    def partial(self) -> str:
        """The directory of arriving files."""
        return os.path.join(self.path, PARTIAL)

    @property
    def lock(self) -> str:
        """The path of the lock, outside the snapshot because it outlives it."""
        return os.path.join(self.store, RESERVED_DIRECTORY, f"{self.repo.replace('/', '--')}--{self.commit}.lock")

    def damaged(self, digest: str) -> str:
        """The path at which a damaged file of ``digest`` waits for what is right in it to be used."""
        return os.path.join(self.partial, f"{digest}.damaged")

    def target(self, path: str) -> str:
        """The final path of repository file ``path``."""
        return os.path.join(self.path, path)

    def directories(self, files: Iterable[RepoFile]) -> list[str]:
        """Return all directories, relative to the store, that ``files`` and the manifest need, parents first."""
        base = os.path.relpath(self.path, self.store)
        needed = {os.path.dirname(base), base, f"{base}/{RESERVED_DIRECTORY}"}
        for file in files:
            parent = os.path.dirname(file.path)
            while parent:
                needed.add(f"{base}/{parent}")
                parent = os.path.dirname(parent)
        return sorted(needed)


def check_store(store: str) -> str:
    """Return ``store`` normalised when it is an absolute path below the root, else raise ``InvalidInputError``."""
    path = os.path.normpath(store)
    if not os.path.isabs(store) or path in ("/", "//"):
        raise InvalidInputError(f"store must be an absolute path of a directory, not {store!r}.")
    return path


def directory_status(path: str) -> os.stat_result | None:
    """Return the status of a real directory, None when there is nothing; anything else there is refused."""
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return None
    if not stat.S_ISDIR(status.st_mode):
        kind = "a symbolic link" if stat.S_ISLNK(status.st_mode) else "not a directory"
        raise PreconditionError(f"{path} is {kind}; nothing is written through it. Remove it and run again.")
    return status


def file_status(path: str) -> os.stat_result | None:
    """Return the status of a regular file, None when there is nothing; anything else there is refused."""
    try:
        status = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    if not stat.S_ISREG(status.st_mode):
        kind = "a symbolic link" if stat.S_ISLNK(status.st_mode) else "not a regular file"
        raise PreconditionError(f"{path} is {kind} and is in the way of a model file; remove it and run again.")
    return status


def make_directory(path: str, attributes: Attributes) -> None:
    """Make one directory with its attributes, durably; an existing real one keeps what it has."""
    if directory_status(path) is not None:
        return
    os.mkdir(path, 0o700)
    _set_attributes(path, attributes)
    sync_directory(os.path.dirname(path))


def make_directories(path: str, attributes: Attributes) -> None:
    """Make ``path`` and its missing parents; links above it are the operator's own choice."""
    if not os.path.isdir(path):
        make_directories(os.path.dirname(path), attributes)
        make_directory(path, attributes)


def set_attributes(snapshot: Snapshot, path: str, attributes: Attributes) -> os.stat_result:
    """Give ``path`` in ``snapshot`` (``.`` is the snapshot) its owner and mode and return its status."""
    with opened_parent(snapshot, path) as (parent, name):
        return _set_attributes(name, attributes, parent)


def _set_attributes(path: str, attributes: Attributes, parent: int | None = None) -> os.stat_result:
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    descriptor = os.open(path, flags, dir_fd=parent)
    try:
        attributes.apply(descriptor)
        return os.fstat(descriptor)
    finally:
        os.close(descriptor)


def opened_parent(snapshot: Snapshot, path: str) -> contextlib.AbstractContextManager[tuple[int, str]]:
    """Give the directory of repository file ``path``, open, and the name in it; no link below the store is followed."""
    return opened_parent_below(snapshot.store, os.path.relpath(snapshot.target(path), snapshot.store))


def install(snapshot: Snapshot, path: str, part: str, descriptor: int, attributes: Attributes) -> os.stat_result:
    """Give the verified file at ``part``, open at ``descriptor``, its final name ``path``, durably."""
    file_status(snapshot.target(path))
    attributes.apply(descriptor)
    os.fsync(descriptor)
    part_name = f"{PARTIAL}/{os.path.basename(part)}"
    with opened_parent(snapshot, part_name) as (source, old), opened_parent(snapshot, path) as (parent, new):
        os.replace(old, new, src_dir_fd=source, dst_dir_fd=parent)
        os.fsync(parent)
    return os.fstat(descriptor)


def put_aside(snapshot: Snapshot, file: RepoFile) -> None:
    """Take the damaged ``file`` out of the snapshot, for what is right in it to be used."""
    aside = os.path.relpath(snapshot.damaged(file.digest), snapshot.path)
    with opened_parent(snapshot, file.path) as (source, old), opened_parent(snapshot, aside) as (parent, new):
        os.replace(old, new, src_dir_fd=source, dst_dir_fd=parent)


def remove_file(snapshot: Snapshot, path: str) -> None:
    """Remove the repository file ``path`` of ``snapshot``."""
    with opened_parent(snapshot, path) as (parent, name):
        os.unlink(name, dir_fd=parent)


def write_atomically(path: str, text: str, attributes: Attributes) -> None:
    """Replace ``path`` by ``text`` so that a reader sees the old or the new one, whatever happens in between."""
    temporary = f"{path}.new"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(temporary)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with open(descriptor, "w", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        attributes.apply(stream.fileno())
        os.fsync(stream.fileno())
    os.replace(temporary, path)
    sync_directory(os.path.dirname(path))


def check_room(
    path: str,
    *,
    needed_bytes: int,
    needed_inodes: int,
    reserve_bytes: int,
    statvfs: Callable[[str], os.statvfs_result] = os.statvfs,
) -> None:
    """Raise ``PreconditionError`` unless the file system of ``path`` can be written and takes the missing files.

    ``path`` need not exist yet; its nearest existing parent counts.
    """
    place = path
    while not os.path.lexists(place):
        place = os.path.dirname(place)
    if not os.access(place, os.W_OK | os.X_OK):
        raise PreconditionError(
            f"{place} cannot be written by this user or at all; correct its mode or mount, or store."
        )
    status = statvfs(place)
    free = status.f_bavail * status.f_frsize
    if needed_bytes + reserve_bytes > free:
        missing = needed_bytes + reserve_bytes - free
        raise NoRoomError(
            f"{needed_bytes} bytes are missing and {reserve_bytes} shall stay free, but the file system of {place} "
            f"has {free} bytes free; free {missing} bytes more, or choose another store.",
            missing,
            needed_bytes=needed_bytes,
            free_bytes=free,
        )
    if status.f_files and needed_inodes > status.f_favail:
        raise PreconditionError(
            f"{needed_inodes} new files and directories are needed, but the file system of {place} has only "
            f"{status.f_favail} inodes free; remove files there, or choose another store."
        )
