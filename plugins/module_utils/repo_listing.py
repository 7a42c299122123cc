# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a model repository holds at one commit, and the rules for its names.

Every name here comes from a server, so none of it is trusted: a path that could leave the snapshot is refused before
anything is written.
"""

from __future__ import annotations

import fnmatch
import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ansible_collections.llmops.vllm.plugins.module_utils.errors import InvalidInputError, LlmopsError

SHA256 = "sha256"
GIT_SHA1 = "git-sha1"
RESERVED_DIRECTORY = ".llmops"

_HEX_DIGITS = {SHA256: 64, GIT_SHA1: 40}
_COMMIT = re.compile(r"[0-9a-f]{40}")
_REPO_PART = r"[A-Za-z0-9_](?:[A-Za-z0-9._-]*[A-Za-z0-9_])?"
_REPO = re.compile(f"{_REPO_PART}/{_REPO_PART}")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_NAME_BYTES = 255


class Digester(Protocol):
    """The part of a ``hashlib`` object that is used here."""

    def update(self, data: bytes | memoryview, /) -> None:
        """Take in more bytes."""

    def hexdigest(self) -> str:
        """Return the digest as lower-case hexadecimal digits."""

    def copy(self) -> Digester:
        """Return another one in the same state."""


@dataclass(frozen=True)
class RepoFile:
    """One file of a repository: ``size`` in bytes, ``digest`` in hex by ``algorithm`` (sha256 or git-sha1)."""

    path: str
    size: int
    algorithm: str
    digest: str

    def __post_init__(self) -> None:
        """Refuse what no hub may say."""
        check_path(self.path)
        digits = _HEX_DIGITS.get(self.algorithm)
        if digits is None or not re.fullmatch(f"[0-9a-f]{{{digits}}}", self.digest):
            raise LlmopsError(f"The digest of {self.path!r} is not a {self.algorithm}: {self.digest!r}.")
        if isinstance(self.size, bool) or self.size < 0:
            raise LlmopsError(f"The size of {self.path!r} is not a number of bytes: {self.size!r}.")

    def digester(self) -> Digester:
        """Return a fresh digester; a git blob's SHA-1 starts with its type and size (git-hash-object(1))."""
        if self.algorithm == SHA256:
            return hashlib.sha256()
        return hashlib.sha1(b"blob %d\0" % self.size, usedforsecurity=False)


@dataclass(frozen=True)
class Listing:
    """All files of ``repo`` at ``commit``, ordered by path."""

    repo: str
    commit: str
    files: tuple[RepoFile, ...]

    def __post_init__(self) -> None:
        """Refuse a tree that no directory can hold."""
        _check_tree([file.path for file in self.files])


def check_repo(repo: str) -> str:
    """Return ``repo`` when it reads ``org/name`` as the hub allows it, else raise ``InvalidInputError``."""
    if not _REPO.fullmatch(repo) or "--" in repo or ".." in repo:
        raise InvalidInputError(
            f"repo must read org/name (letters, digits, '.', '_' and '-', no '--' and no '..'), not {repo!r}."
        )
    return repo


def check_revision(revision: str) -> str:
    """Return ``revision`` when it can be a branch, tag or commit, else raise ``InvalidInputError``."""
    if not revision or _CONTROL.search(revision) or " " in revision or ".." in revision:
        raise InvalidInputError(f"revision must be a branch, a tag or a commit, not {revision!r}.")
    return revision


def is_commit(revision: str) -> bool:
    """Whether ``revision`` is a full commit id, which can never mean anything else later."""
    return bool(_COMMIT.fullmatch(revision))


def check_path(path: Any) -> str:
    """Return ``path`` when it stays inside a snapshot, else raise ``LlmopsError`` naming it."""
    if not isinstance(path, str) or not path:
        raise LlmopsError(f"The repository lists a file without a usable name: {path!r}.")
    problem = _path_problem(path)
    if problem:
        raise LlmopsError(f"The repository lists a file whose name {problem}: {path!r}; nothing was written.")
    return path


def _path_problem(path: str) -> str | None:
    parts = path.split("/")
    if _CONTROL.search(path):
        return "holds a control character"
    if "\\" in path:
        return "holds a backslash"
    if path.startswith("/"):
        return "is absolute"
    if any(part in ("", ".", "..") for part in parts):
        return "has an empty, '.' or '..' part"
    if parts[0] == RESERVED_DIRECTORY:
        return f"lies in {RESERVED_DIRECTORY}, which belongs to this store"
    return _encoding_problem(parts)


def _encoding_problem(parts: Sequence[str]) -> str | None:
    try:
        too_long = any(len(part.encode("utf-8")) > _NAME_BYTES for part in parts)
    except UnicodeEncodeError:
        return "is not valid Unicode"
    return f"has a part of more than {_NAME_BYTES} bytes" if too_long else None


def _check_tree(paths: Sequence[str]) -> None:
    names = set(paths)
    if len(names) != len(paths):
        twice = sorted(name for name in names if paths.count(name) > 1)
        raise LlmopsError(f"The repository lists a file twice: {', '.join(twice)}.")
    for path in paths:
        parts = path.split("/")
        for depth in range(1, len(parts)):
            if "/".join(parts[:depth]) in names:
                raise LlmopsError(
                    f"The repository lists {'/'.join(parts[:depth])!r} both as a file and as a directory."
                )


def select(listing: Listing, include: Sequence[str], exclude: Sequence[str]) -> tuple[RepoFile, ...]:
    """Return the files that match a pattern of ``include`` (all when empty) and none of ``exclude``.

    Patterns are shell globs on the whole path in which ``*`` crosses ``/``, and ``dir/`` means all below it: the rule
    of the hub's own client. An empty result is an ``InvalidInputError``, since it can only be a mistake.
    """
    chosen = tuple(
        file
        for file in listing.files
        if (not include or _matches(file.path, include)) and not _matches(file.path, exclude)
    )
    if not chosen:
        raise InvalidInputError(
            f"include and exclude leave none of the {len(listing.files)} files of {listing.repo} at {listing.commit}; "
            "correct the patterns."
        )
    return chosen


def _matches(path: str, patterns: Iterable[str]) -> bool:
    return any(fnmatch.fnmatchcase(path, f"{p}*" if p.endswith("/") else p) for p in patterns)
