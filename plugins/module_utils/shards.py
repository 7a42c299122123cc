# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Making one snapshot of a model present: ``plan`` says what differs, ``apply`` does that and nothing else."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from ansible_collections.llmops.vllm.plugins.module_utils import manifest as manifests
from ansible_collections.llmops.vllm.plugins.module_utils.blobs import is_sole_name, publish, published, withdraw
from ansible_collections.llmops.vllm.plugins.module_utils.difference import DifferenceTracker
from ansible_collections.llmops.vllm.plugins.module_utils.download import Transfer, fetch_all
from ansible_collections.llmops.vllm.plugins.module_utils.manifest import FileRecord, Manifest
from ansible_collections.llmops.vllm.plugins.module_utils.part_file import Part
from ansible_collections.llmops.vllm.plugins.module_utils.repo_listing import Listing, RepoFile, select
from ansible_collections.llmops.vllm.plugins.module_utils.sources import SourceSet
from ansible_collections.llmops.vllm.plugins.module_utils.store import (
    Attributes,
    Snapshot,
    check_room,
    directory_status,
    file_status,
    has_digest,
    install,
    make_directories,
    make_directory,
    remove_file,
    set_attributes,
    write_atomically,
)
from ansible_collections.llmops.vllm.plugins.module_utils.transfer_progress import Progress

_SAVE_AFTER_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True)
class Wish:
    """What shall be true of a snapshot; ``full`` reads every byte instead of trusting ``stat``.

    ``linked`` files share their bytes with the source, so they need no room. ``publish`` gives them a second name by
    digest, for other hosts.
    """

    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    full: bool = False
    attributes: Attributes = field(default_factory=Attributes)
    reserve_bytes: int = 0
    workers: int = 8
    linked: bool = False
    publish: bool = False


@dataclass
class Plan:
    """What differs. ``unsettled`` files have to be read before it is known whether they are right.

    ``housekeeping`` is work that changes nothing an operator sees: fresh ``stat`` values, parts nobody needs any more.
    """

    snapshot: Snapshot
    wish: Wish
    listing: Listing
    endpoint: str
    selected: tuple[RepoFile, ...]
    records: dict[str, FileRecord]
    fetch: list[RepoFile] = field(default_factory=list)
    damaged: list[RepoFile] = field(default_factory=list)
    unsettled: list[RepoFile] = field(default_factory=list)
    modes: list[str] = field(default_factory=list)
    unpublished: list[RepoFile] = field(default_factory=list)
    housekeeping: bool = False
    freed_bytes: int = 0
    tracker: DifferenceTracker = field(default_factory=DifferenceTracker)

    @property
    def nothing_to_do(self) -> bool:
        """Whether the snapshot is known to be as wished, manifest included."""
        return not (self.unsettled or self.tracker.changed or self.housekeeping)

    @property
    def long(self) -> bool:
        """Whether files have to be read or fetched, which can take hours."""
        return bool(self.fetch or self.unsettled)

    @property
    def total_bytes(self) -> int:
        """Bytes of the selected files."""
        return sum(file.size for file in self.selected)

    @property
    def fetch_bytes(self) -> int:
        """Bytes of the files to fetch, parts not considered."""
        return sum(file.size for file in self.fetch)


def plan(snapshot: Snapshot, listing: Listing, known: Manifest | None, wish: Wish, endpoint: str) -> Plan:
    """Compare the snapshot with ``listing`` by ``stat`` alone; reads no file content and no network.

    Raises ``PreconditionError`` when a link or something else that is no file is in the way.
    """
    selected = select(listing, wish.include, wish.exclude)
    records = dict(known.records) if known else {}
    result = Plan(snapshot, wish, listing, endpoint, selected, records)
    for relative in snapshot.directories(selected):
        path = os.path.join(snapshot.store, relative)
        status = directory_status(path)
        if status is not None and path.startswith(snapshot.path):
            _plan_attributes(result, path, status)
    for file in selected:
        _plan_file(result, file)
    _plan_blobs(result)
    _plan_manifest(result, known)
    result.housekeeping |= bool(_stale_parts(snapshot, listing, result.records))
    return result


def _plan_file(result: Plan, file: RepoFile) -> None:
    path = result.snapshot.target(file.path)
    status = file_status(path)
    if status is None:
        _plan_fetch(result, file, "missing")
        return
    _plan_attributes(result, path, status)
    found = result.records.get(file.path)
    if status.st_size != file.size:
        _plan_damaged(result, file, status, f"damaged, {status.st_size} bytes")
    elif result.wish.full or found is None or found.file != file or not found.matches(status):
        result.unsettled.append(file)


def _plan_fetch(result: Plan, file: RepoFile, before: str) -> None:
    result.records.pop(file.path, None)
    result.fetch.append(file)
    result.tracker.add(file.path, before, f"present, {file.size} bytes")


def _plan_damaged(result: Plan, file: RepoFile, status: os.stat_result, before: str) -> None:
    result.damaged.append(file)
    if is_sole_name(result.snapshot, file, status):
        result.freed_bytes += status.st_size
    if file.path in result.modes:
        result.modes.remove(file.path)
    _plan_fetch(result, file, before)


def _plan_attributes(result: Plan, path: str, status: os.stat_result) -> None:
    differences = result.wish.attributes.differences(status)
    name = os.path.relpath(path, result.snapshot.path)
    if differences:
        result.modes.append(name)
    for attribute, (before, after) in differences.items():
        result.tracker.add(f"{attribute} of {name}", before, after)


def _plan_blobs(result: Plan) -> None:
    if result.wish.publish:
        wanted = {file.digest for file in result.selected}
        present = published(result.snapshot.store) & wanted
        result.unpublished = [file for file in result.selected if file.digest not in present]
        result.tracker.add("published blobs", len(present), len(wanted))


def _plan_manifest(result: Plan, known: Manifest | None) -> None:
    wish = result.wish
    if known is None:
        result.tracker.add("manifest", "missing", "present")
    elif not known.complete or (known.include, known.exclude) != (wish.include, wish.exclude):
        result.housekeeping = True


def settle(result: Plan, stop: threading.Event) -> None:
    """Read the unsettled files, several at a time: a right one gets a fresh record, a wrong one is to be fetched."""

    def examine(file: RepoFile) -> tuple[os.stat_result | None, bool]:
        path = result.snapshot.target(file.path)
        status = file_status(path)
        return status, status is not None and has_digest(path, file, stop)

    with ThreadPoolExecutor(max_workers=result.wish.workers) as pool:
        try:
            answers = list(pool.map(examine, result.unsettled))
        except BaseException:
            stop.set()
            raise
    for file, (status, right) in zip(result.unsettled, answers):
        if status is None:
            _plan_fetch(result, file, "missing")
        elif not right:
            _plan_damaged(result, file, status, "damaged, wrong digest")
        else:
            fresh = manifests.record(file, status)
            result.housekeeping |= result.records.get(file.path) != fresh
            result.records[file.path] = fresh
    result.unsettled = []


def preflight(result: Plan, parts: Callable[[RepoFile], Part]) -> None:
    """Raise ``PreconditionError`` unless what is to be fetched fits and can be written; parts already there count."""
    if not result.fetch:
        return
    arrived = sum(parts(file).resumable_bytes() for file in result.fetch)
    missing_directories = [
        relative
        for relative in result.snapshot.directories(result.selected)
        if not os.path.isdir(os.path.join(result.snapshot.store, relative))
    ]
    check_room(
        result.snapshot.path,
        needed_bytes=0 if result.wish.linked else max(0, result.fetch_bytes - arrived - result.freed_bytes),
        needed_inodes=len(result.fetch) + len(missing_directories),
        reserve_bytes=result.wish.reserve_bytes,
    )


class Applier:
    """Carries out one plan. ``sources`` is called only when something is to be fetched."""

    def __init__(
        self,
        todo: Plan,
        *,
        sources: Callable[[], SourceSet],
        parts: Callable[[RepoFile], Part],
        stop: threading.Event,
        progress: Progress,
    ) -> None:
        self.counters = progress.counters
        self._progress = progress
        self._plan = todo
        self._sources = sources
        self._parts = parts
        self._stop = stop
        self._records = dict(todo.records)
        self._lock = threading.Lock()
        self._unsaved_bytes = 0

    def run(self) -> None:
        """Do it. What was finished before a failure is in the manifest, so the next run starts from there."""
        todo, progress = self._plan, self._progress
        progress.files, progress.files_done = len(todo.selected), len(todo.selected) - len(todo.fetch)
        progress.total_bytes, progress.present_bytes = todo.total_bytes, todo.total_bytes - todo.fetch_bytes
        progress.phase = "fetching"
        self._prepare_directories()
        for file in todo.damaged:
            withdraw(todo.snapshot, file)
            remove_file(todo.snapshot, file.path)
        self._set_attributes()
        try:
            if todo.fetch:
                self._fetch()
        except BaseException:
            # A full disk may refuse the manifest too; the failure that matters is the first one.
            with contextlib.suppress(OSError):
                self._save_manifest()
            raise
        for file in todo.unpublished:
            self._publish(file)
        self._save_manifest()
        self._remove_stale_parts()

    def _prepare_directories(self) -> None:
        snapshot, attributes = self._plan.snapshot, self._plan.wish.attributes
        make_directories(snapshot.store, attributes)
        for relative in snapshot.directories(self._plan.selected):
            make_directory(os.path.join(snapshot.store, relative), attributes)
        if self._plan.fetch:
            make_directory(snapshot.partial, Attributes(directory_mode=0o700))

    def _set_attributes(self) -> None:
        for path in self._plan.modes:
            status = set_attributes(self._plan.snapshot, path, self._plan.wish.attributes)
            if path in self._records:
                self._records[path] = manifests.record(self._records[path].file, status)

    def _fetch(self) -> None:
        sources = self._sources()

        def fetch(file: RepoFile) -> None:
            part = self._parts(file)
            transfer = Transfer(part, sources.of(file), counters=self.counters, stop=self._stop)
            transfer.run(lambda descriptor: self._install(descriptor, part))

        files = sorted(self._plan.fetch, key=sources.order)
        fetch_all(files, fetch, workers=self._plan.wish.workers, stop=self._stop)

    def _install(self, descriptor: int, part: Part) -> None:
        todo = self._plan
        status = install(todo.snapshot, part.file.path, part.path, descriptor, todo.wish.attributes)
        part.forget()
        if todo.wish.publish:
            status = publish(todo.snapshot, part.file, todo.wish.attributes)
        with self._lock:
            self._records[part.file.path] = manifests.record(part.file, status)
            self._progress.files_done += 1
            self._unsaved_bytes += part.file.size
            if self._unsaved_bytes >= _SAVE_AFTER_BYTES:
                self._save_manifest()

    def _publish(self, file: RepoFile) -> None:
        todo = self._plan
        if self._records[file.path].matches(os.lstat(todo.snapshot.target(file.path))):
            status = publish(todo.snapshot, file, todo.wish.attributes)
            self._records[file.path] = manifests.record(file, status)

    def _save_manifest(self) -> None:
        todo, wish = self._plan, self._plan.wish
        self._unsaved_bytes = 0
        complete = all(file.path in self._records for file in todo.selected)
        now = Manifest(todo.listing, todo.endpoint, self._records, wish.include, wish.exclude, complete)
        write_atomically(todo.snapshot.manifest, now.as_json(), wish.attributes)

    def _remove_stale_parts(self) -> None:
        snapshot = self._plan.snapshot
        for name in _stale_parts(snapshot, self._plan.listing, self._records):
            os.unlink(os.path.join(snapshot.partial, name))
        with contextlib.suppress(OSError):
            os.rmdir(snapshot.partial)


def part_factory(snapshot: Snapshot, boot_id: str) -> Callable[[RepoFile], Part]:
    """Return the function that knows where the part of a file lies."""
    return lambda file: Part(snapshot.partial, file, boot_id)


def _stale_parts(snapshot: Snapshot, listing: Listing, records: Mapping[str, FileRecord]) -> list[str]:
    """Return the names of parts that no file of the commit needs any more; others may belong to another selection."""
    if directory_status(snapshot.partial) is None:
        return []
    wanted = {file.digest for file in listing.files if file.path not in records}
    return [name for name in os.listdir(snapshot.partial) if name.partition(".")[0] not in wanted]
