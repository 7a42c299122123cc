#!/usr/bin/python
# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: vllm_status
short_description: Say what the vLLM instances of a host are doing
version_added: 0.1.0
description:
  - Reads all instances of a host, or those given - release, state of the unit, phase of the launch, load, drift, last
    verdict, and the run that has locked it. It takes as long as O(sample_seconds), and little more.
  - The load is from the engine's C(/metrics), which needs no key. An engine that gives none is no error.
extends_documentation_fragment:
  - llmops.vllm.attributes
  - llmops.vllm.attributes.actiongroup_vllm
  - llmops.vllm.attributes.info_module
  - llmops.vllm.instance.root
  - llmops.vllm.instance.run_path
options:
  instances:
    description: Names of the instances; all when empty.
    type: list
    elements: str
    default: []
  sample_seconds:
    description: Time between the two looks that a rate takes.
    type: float
    default: 1
author:
  - llmops.vllm maintainers (@llmops)
seealso:
  - module: llmops.vllm.vllm_instance_info
"""

EXAMPLES = r"""
- name: What does this host do?
  llmops.vllm.vllm_status:
  register: status
"""

RETURN = r"""
instances:
  description: The instances, by name.
  returned: success
  type: list
  elements: dict
  contains:
    instance:
      description: Its name.
      type: str
      returned: always
      sample: kimi
    release:
      description: The current release, or an empty string.
      type: str
      returned: always
      sample: 3f7a9c1e22b4
    previous:
      description: The release before it, or an empty string.
      type: str
      returned: always
      sample: 8d01b6c04e17
    since:
      description: Since when the unit is active (UTC), or an empty string.
      type: str
      returned: always
      sample: "2026-03-01T10:00:00Z"
    state:
      description: C(ActiveState) of the unit, V(unknown) without systemd.
      type: str
      returned: always
      sample: active
    phase:
      description: What the launch is at.
      type: str
      returned: always
      sample: serves
    proven:
      description: Whether what serves is a launch of a release that has proved itself.
      type: bool
      returned: always
      sample: true
    last_verdict:
      description: Release, outcome and verdict of the newest receipt among the instance's releases.
      type: str
      returned: always
      sample: 3f7a9c1e22b4 proven
    tokens_per_second:
      description: Tokens that the engine makes a second, or V(null).
      type: float
      returned: always
      sample: 1312.4
    kv_use:
      description: Share of the KV cache in use, from 0 to 1, or V(null).
      type: float
      returned: always
      sample: 0.31
    drift:
      description:
        - Installed unit files that are not those of the current release, and what of it is not as its receipt says.
        - It is what the host itself can tell. C(playbooks/drift.yml) compares with the repository.
      type: list
      elements: str
      returned: always
      sample: []
    running:
      description: Requests in work, or V(null).
      type: int
      returned: always
      sample: 12
    waiting:
      description: Requests that wait, or V(null).
      type: int
      returned: always
      sample: 0
    intent:
      description: A rollout that has begun and not ended, see M(llmops.vllm.vllm_instance_info), or V(null).
      type: dict
      returned: always
      sample: null
    lock:
      description: The run that has locked the instance, see M(llmops.vllm.deploy_lock), or V(null).
      type: dict
      returned: always
      sample: null
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.llmops.vllm.plugins.module_utils.deploy_lock import RUN_PATH
from ansible_collections.llmops.vllm.plugins.module_utils.engine_api import EngineApi
from ansible_collections.llmops.vllm.plugins.module_utils.errors import LlmopsError
from ansible_collections.llmops.vllm.plugins.module_utils.instance_status import (
    METRICS_SECONDS,
    Clock,
    Host,
    instance_names,
    read_status,
)
from ansible_collections.llmops.vllm.plugins.module_utils.systemd import run_command

ARGUMENT_SPEC: dict[str, dict[str, Any]] = {
    "instances": {"type": "list", "elements": "str", "default": []},
    "sample_seconds": {"type": "float", "default": 1},
    "root": {"type": "path", "default": "/srv/llm"},
    "run_path": {"type": "path", "default": RUN_PATH},
}


def metrics(host: str, port: int) -> str | None:
    """Ask an engine for its metrics; None when it gives none."""
    return EngineApi(host, port).text("/metrics", METRICS_SECONDS)


def main() -> None:
    """Run the module."""
    module = AnsibleModule(argument_spec=ARGUMENT_SPEC, supports_check_mode=True)
    params = module.params
    try:
        names = params["instances"] or instance_names(params["root"])
        host = Host(params["root"], params["run_path"], run_command, metrics)
        found = read_status(host, names, max(0.0, params["sample_seconds"]), Clock())
    except LlmopsError as exc:
        module.fail_json(msg=exc.message, **exc.details)
    module.exit_json(changed=False, instances=[status.as_dict() for status in found])


if __name__ == "__main__":
    main()
