# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filter serve_yaml."""

from __future__ import annotations

DOCUMENTATION = r"""
name: serve_yaml
short_description: The configuration file of vllm serve, from a dictionary of arguments
version_added: 0.1.0
author:
  - llmops.vllm maintainers (@llmops)
description:
  - Renders the YAML file that C(vllm serve --config) reads. Arguments keep the given order.
  - Names may be written with dashes or underscores and are written with dashes. A null value leaves the argument out.
  - Dictionaries are written as JSON text, which is what the arguments of vLLM take. Lists become several values.
positional: _input
options:
  _input:
    description: Arguments of C(vllm serve) without the leading dashes, and their values.
    type: dict
    required: true
notes:
  - A false value turns an argument off only with vLLM versions that look for the C(--no-) form of it; older ones ignore
    false. There, give the negative name with a true value, such as C(no-enable-prefix-caching).
"""

EXAMPLES = r"""
- name: Write the arguments of the server
  ansible.builtin.copy:
    dest: /srv/llm/releases/kimi/4f1c2a9b7d30/serve.yaml
    content: "{{ arguments | llmops.vllm.serve_yaml }}"
    mode: "0640"
  vars:
    arguments:
      tensor_parallel_size: 8
      trust-remote-code: true
      served_model_name: [kimi, kimi-k2.5]
      compilation_config: {cudagraph_mode: PIECEWISE}
"""

RETURN = r"""
_value:
  description: The text of the file, ending with a newline.
  type: str
  sample: |
    tensor-parallel-size: 8
    trust-remote-code: true
    served-model-name:
    - kimi
    - kimi-k2.5
    compilation-config: '{"cudagraph_mode": "PIECEWISE"}'
"""

from collections.abc import Callable
from typing import Any

from ansible.errors import AnsibleFilterError
from ansible_collections.llmops.vllm.plugins.module_utils.errors import LlmopsError
from ansible_collections.llmops.vllm.plugins.plugin_utils.serve_yaml import render_serve_yaml


def serve_yaml_filter(arguments: Any) -> str:
    """Return the YAML text of ``arguments``. Raises AnsibleFilterError for what cannot be passed to vLLM."""
    try:
        return render_serve_yaml(arguments)
    except LlmopsError as error:
        raise AnsibleFilterError(f"serve_yaml: {error.message}") from error


class FilterModule:
    """The filters of this file."""

    def filters(self) -> dict[str, Callable[..., str]]:
        """Return the filters by name."""
        return {"serve_yaml": serve_yaml_filter}
