#!/usr/bin/python
# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: shm_cleanup
short_description: Remove shared memory and sockets that dead engines left behind
version_added: 0.1.0
author:
  - llmops.vllm maintainers (@llmops)
description:
  - Removes what launches leave in C(/dev/shm), in the directory of their sockets, and in System V memory.
  - The name of an object only makes it a candidate. It is removed when it belongs to O(owner), is old enough, no
    process maps, opens or (for sockets) listens on it by device and inode, and the kernel confirms at the moment of
    removal that nobody has it open, in this or another namespace.
  - What cannot be proven unused is kept and reported. Without root, the kernel's answer and the processes that may be
    looked at are the proof.
  - Semaphores of System V do not tell who uses them. They are removed only when no process of their owner lives.
  - Only names right in the given directories are removed, relative to the open directory and after a comparison of
    device, inode, owner and times. No symbolic link is followed.
extends_documentation_fragment:
  - llmops.vllm.attributes
  - llmops.vllm.attributes.actiongroup_vllm
  - llmops.vllm.shm
attributes:
  check_mode:
    support: full
    details: Returns the verdicts and removes nothing.
  diff_mode:
    support: full
    details: Shows the removed names with their families.
options:
  owner:
    description: Name or number of the user whose objects are removed, the one that the service runs as.
    type: str
    required: true
seealso:
  - module: llmops.vllm.shm_info
  - module: llmops.vllm.process_teardown
"""

EXAMPLES = r"""
- name: Remove what earlier launches left, once the service is stopped
  llmops.vllm.shm_cleanup:
    owner: vllm
    rpc_base_path: /tmp

- name: Remove only what is older than the running launch, and keep one segment
  llmops.vllm.shm_cleanup:
    owner: vllm
    older_than_epoch: "{{ launch_started_epoch }}"
    keep: ["psm_0a1b2c3d"]
    extra_families:
      our_cache: "acme_cache_[0-9]+"
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
      description: V(removed) or V(kept).
      type: str
      sample: removed
    reason:
      description:
        - V(unused) when removed.
        - Kept are V(in_use), V(not_provable) (nobody visible uses it, but a process that this user may not look at
          could), V(other_owner), V(too_young), V(keep_list), V(several_names) (it has hard links), V(other_kind) (a
          link, directory or the like with such a name), V(changed) or V(gone) (it changed or went after the look),
          V(not_permitted), or V(ipcrm_missing).
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
  description: Sum of C(allocated_bytes) of what is removed.
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

ARGUMENTS = {"owner": {"type": "str", "required": True}, **SHM_ARGUMENTS}


def main() -> None:
    """Read the parameters, judge, remove."""
    module = AnsibleModule(argument_spec=ARGUMENTS, supports_check_mode=True)
    try:
        run = ShmRun(ShmRequest(**module.params))
        if not module.check_mode:
            run.remove()
    except LlmopsError as exc:
        module.fail_json(msg=exc.message, **exc.details)
    module.exit_json(changed=run.changed, diff=run.diff, **run.result("removed"))


if __name__ == "__main__":
    main()
