# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The steps that take an instance from one release to another, each durable before the next begins.

Whatever ends a rollout, ``intent.json`` says what it wanted and the link ``proven`` leads to the release to go back to:

=============  ==========================================================================================
``intended``   ``proven`` leads to the present release if that is proven; the intent is written. Nothing else moved.
``switched``   the intent says so, ``current`` leads to the release, its unit files are installed.
``proven``     ``proven`` leads to the release, ``previous`` to the one before; the intent goes.
``settled``    the intent goes; nothing else moves. For a rollout that has ended in another way.
=============  ==========================================================================================

A file below ``/run`` says that the rollout began in this boot. Without it, whatever starts the unit puts the proven
release back first (``llmops-vllm-guard@.service``).
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, replace

from ansible_collections.llmops.vllm.plugins.module_utils.difference import DifferenceTracker
from ansible_collections.llmops.vllm.plugins.module_utils.durable import Step, carry_out, needed, record
from ansible_collections.llmops.vllm.plugins.module_utils.errors import (
    InvalidInputError,
    PreconditionError,
    as_sentence,
)
from ansible_collections.llmops.vllm.plugins.module_utils.instance import Instance, Intent, check_instance_name

STATES = ("intended", "switched", "proven", "settled")


@dataclass(frozen=True)
class Place:
    """Where an instance lies: ``root`` as in ``instance.py``, ``run_path`` on a file system that a boot empties."""

    instance: str
    root: str
    run_path: str
    unit_path: str = "/etc/systemd/system"

    def __post_init__(self) -> None:
        """Refuse a name that would lead elsewhere."""
        check_instance_name(self.instance)

    def link(self, name: str) -> str:
        """Return the path of a link or file of the instance."""
        return os.path.join(self.root, "instances", self.instance, name)

    def release(self, release_id: str) -> str:
        """Return the directory of a release; InvalidInputError for what is no name of one."""
        if not release_id or release_id.startswith(".") or "/" in release_id or "\0" in release_id:
            raise InvalidInputError(f"release {release_id!r} is not the identifier of a release.")
        return os.path.join(self.root, "releases", self.instance, release_id)

    @property
    def mark(self) -> str:
        """The file that says that the rollout began in this boot."""
        return os.path.join(self.run_path, f"{self.instance}.rollout")


@dataclass(frozen=True)
class SwitchPlan:
    """What is still to be done, in order."""

    steps: tuple[Step, ...]

    @property
    def changed(self) -> bool:
        """Whether anything is to be done."""
        return bool(self.steps)

    def differences(self) -> DifferenceTracker:
        """Return what changes."""
        tracker = DifferenceTracker()
        record(self.steps, tracker)
        return tracker

    def apply(self) -> None:
        """Do it. Raises PreconditionError; what was done until then is whole, and a further run does the rest."""
        carry_out(self.steps)


def plan_switch(place: Place, now: Instance, state: str, intent: Intent) -> SwitchPlan:
    """Plan the step ``state`` towards ``intent.target``. Raises LlmopsError when it cannot be taken."""
    if state == "settled":
        return SwitchPlan(tuple(needed(_end(place))))
    target = place.release(intent.target)
    if not os.path.isdir(target):
        raise PreconditionError(
            f"Release {intent.target} of {place.instance} is not there: {target}; compose it first."
        )
    steps = {"intended": _intended, "switched": _switched, "proven": _proven}[state](place, now, intent)
    return SwitchPlan(tuple(needed(steps)))


def _intended(place: Place, now: Instance, intent: Intent) -> list[Step]:
    # What a former, interrupted rollout came from is still what this one would go back to.
    source = now.last_proven
    intent = replace(intent, source=source.release_id if source else "", step="intended")
    return [
        Step(place.mark, content=f"{intent.run_id}\n".encode()),
        Step(place.link("proven"), link=source.path if source else None),
        _written(place, now, intent),
    ]


def _switched(place: Place, now: Instance, intent: Intent) -> list[Step]:
    source = now.intent.source if now.intent else ""
    target = place.release(intent.target)
    return [
        Step(place.mark, content=f"{intent.run_id}\n".encode()),
        _written(place, now, replace(intent, source=source, step="switched")),
        Step(place.link("current"), link=target),
        *unit_files(place, target),
    ]


def unit_files(place: Place, release: str) -> list[Step]:
    """Return the installation of all template units of a release, and of the instance's settings.

    Raises PreconditionError when a file of the release cannot be read.
    """
    with as_sentence("list the files of the release"):
        names = sorted({"vllm@.service", *(name for name in os.listdir(release) if name.endswith("@.service"))})
    settings = os.path.join(place.unit_path, f"vllm@{place.instance}.service.d", "release.conf")
    return [
        *(Step(os.path.join(place.unit_path, name), content=_read(os.path.join(release, name))) for name in names),
        Step(settings, content=_read(os.path.join(release, "instance.conf"))),
    ]


def _proven(place: Place, now: Instance, intent: Intent) -> list[Step]:
    before = now.linked_proven
    steps = [Step(place.link("proven"), link=place.release(intent.target))]
    if before is not None and before.proven and before.release_id != intent.target:
        steps.append(Step(place.link("previous"), link=before.path))
    return steps + _end(place)


def _end(place: Place) -> list[Step]:
    return [Step(place.link("intent.json")), Step(place.mark)]


def _written(place: Place, now: Instance, intent: Intent) -> Step:
    if now.intent is not None and replace(now.intent, since=intent.since) == intent:
        intent = now.intent
    text = json.dumps(intent.as_dict(), indent=2, sort_keys=True) + "\n"
    return Step(place.link("intent.json"), content=text.encode(), mode=0o640)


def _read(path: str) -> bytes:
    with as_sentence("read a file of the release"), open(path, "rb") as stream:
        return stream.read()
