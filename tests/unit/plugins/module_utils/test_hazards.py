from __future__ import annotations

from dataclasses import replace

import pytest
from ansible_collections.llmops.vllm.plugins.module_utils.driver_floor import numbers
from ansible_collections.llmops.vllm.plugins.module_utils.errors import InvalidInputError
from ansible_collections.llmops.vllm.plugins.module_utils.hazards import (
    CONDITIONS,
    Model,
    Traits,
    check_entry,
    hazard_findings,
    in_range,
    model_of,
)
from ansible_collections.llmops.vllm.plugins.module_utils.known_hazards import (
    DECODE_KERNEL,
    FLASH_ATTENTION,
    KNOWN_HAZARDS,
)
from ansible_collections.llmops.vllm.plugins.module_utils.launch import Launch
from ansible_collections.llmops.vllm.plugins.module_utils.runtime_facts import Runtime

IDS = [entry["id"] for entry in KNOWN_HAZARDS]
KIMI = ("KimiK25ForConditionalGeneration",)
SOUND = {
    DECODE_KERNEL: "    elif not is_hip_ and BLOCK_DMODEL >= 512:\n",
    FLASH_ATTENTION: "            self._dcp_context_kv_lens = torch.zeros(\n",
}


class Sources(Runtime):
    """A runtime whose files are given."""

    files = SOUND

    def source(self, name):
        return self.files.get(name)


class Unpatched(Sources):
    files = {  # noqa: RUF012
        DECODE_KERNEL: "    elif not is_hip_ and BLOCK_DMODEL >= 1024:\n",
        FLASH_ATTENTION: "        dcp_context_kv_lens = None\n",
    }


def traits(kind=Sources, packages=(), model=(), capability="9.0", kv="auto", environment=(), cuda="12.9", **arguments):
    """A launch that meets no hazard, but for what is given."""
    installed = {
        "vllm": "0.32.0",
        "transformers": "5.19.0",
        "nvidia-cutlass-dsl": "4.6.0",
        "nvidia-cutlass-dsl-libs-cu13": "4.6.0",
    }
    runtime = kind("/r", "/r/site-packages", {**installed, **dict(packages)}, "cuda", cuda)
    files = Model(KIMI, mla=True, sparse_mla=False, vision=True, linked_code=False)
    given = {name.replace("_", "-"): value for name, value in arguments.items()}
    launch = Launch({"tensor-parallel-size": 8, "trust-remote-code": True, **given}, dict(environment), runtime)
    return Traits(launch, replace(files, **dict(model)), (capability,) * 8, kv)


# What meets a hazard, and what differs from that in one thing and does not.
MEETS = {
    "triton_mla_shared_memory": {"kind": Unpatched, "capability": "12.0"},
    "b12x_cuda": {"moe_backend": "flashinfer-b12x", "capability": "12.0", "cuda": "12.9"},
    "b12x_memory": {"moe_backend": "flashinfer_b12x", "capability": "12.0", "cuda": "13.0"},
    "nan_long_context": {"packages": {"vllm": "0.20.1"}, "capability": "10.0"},
    "nonsense_bfloat16_kv_cache": {"packages": {"vllm": "0.22.1"}, "model": {"sparse_mla": True}, "kv": "bfloat16"},
    "fp8_e5m2_garbled": {"model": {"architectures": ("Qwen2VLForConditionalGeneration",)}, "kv": "fp8_e5m2"},
    "nvfp4_kv_cache": {"capability": "12.0", "kv": "nvfp4"},
    "dcp_full_graphs": {"kind": Unpatched, "model": {"mla": False}, "decode_context_parallel_size": 2},
    "dcp_full_graphs_sparse_mla": {
        "capability": "12.0",
        "model": {"sparse_mla": True},
        "decode_context_parallel_size": 4,
    },
    "linked_code": {"packages": {"transformers": "5.12.1"}, "model": {"linked_code": True}},
    "vision_tower_kernels": {"packages": {"nvidia-cutlass-dsl-libs-cu13": ""}, "capability": "10.3", "cuda": "13.0"},
    "fastsafetensors_missing": {"load_format": "fastsafetensors"},
    "nccl_p2p_level": {"environment": {"NCCL_P2P_LEVEL": "SYS"}},
}
MISSES = [
    ("triton_mla_shared_memory", {"kind": Sources}),
    ("triton_mla_shared_memory", {"capability": "10.0"}),
    ("triton_mla_shared_memory", {"model": {"mla": False}}),
    ("b12x_cuda", {"cuda": "13.0"}),
    ("b12x_cuda", {"moe_backend": "marlin"}),
    ("nan_long_context", {"packages": {"vllm": "0.21.0"}}),
    ("nan_long_context", {"capability": "12.0"}),
    ("nonsense_bfloat16_kv_cache", {"kv": "fp8"}),
    ("fp8_e5m2_garbled", {"kv": "fp8"}),
    ("nvfp4_kv_cache", {"capability": "10.0"}),
    ("dcp_full_graphs", {"kind": Sources}),
    ("dcp_full_graphs", {"decode_context_parallel_size": 1}),
    ("dcp_full_graphs", {"enforce_eager": True}),
    ("dcp_full_graphs_sparse_mla", {"compilation_config": {"cudagraph_mode": "PIECEWISE"}}),
    ("linked_code", {"model": {"linked_code": False}}),
    ("linked_code", {"packages": {"transformers": "5.13.0"}}),
    ("linked_code", {"packages": {"transformers": "5.9.2"}}),
    ("linked_code", {"trust_remote_code": False}),
    ("vision_tower_kernels", {"packages": {}}),
    ("vision_tower_kernels", {"language_model_only": True}),
    ("vision_tower_kernels", {"mm_encoder_attn_backend": "TORCH_SDPA"}),
    ("fastsafetensors_missing", {"packages": {"fastsafetensors": "0.2"}}),
    ("fastsafetensors_missing", {"load_format": "auto"}),
    ("nccl_p2p_level", {"environment": {"NCCL_P2P_LEVEL": "PHB"}}),
    ("nccl_p2p_level", {"tensor_parallel_size": 1}),
]


def ids(findings):
    return [finding.id for finding in findings]


def test_every_entry_has_an_example():
    assert set(MEETS) == set(IDS) and len(IDS) == len(set(IDS))
    assert {name for name, _difference in MISSES} | {"b12x_memory"} == set(IDS)


def test_a_launch_without_any_of_it_meets_no_hazard():
    assert hazard_findings(traits()) == []


@pytest.mark.parametrize("name", IDS)
def test_each_hazard_is_told_where_it_is_met(name):
    (found,) = [one for one in hazard_findings(traits(**MEETS[name])) if one.id == name]
    entry = KNOWN_HAZARDS[IDS.index(name)]
    assert (found.severity, found.source, found.where) == (entry["severity"], entry["source"], "known hazards")
    assert found.evidence.startswith("vllm 0.")


@pytest.mark.parametrize(("name", "difference"), MISSES)
def test_one_difference_keeps_a_hazard_away(name, difference):
    assert name not in ids(hazard_findings(traits(**{**MEETS[name], **difference})))


@pytest.mark.parametrize("name", IDS)
def test_each_hazard_expires(name):
    expires = KNOWN_HAZARDS[IDS.index(name)]["expires"]
    example = MEETS[name]
    later = {**example, "packages": {**example.get("packages", {}), "vllm": f"{expires}.0"}}
    assert name not in ids(hazard_findings(traits(**later)))


@pytest.mark.parametrize("entry", KNOWN_HAZARDS, ids=IDS)
def test_each_entry_is_whole(entry):
    check_entry(entry)
    assert entry["source"].startswith("https://") and numbers(entry["expires"])
    assert entry["what"].endswith(".") and not entry["remedy"].endswith(".")


def test_the_evidence_names_what_was_met():
    found = {one.id: one.evidence for one in hazard_findings(traits(**MEETS["vision_tower_kernels"]))}
    assert found["vision_tower_kernels"] == (
        "vllm 0.32.0, nvidia-cutlass-dsl 4.6.0, nvidia-cutlass-dsl-libs-cu13 absent, CUDA 13.0, compute capability 10.3"
    )
    (b12x,) = hazard_findings(traits(**MEETS["b12x_memory"]))
    assert b12x.evidence == "vllm 0.32.0, moe-backend=flashinfer_b12x"


def test_what_is_not_known_is_told_and_neither_fires_nor_clears():
    unknown = replace(traits(moe_backend="b12x", cuda="", decode_context_parallel_size=2), kv_cache_dtype="")
    found = hazard_findings(replace(unknown, compute_capabilities=None))
    assert ids(found) == ["hazards_unchecked"] and found[0].severity == "info"
    assert "b12x_cuda (not known: cuda)" in found[0].evidence
    assert "nvfp4_kv_cache (not known: compute_capability, kv_cache_dtype)" in found[0].evidence
    assert "linked_code" not in found[0].evidence


def test_nothing_is_said_of_a_runtime_that_is_not_there():
    assert hazard_findings(Traits(Launch())) == []


def test_where_gpus_and_model_are_not_known_all_that_hangs_on_them_is_unchecked():
    (found,) = hazard_findings(Traits(Launch({}, {}, Runtime("/r", "", {"vllm": "0.32.0"}, "cuda", "13.0"))))
    assert found.id == "hazards_unchecked" and "triton_mla_shared_memory" in found.evidence


def test_an_engine_on_the_cpu_meets_none_of_those_of_gpus():
    launch = Launch({"moe-backend": "b12x"}, {}, Runtime("/r", "", {"vllm": "0.32.0"}, "cpu"))
    assert hazard_findings(Traits(launch, Model(KIMI, True, False, True, True))) == []


@pytest.mark.parametrize(
    ("entry", "sentence"),
    [
        ({"id": "x"}, "Hazard x lacks expires, remedy, severity, source, what, when; see hazards.py."),
        ({**KNOWN_HAZARDS[0], "when": {"moon": "full"}}, "has the unknown condition moon; see hazards.py."),
        ({**KNOWN_HAZARDS[0], "severity": "bad"}, "has an unknown severity; see hazards.py."),
        ({**KNOWN_HAZARDS[0], "when": {"cuda": "13 or so"}}, "'13 or so' is no range of versions"),
    ],
)
def test_an_entry_that_is_not_well_formed_is_refused(entry, sentence):
    with pytest.raises(InvalidInputError) as caught:
        hazard_findings(traits(), [entry])
    assert sentence in caught.value.message


@pytest.mark.parametrize(
    ("version", "wanted", "expected"),
    [
        ("0.20.2rc1", ">=0.20.2,<0.21", True),
        ("0.18.1", ">0.18.1", False),
        ("0.18.1.post1", "==0.18.1", True),
        ("13.0", "<13", False),
        ("13", ">=13.0", True),
        ("0.33.0.dev12", "!=0.33", False),
        ("5.12", "<=5.12.0", True),
        ("", ">=1", None),
        ("main", ">=1", None),
    ],
)
def test_versions_are_held_against_ranges(version, wanted, expected):
    assert in_range(version, wanted) is expected


def test_every_condition_is_used_or_could_be():
    used = {key for entry in KNOWN_HAZARDS for key in entry["when"]}
    assert used == set(CONDITIONS)


CONFIG = {"architectures": list(KIMI), "text_config": {"kv_lora_rank": 512}, "vision_config": {}}


@pytest.mark.parametrize(
    ("config", "model"),
    [
        (CONFIG, Model(KIMI, True, False, True, False)),
        ({"architectures": ["X"], "kv_lora_rank": 512, "index_topk": 2048}, Model(("X",), True, True, False, False)),
        ({"architectures": ["LlamaForCausalLM"]}, Model(("LlamaForCausalLM",), False, False, False, False)),
        ({"architectures": None}, Model((), False, False, False, False)),
        ({}, Model(linked_code=False)),
    ],
)
def test_a_models_kind_is_read_from_its_configuration(tmp_path, config, model):
    (tmp_path / "modeling.py").write_text("")
    assert model_of(config, str(tmp_path)) == model


def test_code_that_lies_in_links_is_noticed(tmp_path):
    (tmp_path / "blob").write_text("")
    (tmp_path / "modeling.py").symlink_to("blob")
    assert model_of({}, str(tmp_path)) == Model(linked_code=True)


def test_a_model_that_is_not_there_is_not_known(tmp_path):
    assert model_of(CONFIG, str(tmp_path / "none")) == Model()
