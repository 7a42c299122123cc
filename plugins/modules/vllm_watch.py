#!/usr/bin/python
# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: vllm_watch
short_description: Install the program that watches a vLLM unit from within
version_added: 0.1.0
description:
  - Writes one executable file that systemd runs beside the engine. It needs a Python of 3.9 or newer and nothing else.
  - As C(ExecStartPost) it follows the launch, shows its progress as the unit's status, and returns when the launch has
    answered a checked completion, so that C(systemctl start) succeeds only then. A launch that dies or makes no
    progress is explained and ended.
  - As a unit of its own beside the one that serves it finds an engine that hangs. As C(ExecStopPost) it explains how
    the launch ended, and keeps systemd from starting again what a restart cannot cure.
  - The role P(llmops.vllm.vllm_service#role) writes units that use it.
author:
  - llmops.vllm maintainers (@llmops)
extends_documentation_fragment:
  - llmops.vllm.attributes
  - llmops.vllm.attributes.actiongroup_vllm
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
    details: Shows the size of the program and its mode.
options:
  path:
    description: Where the program is written, an absolute path. Its directory must exist.
    type: path
    required: true
  interpreter:
    description:
      - The Python that runs the program, an absolute path.
      - The default is C(/usr/bin/python3) where the module itself is run by it, otherwise the Python that runs the
        module.
    type: path
seealso:
  - module: llmops.vllm.launch_gate
"""

EXAMPLES = r"""
- name: Install the program that watches units
  llmops.vllm.vllm_watch:
    path: /usr/local/lib/llmops-vllm-watch
"""

RETURN = r"""
interpreter:
  description: The Python that runs the program.
  returned: success
  type: str
  sample: /usr/bin/python3
sha256:
  description: Digest of the program.
  returned: success
  type: str
  sample: 2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae
"""

import hashlib
import os
import sys
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.llmops.vllm.plugins.module_utils import unit_watch
from ansible_collections.llmops.vllm.plugins.module_utils.errors import InvalidInputError, LlmopsError, as_sentence
from ansible_collections.llmops.vllm.plugins.module_utils.file_tree import Entry, check_path, plan_tree, render_diff
from ansible_collections.llmops.vllm.plugins.module_utils.file_tree_apply import apply_tree
from ansible_collections.llmops.vllm.plugins.module_utils.left_aside import process_exists
from ansible_collections.llmops.vllm.plugins.module_utils.worker_payload import pack

SYSTEM_PYTHON = "/usr/bin/python3"
MODE = 0o755


def find_interpreter(given: str | None) -> str:
    """Return the interpreter for the program's first line. Raises InvalidInputError."""
    if not given:
        # A name without a version outlives an upgrade of the host.
        same = os.path.realpath(SYSTEM_PYTHON) == os.path.realpath(sys.executable)
        return SYSTEM_PYTHON if same else sys.executable
    if not os.path.isabs(given) or any(char.isspace() for char in given):
        raise InvalidInputError(f"interpreter must be an absolute path without white space, not {given!r}.")
    return given


def run(module: AnsibleModule) -> dict[str, Any]:
    """Plan, apply unless in check mode, and return the result. Raises LlmopsError."""
    interpreter = find_interpreter(module.params["interpreter"])
    path = check_path("path", module.params["path"])
    # -I: nothing in the environment, the working directory or a home changes what it imports. -S: it starts faster.
    content = f"#!{interpreter} -IS\n".encode() + pack(unit_watch.__name__)
    entry = Entry(path=path, state="file", content=content, target="", mode=MODE, uid=os.geteuid(), gid=os.getegid())
    with as_sentence("compare the program with what is there"):
        plan = plan_tree([entry], predict=module.check_mode)
    difference = render_diff(plan) if module._diff else []
    if not module.check_mode:
        apply_tree(plan, os.getpid(), process_exists)
    result = {
        "changed": bool(plan.steps),
        "interpreter": interpreter,
        "sha256": hashlib.sha256(content).hexdigest(),
    }
    return {**result, "diff": difference} if difference else result


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={"path": {"type": "path", "required": True}, "interpreter": {"type": "path"}},
        supports_check_mode=True,
    )
    try:
        result = run(module)
    except LlmopsError as exc:
        module.fail_json(msg=exc.message, **exc.details)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
