#!/usr/bin/python
# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: vllm_instance_info
short_description: Read which release of a vLLM instance is current, proven and serving
version_added: 0.1.0
description:
  - Reads the releases of an instance, their receipts, and the state of the instance's systemd unit.
  - Changes nothing and asks the engine nothing; use M(llmops.vllm.launch_gate) to prove that it answers.
extends_documentation_fragment:
  - llmops.vllm.attributes
  - llmops.vllm.attributes.actiongroup_vllm
  - llmops.vllm.attributes.info_module
  - llmops.vllm.instance
  - llmops.vllm.instance.root
  - llmops.vllm.instance.run_path
options:
  unit:
    description: Full name of the systemd unit. The default is C(vllm@INSTANCE.service).
    type: str
author:
  - llmops.vllm maintainers (@llmops)
seealso:
  - module: llmops.vllm.launch_gate
  - module: llmops.vllm.deploy_lock
  - module: llmops.vllm.release_switch
"""

EXAMPLES = r"""
- name: What does this host serve?
  llmops.vllm.vllm_instance_info:
    instance: kimi
  register: kimi

- name: Deploy only where the release is not proven already
  ansible.builtin.debug:
    msg: "{{ kimi.current.release_id }} is proven and serving"
  when: kimi.proven
"""

RETURN = r"""
exists:
  description: Whether anything of the instance lies on the disk.
  returned: success
  type: bool
  sample: true
current:
  description: The release that the link C(current) leads to, or V(null).
  returned: success
  type: dict
  contains:
    release_id:
      description: Identifier of the release; empty when the link leads out of the instance's releases.
      returned: always
      type: str
      sample: 3f7a9c1e22b4
    path:
      description: Directory of the release.
      returned: always
      type: str
      sample: /srv/llm/releases/kimi/3f7a9c1e22b4
    receipt:
      description: The content of C(release.json), or V(null).
      returned: always
      type: dict
      sample: {"outcome": "proven", "invocation_id": "0123456789abcdef0123456789abcdef"}
previous:
  description: The release that the link C(previous) leads to, or V(null).
  returned: success
  type: dict
  contains:
    release_id:
      description: Identifier of the release; empty when the link leads out of the instance's releases.
      returned: always
      type: str
      sample: 8d01b6c04e17
    path:
      description: Directory of the release.
      returned: always
      type: str
      sample: /srv/llm/releases/kimi/8d01b6c04e17
    receipt:
      description: The content of C(release.json), or V(null).
      returned: always
      type: dict
      sample: {"outcome": "proven", "invocation_id": "fedcba9876543210fedcba9876543210"}
last_proven:
  description: The last release that has proved itself, which is the one to go back to, or V(null).
  returned: success
  type: dict
  contains:
    release_id:
      description: Identifier of the release; empty when the link leads out of the instance's releases.
      returned: always
      type: str
      sample: 8d01b6c04e17
    path:
      description: Directory of the release.
      returned: always
      type: str
      sample: /srv/llm/releases/kimi/8d01b6c04e17
    receipt:
      description: The content of C(release.json), or V(null).
      returned: always
      type: dict
      sample: {"outcome": "proven", "invocation_id": "fedcba9876543210fedcba9876543210"}
intent:
  description: A rollout that has begun and not ended, or V(null). Without RV(lock) it was interrupted.
  returned: success
  type: dict
  contains:
    run_id:
      description: Identifier of its run.
      returned: always
      type: str
      sample: 5f0c1b7a9d3e
    holder:
      description: Who started the run, and where.
      returned: always
      type: str
      sample: ops@controller-1
    action:
      description: What the rollout is.
      returned: always
      type: str
      sample: deploy
    source:
      description: The release that was proven when it began, or an empty string.
      returned: always
      type: str
      sample: 8d01b6c04e17
    target:
      description: The release that it was to put in place.
      returned: always
      type: str
      sample: 3f7a9c1e22b4
    step:
      description: V(intended) before C(current) was moved, V(switched) afterwards.
      returned: always
      type: str
      sample: switched
    since:
      description: When this step began (UTC).
      returned: always
      type: str
      sample: "2026-03-01T10:00:00Z"
lock:
  description: The run that may change the instance, see M(llmops.vllm.deploy_lock), or V(null).
  returned: success
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
releases:
  description: Every release on the disk, by identifier.
  returned: success
  type: list
  elements: dict
  contains:
    release_id:
      description: Identifier of the release.
      returned: always
      type: str
      sample: 3f7a9c1e22b4
    proven:
      description: Whether the receipt says that a launch of it has proved itself.
      returned: always
      type: bool
      sample: true
proven_release:
  description: Whether the receipt of the current release says that it has proved itself.
  returned: success
  type: bool
  sample: true
serving:
  description: Whether the unit is active with a main process.
  returned: success
  type: bool
  sample: true
proven:
  description:
    - Whether the current release is proven and the unit serves a launch of it.
    - Such a launch is the one in the receipt, or one that began after the link C(current) was made (a restart or a
      reboot).
  returned: success
  type: bool
  sample: true
runs_current:
  description: Whether the launch that the unit is at, proven or not, is one of the current release.
  returned: success
  type: bool
  sample: true
unit:
  description: The unit as systemd shows it; empty values when the unit or systemd is not there.
  returned: success
  type: dict
  contains:
    name:
      description: Name of the unit.
      returned: always
      type: str
      sample: vllm@kimi.service
    systemd:
      description: Whether systemd answers on this host.
      returned: always
      type: bool
      sample: true
    load_state:
      description: C(LoadState), V(not-found) for an unknown unit.
      returned: always
      type: str
      sample: loaded
    active_state:
      description: C(ActiveState).
      returned: always
      type: str
      sample: active
    sub_state:
      description: C(SubState).
      returned: always
      type: str
      sample: running
    result:
      description: C(Result), how the last launch ended.
      returned: always
      type: str
      sample: success
    invocation_id:
      description: C(InvocationID), the identity of the launch.
      returned: always
      type: str
      sample: 0123456789abcdef0123456789abcdef
    main_pid:
      description: C(MainPID), 0 when there is none.
      returned: always
      type: int
      sample: 4711
    n_restarts:
      description: C(NRestarts), automatic restarts.
      returned: always
      type: int
      sample: 0
    exec_main_pid:
      description: C(ExecMainPID), the last main process, also after its end; 0 when there was none.
      returned: always
      type: int
      sample: 4711
    exec_main_code:
      description: C(ExecMainCode); 1 exited, 2 killed, 3 dumped core, 0 not ended.
      returned: always
      type: int
      sample: 0
    exec_main_status:
      description: C(ExecMainStatus), exit status or signal.
      returned: always
      type: int
      sample: 0
    control_group:
      description: C(ControlGroup).
      returned: always
      type: str
      sample: /system.slice/vllm@kimi.service
    unit_file_state:
      description: C(UnitFileState).
      returned: always
      type: str
      sample: enabled
    status_text:
      description: C(StatusText), what the service told systemd.
      returned: always
      type: str
      sample: ""
    exec_main_start_seconds:
      description: When the main process started, in seconds of CLOCK_MONOTONIC; 0 when never.
      returned: always
      type: float
      sample: 5123.4
    active_enter_seconds:
      description: When the unit became active, in seconds of CLOCK_MONOTONIC; 0 when never.
      returned: always
      type: float
      sample: 5123.5
"""

import time

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.llmops.vllm.plugins.module_utils.deploy_lock import RUN_PATH, read_lock
from ansible_collections.llmops.vllm.plugins.module_utils.errors import LlmopsError
from ansible_collections.llmops.vllm.plugins.module_utils.instance import (
    Release,
    is_proven,
    read_instance,
    runs_current,
)
from ansible_collections.llmops.vllm.plugins.module_utils.systemd import run_command, show_unit, started_seconds


def as_result(release: Release | None) -> dict[str, object] | None:
    """Return a release for the result, or None."""
    return release.as_dict() if release is not None else None


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "instance": {"type": "str", "required": True},
            "root": {"type": "path", "default": "/srv/llm"},
            "unit": {"type": "str"},
            "run_path": {"type": "path", "default": RUN_PATH},
        },
        supports_check_mode=True,
    )
    name = module.params["instance"]
    try:
        instance = read_instance(module.params["root"], name)
        lock = read_lock(name, module.params["run_path"])
        unit = show_unit(run_command, module.params["unit"] or f"vllm@{name}.service")
    except LlmopsError as exc:
        module.fail_json(msg=exc.message, **exc.details)
    started = started_seconds(unit, time.time(), time.monotonic())
    for warning in instance.warnings:
        module.warn(warning)
    module.exit_json(
        changed=False,
        exists=instance.exists,
        current=as_result(instance.current),
        previous=as_result(instance.previous),
        last_proven=as_result(instance.last_proven),
        intent=instance.intent and instance.intent.as_dict(),
        lock=lock and lock.as_dict(),
        releases=[{"release_id": release.release_id, "proven": release.proven} for release in instance.releases],
        proven_release=instance.current is not None and instance.current.proven,
        serving=unit.serving,
        proven=is_proven(instance, unit, started),
        runs_current=runs_current(instance, unit, started),
        unit=unit.as_dict(),
    )


if __name__ == "__main__":
    main()
