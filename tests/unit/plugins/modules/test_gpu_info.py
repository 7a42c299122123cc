from __future__ import annotations

import os
import time

import pytest
import yaml
from ansible_collections.llmops.vllm.plugins.modules import gpu_info
from ansible_collections.llmops.vllm.tests.unit.nvidia_smi import Card, Smi, cards


@pytest.fixture
def path(tmp_path, monkeypatch):
    """A directory before all others on PATH; the kernel's log is quiet."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    for name in ("journalctl", "dmesg"):
        (tmp_path / name).write_text("#!/bin/sh\necho '[ 1.500000] NVRM: Xid (PCI:0000:1a:00): 63, pid=1, remap'\n")
        (tmp_path / name).chmod(0o755)
    return tmp_path


def test_gpus_are_told_in_units_and_nothing_changes(run_module, path):
    Smi.of([Card(slow=("hw_thermal_slowdown",)), Card(index=1, remap_pending="Yes")]).install(path)
    first, second = (run_module(gpu_info, diff=True) for _ in range(2))
    assert first == second
    assert (first["changed"], first["present"], first["reason"]) == (False, True, "")
    assert (first["driver_version"], first["cuda_version"]) == ("580.65.06", "13.0")
    gpu, other = first["gpus"]
    assert (gpu["memory_total_bytes"], gpu["compute_capability"]) == (81000 * 1024 * 1024, "9.0")
    assert gpu["slowdown"] == ["hw_thermal_slowdown"] and other["ecc"]["remap_pending"] is True
    assert first["topology"]["links"] == {"GPU0": {"GPU1": "NV18"}, "GPU1": {"GPU0": "NV18"}}
    assert [xid["number"] for xid in first["kernel_log"]["xids"]] == [63]


def test_check_mode_looks_as_well(run_module, path):
    Smi.of(cards(1)).install(path)
    assert run_module(gpu_info, check=True) == run_module(gpu_info)


def test_links_and_log_can_be_left_out(run_module, path):
    Smi.of(cards(2)).install(path)
    result = run_module(gpu_info, topology=False, kernel_log=False)
    assert result["topology"]["links"] == {} and result["kernel_log"]["where"] == result["kernel_log"]["reason"] == ""


def test_a_host_without_gpus_is_no_failure(run_module, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    result = run_module(gpu_info)
    assert not result.get("failed") and result["present"] is False and result["gpus"] == []
    assert result["reason"].startswith("nvidia-smi is not installed")
    assert result["kernel_log"]["reason"] == "journalctl: No such file or directory; dmesg: No such file or directory"


def test_a_driver_that_hangs_costs_the_time_of_one_question(run_module, path):
    Smi.of(cards(1)).install(path, hang=True)
    started = time.monotonic()
    result = run_module(gpu_info, timeout_seconds=0.3)
    assert result["present"] is False and "gave no answer within 0.3 s" in result["reason"]
    assert time.monotonic() - started < 5


def test_a_time_that_is_none_is_refused(run_module):
    result = run_module(gpu_info, timeout_seconds=0)
    assert result["failed"] and result["msg"] == "timeout_seconds must be more than 0."


def documented(fields):
    """The names of a documented dictionary, and what those of them hold that are dictionaries or lists of such."""
    return {name: documented(field["contains"]) if "contains" in field else None for name, field in fields.items()}


def shape(value, wanted):
    """The same of a value, as deep as ``wanted`` goes."""
    if wanted is None:
        return None
    value = value[0] if isinstance(value, list) else value
    return {name: shape(value[name], wanted.get(name)) for name in value}


def test_every_value_is_documented(run_module, path):
    held = [(4242, "C", "VLLM::Worker_TP0", "70000 MiB")]
    Smi.of([Card(processes=held, mig="Enabled", mig_devices=(20000,)), Card(index=2)]).install(path)
    answers = path / "answers.json"
    lost = "Unable to determine the device handle for GPU1: 0000:1A:00.0: Unknown Error\\n<?xml"
    answers.write_text(answers.read_text().replace("<?xml", lost, 1))
    (path / "journalctl").write_text(
        "#!/bin/sh\necho 'NVRM: Xid (PCI:0000:1a:00): 79, x'\necho 'AER: Uncorrectable (Fatal)'\n"
    )
    result = run_module(gpu_info)
    del result["changed"]
    result.pop("invocation", None)  # ansible-core 2.19 gives the parameters back
    wanted = documented(yaml.safe_load(gpu_info.RETURN))
    assert result["missing"] and result["kernel_log"]["signs"]
    result["holders"] = result["holders"] or [
        dict.fromkeys(wanted["holders"])
    ]  # who holds the GPUs of the host it runs on
    assert shape(result, wanted) == wanted
