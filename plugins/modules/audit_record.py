#!/usr/bin/python
# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: audit_record
short_description: Append one line to the host's record of what was done to it
version_added: 0.1.0
description:
  - Appends one JSON object as a line to C(audit.jsonl), durably. The time is added. Nothing is ever changed or removed.
  - Rollouts leave their line with M(llmops.vllm.release_receipt). This module is for everything else.
extends_documentation_fragment:
  - llmops.vllm.attributes
  - llmops.vllm.attributes.actiongroup_vllm
  - llmops.vllm.attributes.check_only
options:
  record:
    description: What was done. No secrets belong here.
    type: dict
    required: true
  path:
    description: The file.
    type: path
    default: /srv/llm/audit.jsonl
author:
  - llmops.vllm maintainers (@llmops)
seealso:
  - module: llmops.vllm.release_receipt
"""

EXAMPLES = r"""
- name: Record that the instance was ended
  llmops.vllm.audit_record:
    record: {action: teardown, instance: kimi, outcome: ended, run: "{{ lock.run }}"}
"""

RETURN = r"""
record:
  description: The record as it was appended.
  returned: success
  type: dict
  sample: {"action": "teardown", "instance": "kimi", "outcome": "ended", "time": "2026-03-01T10:00:00Z"}
"""

import time
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.llmops.vllm.plugins.module_utils.audit import append_record
from ansible_collections.llmops.vllm.plugins.module_utils.errors import LlmopsError

ARGUMENT_SPEC: dict[str, dict[str, Any]] = {
    "record": {"type": "dict", "required": True},
    "path": {"type": "path", "default": "/srv/llm/audit.jsonl"},
}


def main() -> None:
    """Run the module."""
    module = AnsibleModule(argument_spec=ARGUMENT_SPEC, supports_check_mode=True)
    record = {"time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), **module.params["record"]}
    try:
        if not module.check_mode:
            append_record(module.params["path"], record)
    except LlmopsError as exc:
        module.fail_json(msg=exc.message, **exc.details)
    module.exit_json(changed=True, record=record)


if __name__ == "__main__":
    main()
