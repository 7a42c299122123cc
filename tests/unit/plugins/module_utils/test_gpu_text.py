from __future__ import annotations

import pytest
from ansible_collections.llmops.vllm.plugins.module_utils.gpu import MissingGpu
from ansible_collections.llmops.vllm.plugins.module_utils.gpu_text import (
    explain,
    merge,
    parse_lost,
    parse_matrix,
    parse_rows,
)
from ansible_collections.llmops.vllm.plugins.module_utils.gpu_xml import parse_document
from ansible_collections.llmops.vllm.plugins.module_utils.sizes import MIB
from ansible_collections.llmops.vllm.plugins.module_utils.systemd import CompletedRun
from ansible_collections.llmops.vllm.tests.unit.nvidia_smi import (
    BAD_FIELD,
    MISMATCH,
    NO_DRIVER,
    Card,
    cards,
    document,
    matrix,
    rows,
)


def test_rows_give_numbers_capabilities_and_memory():
    found = parse_rows(rows(cards(2, capability="12.0", mig="N/A")))
    assert [(one.index, one.bus_id, one.compute_capability, one.mig.mode) for one in found] == [
        (0, "0000:0a:00.0", "12.0", ""), (1, "0000:1a:00.0", "12.0", ""),
    ]  # fmt: skip
    assert (found[0].memory_total_bytes, found[0].memory_free_bytes) == (81000 * MIB, 80400 * MIB)


def test_a_lost_gpu_leaves_a_gap_in_the_numbers():
    complaint = "Unable to determine the device handle for GPU1: 0000:1A:00.0: Unknown Error\n"
    found = parse_rows(complaint + rows([Card(index=0), Card(index=2)]))
    assert [one.index for one in found] == [0, 2]


def test_a_field_that_says_that_the_gpu_cannot_answer_is_its_fault():
    found = parse_rows(rows([Card(lost="GPU requires reset"), Card(index=1)]))
    assert [one.fault for one in found] == ["GPU requires reset", ""]
    assert found[0].memory_total_bytes is None


@pytest.mark.parametrize("text", ["", BAD_FIELD, "No devices were found\n", "0, GPU-1, x\n"])
def test_what_has_no_header_has_no_rows(text):
    assert parse_rows(text) == []


def test_numbers_and_capabilities_are_added_to_the_document_and_a_gpu_that_only_the_rows_know_is_kept():
    documented = parse_document(document([Card(index=1), Card(index=4)])).gpus
    merged = merge(documented, parse_rows(rows([Card(index=0, capability="8.0"), Card(index=1), Card(index=4)])))
    assert [(one.index, one.compute_capability, one.minor) for one in merged] == [
        (0, "8.0", None),
        (1, "9.0", 1),
        (4, "9.0", 4),
    ]


def test_gpus_that_share_an_address_in_the_document_keep_their_own_rows():
    merged = merge(parse_document(document(cards(3))).gpus, [])
    assert [one.index for one in merged] == [0, 1, 2]


@pytest.mark.parametrize(
    ("complaint", "found"),
    [
        ("GPU 0000:5E:00.0: Unknown Error", MissingGpu("0000:5e:00.0", "Unknown Error")),
        ("GPU0000:25:00.0: Unknown Error", MissingGpu("0000:25:00.0", "Unknown Error")),
        ("GPU3: 0000:5F:00.0: Unknown Error", MissingGpu("0000:5f:00.0", "Unknown Error")),
        ("GPU2: Unknown Error", MissingGpu("GPU2", "Unknown Error")),
        ("GPU 0000:05:00.0: GPU is lost.  Reboot", MissingGpu("0000:05:00.0", "GPU is lost.  Reboot")),
    ],
)
def test_every_wording_of_a_lost_gpu_is_understood(complaint, found):
    assert parse_lost(f"Unable to determine the device handle for {complaint}\n") == [found]


@pytest.mark.parametrize(
    ("done", "words"),
    [
        (CompletedRun(127, "", ""), "nvidia-smi is not installed"),
        (CompletedRun(124, "", "nvidia-smi gave no answer within 20 s"), "nvidia-smi gave no answer within 20 s"),
        (CompletedRun(9, NO_DRIVER, ""), "status 9 (the driver is not loaded): NVIDIA-SMI has failed"),
        (CompletedRun(18, MISMATCH, ""), "of different versions): Failed to initialize NVML"),
        (CompletedRun(6, "No devices were found\n", ""), "(no GPU was found): No devices were found"),
        (CompletedRun(255, "Unknown Error\n", ""), "nvidia-smi: Unknown Error"),
        (CompletedRun(15, "<?xml", ""), "(a GPU has fallen off the bus): no words"),
        (
            CompletedRun(14, document(cards(1)) + "WARNING: infoROM is corrupted at gpu 0000:0B:00.0\n", ""),
            "): WARNING: infoROM",
        ),
    ],
)
def test_a_failure_is_told_in_a_sentence(done, words):
    assert words in explain(done)


def test_a_matrix_is_read_with_its_underlined_header_and_numa_nodes():
    links, numa = parse_matrix(matrix(lambda a, b: "PIX" if a // 2 == b // 2 else "SYS"))
    assert links["GPU0"] == {"GPU1": "PIX", **{f"GPU{number}": "SYS" for number in range(2, 8)}}
    assert (numa["GPU0"], numa["GPU7"]) == ("0", "1")


def test_network_adapters_in_a_matrix_are_left_out():
    text = (
        "\tGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n"
        "GPU0\t X \tNV4\tPIX\t0-15\t0\t\tN/A\nGPU1\tNV4\t X \tSYS\t0-15\t1\t\tN/A\nNIC0\tPIX\tSYS\t X \t\t\t\n"
        "\nLegend:\n\n  NV#  = x\n\nNIC Legend:\n\n  NIC0: mlx5_0\n"
    )
    assert parse_matrix(text) == ({"GPU0": {"GPU1": "NV4"}, "GPU1": {"GPU0": "NV4"}}, {"GPU0": "0", "GPU1": "1"})


def test_a_matrix_that_was_pasted_with_blanks_is_read_too():
    header = "        GPU0    GPU1CPU Affinity    NUMA Affinity\n"
    text = f"{header}GPU0     X      PHB     0-15   0\nGPU1    PHB      X      0-15   0\n"
    assert parse_matrix(text)[0] == {"GPU0": {"GPU1": "PHB"}, "GPU1": {"GPU0": "PHB"}}


def test_what_is_no_matrix_is_empty():
    assert parse_matrix("Invalid combination of input arguments.\n") == ({}, {})
