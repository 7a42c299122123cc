# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filter batches."""

from __future__ import annotations

DOCUMENTATION = r"""
name: batches
short_description: Batches of a rollout that leave enough hosts in service
version_added: 0.1.0
author:
  - llmops.vllm maintainers (@llmops)
description:
  - Makes batches that are too large smaller, so that enough hosts stay in service while one is rolled out.
positional: hosts, minimum_serving
options:
  _input:
    description: The batches, as a play's C(serial) takes them.
    type: raw
    required: true
  hosts:
    description: How many hosts there are.
    type: int
    required: true
  minimum_serving:
    description: How many of them have to stay in service. At least one host is in each batch all the same.
    type: int
    default: 0
"""

EXAMPLES = r"""
- name: Roll out, and leave two hosts in service
  hosts: vllm
  serial: "{{ [1, '25%', '100%'] | llmops.vllm.batches(groups['vllm'] | length, 2) }}"
"""

RETURN = r"""
_value:
  description: A list of batches for C(serial).
  type: list
  elements: raw
"""

from collections.abc import Callable

from ansible.errors import AnsibleFilterError
from ansible_collections.llmops.vllm.plugins.module_utils.errors import LlmopsError
from ansible_collections.llmops.vllm.plugins.plugin_utils.batches import Batch, batches


def batches_filter(serial: Batch | list[Batch], hosts: int, minimum_serving: int = 0) -> list[Batch]:
    """Return batches that leave enough hosts in service. Raises AnsibleFilterError for what is no batch."""
    try:
        return batches(serial, int(hosts), int(minimum_serving))
    except LlmopsError as error:
        raise AnsibleFilterError(f"batches: {error.message}") from error


class FilterModule:
    """The filters of this file."""

    def filters(self) -> dict[str, Callable[..., list[Batch]]]:
        """Return the filters by name."""
        return {"batches": batches_filter}
