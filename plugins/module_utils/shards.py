# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Making one snapshot of a model present: ``plan`` says what differs, ``apply`` does that and nothing else."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from ansible_collections.llmops.vllm.plugins.module_utils import hf_metadata
from ansible_collections.llmops.vllm.plugins.module_utils import manifest as manifests
from ansible_collections.llmops.vllm.plugins.module_utils.blobs import is_sole_name, published
from ansible_collections.llmops.vllm.plugins.module_utils.difference import DifferenceTracker
from ansible_collections.llmops.vllm.plugins.module_utils.digests import Examination, examine
from ansible_collections.llmops.vllm.plugins.module_utils.errors import PreconditionError
from ansible_collections.llmops.vllm.plugins.module_utils.manifest import FileRecord, Manifest
from ansible_collections.llmops.vllm.plugins.module_utils.part_file import Part
from ansible_collections.llmops.vllm.plugins.module_utils.repo_listing import Listing, RepoFile, select
from ansible_collections.llmops.vllm.plugins.module_utils.store import (
    Attributes,
    Snapshot,
    check_room,
    directory_status,
    file_status,
)
from ansible_collections.llmops.vllm.plugins.module_utils.transfer_progress import Progress


@dataclass(frozen=True)
class Sample:
    """The ``number``-th share of ``percent`` of the bytes; consecutive numbers go round all files."""

    percent: int = 0
    number: int = 0

    def of(self, files: Sequence[RepoFile]) -> set[str]:
        """Return the paths of the files that lie in the share, if only partly."""
        chosen: set[str] = set()
        if not self.percent:
            return chosen
        whole = 100 * sum(file.size for file in files)
        start = self.number * self.percent % 100 * whole // 100
        end = start + self.percent * whole // 100
        position = 0
        for file in sorted(files, key=lambda item: (hashlib.sha256(item.digest.encode()).digest(), item.path)):
            before, position = position, position + 100 * file.size
            # The share may go on at the beginning.
            if any(before < end - lap and start - lap < position for lap in (0, whole)):
                chosen.add(file.path)
        return chosen


@dataclass(frozen=True)
class Wish:
    """What shall be true of a snapshot.

    ``full`` reads every byte instead of trusting ``stat``; ``sample`` reads some of the files.

    ``linked`` files share their bytes with the source, so they need no room. ``publish`` gives them a second name by
    digest, for other hosts.
    """

    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    full: bool = False
    sample: Sample = Sample()
    attributes: Attributes = field(default_factory=Attributes)
    reserve_bytes: int = 0
    workers: int = 8
    linked: bool = False
    publish: bool = False


@dataclass
class Plan:
    """What differs. ``unsettled`` files have to be read before it is known whether they are right.

    ``housekeeping`` is work that changes nothing an operator sees: fresh ``stat`` values, parts nobody needs any more.
    ``unlabelled`` files lack the metadata of the hub's own client. ``freed`` are the bytes by path that go with damaged
    files; those with ``marks`` are repaired while ``repairing``.
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
    unlabelled: list[RepoFile] = field(default_factory=list)
    housekeeping: bool = False
    freed: dict[str, int] = field(default_factory=dict)
    marks: dict[str, str] = field(default_factory=dict)
    sampled: set[str] = field(default_factory=set)
    repairing: bool = True
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

    @property
    def repairs(self) -> list[RepoFile]:
        """The files to fetch of which a damaged version and the marks of the right one are there."""
        if not self.repairing:
            return []
        damaged = set(self.damaged)
        return [
            file
            for file in self.fetch
            if self.marks.get(file.digest)
            and (file in damaged or file_status(self.snapshot.damaged(file.digest)) is not None)
        ]


def plan(snapshot: Snapshot, listing: Listing, known: Manifest | None, wish: Wish, endpoint: str) -> Plan:
    """Compare the snapshot with ``listing`` by ``stat`` alone; reads no file content and no network.

    Raises ``PreconditionError`` when a link or something else that is no file is in the way.
    """
    selected = select(listing, wish.include, wish.exclude)
    records = dict(known.records) if known else {}
    marks = dict(known.marks) if known else {}
    result = Plan(snapshot, wish, listing, endpoint, selected, records, marks=marks, sampled=wish.sample.of(selected))
    for relative in snapshot.directories(selected):
        path = os.path.join(snapshot.store, relative)
        status = directory_status(path)
        if status is not None and path.startswith(snapshot.path):
            _plan_attributes(result, path, status)
    for file in selected:
        _plan_file(result, file)
    _plan_blobs(result)
    _plan_manifest(result, known)
    if hf_metadata.is_wanted(listing):
        result.unlabelled = [file for file in selected if hf_metadata.is_missing(snapshot, file)]
    result.housekeeping |= bool(result.unlabelled)
    result.housekeeping |= bool(stale_parts(snapshot, listing, result.records))
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
    elif _is_to_be_read(result, file) or found is None or found.file != file or not found.matches(status):
        result.unsettled.append(file)


def _is_to_be_read(result: Plan, file: RepoFile) -> bool:
    return result.wish.full or file.path in result.sampled


def _plan_fetch(result: Plan, file: RepoFile, before: str) -> None:
    result.records.pop(file.path, None)
    result.fetch.append(file)
    result.tracker.add(file.path, before, f"present, {file.size} bytes")


def _plan_damaged(result: Plan, file: RepoFile, status: os.stat_result, before: str) -> None:
    result.damaged.append(file)
    if is_sole_name(result.snapshot, file, status):
        result.freed[file.path] = status.st_size
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


def settle(result: Plan, stop: threading.Event, progress: Progress) -> None:
    """Read the unsettled files, several at a time: a right one gets a fresh record, a wrong one is to be fetched."""
    progress.begin("verifying", result.unsettled, missing=result.unsettled)

    def look(file: RepoFile) -> tuple[os.stat_result | None, Examination]:
        path = result.snapshot.target(file.path)
        status = file_status(path)
        if status is None:
            return None, Examination(False)
        found = examine(path, file, result.marks.get(file.digest, ""), stop)
        progress.finish(file.size)
        return status, found

    with ThreadPoolExecutor(max_workers=max(result.wish.workers, len(os.sched_getaffinity(0)))) as pool:
        try:
            answers = list(pool.map(look, result.unsettled))
        except BaseException:
            stop.set()
            raise
    for file, (status, found) in zip(result.unsettled, answers):
        if status is None:
            _plan_fetch(result, file, "missing")
        elif not found.right:
            _plan_damaged(result, file, status, "damaged, wrong digest")
        else:
            fresh = manifests.record(file, status)
            result.housekeeping |= result.records.get(file.path) != fresh
            result.housekeeping |= result.marks.get(file.digest, "") != found.marks
            result.records[file.path] = fresh
            result.marks[file.digest] = found.marks
    result.unsettled = []


def preflight(result: Plan, parts: Callable[[RepoFile], Part]) -> None:
    """Raise ``PreconditionError`` unless what is to be fetched fits and can be written; parts already there count.

    A repair needs room for a second version of its file. Where there is none, the damaged one goes first.
    """
    if not result.fetch:
        return
    if result.repairs:
        try:
            _check_room(result, parts)
            return
        except PreconditionError:
            result.repairing = False
    _check_room(result, parts)


def _check_room(result: Plan, parts: Callable[[RepoFile], Part]) -> None:
    arrived = sum(parts(file).resumable_bytes() for file in result.fetch)
    repairs = {file.path for file in result.repairs}
    freed = sum(size for path, size in result.freed.items() if path not in repairs)
    missing_directories = [
        relative
        for relative in result.snapshot.directories(result.selected)
        if not os.path.isdir(os.path.join(result.snapshot.store, relative))
    ]
    check_room(
        result.snapshot.path,
        needed_bytes=0 if result.wish.linked else max(0, result.fetch_bytes - arrived - freed),
        needed_inodes=len(result.fetch) + len(result.unlabelled) + 2 * len(missing_directories),
        reserve_bytes=result.wish.reserve_bytes,
    )


def part_factory(snapshot: Snapshot, boot_id: str) -> Callable[[RepoFile], Part]:
    """Return the function that knows where the part of a file lies."""
    return lambda file: Part(snapshot.partial, file, boot_id)


def stale_parts(snapshot: Snapshot, listing: Listing, records: Mapping[str, FileRecord]) -> list[str]:
    """Return the names of parts that no file of the commit needs any more; others may belong to another selection."""
    if directory_status(snapshot.partial) is None:
        return []
    wanted = {file.digest for file in listing.files if file.path not in records}
    return [name for name in os.listdir(snapshot.partial) if name.partition(".")[0] not in wanted]
