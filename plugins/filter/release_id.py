# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filter release_id."""

from __future__ import annotations

DOCUMENTATION = r"""
name: release_id
short_description: The id of a release, from its content
version_added: 0.1.0
author:
  - llmops.vllm maintainers (@llmops)
description:
  - Hashes a structure to a short id. The same content has the same id, in whatever order its keys are written, so an
    unchanged release is recognised as such.
  - The id is the first 12 hexadecimal digits of the SHA-256 of the canonical JSON (keys sorted, no white space, ASCII).
  - Numbers keep their type, so V(1) and V(1.0) and V("1") are three different contents.
positional: _input
options:
  _input:
    description: The content, any structure that JSON can hold. Keys of dictionaries must be strings.
    type: raw
    required: true
"""

EXAMPLES = r"""
- name: Name the release after what it is made of
  ansible.builtin.set_fact:
    release: "{{ {'model': commit, 'patches': patches, 'arguments': arguments} | llmops.vllm.release_id }}"
"""

RETURN = r"""
_value:
  description: The id, 12 lower case hexadecimal digits.
  type: str
  sample: 4f1c2a9b7d30
"""

from collections.abc import Callable
from typing import Any

from ansible.errors import AnsibleFilterError
from ansible_collections.llmops.vllm.plugins.module_utils.errors import LlmopsError
from ansible_collections.llmops.vllm.plugins.module_utils.release import release_id


def release_id_filter(content: Any) -> str:
    """Return the id of ``content``. Raises AnsibleFilterError for what is not JSON."""
    try:
        return release_id(content)
    except LlmopsError as error:
        raise AnsibleFilterError(f"release_id: {error.message}") from error


class FilterModule:
    """The filters of this file."""

    def filters(self) -> dict[str, Callable[..., str]]:
        """Return the filters by name."""
        return {"release_id": release_id_filter}
