# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a store holds, by its manifests and ``stat`` alone."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

from ansible_collections.llmops.vllm.plugins.module_utils import manifest as manifests
from ansible_collections.llmops.vllm.plugins.module_utils.directories import subdirectories
from ansible_collections.llmops.vllm.plugins.module_utils.errors import InvalidInputError, LlmopsError
from ansible_collections.llmops.vllm.plugins.module_utils.manifest import FileRecord
from ansible_collections.llmops.vllm.plugins.module_utils.repo_listing import check_repo, is_commit
from ansible_collections.llmops.vllm.plugins.module_utils.store import Snapshot


@dataclass(frozen=True)
class SnapshotState:
    """One snapshot. ``complete``: all files of its last selection are as they were verified; sizes are bytes.

    ``changed`` names files that are missing or no longer look as they were verified; ``partial_bytes`` still arrive.
    """

    repo: str
    commit: str
    path: str
    manifest: str
    endpoint: str
    complete: bool
    files: int
    total_bytes: int
    partial_bytes: int
    changed: tuple[str, ...]


def inventory(store: str, repo: str | None = None) -> list[SnapshotState]:
    """Return the snapshots under ``store``, only those of ``repo`` when given, ordered by repository and commit.

    A store that does not exist holds nothing. Raises ``LlmopsError`` for one that cannot be read.
    """
    try:
        return [_state(snapshot) for snapshot in snapshots_in(store) if repo in (None, snapshot.repo)]
    except OSError as error:
        raise LlmopsError(f"{error.filename or store} cannot be read: {error.strerror}.") from error


def snapshots_in(store: str) -> Iterator[Snapshot]:
    """Give the snapshots under ``store`` by their names; raises ``OSError``."""
    for directory in subdirectories(store):
        repo = directory.replace("--", "/", 1)
        try:
            check_repo(repo)
        except InvalidInputError:
            continue
        for commit in filter(is_commit, subdirectories(os.path.join(store, directory))):
            yield Snapshot(store, repo, commit)


def _state(snapshot: Snapshot) -> SnapshotState:
    known = manifests.load(snapshot.manifest)
    if known and (known.listing.repo, known.listing.commit) != (snapshot.repo, snapshot.commit):
        known = None
    records = dict(known.records) if known else {}
    changed = tuple(path for path, found in sorted(records.items()) if not _is_as_verified(snapshot, found))
    return SnapshotState(
        repo=snapshot.repo,
        commit=snapshot.commit,
        path=snapshot.path,
        manifest=snapshot.manifest if known else "",
        endpoint=known.endpoint if known else "",
        complete=bool(known and known.complete and not changed),
        files=len(records),
        total_bytes=sum(found.file.size for found in records.values()),
        partial_bytes=_partial_bytes(snapshot),
        changed=changed,
    )


def _is_as_verified(snapshot: Snapshot, found: FileRecord) -> bool:
    try:
        return found.matches(os.lstat(snapshot.target(found.file.path)))
    except (FileNotFoundError, NotADirectoryError):
        return False


def _partial_bytes(snapshot: Snapshot) -> int:
    try:
        with os.scandir(snapshot.partial) as entries:
            return sum(entry.stat(follow_symlinks=False).st_size for entry in entries if entry.name.endswith(".part"))
    except (FileNotFoundError, PermissionError):
        return 0
