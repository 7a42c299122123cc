# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filter applicable_patches."""

from __future__ import annotations

DOCUMENTATION = r"""
name: applicable_patches
short_description: Those patches of a model that are for this engine and these GPUs
version_added: 0.1.0
author:
  - llmops.vllm maintainers (@llmops)
description:
  - Leaves out the patches whose C(when) does not hold for a version of vLLM or for the GPUs of a host.
  - C(when) is a dictionary. Its C(vllm) is a range of versions (PEP 440), such as V(>=0.15,<0.18). Its
    C(compute_capability) is a list such as V([12.0]), of which one GPU has to have one. A condition C(keys) stays, for
    M(llmops.vllm.config_patch).
positional: vllm_version, compute_capabilities
options:
  _input:
    description: Patches, as M(llmops.vllm.config_patch) takes them.
    type: list
    elements: dict
    required: true
  vllm_version:
    description: The version of the engine.
    type: str
    required: true
  compute_capabilities:
    description: The compute capabilities of the host's GPUs.
    type: list
    elements: str
    default: []
"""

EXAMPLES = r"""
- name: Say which patches this host needs
  ansible.builtin.debug:
    msg: "{{ patches | llmops.vllm.applicable_patches('0.17.1', ['12.0']) | map(attribute='name') }}"
  vars:
    patches:
      - name: no-fp8-kv-cache
        file: config.json
        reason: No MLA attention backend of these versions takes an FP8 KV cache on SM120
        remove_keys: [kv_cache_scheme, kv_cache_quant_algo]
        when: {vllm: "<0.18", compute_capability: ["12.0"]}
"""

RETURN = r"""
_value:
  description: The patches that apply, in the order given.
  type: list
  elements: dict
"""

from collections.abc import Callable
from typing import Any

from ansible.errors import AnsibleFilterError
from ansible_collections.llmops.vllm.plugins.module_utils.errors import LlmopsError
from ansible_collections.llmops.vllm.plugins.plugin_utils.patch_conditions import applicable


def applicable_patches(
    patches: list[dict[str, Any]], vllm_version: str, compute_capabilities: list[str] | None = None
) -> list[dict[str, Any]]:
    """Return the patches that apply. Raises AnsibleFilterError for a condition that cannot be decided."""
    try:
        return applicable(patches, str(vllm_version), [str(one) for one in compute_capabilities or []])
    except LlmopsError as error:
        raise AnsibleFilterError(f"applicable_patches: {error.message}") from error


class FilterModule:
    """The filters of this file."""

    def filters(self) -> dict[str, Callable[..., list[dict[str, Any]]]]:
        """Return the filters by name."""
        return {"applicable_patches": applicable_patches}
