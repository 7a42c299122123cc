# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The receipt of a launch: what was put in place, by whom, and what became of it.

``<release>/release.json`` is the receipt of the release's last launch and goes with the release. Every receipt is kept
besides as ``<root>/receipts/<instance>/<time>-<release>.json``, and as one line of the host's audit record.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ansible_collections.llmops.vllm.plugins.module_utils.audit import FILE_NAME, append_record
from ansible_collections.llmops.vllm.plugins.module_utils.durable import Step, carry_out, found
from ansible_collections.llmops.vllm.plugins.module_utils.errors import (
    InvalidInputError,
    PreconditionError,
    as_sentence,
)
from ansible_collections.llmops.vllm.plugins.module_utils.instance import read_instance
from ansible_collections.llmops.vllm.plugins.module_utils.release_switch import Place
from ansible_collections.llmops.vllm.plugins.module_utils.runtime_facts import read_runtime

AUDITED = ("time", "began", "action", "instance", "release", "replaced", "outcome", "run", "invocation_id")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")
_DRIVER = re.compile(r"Kernel Module(?:[ a-zA-Z0-9_]*?)\s+(\d+\.[\d.]+)")


@dataclass(frozen=True)
class ReceiptPlan:
    """The files to write, the old receipts to remove, and the record to append to ``audit``."""

    steps: tuple[Step, ...]
    superfluous: tuple[str, ...]
    audit: str
    record: dict[str, Any]

    @property
    def paths(self) -> list[str]:
        """The files that are written or removed."""
        return [step.path for step in self.steps] + list(self.superfluous)

    def apply(self) -> None:
        """Do it. Raises PreconditionError."""
        carry_out(self.steps)
        append_record(self.audit, self.record)
        carry_out([Step(path) for path in self.superfluous])


def plan_receipt(
    place: Place, receipt: dict[str, Any], *, replaces_own: bool, retain: int, proc: str = "/proc"
) -> ReceiptPlan:
    """Plan to keep ``receipt``, with what the host knows about the release added. Raises LlmopsError.

    With ``replaces_own`` it becomes the release's own ``release.json``. ``retain`` receipts of the instance stay (0:
    all). What was found out when the release was composed is taken from its last receipt, where this one does not say.
    """
    release, time = str(receipt.get("release", "")), str(receipt.get("time", ""))
    directory = place.release(release)
    if not _TIME.fullmatch(time):
        raise InvalidInputError(f"The receipt's time {time!r} is not like 2026-03-01T10:00:00Z.")
    if not os.path.isdir(directory):
        raise PreconditionError(f"Release {release} is not there: {directory} is no directory.")
    releases = read_instance(place.root, place.instance).releases
    last = next((one.receipt for one in releases if one.path == directory and one.receipt), {})
    evidence = {**(last.get("evidence") or {}), **_given(receipt.get("evidence")), **evidence_of(directory, proc)}
    text = json.dumps({**receipt, "evidence": evidence}, indent=2, sort_keys=True) + "\n"
    folder = os.path.join(place.root, "receipts", place.instance)
    kept = Step(os.path.join(folder, f"{time.replace(':', '')}-{release}.json"), content=text.encode(), mode=0o640)
    own = [Step(os.path.join(directory, "release.json"), content=text.encode(), mode=0o640)] if replaces_own else []
    return ReceiptPlan(
        steps=(kept, *own),
        superfluous=tuple(_superfluous(folder, os.path.basename(kept.path), retain)),
        audit=os.path.join(place.root, FILE_NAME),
        record={name: receipt.get(name) for name in AUDITED},
    )


def evidence_of(directory: str, proc: str = "/proc") -> dict[str, Any]:
    """Return what the host knows about the release in ``directory``: digests, versions and the driver."""
    with as_sentence("read a file of the release"):
        names = sorted(name for name in os.listdir(directory) if name.endswith("@.service"))
        unit = [found(os.path.join(directory, name)) for name in (*names, "instance.conf")]
        driver = found(os.path.join(proc, "driver/nvidia/version"))
    runtime = read_runtime(os.path.realpath(os.path.join(directory, "runtime")))
    manifest = _manifest_of(os.path.join(directory, "model"))
    match = _DRIVER.search(driver.decode("utf-8", "replace")) if isinstance(driver, bytes) else None
    return {
        "unit_sha256": _sha256(unit),
        "runtime_path": runtime.path,
        "runtime_lock_sha256": _sha256([_content(os.path.join(runtime.path, "runtime.lock"))]),
        "packages": dict(sorted(runtime.packages.items())),
        "driver": match.group(1) if match else "",
        "manifest_path": manifest,
        "manifest_sha256": _sha256([_content(manifest)]) if manifest else "",
    }


def _manifest_of(view: str) -> str:
    """Return the manifest of the snapshot that the weights of ``view`` are links into, empty when none is found."""
    for name in sorted(_names(view)):
        path = os.path.join(view, name)
        if os.path.islink(path):
            manifest = os.path.join(os.path.dirname(os.path.join(view, os.readlink(path))), ".llmops", "manifest.json")
            if os.path.exists(manifest):
                return os.path.normpath(manifest)
    return ""


def _superfluous(folder: str, new: str, retain: int) -> list[str]:
    others = sorted(name for name in _names(folder) if name.endswith(".json") and name != new)
    return [os.path.join(folder, name) for name in others[: max(0, len(others) + 1 - retain)]] if retain else []


def _names(directory: str) -> list[str]:
    try:
        return os.listdir(directory)
    except OSError:
        return []


def _content(path: str) -> bytes | None:
    try:
        with open(path, "rb") as stream:
            return stream.read()
    except OSError:
        return None


def _sha256(parts: Iterable[str | bytes | None]) -> str:
    """Return the digest of ``parts`` one after the other, empty when none is there."""
    there = [part for part in parts if isinstance(part, bytes)]
    return hashlib.sha256(b"".join(there)).hexdigest() if there else ""


def _given(evidence: Any) -> dict[str, Any]:
    return {name: value for name, value in (evidence or {}).items() if value not in (None, "", [], {})}
