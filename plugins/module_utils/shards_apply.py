# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Carrying out the plan for one snapshot."""

from __future__ import annotations

import contextlib
import functools
import os
import threading
import time
from collections.abc import Callable

from ansible_collections.llmops.vllm.plugins.module_utils import hf_metadata
from ansible_collections.llmops.vllm.plugins.module_utils import manifest as manifests
from ansible_collections.llmops.vllm.plugins.module_utils.blobs import publish, withdraw
from ansible_collections.llmops.vllm.plugins.module_utils.download import Transfer, fetch_all
from ansible_collections.llmops.vllm.plugins.module_utils.errors import PreconditionError
from ansible_collections.llmops.vllm.plugins.module_utils.file_source import Source
from ansible_collections.llmops.vllm.plugins.module_utils.manifest import Manifest
from ansible_collections.llmops.vllm.plugins.module_utils.part_file import Part, PartWriter, buffer_bytes_for
from ansible_collections.llmops.vllm.plugins.module_utils.repair import Repair
from ansible_collections.llmops.vllm.plugins.module_utils.repo_listing import RepoFile
from ansible_collections.llmops.vllm.plugins.module_utils.shards import Plan, stale_parts
from ansible_collections.llmops.vllm.plugins.module_utils.sources import SourceSet
from ansible_collections.llmops.vllm.plugins.module_utils.store import (
    Attributes,
    install,
    make_directories,
    make_directory,
    put_aside,
    remove_file,
    set_attributes,
    write_atomically,
)
from ansible_collections.llmops.vllm.plugins.module_utils.transfer_progress import Progress

# A finished file that the manifest does not name yet is read again by the next run, a second for a gigabyte.
_SAVE_AFTER_BYTES = 1024 * 1024 * 1024


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
        self._marks = dict(todo.marks)
        self._repairs: set[RepoFile] = set()
        self._lock = threading.Lock()
        self._unsaved_bytes = 0

    def run(self) -> None:
        """Do it. What was finished before a failure is in the manifest, so the next run starts from there."""
        todo, progress = self._plan, self._progress
        progress.begin("fetching", todo.selected, missing=todo.fetch)
        self._prepare_directories()
        self._repairs = set(todo.repairs)
        for file in todo.damaged:
            self._remove_damaged(file)
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
        if hf_metadata.is_wanted(todo.listing):
            for file in {*todo.unlabelled, *todo.fetch}:
                # A courtesy to others: where it cannot be written, that is all that is lost.
                with contextlib.suppress(OSError, PreconditionError):
                    hf_metadata.write(todo.snapshot, file, todo.wish.attributes, time.time)
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
        open_writer = functools.partial(PartWriter, buffer_bytes=buffer_bytes_for(self._plan.wish.workers))

        def fetch(file: RepoFile) -> None:
            part = self._parts(file)

            def keep(descriptor: int, marks: str) -> None:
                self._install(descriptor, part, marks)

            if file in self._repairs and self._repair(part, sources.of(file), keep):
                return
            Transfer(part, sources.of(file), counters=self.counters, stop=self._stop, open_writer=open_writer).run(keep)

        files = sorted(self._plan.fetch, key=sources.order)
        fetch_all(files, fetch, workers=self._plan.wish.workers, stop=self._stop)

    def _remove_damaged(self, file: RepoFile) -> None:
        snapshot = self._plan.snapshot
        withdraw(snapshot, file)
        if file in self._repairs:
            put_aside(snapshot, file)
        else:
            remove_file(snapshot, file.path)

    def _repair(self, part: Part, sources: list[Source], keep: Callable[[int, str], None]) -> bool:
        damaged = self._plan.snapshot.damaged(part.file.digest)
        if not os.path.lexists(damaged):
            return False
        marks = self._plan.marks[part.file.digest]
        return Repair(part, damaged, marks, sources, counters=self.counters, stop=self._stop).run(keep)

    def _install(self, descriptor: int, part: Part, marks: str) -> None:
        todo = self._plan
        status = install(todo.snapshot, part.file.path, part.path, descriptor, todo.wish.attributes)
        part.forget()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(todo.snapshot.damaged(part.file.digest))
        if todo.wish.publish:
            status = publish(todo.snapshot, part.file, todo.wish.attributes)
        with self._lock:
            self._records[part.file.path] = manifests.record(part.file, status)
            self._marks[part.file.digest] = marks
            self._progress.finish()
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
        now = Manifest(todo.listing, todo.endpoint, self._records, wish.include, wish.exclude, complete, self._marks)
        write_atomically(todo.snapshot.manifest, now.as_json(), wish.attributes)

    def _remove_stale_parts(self) -> None:
        snapshot = self._plan.snapshot
        for name in stale_parts(snapshot, self._plan.listing, self._records):
            os.unlink(os.path.join(snapshot.partial, name))
        with contextlib.suppress(OSError):
            os.rmdir(snapshot.partial)
