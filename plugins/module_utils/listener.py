# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who listens on a port, and whether that is a unit."""

from __future__ import annotations

from dataclasses import dataclass

from ansible_collections.llmops.vllm.plugins.module_utils.procfs import Process, ProcFs, Wanted
from ansible_collections.llmops.vllm.plugins.module_utils.users import user_name


@dataclass(frozen=True)
class Owner:
    """A process that holds the listening socket."""

    pid: int
    command: str
    cgroup: str
    ours: bool
    user: str = "?"


@dataclass(frozen=True)
class Listener:
    """Who listens on the port; ``unseen`` counts sockets whose process could not be found."""

    port: int
    owners: tuple[Owner, ...] = ()
    unseen: int = 0


def in_control_group(process: Process, control_group: str) -> bool:
    """Whether a process lies in a unit's control group: cgroup v1, hybrid and v2, also below a container's root."""
    if not control_group.strip("/"):
        return False
    return any(
        path == control_group or path.startswith(control_group + "/") or path.endswith(control_group)
        for path in process.cgroups.values()
    )


def look_at_port(procfs: ProcFs, port: int, control_group: str, main_pid: int) -> Listener:
    """Return who listens on ``port``; the main process is asked first, as it nearly always is the one."""
    sockets = {inode: str(inode) for inode in procfs.tcp_listeners(port)}
    if not sockets:
        return Listener(port)
    wanted = Wanted(sockets=sockets)
    main = procfs.process(main_pid) if main_pid else None
    processes = {main.pid: main} if main is not None else {}
    holders = procfs.holders(wanted, processes)
    if holders.unseen:
        processes = procfs.processes()
        holders = procfs.holders(wanted, processes)
    owners = []
    for pid in holders.by_pid:
        process = processes[pid]
        ours = in_control_group(process, control_group)
        cgroup = max(process.cgroups.values(), key=len, default="").rstrip("/")
        user = user_name(process.uids[0] if process.uids else None)
        owners.append(Owner(pid, process.command, cgroup, ours, user))
    return Listener(port, tuple(owners), len(holders.unseen))
