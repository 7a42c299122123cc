# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which run may change an instance of this host: one at a time, with a name, and never for ever.

A lock is a small file below ``/run``, so it does not survive a boot, as no run survives one of the host it works on. It
names the run, who started it where, and why. A lock is stale

- when its run is dead: the controller that asks has looked for the process itself (``dead_run_id``), or
- when its run has not shown itself for ``lease_seconds``. The steps of a run renew it, and so does the gate while it
  waits for a launch, however long that takes (``Lease``).

Whoever changes the instance under a lock asks ``held_by`` first: a run that stood still for so long that another one
took over must not go on.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Callable

from ansible_collections.llmops.vllm.plugins.module_utils.difference import DifferenceTracker
from ansible_collections.llmops.vllm.plugins.module_utils.durable import Step, carry_out
from ansible_collections.llmops.vllm.plugins.module_utils.errors import (
    InvalidInputError,
    PreconditionError,
    as_sentence,
)
from ansible_collections.llmops.vllm.plugins.module_utils.instance import check_instance_name

RUN_PATH = "/run/llmops-vllm"
MAX_LOCK_BYTES = 65536
RENEW_SECONDS = 15.0


@dataclass(frozen=True)
class Lock:
    """``since`` is a time for people (UTC), ``renewed_seconds`` one of this boot's monotonic clock.

    ``process`` is the run's process on its controller, as ``snapshot_lock.identity`` gives it.
    """

    run_id: str
    holder: str = ""
    why: str = ""
    since: str = ""
    renewed_seconds: float = 0.0
    process: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        """Return who holds it since when, as part of a sentence."""
        holder = self.holder or "somebody unknown"
        return f"{holder} since {self.since or 'an unknown time'} ({self.why or 'no reason given'})"

    def as_dict(self) -> dict[str, Any]:
        """Return the values for a module's result."""
        return asdict(self)


@dataclass(frozen=True)
class LockPlan:
    """What is, what shall be, and a sentence when a stale lock is taken over."""

    before: Lock | None
    after: Lock | None
    note: str = ""

    @property
    def changed(self) -> bool:
        """Whether the lock changes hands; renewing it is no change."""
        return (self.before and self.before.run_id) != (self.after and self.after.run_id)

    def differences(self) -> DifferenceTracker:
        """Return what changes."""
        tracker = DifferenceTracker()
        if self.changed:
            tracker.add("lock", self.before and str(self.before), self.after and str(self.after))
        return tracker


def read_lock(instance: str, run_path: str = RUN_PATH) -> Lock | None:
    """Return the lock of ``instance``, None when it is free; one that makes no sense has an unknown holder."""
    path = _path(instance, run_path)
    try:
        with open(path, "rb") as stream:
            content = stream.read(MAX_LOCK_BYTES)
    except FileNotFoundError:
        return None
    except OSError as exc:
        raise PreconditionError(f"The lock {path} cannot be read: {exc.strerror}.") from exc
    try:
        return Lock(**json.loads(content))
    except (ValueError, TypeError):
        return Lock("")


def held_by(run_id: str, instance: str, run_path: str = RUN_PATH) -> Lock:
    """Return the lock of ``instance``; raise PreconditionError unless the run ``run_id`` holds it."""
    lock = read_lock(instance, run_path)
    if lock is None or lock.run_id != run_id:
        raise PreconditionError(
            f"This run does not hold the lock of {instance} any more"
            f"{f': {lock} took it over' if lock else ', it was released'}. Nothing was changed; start the run again.",
            lock=lock and lock.as_dict(),
        )
    return lock


class DeployLock:
    """The lock of one instance. ``monotonic`` gives seconds of this boot."""

    def __init__(self, instance: str, monotonic: Callable[[], float], run_path: str = RUN_PATH) -> None:
        self._instance = check_instance_name(instance)
        self._monotonic = monotonic
        self._run_path = run_path

    def plan_held(self, wanted: Lock, lease_seconds: float, dead_run_id: str = "") -> LockPlan:
        """Plan that the run of ``wanted`` holds the lock. Raises PreconditionError that names a living holder."""
        if not wanted.run_id:
            raise InvalidInputError("run_id must not be empty.")
        before = read_lock(self._instance, self._run_path)
        after = replace(wanted, renewed_seconds=self._monotonic())
        if before is None:
            return LockPlan(before, after)
        if before.run_id == wanted.run_id:
            return LockPlan(before, replace(before, renewed_seconds=after.renewed_seconds))
        why_stale = self._why_stale(before, lease_seconds, dead_run_id)
        if not why_stale:
            raise PreconditionError(
                f"{self._instance} is locked by {before}. Wait for that run, or end it. When it is certain to be gone, "
                f"release its lock: ansible-playbook playbooks/unlock.yml -e unlock_instance={self._instance}",
                lock=before.as_dict(),
            )
        return LockPlan(before, after, f"Took over the lock of {before}: {why_stale}.")

    def plan_free(self, run_id: str, force: bool) -> LockPlan:
        """Plan that nobody holds the lock; with ``force`` also when another run than ``run_id`` does."""
        before = read_lock(self._instance, self._run_path)
        if before is not None and before.run_id != run_id and not force:
            raise PreconditionError(
                f"{self._instance} is locked by {before}, which is another run; it is not released.",
                lock=before.as_dict(),
            )
        return LockPlan(before, None)

    def renew(self, run_id: str) -> None:
        """Show that the run is still there. Raises PreconditionError when it does not hold the lock any more."""
        with self._alone():
            lock = held_by(run_id, self._instance, self._run_path)
            self._write(replace(lock, renewed_seconds=self._monotonic()))

    def apply(self, plan: LockPlan) -> None:
        """Do what was planned, unless the lock has changed hands meanwhile (PreconditionError)."""
        with self._alone():
            now = read_lock(self._instance, self._run_path)
            if (now and now.run_id) != (plan.before and plan.before.run_id):
                raise PreconditionError(
                    f"The lock of {self._instance} has just changed hands: {now or 'it is free'}. Run again.",
                    lock=now and now.as_dict(),
                )
            if plan.after is not None:
                self._write(plan.after)
            elif now is not None:
                carry_out([Step(_path(self._instance, self._run_path))])

    def _write(self, lock: Lock) -> None:
        path = _path(self._instance, self._run_path)
        carry_out([Step(path, content=json.dumps(lock.as_dict()).encode(), mode=0o644)])

    def _why_stale(self, lock: Lock, lease_seconds: float, dead_run_id: str) -> str:
        if dead_run_id and dead_run_id == lock.run_id:
            return "its process is gone from this controller"
        silent = self._monotonic() - lock.renewed_seconds
        return f"it has not shown itself for {silent:.0f} s" if silent >= lease_seconds else ""

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        with as_sentence(f"lock {self._instance}"):
            os.makedirs(self._run_path, mode=0o755, exist_ok=True)
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            descriptor = os.open(f"{_path(self._instance, self._run_path)}.guard", flags, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


class Lease:
    """The lock of a run that waits for something: ``keep`` is called all the time, and renews it now and then."""

    def __init__(self, lock: DeployLock, run_id: str, monotonic: Callable[[], float]) -> None:
        self._lock = lock
        self._run_id = run_id
        self._monotonic = monotonic
        self._renewed: float | None = None

    def keep(self) -> None:
        """Renew the lock where it is time. Raises PreconditionError when another run has taken it over."""
        now = self._monotonic()
        if self._renewed is None or now - self._renewed >= RENEW_SECONDS:
            self._lock.renew(self._run_id)
            self._renewed = now


def _path(instance: str, run_path: str) -> str:
    return os.path.join(run_path, f"{check_instance_name(instance)}.lock")
