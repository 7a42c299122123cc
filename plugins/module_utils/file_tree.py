# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Directories, files and links as they shall be, compared with what is there.

``plan_tree`` looks at everything before anything is written; ``apply_tree`` (in ``file_tree_apply``) does what the plan
says. The last component of a path is never followed when it is a link; links above it are the operator's own choice.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.llmops.vllm.plugins.module_utils.difference import DifferenceTracker
from ansible_collections.llmops.vllm.plugins.module_utils.errors import InvalidInputError, PreconditionError
from ansible_collections.llmops.vllm.plugins.module_utils.users import group_name, user_name

DIFF_LIMIT_BYTES = 1024 * 1024
KINDS = {"directory": "a directory", "file": "a regular file", "link": "a symbolic link"}


@dataclass(frozen=True)
class Entry:
    """One thing that shall be.

    ``state`` is directory, file or link; ``content`` is a file's, ``target`` a link's; ``mode`` None for a link.
    ``uid`` and ``gid`` None leave the owner as it is.
    """

    path: str
    state: str
    content: bytes = b""
    target: str = ""
    mode: int | None = None
    uid: int | None = None
    gid: int | None = None


@dataclass(frozen=True)
class Found:
    """What is at a path; ``content`` is None when it was too large to be read and cannot be equal."""

    status: os.stat_result
    content: bytes | None = None
    target: str = ""


@dataclass(frozen=True)
class Step:
    """An entry and what was found in its place (None: nothing)."""

    entry: Entry
    found: Found | None

    @property
    def writes(self) -> bool:
        """Whether the thing itself is made or replaced, not only its attributes."""
        if self.found is None:
            return True
        if self.entry.state == "file":
            return self.found.content != self.entry.content
        return self.entry.state == "link" and self.found.target != self.entry.target

    def attributes(self) -> dict[str, tuple[str | None, str]]:
        """Return ``{attribute: (is, shall be)}`` where they differ; ``is`` is None for a thing that is not there."""
        entry, status = self.entry, self.found.status if self.found else None
        result: dict[str, tuple[str | None, str]] = {}
        if entry.uid is not None and (status is None or status.st_uid != entry.uid):
            result["owner"] = (user_name(status.st_uid) if status else None, user_name(entry.uid))
        if entry.gid is not None and (status is None or status.st_gid != entry.gid):
            result["group"] = (group_name(status.st_gid) if status else None, group_name(entry.gid))
        if entry.mode is not None and (status is None or stat.S_IMODE(status.st_mode) != entry.mode):
            result["mode"] = (f"{stat.S_IMODE(status.st_mode):04o}" if status else None, f"{entry.mode:04o}")
        return result

    @property
    def changes(self) -> bool:
        """Whether anything has to be done."""
        return self.writes or bool(self.attributes())


@dataclass(frozen=True)
class TreePlan:
    """What has to be done, in the order of the entries.

    ``directories`` are those that entries declare; ``warnings`` name what a prediction had to take for granted.
    """

    steps: Sequence[Step]
    directories: frozenset[str]
    warnings: Sequence[str] = field(default=())

    @property
    def changed_paths(self) -> list[str]:
        """The paths at which something has to be done."""
        return [step.entry.path for step in self.steps]


def check_path(name: str, path: str) -> str:
    """Return ``path`` without superfluous slashes. Raises InvalidInputError unless it is absolute and plain."""
    if not os.path.isabs(path) or "\0" in path:
        raise InvalidInputError(f"{name} must be an absolute path, not {path!r}.")
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if not parts or ".." in parts:
        raise InvalidInputError(f"{name} must be an absolute path below / without '..', not {path!r}.")
    return "/" + "/".join(parts)


def plan_tree(entries: Sequence[Entry], predict: bool = False) -> TreePlan:
    """Compare ``entries`` with what is there; nothing is written.

    A parent has to exist or to be an earlier entry. With ``predict`` a missing one is a warning, because an earlier
    task that was not carried out either may make it. Raises InvalidInputError for entries that contradict each other,
    PreconditionError when something else is in the way, OSError when something cannot be read.
    """
    declared: dict[str, Entry] = {}
    missing: dict[str, str] = {}
    steps = []
    for entry in entries:
        _check_among(entry, declared)
        parent = os.path.dirname(entry.path)
        if parent not in declared and not os.path.isdir(parent):
            missing.setdefault(parent, _missing_parent(entry, parent, predict))
        declared[entry.path] = entry
        steps.append(Step(entry, _look(entry)))
    directories = frozenset(path for path, entry in declared.items() if entry.state == "directory")
    return TreePlan([step for step in steps if step.changes], directories, list(missing.values()))


def _check_among(entry: Entry, declared: dict[str, Entry]) -> None:
    if entry.path in declared:
        raise InvalidInputError(f"{entry.path} is declared twice; keep one of the entries.")
    above = os.path.dirname(entry.path)
    while above != "/":
        if above in declared and declared[above].state != "directory":
            kind = KINDS[declared[above].state]
            raise InvalidInputError(f"{entry.path} lies below {above}, which an earlier entry makes {kind}.")
        above = os.path.dirname(above)


def _missing_parent(entry: Entry, parent: str, predict: bool) -> str:
    if os.path.lexists(parent):
        raise PreconditionError(f"{parent}, in which {entry.path} shall be, is not a directory; nothing was changed.")
    if not predict:
        raise PreconditionError(
            f"The directory {parent}, in which {entry.path} shall be, does not exist; make it first, or declare it in "
            "an earlier entry; nothing was changed."
        )
    return f"The directory {parent}, in which {entry.path} shall be, does not exist yet."


def _look(entry: Entry) -> Found | None:
    """Return what is in the place of ``entry``; PreconditionError when it is something else."""
    try:
        status = os.lstat(entry.path)
    except FileNotFoundError:
        return None
    kind = kind_of(status.st_mode)
    if kind != entry.state:
        raise PreconditionError(
            f"{entry.path} shall be {KINDS[entry.state]} but is {KINDS.get(kind, 'a special file')}; remove it or "
            "correct the entry; nothing was changed."
        )
    if kind == "link":
        return Found(status, target=os.readlink(entry.path))
    return _read(entry) if kind == "file" else Found(status)


def kind_of(mode: int) -> str:
    """Return directory, file, link or special for the mode of lstat(2)."""
    tests = {"directory": stat.S_ISDIR, "file": stat.S_ISREG, "link": stat.S_ISLNK}
    return next((kind for kind, test in tests.items() if test(mode)), "special")


def _read(entry: Entry) -> Found:
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with open(os.open(entry.path, flags), "rb") as stream:
        status = os.fstat(stream.fileno())
        readable = status.st_size == len(entry.content) or status.st_size <= DIFF_LIMIT_BYTES
        return Found(status, stream.read() if readable else None)


def render_diff(plan: TreePlan) -> list[dict[str, Any]]:
    """Return the plan as the list form of Ansible's ``diff``: a listing of all that changes, then files' texts."""
    tracker = DifferenceTracker()
    for step in plan.steps:
        tracker.add(step.entry.path, *_listed(step))
    header = {"before_header": "directories, links and attributes", "after_header": "directories, links and attributes"}
    listing = [{**header, **tracker.as_diff()}] if tracker.changed else []
    return [*listing, *(_text_diff(step) for step in plan.steps if step.entry.state == "file" and step.writes)]


def _listed(step: Step) -> tuple[dict[str, str] | None, dict[str, str]]:
    after = {name: wanted for name, (_is, wanted) in step.attributes().items()}
    before = {name: found for name, (found, _wanted) in step.attributes().items() if found is not None}
    if step.found is None:
        after["state"] = step.entry.state
    if step.entry.state == "link" and step.writes:
        after["target"] = step.entry.target
        before.update({"target": step.found.target} if step.found else {})
    return (before if step.found else None), after


def _text_diff(step: Step) -> dict[str, str]:
    before = ""
    if step.found:
        before = _as_text(step.found.content, step.found.status.st_size)
    after = _as_text(step.entry.content, len(step.entry.content))
    return {"before_header": step.entry.path, "after_header": step.entry.path, "before": before, "after": after}


def _as_text(content: bytes | None, size_bytes: int) -> str:
    try:
        text = None if content is None or size_bytes > DIFF_LIMIT_BYTES else content.decode("utf-8")
    except UnicodeDecodeError:
        text = None
    return f"({size_bytes} bytes, not shown)\n" if text is None or "\0" in text else text
