# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filter look_lines."""

from __future__ import annotations

DOCUMENTATION = r"""
name: look_lines
short_description: What the first look at the hosts has found, in a few lines
version_added: 0.1.0
author:
  - llmops.vllm maintainers (@llmops)
description:
  - Says where a deployment has nothing to do, and what differs elsewhere, from what M(llmops.vllm.drift_info) returned
    for each host.
  - A host that was not looked at has no line.
positional: _input
options:
  _input:
    description: The results of C(drift_info), by the name of the host.
    type: dict
    required: true
  settled:
    description: The hosts on which there is nothing to do.
    type: list
    elements: str
    required: true
"""

EXAMPLES = r"""
- name: Say what the look has found
  ansible.builtin.debug:
    msg: "{{ dict(hosts | zip(hosts | map('extract', hostvars, 'look'))) | llmops.vllm.look_lines(settled=settled) }}"
  vars:
    hosts: "{{ ansible_play_hosts }}"
"""

RETURN = r"""
_value:
  description: The lines; none when no host was looked at.
  type: list
  elements: str
  sample:
    - "release 3f7a9c1e22b4 is proven and serves: nothing to do on gpu-01, gpu-02"
    - "gpu-03: /srv/llm/releases/kimi/3f7a9c1e22b4/env differs in line 2"
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

HOSTS_SHOWN = 8
FINDINGS_SHOWN = 3


def look_lines(looks: Mapping[str, Any], settled: Sequence[str]) -> list[str]:
    """Return the lines: first where there is nothing to do, then host by host what differs."""
    known = {host: look for host, look in looks.items() if look and "settled" in look}
    alike: dict[str, list[str]] = {}
    for host in settled:
        alike.setdefault(str(known[host]["expected"]), []).append(host)
    lines = [
        f"release {release} is proven and serves: nothing to do on {_some(hosts, HOSTS_SHOWN, ', ')}"
        for release, hosts in sorted(alike.items())
    ]
    return lines + [line for host, look in known.items() for line in _of_host(host, look, host in settled)]


def _of_host(host: str, look: Mapping[str, Any], settled: bool) -> list[str]:
    found = [f"{finding['where']} {finding['what']}" for finding in look["findings"]]
    if found:
        said = _some(found, FINDINGS_SHOWN, "; ")
        return [f"{host}: {said}{'; this is left alone (docs/drift.md)' if look['settled'] else ''}"]
    if look["settled"] and not settled:
        return [f"{host}: release {look['expected']} is proven and serves, and it is not known that it gets requests"]
    return []


def _some(parts: Sequence[str], shown: int, between: str) -> str:
    rest = len(parts) - shown
    return between.join(parts[:shown]) + (f"{between}and {rest} more" if rest > 0 else "")


class FilterModule:
    """The filter, under its name."""

    def filters(self) -> dict[str, Callable[..., list[str]]]:
        """Return the filters of this file."""
        return {"look_lines": look_lines}
