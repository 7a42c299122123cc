# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Starting a process that is still there when the connection that asked for it is gone.

Under systemd it is a transient service, which has a name, a log and limits; elsewhere a session of its own. Either way
its job, secrets included, comes on its standard input.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from ansible_collections.llmops.vllm.plugins.module_utils.errors import LlmopsError
from ansible_collections.llmops.vllm.plugins.module_utils.systemd import Runner, show_unit
from ansible_collections.llmops.vllm.plugins.module_utils.worker_place import CODE, JOB, LOG, Workplace

START_TIMEOUT_SECONDS = 25.0
_POLL_SECONDS = 0.05
# Not in the way of an engine that serves: a small share of CPU and disk, and the first to go when memory is short.
_MANNERS = ("CPUWeight=20", "IOWeight=20", "Nice=10", "OOMScoreAdjust=500")
_WALLS = (
    "NoNewPrivileges=yes",
    "CapabilityBoundingSet=CAP_CHOWN CAP_DAC_OVERRIDE CAP_DAC_READ_SEARCH CAP_FOWNER CAP_FSETID",
    "RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK",
    "RestrictSUIDSGID=yes",
    "RestrictRealtime=yes",
    "RestrictNamespaces=yes",
    "LockPersonality=yes",
    "PrivateDevices=yes",
    "ProtectControlGroups=yes",
    "ProtectKernelModules=yes",
    "ProtectKernelTunables=yes",
    "SystemCallArchitectures=native",
)


@dataclass(frozen=True)
class Start:
    """What is to be started. ``writable`` is the one directory that it writes to, besides its workplace.

    ``apart`` allows file systems to be mounted anew for it; links between directories do not work across mounts.
    """

    place: Workplace
    job: bytes
    code: bytes
    description: str
    writable: str
    apart: bool = True

    @property
    def argv(self) -> list[str]:
        """The worker's command line: the module's interpreter, and nothing that the environment could change."""
        return [sys.executable, "-I", "-X", "utf8", self.place.path(CODE)]


class Launcher(Protocol):
    """A way to start a worker and to learn how it ended."""

    def unit(self, name: str) -> str:
        """Return the name of the service that does the work ``name``, empty when there is none."""

    def start(self, start: Start) -> None:
        """Return when the worker is at work. Raises ``LlmopsError`` when it does not come up."""

    def fate(self, name: str) -> str:
        """Return how a worker that left no result ended, as words to put in brackets."""

    def stop_command(self, name: str, pid: Any) -> str:
        """Return the command by which a person stops the worker."""


def find_launcher(runner: Runner, root: str = "/") -> Launcher:
    """Return the way for this host and user."""
    booted = os.path.isdir(os.path.join(root, "run/systemd/system"))
    if booted and os.geteuid() == 0 and shutil.which("systemd-run"):
        return SystemdLauncher(runner)
    return SessionLauncher()


class SystemdLauncher:
    """Transient services of the system's own systemd."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner

    def unit(self, name: str) -> str:
        """Return the name of the service."""
        return f"llmops-model-{name}.service"

    def start(self, start: Start) -> None:
        """Start the service and return when it has said that it is ready, so that the job can be removed."""
        place, unit = start.place, self.unit(start.place.name)
        self._runner(["systemctl", "reset-failed", "--", unit])
        try:
            place.write(CODE, start.code)
            place.write(JOB, start.job)
            done = self._runner(["systemd-run", "--quiet", f"--unit={unit}", *self._options(start), "--", *start.argv])
        finally:
            place.remove(JOB)
        if done.returncode:
            place.remove(CODE)
            reason = done.stderr.strip().replace("\n", " ") or f"exit status {done.returncode}"
            raise LlmopsError(
                f"systemd did not start {unit}: {reason} See journalctl -u {unit}; detach: false works without it."
            )

    def fate(self, name: str) -> str:
        """Return what systemd says about the end."""
        state = show_unit(self._runner, self.unit(name))
        return f"systemd says {state.result}" if state.result else "systemd no longer knows it"

    def stop_command(self, name: str, pid: Any) -> str:
        """Return systemctl's command."""
        del pid
        return f"systemctl stop {self.unit(name)}"

    def _options(self, start: Start) -> list[str]:
        properties = [
            f"Description={start.description}",
            "Type=notify",
            f"TimeoutStartSec={START_TIMEOUT_SECONDS:g}",
            f"StandardInput=file:{start.place.path(JOB)}",
            "StandardOutput=journal",
            "StandardError=journal",
            "SyslogIdentifier=llmops-model",
            *_MANNERS,
            *_WALLS,
        ]
        if start.apart:
            properties += ["ProtectSystem=strict", f"ReadWritePaths={_quoted(start.writable)}"]
            properties += [f"ReadWritePaths={_quoted(start.place.directory)}"]
        else:
            properties += ["ProtectSystem=full"]
        return [f"--property={each}" for each in properties]


class SessionLauncher:
    """A session of its own, for hosts without systemd and users who are not root."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic, sleep: Callable[[float], object] = time.sleep):
        self._monotonic = monotonic
        self._sleep = sleep

    def unit(self, name: str) -> str:
        """There is none."""
        del name
        return ""

    def start(self, start: Start) -> None:
        """Start the process and return when it holds its lock."""
        place = start.place
        place.write(CODE, start.code)
        place.remove(LOG)
        pid = self._spawn(start)
        deadline = self._monotonic() + START_TIMEOUT_SECONDS
        while not place.is_alive() and os.path.exists(place.path(CODE)):
            ended, _status = os.waitpid(pid, os.WNOHANG)
            if ended or self._monotonic() >= deadline:
                place.remove(CODE)
                raise LlmopsError(f"The process that downloads did not start; see {place.path(LOG)}.")
            self._sleep(_POLL_SECONDS)

    def fate(self, name: str) -> str:
        """Nobody knows."""
        del name
        return "it was killed or the host restarted"

    def stop_command(self, name: str, pid: Any) -> str:
        """Return kill's command."""
        del name
        return f"kill {pid}" if pid else ""

    def _spawn(self, start: Start) -> int:
        reader, writer = os.pipe()
        log = os.open(start.place.path(LOG), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        try:
            actions = [(os.POSIX_SPAWN_DUP2, reader, 0), (os.POSIX_SPAWN_DUP2, log, 1), (os.POSIX_SPAWN_DUP2, log, 2)]
            environment = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
            argv = start.argv
            pid = os.posix_spawn(  # pylint: disable=ansible-bad-function # it has to outlive the module
                argv[0], argv, environment, file_actions=actions, setsid=True
            )
        finally:
            os.close(reader)
            os.close(log)
        with open(writer, "wb") as stream:
            stream.write(start.job)
        return pid


def _quoted(path: str) -> str:
    """Return ``path`` as one word for systemd (systemd.syntax(7), "Quoting")."""
    escaped = path.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
