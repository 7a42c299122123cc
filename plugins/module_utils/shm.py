# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find what launches leave behind in shared memory and socket directories, and decide what may go.

A name only makes an object a candidate. It goes when it has the right owner and age, nobody's ``/proc`` entry shows it,
and the kernel itself confirms at the moment of removal that nobody has it open (see ``shm_usage``).
"""

from __future__ import annotations

import fnmatch
import os
import re
import stat
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Callable

from ansible_collections.llmops.vllm.plugins.module_utils.errors import InvalidInputError
from ansible_collections.llmops.vllm.plugins.module_utils.patterns import anchored

FILE = "file"
SOCKET = "socket"
SHM = "shm"
RPC = "rpc"
UUID4 = r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"

REMOVED = "removed"
KEPT = "kept"
UNUSED = "unused"
IN_USE = "in_use"
NOT_PROVABLE = "not_provable"


@dataclass(frozen=True)
class Family:
    """Names of one origin: matched as a whole, of one kind of file, in one of the two places."""

    name: str
    pattern: re.Pattern[str]
    kind: str = FILE
    place: str = SHM


def _family(name: str, pattern: str, kind: str = FILE, place: str = SHM) -> Family:
    return Family(name, re.compile(pattern), kind, place)


FAMILIES = (
    _family("python_shm", r"psm_[0-9a-f]{8}"),  # multiprocessing.shared_memory._make_filename
    _family("python_semaphore", r"sem\.mp-[a-z0-9_]{8}"),  # multiprocessing.synchronize.SemLock._make_name
    _family("loky_semaphore", r"sem\.loky-[0-9]+-[a-z0-9_]+"),
    _family("nccl", r"nccl-[A-Za-z0-9]{6}"),
    _family("vllm_offload", r"vllm_offload_.+\.mmap"),
    _family("vllm_encoder_cache", r"vllm_ec_.+\.mmap"),
    _family("vllm_distributed", r"vllm_dist_[0-9a-f]{32}.*"),
    _family("torch", r"torch_[0-9]+_[0-9]+(?:_[0-9]+)?"),
    _family("cuda_ipc", r"cuda\.shm\.[0-9a-f]+(?:\.[0-9a-f]+)*"),
    _family("openmp", r"__KMP_REGISTERED_LIB_[0-9]+(?:_[0-9]+)?"),
    _family("ray_plasma", r"plasma[A-Za-z0-9]{6}"),
    _family("zmq_socket", UUID4, SOCKET, RPC),
    _family("vllm_rendezvous", r"vllm_dist_[0-9a-f]{32}", FILE, RPC),
)
FAMILY_NAMES = tuple(family.name for family in FAMILIES)


def chosen_families(names: Sequence[str] | None, extra: Mapping[str, str]) -> tuple[Family, ...]:
    """Return the named families (all when ``names`` is None) and the extra ones; InvalidInputError for a bad one."""
    for name in names or ():
        if name not in FAMILY_NAMES:
            raise InvalidInputError(f"families: {name!r} is not one of {', '.join(FAMILY_NAMES)}.")
    added = []
    for name, pattern in extra.items():
        if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or name in FAMILY_NAMES:
            raise InvalidInputError(f"extra_families: {name!r} is taken or not made of a-z, 0-9 and _; choose another.")
        added.append(Family(name, anchored(f"extra_families.{name}", str(pattern))))
    return (*(one for one in FAMILIES if names is None or one.name in names), *added)


@dataclass(frozen=True)
class ShmObject:
    """One object as it was seen. ``changed_epoch`` is the later of its modification and change time."""

    directory: str
    name: str
    family: Family
    status: os.stat_result

    @property
    def key(self) -> tuple[int, int]:
        """Device and inode."""
        return self.status.st_dev, self.status.st_ino

    @property
    def changed_epoch(self) -> float:
        """Seconds since 1970 of the last change of content or attributes."""
        return max(self.status.st_mtime, self.status.st_ctime)

    @property
    def allocated_bytes(self) -> int:
        """What its removal gives back."""
        return self.status.st_blocks * 512

    def is_still(self, status: os.stat_result) -> bool:
        """Whether ``status`` is that of the same, unchanged object."""
        ours = self.status
        same = (ours.st_dev, ours.st_ino, ours.st_mode, ours.st_uid, ours.st_mtime_ns, ours.st_ctime_ns)
        return same == (
            status.st_dev,
            status.st_ino,
            status.st_mode,
            status.st_uid,
            status.st_mtime_ns,
            status.st_ctime_ns,
        )


@dataclass(frozen=True)
class Policy:
    """What may be removed. ``before_epoch`` keeps everything that changed later."""

    owner_uid: int | None = None
    before_epoch: float | None = None
    keep: tuple[str, ...] = ()

    def reason_to_keep(self, found: ShmObject) -> str:
        """Return why an object must stay whoever uses it, or an empty string."""
        status = found.status
        right_kind = stat.S_ISSOCK if found.family.kind == SOCKET else stat.S_ISREG
        checks = (
            (not right_kind(status.st_mode), "other_kind"),
            (self.owner_uid is not None and status.st_uid != self.owner_uid, "other_owner"),
            (any(fnmatch.fnmatchcase(found.name, pattern) for pattern in self.keep), "keep_list"),
            (self.before_epoch is not None and found.changed_epoch >= self.before_epoch, "too_young"),
            # Another name may be open somewhere under which no search by name would find it.
            (found.family.kind == FILE and status.st_nlink > 1, "several_names"),
        )
        return next((reason for failed, reason in checks if failed), "")


@dataclass(frozen=True)
class Verdict:
    """What becomes of an object, why, and which processes use it.

    ``kernel_agrees`` tells a removable object that the kernel reported unused from one that only ``/proc`` did.
    """

    found: ShmObject
    removable: bool
    reason: str
    used_by: tuple[int, ...] = ()
    kernel_agrees: bool = False


@dataclass(frozen=True)
class Usage:
    """Who uses what: processes by device and inode, names of bound sockets, and users that could not be looked at."""

    by_key: Mapping[tuple[int, int], frozenset[int]]
    socket_names: frozenset[str]
    unreadable_uids: frozenset[int]
    unreadable_count: int

    def may_be_hidden(self, found: ShmObject) -> bool:
        """Whether a process that may not be looked at could have the object open, by the object's permissions."""
        others = self.unreadable_uids - {0}
        return bool(others) if found.status.st_mode & 0o077 else found.status.st_uid in others


def scan(directory: str, families: Iterable[Family]) -> list[ShmObject]:
    """Return the objects of some families right in ``directory``, by name; none where there is no such directory.

    Raises InvalidInputError for what is no directory or may not be listed.
    """
    wanted = tuple(families)
    found = []
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                family = next((one for one in wanted if one.pattern.fullmatch(entry.name)), None)
                if family is None:
                    continue
                try:
                    found.append(ShmObject(directory, entry.name, family, entry.stat(follow_symlinks=False)))
                except FileNotFoundError:
                    continue
    except FileNotFoundError:
        return []
    except OSError as error:
        raise InvalidInputError(f"{directory} cannot be searched: {error.strerror}.") from error
    return sorted(found, key=lambda one: one.name)


def plan(
    objects: Sequence[ShmObject],
    policy: Policy,
    find_usage: Callable[[Sequence[ShmObject], Sequence[ShmObject]], Usage],
    ask_kernel: Callable[[ShmObject], str],
) -> list[Verdict]:
    """Judge every object, in the given order.

    ``ask_kernel`` returns UNUSED, IN_USE or NOT_PROVABLE for one. ``find_usage`` is called once, with the objects that
    the policy lets go, and those of them that the kernel did not call unused.
    """
    kept = [policy.reason_to_keep(found) for found in objects]
    answers = ["" if reason else ask_kernel(found) for found, reason in zip(objects, kept)]
    usage = find_usage(
        [found for found, reason in zip(objects, kept) if not reason],
        [found for found, answer in zip(objects, answers) if answer not in ("", UNUSED)],
    )
    return [
        Verdict(found, False, reason) if reason else _judge(found, usage, answer)
        for found, reason, answer in zip(objects, kept, answers)
    ]


def _judge(found: ShmObject, usage: Usage, answer: str) -> Verdict:
    users = tuple(sorted(usage.by_key.get(found.key, ())))
    if users or (found.family.kind == SOCKET and found.name in usage.socket_names):
        return Verdict(found, False, IN_USE, users)
    if answer == NOT_PROVABLE and not usage.may_be_hidden(found):
        return Verdict(found, True, UNUSED)
    return Verdict(found, answer == UNUSED, answer, kernel_agrees=answer == UNUSED)


def apply(verdicts: Iterable[Verdict], remove: Callable[[ShmObject, bool], str]) -> list[Verdict]:
    """Remove what is removable and return the verdicts as they came true.

    ``remove`` is given the object and whether the kernel must confirm; it returns UNUSED when it removed the object, or
    the reason why it did not.
    """
    done = []
    for verdict in verdicts:
        if verdict.removable:
            answer = remove(verdict.found, verdict.kernel_agrees)
            verdict = replace(verdict, removable=answer == UNUSED, reason=answer)  # noqa: PLW2901 - the same, come true
        done.append(verdict)
    return done
