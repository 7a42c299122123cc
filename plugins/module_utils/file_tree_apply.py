# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Bringing a planned tree into being: every file and link is made aside and renamed into place."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import stat
from collections.abc import Callable, Iterator

from ansible_collections.llmops.vllm.plugins.module_utils.errors import PreconditionError, as_sentence
from ansible_collections.llmops.vllm.plugins.module_utils.file_tree import Entry, Step, TreePlan, kind_of
from ansible_collections.llmops.vllm.plugins.module_utils.left_aside import aside, left_aside

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


def apply_tree(plan: TreePlan, pid: int, is_alive: Callable[[int], bool]) -> None:
    """Do what ``plan`` says, in its order.

    ``pid`` is this process, ``is_alive`` says whether a process id is in use: what a process that no longer lives left
    aside is removed. Raises LlmopsError; what was done until then is right, and a further run does the rest.
    """
    for step in plan.steps:
        with as_sentence(f"make {step.entry.path} as declared"), _opened_parent(plan, step) as parent:
            if not step.writes:
                _correct(step.entry, parent)
            elif step.entry.state == "directory":
                _make_directory(step.entry, parent)
            else:
                _replace(_with_found_owner(step), parent, pid)
                for leftover in left_aside(os.listdir(parent), os.path.basename(step.entry.path), is_alive):
                    os.unlink(leftover, dir_fd=parent)


@contextlib.contextmanager
def _opened_parent(plan: TreePlan, step: Step) -> Iterator[int]:
    """Give the parent, open, so that what is checked and what is written are in the same directory."""
    parent = os.path.dirname(step.entry.path)
    declared = os.O_NOFOLLOW if parent in plan.directories else 0
    descriptor = os.open(parent, _DIRECTORY | declared)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _make_directory(entry: Entry, parent: int) -> None:
    os.mkdir(os.path.basename(entry.path), 0o700, dir_fd=parent)
    _correct(entry, parent)
    os.fsync(parent)


def _correct(entry: Entry, parent: int) -> None:
    """Give the thing at its final name the owner and mode declared."""
    name = os.path.basename(entry.path)
    if entry.state == "link":
        _own_link(entry, name, parent)
        return
    descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=parent)
    try:
        if kind_of(os.fstat(descriptor).st_mode) != entry.state:
            raise PreconditionError(f"{entry.path} was replaced by something else meanwhile; run again.")
        _set_attributes(entry, descriptor)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _set_attributes(entry: Entry, descriptor: int) -> None:
    """Set the owner, then the mode (chown(2) clears mode bits)."""
    uid, gid = _owner_to_set(entry, os.fstat(descriptor))
    if (uid, gid) != (-1, -1):
        os.fchown(descriptor, uid, gid)
    if entry.mode is not None and stat.S_IMODE(os.fstat(descriptor).st_mode) != entry.mode:
        os.fchmod(descriptor, entry.mode)


def _own_link(entry: Entry, name: str, parent: int) -> None:
    uid, gid = _owner_to_set(entry, os.stat(name, dir_fd=parent, follow_symlinks=False))
    if (uid, gid) != (-1, -1):
        os.chown(name, uid, gid, dir_fd=parent, follow_symlinks=False)


def _owner_to_set(entry: Entry, status: os.stat_result) -> tuple[int, int]:
    """Return user and group id, -1 where there is nothing to change, which an unprivileged user may not even try."""
    uid = -1 if entry.uid is None or entry.uid == status.st_uid else entry.uid
    gid = -1 if entry.gid is None or entry.gid == status.st_gid else entry.gid
    return uid, gid


def _with_found_owner(step: Step) -> Entry:
    """Return the entry with the owner of what it replaces, where it declares none."""
    entry, status = step.entry, step.found.status if step.found else None
    if status is None:
        return entry
    return dataclasses.replace(
        entry,
        uid=status.st_uid if entry.uid is None else entry.uid,
        gid=status.st_gid if entry.gid is None else entry.gid,
    )


def _replace(entry: Entry, parent: int, pid: int) -> None:
    """Make a file or link aside and give it its name; a reader sees the old or the new one, never a part."""
    name = os.path.basename(entry.path)
    temporary = aside(name, pid)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(temporary, dir_fd=parent)
    try:
        if entry.state == "link":
            os.symlink(entry.target, temporary, dir_fd=parent)
            _own_link(entry, temporary, parent)
        else:
            _write(entry, temporary, parent)
        os.replace(temporary, name, src_dir_fd=parent, dst_dir_fd=parent)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary, dir_fd=parent)
        raise
    os.fsync(parent)


def _write(entry: Entry, temporary: str, parent: int) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open(temporary, flags, 0o600, dir_fd=parent), "wb") as stream:
        stream.write(entry.content)
        stream.flush()
        _set_attributes(entry, stream.fileno())
        os.fsync(stream.fileno())
