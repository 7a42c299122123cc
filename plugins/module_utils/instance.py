# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""An instance as it lies on the disk: its releases, which one is current, and what their receipts say.

Layout: ``<root>/instances/<instance>/{current,previous}`` are links into ``<root>/releases/<instance>/<release-id>/``,
where ``release.json`` is the receipt of the launch that proved (or did not prove) the release. Next to ``current`` lies
the link ``proven``, the last release that proved itself, and, while a rollout is under way or after one was
interrupted, ``intent.json``: what it wanted. Nothing is written here.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import asdict, dataclass, field
from typing import Any

from ansible_collections.llmops.vllm.plugins.module_utils.errors import InvalidInputError
from ansible_collections.llmops.vllm.plugins.module_utils.systemd import UnitState

MAX_RECEIPT_BYTES = 16 * 1024 * 1024
PROVEN = "proven"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


@dataclass(frozen=True)
class Release:
    """One release; ``release_id`` is empty when a link leads out of the instance's releases."""

    release_id: str
    path: str
    receipt: dict[str, Any] | None
    linked_seconds: float = 0.0

    @property
    def proven(self) -> bool:
        """Whether the receipt says that a launch of this release has proved itself."""
        return self.receipt is not None and self.receipt.get("outcome") == PROVEN

    def as_dict(self) -> dict[str, Any]:
        """Return the values for a module's result."""
        return {"release_id": self.release_id, "path": self.path, "receipt": self.receipt}


@dataclass(frozen=True)
class Intent:
    """A rollout that has begun and has not ended: from which release (empty: none) to which.

    ``step`` is ``intended`` while ``current`` still is the old release, and ``switched`` afterwards; ``since`` is UTC.
    """

    run_id: str
    holder: str
    action: str
    source: str
    target: str
    step: str
    since: str

    def as_dict(self) -> dict[str, Any]:
        """Return the values for a module's result and for the file."""
        return asdict(self)


@dataclass(frozen=True)
class Instance:
    """What lies on the disk of one instance; ``warnings`` name what could not be understood."""

    name: str
    exists: bool
    current: Release | None
    previous: Release | None
    releases: tuple[Release, ...]
    warnings: tuple[str, ...] = field(default=())
    linked_proven: Release | None = None
    intent: Intent | None = None

    @property
    def last_proven(self) -> Release | None:
        """The release to go back to: the last one that proved itself, as far as its receipt still says so."""
        for release in (self.linked_proven, self.current):
            if release is not None and release.proven:
                return release
        return None


def check_instance_name(name: str) -> str:
    """Return ``name`` if it can be a directory's and a unit's instance name, otherwise raise ``InvalidInputError``."""
    if not _NAME.fullmatch(name):
        raise InvalidInputError(
            f"instance {name!r} must be 1 to 64 letters, digits, dots, dashes or underscores, "
            "and begin with a letter or digit."
        )
    return name


def _receipt(directory: str, warnings: list[str]) -> dict[str, Any] | None:
    path = os.path.join(directory, "release.json")
    try:
        with open(path, "rb") as handle:
            content = handle.read(MAX_RECEIPT_BYTES + 1)
        receipt = json.loads(content) if len(content) <= MAX_RECEIPT_BYTES else None
    except FileNotFoundError:
        return None
    except OSError as exc:
        warnings.append(f"{path} cannot be read: {exc.strerror}.")
        return None
    except ValueError:
        receipt = None
    if not isinstance(receipt, dict):
        warnings.append(f"{path} is no receipt: it must be one JSON object.")
        return None
    return receipt


def _linked(link: str, releases: str, warnings: list[str]) -> Release | None:
    try:
        target = os.readlink(link)
        linked = os.lstat(link).st_mtime
    except FileNotFoundError:
        return None
    except OSError as exc:
        warnings.append(f"{link} is not a readable link: {exc.strerror}.")
        return None
    path = os.path.normpath(os.path.join(os.path.dirname(link), target))
    release_id = os.path.basename(path) if os.path.dirname(path) == releases else ""
    if not release_id:
        warnings.append(f"{link} leads to {path}, which is no release below {releases}.")
    elif not os.path.isdir(path):
        warnings.append(f"{link} leads to release {release_id}, which is not there.")
    return Release(release_id, path, _receipt(path, warnings) if release_id else None, linked)


def _intent(path: str, warnings: list[str]) -> Intent | None:
    try:
        with open(path, "rb") as handle:
            return Intent(**json.loads(handle.read(MAX_RECEIPT_BYTES)))
    except FileNotFoundError:
        return None
    except OSError as exc:
        warnings.append(f"{path} cannot be read: {exc.strerror}.")
    except (ValueError, TypeError):
        warnings.append(f"{path} is no intent of a rollout; the next rollout replaces it.")
    return Intent("", "", "", "", "", "", "")


def _on_disk(releases: str, warnings: list[str]) -> tuple[Release, ...]:
    try:
        names = sorted(entry.name for entry in os.scandir(releases) if entry.is_dir(follow_symlinks=False))
    except OSError:
        return ()
    found = []
    for name in names:
        # A dot marks what is still being composed.
        if not name.startswith("."):
            path = os.path.join(releases, name)
            found.append(Release(name, path, _receipt(path, warnings)))
    return tuple(found)


def read_instance(root: str, name: str) -> Instance:
    """Read the instance ``name`` below ``root``; one that is not there has ``exists`` false, no exception."""
    root = os.path.normpath(root)
    directory = os.path.join(root, "instances", check_instance_name(name))
    releases = os.path.join(root, "releases", name)
    warnings: list[str] = []
    current = _linked(os.path.join(directory, "current"), releases, warnings)
    previous = _linked(os.path.join(directory, "previous"), releases, warnings)
    proven = _linked(os.path.join(directory, "proven"), releases, warnings)
    intent = _intent(os.path.join(directory, "intent.json"), warnings)
    found = _on_disk(releases, warnings)
    unique = tuple(dict.fromkeys(warnings))
    exists = os.path.isdir(directory) or bool(found)
    return Instance(name, exists, current, previous, found, unique, proven, intent)


def runs_current(instance: Instance, unit: UnitState, started_seconds: float) -> bool:
    """Whether the unit's launch can be one of the current release.

    It is when the receipt names this launch, or when the launch began (``started_seconds``, epoch) after the link was
    made: a restart by systemd or a reboot of a proven release is a launch of the same content.
    """
    current = instance.current
    if current is None or not unit.invocation_id:
        return False
    same = (current.receipt or {}).get("invocation_id") == unit.invocation_id
    return same or (started_seconds > 0 and started_seconds >= current.linked_seconds)


def is_proven(instance: Instance, unit: UnitState, started_seconds: float) -> bool:
    """Whether the current release is proven, and what serves now is a launch of it."""
    proven_release = instance.current is not None and instance.current.proven
    return proven_release and unit.serving and runs_current(instance, unit, started_seconds)
