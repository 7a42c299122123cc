# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the watch of a unit must know, and what its parts leave for one another.

The settings belong to the release. A note says how one launch ended: whoever found out writes it, and what systemd runs
after the end (``ExecStopPost``) acts on it.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from ansible_collections.llmops.vllm.plugins.module_utils.canary import Canary, parse_canary
from ansible_collections.llmops.vllm.plugins.module_utils.directories import replace_file
from ansible_collections.llmops.vllm.plugins.module_utils.errors import InvalidInputError
from ansible_collections.llmops.vllm.plugins.module_utils.systemd import check_unit_name
from ansible_collections.llmops.vllm.plugins.module_utils.worker_place import read_json

NOTES = "/run/llmops-vllm"
MAX_SETTINGS_BYTES = 1024 * 1024
RESTART = "restart"
STOP = "stop"
# Classes of causes that lie in the content of a release or in what is installed: the next start meets them again.
LASTING_CAUSES = frozenset(
    {
        "attention_backend_unsupported",
        "config_invalid",
        "dependency_mismatch",
        "driver_cuda_mismatch",
        "file_permission",
        "jit_toolchain_missing",
        "jit_toolchain_version",
        "kernel_arch_unsupported",
        "memlock_limit",
        "model_arch_unsupported",
        "quant_dtype_mismatch",
        "tokenizer_or_remote_code",
        "triton_kernel_resource",
        "weights_corrupt_or_missing",
        "weights_mismatch",
    }
)


@dataclass(frozen=True)
class WatchSettings:
    """How one unit is asked and judged; times in seconds.

    ``canary`` is the completion that makes a start a success. ``hang_seconds`` 0 judges no hang, and
    ``stall_timeout_seconds`` 0 no stall. ``hang_policy`` is ``restart`` or ``stop``.
    """

    unit: str
    port: int
    served_model: str
    canary: Canary
    host: str = "127.0.0.1"
    api_key_file: str = ""
    canary_timeout_seconds: float = 300.0
    stall_timeout_seconds: float = 900.0
    heartbeat_seconds: float = 30.0
    hang_seconds: float = 120.0
    hang_policy: str = RESTART


def read_settings(path: str) -> WatchSettings:
    """Read the settings from a JSON file. Raises ``InvalidInputError`` when it is not there or not whole."""
    try:
        with open(path, "rb") as handle:
            values = json.loads(handle.read(MAX_SETTINGS_BYTES))
        return _parse(values)
    except OSError as exc:
        raise InvalidInputError(f"{path} cannot be read: {exc.strerror}. Deploy the instance again.") from exc
    except (ValueError, TypeError, KeyError, InvalidInputError) as exc:
        raise InvalidInputError(
            f"{path} does not hold the watch's settings: {exc}. Deploy the instance again."
        ) from exc


def _parse(values: Any) -> WatchSettings:
    if not isinstance(values, dict):
        raise ValueError("no JSON object")
    known = {item.name: item for item in fields(WatchSettings)}
    given = {name: value for name, value in values.items() if name in known}
    given["canary"] = parse_canary(given["canary"], 1)
    for name, value in given.items():
        if known[name].type == "float":
            given[name] = float(value)
    settings = WatchSettings(**given)
    check_unit_name(settings.unit)
    if settings.hang_policy not in (RESTART, STOP):
        raise ValueError(f"hang_policy is {settings.hang_policy!r}")
    if settings.heartbeat_seconds <= 0:
        raise ValueError("heartbeat_seconds is not positive")
    return settings


@dataclass(frozen=True)
class Note:
    """How a launch ended: ``status`` is one line, ``lines`` the whole verdict as long as nobody has written it down.

    ``not_again`` is why the unit must not be started again by itself; empty when it may.
    """

    invocation_id: str
    status: str
    not_again: str = ""
    lines: list[str] = field(default_factory=list)


def why_not_again(cause_class: str, *, hung: bool, hang_policy: str) -> str:
    """Return why the unit must not be started again by itself after a launch with this verdict; empty: it may."""
    if cause_class in LASTING_CAUSES:
        return f"a restart does not cure it ({cause_class})"
    if hung and hang_policy == STOP:
        return "the policy for an engine that hangs is to stop it (vllm_service_hang_policy)"
    return ""


def write_note(unit: str, note: Note, directory: str = NOTES) -> None:
    """Leave a note, in a directory that only root can enter; without one the end is only explained anew."""
    with contextlib.suppress(OSError):
        with contextlib.suppress(FileExistsError):
            os.mkdir(directory, 0o700)
        replace_file(os.path.join(directory, f"{check_unit_name(unit)}.json"), json.dumps(asdict(note)).encode())


def read_note(unit: str, invocation_id: str, directory: str = NOTES) -> Note | None:
    """Return the note about this launch; ``None`` when there is none, or one about another launch."""
    values: Mapping[str, Any] = read_json(os.path.join(directory, f"{check_unit_name(unit)}.json"))
    if not invocation_id or values.get("invocation_id") != invocation_id:
        return None
    lines = values.get("lines")
    return Note(
        invocation_id=invocation_id,
        status=str(values.get("status", "")),
        not_again=str(values.get("not_again", "")),
        lines=[str(line) for line in lines] if isinstance(lines, list) else [],
    )
