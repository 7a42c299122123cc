#!/usr/bin/python
# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: shm_info
short_description: Tell what shared memory and sockets engines left behind, and what uses them
version_added: 0.1.0
author:
  - llmops.vllm maintainers (@llmops)
description:
  - Judges shared memory and sockets exactly as M(llmops.vllm.shm_cleanup) does, and removes nothing.
extends_documentation_fragment:
  - llmops.vllm.attributes
  - llmops.vllm.attributes.actiongroup_vllm
  - llmops.vllm.shm
  - llmops.vllm.attributes.info_module
options:
  owner:
    description: Name or number of the user whose objects could be removed. The default is everybody.
    type: str
seealso:
  - module: llmops.vllm.shm_cleanup
"""

EXAMPLES = r"""
- name: See who uses which segment
  llmops.vllm.shm_info:
    rpc_base_path: /tmp
    sysv: true
  register: shared_memory
"""

RETURN = r"""
objects:
  description: Every object of the families, used or not.
  returned: always
  type: list
  elements: dict
  contains:
    name:
      description: File name, or the number of a System V object.
      type: str
      sample: psm_0a1b2c3d
    path:
      description: Full path; empty for a System V object.
      type: str
      sample: /dev/shm/psm_0a1b2c3d
    family:
      description: Its family; V(sysv_shm) or V(sysv_sem) for a System V object.
      type: str
      sample: python_shm
    apparent_bytes:
      description: Its size.
      type: int
      sample: 251658260
    allocated_bytes:
      description: The memory it occupies.
      type: int
      sample: 4194304
    owner:
      description: User name, or number where there is no name.
      type: str
      sample: vllm
    age_seconds:
      description: Time since its last change.
      type: float
      sample: 86400.0
    verdict:
      description: V(removable) or V(kept).
      type: str
      sample: removable
    reason:
      description:
        - V(unused) when removable.
        - Kept are V(in_use), V(not_provable) (nobody visible uses it, but a process that this user may not look at
          could), V(other_owner), V(too_young), V(keep_list), V(several_names) (it has hard links), V(other_kind) (a
          link, directory or the like with such a name).
      type: str
      sample: unused
    used_by:
      description:
        - PIDs of the processes that map it or, where none does, have it open. Empty for those that cannot be seen,
          and for sockets.
      type: list
      elements: int
      sample: []
freed_bytes:
  description: Sum of C(allocated_bytes) of what is removable.
  returned: always
  type: int
  sample: 33554432
unreadable_processes:
  description: How many processes this user may not look at; normally 0 as root.
  returned: always
  type: int
  sample: 0
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.llmops.vllm.plugins.module_utils.errors import LlmopsError
from ansible_collections.llmops.vllm.plugins.module_utils.shm_run import SHM_ARGUMENTS, ShmRequest, ShmRun

ARGUMENTS = {"owner": {"type": "str"}, **SHM_ARGUMENTS}


def main() -> None:
    """Read the parameters and judge."""
    module = AnsibleModule(argument_spec=ARGUMENTS, supports_check_mode=True)
    try:
        run = ShmRun(ShmRequest(**module.params))
    except LlmopsError as exc:
        module.fail_json(msg=exc.message, **exc.details)
    module.exit_json(changed=False, **run.result("removable"))


if __name__ == "__main__":
    main()
