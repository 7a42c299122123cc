from __future__ import annotations

from dataclasses import replace

import pytest
from ansible_collections.llmops.vllm.plugins.module_utils.gpu import GpuReport, MissingGpu, Topology
from ansible_collections.llmops.vllm.plugins.module_utils.gpu_findings import gpu_findings, visible_gpus
from ansible_collections.llmops.vllm.plugins.module_utils.gpu_text import merge, parse_matrix, parse_rows
from ansible_collections.llmops.vllm.plugins.module_utils.gpu_xml import parse_document
from ansible_collections.llmops.vllm.plugins.module_utils.kernel_log import KernelLog, scan
from ansible_collections.llmops.vllm.plugins.module_utils.launch import Launch
from ansible_collections.llmops.vllm.plugins.module_utils.runtime_facts import Runtime
from ansible_collections.llmops.vllm.tests.unit.nvidia_smi import Card, cards, document, matrix, rows

CUDA = Runtime(path="/srv/llm/runtimes/1", device="cuda", cuda="12.8")
TP8 = {"tensor-parallel-size": 8}
ENGINE = (4242, "C", "VLLM::Worker_TP0", "70000 MiB")


def report(gpus, driver="580.65.06", cuda="13.0", link="NV18", p2p="OK", missing=(), unit=""):
    documented = parse_document(document(gpus, driver, cuda)).gpus
    found = merge(documented, parse_rows(rows(gpus)))
    links, numa = parse_matrix(matrix(link if callable(link) else lambda _a, _b: link, len(gpus)))
    peers, _numa = parse_matrix(matrix(p2p if callable(p2p) else lambda _a, _b: p2p, len(gpus), affinity=False))
    return GpuReport(True, driver_version=driver, cuda_version=cuda, gpus=found, missing=tuple(missing),
                     topology=Topology(links, peers, numa))  # fmt: skip


def owned(found, **owner):
    """The report with every process owned so."""
    gpus = tuple(replace(gpu, processes=tuple(replace(one, **owner) for one in gpu.processes)) for gpu in found.gpus)
    return replace(found, gpus=gpus)


def judge(found, arguments=TP8, log=KernelLog(), runtime=CUDA, environment=None, **launch):  # noqa: B008
    return gpu_findings(found, log, Launch(arguments, environment or {}, runtime, **launch))


def ids(findings):
    return {finding.id: finding.severity for finding in findings}


@pytest.mark.parametrize(
    "gpus",
    [
        cards(8),
        cards(8, name="NVIDIA H200", memory=(143000, 600, 0)),
        cards(8, name="NVIDIA B200", architecture="Blackwell", capability="10.0", memory=(183000, 700, 0)),
        cards(
            8, name="NVIDIA RTX PRO 6000 Blackwell Server Edition", capability="12.0", fabric=("N/A", "N/A"), mig="N/A"
        ),
        cards(8, name="NVIDIA A100-SXM4-80GB", architecture="Ampere", capability="8.0"),
        cards(8, slow=("sw_power_cap", "gpu_idle"), processes=[(900, "G", "/usr/lib/xorg/Xorg", "4 MiB")]),
    ],
)
def test_healthy_hosts_of_every_kind_have_nothing_against_a_launch(gpus):
    assert judge(report(gpus)) == []


def test_an_engine_on_the_cpu_does_not_mind_what_the_gpus_are_like():
    assert judge(GpuReport(False, reason="nvidia-smi is not installed"), runtime=Runtime(device="cpu")) == []
    assert judge(report([Card(lost="GPU is lost")]), runtime=Runtime(device="cpu")) == []


@pytest.mark.parametrize(
    ("absent", "severity"),
    [
        (GpuReport(False, reason="nvidia-smi ended with status 9 (the driver is not loaded): ..."), "no_go"),
        (GpuReport(False, False, "nvidia-smi is not installed; no NVIDIA GPU is on the PCI bus"), "no_go"),
        (GpuReport(False, False, "nvidia-smi gave no answer within 20 s; on the PCI bus are 8 NVIDIA GPUs"), "warn"),
    ],
)
def test_a_runtime_for_gpus_needs_some_and_who_could_not_be_asked_is_no_proof(absent, severity):
    (found,) = judge(absent)
    assert (found.id, found.severity, found.evidence) == ("gpu_absent", severity, absent.reason)


def test_where_it_is_not_known_what_the_runtime_is_for_no_gpu_is_no_finding():
    assert judge(GpuReport(False, reason="none"), runtime=Runtime()) == []


def test_too_few_gpus_are_a_no_go_and_the_lost_one_is_named():
    found = report(
        [Card(index=n) for n in (0, 1, 2, 4, 5, 6, 7)], missing=[MissingGpu("0000:3a:00.0", "Unknown Error")]
    )
    (finding,) = judge(found)
    assert (finding.id, finding.severity, finding.evidence) == (
        "gpu_count",
        "no_go",
        "7 GPUs; 0000:3a:00.0: Unknown Error",
    )
    assert finding.what == "The engine wants 8 GPUs, and 7 can be used."


def test_a_lost_gpu_that_the_engine_does_not_need_is_a_warning():
    found = report(cards(4), missing=[MissingGpu("0000:5a:00.0", "Unknown Error")])
    assert ids(judge(found, {"tensor-parallel-size": 4})) == {"gpu_missing": "warn"}


def test_visible_devices_leave_numbers_and_uuids_until_a_word_that_is_neither():
    gpus = report(cards(4)).gpus
    assert [gpu.index for gpu in visible_gpus(gpus, None)] == [0, 1, 2, 3]
    assert [gpu.index for gpu in visible_gpus(gpus, "2, 0,-1,3")] == [2, 0]
    assert [gpu.index for gpu in visible_gpus(gpus, "GPU-00000002")] == [1]
    assert visible_gpus(gpus, "") == [] and visible_gpus(gpus, "NoDevFiles") == []


def test_the_engine_is_judged_by_the_gpus_that_it_may_see():
    found = report([Card(index=0, lost="GPU is lost"), *[Card(index=n) for n in (1, 2)]])
    assert ids(judge(found, {"tp": 2})) == {"gpu_fault": "no_go"}
    assert ids(judge(found, {"tp": 2}, environment={"CUDA_VISIBLE_DEVICES": "1,2"})) == {"gpu_fault": "warn"}
    few = judge(found, {"tp": 2}, environment={"CUDA_VISIBLE_DEVICES": "1"})
    assert ids(few)["gpu_count"] == "no_go" and "CUDA_VISIBLE_DEVICES=1" in few[0].evidence


@pytest.mark.parametrize(
    ("driver", "names", "cuda", "expected"),
    [
        ("570.211.01", "12.8", "13.0", {"driver_too_old": "no_go"}),
        ("570.211.01", "12.8", "12.9", {"driver_older_than_cuda": "warn"}),
        ("595.58.03", "13.2", "12.8", {}),
    ],
)
def test_the_driver_is_held_against_the_runtimes_cuda(driver, names, cuda, expected):
    found = judge(report(cards(8), driver, names), runtime=Runtime(path="/r", device="cuda", cuda=cuda))
    assert ids(found) == expected
    for finding in found:
        assert finding.evidence == f"driver {driver} (CUDA {names}), runtime for CUDA {cuda}" and finding.source


def test_a_compatibility_library_can_make_up_for_an_old_driver():
    environment = {"LD_LIBRARY_PATH": "/usr/local/cuda-13.0/compat"}
    runtime = Runtime(device="cuda", cuda="13.0")
    assert ids(judge(report(cards(8), "570.211.01", "12.8"), runtime=runtime, environment=environment)) == {
        "driver_too_old": "warn"
    }


def test_divided_gpus_stop_an_engine_that_spreads():
    divided = report(cards(2, mig="Enabled", mig_devices=(20000, 20000)))
    assert ids(judge(divided, {"tp": 2})) == {"gpu_divided": "no_go"}
    assert ids(judge(divided, {})) == {"gpu_divided": "warn"}


def test_gpus_of_several_kinds_are_told():
    found = judge(report([Card(), Card(index=1, name="NVIDIA H200")]), {"tp": 2})
    assert ids(found) == {"gpu_mixed": "info"} and "NVIDIA H200 (9.0)" in found[0].evidence


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"recovery": "Reset"}, {"gpu_recovery": "no_go"}),
        ({"recovery": "Drain and Reset"}, {"gpu_recovery": "warn"}),
        ({"uncorrectable": 2}, {"gpu_ecc_errors": "warn"}),
        ({"remap_pending": "Yes"}, {"gpu_remap_pending": "warn"}),
        ({"remap_failed": "Yes"}, {"gpu_memory_damaged": "warn"}),
        ({"slow": ("hw_thermal_slowdown",)}, {"gpu_slowed_down": "warn"}),
        ({"persistence": "Disabled"}, {"gpu_persistence": "info"}),
        ({"fabric": ("In Progress", "N/A")}, {"fabric_not_ready": "no_go"}),
    ],
)
def test_what_is_wrong_with_a_gpu_is_told(settings, expected):
    found = judge(report([Card(), Card(index=1, **settings)]), {"tp": 2})
    assert ids(found) == expected
    assert "GPU 1 (0000:1a:00.0)" in found[0].what + found[0].evidence


def test_memory_that_somebody_else_holds_stops_a_launch_and_the_holder_is_named():
    found = report(cards(2, memory=(81000, 500, 70100), processes=[ENGINE]))
    (finding,) = judge(
        owned(found, user="alice", unit="train.service"), {"tp": 2}, unit="vllm@kimi.service", user="vllm"
    )
    assert (finding.id, finding.severity) == ("gpu_memory_taken", "no_go")
    assert "Holders: PID 4242 (VLLM::Worker_TP0; train.service, 68.4 GiB)" in finding.evidence
    assert "gpu-memory-utilization: 0.12" in finding.remedy


@pytest.mark.parametrize(
    "owner", [{"user": "vllm", "unit": "vllm@kimi.service"}, {"user": "vllm", "unit": ""}], ids=["unit", "orphan"]
)
def test_memory_that_the_instance_itself_holds_is_free_by_then(owner):
    found = report(cards(2, memory=(81000, 500, 70100), processes=[ENGINE]))
    assert judge(owned(found, **owner), {"tp": 2}, unit="vllm@kimi.service", user="vllm") == []


def test_memory_whose_holders_cannot_be_seen_is_a_warning():
    assert ids(judge(report(cards(1, memory=(81000, 500, 70000))), {})) == {"gpu_memory_taken": "warn"}


def test_a_neighbour_that_leaves_enough_is_only_told():
    found = report(cards(1, memory=(81000, 500, 1000), processes=[(17, "C", "python", "900 MiB")]))
    assert ids(judge(found, {})) == {"gpu_shared": "info"}


def test_a_gpu_that_shares_the_hosts_memory_is_not_judged_by_it():
    text = document([Card()]).replace("81000 MiB", "N/A").replace("80400 MiB", "N/A")
    assert judge(GpuReport(True, gpus=parse_document(text).gpus), {}) == []


def test_a_link_with_fewer_lanes_than_the_others_is_told():
    found = report(cards(8), link=lambda a, b: "NV17" if {a, b} == {2, 3} else "NV18" if a // 2 == b // 2 else "SYS")
    (finding,) = judge(found)
    assert (finding.id, finding.evidence) == ("nvlink_degraded", "GPU2-GPU3 NV17 instead of NV18")


@pytest.mark.parametrize(
    "link", ["PIX", lambda a, b: "NV4" if a // 2 == b // 2 else "NODE", lambda a, b: f"NV{1 + (a + b) % 2}"]
)
def test_links_that_differ_by_design_are_fine(link):
    assert judge(report(cards(8), link=link)) == []


def test_gpus_that_cannot_read_each_others_memory_are_told():
    assert ids(judge(report(cards(8), p2p="CNS", link="PHB"))) == {"p2p_unavailable": "info"}


def test_errors_since_boot_are_told_and_never_refuse():
    lines = [f"NVRM: Xid (PCI:0000:0a:00): {number}, x" for number in (79, 63, 31, 999)]
    found = judge(report(cards(8)), log=scan(lines, "journalctl", 0.0))
    assert ids(found) == {
        "gpu_xid_broken": "warn", "gpu_xid_damaged": "warn", "gpu_xid_unknown": "info", "gpu_xid_application": "info",
    }  # fmt: skip
    assert found[0].evidence == "GPU 0 (0000:0a:00.0): Xid 79 (the GPU has fallen off the bus), 1 times"
    assert found[0].where == "journalctl"
