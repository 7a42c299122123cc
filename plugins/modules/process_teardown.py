#!/usr/bin/python
# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: process_teardown
short_description: End exactly the processes of a service, and prove that they are gone
version_added: 0.1.0
author:
  - llmops.vllm maintainers (@llmops)
description:
  - Stops a unit and ends what remains of its service, or a service that was started without a unit.
  - Selects by ownership, never by a loose name. A process is selected when it is in the given O(unit) or O(cgroup),
    or when one of the other selectors finds it and it runs as O(owner) outside any other living unit, container or
    user service. Selectors add up.
  - Sends SIGTERM to the main processes, waits, sends SIGTERM to the rest, waits, and sends SIGKILL to what is left,
    with C(cgroup.kill) where the kernel has it. Each signal goes through a pidfd or after a check of the start time,
    so that a later process with the same PID is never hit.
  - Looks again between the steps, so that children born meanwhile are ended too.
  - Never ends itself, its ancestors, PID 1, a kernel thread, or a process of another unit or user that
    O(allow_foreign) does not name.
  - Fails, before any signal is sent, when a foreign process holds the port, socket or a device that was asked for;
    the message names its PID, user, unit, command, and how long it has run. Fails at the end when the host is not
    clean. Both failures return the values below.
  - Works as root, and without for processes of the same user; in containers; with cgroup v1, hybrid and v2.
extends_documentation_fragment:
  - llmops.vllm.attributes
  - llmops.vllm.attributes.actiongroup_vllm
attributes:
  check_mode:
    support: full
    details: Lists in RV(targets) exactly what would be ended.
  diff_mode:
    support: full
    details: Shows the selected processes as a tree.
options:
  unit:
    description:
      - Full name of a systemd service or scope, such as V(vllm@kimi.service). Selects all processes in its control
        group, also when the unit is no longer active.
      - It has to be stopped, before or with O(stop_unit); this module ends what remains. A unit that is active may be
        started again by systemd.
    type: str
  stop_unit:
    description:
      - Whether O(unit) is stopped first, by systemd, which gives its requests the time that the unit names to end
        (C(TimeoutStopSec)).
      - A unit that systemd does not know is stopped.
    type: bool
    default: false
  cgroup:
    description:
      - Path of a control group, as in C(/proc/PID/cgroup) or below C(/sys/fs/cgroup). Selects all processes in it and
        below it.
    type: str
  pid_file:
    description:
      - Path of a file with a process id. A file older than the process it names is stale and selects nothing. It
        means the process that had the number when the file was read, at every later look too.
      - Without O(unit), O(cgroup) and O(owner), the process is believed to be the service when root or the user that
        the process runs as owns the file.
    type: path
  port:
    description: TCP port; selects who listens on it, on any address of this network namespace.
    type: int
  socket_path:
    description: Path of a unix socket; selects who has it open.
    type: str
  devices:
    description:
      - Globs of device nodes below C(/dev), such as V(/dev/nvidia*); selects who has one open, as every process with
        memory on a GPU does.
    type: list
    elements: str
    default: []
  exe:
    description: Regular expression that must match the whole path of the executable. Needs O(owner).
    type: str
  title:
    description: Regular expression that must match the whole command line or title. Needs O(owner).
    type: str
  orphans:
    description:
      - Select engine processes of earlier launches, with their descendants. Their title starts with C(VLLM::), their
        parent died, they run as O(owner), and they are in no living unit.
    type: bool
    default: false
  owner:
    description: Name or number of the user that the service runs as.
    type: str
  include:
    description:
      - What else to select besides the processes found. A process group or session with this module in it is not
        followed.
      - A child is known as a descendant as long as its parent lives. One that is born in the moment in which its
        parent ends is found by V(group) and V(session), and always by O(unit) and O(cgroup).
    type: list
    elements: str
    choices: [descendants, group, session]
    default: []
  allow_foreign:
    description: User names and units whose processes are ended too when a selector finds them.
    type: list
    elements: str
    default: []
  tolerate_foreign:
    description:
      - User names and units whose processes are left alone and may go on holding a device. They are reported, and are
        no failure.
      - The default names the services of the GPU driver, which hold device nodes and use no memory of the GPU.
    type: list
    elements: str
    default:
      - nvidia-persistenced
      - nvidia-persistenced.service
      - nvidia-fabricmanager.service
      - nvidia-dcgm.service
  grace_seconds:
    description: How long processes may take after SIGTERM, once for the main processes and once more for the rest.
    type: float
    default: 30
  kill_seconds:
    description:
      - How long to repeat SIGKILL until nothing is left. Counts anew whenever fewer processes are left than before, as
        a loaded host takes its time.
    type: float
    default: 10
  expect_port_free:
    description: Whether O(port) must have no listener at the end. Defaults to true when O(port) is given.
    type: bool
  gpu_memory_floor_bytes:
    description:
      - Memory that may remain in use on each GPU at the end. Only the GPUs whose C(/dev/nvidiaN) is in O(devices), or
        all.
      - Where C(nvidia-smi) cannot tell, the check is skipped and RV(gpu_memory) says why.
      - When more remains, the failure names whom the driver names as its users, also in other containers.
    type: int
  gpu_wait_seconds:
    description: How long to wait for O(gpu_memory_floor_bytes).
    type: float
    default: 60
seealso:
  - module: llmops.vllm.shm_cleanup
"""

EXAMPLES = r"""
- name: Stop the service, and end what remains of it
  llmops.vllm.process_teardown:
    unit: vllm@kimi.service
    stop_unit: true
    owner: vllm
    port: 8000
    devices: ["/dev/nvidia*"]
    orphans: true
    gpu_memory_floor_bytes: 1073741824

- name: End a server that somebody started by hand, with its engine and workers
  llmops.vllm.process_teardown:
    pid_file: /run/vllm/kimi.pid
    include: [descendants, group]
    grace_seconds: 10

- name: Show what would be ended
  llmops.vllm.process_teardown:
    owner: vllm
    orphans: true
  check_mode: true
  diff: true
"""

RETURN = r"""
stopped:
  description: Whether O(unit) was (or in check mode would be) stopped.
  returned: always
  type: bool
  sample: true
targets:
  description:
    - The selected processes in the order in which they are (or in check mode would be) ended.
    - Each has C(pid), C(ppid), C(user), C(unit) (or null), C(command) (secrets hidden), C(state), C(running_seconds),
      C(via) (what found it, such as the unit's name, V(TCP port 8000), V(/dev/nvidia0), V(orphan) or V(descendant))
      and C(main) (whether it gets SIGTERM first).
  returned: always
  type: list
  elements: dict
  sample:
    - pid: 4242
      ppid: 1
      user: vllm
      unit: vllm@kimi.service
      command: "VLLM::EngineCore"
      state: S
      running_seconds: 86400.0
      via: [vllm@kimi.service]
      main: true
ended:
  description:
    - The processes that are gone, as in RV(targets), with the last C(signal) sent (empty when it went by itself) and
      C(after_seconds).
  returned: always; empty in check mode
  type: list
  elements: dict
  sample:
    - pid: 4242
      ppid: 1
      user: vllm
      unit: vllm@kimi.service
      command: "VLLM::EngineCore"
      state: S
      running_seconds: 86400.0
      signal: TERM
      after_seconds: 0.4
survivors:
  description:
    - The processes that are still there, with C(reason) and C(detail).
    - The reason is V(zombie) (dead, not collected by its parent; no failure), V(uninterruptible) (the detail names
      the kernel function it waits in), V(traced), V(not_permitted), V(respawned) or V(ignored_kill).
  returned: always
  type: list
  elements: dict
  sample: []
foreign:
  description:
    - Processes that a selector found and that were left alone, as in RV(targets) with C(blocking) (whether that is a
      failure) in place of C(main).
  returned: always
  type: list
  elements: dict
  sample: []
protected:
  description: This module, its ancestors or PID 1, where a selector found them, as in RV(foreign).
  returned: always
  type: list
  elements: dict
  sample: []
waited_seconds:
  description: How long ending and proving took, in seconds.
  returned: always
  type: float
  sample: 0.8
port_free:
  description: Whether nothing listens on O(port); null when no port was given.
  returned: always
  type: bool
  sample: true
freed_bytes:
  description: GPU memory freed, or null where it is not known.
  returned: always
  type: int
  sample: 768000000000
gpu_memory:
  description:
    - The memory in use at the end as a list C(gpus) of C(bus_id) and C(used_bytes), and C(skipped), the reason why
      there is none (empty when checked).
    - C(processes) are those that the driver names on GPUs that stay above the floor, with C(bus_id), C(pid), C(name)
      and C(used_bytes). Their PIDs can be those of another PID namespace.
  returned: always
  type: dict
  sample: {gpus: [{bus_id: "00000000:0A:00.0", used_bytes: 4194304}], processes: [], skipped: ""}
unit_state:
  description: ActiveState of O(unit), empty when no unit was given.
  returned: always
  type: str
  sample: inactive
unreadable_processes:
  description:
    - How many processes may not be looked at by this user when ports, sockets or devices are searched; normally
      0 as root.
  returned: always
  type: int
  sample: 0
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.llmops.vllm.plugins.module_utils.errors import LlmopsError
from ansible_collections.llmops.vllm.plugins.module_utils.teardown_run import TeardownRequest, TeardownRun

ARGUMENTS = {
    "unit": {"type": "str"},
    "stop_unit": {"type": "bool", "default": False},
    "cgroup": {"type": "str"},
    "pid_file": {"type": "path"},
    "port": {"type": "int"},
    "socket_path": {"type": "str"},
    "devices": {"type": "list", "elements": "str", "default": []},
    "exe": {"type": "str"},
    "title": {"type": "str"},
    "orphans": {"type": "bool", "default": False},
    "owner": {"type": "str"},
    "include": {"type": "list", "elements": "str", "choices": ["descendants", "group", "session"], "default": []},
    "allow_foreign": {"type": "list", "elements": "str", "default": []},
    "tolerate_foreign": {
        "type": "list",
        "elements": "str",
        "default": [
            "nvidia-persistenced",
            "nvidia-persistenced.service",
            "nvidia-fabricmanager.service",
            "nvidia-dcgm.service",
        ],
    },
    "grace_seconds": {"type": "float", "default": 30},
    "kill_seconds": {"type": "float", "default": 10},
    "expect_port_free": {"type": "bool"},
    "gpu_memory_floor_bytes": {"type": "int"},
    "gpu_wait_seconds": {"type": "float", "default": 60},
}


def main() -> None:
    """Read the parameters, end what they select, prove it."""
    module = AnsibleModule(
        argument_spec=ARGUMENTS,
        required_by={"exe": ["owner"], "title": ["owner"]},
        required_if=[("orphans", True, ("owner",))],
        supports_check_mode=True,
    )
    try:
        run = TeardownRun(TeardownRequest(**module.params), check_mode=module.check_mode)
        result = run.report() if module.check_mode else run.apply()
    except LlmopsError as exc:
        module.fail_json(msg=exc.message, **exc.details)
    for warning in run.warnings:
        module.warn(warning)
    module.exit_json(diff=run.diff, **result)


if __name__ == "__main__":
    main()
