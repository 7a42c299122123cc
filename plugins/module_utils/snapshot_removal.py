# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Removing a snapshot that nothing needs any more."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Collection
from dataclasses import dataclass

from ansible_collections.llmops.vllm.plugins.module_utils.blobs import blob_inodes, sweep
from ansible_collections.llmops.vllm.plugins.module_utils.directories import subdirectories, sync_directory
from ansible_collections.llmops.vllm.plugins.module_utils.errors import PreconditionError
from ansible_collections.llmops.vllm.plugins.module_utils.store import Snapshot, directory_status


@dataclass(frozen=True)
class RemovalPlan:
    """``present`` says whether there is a snapshot; ``freed_bytes`` are those of its files without a second name."""

    snapshot: Snapshot
    present: bool
    files: int = 0
    freed_bytes: int = 0
    leftover: str = ""


def plan_removal(snapshot: Snapshot, releases: str) -> RemovalPlan:
    """Say what removing ``snapshot`` frees; raises ``PreconditionError`` naming the releases that link into it."""
    leftover = _aside(snapshot)
    if directory_status(os.path.dirname(snapshot.path)) is None:
        return RemovalPlan(snapshot, False)
    there = [path for path in (snapshot.path, leftover) if directory_status(path) is not None]
    if not there:
        return RemovalPlan(snapshot, False)
    users = users_of(snapshot.path, releases)
    if users:
        raise PreconditionError(
            f"{snapshot.path} is still used by {', '.join(users)}; remove these releases first.", used_by=users
        )
    files, freed = _contents(there, blob_inodes(snapshot.store))
    return RemovalPlan(snapshot, True, files, freed, leftover if leftover in there else "")


def users_of(path: str, releases: str) -> list[str]:
    """Return the releases (``<instance>/<release>``) under ``releases`` whose ``model`` links into ``path``.

    Raises ``PreconditionError`` when one cannot be read, since an unread release may be a user.
    """
    real = os.path.realpath(path)
    users = []
    for instance in _directories(releases):
        for release in _directories(os.path.join(releases, instance)):
            model = os.path.join(releases, instance, release, "model")
            if any(_lies_in(os.path.realpath(link), real) for link in _links(model)):
                users.append(f"{instance}/{release}")
    return users


def remove(todo: RemovalPlan) -> None:
    """Rename the snapshot aside, so that nobody sees half of it, and delete it, its blobs and the empty parent."""
    snapshot, aside = todo.snapshot, _aside(todo.snapshot)
    parent = os.path.dirname(snapshot.path)
    try:
        if todo.leftover:
            shutil.rmtree(aside)
        if directory_status(snapshot.path) is not None:
            os.rename(snapshot.path, aside)
            sync_directory(parent)
            shutil.rmtree(aside)
        sweep(snapshot.store)
    except OSError as error:
        raise PreconditionError(f"{snapshot.path} cannot be removed: {error.strerror or error}.") from error
    if not os.listdir(parent):
        os.rmdir(parent)


def _aside(snapshot: Snapshot) -> str:
    return os.path.join(os.path.dirname(snapshot.path), f".{snapshot.commit}.removing")


def _contents(directories: list[str], published: Collection[int]) -> tuple[int, int]:
    files = freed = 0
    for directory in directories:
        for folder, _subfolders, names in os.walk(directory):
            for name in names:
                status = os.lstat(os.path.join(folder, name))
                names_elsewhere = status.st_nlink - 1 - (status.st_ino in published)
                files += 1
                freed += status.st_size if stat.S_ISREG(status.st_mode) and not names_elsewhere else 0
    return files, freed


def _directories(path: str) -> list[str]:
    try:
        return subdirectories(path)
    except OSError as error:
        raise _unreadable(error) from error


def _links(model: str) -> list[str]:
    if os.path.islink(model):
        return [model]
    found: list[str] = []

    def fail(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):
            raise _unreadable(error)

    for folder, subfolders, names in os.walk(model, onerror=fail):
        found += [path for name in subfolders + names if os.path.islink(path := os.path.join(folder, name))]
    return found


def _lies_in(path: str, directory: str) -> bool:
    return path == directory or path.startswith(directory + os.sep)


def _unreadable(error: OSError) -> PreconditionError:
    return PreconditionError(
        f"{error.filename} cannot be read ({error.strerror}), so a release there may use the snapshot; it is kept."
    )
