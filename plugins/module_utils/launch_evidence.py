# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Everything that a host has kept of one launch: its journal, its last words, and what its control group counted.

And what that shows, once the last lines have come.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, Callable

from ansible_collections.llmops.vllm.plugins.module_utils.diagnosis import Diagnosis, diagnose
from ansible_collections.llmops.vllm.plugins.module_utils.diagnosis_lines import lines_of_entries
from ansible_collections.llmops.vllm.plugins.module_utils.errors import PreconditionError
from ansible_collections.llmops.vllm.plugins.module_utils.journal import MAIN_PROCESS_EXITED, Entry, Journal
from ansible_collections.llmops.vllm.plugins.module_utils.systemd import (
    Runner,
    UnitState,
    check_unit_name,
    show_unit,
)

LAST_ENTRIES = 50
SETTLE_SECONDS = 0.4
SETTLE_LOOKS = 2
CGROUP_MOUNTS = ("/sys/fs/cgroup", "/sys/fs/cgroup/unified")
_OOM_KILLS = re.compile(r"^oom_kill ([1-9]\d*)$", re.M)
_INVOCATION = re.compile(r"[0-9a-f]{32}")


def find_last_launch(runner: Runner, unit: str) -> str:
    """Return the invocation ID of the last launch of ``unit``, running or ended.

    systemd forgets the ID of a unit that it has unloaded; the journal then still knows it. Raises
    ``PreconditionError`` when there is none, or no systemd.
    """
    state = show_unit(runner, unit)
    if not state.systemd:
        raise PreconditionError("systemd does not answer on this host; give path or text of a saved log instead.")
    found = state.invocation_id or _last_in_journal(runner, unit)
    if not found:
        raise PreconditionError(f"no launch of {unit} is known to systemd or to the journal. Correct the name.")
    return found


def _last_in_journal(runner: Runner, unit: str) -> str:
    own, managers = f"_SYSTEMD_UNIT={check_unit_name(unit)}", f"UNIT={unit}"
    argv = ["journalctl", "--quiet", "--no-pager", "--output=json", "--reverse", f"--lines={LAST_ENTRIES}"]
    for line in runner([*argv, own, "+", managers, "_PID=1"]).stdout.splitlines():
        try:
            fields = json.loads(line)
        except ValueError:
            continue
        found = _invocation_of(fields, unit) if isinstance(fields, dict) else None
        if isinstance(found, str) and _INVOCATION.fullmatch(found):
            return found
    return ""


def _invocation_of(fields: dict[str, Any], unit: str) -> Any:
    """Return what a journal entry says of the launch that it belongs to, as far as it can be believed."""
    if fields.get("_SYSTEMD_UNIT") == unit:
        return fields.get("_SYSTEMD_INVOCATION_ID")
    return fields.get("INVOCATION_ID") if fields.get("UNIT") == unit and fields.get("_PID") == "1" else None


def read_launch(
    runner: Runner, invocation_id: str, unit: str = "", cgroup_mounts: tuple[str, ...] = CGROUP_MOUNTS
) -> list[Entry]:
    """Return the entries of the launch ``invocation_id`` in their order.

    With ``unit`` come its main process's last words that journald could assign to no launch, and the kills by the OOM
    killer that its control group counts; both only while the unit's current launch is this one. Raises
    ``LlmopsError`` when the journal cannot be read.
    """
    journal = Journal(runner, invocation_id)
    entries = journal.read_new()
    state = show_unit(runner, unit) if unit else UnitState(name="")
    if state.invocation_id != invocation_id:
        return entries
    ended = any(entry.from_manager and MAIN_PROCESS_EXITED in entry.message for entry in entries)
    if ended and state.exec_main_pid:
        entries += journal.read_unmarked(unit, state.exec_main_pid, state.exec_main_start_seconds)
        entries.sort(key=lambda entry: entry.realtime_usec)
    return entries + _memory_events(state, cgroup_mounts)


def _memory_events(state: UnitState, cgroup_mounts: tuple[str, ...]) -> list[Entry]:
    """Return the count of the unit's control group as an entry; none when nothing was killed or nothing can be read."""
    for mount in cgroup_mounts if state.control_group.strip("/") else ():
        try:
            with open(f"{mount}{state.control_group}/memory.events", encoding="ascii") as handle:
                kills = _OOM_KILLS.search(handle.read())
        except (OSError, ValueError):
            continue
        if kills:
            return [Entry(0, 0, f"oom_kill {kills[1]} in memory.events of {state.control_group}", "kernel", True)]
    return []


def settled_diagnosis(read: Callable[[], Sequence[Entry]], sleep: Callable[[float], object]) -> Diagnosis:
    """Diagnose the entries that ``read`` returns, again while they show no cause: the very last lines come late."""
    found = diagnose(lines_of_entries(read()))
    for _look in range(SETTLE_LOOKS):
        if found.verdict == "cause":
            break
        sleep(SETTLE_SECONDS)
        found = diagnose(lines_of_entries(read()))
    return found
