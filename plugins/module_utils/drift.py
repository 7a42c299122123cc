# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How a host differs from what its repository says about one instance.

Nothing is changed and the engine is asked nothing. What is compared is content, attributes, and who is older than whom;
a restart, a reboot and a rotated journal leave all of these alone, so they are no drift.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from ansible_collections.llmops.vllm.plugins.module_utils.deploy_lock import Lock
from ansible_collections.llmops.vllm.plugins.module_utils.instance import Instance, Release
from ansible_collections.llmops.vllm.plugins.module_utils.release import release_id

CONTENT_PARTS = frozenset({"model", "patches", "runtime", "files", "launcher"})
FINGERPRINT_DIGITS = 8
# What a deployment puts right without a restart; docs/drift.md says so as well.
PUT_RIGHT = frozenset({"host", "release", "files", "view", "runtime", "weights"})
SHOWN = 20


@dataclass(frozen=True)
class Drift:
    """One difference.

    ``kind`` is host, release, files, view, runtime, unit, process, listener, api_key or weights; ``where`` a path, a
    unit, a process or a port; ``what`` the rest of a sentence that begins with ``where``. It never holds a file's
    content.
    """

    kind: str
    where: str
    what: str

    def as_dict(self) -> dict[str, str]:
        """Return the difference for a module's result."""
        return asdict(self)


@dataclass(frozen=True)
class Installed:
    """A file outside the release that is a copy of a part of it."""

    path: str
    text: str
    mode: int


@dataclass(frozen=True)
class Expected:
    """What the repository says; ``content`` is that of the release, whose hash ``release_id`` is.

    ``unit_path`` holds the unit files and ``launcher`` is what the unit starts; ``store`` holds the snapshots and
    ``runtimes`` the runtimes; ``uid`` and ``gid`` own what the roles write (None: not compared). ``api_key_file`` is
    empty for an instance without a key.
    """

    instance: str
    root: str
    release_id: str
    content: Mapping[str, Any]
    unit: str
    port: int
    launcher: str = "/usr/local/lib/llmops-vllm-serve"
    unit_path: str = "/etc/systemd/system"
    store: str = "/srv/llm/store"
    runtimes: str = "/srv/llm/runtimes"
    api_key_file: str = ""
    uid: int | None = None
    gid: int | None = None

    def installed(self, content: Mapping[str, Any]) -> list[Installed]:
        """Return what a rollout installs from a release of ``content``: template units, settings, launcher."""
        files = content["files"]
        units = [(name, name) for name in files if name.endswith("@.service")]
        settings = [(f"{self.unit}.d/release.conf", "instance.conf")] if "instance.conf" in files else []
        found = [Installed(os.path.join(self.unit_path, to), files[name], 0o644) for to, name in units + settings]
        return [*found, Installed(self.launcher, content["launcher"], 0o755)]

    @property
    def started_from(self) -> tuple[str, str, str]:
        """The files outside the release that the unit is started from."""
        template = self.unit.partition("@")[0] + "@.service"
        return (
            os.path.join(self.unit_path, template),
            os.path.join(self.unit_path, f"{self.unit}.d/release.conf"),
            self.launcher,
        )


@dataclass
class Report:
    """What was found: differences, and notes about what is no difference but worth a word."""

    drifts: list[Drift] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, kind: str, where: str, what: str) -> None:
        """Add one difference."""
        self.drifts.append(Drift(kind, where, what))

    def add_some(self, kind: str, found: Sequence[tuple[str, str]], place: str) -> None:
        """Add differences of ``place``; of very many only the first, and how many there are."""
        for where, what in found[:SHOWN]:
            self.add(kind, where, what)
        if len(found) > SHOWN:
            self.add(kind, place, f"differs in {len(found) - SHOWN} further places")


def ignoring(drifts: Sequence[Drift], patterns: Sequence[str]) -> tuple[list[Drift], list[Drift]]:
    """Return the differences that count, and those that a pattern (of ``fnmatch``, for ``KIND WHERE``) excuses."""
    counted: list[Drift] = []
    ignored: list[Drift] = []
    for drift in drifts:
        excused = any(fnmatchcase(f"{drift.kind} {drift.where}", pattern) for pattern in patterns)
        (ignored if excused else counted).append(drift)
    return counted, ignored


def is_settled(expected: Expected, instance: Instance, proven: bool, report: Report) -> bool:
    """Whether a deployment has nothing to do: the release is current, ``proven`` and serves, and nothing needs mending.

    A deployment mends an ignored difference all the same, so it counts here.
    """
    current = instance.current is not None and instance.current.release_id == expected.release_id
    untouched = all(drift.kind not in PUT_RIGHT for drift in report.drifts)
    return proven and current and instance.intent is None and untouched


def differing_parts(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Return which parts of two contents differ, such as ``model`` and ``files/serve.yaml``."""
    found = []
    for name in sorted({*before, *after}):
        old, new = before.get(name), after.get(name)
        if name == "files" and isinstance(old, Mapping) and isinstance(new, Mapping):
            found += [f"files/{file}" for file in sorted({*old, *new}) if old.get(file) != new.get(file)]
        elif old != new:
            found.append(name)
    return found


def compare_intent(instance: Instance, lock: Lock | None, report: Report) -> None:
    """Tell of a rollout that is under way, in a note, or that was interrupted."""
    if lock is not None:
        report.notes.append(f"A run is at work on {instance.name}: {lock}.")
    elif instance.intent is not None:
        goal = instance.intent.target or "another release"
        report.add("release", instance.name, f"was left by a rollout to {goal} that was interrupted")


def compare_release(expected: Expected, current: Release | None, report: Report) -> Mapping[str, Any]:
    """Compare the current release with the repository's; return the content that its files have to have.

    That is the repository's for the release that it names. For another one it is that of the receipt, which proves
    itself: its hash is the release's id. It is empty when nothing is known.
    """
    link = os.path.join(expected.root, "instances", expected.instance, "current")
    if current is None or not current.release_id:
        report.add("release", link, f"leads to no release; the repository says {expected.release_id}")
        return {}
    receipt = current.receipt or {}
    given = receipt.get("content")
    known = given if isinstance(given, dict) and release_id(given) == current.release_id else {}
    comparable = known if known.keys() >= CONTENT_PARTS else {}
    if not current.proven:
        report.add("release", current.path, "has no receipt that says that it has proved itself")
    elif given is not None and not known:
        report.add(
            "release", os.path.join(current.path, "release.json"), "does not describe the release that it lies in"
        )
    if current.release_id == expected.release_id:
        return expected.content
    parts = ", ".join(differing_parts(known, expected.content)) if known else "it is not known in what"
    what = f"leads to {current.release_id}; the repository says {expected.release_id} (differs in: {parts})"
    report.add("release", link, what)
    return comparable


def fingerprint(instance: str, api_key: str) -> str:
    """Return the part of a hash by which a release knows its API key (docs/adr/0011-secrets.md)."""
    return hashlib.sha256((instance + api_key).encode("utf-8")).hexdigest()[:FINGERPRINT_DIGITS]


def compare_api_key(expected: Expected, content: Mapping[str, Any], report: Report) -> None:
    """Compare the API key's file with the release's fingerprint of it; the key itself goes nowhere."""
    wanted, path = content.get("api_key_fingerprint"), expected.api_key_file
    if not wanted or not path:
        return
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), encoding="utf-8") as stream:
            status, key = os.fstat(stream.fileno()), stream.read(65536)
    except FileNotFoundError:
        report.add("api_key", path, "is missing")
        return
    except (OSError, ValueError):
        report.add("api_key", path, "is no readable file")
        return
    if fingerprint(expected.instance, key) != wanted:
        report.add("api_key", path, "holds another key than the release was made with")
    if stat.S_IMODE(status.st_mode) & 0o077:
        report.add("api_key", path, f"has mode {stat.S_IMODE(status.st_mode):04o}: others than its owner can use it")
    if expected.uid is not None and status.st_uid != expected.uid:
        report.add("api_key", path, f"belongs to user {status.st_uid}")
