# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The way from the parameters to a snapshot: identify, plan, lock, plan again, preflight, apply."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.llmops.vllm.plugins.module_utils import manifest as manifests
from ansible_collections.llmops.vllm.plugins.module_utils.difference import DifferenceTracker
from ansible_collections.llmops.vllm.plugins.module_utils.errors import InvalidInputError, LlmopsError
from ansible_collections.llmops.vllm.plugins.module_utils.http_client import MissingPackageError
from ansible_collections.llmops.vllm.plugins.module_utils.hub import Connection
from ansible_collections.llmops.vllm.plugins.module_utils.manifest import Manifest
from ansible_collections.llmops.vllm.plugins.module_utils.part_file import Part
from ansible_collections.llmops.vllm.plugins.module_utils.repo_listing import Listing, RepoFile, is_commit
from ansible_collections.llmops.vllm.plugins.module_utils.shards import (
    Plan,
    Wish,
    part_factory,
    plan,
    preflight,
    settle,
)
from ansible_collections.llmops.vllm.plugins.module_utils.shards_apply import Applier
from ansible_collections.llmops.vllm.plugins.module_utils.snapshot_lock import SnapshotLock, boot_id
from ansible_collections.llmops.vllm.plugins.module_utils.snapshot_pruning import (
    PrunePolicy,
    Pruning,
    as_result,
    mark_wanted,
    remove_all,
)
from ansible_collections.llmops.vllm.plugins.module_utils.snapshot_removal import RemovalPlan, plan_removal, remove
from ansible_collections.llmops.vllm.plugins.module_utils.sources import SourceSet, SourceSpec
from ansible_collections.llmops.vllm.plugins.module_utils.store import (
    Attributes,
    NoRoomError,
    Snapshot,
    make_directories,
    make_directory,
)
from ansible_collections.llmops.vllm.plugins.module_utils.transfer_progress import Progress
from ansible_collections.llmops.vllm.plugins.module_utils.verification import problems_of, refusal


@dataclass
class Outcome:
    """What a run found and did; sizes in bytes. In check mode: what it would fetch or free.

    ``postponed`` work was only planned.
    """

    repo: str
    commit: str
    path: str
    files: int = 0
    total_bytes: int = 0
    fetched_bytes: int = 0
    reused_bytes: int = 0
    freed_bytes: int = 0
    requests: int = 0
    postponed: bool = False
    damaged: list[str] = field(default_factory=list)
    removed: list[dict[str, Any]] = field(default_factory=list)
    sources: list[dict[str, Any]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    tracker: DifferenceTracker = field(default_factory=DifferenceTracker)

    def as_result(self) -> dict[str, Any]:
        """Return the keys of the module's result."""
        return {
            "path": self.path,
            "repo": self.repo,
            "commit": self.commit,
            "files": self.files,
            "total_bytes": self.total_bytes,
            "fetched_bytes": self.fetched_bytes,
            "reused_bytes": self.reused_bytes,
            "freed_bytes": self.freed_bytes,
            "requests": self.requests,
            "damaged": sorted(self.damaged),
            "removed": self.removed,
            "sources": self.sources,
        }


class SnapshotKeeper:
    """Keeps snapshots of ``repo`` in ``store``.

    ``connect`` is called at most once and only when HTTP is needed, because it imports ``requests``. ``given`` lists
    the files in place of the hub, ``sources`` are where they come from, ``host`` is this host's name among their peers.
    ``prune`` says which other snapshots may go. ``stop`` ends downloads; ``sleep`` and ``monotonic`` count seconds,
    ``clock`` those since the epoch; ``progress`` is kept up to date for whoever watches.
    """

    def __init__(
        self,
        *,
        repo: str,
        store: str,
        endpoint: str,
        attributes: Attributes,
        check_mode: bool,
        lock_timeout_seconds: float,
        connect: Callable[[], Connection],
        stop: threading.Event,
        sleep: Callable[[float], object],
        monotonic: Callable[[], float],
        progress: Progress | None = None,
        sources: tuple[SourceSpec, ...] = (SourceSpec(),),
        host: str = "",
        given: Listing | None = None,
        prune: PrunePolicy | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._repo = repo
        self._store = store
        self._endpoint = endpoint
        self._attributes = attributes
        self._check_mode = check_mode
        self._lock_timeout_seconds = lock_timeout_seconds
        self._connect = connect
        self._connection: Connection | None = None
        self._stop = stop
        self._sleep = sleep
        self._monotonic = monotonic
        self._progress = progress or Progress()
        self._specs = sources
        self._host = host
        self._given = given
        self._prune = prune or PrunePolicy("")
        self._clock = clock
        self._removals: list[RemovalPlan] = []
        self._sources: SourceSet | None = None
        self._parts_of_boot = boot_id()

    def present(self, revision: str, wish: Wish, *, postpone: bool = False) -> Outcome:
        """Make ``revision`` present as wished. Raises ``LlmopsError`` for whatever the operator can act on.

        With ``postpone`` work that can take long is planned and left to a later call.
        """
        with _disk_errors_explained(self._store):
            try:
                return self._present(revision, wish, postpone)
            except MissingPackageError as error:
                if not self._check_mode:
                    raise
                return self._unknown(revision, error)
            finally:
                self._close()

    def verified(self, revision: str, wish: Wish, *, postpone: bool = False) -> Outcome:
        """Check ``revision`` and change nothing. Raises ``LlmopsError`` with all that is wrong as ``wrong``."""
        with _disk_errors_explained(self._store):
            try:
                snapshot, listing = self._identify(revision)
                todo = self._plan(snapshot, listing, wish)
                if postpone and todo.long and not self._check_mode:
                    return self._outcome(todo, postponed=True)
                settle(todo, self._stop, self._progress)
                problems = problems_of(todo)
                if problems:
                    raise refusal(todo, problems)
                return self._outcome(todo)
            finally:
                self._close()

    def absent(self, commit: str, releases: str) -> Outcome:
        """Remove the snapshot of ``commit`` unless a release under ``releases`` links into it."""
        if not is_commit(commit):
            raise InvalidInputError(
                f"revision must be a full commit id of 40 hexadecimal digits to remove a snapshot, not {commit!r}."
            )
        snapshot = Snapshot(self._store, self._repo, commit)
        with _disk_errors_explained(self._store):
            todo = plan_removal(snapshot, releases)
            if todo.present and not self._check_mode:
                with self._locked(snapshot):
                    todo = plan_removal(snapshot, releases)
                    if todo.present:
                        remove(todo)
        outcome = Outcome(self._repo, commit, snapshot.path, files=todo.files, freed_bytes=todo.freed_bytes)
        if todo.present:
            outcome.tracker.add(snapshot.path, _size(todo), None)
        return outcome

    def _present(self, revision: str, wish: Wish, postpone: bool) -> Outcome:
        snapshot, listing = self._identify(revision)
        todo = self._plan(snapshot, listing, wish)
        if postpone and todo.long and not self._check_mode:
            return self._outcome(todo, postponed=True)
        pruning = Pruning(self._prune, snapshot, self._clock)
        if self._check_mode:
            return self._predicted(todo, pruning)
        if not todo.nothing_to_do:
            todo = self._applied(todo, pruning)
        self._remove(pruning.superfluous())
        with suppress(OSError):
            mark_wanted(snapshot, self._clock())
        return self._outcome(todo)

    def _predicted(self, todo: Plan, pruning: Pruning) -> Outcome:
        parts = part_factory(todo.snapshot, self._parts_of_boot)
        settle(todo, self._stop, self._progress)
        self._removals = self._made_room(todo, parts, pruning)
        known = {removal.snapshot for removal in self._removals}
        self._removals += [removal for removal in pruning.superfluous() if removal.snapshot not in known]
        arrived = sum(parts(file).resumable_bytes() for file in todo.fetch)
        return self._outcome(todo, fetched_bytes=todo.fetch_bytes - arrived, resumed_bytes=arrived)

    def _applied(self, todo: Plan, pruning: Pruning) -> Plan:
        snapshot, listing, wish = todo.snapshot, todo.listing, todo.wish
        parts = part_factory(snapshot, self._parts_of_boot)
        self._made_room(todo, parts, pruning)
        self._progress.phase = "waiting"
        with self._locked(snapshot):
            todo = self._plan(snapshot, listing, wish)
            settle(todo, self._stop, self._progress)
            while room := self._made_room(todo, parts, pruning):
                before = len(self._removals)
                self._remove(room)
                if len(self._removals) == before:
                    preflight(todo, parts)
            Applier(
                todo,
                sources=lambda: self._source_set(listing),
                parts=parts,
                stop=self._stop,
                progress=self._progress,
            ).run()
        return todo

    def _made_room(self, todo: Plan, parts: Callable[[RepoFile], Part], pruning: Pruning) -> list[RemovalPlan]:
        """Return what has to be removed for ``todo`` to fit; raises ``PreconditionError`` when it does not fit."""
        try:
            preflight(todo, parts)
        except NoRoomError as error:
            return pruning.room(error)
        return []

    def _remove(self, removals: list[RemovalPlan]) -> None:
        self._removals += remove_all(removals, self._prune.releases, lambda snapshot: self._locked(snapshot, 0.0))

    def _unknown(self, revision: str, error: MissingPackageError) -> Outcome:
        """Return what can be said in check mode on a host that an earlier task would have given ``requests``."""
        place = os.path.join(self._store, self._repo.replace("/", "--"))
        outcome = Outcome(self._repo, revision if is_commit(revision) else "", place)
        outcome.warnings.append(f"{error.message} What would be fetched is therefore not known.")
        outcome.tracker.add(f"{self._repo} at {revision}", "not known", "present")
        return outcome

    def _identify(self, revision: str) -> tuple[Snapshot, Listing]:
        """Return the snapshot that ``revision`` means; a commit whose manifest is here needs no hub."""
        if self._given:
            if is_commit(revision) and revision != self._given.commit:
                raise InvalidInputError(f"manifest lists the files of commit {self._given.commit}, not of {revision}.")
            return Snapshot(self._store, self._repo, self._given.commit), self._given
        if is_commit(revision):
            snapshot = Snapshot(self._store, self._repo, revision)
            known = self._known(snapshot)
            if known:
                return snapshot, known.listing
        listing = self._connected().hub.listing(self._repo, revision)
        return Snapshot(self._store, self._repo, listing.commit), listing

    def _known(self, snapshot: Snapshot) -> Manifest | None:
        known = manifests.load(snapshot.manifest)
        if known and (known.listing.repo, known.listing.commit) == (snapshot.repo, snapshot.commit):
            return known
        return None

    def _plan(self, snapshot: Snapshot, listing: Listing, wish: Wish) -> Plan:
        return plan(snapshot, listing, self._known(snapshot), wish, self._endpoint)

    def _connected(self) -> Connection:
        if self._connection is None:
            self._connection = self._connect()
        return self._connection

    def _source_set(self, listing: Listing) -> SourceSet:
        self._sources = SourceSet(self._specs, listing, connect=self._connected, host=self._host)
        return self._sources

    def _close(self) -> None:
        if self._sources:
            self._sources.close()
        if self._connection:
            self._connection.client.close()

    def _requests(self) -> int:
        own = self._connection.client.requests_made if self._connection else 0
        return own + (self._sources.requests if self._sources else 0)

    def _locked(self, snapshot: Snapshot, timeout_seconds: float | None = None) -> SnapshotLock:
        make_directories(self._store, self._attributes)
        make_directory(os.path.dirname(snapshot.lock), self._attributes)
        return SnapshotLock(
            snapshot.lock,
            timeout_seconds=self._lock_timeout_seconds if timeout_seconds is None else timeout_seconds,
            sleep=self._sleep,
            monotonic=self._monotonic,
            on_lost=self._stop.set,
        )

    def _outcome(
        self, todo: Plan, *, fetched_bytes: int = 0, resumed_bytes: int = 0, postponed: bool = False
    ) -> Outcome:
        counters = self._progress.counters
        outcome = Outcome(
            self._repo,
            todo.snapshot.commit,
            todo.snapshot.path,
            files=len(todo.selected),
            total_bytes=todo.total_bytes,
            fetched_bytes=fetched_bytes or counters.received,
            reused_bytes=todo.total_bytes - todo.fetch_bytes + (resumed_bytes or counters.resumed),
            freed_bytes=sum(removal.freed_bytes for removal in self._removals),
            requests=self._requests(),
            postponed=postponed,
            damaged=[file.path for file in todo.damaged],
            removed=as_result(self._removals),
            sources=self._sources.used() if self._sources else [],
            warnings=self._sources.warnings() if self._sources else [],
            tracker=todo.tracker,
        )
        for removal in self._removals:
            outcome.tracker.add(removal.snapshot.path, _size(removal), None)
        return outcome


def _size(removal: RemovalPlan) -> str:
    return f"{removal.files} files, {removal.freed_bytes} bytes"


@contextmanager
def _disk_errors_explained(store: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise LlmopsError(f"{error.filename or store}: {error.strerror or error}.") from error
