# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Verified files under their digests, ``<store>/.llmops/blobs/<digest>``, for a web server to hand to other hosts.

They are second names (hard links) of the files in snapshots: they cost no room, and one that no snapshot has any more
is a name too many and goes.
"""

from __future__ import annotations

import contextlib
import os

from ansible_collections.llmops.vllm.plugins.module_utils.directories import opened_parent_below
from ansible_collections.llmops.vllm.plugins.module_utils.errors import PreconditionError
from ansible_collections.llmops.vllm.plugins.module_utils.repo_listing import RESERVED_DIRECTORY, RepoFile
from ansible_collections.llmops.vllm.plugins.module_utils.store import (
    Attributes,
    Snapshot,
    directory_status,
    make_directory,
    opened_parent,
)

BLOBS = f"{RESERVED_DIRECTORY}/blobs"


def published(store: str) -> set[str]:
    """Return the digests of the blobs that a snapshot of ``store`` still has."""
    directory = os.path.join(store, BLOBS)
    if directory_status(directory) is None:
        return set()
    with os.scandir(directory) as entries:
        return {entry.name for entry in entries if entry.stat(follow_symlinks=False).st_nlink > 1}


def blob_inodes(store: str) -> set[int]:
    """Return the inodes of all blobs of ``store``."""
    directory = os.path.join(store, BLOBS)
    if directory_status(directory) is None:
        return set()
    with os.scandir(directory) as entries:
        return {entry.inode() for entry in entries}


def is_sole_name(snapshot: Snapshot, file: RepoFile, status: os.stat_result) -> bool:
    """Whether the bytes of ``file``, which has ``status``, go with its name in the snapshot and its blob."""
    return status.st_nlink == 1 or (status.st_nlink == 2 and _blob_inode(snapshot, file) == status.st_ino)


def _blob_inode(snapshot: Snapshot, file: RepoFile) -> int:
    try:
        return os.lstat(os.path.join(snapshot.store, BLOBS, file.digest)).st_ino
    except OSError:
        return -1


def publish(snapshot: Snapshot, file: RepoFile, attributes: Attributes) -> os.stat_result:
    """Give ``file`` its second name, unless another snapshot's file has it, and return the status of ``file`` then."""
    for relative in (RESERVED_DIRECTORY, BLOBS):
        make_directory(os.path.join(snapshot.store, relative), attributes)
    relative = f"{BLOBS}/{file.digest}"
    with opened_parent_below(snapshot.store, relative) as (blobs, name), opened_parent(snapshot, file.path) as own:
        if _links(name, blobs) < 2:
            try:
                _link(own, (blobs, name))
            except OSError as error:
                raise PreconditionError(
                    f"{snapshot.target(file.path)} cannot be published as {relative} ({error.strerror}); leave out "
                    "publish_blobs where the file system has no hard links."
                ) from error
        return os.stat(own[1], dir_fd=own[0], follow_symlinks=False)


def _links(name: str, directory: int) -> int:
    try:
        return os.stat(name, dir_fd=directory, follow_symlinks=False).st_nlink
    except FileNotFoundError:
        return 0


def _link(old: tuple[int, str], new: tuple[int, str]) -> None:
    directory, name = new
    temporary = f".{name}.{os.getpid()}"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(temporary, dir_fd=directory)
    os.link(old[1], temporary, src_dir_fd=old[0], dst_dir_fd=directory, follow_symlinks=False)
    os.replace(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)


def withdraw(snapshot: Snapshot, file: RepoFile) -> None:
    """Take away the second name of ``file``, whose bytes have turned out to be wrong."""
    if _blob_inode(snapshot, file) == os.lstat(snapshot.target(file.path)).st_ino:
        with opened_parent_below(snapshot.store, f"{BLOBS}/{file.digest}") as (blobs, name):
            os.unlink(name, dir_fd=blobs)


def sweep(store: str) -> None:
    """Remove the blobs that no snapshot has any more, and the directory when it is empty."""
    directory = os.path.join(store, BLOBS)
    if directory_status(directory) is None:
        return
    with os.scandir(directory) as entries:
        orphans = [entry.path for entry in entries if entry.stat(follow_symlinks=False).st_nlink == 1]
    for path in orphans:
        os.unlink(path)
    with contextlib.suppress(OSError):
        os.rmdir(directory)
