from __future__ import annotations

import os

import pytest
from ansible_collections.llmops.vllm.plugins.module_utils.cgroups import CgroupLayout
from ansible_collections.llmops.vllm.plugins.module_utils.gpu import MissingGpu
from ansible_collections.llmops.vllm.plugins.module_utils.gpu_query import GpuHost, read_gpus
from ansible_collections.llmops.vllm.plugins.module_utils.procfs import ProcFs
from ansible_collections.llmops.vllm.plugins.module_utils.systemd import CompletedRun
from ansible_collections.llmops.vllm.tests.unit.nvidia_smi import (
    BAD_FIELD,
    MISMATCH,
    NO_DRIVER,
    Card,
    HostTree,
    Smi,
    cards,
    document,
    rows,
)


@pytest.fixture
def tree(tmp_path):
    return HostTree(tmp_path)


def look(tree, smi, topology=True):
    proc = ProcFs(str(tree.proc))
    return read_gpus(GpuHost(smi, proc, CgroupLayout(proc), {}, str(tree.root)), topology)


def test_a_healthy_host_is_told_whole(tree):
    smi = Smi.of(
        cards(8, name="NVIDIA RTX PRO 6000 Blackwell Server Edition", capability="12.0"), "595.58.03", "13.2", "PIX"
    )
    for card in cards(8):
        tree.gpu_on_bus(card)
    report = look(tree.driver("595.58.03"), smi)
    assert (report.present, report.reason, report.missing, report.problems) == (True, "", (), ())
    assert (report.driver_version, report.cuda_version, report.kernel_module) == ("595.58.03", "13.2", "open")
    assert [gpu.index for gpu in report.gpus] == list(range(8))
    assert {gpu.compute_capability for gpu in report.gpus} == {"12.0"}
    assert report.topology.links["GPU0"]["GPU7"] == "PIX" and report.topology.p2p["GPU0"]["GPU7"] == "OK"
    assert report.topology.numa_nodes["GPU7"] == "1"
    assert report.as_dict()["gpus"][0]["memory_total_bytes"] == 81000 * 1024 * 1024


def test_links_are_asked_for_only_where_there_can_be_some(tree):
    for smi, topology in ((Smi.of(cards(1)), True), (Smi.of(cards(2)), False)):
        assert look(tree, smi, topology).topology.links == {}
        assert not any("topo" in argv for argv in smi.asked)


def test_a_driver_that_does_not_know_the_capability_is_asked_without_it(tree):
    class Old(Smi):
        def __call__(self, argv):
            done = super().__call__(argv)
            return CompletedRun(2, BAD_FIELD, "") if "compute_cap" in argv[1] else done

    smi = Old.of([Card(index=1)], "470.82.01", "11.4")
    smi.answers["--query-gpu"] = CompletedRun(0, rows([Card(index=1)], capability=False), "")
    (gpu,) = look(tree, smi).gpus
    assert (gpu.index, gpu.compute_capability) == (1, "")


@pytest.mark.parametrize(
    ("done", "words"),
    [
        (CompletedRun(127, "", ""), "nvidia-smi is not installed"),
        (CompletedRun(9, NO_DRIVER, ""), "the driver is not loaded"),
        (CompletedRun(18, MISMATCH, ""), "different versions"),
        (CompletedRun(6, "No devices were found\n", ""), "No devices were found"),
        (CompletedRun(124, "", "nvidia-smi gave no answer within 20 s"), "no answer within 20 s"),
        (CompletedRun(0, document([]), ""), "nvidia-smi"),
        (CompletedRun(255, "\udcff garbage", ""), "garbage"),
    ],
)
def test_a_host_whose_gpus_cannot_be_asked_has_a_reason(tree, done, words):
    report = look(tree, Smi({"-q -x": done, "--query-gpu": done}))
    assert (report.present, report.gpus) == (False, ())
    assert words in report.reason and report.reason.endswith("no NVIDIA GPU is on the PCI bus")


@pytest.mark.parametrize(("driver", "taken"), [("nouveau", "nouveau"), ("vfio-pci", "vfio-pci"), ("", "no driver")])
def test_the_reason_says_who_has_the_gpus_that_are_on_the_bus(tree, driver, taken):
    for card in cards(2):
        tree.gpu_on_bus(card, driver=driver, listed=False)
    report = look(tree, Smi({"-q -x": CompletedRun(9, NO_DRIVER, "")}))
    assert report.reason.endswith(f"on the PCI bus are 2 NVIDIA GPUs, taken by {taken}")


def test_a_driver_that_hangs_is_asked_once(tree):
    smi = Smi({"-q -x": CompletedRun(124, "", "nvidia-smi gave no answer within 20 s")})
    look(tree, smi)
    assert len(smi.asked) == 1


def test_a_gpu_that_hangs_the_second_question_is_not_asked_a_third(tree):
    smi = Smi.of(cards(4))
    smi.answers["--query-gpu"] = CompletedRun(124, "", "nvidia-smi gave no answer within 20 s")
    report = look(tree, smi)
    assert (report.present, len(report.gpus), len(smi.asked)) == (True, 4, 2)
    assert "nvidia-smi gave no answer within 20 s" in report.problems


def test_a_gpu_that_fell_off_the_bus_is_missing_and_the_others_keep_their_numbers(tree):
    alive = [Card(index=0), Card(index=2)]
    smi = Smi.of(alive)
    complaint = "Unable to determine the device handle for GPU1: 0000:1A:00.0: GPU is lost.  Reboot the system\n"
    smi.answers["-q -x"] = CompletedRun(15, complaint + document(alive), "")
    for card in cards(3):
        tree.gpu_on_bus(card)
    report = look(tree.driver(), smi)
    assert [gpu.index for gpu in report.gpus] == [0, 2]
    assert report.missing == (MissingGpu("0000:1a:00.0", "GPU is lost.  Reboot the system"),)
    assert report.problems == ("nvidia-smi ended with status 15 (a GPU has fallen off the bus): " + complaint.strip(),)


def test_a_gpu_that_only_the_driver_knows_is_missing(tree):
    for card in cards(3):
        tree.gpu_on_bus(card)
    (missing,) = look(tree.driver(), Smi.of([Card(index=0), Card(index=2)])).missing
    assert (missing.bus_id, missing.reason) == ("0000:1a:00.0", "the driver has it, and nvidia-smi does not show it")


def test_a_gpu_on_the_bus_that_this_container_or_driver_was_not_given_is_not_missing(tree):
    tree.gpu_on_bus(Card(index=0)).gpu_on_bus(Card(index=1), listed=False).gpu_on_bus(Card(index=2), driver="vfio-pci")
    assert look(tree.driver(), Smi.of([Card(index=0)])).missing == ()


def test_gpus_are_found_even_when_only_the_second_question_is_answered(tree):
    smi = Smi.of(cards(2))
    smi.answers["-q -x"] = CompletedRun(15, "Unable to determine the device handle for GPU2: Unknown Error\n", "")
    report = look(tree, smi)
    assert (report.present, len(report.gpus), report.missing[0].bus_id) == (True, 2, "GPU2")


def test_who_holds_a_gpu_is_told_with_user_and_unit():
    # A device node that this very process holds open stands for a GPU's.
    with open("/dev/null", "rb") as held:
        device = os.fstat(held.fileno()).st_rdev
        smi = Smi.of([Card(processes=[(os.getpid(), "C", "python", "10 MiB"), (2**22 + 1, "C", "far", "10 MiB")])])
        proc = ProcFs()
        report = read_gpus(GpuHost(smi, proc, CgroupLayout(proc), {device: "/dev/nvidia0"}))
    (mine,) = [holder for holder in report.holders if holder.pid == os.getpid()]
    assert mine.devices == ("/dev/nvidia0",)
    ours, far = report.gpus[0].processes
    assert (ours.user, ours.command) == (mine.user, mine.command) and "pytest" in ours.command
    assert (far.user, far.unit, far.command) == ("", "", "")


def test_a_number_that_is_another_process_here_is_not_named_after_it(tree):
    proc = ProcFs()
    smi = Smi.of([Card(processes=[(os.getpid(), "C", "VLLM::Worker", "10 MiB")])])
    report = read_gpus(GpuHost(smi, proc, CgroupLayout(proc), {}))
    assert report.gpus[0].processes[0].command == ""
