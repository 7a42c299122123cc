from __future__ import annotations

import pytest
from ansible_collections.llmops.vllm.plugins.module_utils.gpu import MigDevice
from ansible_collections.llmops.vllm.plugins.module_utils.gpu_xml import kernel_bus_id, parse_document
from ansible_collections.llmops.vllm.plugins.module_utils.sizes import MIB
from ansible_collections.llmops.vllm.tests.unit.nvidia_smi import Card, cards, document

DRIVERS = ["470.82.01", "510.47.03", "525.147.05", "535.161.08", "550.54.15", "570.124.06", "580.65.06", "595.58.03"]


def only(card, driver="580.65.06"):
    (gpu,) = parse_document(document([card], driver)).gpus
    return gpu


@pytest.mark.parametrize("driver", DRIVERS)
def test_every_generation_of_the_document_gives_the_same_values(driver):
    found = parse_document(document(cards(8, slow=("gpu_idle", "sw_power_cap"), uncorrectable=3), driver, "12.4"))
    assert (found.driver_version, found.cuda_version, len(found.gpus)) == (driver, "12.4", 8)
    gpu = found.gpus[7]
    assert (gpu.index, gpu.minor, gpu.bus_id) == (7, 7, "0000:7a:00.0")
    assert (gpu.name, gpu.architecture, gpu.persistence) == ("NVIDIA H100 80GB HBM3", "Hopper", True)
    sizes = (gpu.memory_total_bytes, gpu.memory_reserved_bytes, gpu.memory_used_bytes, gpu.memory_free_bytes)
    assert sizes == (81000 * MIB, 500 * MIB, 100 * MIB, 80400 * MIB)
    assert gpu.usable_bytes == 80500 * MIB
    assert (gpu.temperature_celsius, gpu.power_draw_watts, gpu.power_limit_watts) == (31, 70.25, 700.0)
    assert gpu.slowdown == ("sw_power_cap",)
    assert (gpu.ecc.mode, gpu.ecc.corrected_volatile, gpu.ecc.uncorrected_volatile) == ("enabled", 3, 3)
    assert (gpu.ecc.remap_pending, gpu.ecc.remap_failed) == (False, False)
    assert (gpu.fabric.state, gpu.fabric.status, gpu.fault, gpu.recovery_action) == ("Completed", "Success", "", "")
    assert (gpu.pcie.generation, gpu.pcie.generation_max, gpu.pcie.width, gpu.pcie.width_max) == (1, 5, 8, 16)


def test_versions_that_are_called_deprecated_are_versions():
    found = parse_document(document(cards(1), "610.57.04", "14.0"))
    assert (found.driver_version, found.cuda_version) == ("610.57.04", "14.0")


@pytest.mark.parametrize("driver", ["535.161.08", "580.65.06"])
def test_a_gpu_that_has_to_be_reset_says_so(driver):
    assert only(Card(recovery="Reset"), driver).recovery_action == "Reset"


def test_a_lost_gpu_keeps_its_identity_and_has_a_fault_in_place_of_values():
    gpu = only(Card(index=2, lost="GPU is lost"))
    assert (gpu.fault, gpu.minor, gpu.name) == ("GPU is lost", 2, "NVIDIA H100 80GB HBM3")
    assert (gpu.memory_total_bytes, gpu.usable_bytes, gpu.ecc.uncorrected_volatile) == (None, None, None)
    assert gpu.fabric.state == ""


def test_a_gpu_without_memory_of_its_own_ecc_mig_or_fabric_has_none():
    plain = Card(name="NVIDIA GB10", ecc="N/A", mig="N/A", fabric=("N/A", "N/A"), persistence="N/A")
    text = document([plain]).replace("81000 MiB", "N/A").replace("500 MiB", "N/A").replace("100 MiB", "Not Supported")
    (gpu,) = parse_document(text).gpus
    assert (gpu.memory_total_bytes, gpu.memory_used_bytes, gpu.persistence) == (None, None, None)
    assert (gpu.ecc.mode, gpu.ecc.corrected_volatile, gpu.mig.mode, gpu.fabric.state) == ("", None, "", "")
    assert gpu.fault == ""


def test_the_parts_of_a_divided_gpu_are_listed():
    gpu = only(Card(mig="Enabled", mig_devices=(20000, 40000)))
    assert gpu.mig.mode == "enabled"
    assert gpu.mig.devices == (
        MigDevice(0, 1, 20000 * MIB, 20 * MIB), MigDevice(1, 2, 40000 * MIB, 20 * MIB),
    )  # fmt: skip


def test_processes_are_listed_with_the_memory_they_hold_where_it_is_told():
    held = [(4242, "C", "VLLM::Worker_TP0", "70000 MiB"), (17, "M+C", "python", "[N/A]"), (0, "C", "?", "1 MiB")]
    found = [(one.pid, one.kind, one.name, one.used_bytes) for one in only(Card(processes=held)).processes]
    assert found == [(4242, "C", "VLLM::Worker_TP0", 70000 * MIB), (17, "M+C", "python", None)]


@pytest.mark.parametrize(
    "text", ["", "No devices were found\n", document(cards(1))[:-40], "<nvidia_smi_log><</nvidia_smi_log>"]
)
def test_what_is_no_whole_document_is_none(text):
    assert parse_document(text) is None


def test_complaints_around_the_document_do_no_harm():
    complaint = "Unable to determine the device handle for GPU3: 0000:04:00.0: Unknown Error"
    text = f"{complaint}\n{document(cards(2))}\nWARNING: infoROM is corrupted at gpu 0000:0B:00.0\n"
    assert len(parse_document(text).gpus) == 2


@pytest.mark.parametrize(
    ("written", "kernel"),
    [
        ("00000000:0A:00.0", "0000:0a:00.0"),
        ("00000009:01:00.0", "0009:01:00.0"),
        ("0000:5E:00.0", "0000:5e:00.0"),
        ("5E:00.0", "0000:5e:00.0"),
    ],
)
def test_a_pci_address_is_written_as_the_kernel_does(written, kernel):
    assert kernel_bus_id(written) == kernel
