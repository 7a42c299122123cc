#!/usr/bin/python
# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: launch_start
short_description: Start a unit and name the launch that has begun
version_added: 0.1.0
description:
  - Starts a systemd unit without waiting until it is up, and returns the InvocationID of this very launch as soon as
    systemd has given it one, so that M(llmops.vllm.launch_gate) follows it and no other.
  - Reads the unit files again before, and forgets earlier starts, which the start limit of the unit counts.
  - A unit that is active or being started is left as it is. One that waits for its next restart is started at once.
extends_documentation_fragment:
  - llmops.vllm.attributes
  - llmops.vllm.attributes.actiongroup_vllm
  - llmops.vllm.attributes.check_and_diff
options:
  unit:
    description: Full name of the unit.
    type: str
    required: true
  enabled:
    description: Whether the unit is made to start at boot as well. It is never disabled.
    type: bool
    default: true
  wait_seconds:
    description: How many seconds systemd may take until it begins the start, which may have to wait for other units.
    type: float
    default: 60
author:
  - llmops.vllm maintainers (@llmops)
seealso:
  - module: llmops.vllm.launch_gate
"""

EXAMPLES = r"""
- name: Start the instance
  llmops.vllm.launch_start:
    unit: vllm@kimi.service
  register: launch

- name: Wait until this launch has proven itself
  llmops.vllm.launch_gate:
    unit: vllm@kimi.service
    invocation_id: "{{ launch.invocation_id }}"
    served_model: kimi-k2.5
    canaries:
      - {kind: chat, prompt: "What is 2+2?", contains: "4"}
"""

RETURN = r"""
invocation_id:
  description: The launch that has begun, or the one that runs. In check mode the unit's last one, or empty.
  returned: success
  type: str
  sample: 8f1b2c3d4e5f60718293a4b5c6d7e8f9
started:
  description: Whether the unit is started, rather than left as it is.
  returned: success
  type: bool
  sample: true
"""

import time
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.llmops.vllm.plugins.module_utils.errors import InvalidInputError, LlmopsError
from ansible_collections.llmops.vllm.plugins.module_utils.launch_start import StartPlan, plan_start
from ansible_collections.llmops.vllm.plugins.module_utils.systemd import run_command

ARGUMENT_SPEC: dict[str, dict[str, Any]] = {
    "unit": {"type": "str", "required": True},
    "enabled": {"type": "bool", "default": True},
    "wait_seconds": {"type": "float", "default": 60},
}


def plan(params: dict[str, Any]) -> StartPlan:
    """Plan what the parameters ask for. Raises LlmopsError."""
    if params["wait_seconds"] <= 0:
        raise InvalidInputError(f"wait_seconds is {params['wait_seconds']:g}; it has to be positive.")
    return plan_start(run_command, params["unit"], params["enabled"])


def main() -> None:
    """Run the module."""
    module = AnsibleModule(argument_spec=ARGUMENT_SPEC, supports_check_mode=True)
    try:
        todo = plan(module.params)
        launch = todo.unit.invocation_id
        if not module.check_mode:
            launch = todo.apply(run_command, time.monotonic, time.sleep, module.params["wait_seconds"])
    except LlmopsError as exc:
        module.fail_json(msg=exc.message, **exc.details)
    diff = todo.differences().as_diff()
    module.exit_json(changed=todo.changed, diff=diff, invocation_id=launch, started=todo.start)


if __name__ == "__main__":
    main()
