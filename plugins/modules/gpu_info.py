#!/usr/bin/python
# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_info
short_description: Tell what NVIDIA GPUs a host has, how they are, and who holds them
version_added: 0.1.0
author:
  - llmops.vllm maintainers (@llmops)
description:
  - Asks C(nvidia-smi), the PCI bus and C(/proc). Reads what the drivers 510 to 610 print.
  - Never fails for want of a GPU, a driver or an answer; RV(present) is then false and RV(reason) says why.
  - A driver that hangs costs O(timeout_seconds), once.
extends_documentation_fragment:
  - llmops.vllm.attributes
  - llmops.vllm.attributes.actiongroup_vllm
  - llmops.vllm.attributes.info_module
options:
  topology:
    description: Whether to ask how the GPUs are connected; asked only of a host with more than one.
    type: bool
    default: true
  kernel_log:
    description: Whether to look for errors of GPUs in the kernel's messages since boot.
    type: bool
    default: true
  timeout_seconds:
    description: How long each question may take, in seconds.
    type: float
    default: 20
notes:
  - Run as root. Others see neither whose processes hold the GPUs nor, on most hosts, the kernel's messages.
  - Without persistence mode the driver is loaded for each question, which takes seconds for each GPU.
seealso:
  - module: llmops.vllm.launch_preflight
  - module: llmops.vllm.process_teardown
"""

EXAMPLES = r"""
- name: Look at the GPUs
  llmops.vllm.gpu_info:
  register: gpus

- name: No GPU of the host is lost or broken
  ansible.builtin.assert:
    that:
      - gpus.present
      - gpus.gpus | length == 8
      - gpus.missing | length == 0
      - gpus.gpus | selectattr('fault') | length == 0
    fail_msg: "{{ gpus.reason or gpus.missing }}"
"""

RETURN = r"""
present:
  description: Whether there is a GPU that can be asked.
  returned: always
  type: bool
  sample: true
reason:
  description: Why there is none; empty when there is.
  returned: always
  type: str
  sample: nvidia-smi is not installed; no NVIDIA GPU is on the PCI bus
answered:
  description: Whether the driver could be asked at all; false without C(nvidia-smi) and when it did not answer in time.
  returned: always
  type: bool
  sample: true
driver_version:
  description: Version of the driver; empty when none is loaded.
  returned: always
  type: str
  sample: 595.58.03
cuda_version:
  description: The newest CUDA that the driver takes.
  returned: always
  type: str
  sample: "13.2"
kernel_module:
  description: V(open), V(proprietary), or empty when no module is loaded.
  returned: always
  type: str
  sample: open
gpus:
  description: The GPUs, by index. What the driver does not tell is null or empty.
  returned: always
  type: list
  elements: dict
  contains:
    index:
      description: The number that C(nvidia-smi) gives it. A lost GPU keeps its number, so there can be gaps.
      type: int
      sample: 0
    bus_id:
      description: PCI address as the kernel writes it.
      type: str
      sample: "0000:0a:00.0"
    uuid:
      description: Identity of the GPU.
      type: str
      sample: GPU-00000001-0000-4000-8000-000000000001
    minor:
      description: N of C(/dev/nvidiaN).
      type: int
      sample: 0
    name:
      description: Name of the product.
      type: str
      sample: NVIDIA RTX PRO 6000 Blackwell Server Edition
    architecture:
      description: Generation of the GPU.
      type: str
      sample: Blackwell
    compute_capability:
      description: Compute capability; drivers older than 495 do not tell it.
      type: str
      sample: "12.0"
    memory_total_bytes:
      description: Memory of the GPU; null on GPUs that share the host's.
      type: int
      sample: 102641958912
    memory_reserved_bytes:
      description: The part that the driver keeps for itself.
      type: int
      sample: 662700032
    memory_used_bytes:
      description: Memory in use.
      type: int
      sample: 0
    memory_free_bytes:
      description: Memory that is free.
      type: int
      sample: 101979258880
    persistence:
      description: Whether the driver stays loaded while nobody uses the GPU.
      type: bool
      sample: true
    compute_mode:
      description: Who may use the GPU at a time.
      type: str
      sample: Default
    temperature_celsius:
      description: Temperature.
      type: int
      sample: 34
    power_draw_watts:
      description: Power drawn.
      type: float
      sample: 84.5
    power_limit_watts:
      description: Power it may draw.
      type: float
      sample: 600.0
    slowdown:
      description: Why its clocks are lower than they could be, such as V(hw_thermal_slowdown) or V(sw_power_cap).
      type: list
      elements: str
      sample: []
    recovery_action:
      description: What the driver asks for before the GPU can be used, such as V(Reset); empty when nothing.
      type: str
      sample: ""
    fault:
      description: What the driver says in place of values, such as V(GPU is lost); empty for a sound GPU.
      type: str
      sample: ""
    ecc:
      description: Error correction.
      type: dict
      contains:
        mode:
          description: V(enabled), V(disabled), or empty where there is none.
          type: str
          sample: enabled
        pending:
          description: The mode after the next reset.
          type: str
          sample: enabled
        corrected_volatile:
          description: Corrected errors since the driver was loaded.
          type: int
          sample: 0
        uncorrected_volatile:
          description: Uncorrectable errors since the driver was loaded.
          type: int
          sample: 0
        uncorrected_aggregate:
          description: Uncorrectable errors in the GPU's life.
          type: int
          sample: 0
        remap_pending:
          description: Whether damaged memory waits for a reset to be replaced.
          type: bool
          sample: false
        remap_failed:
          description: Whether damaged memory could not be replaced.
          type: bool
          sample: false
    mig:
      description: Division into several GPUs.
      type: dict
      contains:
        mode:
          description: V(enabled), V(disabled), or empty where there is none.
          type: str
          sample: disabled
        devices:
          description: The parts, with RV(ignore:index), RV(ignore:gpu_instance), RV(ignore:memory_total_bytes) and
            RV(ignore:memory_used_bytes).
          type: list
          elements: dict
          sample: []
    fabric:
      description: The NVLink fabric behind NVSwitches; both are empty without one.
      type: dict
      contains:
        state:
          description: V(Completed) when it is ready.
          type: str
          sample: Completed
        status:
          description: V(Success) when it is ready.
          type: str
          sample: Success
    pcie:
      description: The PCIe link. An idle GPU may lower its generation.
      type: dict
      contains:
        generation:
          description: Present generation.
          type: int
          sample: 5
        generation_max:
          description: Highest generation of GPU and slot.
          type: int
          sample: 5
        width:
          description: Present width.
          type: int
          sample: 16
        width_max:
          description: Highest width.
          type: int
          sample: 16
    processes:
      description: Processes that hold memory of the GPU.
      type: list
      elements: dict
      contains:
        pid:
          description: Process id.
          type: int
          sample: 4242
        name:
          description: Name as the driver tells it.
          type: str
          sample: VLLM::Worker_TP0
        kind:
          description: V(C) for computing, V(G) for graphics, V(C+G), V(M+C) through MPS.
          type: str
          sample: C
        used_bytes:
          description: Memory that it holds.
          type: int
          sample: 94489280512
        user:
          description: Its user; empty where the process cannot be seen.
          type: str
          sample: vllm
        unit:
          description: Its unit or container; empty when it has none or cannot be seen.
          type: str
          sample: vllm@kimi.service
        command:
          description: Its command line, without what looks like a secret; empty where it cannot be seen.
          type: str
          sample: VLLM::Worker_TP0
missing:
  description: GPUs that the driver has or speaks of, and that cannot be used.
  returned: always
  type: list
  elements: dict
  contains:
    bus_id:
      description: PCI address; C(GPU) and a number where the driver tells no more.
      type: str
      sample: "0000:5f:00.0"
    reason:
      description: What is known of it.
      type: str
      sample: GPU is lost.  Reboot the system to recover this GPU
holders:
  description: Processes that have a GPU's device node open, with or without memory of it; as root, all of them.
  returned: always
  type: list
  elements: dict
  contains:
    pid:
      description: Process id.
      type: int
      sample: 4242
    command:
      description: Its command line, without what looks like a secret.
      type: str
      sample: VLLM::Worker_TP0
    user:
      description: Its user.
      type: str
      sample: vllm
    unit:
      description: Its unit or container; empty when it has none.
      type: str
      sample: vllm@kimi.service
    devices:
      description: The device nodes.
      type: list
      elements: str
      sample: [/dev/nvidia0]
topology:
  description: How the GPUs are connected; empty with O(topology=false) and on hosts with one.
  returned: always
  type: dict
  contains:
    links:
      description: GPU to GPU to the link between them, as C(nvidia-smi topo -m) calls it.
      type: dict
      sample: {GPU0: {GPU1: NV18}, GPU1: {GPU0: NV18}}
    p2p:
      description: GPU to GPU to whether one may read the other's memory, as C(nvidia-smi topo -p2p r) calls it.
      type: dict
      sample: {GPU0: {GPU1: OK}, GPU1: {GPU0: OK}}
    numa_nodes:
      description: GPU to its NUMA node.
      type: dict
      sample: {GPU0: "0", GPU1: "1"}
kernel_log:
  description: What the kernel said about GPUs and memory since boot. A GPU may have been reset since.
  returned: always
  type: dict
  contains:
    where:
      description: Where it was read, V(journalctl) or V(dmesg); empty when it was not.
      type: str
      sample: journalctl
    reason:
      description: Why nothing could be read; empty when it was, and with O(kernel_log=false).
      type: str
      sample: ""
    xids:
      description: Errors that the driver reported, each kind once for each GPU.
      type: list
      elements: dict
      contains:
        bus_id:
          description: PCI address of the GPU.
          type: str
          sample: "0000:5f:00.0"
        number:
          description: Number of the error in NVIDIA's list of Xid errors.
          type: int
          sample: 79
        severity:
          description: V(broken) until a reset, V(damaged) but working, V(application), V(unknown).
          type: str
          sample: broken
        meaning:
          description: What the number means.
          type: str
          sample: the GPU has fallen off the bus
        count:
          description: How often it was reported.
          type: int
          sample: 1
        last_epoch:
          description: When it was last reported, in seconds since 1970; null where the log tells no time.
          type: float
          sample: 1796083200.5
        text:
          description: The last message.
          type: str
          sample: "NVRM: Xid (PCI:0000:5f:00): 79, pid=4242, GPU has fallen off the bus."
    signs:
      description: Other messages that matter to a launch, each kind once.
      type: list
      elements: dict
      contains:
        kind:
          description: V(gpu_init_failed), V(driver_conflict), V(iommu_fault), V(pcie_fatal) or V(oom_kill).
          type: str
          sample: oom_kill
        count:
          description: How often it was there.
          type: int
          sample: 1
        text:
          description: The last message.
          type: str
          sample: "Out of memory: Killed process 4242 (VLLM::Worker_TP)"
problems:
  description: Questions that got no answer though there are GPUs.
  returned: always
  type: list
  elements: str
  sample: []
"""

from dataclasses import asdict
from functools import partial

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.llmops.vllm.plugins.module_utils.errors import InvalidInputError, LlmopsError
from ansible_collections.llmops.vllm.plugins.module_utils.gpu_query import read_gpus, this_host
from ansible_collections.llmops.vllm.plugins.module_utils.kernel_log import KernelLog, read_kernel_log
from ansible_collections.llmops.vllm.plugins.module_utils.systemd import run_command


def main() -> None:
    """Read the parameters and look."""
    module = AnsibleModule(
        argument_spec={
            "topology": {"type": "bool", "default": True},
            "kernel_log": {"type": "bool", "default": True},
            "timeout_seconds": {"type": "float", "default": 20},
        },
        supports_check_mode=True,
    )
    try:
        if module.params["timeout_seconds"] <= 0:
            raise InvalidInputError("timeout_seconds must be more than 0.")
        run = partial(run_command, timeout_seconds=module.params["timeout_seconds"])
        host = this_host(run)
        report = read_gpus(host, topology=module.params["topology"])
        log = read_kernel_log(run, host.proc) if module.params["kernel_log"] else KernelLog()
    except LlmopsError as exc:
        module.fail_json(msg=exc.message, **exc.details)
    module.exit_json(changed=False, **report.as_dict(), kernel_log=asdict(log))


if __name__ == "__main__":
    main()
