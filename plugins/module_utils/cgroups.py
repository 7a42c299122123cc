# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which systemd unit or container a process belongs to, on cgroup v1, hybrid and v2 hosts."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from ansible_collections.llmops.vllm.plugins.module_utils.errors import InvalidInputError
from ansible_collections.llmops.vllm.plugins.module_utils.procfs import Process, ProcFs, parse_cgroups, read_file

UNIFIED = ""
SYSTEMD = "name=systemd"
# A session holds whatever a person started by hand; it is nobody's service.
NO_UNIT = re.compile(r"init\.scope|session-\w+\.scope")
UNIT_SUFFIXES = (".service", ".scope", ".socket", ".mount", ".swap")
USER_MANAGER = re.compile(r"user@\d+\.service")


@dataclass(frozen=True)
class Cgroup:
    """A control group: its path in each of some hierarchies (systemd keeps two of them alike on hybrid hosts)."""

    hierarchies: tuple[str, ...]
    path: str

    def holds(self, process: Process) -> bool:
        """Whether a process is in this group or below it."""
        # A loop, as this is asked of every process of the host.
        for name in self.hierarchies:  # noqa: SIM110
            if is_below(process.cgroups.get(name), self.path):
                return True
        return False


def is_below(path: str | None, top: str) -> bool:
    """Whether ``path`` is ``top`` or lies below it; ``/..`` right below it leads out (cgroup_namespaces(7))."""
    top = top.rstrip("/")
    if path is None or not path.startswith(top):
        return False
    rest = path[len(top) :]
    return not rest or (rest.startswith("/") and rest != "/.." and not rest.startswith("/../"))


class CgroupLayout:
    """How this host's control groups are mounted, and below which of them PID 1 manages its units.

    PID 1's own place tells, in each hierarchy by itself: in a container they can differ.
    """

    def __init__(self, proc: ProcFs) -> None:
        self._mounts = _cgroup_mounts(os.fsdecode(read_file(f"{proc.root}/self/mountinfo")))
        first = parse_cgroups(read_file(f"{proc.root}/1/cgroup"))
        self._roots = {hierarchy: path.removesuffix("/init.scope").rstrip("/") for hierarchy, path in first.items()}
        self._units: dict[tuple[tuple[str, str], ...], str | None] = {}

    def control_group(self, path: str) -> Cgroup:
        """Return the group systemd calls ``path`` (property ControlGroup)."""
        return Cgroup((SYSTEMD, UNIFIED), path)

    def resolve(self, path: str) -> Cgroup:
        """Return the group for a path as the operator writes it.

        Either below a cgroup mount point (``/sys/fs/cgroup/system.slice/x.service``) or as in ``/proc/PID/cgroup``.
        Raises InvalidInputError for a relative path and for a root, which would select the whole host.
        """
        normal = os.path.normpath(path)
        if not path.startswith("/") or ".." in path.split("/"):
            raise InvalidInputError(f"cgroup {path!r} is not an absolute path without '..'; give one.")
        found = Cgroup((SYSTEMD, UNIFIED), normal)
        below = [mount for mount in self._mounts if is_below(normal, mount[1])]
        if below:
            hierarchy, point, top = max(below, key=lambda mount: len(mount[1]))
            found = Cgroup((hierarchy,), os.path.normpath(f"{top}/{normal[len(point) :]}"))
        if found.path.strip("/") == "" or found.path in self._roots.values():
            raise InvalidInputError(
                f"cgroup {path!r} is the root of a hierarchy and holds the whole host; name one below."
            )
        return Cgroup(found.hierarchies, "/" + found.path.lstrip("/"))

    def unit_of(self, process: Process) -> str | None:
        """Return the unit or container that a process belongs to; None for a login session or no group at all."""
        key = tuple(process.cgroups.items())
        if key not in self._units:
            self._units[key] = self._find_unit(process.cgroups)
        return self._units[key]

    def _find_unit(self, cgroups: Mapping[str, str]) -> str | None:
        """Find the unit by its groups' paths.

        systemd nests a unit below slices only, so the first other component names the unit (systemd.slice(5)); a
        container or a user's service manager below it is another world, with units of the same names.
        """
        own = "/"
        for hierarchy in (SYSTEMD, UNIFIED):
            path = cgroups.get(hierarchy, "/")
            if not is_below(path, self._roots.get(hierarchy) or "/"):
                return path
            # Only one of them may be in systemd's hands: the other then stays at its root.
            own = max(own, self._managed(hierarchy, path), key=len)
        # systemd keeps a unit at one path in all hierarchies, or higher up in some. A container whose own systemd
        # shares the host's named hierarchy gives itself away by its controllers.
        for name, other in cgroups.items():
            managed = self._managed(name, other)
            if not is_below(managed, own) and not is_below(own, managed):
                return other
        parts = [part[1:] if part.startswith("_") else part for part in own.split("/") if part]
        for number, part in enumerate(parts):
            if part.endswith(".slice"):
                continue
            if NO_UNIT.fullmatch(part):
                return None
            if USER_MANAGER.fullmatch(part):
                services = [name for name in parts[number + 1 :] if name.endswith(".service")]
                return f"{part}/{services[-1]}" if services else None
            return part if part.endswith(UNIT_SUFFIXES) else "/".join(parts[number : number + 2])
        return None

    def _managed(self, hierarchy: str, path: str) -> str:
        """Return a path as the service manager sees it, whose own root differs from one hierarchy to the next."""
        root = self._roots.get(hierarchy, "")
        return (path[len(root) :] if is_below(path, root or "/") else path) or "/"

    def kill_file(self, group: Cgroup) -> str | None:
        """Return the path of ``cgroup.kill`` (cgroup v2, Linux 5.14) of a group, or None where there is none."""
        for hierarchy, point, top in self._mounts:
            if hierarchy == UNIFIED and UNIFIED in group.hierarchies and is_below(group.path, top):
                path = f"{point}/{group.path[len(top.rstrip('/')) :].lstrip('/')}/cgroup.kill"
                if os.path.exists(path):
                    return path
        return None


def _cgroup_mounts(mountinfo: str) -> list[tuple[str, str, str]]:
    """Return hierarchy, mount point and mounted root of every cgroup mount in ``/proc/self/mountinfo``."""
    found = []
    for line in mountinfo.splitlines():
        left, separator, right = line.partition(" - ")
        fields, kind = left.split(), right.split()
        if not separator or not kind or kind[0] not in ("cgroup", "cgroup2"):
            continue
        hierarchy = UNIFIED if kind[0] == "cgroup2" else _hierarchy(kind[-1])
        found.append((hierarchy, _unescaped(fields[4]), _unescaped(fields[3])))
    return found


def _hierarchy(options: str) -> str:
    names = options.split(",")
    named = [name for name in names if name.startswith("name=")]
    return (
        named[0] if named else ",".join(name for name in names if name not in ("rw", "ro", "xattr", "clone_children"))
    )


def _unescaped(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match.group(1), 8)), text)
