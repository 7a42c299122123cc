# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the GPUs of a host have against a launch.

Only what keeps the engine from starting is a ``no_go``: too few GPUs, a broken one among those it would use, a driver
that cannot run the wheel, memory that somebody else holds. A log tells what was and never refuses by itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from ansible_collections.llmops.vllm.plugins.module_utils import driver_floor
from ansible_collections.llmops.vllm.plugins.module_utils.findings import Finding
from ansible_collections.llmops.vllm.plugins.module_utils.gpu import Gpu, GpuProcess, GpuReport
from ansible_collections.llmops.vllm.plugins.module_utils.kernel_log import KernelLog
from ansible_collections.llmops.vllm.plugins.module_utils.launch import Launch
from ansible_collections.llmops.vllm.plugins.module_utils.sizes import GIB

SMI = "nvidia-smi -q -x"
XID_SOURCE = "https://docs.nvidia.com/deploy/xid-errors/"
MIG_SOURCE = "https://docs.nvidia.com/datacenter/tesla/mig-user-guide/"
FABRIC_SOURCE = "https://docs.nvidia.com/datacenter/tesla/fabric-manager-user-guide/"
ECC_SOURCE = "https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/"
# Recovery actions after which the GPU works only when they were carried out; the others leave it usable.
UNUSABLE_UNTIL = ("Reset", "Reboot", "GPU Reset Required", "Node Reboot Required")
HOT = ("hw_slowdown", "hw_thermal_slowdown", "sw_thermal_slowdown", "hw_power_brake_slowdown")


def gpu_findings(report: GpuReport, log: KernelLog, launch: Launch) -> list[Finding]:
    """Judge the GPUs; nothing is said of them for a runtime that does not use any."""
    if launch.runtime.device not in ("cuda", ""):
        return []
    if not report.present:
        return [_absent(report)] if launch.runtime.device == "cuda" else []
    used = used_gpus(report.gpus, launch)
    return [
        *_driver(report, launch),
        *_count(report, used, launch),
        *_health(report.gpus, used),
        *_memory(used, launch),
        *_interconnect(report, used, launch),
        *_history(report.gpus, log),
    ]


def used_gpus(gpus: Sequence[Gpu], launch: Launch) -> list[Gpu]:
    """Return the GPUs that the engine would take: the first ones, of those that ``CUDA_VISIBLE_DEVICES`` leaves."""
    visible = visible_gpus(gpus, launch.environment.get("CUDA_VISIBLE_DEVICES"))
    return visible[: launch.gpu_count] if launch.gpu_count else visible


def visible_gpus(gpus: Sequence[Gpu], setting: str | None) -> list[Gpu]:
    """Return the GPUs that ``CUDA_VISIBLE_DEVICES`` names: numbers or UUIDs; a word that is neither ends the list.

    https://docs.nvidia.com/cuda/cuda-c-programming-guide/#env-vars
    """
    if setting is None:
        return list(gpus)
    found: list[Gpu] = []
    for word in (part.strip() for part in setting.split(",")):
        match = [gpu for number, gpu in enumerate(gpus) if word == str(number) or (word and gpu.uuid.startswith(word))]
        if not match:
            break
        found.append(match[0])
    return found


def _absent(report: GpuReport) -> Finding:
    severity = "no_go" if report.answered or "no NVIDIA GPU is on the PCI bus" in report.reason else "warn"
    what = "There is no GPU that this runtime could use." if severity == "no_go" else "The GPUs could not be asked."
    remedy = "repair the driver until nvidia-smi shows the GPUs, or choose a runtime for this host (vllm_runtime_lock)"
    return Finding("gpu_absent", severity, what, report.reason, remedy, "nvidia-smi, /sys/bus/pci")


def _driver(report: GpuReport, launch: Launch) -> Iterator[Finding]:
    cuda = launch.runtime.cuda
    evidence = f"driver {report.driver_version or '?'} (CUDA {report.cuda_version or '?'}), runtime for CUDA {cuda}"
    where = f"nvidia-smi, {launch.runtime.path}"
    if driver_floor.too_old(report.driver_version, report.cuda_version, cuda):
        floor = driver_floor.required(cuda)
        remedy = (
            f"install driver {floor or 'of this CUDA'} or newer, or a runtime for an older CUDA (vllm_runtime_lock)"
        )
        # A compatibility library in front of the driver's own lets data-centre GPUs run a newer CUDA.
        severity = "warn" if "compat" in launch.environment.get("LD_LIBRARY_PATH", "") else "no_go"
        what = "The driver is too old for the CUDA that the runtime was built with."
        yield Finding("driver_too_old", severity, what, evidence, remedy, where, "a reboot", driver_floor.SOURCE)
    elif driver_floor.too_old_for_ptx(report.driver_version, report.cuda_version, cuda):
        what = "The driver is older than the runtime's CUDA: kernels that are compiled on the host may be refused."
        newer = driver_floor.shipped(cuda)
        remedy = (
            f"install driver {newer or 'of this CUDA'} or newer, or a runtime for an older CUDA (vllm_runtime_lock)"
        )
        yield Finding("driver_older_than_cuda", "warn", what, evidence, remedy, where, "a reboot", driver_floor.SOURCE)


def _count(report: GpuReport, used: Sequence[Gpu], launch: Launch) -> Iterator[Finding]:
    if launch.gpu_count and len(used) < launch.gpu_count:
        what = f"The engine wants {launch.gpu_count} GPUs, and {len(used)} can be used."
        lost = ", ".join(f"{one.bus_id}: {one.reason}" for one in report.missing)
        setting = launch.environment.get("CUDA_VISIBLE_DEVICES")
        parts = [f"{len(report.gpus)} GPUs", f"CUDA_VISIBLE_DEVICES={setting}" if setting is not None else "", lost]
        evidence = "; ".join(part for part in parts if part)
        remedy = (
            "set vllm_service_arguments_extra: {tensor-parallel-size: N} to what is there, or bring back the others"
        )
        yield Finding("gpu_count", "no_go", what, evidence, remedy, SMI)
    elif report.missing:
        what = "GPUs of this host are lost; the engine does not need them."
        evidence = ", ".join(f"{one.bus_id}: {one.reason}" for one in report.missing)
        yield Finding("gpu_missing", "warn", what, evidence, "reset or reboot when the host can be spared", SMI)
    divided = [gpu for gpu in used if gpu.mig.mode == "enabled"]
    if divided:
        severity = "no_go" if launch.gpu_count > 1 else "warn"
        what = "GPUs are divided (MIG); an engine cannot spread over parts of GPUs."
        remedy = "nvidia-smi -mig 0 on these GPUs, or tensor-parallel-size 1 and CUDA_VISIBLE_DEVICES with one part"
        yield Finding("gpu_divided", severity, what, _names(divided), remedy, SMI, "a reset of the GPUs", MIG_SOURCE)
    kinds = sorted({(gpu.name, gpu.compute_capability) for gpu in used})
    if len(kinds) > 1:
        evidence = ", ".join(f"{name} ({capability or '?'})" for name, capability in kinds)
        what = "The GPUs are of several kinds: the smallest memory and the oldest capability decide for all."
        yield Finding("gpu_mixed", "info", what, evidence, "choose alike ones with CUDA_VISIBLE_DEVICES", SMI)


def _health(gpus: Sequence[Gpu], used: Sequence[Gpu]) -> Iterator[Finding]:
    in_use = {gpu.bus_id for gpu in used}
    for gpu in gpus:
        ours = gpu.bus_id in in_use
        if gpu.fault:
            what = f"{_name(gpu)} does not answer."
            remedy = f"reset it (nvidia-smi -r -i {gpu.index}) with nothing running on it, or reboot"
            yield Finding("gpu_fault", "no_go" if ours else "warn", what, gpu.fault, remedy, SMI, "a reset", XID_SOURCE)
        elif gpu.recovery_action:
            severity = "no_go" if ours and gpu.recovery_action in UNUSABLE_UNTIL else "warn"
            what = f"The driver asks for a recovery of {_name(gpu)}."
            remedy = "do what it asks for before the launch"
            yield Finding("gpu_recovery", severity, what, gpu.recovery_action, remedy, SMI, "a reset", XID_SOURCE)
    yield from _memory_errors(used)
    slow = [gpu for gpu in used if set(gpu.slowdown) & set(HOT)]
    if slow:
        evidence = ", ".join(f"{_name(gpu)}: {'+'.join(gpu.slowdown)}" for gpu in slow)
        what = "GPUs are slowed down by heat or power."
        yield Finding("gpu_slowed_down", "warn", what, evidence, "look at cooling and power supply of the host", SMI)
    loaded_anew = [gpu for gpu in used if gpu.persistence is False]
    if loaded_anew:
        what = "Persistence mode is off: the driver sets the GPUs up anew for each start, and forgets error counts."
        remedy = "enable nvidia-persistenced.service"
        yield Finding("gpu_persistence", "info", what, _names(loaded_anew), remedy, SMI)
    closed = [gpu for gpu in used if gpu.compute_mode == "Prohibited"]
    if closed:
        what = "GPUs are closed to computing."
        yield Finding("gpu_prohibited", "no_go", what, _names(closed), "nvidia-smi -c 0 on these GPUs", SMI)


def _memory_errors(used: Sequence[Gpu]) -> Iterator[Finding]:
    kinds = (
        ("gpu_memory_damaged", "Damaged memory of GPUs could not be replaced.", "have these GPUs exchanged",
         [gpu for gpu in used if gpu.ecc.remap_failed]),
        ("gpu_remap_pending", "Damaged memory of GPUs waits for a reset to be replaced.", "reset or reboot first",
         [gpu for gpu in used if gpu.ecc.remap_pending]),
        ("gpu_ecc_errors", "GPUs had uncorrectable memory errors since the driver was loaded.",
         "reset them; exchange them when the errors come back", [gpu for gpu in used if gpu.ecc.uncorrected_volatile]),
    )  # fmt: skip
    for kind, what, remedy, gpus in kinds:
        if gpus:
            evidence = ", ".join(f"{_name(gpu)}: {gpu.ecc.uncorrected_volatile or 0} uncorrectable" for gpu in gpus)
            yield Finding(kind, "warn", what, evidence, remedy, SMI, "a reset", ECC_SOURCE)


def _memory(used: Sequence[Gpu], launch: Launch) -> Iterator[Finding]:
    """Judge what is free once the instance itself has been stopped.

    The engine takes its share of all memory or dies at once: "Free memory on device ... is less than desired GPU memory
    utilization" (request_memory in vllm/v1/worker/utils.py).
    """
    short: list[str] = []
    certain = False
    share = launch.utilisation
    sharing: dict[int, GpuProcess] = {}
    for gpu in used:
        if gpu.usable_bytes is None or gpu.memory_free_bytes is None:
            continue
        ours, foreign = _split(gpu.processes, launch)
        sharing.update((one.pid, one) for one in foreign)
        free = gpu.memory_free_bytes + sum(one.used_bytes or 0 for one in ours)
        if free < gpu.usable_bytes * launch.utilisation:
            short.append(f"{_name(gpu)}: {free / GIB:.1f} of {gpu.usable_bytes / GIB:.1f} GiB")
            # Who holds it may be this very instance when no process can be seen.
            certain = certain or bool(foreign) or not gpu.memory_used_bytes
            share = min(share, int(free / gpu.usable_bytes * 100) / 100)
    holders = "; ".join(_holder(one) for one in sharing.values())
    if short:
        what = "GPUs have less memory free than the engine takes at its start."
        evidence = f"free without this instance: {', '.join(short)}. Holders: {holders or 'not visible'}"
        evidence = f"gpu-memory-utilization {launch.utilisation:g}; {evidence}"
        remedy = f"end what holds it, or set vllm_service_arguments_extra: {{gpu-memory-utilization: {share:g}}}"
        severity = "no_go" if certain else "warn"
        yield Finding("gpu_memory_taken", severity, what, evidence, remedy, SMI, "fewer KV tokens")
    elif sharing:
        what = "GPUs are shared with processes that are not the instance's."
        yield Finding("gpu_shared", "info", what, holders, "end them, or keep their memory out of the share", SMI)


def _split(processes: Iterable[GpuProcess], launch: Launch) -> tuple[list[GpuProcess], list[GpuProcess]]:
    """Return the processes that are stopped before the launch, and others that compute.

    Stopped are the unit's own, and those of its user that no unit holds. The few MiB of a desktop are nobody's.
    """
    ours: list[GpuProcess] = []
    foreign: list[GpuProcess] = []
    for one in processes:
        of_unit, orphaned = launch.unit and one.unit == launch.unit, launch.user and one.user == launch.user
        if of_unit or (orphaned and not one.unit):
            ours.append(one)
        elif "C" in one.kind or not one.kind:
            foreign.append(one)
    return ours, foreign


def _holder(process: GpuProcess) -> str:
    owner = process.unit or process.user or "owner not visible"
    size = f", {process.used_bytes / GIB:.1f} GiB" if process.used_bytes is not None else ""
    return f"PID {process.pid} ({process.command or process.name}; {owner}{size})"


def _interconnect(report: GpuReport, used: Sequence[Gpu], launch: Launch) -> Iterator[Finding]:
    if launch.gpu_count > 1 or len(used) > 1:
        yield from _fabric(used)
        yield from _nvlinks(report.topology.links, used)
        yield from _peers(report.topology.p2p, used)


def _fabric(used: Sequence[Gpu]) -> Iterator[Finding]:
    waiting = [
        gpu for gpu in used if gpu.fabric.state and (gpu.fabric.state, gpu.fabric.status) != ("Completed", "Success")
    ]
    if waiting:
        evidence = ", ".join(f"{_name(gpu)}: {gpu.fabric.state}/{gpu.fabric.status or '?'}" for gpu in waiting)
        what = "The NVLink fabric of the GPUs is not ready; CUDA does not start without it."
        remedy = "start nvidia-fabricmanager.service of the driver's very version, and look at its log"
        yield Finding("fabric_not_ready", "no_go", what, evidence, remedy, SMI, "", FABRIC_SOURCE)


def _pairs(matrix: Mapping[str, Mapping[str, str]], used: Sequence[Gpu]) -> dict[str, str]:
    names = [f"GPU{gpu.index}" for gpu in used]
    return {
        f"{a}-{b}": matrix[a][b]
        for number, a in enumerate(names)
        for b in names[number + 1 :]
        if b in matrix.get(a, {})
    }


def _nvlinks(links: Mapping[str, Mapping[str, str]], used: Sequence[Gpu]) -> Iterator[Finding]:
    widths = {pair: int(link[2:]) for pair, link in _pairs(links, used).items() if re.fullmatch(r"NV\d+", link)}
    best = max(widths.values(), default=0)
    # Behind switches and over bridges of that many all pairs have all links; with fewer, some have less by design.
    fewer = {pair: width for pair, width in widths.items() if width < best} if best >= 12 else {}
    if fewer:
        what = "NVLinks between GPUs are down."
        evidence = ", ".join(f"{pair} NV{width} instead of NV{best}" for pair, width in sorted(fewer.items())[:8])
        yield Finding(
            "nvlink_degraded",
            "warn",
            what,
            evidence,
            "reset the GPUs or reboot; look at nvidia-smi nvlink -s",
            "nvidia-smi topo -m",
        )


def _peers(p2p: Mapping[str, Mapping[str, str]], used: Sequence[Gpu]) -> Iterator[Finding]:
    without = {pair: state for pair, state in _pairs(p2p, used).items() if state != "OK"}
    if without:
        what = "GPUs cannot read each other's memory: what they exchange goes through the host's memory."
        evidence = ", ".join(f"{pair} {state}" for pair, state in sorted(without.items())[:8])
        remedy = (
            "nothing, unless GPUs, board and driver are known for it; then look at IOMMU, ACS and the driver's options"
        )
        yield Finding("p2p_unavailable", "info", what, evidence, remedy, "nvidia-smi topo -p2p r", "speed")


def _history(gpus: Sequence[Gpu], log: KernelLog) -> Iterator[Finding]:
    names = {gpu.bus_id: _name(gpu) for gpu in gpus}
    for severity, level in (("broken", "warn"), ("damaged", "warn"), ("unknown", "info"), ("application", "info")):
        xids = [xid for xid in log.xids if xid.severity == severity]
        if xids:
            evidence = "; ".join(
                f"{names.get(xid.bus_id, xid.bus_id)}: Xid {xid.number} ({xid.meaning}), {xid.count} times"
                for xid in xids[:8]
            )
            what = f"Since boot the driver reported errors of GPUs ({severity})."
            remedy = (
                "reset or reboot, unless that was done since" if level == "warn" else "none; it explains a past failure"
            )
            yield Finding(f"gpu_xid_{severity}", level, what, evidence, remedy, log.where, "", XID_SOURCE)


def _name(gpu: Gpu) -> str:
    return f"GPU {gpu.index} ({gpu.bus_id})"


def _names(gpus: Sequence[Gpu]) -> str:
    return ", ".join(_name(gpu) for gpu in gpus)
