# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the hub's own client leaves beside downloaded files, so that it takes a snapshot for finished.

``.cache/huggingface/download/<path>.metadata`` holds three lines: commit, ETag (the LFS sha256, or git's blob id), and
the time at which both were true of the file (huggingface_hub, _local_folder.py). They are a courtesy to others: nothing
here relies on them, so they are not synced.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable

from ansible_collections.llmops.vllm.plugins.module_utils.directories import opened_parent_below
from ansible_collections.llmops.vllm.plugins.module_utils.repo_listing import Listing, RepoFile
from ansible_collections.llmops.vllm.plugins.module_utils.store import Attributes, Snapshot, make_directory

HF_DIRECTORY = ".cache"
_DOWNLOAD = f"{HF_DIRECTORY}/huggingface/download"
_LONGEST_NAME_BYTES = 255


def is_wanted(listing: Listing) -> bool:
    """Whether there is room for the metadata: some repositories hold files of that name themselves."""
    return not any(file.path.startswith(f"{HF_DIRECTORY}/") for file in listing.files)


def is_missing(snapshot: Snapshot, file: RepoFile) -> bool:
    """Whether ``file`` has no metadata and could have."""
    return _fits(file) and not os.path.lexists(snapshot.target(_metadata(file)))


def write(snapshot: Snapshot, file: RepoFile, attributes: Attributes, clock: Callable[[], float]) -> None:
    """Write the metadata of ``file``, just verified; ``clock`` gives seconds since the epoch."""
    if not _fits(file):
        return
    relative = _metadata(file)
    parts = relative.split("/")
    for depth in range(1, len(parts)):
        make_directory(snapshot.target("/".join(parts[:depth])), attributes)
    with opened_parent_below(snapshot.path, relative) as (parent, name):
        temporary = f".{name}"[:_LONGEST_NAME_BYTES]
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary, dir_fd=parent)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(temporary, flags, 0o600, dir_fd=parent)
        with open(descriptor, "w", encoding="ascii") as stream:
            stream.write(f"{snapshot.commit}\n{file.digest}\n{clock()}\n")
            attributes.apply(stream.fileno())
        os.replace(temporary, name, src_dir_fd=parent, dst_dir_fd=parent)


def _metadata(file: RepoFile) -> str:
    return f"{_DOWNLOAD}/{file.path}.metadata"


def _fits(file: RepoFile) -> bool:
    return len(os.path.basename(_metadata(file)).encode()) < _LONGEST_NAME_BYTES
