# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Bringing a planned view into being: composed aside, then renamed into place."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from typing import IO

from ansible_collections.llmops.vllm.plugins.module_utils.directories import sync_directory
from ansible_collections.llmops.vllm.plugins.module_utils.errors import PreconditionError, as_sentence
from ansible_collections.llmops.vllm.plugins.module_utils.left_aside import aside, left_aside
from ansible_collections.llmops.vllm.plugins.module_utils.view import Entry, ViewPlan

_CHUNK_BYTES = 1024 * 1024


def apply_view(plan: ViewPlan, pid: int, is_alive: Callable[[int], bool]) -> None:
    """Compose the planned view and put it in its place; a correct one is left untouched.

    ``pid`` is this process, ``is_alive`` says whether a process id is in use: what a process that no longer lives left
    aside is removed. Raises LlmopsError; the former view is then still (or again) in place.
    """
    if not plan.changed:
        return
    parent, name = os.path.split(plan.view)
    if not os.path.isdir(parent):
        raise PreconditionError(f"The directory {parent} does not exist; create it before the view {plan.view}.")
    partial = os.path.join(parent, aside(name, pid))
    with as_sentence(f"compose the view {plan.view}"):
        _remove_tree(partial)
        try:
            _compose(plan, partial)
            _swap(plan, partial, os.path.join(parent, aside(name, pid, "replaced")))
        except BaseException:
            _remove_tree(partial)
            raise
        for leftover in left_aside(os.listdir(parent), name, is_alive, "partial|replaced"):
            _remove_tree(os.path.join(parent, leftover))


def _compose(plan: ViewPlan, root: str) -> None:
    directories = sorted(path for path, entry in plan.entries.items() if entry.kind == "directory")
    for path in directories:
        os.mkdir(os.path.join(root, path) if path != "." else root, 0o700)
    for path, entry in plan.entries.items():
        target = os.path.join(root, path)
        if entry.kind == "link":
            os.symlink(entry.value, target)
            _own(target, entry)
        elif entry.kind == "file":
            _write(entry, target)
    for path in reversed(directories):
        target = os.path.join(root, path)
        _own(target, plan.entries[path])
        os.chmod(target, plan.permissions.directory_mode)
        sync_directory(target)


def _own(target: str, entry: Entry) -> None:
    if entry.uid is not None or entry.gid is not None:
        uid, gid = (-1 if number is None else number for number in (entry.uid, entry.gid))
        os.chown(target, uid, gid, follow_symlinks=False)


def _write(entry: Entry, target: str) -> None:
    total = hashlib.sha256()
    with os.fdopen(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as stream:
        for chunk in _content(entry):
            total.update(chunk)
            stream.write(chunk)
        stream.flush()
        _finish(stream, entry)
    if total.hexdigest() != entry.value:
        raise PreconditionError(f"{entry.source} changed while the view was composed; run again when it is at rest.")


def _finish(stream: IO[bytes], entry: Entry) -> None:
    if entry.uid is not None or entry.gid is not None:
        uid, gid = (-1 if number is None else number for number in (entry.uid, entry.gid))
        os.fchown(stream.fileno(), uid, gid)
    if entry.mode is not None:
        os.fchmod(stream.fileno(), entry.mode)
    os.fsync(stream.fileno())


def _content(entry: Entry) -> Iterator[bytes]:
    if entry.content is not None:
        yield entry.content
        return
    with os.fdopen(os.open(entry.source, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as stream:
        yield from iter(lambda: stream.read(_CHUNK_BYTES), b"")


def _swap(plan: ViewPlan, partial: str, replaced: str) -> None:
    """Rename the new view into place; there is no name at which a half-composed one could be seen."""
    if plan.present is None:
        os.rename(partial, plan.view)
    else:
        _remove_tree(replaced)
        os.rename(plan.view, replaced)
        try:
            os.rename(partial, plan.view)
        except BaseException:
            os.rename(replaced, plan.view)
            raise
    sync_directory(os.path.dirname(plan.view))
    _remove_tree(replaced)


def _remove_tree(root: str) -> None:
    """Remove a directory tree, its read-only directories included; links in it are removed, never followed."""
    if not os.path.lexists(root):
        return
    for directory, _names, _files in os.walk(root):
        with contextlib.suppress(OSError):  # rmtree names what really cannot be removed
            os.chmod(directory, 0o700)
    shutil.rmtree(root)
