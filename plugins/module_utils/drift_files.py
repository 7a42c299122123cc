# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Files of a release, and copies of them, that were changed by hand."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from itertools import zip_longest
from typing import Any

from ansible_collections.llmops.vllm.plugins.module_utils.drift import Expected, Report
from ansible_collections.llmops.vllm.plugins.module_utils.errors import LlmopsError, PreconditionError
from ansible_collections.llmops.vllm.plugins.module_utils.file_tree import KINDS, Entry, Step, plan_tree
from ansible_collections.llmops.vllm.plugins.module_utils.patch_set import Patch, apply_patches
from ansible_collections.llmops.vllm.plugins.module_utils.store import Snapshot
from ansible_collections.llmops.vllm.plugins.module_utils.view import (
    Permissions,
    ViewPlan,
    plan_view,
    read_source,
    snapshot_sources,
)

# The modes that the role vllm_service gives to what it writes into a release.
FILE_MODE = 0o640
DIRECTORY_MODE = 0o750
SHOWN_LINES = 5


def compare_files(expected: Expected, release: str, content: Mapping[str, Any], report: Report) -> None:
    """Compare the release at ``release``, and what is installed from it, with its ``content``."""
    compare_entries("files", _entries(expected, release, content), report)


def compare_entries(kind: str, entries: Iterable[Entry], report: Report) -> None:
    """Compare what is on the disk with ``entries``, each for itself."""
    for entry in entries:
        try:
            steps = plan_tree([entry], predict=True).steps
        except PreconditionError:
            report.add(kind, entry.path, f"is not {KINDS[entry.state]}")
            continue
        for step in steps:
            report.add(kind, entry.path, describe(step))


def _entries(expected: Expected, release: str, content: Mapping[str, Any]) -> Iterator[Entry]:
    uid, gid = expected.uid, expected.gid
    yield Entry(release, "directory", mode=DIRECTORY_MODE, uid=uid, gid=gid)
    for name, text in content["files"].items():
        data = text.encode("utf-8", "surrogateescape")
        yield Entry(os.path.join(release, name), "file", content=data, mode=FILE_MODE, uid=uid, gid=gid)
    runtime = os.path.join(expected.runtimes, content["runtime"])
    yield Entry(os.path.join(release, "runtime"), "link", target=runtime)
    for item in expected.installed(content):
        data = item.text.encode("utf-8", "surrogateescape")
        yield Entry(item.path, "file", content=data, mode=item.mode, uid=uid)


def describe(step: Step) -> str:
    """Return in what a thing differs; of a file only which lines, as they can hold what nobody else may read."""
    if step.found is None:
        return "is missing"
    found = []
    if step.writes and step.entry.state == "link":
        found.append(f"leads to {step.found.target}, not to {step.entry.target}")
    elif step.writes:
        found.append(_lines(step.found.content, step.entry.content))
    found += [f"has {name} {old}, not {new}" for name, (old, new) in step.attributes().items()]
    return " and ".join(found)


def _lines(found: bytes | None, wanted: bytes) -> str:
    if found is None:
        return "is much larger than it was deployed"
    pairs = zip_longest(found.splitlines(), wanted.splitlines())
    numbers = [str(number) for number, (old, new) in enumerate(pairs, 1) if old != new]
    if not numbers:
        return "differs in its line ends"
    if len(numbers) > SHOWN_LINES:
        return f"differs from line {numbers[0]} on"
    return f"differs in line{'s' * (len(numbers) > 1)} {', '.join(numbers)}"


def compare_view(expected: Expected, release: str, content: Mapping[str, Any], report: Report) -> None:
    """Compose the view of the model once more, in memory, and compare the one in the release with it."""
    snapshot = snapshot_of(expected, content).path
    view = os.path.join(release, "model")
    if not os.path.isdir(snapshot):
        report.add("weights", snapshot, "is missing")
        return
    try:
        sources = snapshot_sources(snapshot)
        patches = [Patch.from_parameters(patch) for patch in content["patches"]]
        outcome = apply_patches(patches, lambda path: read_source(sources, path))
        permissions = Permissions(FILE_MODE, DIRECTORY_MODE, expected.uid, expected.gid)
        plan = plan_view(snapshot, view, sources, outcome.contents, permissions)
    except LlmopsError as error:
        report.add("view", view, f"cannot be compared: {error.message}")
        return
    if plan.present is None:
        report.add("view", view, "is missing")
        return
    report.add_some("view", [_difference(plan, path) for path in plan.differing()], view)


def snapshot_of(expected: Expected, content: Mapping[str, Any]) -> Snapshot:
    """Return the place of the model that ``content`` names. Raises InvalidInputError for names that are none."""
    return Snapshot(expected.store, content["model"]["repo"], content["model"]["commit"])


def _difference(plan: ViewPlan, path: str) -> tuple[str, str]:
    where = os.path.normpath(os.path.join(plan.view, path))
    wanted, found = plan.entries.get(path), (plan.present or {}).get(path)
    if found is None:
        return where, "is missing"
    if wanted is None:
        return where, "is not of the model"
    if wanted.kind != found.kind:
        return where, f"is a {found.kind}, not a {wanted.kind}"
    if wanted.value != found.value:
        return where, "leads elsewhere" if wanted.kind == "link" else "is not what the model and its patches make"
    return where, "has another owner or mode"
