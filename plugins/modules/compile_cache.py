#!/usr/bin/python
# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: compile_cache
short_description: Keep what an engine has compiled for the runtime and GPUs that it was compiled for
version_added: 0.1.0
description:
  - The compile caches of an instance survive its releases. Those of another runtime, GPU or driver are put aside, and
    come back with them. The engine itself tells configurations apart.
  - A cache is dropped when anything in it belongs to somebody else, can be written by everybody, leads out of it, or is
    an empty file in place of code. So is one of which nobody knows what it was compiled for.
  - The engine must not run meanwhile. Where the caches' directory is not there yet, nothing happens.
  - What is done is done as the engine's user, also when the module runs as root.
extends_documentation_fragment:
  - llmops.vllm.attributes
  - llmops.vllm.attributes.actiongroup_vllm
  - llmops.vllm.attributes.check_and_diff
options:
  path:
    description: Directory of the instance's caches.
    type: path
    required: true
  names:
    description: The caches, as directories below O(path).
    type: list
    elements: str
    default: [vllm/torch_compile_cache, triton, torchinductor]
  runtime:
    description: The runtime's directory, or a link to it.
    type: path
    required: true
  owner:
    description: User that the engine runs as.
    type: str
    required: true
  keep:
    description: How many sets of caches of other runtimes, GPUs and drivers stay.
    type: int
    default: 2
author:
  - llmops.vllm maintainers (@llmops)
"""

EXAMPLES = r"""
- name: Give the engine the caches of its runtime
  llmops.vllm.compile_cache:
    path: /var/cache/vllm/kimi
    runtime: /srv/llm/instances/kimi/current/runtime
    owner: vllm
"""

RETURN = r"""
key:
  description: What the caches are for, a hash of runtime, GPUs and driver.
  returned: success
  type: str
  sample: 0f1e2d3c4b5a
dropped:
  description: The caches that are removed, each with the reason.
  returned: success
  type: dict
  sample: {"triton": "abc/kernel.cubin is empty"}
aside:
  description: The caches that are put aside, being another runtime's.
  returned: success
  type: list
  elements: str
  sample: []
back:
  description: The caches that come back.
  returned: success
  type: list
  elements: str
  sample: [vllm/torch_compile_cache]
"""

import pwd
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.llmops.vllm.plugins.module_utils.compile_cache import (
    acting_as,
    as_result,
    cache_key,
    plan_caches,
    read_gpus,
)
from ansible_collections.llmops.vllm.plugins.module_utils.errors import LlmopsError
from ansible_collections.llmops.vllm.plugins.module_utils.users import find_uid

ARGUMENT_SPEC: dict[str, dict[str, Any]] = {
    "path": {"type": "path", "required": True},
    "names": {
        "type": "list",
        "elements": "str",
        "default": ["vllm/torch_compile_cache", "triton", "torchinductor"],
    },
    "runtime": {"type": "path", "required": True},
    "owner": {"type": "str", "required": True},
    "keep": {"type": "int", "default": 2},
}


def primary_group(uid: int) -> int:
    """Return the primary group of a user, the number of the user itself where the host does not know it."""
    try:
        return pwd.getpwuid(uid).pw_gid
    except KeyError:
        return uid


def main() -> None:
    """Run the module."""
    module = AnsibleModule(argument_spec=ARGUMENT_SPEC, supports_check_mode=True)
    params = module.params
    try:
        uid = find_uid(params["owner"])
        key = cache_key(params["runtime"], *read_gpus())
        with acting_as(uid, primary_group(uid)):
            plan = plan_caches(params["path"], params["names"], key, uid, max(0, params["keep"]))
            if not module.check_mode:
                plan.apply()
    except LlmopsError as exc:
        module.fail_json(msg=exc.message, **exc.details)
    for name, why in plan.dropped.items():
        module.warn(f"The compile cache {name} is dropped: {why}.")
    module.exit_json(changed=plan.changed, diff=plan.differences().as_diff(), **as_result(plan))


if __name__ == "__main__":
    main()
