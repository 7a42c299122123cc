# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The weights of the release that the repository says, by ``stat``: no file is read and no hub is asked."""

from __future__ import annotations

import os
from collections.abc import Sequence

from ansible_collections.llmops.vllm.plugins.module_utils import manifest as manifests
from ansible_collections.llmops.vllm.plugins.module_utils.drift import Expected, Report
from ansible_collections.llmops.vllm.plugins.module_utils.drift_files import snapshot_of
from ansible_collections.llmops.vllm.plugins.module_utils.errors import PreconditionError
from ansible_collections.llmops.vllm.plugins.module_utils.shards import Plan, Wish, plan

KIND = "weights"
SHOWN = 3


def compare_weights(expected: Expected, wish: Wish, report: Report) -> None:
    """Compare the snapshot with the manifest that lies in it, as ``model_shards`` does before it does anything."""
    snapshot = snapshot_of(expected, expected.content)
    if not os.path.isdir(snapshot.path):
        if not any(drift.kind == KIND for drift in report.drifts):
            report.add(KIND, snapshot.path, "is missing")
        return
    known = manifests.load(snapshot.manifest)
    if known is None or (known.listing.repo, known.listing.commit) != (snapshot.repo, snapshot.commit):
        report.add(KIND, snapshot.path, "has no manifest that says what belongs to it")
        return
    try:
        found = plan(snapshot, known.listing, known, wish, known.endpoint)
    except PreconditionError as error:
        report.add(KIND, snapshot.path, f"cannot be compared: {error.message}")
        return
    if not found.nothing_to_do:
        report.add(KIND, snapshot.path, _difference(found))


def _difference(found: Plan) -> str:
    if found.tracker.changed:
        return f"differs in {_some(sorted(found.tracker.as_diff()['after']))}"
    if found.unsettled:
        return f"has files that were touched since they were verified: {_some([file.path for file in found.unsettled])}"
    return "was not left as a whole download leaves it"


def _some(names: Sequence[str]) -> str:
    rest = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" and {rest} more" if rest > 0 else "")
