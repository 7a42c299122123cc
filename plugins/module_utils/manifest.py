# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The manifest of a snapshot: what belongs to the commit, and how the verified files looked on the disk.

It is a statement about finished files only, replaced by rename after they are in place. Size, modification time, change
time and inode together show a later change without reading a byte.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from ansible_collections.llmops.vllm.plugins.module_utils import digests
from ansible_collections.llmops.vllm.plugins.module_utils.errors import LlmopsError
from ansible_collections.llmops.vllm.plugins.module_utils.repo_listing import Listing, RepoFile

SCHEMA = 1
_FILE_KEYS = ("path", "size", "algorithm", "digest")
_STAT_KEYS = ("mtime_ns", "ctime_ns", "inode")


@dataclass(frozen=True)
class FileRecord:
    """A verified file and its ``stat``; times are nanoseconds since the epoch."""

    file: RepoFile
    mtime_ns: int
    ctime_ns: int
    inode: int

    def matches(self, status: os.stat_result) -> bool:
        """Whether a file with ``status`` is the one that was verified, as far as ``stat`` can tell."""
        return (self.file.size, self.mtime_ns, self.ctime_ns, self.inode) == (
            status.st_size,
            status.st_mtime_ns,
            status.st_ctime_ns,
            status.st_ino,
        )


def record(file: RepoFile, status: os.stat_result) -> FileRecord:
    """Return the record of ``file``, just verified, that has ``status``."""
    return FileRecord(file, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)


@dataclass(frozen=True)
class Manifest:
    """What is known of a snapshot. ``complete``: all files of ``include`` and ``exclude`` are recorded.

    ``marks`` are by digest what the digest of a right file was after each of its chunks.
    """

    listing: Listing
    endpoint: str
    records: Mapping[str, FileRecord] = field(default_factory=dict)
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    complete: bool = False
    marks: Mapping[str, str] = field(default_factory=dict)

    def as_json(self) -> str:
        """Return the text of the manifest file; ``others`` are files of the commit that are not in the snapshot."""
        files, others = [], []
        for file in self.listing.files:
            found = self.records.get(file.path)
            item = asdict(file)
            if self.marks.get(file.digest):
                item["marks"] = self.marks[file.digest]
            if found is None:
                others.append(item)
            else:
                files.append({**item, **{key: getattr(found, key) for key in _STAT_KEYS}})
        data = {
            "schema": SCHEMA,
            "repo": self.listing.repo,
            "commit": self.listing.commit,
            "endpoint": self.endpoint,
            "complete": self.complete,
            "include": self.include,
            "exclude": self.exclude,
            "chunk_bytes": digests.CHUNK_BYTES,
            "files": files,
            "others": others,
        }
        return json.dumps(data, indent=1) + "\n"


def load(path: str) -> Manifest | None:
    """Return the manifest at ``path``, or None when there is none that can be used (the files are then hashed)."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        with open(descriptor, encoding="utf-8") as stream:
            return _parsed(json.load(stream))
    except (OSError, ValueError, TypeError, KeyError, AttributeError, LlmopsError):
        return None


def _parsed(data: Any) -> Manifest | None:
    if data["schema"] != SCHEMA:
        return None
    records, files = {}, []
    for item in data["files"]:
        file = _file(item)
        files.append(file)
        records[file.path] = FileRecord(file, **{key: int(item[key]) for key in _STAT_KEYS})
    files += [_file(item) for item in data["others"]]
    files.sort(key=lambda file: file.path)
    marks = {}
    if data.get("chunk_bytes") == digests.CHUNK_BYTES:
        items = [*data["files"], *data["others"]]
        marks = {str(item["digest"]): str(item["marks"]) for item in items if "marks" in item}
    listing = Listing(str(data["repo"]), str(data["commit"]), tuple(files))
    include, exclude = tuple(data["include"]), tuple(data["exclude"])
    return Manifest(listing, str(data["endpoint"]), records, include, exclude, bool(data["complete"]), marks)


def _file(item: Any) -> RepoFile:
    return RepoFile(**{key: item[key] for key in _FILE_KEYS})
