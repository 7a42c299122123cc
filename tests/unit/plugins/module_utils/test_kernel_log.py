from __future__ import annotations

import pytest
from ansible_collections.llmops.vllm.plugins.module_utils.kernel_log import read_kernel_log, scan
from ansible_collections.llmops.vllm.plugins.module_utils.procfs import ProcFs
from ansible_collections.llmops.vllm.plugins.module_utils.systemd import CompletedRun

OFF_THE_BUS = "NVRM: Xid (PCI:0000:5f:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."


@pytest.mark.parametrize(
    ("line", "epoch"),
    [
        (f"1796083200.250000 host1 kernel: {OFF_THE_BUS}", 1796083200.25),
        (f"[  120.500000] {OFF_THE_BUS}", 1120.5),
        (f"[Sun Feb 23 16:24:18 2025] {OFF_THE_BUS}", None),
        (f"kern  :warn  : 2025-01-21T04:41:44,283302+00:00 {OFF_THE_BUS}", None),
        (f"Aug 19 21:36:23 host1 kernel: {OFF_THE_BUS}", None),
        (OFF_THE_BUS.replace(", pid='<unknown>', name=<unknown>", ""), None),
    ],
)
def test_an_xid_is_found_in_every_form_of_the_log(line, epoch):
    (found,) = scan([line], "journalctl", 1000.0).xids
    assert (found.bus_id, found.number, found.severity, found.last_epoch) == ("0000:5f:00.0", 79, "broken", epoch)
    assert found.meaning == "the GPU has fallen off the bus" and found.text.startswith("NVRM: Xid")


@pytest.mark.parametrize(
    ("address", "bus_id"),
    [("PCI:0000:01:00 GPU-I:05", "0000:01:00.0"), ("0000:01:00", "0000:01:00.0"), ("PCI:0009:01:00", "0009:01:00.0")],
)
def test_every_form_of_the_address_is_understood(address, bus_id):
    (found,) = scan([f"NVRM: Xid ({address}): 94, pid=7194, Contained: CE User Channel"], "dmesg", 0.0).xids
    assert (found.bus_id, found.number, found.severity) == (bus_id, 94, "application")


def test_errors_of_one_kind_are_counted_for_each_gpu_and_the_last_is_told():
    lines = [f"[ {number}.0] NVRM: Xid (PCI:0000:38:00): 13, error {number}" for number in range(1, 4)]
    lines.append("[ 9.0] NVRM: Xid (PCI:0000:39:00): 13, other")
    first, second = scan(lines, "dmesg", 100.0).xids
    assert (first.count, first.last_epoch, second.count) == (3, 103.0, 1)
    assert first.text.endswith("error 3")


def test_a_number_that_is_not_in_the_list_is_told_as_unknown():
    assert scan(["NVRM: Xid (PCI:0000:38:00): 999, what"], "dmesg", 0.0).xids[0].severity == "unknown"


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("NVRM: GPU 0000:98:00.0: RmInitAdapter failed! (0x62:0x65:1792)", "gpu_init_failed"),
        ("NVRM: nouveau, rivafb, nvidiafb or rivatv ", "driver_conflict"),
        ("AMD-Vi: Event logged [IO_PAGE_FAULT device=0a:00.0 domain=0x0]", "iommu_fault"),
        ("DMAR: [DMA Write NO_PASID] Request device [0a:00.0] fault addr 0x0", "iommu_fault"),
        ("pcieport 0000:00:02.1: AER: Uncorrectable (Fatal) error message received from 0000:09:05.0", "pcie_fatal"),
        ("Out of memory: Killed process 4242 (VLLM::Worker_TP) total-vm:1kB", "oom_kill"),
        ("Memory cgroup out of memory: Killed process 4242 (VLLM::EngineCor)", "oom_kill"),
    ],
)
def test_what_matters_to_a_launch_is_found(line, kind):
    assert [(one.kind, one.count) for one in scan([line, line], "dmesg", 0.0).signs] == [(kind, 2)]


@pytest.mark.parametrize(
    "line",
    [
        "iommu: Default domain type: Translated",
        "nvidia 0000:01:00.0: PCIe Bus Error: severity=Corrected",
        "NVRM: loading NVIDIA UNIX Open Kernel Module",
    ],
)
def test_what_every_healthy_host_says_is_nothing(line):
    assert scan([line], "dmesg", 0.0).signs == ()


def test_the_journal_is_asked_for_this_boot_only_and_dmesg_where_it_shows_nothing(tmp_path):
    asked = []
    (tmp_path / "stat").write_text("cpu  1 2 3\nbtime 1000\nprocesses 7\n")

    def run(argv):
        asked.append(list(argv))
        return CompletedRun(0, "" if argv[0] == "journalctl" else f"[ 1.5] {OFF_THE_BUS}\n", "")

    log = read_kernel_log(run, ProcFs(str(tmp_path)))
    assert (log.where, len(log.xids), log.xids[0].last_epoch) == ("dmesg", 1, 1001.5)
    assert "--dmesg" in asked[0] and "--no-pager" in asked[0] and [argv[0] for argv in asked] == ["journalctl", "dmesg"]


def test_a_log_that_nobody_shows_is_a_reason(tmp_path):
    def run(argv):
        if argv[0] == "journalctl":
            return CompletedRun(0, "", "")
        return CompletedRun(1, "", "dmesg: read kernel buffer failed: Operation not permitted\n")

    log = read_kernel_log(run, ProcFs(str(tmp_path)))
    assert log.where == "" and log.xids == ()
    assert (
        log.reason == "journalctl shows nothing to this user; dmesg: read kernel buffer failed: Operation not permitted"
    )
