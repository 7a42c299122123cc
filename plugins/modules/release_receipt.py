#!/usr/bin/python
# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: release_receipt
short_description: Keep the receipt of a launch
version_added: 0.1.0
description:
  - Writes the receipt of a launch into its release and among the receipts of the instance, where it stays when the
    release goes, and appends one line to the host's audit record.
  - Adds what the host knows about the release, as C(evidence) - the digest of the model's manifest, of the runtime's
    lock and of the unit, the versions of all packages, and the GPU driver.
extends_documentation_fragment:
  - llmops.vllm.attributes
  - llmops.vllm.attributes.actiongroup_vllm
  - llmops.vllm.attributes.check_only
  - llmops.vllm.instance
  - llmops.vllm.instance.root
  - llmops.vllm.instance.run_path
  - llmops.vllm.instance.run_id
options:
  receipt:
    description:
      - The receipt. It has at least C(release), C(outcome) (V(proven) or another word) and C(time), as in
        V(2026-03-01T10:00:00Z).
      - What its C(evidence) does not say is taken from the release's last receipt.
    type: dict
    required: true
  replaces_own:
    description: Whether it becomes the release's own, C(release.json), which says whether the release is proven.
    type: bool
    default: true
  retain:
    description: How many receipts of the instance are kept besides; 0 keeps all.
    type: int
    default: 0
author:
  - llmops.vllm maintainers (@llmops)
seealso:
  - module: llmops.vllm.audit_record
  - module: llmops.vllm.vllm_instance_info
"""

EXAMPLES = r"""
- name: Keep the receipt
  llmops.vllm.release_receipt:
    instance: kimi
    receipt:
      release: 3f7a9c1e22b4
      outcome: proven
      time: "2026-03-01T10:00:00Z"
      canaries: "{{ gate.canaries }}"
"""

RETURN = r"""
paths:
  description: The files that are written, then the old receipts that go.
  returned: success
  type: list
  elements: str
  sample:
    - /srv/llm/receipts/kimi/2026-03-01T100000Z-3f7a9c1e22b4.json
    - /srv/llm/releases/kimi/3f7a9c1e22b4/release.json
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.llmops.vllm.plugins.module_utils.deploy_lock import RUN_PATH, held_by
from ansible_collections.llmops.vllm.plugins.module_utils.errors import LlmopsError
from ansible_collections.llmops.vllm.plugins.module_utils.receipts import plan_receipt
from ansible_collections.llmops.vllm.plugins.module_utils.release_switch import Place

ARGUMENT_SPEC: dict[str, dict[str, Any]] = {
    "instance": {"type": "str", "required": True},
    "receipt": {"type": "dict", "required": True},
    "replaces_own": {"type": "bool", "default": True},
    "retain": {"type": "int", "default": 0},
    "run_id": {"type": "str", "default": ""},
    "root": {"type": "path", "default": "/srv/llm"},
    "run_path": {"type": "path", "default": RUN_PATH},
}


def main() -> None:
    """Run the module."""
    module = AnsibleModule(argument_spec=ARGUMENT_SPEC, supports_check_mode=True)
    params = module.params
    try:
        if params["run_id"]:
            held_by(params["run_id"], params["instance"], params["run_path"])
        place = Place(params["instance"], params["root"], params["run_path"])
        plan = plan_receipt(
            place, params["receipt"], replaces_own=params["replaces_own"], retain=max(0, params["retain"])
        )
        if not module.check_mode:
            plan.apply()
    except LlmopsError as exc:
        module.fail_json(msg=exc.message, **exc.details)
    module.exit_json(changed=True, paths=plan.paths)


if __name__ == "__main__":
    main()
