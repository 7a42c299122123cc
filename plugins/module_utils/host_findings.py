# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a host has against a launch: GPUs and the way between them, memory, limits, compilers, leftovers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ansible_collections.llmops.vllm.plugins.module_utils import driver_floor
from ansible_collections.llmops.vllm.plugins.module_utils.findings import Finding
from ansible_collections.llmops.vllm.plugins.module_utils.gpu import Gpu
from ansible_collections.llmops.vllm.plugins.module_utils.gpu_findings import gpu_findings, used_gpus
from ansible_collections.llmops.vllm.plugins.module_utils.host_facts import SHM, UNLIMITED, HostFacts
from ansible_collections.llmops.vllm.plugins.module_utils.launch import Launch
from ansible_collections.llmops.vllm.plugins.module_utils.sizes import GIB, MIB

# One message queue between the engine and its workers (vllm/distributed/device_communicators/shm_broadcast.py).
QUEUE_BYTES = 160 * MIB
QUEUE_CHECKED_FROM = (0, 28)  # older versions die of SIGBUS when they come to write there
SHM_WANTED_BYTES = GIB
CACHE_WANTED_BYTES = 5 * GIB
NOFILE_WANTED = 65535  # set_ulimit in vllm/utils/system_utils.py
NOFILE_NEEDED = 1024
NOFILE_LEAST = 64  # with less than this not even the smallest engine comes up
JIT_JOB_BYTES = 8 * GIB
JIT_SOURCE = "https://github.com/flashinfer-ai/flashinfer/issues/3634"
JIT_TOOLS_SOURCE = "https://github.com/vllm-project/vllm/issues/50705"
SM120_NVCC = "12.9"
SM120_NVCC_SOURCE = "https://github.com/flashinfer-ai/flashinfer/pull/3633"
P2P_SOURCE = "https://github.com/vllm-project/vllm/issues/33041"
ORPHANS_SOURCE = "https://github.com/vllm-project/vllm/issues/55510"
NCCL_SOURCE = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html"
PAST = "none; it explains a past failure"
# Severity, what it means and what to do, for each kind of line in the kernel's log.
LOG_SIGNS = {
    "gpu_init_failed": ("warn", "a GPU could not be set up by the driver", "reset or reboot"),
    "driver_conflict": ("warn", "another driver had the GPUs, or parts of two drivers met", "reboot"),
    "iommu_fault": ("warn", "the IOMMU stopped transfers of a device", "iommu=pt on the kernel's command line"),
    "pcie_fatal": ("warn", "there were fatal errors on the PCIe bus", "look at slots, risers and power"),
    "oom_kill": ("info", "the kernel killed processes for want of memory", PAST),
}


def host_findings(facts: HostFacts, launch: Launch) -> list[Finding]:
    """Judge the host for a launch, the instance's own service being stopped before."""
    used = used_gpus(facts.gpus.gpus, launch)
    return [
        *gpu_findings(facts.gpus, facts.log, launch),
        *_peer_traffic(facts, used),
        *_nccl_plugins(facts, launch, used),
        *_shm(facts, launch),
        *_limits(facts),
        *_memory(facts, launch),
        *_cache(facts),
        *_compilers(facts, launch, used),
        *_leftovers(facts, launch),
        *_clock(facts),
        *_log(facts),
    ]


def _peer_traffic(facts: HostFacts, used: Sequence[Gpu]) -> Iterator[Finding]:
    """Judge what lies between GPUs that have only PCIe between them, and may read each other's memory."""
    names = {f"GPU{gpu.index}" for gpu in used}
    links = facts.gpus.topology.links
    over_pcie = any(not links[a][b].startswith("NV") for a in names & set(links) for b in names & set(links[a]))
    peers = any(state == "OK" for a in facts.gpus.topology.p2p.values() for state in a.values())
    if len(used) < 2 or not over_pcie or not peers:
        return
    buses = {gpu.bus_id for gpu in used}
    devices = [device for device in facts.pci if device.bus_id in buses]
    translated = [device for device in devices if device.translated]
    redirecting = sorted({one.bus_id for device in devices for one in device.bridges if one.redirects})
    if translated:
        what = "The IOMMU translates what GPUs send to each other over PCIe: it can hang, or arrive damaged."
        evidence = ", ".join(f"{device.bus_id} {device.iommu}" for device in translated)
        remedy = (
            "iommu=pt or iommu=off on the kernel's command line; until then set vllm_service_environment_extra: "
            "{NCCL_P2P_DISABLE: 1} and vllm_service_arguments_extra: {disable-custom-all-reduce: true}"
        )
        where = "/sys/bus/pci/devices/*/iommu_group/type"
        yield Finding("iommu_translates", "warn", what, evidence, remedy, where, "a reboot, or speed", P2P_SOURCE)
    if redirecting:
        what = "Bridges send what GPUs send to each other the long way through the root complex (ACS)."
        remedy = "turn ACS off in the firmware, or for each: setpci -s BRIDGE ECAP_ACS+6.w=0000"
        severity = "warn" if translated else "info"
        where = "the bridges' ACS registers"
        price = "less isolation between devices"
        yield Finding("acs_redirects", severity, what, ", ".join(redirecting), remedy, where, price, P2P_SOURCE)


def _nccl_plugins(facts: HostFacts, launch: Launch, used: Sequence[Gpu]) -> Iterator[Finding]:
    chosen = launch.environment.get("NCCL_NET_PLUGIN", "")
    plugins = {name: path for name, path in facts.nccl_plugins.items() if "nccl-net" in name or "nccl-tuner" in name}
    if len(used) > 1 and plugins and not chosen:
        what = (
            "NCCL will load a plugin that lies in the loader's cache, as in cloud images; it can break a single host."
        )
        evidence = ", ".join(f"{name} => {path}" for name, path in sorted(plugins.items()))
        remedy = "set vllm_service_environment_extra: {NCCL_NET_PLUGIN: none, NCCL_TUNER_PLUGIN: none}"
        yield Finding("nccl_plugin", "warn", what, evidence, remedy, "ldconfig -p", "", NCCL_SOURCE)


def _shm(facts: HostFacts, launch: Launch) -> Iterator[Finding]:
    workers = launch.count("tensor-parallel-size") * launch.count("pipeline-parallel-size")
    # On the CPU even a single worker is a process of its own (vllm/platforms/cpu.py).
    if facts.shm is None or (workers < 2 and launch.runtime.device != "cpu"):
        return
    # What dead engines left is removed before the start.
    free = facts.shm.free_bytes + facts.leftovers.shm_bytes
    evidence = f"{facts.shm.free_bytes / MIB:.0f} MiB free of {facts.shm.total_bytes / MIB:.0f} MiB"
    remedy = "mount -o remount,size=16G /dev/shm, and the same in /etc/fstab"
    if free < QUEUE_BYTES:
        checked = driver_floor.numbers(launch.runtime.version("vllm")) >= QUEUE_CHECKED_FROM
        what = f"Shared memory has no room for the queue between engine and workers ({QUEUE_BYTES // MIB} MiB)."
        yield Finding("shm_too_small", "no_go" if checked else "warn", what, evidence, remedy, facts.shm.path)
    elif free < SHM_WANTED_BYTES:
        what = "Shared memory is small for the queues of the engine and of NCCL."
        yield Finding("shm_small", "warn", what, evidence, remedy, facts.shm.path)


def _limits(facts: HostFacts) -> Iterator[Finding]:
    memlock, nofile = facts.limits.memlock_bytes, facts.limits.nofile
    if facts.infiniband and memlock is not None and memlock != UNLIMITED:
        what = "The unit may not lock all the memory that transfers over InfiniBand need."
        remedy = "set vllm_service_unit_settings: {LimitMEMLOCK: infinity}"
        yield Finding("memlock", "warn", what, f"LimitMEMLOCK={memlock}", remedy, "systemctl show", "", NCCL_SOURCE)
    if nofile is not None and nofile != UNLIMITED and nofile < NOFILE_WANTED:
        what = "The unit may open fewer files than the engine asks for."
        severity = "no_go" if nofile < NOFILE_LEAST else "warn" if nofile < NOFILE_NEEDED else "info"
        remedy = "set vllm_service_unit_settings: {LimitNOFILE: 1048576}"
        yield Finding("nofile", severity, what, f"LimitNOFILE={nofile}", remedy, "systemctl show")


def _memory(facts: HostFacts, launch: Launch) -> Iterator[Finding]:
    available = facts.memory_available_bytes
    if available is not None and launch.weight_bytes and launch.weight_bytes > available:
        what = (
            "The weights do not fit into the memory that is free for the page cache: every start reads them from disk."
        )
        evidence = f"{available / GIB:.0f} GiB available, weights {launch.weight_bytes / GIB:.0f} GiB"
        yield Finding(
            "page_cache", "info", what, evidence, "none; count on a start as slow as the disk", "/proc/meminfo"
        )


def _cache(facts: HostFacts) -> Iterator[Finding]:
    cache = facts.cache
    if cache is None:
        return
    if cache.read_only:
        what = "The engine's cache lies on a file system that is mounted read-only."
        yield Finding(
            "cache_read_only", "no_go", what, cache.path, "mount it for writing, or repair the disk", "statvfs(3)"
        )
    elif cache.free_bytes < CACHE_WANTED_BYTES:
        what = "There is little room for what the engine compiles."
        evidence = f"{cache.free_bytes / GIB:.1f} GiB free for {cache.path}"
        yield Finding("cache_disk_full", "warn", what, evidence, "make room there", "statvfs(3)")
    if cache.no_exec:
        what = "The engine's cache lies on a file system that allows no programs: what it compiles cannot be loaded."
        yield Finding("cache_no_exec", "warn", what, cache.path, "mount it without noexec", "statvfs(3)")


def _compilers(facts: HostFacts, launch: Launch, used: Sequence[Gpu]) -> Iterator[Finding]:
    """Judge whether FlashInfer can compile what does not come with it (vllm/utils/flashinfer.py)."""
    runtime, tools = launch.runtime, facts.tools
    capabilities = [driver_floor.numbers(gpu.compute_capability) for gpu in used if gpu.compute_capability]
    if not runtime.version("flashinfer-python") or runtime.version("flashinfer-jit-cache") or not capabilities:
        return
    if max(capabilities) < (9, 0):
        return
    missing = [name for name, path in (("nvcc", tools.nvcc), ("ninja", tools.ninja)) if not path]
    if missing:
        yield _jit_tools_missing(missing, facts, launch)
        return
    if max(capabilities)[0] == 12 and tools.nvcc_version:  # noqa: SIM102 # one condition for the GPU, one for the tool
        if driver_floor.numbers(tools.nvcc_version) < driver_floor.numbers(SM120_NVCC):
            what = f"nvcc is too old to compile for these GPUs: {SM120_NVCC} is needed."
            evidence = f"{tools.nvcc} {tools.nvcc_version}"
            remedy = "install a newer CUDA toolkit and set vllm_service_environment_extra: {CUDA_HOME: ...}"
            yield Finding("nvcc_too_old", "warn", what, evidence, remedy, "nvcc --version", "", SM120_NVCC_SOURCE)
    yield from _jit_memory(facts, launch)


def _jit_tools_missing(missing: Sequence[str], facts: HostFacts, launch: Launch) -> Finding:
    cubins = launch.runtime.version("flashinfer-cubin")
    names = " and ".join(missing)
    what = (
        f"FlashInfer cannot compile kernels for want of {names}: new engines do without it, old ones die at the start."
    )
    evidence = f"PATH={launch.path}, CUDA_HOME={launch.environment.get('CUDA_HOME', '')}; no flashinfer-jit-cache"
    home = facts.tools.cuda_in_runtime or facts.tools.nvcc.removesuffix("/bin/nvcc") or "DIRECTORY OF A CUDA TOOLKIT"
    settings = {"nvcc": f"set vllm_service_environment_extra: {{CUDA_HOME: {home}}}", "ninja": "install ninja-build"}
    remedy = (
        f"{', '.join(settings[name] for name in missing)}, or set vllm_runtime_lock to one with flashinfer-jit-cache"
    )
    severity = "info" if cubins else "warn"
    return Finding("jit_tools_missing", severity, what, evidence, remedy, launch.runtime.path, "", JIT_TOOLS_SOURCE)


def _jit_memory(facts: HostFacts, launch: Launch) -> Iterator[Finding]:
    available = facts.memory_available_bytes
    if "MAX_JOBS" in launch.environment or available is None or available >= facts.cpu_count * JIT_JOB_BYTES:
        return
    jobs = max(1, available // JIT_JOB_BYTES)
    what = "Compiling kernels with as many jobs as processors can need more memory than is free."
    evidence = f"{facts.cpu_count} processors, about 8 GiB for each job, {available / GIB:.0f} GiB available"
    remedy = f"set vllm_service_environment_extra: {{MAX_JOBS: {jobs}}}"
    yield Finding("jit_memory", "info", what, evidence, remedy, "/proc/meminfo", "a slower first start", JIT_SOURCE)


def _leftovers(facts: HostFacts, launch: Launch) -> Iterator[Finding]:
    left = facts.leftovers
    foreign = [one for one in left.processes if one.user != launch.user]
    for severity, remedy, orphans in (
        ("info", "none; the launch ends them", [one for one in left.processes if one not in foreign]),
        ("warn", "end them with llmops.vllm.process_teardown, selecting their owner and orphans", foreign),
    ):
        if orphans:
            what = "Processes of engines run that no unit and no session holds."
            evidence = ", ".join(f"PID {one.pid} of {one.user} ({one.command})" for one in orphans[:8])
            yield Finding("orphans", severity, what, evidence, remedy, "/proc", "", ORPHANS_SOURCE)
    if left.shm_count:
        what = "Shared memory of dead engines is left; the launch removes it."
        evidence = f"{left.shm_count} objects, {left.shm_bytes / MIB:.0f} MiB"
        yield Finding("shm_leftovers", "info", what, evidence, "none", SHM)


def _clock(facts: HostFacts) -> Iterator[Finding]:
    if facts.clock_synchronised is False:
        what = "The clock follows no time server: certificates and the order of logs depend on it."
        yield Finding("clock", "info", what, "NTPSynchronized=no", "enable chrony or systemd-timesyncd", "timedatectl")


def _log(facts: HostFacts) -> Iterator[Finding]:
    for sign in facts.log.signs:
        severity, what, remedy = LOG_SIGNS[sign.kind]
        evidence = f"{sign.text} ({sign.count} times)"
        yield Finding(sign.kind, severity, f"Since boot {what}.", evidence, remedy, facts.log.where)
