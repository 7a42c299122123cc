# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""System V shared memory and semaphores that a launch left behind, from ``/proc/sysvipc`` (proc(5), sysvipc(7))."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ansible_collections.llmops.vllm.plugins.module_utils.procfs import Process, ProcFs, read_file
from ansible_collections.llmops.vllm.plugins.module_utils.shm import IN_USE, NOT_PROVABLE, UNUSED
from ansible_collections.llmops.vllm.plugins.module_utils.systemd import Runner
from ansible_collections.llmops.vllm.plugins.module_utils.teardown import protected_pids

SEGMENT = "sysv_shm"
SEMAPHORES = "sysv_sem"
# Whoever is not the owner may use it when one of these is set.
OTHERS_MAY = 0o066


@dataclass(frozen=True)
class SysvObject:
    """A segment or a set of semaphores; ``fields`` are the kernel's own columns."""

    family: str
    fields: Mapping[str, int]

    @property
    def number(self) -> int:
        """The identifier that ipcrm(1) takes."""
        return self.fields["shmid" if self.family == SEGMENT else "semid"]

    @property
    def changed_epoch(self) -> float:
        """Seconds since 1970 of the last attach, detach, operation or change."""
        return float(max(self.fields.get(name, 0) for name in ("atime", "dtime", "otime", "ctime")))

    @property
    def allocated_bytes(self) -> int:
        """Memory and swap in use."""
        return self.fields.get("rss", 0) + self.fields.get("swap", 0)


@dataclass(frozen=True)
class SysvVerdict:
    """What becomes of it, why, and which processes use it."""

    found: SysvObject
    removable: bool
    reason: str
    used_by: tuple[int, ...] = ()


def scan(proc: ProcFs) -> list[SysvObject]:
    """Return all System V segments and semaphores of this IPC namespace."""
    return [
        *(SysvObject(SEGMENT, row) for row in _table(f"{proc.root}/sysvipc/shm")),
        *(SysvObject(SEMAPHORES, row) for row in _table(f"{proc.root}/sysvipc/sem")),
    ]


def _table(path: str) -> list[dict[str, int]]:
    lines = read_file(path).decode("ascii", "replace").splitlines()
    names = lines[0].split() if lines else []
    rows = []
    for line in lines[1:]:
        words = line.split()
        if len(words) == len(names):
            rows.append({name: int(word, 8 if name == "perms" else 10) for name, word in zip(names, words)})
    return rows


def judge(
    found: SysvObject,
    owner_uid: int | None,
    before_epoch: float | None,
    processes: Mapping[int, Process],
    self_pid: int,
) -> SysvVerdict:
    """Decide about one object.

    A segment counts its attachments, but a process that made or used it last and lives may attach again. Semaphores
    count nobody: they go only when no process of their owner lives and nobody else may use them.
    """
    fields = found.fields
    if owner_uid is not None and fields["uid"] != owner_uid:
        return SysvVerdict(found, False, "other_owner")
    if before_epoch is not None and found.changed_epoch >= before_epoch:
        return SysvVerdict(found, False, "too_young")
    if found.family == SEGMENT:
        users = tuple(sorted({fields["cpid"], fields["lpid"]} & set(processes)))
        in_use = bool(fields["nattch"] or users)
        return SysvVerdict(found, not in_use, IN_USE if in_use else UNUSED, users)
    spared = protected_pids(processes, self_pid)
    living = any(one.pid not in spared and fields["uid"] in one.uids for one in processes.values())
    hidden = living or bool(fields["perms"] & OTHERS_MAY)
    return SysvVerdict(found, not hidden, NOT_PROVABLE if hidden else UNUSED)


def remove(found: SysvObject, proc: ProcFs, run: Runner) -> str:
    """Remove an object that has not changed since it was judged; UNUSED when it is removed, else why not."""
    if found not in scan(proc):
        return "changed"
    flag = "-m" if found.family == SEGMENT else "-s"
    done = run(["ipcrm", flag, str(found.number)])
    if done.returncode == 127:
        return "ipcrm_missing"
    return UNUSED if done.returncode == 0 else "not_permitted"
