#!/usr/bin/python
# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: deploy_lock
short_description: Let one run at a time change an instance of a host
version_added: 0.1.0
description:
  - Takes, renews or releases the lock of an instance on the host. A lock names its run, who started it where, since
    when, and why.
  - Another run's lock is taken over, with a warning, when that run is gone. A run of the same controller is looked for
    among its processes; any other is gone when it has not shown itself for O(lease_seconds).
  - The lock lies below C(/run), so the reboot of the host releases it. No run survives that.
  - A run releases only its own lock, unless O(force) is given.
extends_documentation_fragment:
  - llmops.vllm.attributes
  - llmops.vllm.attributes.actiongroup_vllm
  - llmops.vllm.attributes.check_and_diff
  - llmops.vllm.instance
  - llmops.vllm.instance.run_path
options:
  state:
    description: Whether this run shall hold the lock, or nobody.
    type: str
    choices: [held, free]
    default: held
  why:
    description: What the run is about to do, for whoever meets the lock.
    type: str
    default: ""
  wait_seconds:
    description: How long to ask again while another run holds the lock. The action plugin does it, on the controller.
    type: float
    default: 0
  lease_seconds:
    description: After how long without a sign a run counts as gone, when its process cannot be looked for.
    type: float
    default: 7200
  force:
    description: Whether O(state=free) releases the lock of another run as well.
    type: bool
    default: false
  run_id:
    description: Identifier of the run. The action plugin gives that of the running C(ansible-playbook).
    type: str
    required: true
  holder:
    description: Who started the run, and where. The action plugin gives it.
    type: str
    default: ""
  process:
    description: The run's process on the controller. The action plugin gives it.
    type: dict
    default: {}
  dead_run_id:
    description: A run whose process the controller knows to be gone. The action plugin gives it.
    type: str
    default: ""
author:
  - llmops.vllm maintainers (@llmops)
seealso:
  - module: llmops.vllm.release_switch
  - module: llmops.vllm.vllm_instance_info
"""

EXAMPLES = r"""
- name: Be the only run that changes the instance
  llmops.vllm.deploy_lock:
    instance: kimi
    why: new certificates
    wait_seconds: 600

- name: Let others in again
  llmops.vllm.deploy_lock:
    instance: kimi
    state: free

- name: Release the lock of a run that is gone for good
  llmops.vllm.deploy_lock:
    instance: kimi
    state: free
    force: true
"""

RETURN = r"""
lock:
  description: The lock as it is afterwards, or the one that is in the way; V(null) when nobody holds it.
  returned: always
  type: dict
  contains:
    run_id:
      description: Identifier of the run; empty for a lock that makes no sense.
      returned: always
      type: str
      sample: 5f0c1b7a9d3e
    holder:
      description: Who started the run, and where.
      returned: always
      type: str
      sample: ops@controller-1
    why:
      description: What the run is doing.
      returned: always
      type: str
      sample: deploy 3f7a9c1e22b4
    since:
      description: When it took the lock (UTC).
      returned: always
      type: str
      sample: "2026-03-01T10:00:00Z"
    renewed_seconds:
      description: When it last showed itself, in seconds of the host's CLOCK_MONOTONIC.
      returned: always
      type: float
      sample: 5123.4
    process:
      description: The run's process on its controller.
      returned: always
      type: dict
      sample: {"host": "controller-1", "pid": 4711}
before:
  description: The lock as it was, or V(null); with the keys of RV(lock).
  returned: success
  type: dict
  sample: null
note:
  description: Why a lock of another run was taken over, or an empty string.
  returned: success
  type: str
  sample: "Took over the lock of ops@controller-1 since 2026-03-01T10:00:00Z (deploy): its process is gone."
run:
  description: Who this run is, as the action plugin sees it on the controller.
  returned: success
  type: dict
  contains:
    id:
      description: Identifier of the run, the same for all of its tasks.
      returned: always
      type: str
      sample: 5f0c1b7a9d3e
    holder:
      description: Who started it, and where.
      returned: always
      type: str
      sample: ops@controller-1
    git_commit:
      description:
        - The commit that the playbook's directory has checked out, with C(+changes) when files differ from it.
        - Empty outside a Git checkout.
      returned: always
      type: str
      sample: 1f0e2d3c4b5a69788796a5b4c3d2e1f001122334
"""

import time
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.llmops.vllm.plugins.module_utils.deploy_lock import RUN_PATH, DeployLock, Lock, LockPlan
from ansible_collections.llmops.vllm.plugins.module_utils.errors import LlmopsError

ARGUMENT_SPEC: dict[str, dict[str, Any]] = {
    "instance": {"type": "str", "required": True},
    "state": {"type": "str", "choices": ["held", "free"], "default": "held"},
    "why": {"type": "str", "default": ""},
    "wait_seconds": {"type": "float", "default": 0},
    "lease_seconds": {"type": "float", "default": 7200},
    "force": {"type": "bool", "default": False},
    "run_path": {"type": "path", "default": RUN_PATH},
    "run_id": {"type": "str", "required": True},
    "holder": {"type": "str", "default": ""},
    "process": {"type": "dict", "default": {}},
    "dead_run_id": {"type": "str", "default": ""},
}


def plan_lock(lock: DeployLock, params: dict[str, Any]) -> LockPlan:
    """Plan what the parameters ask for. Raises LlmopsError."""
    if params["state"] == "free":
        return lock.plan_free(params["run_id"], params["force"])
    wanted = Lock(
        run_id=params["run_id"],
        holder=params["holder"],
        why=params["why"],
        since=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        process=params["process"],
    )
    return lock.plan_held(wanted, params["lease_seconds"], params["dead_run_id"])


def main() -> None:
    """Run the module."""
    module = AnsibleModule(argument_spec=ARGUMENT_SPEC, supports_check_mode=True)
    try:
        lock = DeployLock(module.params["instance"], time.monotonic, module.params["run_path"])
        plan = plan_lock(lock, module.params)
        if not module.check_mode:
            lock.apply(plan)
    except LlmopsError as exc:
        module.fail_json(msg=exc.message, **exc.details)
    if plan.note:
        module.warn(plan.note)
    module.exit_json(
        changed=plan.changed,
        diff=plan.differences().as_diff(),
        lock=plan.after and plan.after.as_dict(),
        before=plan.before and plan.before.as_dict(),
        note=plan.note,
    )


if __name__ == "__main__":
    main()
