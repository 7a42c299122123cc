# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One search for leftovers, from a module's parameters to its result; it removes only when told to."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Any, Callable

from ansible_collections.llmops.vllm.plugins.module_utils import shm, shm_sysv, shm_usage
from ansible_collections.llmops.vllm.plugins.module_utils.difference import DifferenceTracker
from ansible_collections.llmops.vllm.plugins.module_utils.errors import InvalidInputError
from ansible_collections.llmops.vllm.plugins.module_utils.procfs import ProcFs
from ansible_collections.llmops.vllm.plugins.module_utils.systemd import Runner, run_command
from ansible_collections.llmops.vllm.plugins.module_utils.users import find_uid, user_name

# What both modules are asked, besides the owner; documented in the fragment shm.
SHM_ARGUMENTS: dict[str, dict[str, Any]] = {
    "families": {"type": "list", "elements": "str", "choices": list(shm.FAMILY_NAMES)},
    "extra_families": {"type": "dict", "default": {}},
    "older_than_seconds": {"type": "float"},
    "older_than_epoch": {"type": "float"},
    "keep": {"type": "list", "elements": "str", "default": []},
    "shm_path": {"type": "path", "default": "/dev/shm"},  # noqa: S108 - where POSIX shared memory lies on Linux
    "rpc_base_path": {"type": "path", "default": ""},
    "sysv": {"type": "bool", "default": False},
}


@dataclass(frozen=True)
class ShmRequest:
    """The parameters of the modules, named as there."""

    owner: str | None = None
    families: Sequence[str] | None = None
    extra_families: Mapping[str, str] = field(default_factory=dict)
    older_than_seconds: float | None = None
    older_than_epoch: float | None = None
    keep: Sequence[str] = ()
    shm_path: str = "/dev/shm"  # noqa: S108 - the place where POSIX shared memory lies on Linux
    rpc_base_path: str = ""
    sysv: bool = False

    def before_epoch(self, now: float) -> float | None:
        """Return the time before which an object must have changed last; InvalidInputError for a negative age."""
        limits = []
        if self.older_than_seconds is not None:
            if self.older_than_seconds < 0:
                raise InvalidInputError("older_than_seconds is negative; give 0 or more.")
            limits.append(now - self.older_than_seconds)
        if self.older_than_epoch is not None:
            limits.append(self.older_than_epoch)
        return min(limits) if limits else None

    def places(self) -> list[tuple[str, str]]:
        """Return the directories to search with the place they are; InvalidInputError for a relative one."""
        places = [(self.shm_path, shm.SHM)]
        if self.rpc_base_path:
            places.append((self.rpc_base_path, shm.RPC))
        for path, _place in places:
            if not os.path.isabs(path):
                raise InvalidInputError(f"{path!r} is not an absolute path; give the directory's full path.")
        return places


class ShmRun:
    """A request on this host: ``plan`` is made at once, ``remove`` carries it out."""

    def __init__(
        self,
        request: ShmRequest,
        proc: ProcFs | None = None,
        run: Runner = run_command,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._proc = proc or ProcFs()
        self._run = run
        self._now = now()
        self._unreadable_count = 0
        self._user_name = lru_cache(maxsize=None)(user_name)
        before = request.before_epoch(self._now)
        owner_uid = find_uid(request.owner) if request.owner else None
        families = shm.chosen_families(request.families, request.extra_families)
        objects = [
            found
            for path, place in request.places()
            for found in shm.scan(path, [family for family in families if family.place == place])
        ]
        policy = shm.Policy(owner_uid, before, tuple(request.keep))
        with shm_usage.Kernel() as kernel:
            self._verdicts = shm.plan(objects, policy, self._find_usage, kernel.ask)
        self._sysv = self._plan_sysv(owner_uid, before) if request.sysv else []
        self._difference = self._differences()

    @property
    def diff(self) -> dict[str, Any]:
        """What is removed, as Ansible's diff."""
        return self._difference.as_diff()

    @property
    def changed(self) -> bool:
        """Whether the plan removes anything."""
        return self._difference.changed

    def remove(self) -> None:
        """Carry out the plan. What turns out to be used or changed after all is kept and says so."""
        with shm_usage.Kernel() as kernel:
            self._verdicts = shm.apply(self._verdicts, kernel.remove)
        self._sysv = [self._removed(one) if one.removable else one for one in self._sysv]
        self._difference = self._differences()

    def result(self, removable: str) -> dict[str, Any]:
        """Return the result; ``removable`` is the word for what the plan removes."""
        described = [
            *(self._describe(one, removable) for one in self._verdicts),
            *(self._describe_sysv(one, removable) for one in self._sysv),
        ]
        freed = sum(one["allocated_bytes"] for one in described if one["verdict"] == removable)
        return {"objects": described, "freed_bytes": freed, "unreadable_processes": self._unreadable_count}

    def _find_usage(self, candidates: Sequence[shm.ShmObject], unproven: Sequence[shm.ShmObject]) -> shm.Usage:
        usage = shm_usage.find_usage(self._proc, candidates, unproven)
        self._unreadable_count = usage.unreadable_count
        return usage

    def _plan_sysv(self, owner_uid: int | None, before: float | None) -> list[shm_sysv.SysvVerdict]:
        found = shm_sysv.scan(self._proc)
        judge = partial(
            shm_sysv.judge,
            owner_uid=owner_uid,
            before_epoch=before,
            processes=self._proc.processes() if found else {},
            self_pid=os.getpid(),
        )
        return [judge(one) for one in found]

    def _removed(self, verdict: shm_sysv.SysvVerdict) -> shm_sysv.SysvVerdict:
        answer = shm_sysv.remove(verdict.found, self._proc, self._run)
        return replace(verdict, removable=answer == shm.UNUSED, reason=answer)

    def _differences(self) -> DifferenceTracker:
        difference = DifferenceTracker()
        for one in self._verdicts:
            if one.removable:
                difference.add(f"{one.found.directory}/{one.found.name}", one.found.family.name, None)
        for other in self._sysv:
            if other.removable:
                difference.add(f"{other.found.family} {other.found.number}", other.found.family, None)
        return difference

    def _describe(self, one: shm.Verdict, removable: str) -> dict[str, Any]:
        found = one.found
        return {
            "name": found.name,
            "path": f"{found.directory}/{found.name}",
            "family": found.family.name,
            "apparent_bytes": found.status.st_size,
            "allocated_bytes": found.allocated_bytes,
            "owner": self._user_name(found.status.st_uid),
            "age_seconds": round(max(0.0, self._now - found.changed_epoch), 1),
            "verdict": removable if one.removable else shm.KEPT,
            "reason": one.reason,
            "used_by": list(one.used_by),
        }

    def _describe_sysv(self, one: shm_sysv.SysvVerdict, removable: str) -> dict[str, Any]:
        found = one.found
        return {
            "name": str(found.number),
            "path": "",
            "family": found.family,
            "apparent_bytes": found.fields.get("size", 0),
            "allocated_bytes": found.allocated_bytes,
            "owner": self._user_name(found.fields["uid"]),
            "age_seconds": round(max(0.0, self._now - found.changed_epoch), 1),
            "verdict": removable if one.removable else shm.KEPT,
            "reason": one.reason,
            "used_by": list(one.used_by),
        }
