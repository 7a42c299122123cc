# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is wrong with a snapshot, said without changing anything."""

from __future__ import annotations

import os

from ansible_collections.llmops.vllm.plugins.module_utils.errors import LlmopsError
from ansible_collections.llmops.vllm.plugins.module_utils.hf_metadata import HF_DIRECTORY
from ansible_collections.llmops.vllm.plugins.module_utils.repo_listing import RESERVED_DIRECTORY, Listing
from ansible_collections.llmops.vllm.plugins.module_utils.shards import Plan
from ansible_collections.llmops.vllm.plugins.module_utils.store import Snapshot, directory_status

_SHOWN = 10


def problems_of(todo: Plan) -> list[str]:
    """Return a phrase for each thing of a settled plan that is not as it should be, and for files nobody asked for."""
    difference = todo.tracker.as_diff()
    problems = []
    for name, before in difference["before"].items():
        after = str(difference["after"].get(name))
        problems.append(f"{name}: {before}" if after.startswith("present") else f"{name}: {before}, not {after}")
    problems += [f"{path}: does not belong to the commit" for path in unknown_files(todo.snapshot, todo.listing)]
    return problems


def refusal(todo: Plan, problems: list[str]) -> LlmopsError:
    """Return the failure of a snapshot with ``problems``."""
    shown = "; ".join(problems[:_SHOWN])
    more = f"; and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
    return LlmopsError(
        f"{todo.snapshot.path} is not as it should be: {shown}{more}. state=present with verify=full repairs what "
        "belongs to the commit; remove what does not.",
        wrong=problems,
        path=todo.snapshot.path,
        commit=todo.snapshot.commit,
    )


def unknown_files(snapshot: Snapshot, listing: Listing) -> list[str]:
    """Return the files in the snapshot that are not the commit's, its own records and those of hf left out."""
    if directory_status(snapshot.path) is None:
        return []
    known = {file.path for file in listing.files}
    found = []
    for folder, subfolders, names in os.walk(snapshot.path):
        if folder == snapshot.path:
            subfolders[:] = [name for name in subfolders if name not in (RESERVED_DIRECTORY, HF_DIRECTORY)]
        below = os.path.relpath(folder, snapshot.path)
        found += [os.path.normpath(os.path.join(below, name)) for name in names]
    return sorted(path for path in found if path not in known)
