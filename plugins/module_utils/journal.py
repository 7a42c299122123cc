# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The journal of exactly one launch.

A launch is a systemd invocation. Its own output carries ``_SYSTEMD_INVOCATION_ID`` (set by journald from the cgroup,
not by the process), what systemd says about it carries ``INVOCATION_ID`` (``man systemd.journal-fields``). Nothing else
is read, no log file ever, and each entry is checked again after parsing.

One gap is closed from the process's side. journald finds the invocation through a link that systemd removes as soon as
the unit has failed (``unit_unlink_state_files`` in its sources), so that the last words of a process that dies within
milliseconds can be stored without any invocation. Such an entry still has the unit, the process and the time.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ansible_collections.llmops.vllm.plugins.module_utils.errors import LlmopsError
from ansible_collections.llmops.vllm.plugins.module_utils.systemd import (
    Runner,
    check_invocation_id,
    check_unit_name,
)

# The program that watches a unit from within it (unit_watch). What it says about the launch is no word of the engine's:
# only the one line counts by which it says that it ended the launch, and why.
WATCH_IDENTIFIER = "llmops-vllm-watch"
ENDED_THIS_LAUNCH = "killed this launch: "
MAIN_PROCESS_EXITED = "Main process exited"  # unit_log_process_exit in the sources of systemd, never translated

# CSI and OSC sequences, and the ways in which other tools write the escape character down (rsyslog, terminals).
_ANSI = re.compile(r"(?:\x1b|#033|\^\[)\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[@-_]")
_LINE_END = re.compile(r"\r\n|[\r\n]|\^M$")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


@dataclass(frozen=True)
class Entry:
    """One journal entry; ``realtime_usec`` is microseconds since the epoch, ``pid`` 0 when unknown."""

    realtime_usec: int
    pid: int
    message: str
    transport: str
    from_manager: bool
    cursor: str = ""

    @property
    def realtime_seconds(self) -> float:
        """Seconds since the epoch."""
        return self.realtime_usec / 1_000_000

    @property
    def lines(self) -> list[str]:
        """The message's lines that are not empty."""
        return [line for line in self.message.split("\n") if line.strip()]


def clean(text: str) -> str:
    """Return ``text`` without colours and control characters; a carriage return ends a line as a line feed does."""
    if text.rstrip("\n").isprintable() and "^" not in text and "#033" not in text:
        return text.rstrip("\n")
    plain = _LINE_END.sub("\n", _ANSI.sub("", text))
    return _CONTROL.sub("", plain).strip("\n")


def decode_field(value: Any) -> str:
    """Undo the JSON forms of a field: text, an array of bytes (not printable), null (too large) or a list of these."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        if all(isinstance(item, int) and not isinstance(item, bool) and 0 <= item < 256 for item in value):
            return bytes(value).decode("utf-8", "replace")
        return "\n".join(decode_field(item) for item in value)
    return ""


def _integer(value: Any) -> int:
    text = decode_field(value)
    return int(text) if text.isdigit() and len(text) < 20 else 0


def parse_entry(line: str, invocation_id: str) -> Entry | None:
    """Parse one line of ``journalctl --output=json``; ``None`` when it is no entry of this invocation."""
    try:
        fields = json.loads(line)
    except ValueError:
        return None
    if not isinstance(fields, dict):
        return None
    own = fields.get("_SYSTEMD_INVOCATION_ID") == invocation_id
    # Any process may write INVOCATION_ID into its own messages; systemd's own come from PID 1 or from a user manager.
    manager = (
        not own
        and fields.get("INVOCATION_ID") == invocation_id
        and (fields.get("_PID") == "1" or fields.get("_COMM") == "systemd")
    )
    if own and fields.get("SYSLOG_IDENTIFIER") == WATCH_IDENTIFIER:
        manager = decode_field(fields.get("MESSAGE")).startswith(ENDED_THIS_LAUNCH)
        own = False
    return _entry(fields, manager) if own or manager else None


def _entry(fields: dict[str, Any], manager: bool) -> Entry:
    return Entry(
        realtime_usec=_integer(fields.get("__REALTIME_TIMESTAMP")),
        pid=_integer(fields.get("_PID")),
        message=clean(decode_field(fields.get("MESSAGE"))),
        transport=decode_field(fields.get("_TRANSPORT")),
        from_manager=manager,
        cursor=decode_field(fields.get("__CURSOR")),
    )


def parse_entries(lines: Iterable[str], invocation_id: str) -> list[Entry]:
    """Parse the lines that belong to ``invocation_id``, in their order."""
    parsed = (parse_entry(line, invocation_id) for line in lines if line.strip())
    return [entry for entry in parsed if entry is not None]


def parse_unmarked(line: str, unit: str, pid: int, since_seconds: float) -> Entry | None:
    """Parse an entry of process ``pid`` in ``unit`` without any invocation, not stored before ``since_seconds``."""
    try:
        fields = json.loads(line)
    except ValueError:
        return None
    if not isinstance(fields, dict) or "_SYSTEMD_INVOCATION_ID" in fields or fields.get("_SYSTEMD_UNIT") != unit:
        return None
    stored_seconds = _integer(fields.get("__MONOTONIC_TIMESTAMP")) / 1_000_000
    return _entry(fields, False) if _integer(fields.get("_PID")) == pid and stored_seconds >= since_seconds else None


def command_for(invocation_id: str) -> str:
    """Return the shell command that shows a person everything of this invocation."""
    return f"journalctl --no-pager _SYSTEMD_INVOCATION_ID={invocation_id} + INVOCATION_ID={invocation_id}"


class Journal:
    """Reads one invocation's entries, each of them once."""

    def __init__(self, runner: Runner, invocation_id: str) -> None:
        self._runner = runner
        self._invocation_id = check_invocation_id(invocation_id)
        self._cursor = ""
        self._seen: set[int] = set()

    def read_new(self) -> list[Entry]:
        """Return the entries since the last call (at first: since the start of the launch).

        Raises ``LlmopsError`` when the journal cannot be read at all.
        """
        argv = ["journalctl", "--quiet", "--no-pager", "--all", "--output=json"]
        if self._cursor:
            argv.append(f"--after-cursor={self._cursor}")
        argv += [f"_SYSTEMD_INVOCATION_ID={self._invocation_id}", "+", f"INVOCATION_ID={self._invocation_id}"]
        done = self._runner(argv)
        if done.returncode != 0 and self._cursor:
            # The cursor's entry was vacuumed or rotated away: once more from what is left of this launch.
            self._cursor = ""
            return self.read_new()
        # 1 is also journalctl's answer for "no entry matches".
        if done.returncode not in (0, 1) or (done.returncode == 1 and done.stderr.strip()):
            reason = done.stderr.strip() or f"exit status {done.returncode}"
            raise LlmopsError(
                f"the journal cannot be read: {reason}. Run as root or as a member of group systemd-journal."
            )
        parsed = parse_entries(done.stdout.split("\n"), self._invocation_id)
        if parsed:
            self._cursor = parsed[-1].cursor
        # An entry can come twice when the journal was read from an earlier place again.
        new = [entry for entry in parsed if not entry.cursor or hash(entry.cursor) not in self._seen]
        self._seen.update(hash(entry.cursor) for entry in new)
        return new

    def read_unmarked(self, unit: str, pid: int, since_seconds: float) -> list[Entry]:
        """Return what the process ``pid`` of ``unit`` wrote since then and journald could assign to no invocation.

        The caller answers for the process being this launch's; ``since_seconds`` is its start (CLOCK_MONOTONIC).
        """
        argv = ["journalctl", "--quiet", "--no-pager", "--all", "--output=json", "--boot"]
        done = self._runner([*argv, f"_SYSTEMD_UNIT={check_unit_name(unit)}", f"_PID={int(pid)}"])
        parsed = (parse_unmarked(line, unit, pid, since_seconds) for line in done.stdout.split("\n") if line)
        return [entry for entry in parsed if entry is not None]
