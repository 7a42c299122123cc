# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What systemd says about one unit, as typed values.

Only ``systemctl show`` is asked: its output is a stable interface (``man systemctl``, "meant to be machine-readable").
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import IO, Any, Callable

from ansible_collections.llmops.vllm.plugins.module_utils.errors import InvalidInputError

COMMAND_TIMEOUT_SECONDS = 30.0
NO_ANSWER = 124  # the exit status of a command that gave no answer in time, as that of timeout(1)
KILL_TIMEOUT_SECONDS = 1.0
_UNIT_NAME = re.compile(r"[A-Za-z0-9:_.\\@-]{1,250}\.(?:service|scope)")
_INVOCATION_ID = re.compile(r"[0-9a-f]{32}")

_PROPERTIES = (
    "LoadState",
    "ActiveState",
    "SubState",
    "Result",
    "InvocationID",
    "MainPID",
    "NRestarts",
    "ExecMainPID",
    "ExecMainCode",
    "ExecMainStatus",
    "ControlGroup",
    "UnitFileState",
    "StatusText",
    "ExecMainStartTimestampMonotonic",
    "ExecMainExitTimestampMonotonic",
    "ActiveEnterTimestampMonotonic",
)


@dataclass(frozen=True)
class CompletedRun:
    """The outcome of one command: exit status and both outputs as text."""

    returncode: int
    stdout: str
    stderr: str


Runner = Callable[[Sequence[str]], CompletedRun]


def run_command(argv: Sequence[str], timeout_seconds: float = COMMAND_TIMEOUT_SECONDS) -> CompletedRun:
    """Run ``argv`` without a shell; a command that is absent or hangs is an exit status (127, 124), no exception.

    One that even SIGKILL does not end, such as ``nvidia-smi`` waiting in a broken driver, is left to the kernel.
    """
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        try:
            process = subprocess.Popen(  # pylint: disable=ansible-bad-function # this library knows no AnsibleModule
                list(argv), stdin=subprocess.DEVNULL, stdout=output, stderr=errors, start_new_session=True
            )
        except OSError as exc:
            return CompletedRun(127, "", f"{argv[0]}: {exc.strerror}")
        try:
            status = process.wait(timeout_seconds)
        except subprocess.TimeoutExpired:
            _abandon(process)
            return CompletedRun(NO_ANSWER, "", f"{argv[0]} gave no answer within {timeout_seconds:g} s")
        return CompletedRun(status, _text(output), _text(errors))


def _abandon(process: subprocess.Popen[bytes]) -> None:
    # It was not waited for, so the number still is its own, and that of the group it leads.
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):
        process.wait(KILL_TIMEOUT_SECONDS)


def _text(stream: IO[bytes]) -> str:
    stream.seek(0)
    return stream.read().decode("utf-8", "replace")


@dataclass(frozen=True)
class UnitState:
    """One look at a unit. Empty strings and zeros stand for what systemd does not know.

    ``exec_main_start_seconds``, ``exec_main_exit_seconds`` and ``active_enter_seconds`` are CLOCK_MONOTONIC times, 0
    when it never happened.
    """

    name: str
    systemd: bool = False
    load_state: str = ""
    active_state: str = ""
    sub_state: str = ""
    result: str = ""
    invocation_id: str = ""
    main_pid: int = 0
    n_restarts: int = 0
    exec_main_pid: int = 0
    exec_main_code: int = 0
    exec_main_status: int = 0
    control_group: str = ""
    unit_file_state: str = ""
    status_text: str = ""
    exec_main_start_seconds: float = 0.0
    active_enter_seconds: float = 0.0
    exec_main_exit_seconds: float = 0.0

    @property
    def exists(self) -> bool:
        """Whether systemd knows the unit."""
        return self.systemd and self.load_state not in ("", "not-found")

    @property
    def serving(self) -> bool:
        """Whether the unit is active with a main process; it says nothing about answers."""
        return self.active_state == "active" and self.sub_state == "running" and self.main_pid > 0

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as plain values for a module's result."""
        return asdict(self)


def check_unit_name(name: str) -> str:
    """Return ``name`` if it is a full service or scope name, otherwise raise ``InvalidInputError``."""
    if not _UNIT_NAME.fullmatch(name) or name.startswith("-"):
        raise InvalidInputError(f"unit {name!r} is not the full name of a service, such as vllm@kimi.service.")
    return name


def check_invocation_id(invocation_id: str) -> str:
    """Return ``invocation_id`` if it is 32 hexadecimal digits, otherwise raise ``InvalidInputError``."""
    if not _INVOCATION_ID.fullmatch(invocation_id):
        raise InvalidInputError(
            f"invocation_id {invocation_id!r} is not a systemd invocation ID (32 lower-case hexadecimal digits, "
            "as `systemctl show -p InvocationID --value UNIT` prints it)."
        )
    return invocation_id


def _number(text: str) -> int:
    return int(text) if text.isdigit() and len(text) < 20 else 0


def _seconds(text: str) -> float:
    return _number(text) / 1_000_000


def parse_show(name: str, text: str) -> UnitState:
    """Parse the ``Key=value`` lines of ``systemctl show``; unknown keys are ignored, absent ones stay empty."""
    values: dict[str, str] = {}
    for line in text.splitlines():
        key, separator, value = line.partition("=")
        if separator:
            values[key] = value
    get = values.get
    return UnitState(
        name=name,
        systemd=True,
        load_state=get("LoadState", ""),
        active_state=get("ActiveState", ""),
        sub_state=get("SubState", ""),
        result=get("Result", ""),
        invocation_id=get("InvocationID", ""),
        main_pid=_number(get("MainPID", "")),
        n_restarts=_number(get("NRestarts", "")),
        exec_main_pid=_number(get("ExecMainPID", "")),
        exec_main_code=_number(get("ExecMainCode", "")),
        exec_main_status=_number(get("ExecMainStatus", "")),
        control_group=get("ControlGroup", ""),
        unit_file_state=get("UnitFileState", ""),
        status_text=get("StatusText", ""),
        exec_main_start_seconds=_seconds(get("ExecMainStartTimestampMonotonic", "")),
        active_enter_seconds=_seconds(get("ActiveEnterTimestampMonotonic", "")),
        exec_main_exit_seconds=_seconds(get("ExecMainExitTimestampMonotonic", "")),
    )


def show_unit(runner: Runner, name: str) -> UnitState:
    """Ask systemd about ``name``; a host without a running systemd gives ``systemd=False`` and empty values."""
    done = runner(["systemctl", "show", "--no-pager", "--property", ",".join(_PROPERTIES), "--", check_unit_name(name)])
    if done.returncode != 0:
        return UnitState(name=name)
    return parse_show(name, done.stdout)


def started_seconds(unit: UnitState, now_seconds: float, monotonic_seconds: float) -> float:
    """Return when the main process started, in seconds since the epoch; 0 when it never did.

    ``now_seconds`` and ``monotonic_seconds`` are the same moment on the two clocks.
    """
    return now_seconds - monotonic_seconds + unit.exec_main_start_seconds if unit.exec_main_start_seconds else 0.0
