# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a host has of what the collection takes for granted, by what it can do and not by which packages it has."""

from __future__ import annotations

import ctypes
import grp
import importlib.util
import os
import platform
import pwd
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Callable

from ansible_collections.llmops.vllm.plugins.module_utils.systemd import Runner

_NAMES: dict[str, Any] = {"type": "list", "elements": "str", "default": []}
# The options of a module that is given prerequisites.
OPTIONS: dict[str, dict[str, Any]] = {
    "libraries": _NAMES,
    "modules": _NAMES,
    "python3_modules": _NAMES,
    "account": {
        "type": "dict",
        "options": {
            "user": {"type": "str", "required": True},
            "group": {"type": "str", "required": True},
            "home": {"type": "path", "required": True},
            "shell": {"type": "path", "required": True},
        },
    },
}
_FIND = "import importlib.util as u, sys; print(*[m for m in sys.argv[1:] if u.find_spec(m) is None])"


@dataclass(frozen=True)
class Account:
    """The service's user: its name, primary group, home and shell."""

    user: str
    group: str
    home: str
    shell: str

    def differences(self) -> list[str]:
        """Return what this host has otherwise, as parts of a sentence; empty when the account is as it shall be."""
        try:
            gid = grp.getgrnam(self.group).gr_gid
        except KeyError:
            return [f"there is no group {self.group}"]
        try:
            entry = pwd.getpwnam(self.user)
        except KeyError:
            return [f"there is no user {self.user}"]
        found = []
        if entry.pw_gid != gid:
            found.append(f"the primary group of {self.user} is not {self.group}")
        if entry.pw_dir != self.home:
            found.append(f"the home of {self.user} is {entry.pw_dir}")
        if entry.pw_shell != self.shell:
            found.append(f"the shell of {self.user} is {entry.pw_shell}")
        return found


def service_manager(root: str = "/") -> str:
    """Return ``systemd`` where it is the init system (sd_booted(3)), else the name of process 1."""
    if os.path.isdir(os.path.join(root, "run/systemd/system")):
        return "systemd"
    try:
        with open(os.path.join(root, "proc/1/comm"), encoding="utf-8", errors="replace") as stream:
            return stream.read().strip()
    except OSError:
        return "not known"


def missing_libraries(names: Sequence[str], load: Callable[[str], Any] = ctypes.CDLL) -> list[str]:
    """Return those shared libraries that the dynamic loader does not find or load, in the order given."""
    missing = []
    for name in names:
        try:
            load(name)
        except OSError:
            missing.append(name)
    return missing


def missing_modules(names: Sequence[str]) -> list[str]:
    """Return those top-level Python modules that this interpreter does not find, in the order given."""
    return [name for name in names if importlib.util.find_spec(name) is None]


def missing_python3_modules(
    names: Sequence[str], runner: Runner, which: Callable[[str], str | None] = shutil.which
) -> list[str]:
    """Return those modules that the ``python3`` of the search path does not find; all, where there is none."""
    python3 = which("python3")
    if not names or python3 is None:
        return list(names)
    if os.path.realpath(python3) == os.path.realpath(sys.executable):
        return missing_modules(names)
    done = runner([python3, "-I", "-c", _FIND, *names])
    return done.stdout.split() if done.returncode == 0 else list(names)


def python_version() -> str:
    """Return the version of this interpreter."""
    return platform.python_version()


@dataclass(frozen=True)
class Prerequisites:
    """What the host has to have; the names are those of ``OPTIONS``."""

    libraries: Sequence[str] = ()
    modules: Sequence[str] = ()
    python3_modules: Sequence[str] = ()
    account: Account | None = None

    @classmethod
    def of(cls, params: Mapping[str, Any]) -> Prerequisites:
        """Return what a module's checked parameters ask for; ``params`` may hold others."""
        lists = (params["libraries"], params["modules"], params["python3_modules"])
        return cls(*lists, account=Account(**params["account"]) if params["account"] else None)

    def missing(self, run: Runner) -> list[str]:
        """Return the libraries and modules that are not found; ``run`` asks the ``python3`` that is on PATH."""
        return [
            *missing_libraries(self.libraries),
            *missing_modules(self.modules),
            *missing_python3_modules(self.python3_modules, run),
        ]

    def account_differences(self) -> list[str]:
        """Return in what the account differs, as parts of a sentence."""
        return self.account.differences() if self.account else []
