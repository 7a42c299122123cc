from __future__ import annotations

import pytest
from ansible_collections.llmops.vllm.plugins.module_utils import preflight_host
from ansible_collections.llmops.vllm.plugins.module_utils.gpu import Gpu, GpuReport
from ansible_collections.llmops.vllm.plugins.module_utils.host_facts import HostFacts, Space
from ansible_collections.llmops.vllm.plugins.module_utils.launch import Launch
from ansible_collections.llmops.vllm.plugins.module_utils.preflight_host import Seen, look_at_host, see
from ansible_collections.llmops.vllm.plugins.module_utils.sizes import GIB


@pytest.fixture
def look(monkeypatch, tmp_path):
    """Look at a host with these facts; the hazards are replaced by a record of what they were asked about."""
    asked = []
    monkeypatch.setattr(preflight_host, "hazard_findings", lambda traits: asked.append(traits) or [])

    def look_at(facts, config=None, kv="auto", capability="", **arguments):
        monkeypatch.setattr(preflight_host, "collect", lambda host, launch: facts)
        launch = Launch(
            arguments={name.replace("_", "-"): value for name, value in arguments.items()}, model=str(tmp_path)
        )
        return look_at_host(see(None, launch, capability), launch, config or {}, kv)

    look_at.asked = asked
    return look_at


def gpus(*sizes, capability="12.0"):
    cards = [
        Gpu(number, f"0000:{number}a:00.0", compute_capability=capability, memory_total_bytes=size * GIB)
        for number, size in enumerate(sizes)
    ]
    return GpuReport(True, driver_version="580.65.06", gpus=tuple(cards))


def test_a_host_without_gpus_has_memory_and_its_own_findings(look):
    facts = HostFacts(GpuReport(False), shm=Space("/dev/shm", 1, 1), memory_total_bytes=24 * GIB)
    found = look(facts, tensor_parallel_size=2)
    assert (found.memory_bytes, found.gpu_bytes) == (24 * GIB, 0)
    assert "shm_too_small" in [finding.id for finding in found.findings]
    assert look.asked[0].compute_capabilities is None


def test_the_smallest_gpu_in_use_counts_and_its_capability_is_asked_about(look):
    assert look(HostFacts(gpus(96, 48, 24)), tensor_parallel_size=2).gpu_bytes == 48 * GIB
    assert look.asked[0].compute_capabilities == ("12.0", "12.0")


def test_gpus_that_are_elsewhere_are_asked_about_by_their_capability(look):
    look(HostFacts(gpus(96)), capability="9.0")
    assert look.asked[0].compute_capabilities == ("9.0",)


def test_the_hazards_are_asked_about_the_model_as_it_will_be_served(look):
    look(HostFacts(GpuReport(False)), {"architectures": ["A"], "text_config": {"kv_lora_rank": 512}}, "fp8_e4m3")
    (traits,) = look.asked
    assert (traits.model.architectures, traits.model.mla, traits.model.linked_code) == (("A",), True, False)
    assert traits.kv_cache_dtype == "fp8_e4m3"


@pytest.mark.parametrize(("several", "least"), [((), ""), (("12.0",), "12.0"), (("12.0", "9.0", "10.3"), "9.0")])
def test_of_gpus_that_differ_the_least_is_asked_about(several, least):
    assert Seen(HostFacts(GpuReport(False)), (), several).capability == least
