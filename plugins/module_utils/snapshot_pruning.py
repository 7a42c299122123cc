# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which snapshots of a store can go: not the wanted one, and none that a release links into or that a run works on."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from ansible_collections.llmops.vllm.plugins.module_utils.errors import PreconditionError
from ansible_collections.llmops.vllm.plugins.module_utils.snapshot_lock import is_held
from ansible_collections.llmops.vllm.plugins.module_utils.snapshot_removal import RemovalPlan, plan_removal, remove
from ansible_collections.llmops.vllm.plugins.module_utils.store import NoRoomError, Snapshot
from ansible_collections.llmops.vllm.plugins.module_utils.store_inventory import snapshots_in

_MARK_SECONDS = 3600


@dataclass(frozen=True)
class PrunePolicy:
    """``keep`` unused snapshots stay (None keeps all), as does what was wanted less than ``min_age_seconds`` ago.

    ``make_room`` lets unused ones go, the least recently wanted first, when the wanted one does not fit otherwise.
    """

    releases: str
    keep: int | None = None
    min_age_seconds: float = 0.0
    make_room: bool = False


class Pruning:
    """One policy for the store of ``wanted``; ``clock`` gives seconds since the epoch."""

    def __init__(self, policy: PrunePolicy, wanted: Snapshot, clock: Callable[[], float]) -> None:
        self._policy = policy
        self._wanted = wanted
        self._clock = clock

    def superfluous(self) -> list[RemovalPlan]:
        """Return what the policy removes."""
        if self._policy.keep is None:
            return []
        unused = self._unused()
        old = unused[: max(0, len(unused) - self._policy.keep)]
        limit = self._clock() - self._policy.min_age_seconds
        return [todo for todo in old if _wanted_seconds(todo.snapshot) <= limit]

    def room(self, missing: NoRoomError) -> list[RemovalPlan]:
        """Return what has to go to free the bytes that are missing; raises the error when that cannot be."""
        if not self._policy.make_room:
            raise missing
        chosen: list[RemovalPlan] = []
        freed = 0
        for todo in self._unused():
            if freed >= missing.missing_bytes:
                break
            chosen.append(todo)
            freed += todo.freed_bytes
        if freed < missing.missing_bytes:
            raise NoRoomError(
                f"{missing.message} Removing the {len(chosen)} snapshots that nothing uses would free {freed} bytes.",
                missing.missing_bytes,
                **missing.details,
            ) from missing
        return chosen

    def _unused(self) -> list[RemovalPlan]:
        """Return the removals of all unused snapshots, the least recently wanted first."""
        found = []
        for snapshot in snapshots_in(self._wanted.store):
            if snapshot == self._wanted or is_held(snapshot.lock):
                continue
            try:
                found.append(plan_removal(snapshot, self._policy.releases))
            except PreconditionError as error:
                if not error.details.get("used_by"):
                    raise
        return sorted(found, key=lambda todo: _wanted_seconds(todo.snapshot))


def mark_wanted(snapshot: Snapshot, now: float) -> None:
    """Note that a run wanted ``snapshot`` at ``now``, seconds since the epoch.

    As with relatime (mount(8)), a mark that is an hour young is good enough: a run that changes nothing writes nothing.
    """
    if now - _wanted_seconds(snapshot) >= _MARK_SECONDS:
        os.utime(snapshot.manifest, (now, now), follow_symlinks=False)


def remove_all(
    removals: Iterable[RemovalPlan], releases: str, lock: Callable[[Snapshot], AbstractContextManager[object]]
) -> list[RemovalPlan]:
    """Remove what can still be removed, each under its lock, and return that."""
    removed = []
    for planned in removals:
        try:
            with lock(planned.snapshot):
                todo = plan_removal(planned.snapshot, releases)
                if todo.present:
                    remove(todo)
                    removed.append(todo)
        except PreconditionError as error:
            if not error.details.get("used_by") and not is_held(planned.snapshot.lock):
                raise
    return removed


def as_result(removals: Sequence[RemovalPlan]) -> list[dict[str, object]]:
    """Return the entries of the module's result."""
    return [
        {
            "repo": todo.snapshot.repo,
            "commit": todo.snapshot.commit,
            "path": todo.snapshot.path,
            "freed_bytes": todo.freed_bytes,
        }
        for todo in removals
    ]


def _wanted_seconds(snapshot: Snapshot) -> float:
    """Return when a run last wanted ``snapshot``, in seconds since the epoch."""
    for path in (snapshot.manifest, snapshot.path):
        try:
            return os.lstat(path).st_mtime
        except FileNotFoundError:
            continue
    return 0.0
