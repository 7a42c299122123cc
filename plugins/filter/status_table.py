# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filter status_table."""

from __future__ import annotations

DOCUMENTATION = r"""
name: status_table
short_description: The status of a fleet as a table
version_added: 0.1.0
author:
  - llmops.vllm maintainers (@llmops)
description:
  - Makes aligned lines of text of what M(llmops.vllm.vllm_status) returned for each host. A host without an answer has
    a line that says so.
positional: _input
options:
  _input:
    description: The results of C(vllm_status), by the name of the host.
    type: dict
    required: true
"""

EXAMPLES = r"""
- name: Show the fleet
  ansible.builtin.debug:
    msg: "{{ dict(hosts | zip(hosts | map('extract', hostvars, 'status'))) | llmops.vllm.status_table | join('\n') }}"
  vars:
    hosts: "{{ ansible_play_hosts_all }}"
"""

RETURN = r"""
_value:
  description: The lines, headings first.
  type: list
  elements: str
  sample:
    - host   instance release      since                state  phase  tokens/s KV use drift last verdict        lock
    - gpu-01 kimi     3f7a9c1e22b4 2026-03-01T10:00:00Z active serves 1312.4   31 %   none  3f7a9c1e22b4 proven -
"""

from collections.abc import Callable, Mapping
from typing import Any

HEADINGS = (
    "host",
    "instance",
    "release",
    "since",
    "state",
    "phase",
    "tokens/s",
    "KV use",
    "drift",
    "last verdict",
    "lock",
)
WIDTH_MAX = 60


def status_table(results: Mapping[str, Any]) -> list[str]:
    """Return the lines of the table."""
    rows = [HEADINGS, *(row for host, result in results.items() for row in _rows(host, result or {}))]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADINGS))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows]


def _rows(host: str, result: Mapping[str, Any]) -> list[tuple[str, ...]]:
    nothing = ("-",) * (len(HEADINGS) - 5)
    if result.get("unreachable") or result.get("failed") or "instances" not in result:
        why = " ".join(str(result.get("msg") or "no answer").split())[:WIDTH_MAX]
        return [(host, "-", "-", "-", "unreachable" if result.get("unreachable") else "failed", why, *nothing[1:])]
    return [_row(host, one) for one in result["instances"]] or [(host, "-", "-", "-", "nothing here", *nothing)]


def _row(host: str, one: Mapping[str, Any]) -> tuple[str, ...]:
    lock = one.get("lock")
    intent = one.get("intent")
    interrupted = f"interrupted: {intent['action']} {intent['target']}" if intent else "-"
    cells = (
        host,
        one["instance"],
        one["release"],
        one["since"],
        one["state"],
        one["phase"],
        "" if one["tokens_per_second"] is None else str(one["tokens_per_second"]),
        "" if one["kv_use"] is None else f"{one['kv_use'] * 100:.0f} %",
        ", ".join(one["drift"]) or "none",
        one["last_verdict"],
        f"{lock['holder']} since {lock['since']}: {lock['why']}" if lock else interrupted,
    )
    return tuple(" ".join(str(cell).split())[:WIDTH_MAX] or "-" for cell in cells)


class FilterModule:
    """The filters of this file."""

    def filters(self) -> dict[str, Callable[..., list[str]]]:
        """Return the filters by name."""
        return {"status_table": status_table}
