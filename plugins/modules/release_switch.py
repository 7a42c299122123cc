#!/usr/bin/python
# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: release_switch
short_description: Take an instance from one release to another in steps that an interruption cannot tear
version_added: 0.1.0
description:
  - Moves the links C(current), C(proven) and C(previous) of an instance, installs the unit files of a release, and
    keeps the record of what a rollout intends. Every file and link is made aside, synced and renamed.
  - When the host goes down in the middle, the record lets it put the proven release back at its next boot, and the next
    run go on or back.
  - Starts and stops nothing.
extends_documentation_fragment:
  - llmops.vllm.attributes
  - llmops.vllm.attributes.actiongroup_vllm
  - llmops.vllm.attributes.check_and_diff
  - llmops.vllm.instance
  - llmops.vllm.instance.root
  - llmops.vllm.instance.run_path
  - llmops.vllm.instance.run_id
options:
  state:
    description:
      - V(intended) records that O(release) is to take over, and which release is proven. Nothing else moves.
      - V(switched) makes O(release) the current one and installs its unit files.
      - V(proven) keeps O(receipt), makes O(release) the one to go back to, the one before it C(previous), and removes
        the record.
      - V(settled) removes the record. Nothing else moves.
    type: str
    choices: [intended, switched, proven, settled]
    required: true
  release:
    description: Identifier of the release. Required but for O(state=settled).
    type: str
    default: ""
  action:
    description: What the rollout is, for the record.
    type: str
    default: deploy
  holder:
    description: Who started the run, and where.
    type: str
    default: ""
  receipt:
    description:
      - The receipt of the launch that proved O(release), as M(llmops.vllm.release_receipt) takes one. Only for
        O(state=proven); it is kept before anything moves.
    type: dict
  retain:
    description: How many receipts of the instance are kept; 0 keeps all.
    type: int
    default: 0
  unit_path:
    description: Directory of the unit files.
    type: path
    default: /etc/systemd/system
author:
  - llmops.vllm maintainers (@llmops)
seealso:
  - module: llmops.vllm.deploy_lock
  - module: llmops.vllm.release_receipt
  - module: llmops.vllm.vllm_instance_info
"""

EXAMPLES = r"""
- name: Make a release the current one
  llmops.vllm.release_switch:
    instance: kimi
    release: 3f7a9c1e22b4
    state: switched
    run_id: "{{ lock.run.id }}"

- name: Make it the one to go back to
  llmops.vllm.release_switch:
    instance: kimi
    release: 3f7a9c1e22b4
    state: proven
    run_id: "{{ lock.run.id }}"
    receipt:
      release: 3f7a9c1e22b4
      outcome: proven
      time: "2026-03-01T10:00:00Z"
      canaries: "{{ gate.canaries }}"
"""

RETURN = r"""
current:
  description: Identifier of the release that is the current one afterwards; empty when there is none.
  returned: success, not in check mode
  type: str
  sample: 3f7a9c1e22b4
paths:
  description: The files and links that change, in order.
  returned: success
  type: list
  elements: str
  sample: [/run/llmops-vllm/kimi.rollout, /srv/llm/instances/kimi/intent.json, /srv/llm/instances/kimi/current]
"""

import time
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.llmops.vllm.plugins.module_utils.deploy_lock import RUN_PATH, held_by
from ansible_collections.llmops.vllm.plugins.module_utils.errors import InvalidInputError, LlmopsError
from ansible_collections.llmops.vllm.plugins.module_utils.instance import Intent, read_instance
from ansible_collections.llmops.vllm.plugins.module_utils.receipts import ReceiptPlan, plan_receipt
from ansible_collections.llmops.vllm.plugins.module_utils.release_switch import STATES, Place, SwitchPlan, plan_switch

ARGUMENT_SPEC: dict[str, dict[str, Any]] = {
    "instance": {"type": "str", "required": True},
    "state": {"type": "str", "choices": list(STATES), "required": True},
    "release": {"type": "str", "default": ""},
    "action": {"type": "str", "default": "deploy"},
    "run_id": {"type": "str", "default": ""},
    "holder": {"type": "str", "default": ""},
    "receipt": {"type": "dict"},
    "retain": {"type": "int", "default": 0},
    "root": {"type": "path", "default": "/srv/llm"},
    "run_path": {"type": "path", "default": RUN_PATH},
    "unit_path": {"type": "path", "default": "/etc/systemd/system"},
}


def plan_step(params: dict[str, Any], place: Place) -> SwitchPlan:
    """Plan the step that the parameters ask for. Raises LlmopsError."""
    now = read_instance(params["root"], params["instance"])
    intent = Intent(
        run_id=params["run_id"],
        holder=params["holder"],
        action=params["action"],
        source="",
        target=params["release"],
        step="",
        since=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    )
    return plan_switch(place, now, params["state"], intent)


def plan_of_receipt(params: dict[str, Any], place: Place) -> ReceiptPlan | None:
    """Plan to keep the receipt, None where there is none. Raises LlmopsError."""
    if params["receipt"] is None:
        return None
    if params["state"] != "proven":
        raise InvalidInputError(f"receipt is for state proven only, not for {params['state']}; leave it out.")
    if params["receipt"].get("release") != params["release"]:
        raise InvalidInputError(
            f"The receipt is of release {params['receipt'].get('release')}, not of {params['release']}."
        )
    return plan_receipt(place, params["receipt"], replaces_own=True, retain=max(0, params["retain"]))


def main() -> None:
    """Run the module."""
    module = AnsibleModule(argument_spec=ARGUMENT_SPEC, supports_check_mode=True)
    params = module.params
    try:
        if params["run_id"]:
            held_by(params["run_id"], params["instance"], params["run_path"])
        place = Place(params["instance"], params["root"], params["run_path"], params["unit_path"])
        receipt = plan_of_receipt(params, place)
        plan = plan_step(params, place)
        diff = plan.differences().as_diff()
        after = {}
        if not module.check_mode:
            if receipt is not None:
                receipt.apply()
            plan.apply()
            current = read_instance(params["root"], params["instance"]).current
            after["current"] = current.release_id if current else ""
    except LlmopsError as exc:
        module.fail_json(msg=exc.message, **exc.details)
    paths = (receipt.paths if receipt else []) + [step.path for step in plan.steps]
    module.exit_json(changed=bool(paths), diff=diff, paths=paths, **after)


if __name__ == "__main__":
    main()
