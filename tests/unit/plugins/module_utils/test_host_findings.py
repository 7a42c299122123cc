from __future__ import annotations

from dataclasses import replace

import pytest
from ansible_collections.llmops.vllm.plugins.module_utils.findings import verdict
from ansible_collections.llmops.vllm.plugins.module_utils.gpu import GpuReport, Topology
from ansible_collections.llmops.vllm.plugins.module_utils.gpu_text import parse_matrix
from ansible_collections.llmops.vllm.plugins.module_utils.gpu_xml import parse_document
from ansible_collections.llmops.vllm.plugins.module_utils.host_facts import (
    HostFacts,
    Leftovers,
    Limits,
    Orphan,
    Space,
    Tools,
)
from ansible_collections.llmops.vllm.plugins.module_utils.host_findings import host_findings
from ansible_collections.llmops.vllm.plugins.module_utils.kernel_log import scan
from ansible_collections.llmops.vllm.plugins.module_utils.launch import Launch
from ansible_collections.llmops.vllm.plugins.module_utils.pci import Bridge, PciGpu
from ansible_collections.llmops.vllm.plugins.module_utils.runtime_facts import Runtime
from ansible_collections.llmops.vllm.plugins.module_utils.sizes import GIB, MIB
from ansible_collections.llmops.vllm.tests.unit.nvidia_smi import cards, document, matrix

CUDA = Runtime(path="/r", device="cuda", cuda="12.8", packages={"vllm": "0.32.0"})
TP2 = {"tensor-parallel-size": 2}
ROOM = Space("/dev/shm", 64 * GIB, 60 * GIB)


def gpus(link="NV18", p2p="OK", **settings):
    links, numa = parse_matrix(matrix(lambda _a, _b: link, 2))
    peers, _none = parse_matrix(matrix(lambda _a, _b: p2p, 2, affinity=False))
    found = parse_document(document(cards(2, **settings))).gpus
    found = tuple(replace(gpu, compute_capability=settings.get("capability", "9.0")) for gpu in found)
    return GpuReport(
        True, driver_version="580.65.06", cuda_version="13.0", gpus=found, topology=Topology(links, peers, numa)
    )


def bus(iommu="", redirects=False):
    return tuple(PciGpu(gpu.kernel_bus_id, "nvidia", iommu, (Bridge("0000:00:01.1", redirects),)) for gpu in cards(2))


def facts(**settings):
    healthy = {
        "gpus": gpus(), "pci": bus(), "shm": ROOM, "cache": Space("/var/cache/vllm/kimi", 900 * GIB, 500 * GIB),
        "memory_total_bytes": 2000 * GIB, "memory_available_bytes": 1800 * GIB, "cpu_count": 64, "infiniband": True,
        "limits": Limits(-1, 1048576), "clock_synchronised": True,
    }  # fmt: skip
    return HostFacts(**{**healthy, **settings})


def judge(found, arguments=TP2, environment=None, runtime=CUDA, **launch):
    return host_findings(found, Launch(arguments, environment or {}, runtime, **launch))


def ids(findings):
    return {finding.id: finding.severity for finding in findings}


def test_a_healthy_host_has_nothing_against_a_launch():
    assert judge(facts(), weight_bytes=600 * GIB) == []


def test_a_host_of_which_nothing_is_known_has_nothing_against_an_engine_on_the_cpu():
    nothing = HostFacts(GpuReport(False, reason="the runtime does not use GPUs"))
    assert judge(nothing, runtime=Runtime(device="cpu")) == []


@pytest.mark.parametrize(
    ("iommu", "redirects", "expected"),
    [
        ("", False, {}),
        ("identity", False, {}),
        ("DMA-FQ", False, {"iommu_translates": "warn"}),
        ("", True, {"acs_redirects": "info"}),
        ("DMA", True, {"iommu_translates": "warn", "acs_redirects": "warn"}),
    ],
)
def test_what_lies_between_gpus_on_pcie_is_told(iommu, redirects, expected):
    found = judge(facts(gpus=gpus("PIX"), pci=bus(iommu, redirects)))
    assert ids(found) == expected
    for finding in found:
        assert "0000:0a:00.0 DMA" in finding.evidence or finding.evidence == "0000:00:01.1"


@pytest.mark.parametrize("other", [{"gpus": gpus("NV18")}, {"gpus": gpus("PIX", "CNS")}])
def test_where_nothing_goes_over_pcie_between_gpus_the_way_does_not_matter(other):
    assert "iommu_translates" not in ids(judge(facts(pci=bus("DMA", True), **other)))


def test_one_gpu_has_no_way_between():
    assert judge(facts(gpus=gpus("PIX"), pci=bus("DMA", True), nccl_plugins={"libnccl-net.so": "/x"}), {}) == []


@pytest.mark.parametrize(
    ("plugins", "environment", "expected"),
    [
        ({"libnccl-net.so": "/opt/aws/lib/libnccl-net.so"}, {}, {"nccl_plugin": "warn"}),
        ({"libnccl-tuner-ofi.so.1": "/opt/x"}, {}, {"nccl_plugin": "warn"}),
        ({"libnccl-profiler.so": "/opt/x"}, {}, {}),
        ({"libnccl-net.so": "/opt/aws/lib/libnccl-net.so"}, {"NCCL_NET_PLUGIN": "none"}, {}),
    ],
)
def test_a_plugin_that_nccl_would_find_by_itself_is_told_unless_somebody_chose(plugins, environment, expected):
    assert ids(judge(facts(nccl_plugins=plugins), environment=environment)) == expected


@pytest.mark.parametrize(
    ("free_mib", "left_mib", "arguments", "version", "expected"),
    [
        (64, 0, TP2, "0.32.0", {"shm_too_small": "no_go"}),
        (64, 0, TP2, "0.22.1", {"shm_too_small": "warn"}),
        (64, 0, {}, "0.32.0", {}),
        (300, 0, TP2, "0.32.0", {"shm_small": "warn"}),
        (64, 4096, TP2, "0.32.0", {"shm_leftovers": "info"}),
    ],
)
def test_shared_memory_has_to_hold_the_queues_when_leftovers_are_gone(free_mib, left_mib, arguments, version, expected):
    runtime = replace(CUDA, packages={"vllm": version})
    leftovers = Leftovers((), 1 if left_mib else 0, left_mib * MIB)
    found = judge(
        facts(shm=Space("/dev/shm", 64 * GIB, free_mib * MIB), leftovers=leftovers), arguments, runtime=runtime
    )
    assert ids(found) == expected


def test_an_engine_on_the_cpu_has_a_worker_and_a_queue_even_when_it_is_one():
    runtime = Runtime(path="/r", device="cpu", packages={"vllm": "0.32.0"})
    found = judge(facts(shm=Space("/dev/shm", 64 * MIB, 64 * MIB), gpus=GpuReport(False)), {}, runtime=runtime)
    assert ids(found) == {"shm_too_small": "no_go"}


@pytest.mark.parametrize(
    ("limits", "infiniband", "expected"),
    [
        (Limits(8 * MIB, 1048576), True, {"memlock": "warn"}),
        (Limits(8 * MIB, 1048576), False, {}),
        (Limits(-1, 4096), True, {"nofile": "info"}),
        (Limits(-1, 512), True, {"nofile": "warn"}),
        (Limits(-1, 40), True, {"nofile": "no_go"}),
        (Limits(-1, -1), True, {}),
        (Limits(), True, {}),
    ],
)
def test_limits_of_the_unit_are_held_against_what_is_needed(limits, infiniband, expected):
    assert ids(judge(facts(limits=limits, infiniband=infiniband))) == expected


def test_weights_larger_than_the_page_cache_are_told():
    (found,) = judge(facts(memory_available_bytes=500 * GIB), environment={"MAX_JOBS": "4"}, weight_bytes=590 * GIB)
    assert (found.id, found.severity, found.evidence) == ("page_cache", "info", "500 GiB available, weights 590 GiB")


@pytest.mark.parametrize(
    ("cache", "expected"),
    [
        (Space("/c", GIB, GIB), {"cache_disk_full": "warn"}),
        (Space("/c", GIB, 900 * GIB, read_only=True), {"cache_read_only": "no_go"}),
        (Space("/c", GIB, 900 * GIB, no_exec=True), {"cache_no_exec": "warn"}),
        (None, {}),
    ],
)
def test_what_is_compiled_needs_a_place(cache, expected):
    assert ids(judge(facts(cache=cache))) == expected


FLASHINFER = replace(CUDA, packages={"vllm": "0.32.0", "flashinfer-python": "0.7.2"})
READY = replace(CUDA, packages={**FLASHINFER.packages, "flashinfer-jit-cache": "0.7.2"})


@pytest.mark.parametrize(
    ("runtime", "capability", "tools", "expected"),
    [
        (CUDA, "12.0", Tools(), {}),
        (READY, "12.0", Tools(), {}),
        (FLASHINFER, "8.0", Tools(), {}),
        (FLASHINFER, "9.0", Tools(), {"jit_tools_missing": "warn"}),
        (FLASHINFER, "12.0", Tools("/usr/bin/nvcc", "12.9", ""), {"jit_tools_missing": "warn"}),
        (FLASHINFER, "12.0", Tools("/usr/bin/nvcc", "12.9", "/usr/bin/ninja"), {}),
        (FLASHINFER, "12.0", Tools("/usr/bin/nvcc", "12.8", "/usr/bin/ninja"), {"nvcc_too_old": "warn"}),
        (FLASHINFER, "9.0", Tools("/usr/bin/nvcc", "12.4", "/usr/bin/ninja"), {}),
    ],
)
def test_what_compiles_kernels_at_the_start_has_to_be_there(runtime, capability, tools, expected):
    assert ids(judge(facts(gpus=gpus(capability=capability), tools=tools), runtime=runtime)) == expected


def test_a_compiler_that_the_runtime_brings_is_named_and_kernels_that_it_brings_make_it_less_of_a_matter():
    tools = Tools(ninja="/usr/bin/ninja", cuda_in_runtime="/r/lib/python3.12/site-packages/nvidia/cu13")
    (found,) = judge(facts(tools=tools), runtime=FLASHINFER)
    assert "CUDA_HOME: /r/lib/python3.12/site-packages/nvidia/cu13}" in found.remedy
    assert "PATH=/r/bin:" in found.evidence
    cubins = replace(FLASHINFER, packages={**FLASHINFER.packages, "flashinfer-cubin": "0.7.2"})
    assert ids(judge(facts(tools=tools), runtime=cubins)) == {"jit_tools_missing": "info"}


def test_more_compilers_at_a_time_than_memory_allows_are_told():
    tools = Tools("/usr/bin/nvcc", "12.9", "/usr/bin/ninja")
    small = facts(tools=tools, memory_available_bytes=100 * GIB)
    (found,) = judge(small, runtime=FLASHINFER)
    assert (found.id, found.severity) == ("jit_memory", "info") and "MAX_JOBS: 12" in found.remedy
    assert judge(small, environment={"MAX_JOBS": "12"}, runtime=FLASHINFER) == []


def test_orphans_of_others_are_a_warning_and_those_that_the_launch_ends_are_told():
    left = Leftovers((Orphan(700, "vllm", "VLLM::EngineCore"), Orphan(701, "alice", "VLLM::Worker_TP0")))
    own, foreign = judge(facts(leftovers=left), user="vllm")
    assert (own.severity, own.evidence) == ("info", "PID 700 of vllm (VLLM::EngineCore)")
    assert (foreign.severity, foreign.evidence) == ("warn", "PID 701 of alice (VLLM::Worker_TP0)")


def test_a_clock_that_follows_nobody_is_told():
    assert ids(judge(facts(clock_synchronised=False))) == {"clock": "info"}
    assert judge(facts(clock_synchronised=None)) == []


def test_what_the_kernel_said_is_told_and_never_refuses():
    lines = [
        "NVRM: GPU 0000:98:00.0: RmInitAdapter failed! (0x62:0x65:1792)", "NVRM: nouveau, rivafb, nvidiafb or rivatv",
        "AMD-Vi: Event logged [IO_PAGE_FAULT device=0a:00.0]", "AER: Uncorrectable (Fatal) error message received",
        "Out of memory: Killed process 4242 (VLLM::Worker_TP)",
    ]  # fmt: skip
    found = judge(facts(log=scan(lines, "dmesg", 0.0)))
    assert len(found) == 5 and verdict(found) == "warn"
    assert all(finding.where == "dmesg" and finding.what.startswith("Since boot ") for finding in found)
