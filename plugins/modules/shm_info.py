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
  - llmops.vllm.attributes.info_module
options:
  owner:
    description: Name or number of the user whose objects could be removed. The default is everybody.
    type: str
  families:
    description:
      - Which kinds of objects to look at. The default is all of them.
      - V(zmq_socket) and V(vllm_rendezvous) lie in O(rpc_base_path), the others in O(shm_path).
    type: list
    elements: str
    choices:
      - python_shm
      - python_semaphore
      - loky_semaphore
      - nccl
      - vllm_offload
      - vllm_encoder_cache
      - vllm_distributed
      - torch
      - cuda_ipc
      - openmp
      - ray_plasma
      - zmq_socket
      - vllm_rendezvous
  extra_families:
    description:
      - More kinds of objects in O(shm_path), name to regular expression. The expression must match the whole file
        name.
    type: dict
    default: {}
  older_than_seconds:
    description: Keep what changed within this time.
    type: float
  older_than_epoch:
    description:
      - Keep what changed at or after this time, in seconds since 1970. Give the start of a launch to keep its
        objects.
      - With O(older_than_seconds), an object must be older than both.
    type: float
  keep:
    description: Globs of names to keep.
    type: list
    elements: str
    default: []
  shm_path:
    description: Directory of POSIX shared memory.
    type: path
    default: /dev/shm
  rpc_base_path:
    description:
      - Directory in which engines create their sockets and rendezvous files (C(VLLM_RPC_BASE_PATH), by default
        C(/tmp)). It is not searched when this is empty.
    type: path
    default: ""
  sysv:
    description: Whether to look at System V shared memory and semaphores too.
    type: bool
    default: false
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
      description: PIDs of the processes that map or open it, where they can be seen.
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
from ansible_collections.llmops.vllm.plugins.module_utils.shm import FAMILY_NAMES
from ansible_collections.llmops.vllm.plugins.module_utils.shm_run import ShmRequest, ShmRun

ARGUMENTS = {
    "owner": {"type": "str"},
    "families": {"type": "list", "elements": "str", "choices": list(FAMILY_NAMES)},
    "extra_families": {"type": "dict", "default": {}},
    "older_than_seconds": {"type": "float"},
    "older_than_epoch": {"type": "float"},
    "keep": {"type": "list", "elements": "str", "default": []},
    "shm_path": {"type": "path", "default": "/dev/shm"},  # noqa: S108 - where POSIX shared memory lies on Linux
    "rpc_base_path": {"type": "path", "default": ""},
    "sysv": {"type": "bool", "default": False},
}


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
