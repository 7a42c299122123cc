"""What the sources of published versions say of models on GPUs that this machine does not have.

The expectations are what is known of these versions from their documentation, and from people who launched them; the
answers come from the sources alone. ``-`` is no backend, ``?`` before a name one of which the sdist does not tell.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from ansible_collections.llmops.vllm.plugins.module_utils.engine_kernels import (
    architecture,
    experts,
    parallel,
    prefill,
    quantization,
    vision,
)
from ansible_collections.llmops.vllm.plugins.module_utils.engine_source import Capability, Package
from ansible_collections.llmops.vllm.plugins.module_utils.engine_static import (
    CannotTell,
    Refused,
    StaticEngine,
    Subject,
)
from ansible_collections.llmops.vllm.plugins.module_utils.launch import Launch
from ansible_collections.llmops.vllm.plugins.module_utils.runtime_facts import Runtime

from .sources import locked, place

VERSIONS = tuple(locked())
SM90, SM100, SM103, SM120, SM121 = (Capability(*pair) for pair in ((9, 0), (10, 0), (10, 3), (12, 0), (12, 1)))
TEXT = {
    "model_type": "kimi_k2", "hidden_size": 7168, "num_attention_heads": 64, "num_key_value_heads": 64,
    "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "n_routed_experts": 384,
}  # fmt: skip
SCHEME = {"dynamic": False, "num_bits": 8, "type": "float"}
MODELOPT = {"quant_method": "modelopt", "quant_algo": "NVFP4", "kv_cache_scheme": SCHEME}
LEGACY = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8"}}
KIMI = {
    "architectures": ["KimiK25ForConditionalGeneration"], "model_type": "kimi_k25", "text_config": TEXT,
    "vision_config": {"hidden_size": 1152, "num_attention_heads": 16}, "quantization_config": MODELOPT,
}  # fmt: skip
UNQUANTISED = {name: value for name, value in KIMI.items() if name != "quantization_config"}
SPARSE = {"text_config": {**TEXT, "index_topk": 2048}}
LLAMA = {"model_type": "llama", "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8}

KV = ("auto", "bfloat16", "fp8", "fp8_e4m3", "fp8_e5m2", "fp8_ds_mla", "nvfp4")
FA, FI, FM, TRITON, CUTLASS = "FLASH_ATTN_MLA", "FLASHINFER_MLA", "FLASHMLA", "TRITON_MLA", "CUTLASS_MLA"
SINCE_18 = {
    SM90: (FA, FA, FM, FM, "-", "-", "-"),
    SM100: (FI, FI, FI, FI, "-", "-", "-"),
    SM103: (FI, FI, FI, FI, "-", "-", "-"),
    SM120: (TRITON, TRITON, TRITON, TRITON, "-", "-", "-"),
    SM121: (TRITON, TRITON, TRITON, TRITON, "-", "-", "-"),
}
NO_FP8 = (TRITON, TRITON, "-", "-", "-", "-", "-")
TO_17 = {**SINCE_18, SM120: NO_FP8, SM121: NO_FP8}
# FlashAttention's Python part is not in the first two sdists, but in the wheels.
V16 = {**TO_17, SM90: (f"?{FA}", f"?{FA}", FM, FM, "-", "-", "-")}
V14 = {
    SM90: (f"?{FA}", "-", FM, FM, "-", "-", "-"),
    SM100: (CUTLASS, "-", CUTLASS, CUTLASS, "-", "-", "-"),
    SM103: (CUTLASS, "-", CUTLASS, CUTLASS, "-", "-", "-"),
    SM120: (TRITON, "-", "-", "-", "-", "-", "-"),
    SM121: (TRITON, "-", "-", "-", "-", "-", "-"),
}
DENSE = {
    "0.14.1": V14, "0.16.0": V16, "0.17.1": TO_17, "0.18.0": SINCE_18, "0.22.1": SINCE_18, "0.32.0": SINCE_18,
    "0.33.0": SINCE_18,
}  # fmt: skip
S_FM, S_FI, S_FI90, S_FI120, S_FA = (
    "FLASHMLA_SPARSE", "FLASHINFER_MLA_SPARSE", "FLASHINFER_MLA_SPARSE_SM90", "FLASHINFER_MLA_SPARSE_SM120",
    "FLASH_ATTN_MLA_SPARSE",
)  # fmt: skip
NONE = ("-",) * len(KV)
SPARSE_18 = {
    SM90: (S_FM, S_FM, S_FM, "-", "-", S_FM, "-"),
    SM100: (S_FI, S_FI, S_FI, S_FI, "-", S_FM, "-"),
    SM120: NONE,
}
SPARSE_32 = {
    SM90: (S_FA, S_FA, S_FM, S_FI90, "-", S_FM, "-"),
    SM100: SPARSE_18[SM100],
    SM120: (S_FI120, "-", S_FI120, S_FI120, "-", S_FI120, "-"),
}
FA4 = "FLASH_ATTN_MLA_SPARSE_FA4"
SPARSE_TAIL = ("-", "-", "-", S_FM, "-")
FIRST, SECOND, THIRD = (S_FM, "-", "-", "-", "-", S_FM, "-"), (S_FM, S_FM, *SPARSE_TAIL), (S_FI, S_FI, *SPARSE_TAIL)
SPARSE_MATRIX = {
    "0.14.1": {SM90: FIRST, SM100: FIRST, SM120: NONE},
    "0.16.0": {SM90: SECOND, SM100: SECOND, SM120: NONE},
    "0.17.1": {SM90: SECOND, SM100: THIRD, SM120: NONE},
    "0.18.0": SPARSE_18,
    "0.22.1": SPARSE_18,
    "0.32.0": SPARSE_32,
    "0.33.0": {**SPARSE_32, SM100: (FA4, FA4, S_FI, S_FI, "-", S_FM, "-")},
}


@cache
def package(version: str) -> Package:
    """A version's source; read once, because a process that asks one question reads it once as well."""
    path = place(version, locked()[version])
    assert path.is_dir(), f"{path} is not there; run tests/versions/sources.py"
    return Package(str(path))


def engine(
    version: str, capability: Capability, config: dict[str, Any], kv: str = "auto", legacy: Any = None, **arguments: Any
) -> StaticEngine:
    """A version, taken to be whole, asked about a launch over 8 GPUs."""
    given = {"tensor-parallel-size": 8, **{name.replace("_", "-"): value for name, value in arguments.items()}}
    launch = Launch(arguments=given, runtime=Runtime(cuda="13.0"))
    subject = Subject(capability, config, launch, legacy, kv_cache_dtype=kv, whole=True)
    return StaticEngine(package(version), subject)


def chosen(said: dict[str, Any]) -> str:
    """The backend that would serve, as the expectations word it."""
    if said["undecided"]:
        return f"?{next(iter(said['undecided']))}"
    return str(said["selected"] or "-")


@pytest.mark.parametrize("version", VERSIONS)
def test_dense_latent_attention_takes_the_cache_dtypes_that_are_known_of_the_version(version: str) -> None:
    for capability, expected in DENSE[version].items():
        found = tuple(chosen(engine(version, capability, KIMI, kv).attention()) for kv in KV)
        assert found == expected, capability


@pytest.mark.parametrize("version", VERSIONS)
def test_sparse_latent_attention_takes_the_cache_dtypes_that_are_known_of_the_version(version: str) -> None:
    for capability, expected in SPARSE_MATRIX[version].items():
        found = tuple(chosen(engine(version, capability, SPARSE, kv).attention()) for kv in KV)
        assert found == expected, capability


@pytest.mark.parametrize("version", VERSIONS)
def test_the_reason_against_an_fp8_cache_is_the_engines_own(version: str) -> None:
    said = engine(version, SM120, KIMI, "fp8_e5m2").attention()
    assert "kv_cache_dtype not supported" in said["refusing"][TRITON]


@pytest.mark.parametrize("version", VERSIONS)
def test_without_latent_attention_an_fp8_cache_moves_sm120_from_flash_attention_to_flashinfer(version: str) -> None:
    order = ["FLASH_ATTN", "FLASHINFER", "TRITON_ATTN", "FLEX_ATTENTION"]
    assert engine(version, SM120, LLAMA).attention()["accepting"] == order
    assert engine(version, SM120, LLAMA, "fp8").attention()["accepting"] == order[1:3]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_backend_that_is_asked_for_is_the_only_candidate(version: str) -> None:
    said = engine(version, SM120, KIMI, attention_backend="flashmla").attention()
    assert (said["selected"], said["accepting"], list(said["refusing"])) == ("", [], [FM])
    assert "compute capability not supported" in said["refusing"][FM]


@pytest.mark.parametrize("version", ["0.32.0", "0.33.0"])
def test_sparse_attention_on_sm120_wants_one_top_k_and_no_decode_context_parallelism(version: str) -> None:
    other = {"text_config": {**TEXT, "index_topk": 1024}}
    assert "index_topk=2048" in engine(version, SM120, other).attention()["refusing"][S_FI120][-1]
    assert "DCP" in " ".join(
        engine(version, SM120, SPARSE, decode_context_parallel_size=8).attention()["refusing"][S_FI120]
    )


@pytest.mark.parametrize("version", VERSIONS)
def test_the_checkpoints_cache_dtype_counts_where_the_version_looks_for_it(version: str) -> None:
    inner = {**UNQUANTISED, "text_config": {**TEXT, "quantization_config": MODELOPT}}
    compressed = {**UNQUANTISED, "quantization_config": {"quant_method": "compressed-tensors"}}

    def resolved(config: dict[str, Any], legacy: Any = None, **arguments: Any) -> str:
        return engine(version, SM120, config, legacy=legacy, **arguments).kv_cache_dtype()

    assert resolved(KIMI) == "fp8_e4m3"
    assert resolved(UNQUANTISED) == resolved(compressed) == "auto"
    assert resolved(UNQUANTISED, LEGACY) == "fp8_e4m3"
    # What config.json says makes the other file count for nothing.
    assert resolved(compressed, LEGACY) == "auto"
    assert resolved(KIMI, kv_cache_dtype="bfloat16") == "bfloat16"
    # The class that copied the language model's quantisation came with 0.15 and went with 0.32.
    copied = version in ("0.16.0", "0.17.1", "0.18.0", "0.22.1")
    assert resolved(inner) == ("fp8_e4m3" if copied else "auto")


@pytest.mark.parametrize("version", VERSIONS)
def test_architectures_and_quantisations_are_known_or_not(version: str) -> None:
    assert architecture(engine(version, SM120, KIMI))["known"] is (version != "0.14.1")
    assert architecture(engine(version, SM120, {"architectures": ["LlamaForCausalLM"]}))["known"]
    assert not architecture(engine(version, SM120, {"architectures": ["FooBarForCausalLM"]}))["known"]
    for config, legacy in ((KIMI, None), (UNQUANTISED, LEGACY)):
        said = quantization(engine(version, SM120, config, legacy=legacy))
        assert said == {"method": "modelopt_fp4", "known": True, "min_capability": 75}
    named = {"quantization_config": {"quant_method": "compressed-tensors"}}
    assert quantization(engine(version, SM120, named)) == {
        "method": "compressed-tensors", "known": True, "min_capability": 70,
    }  # fmt: skip
    assert not quantization(engine(version, SM120, {"quantization_config": {"quant_method": "foo"}}))["known"]
    assert quantization(engine(version, SM120, LLAMA))["method"] == ""


# Of 0.14 the choice hangs on what the compiled part says, and of 0.16 on SM100 on the routing of the experts.
EXPERTS = {
    "0.14.1": (["MARLIN", "VLLM_CUTLASS"], ["MARLIN", "VLLM_CUTLASS"], ["MARLIN", "VLLM_CUTLASS"]),
    "0.16.0": (["MARLIN"], ["FLASHINFER_TRTLLM", "FLASHINFER_CUTLASS"], ["FLASHINFER_CUTLASS"]),
    "0.32.0": (["MARLIN", "HUMMING"], ["FLASHINFER_TRTLLM"], ["FLASHINFER_CUTLASS"]),
    "0.33.0": (["MARLIN", "HUMMING"], ["FLASHINFER_TRTLLM"], ["FLASHINFER_CUTLASS"]),
}
OTHERS = (["MARLIN"], ["FLASHINFER_TRTLLM"], ["FLASHINFER_CUTLASS"])


@pytest.mark.parametrize("version", VERSIONS)
def test_experts_in_nvfp4_get_the_kernels_of_their_gpu(version: str) -> None:
    found = tuple(experts(engine(version, capability, KIMI))["possible"] for capability in (SM90, SM100, SM120))
    assert found == EXPERTS.get(version, OTHERS)


@pytest.mark.parametrize("version", VERSIONS[2:])
def test_kernels_for_experts_that_are_asked_for_are_taken_or_refused(version: str) -> None:
    def asked(capability: Capability, backend: str) -> list[str]:
        return list(experts(engine(version, capability, KIMI, moe_backend=backend))["possible"])

    assert asked(SM120, "marlin") == asked(SM90, "marlin") == ["MARLIN"]
    assert asked(SM120, "cutlass") == ["VLLM_CUTLASS"] and asked(SM90, "cutlass") == []
    assert asked(SM100, "flashinfer_trtllm") == ["FLASHINFER_TRTLLM"] and asked(SM120, "flashinfer_trtllm") == []
    since_22 = VERSIONS.index(version) >= VERSIONS.index("0.22.1")
    assert asked(SM120, "flashinfer_b12x") == (["FLASHINFER_B12X"] if since_22 else [])
    assert asked(SM100, "flashinfer_b12x") == []
    reasons = experts(engine(version, SM120, KIMI, moe_backend="flashinfer_trtllm"))["reasons"]
    assert "does not support" in reasons[0]


@pytest.mark.parametrize("version", VERSIONS)
def test_vision_tower_and_prefill_have_a_backend(version: str) -> None:
    for capability in (SM90, SM100, SM120):
        assert vision(engine(version, capability, KIMI)) == "FLASH_ATTN"
        assert vision(engine(version, capability, KIMI, mm_encoder_attn_backend="torch_sdpa")) == "TORCH_SDPA"
        if version >= "0.22":
            assert prefill(engine(version, capability, KIMI)) == "FLASH_ATTN"
    assert vision(engine(version, SM120, LLAMA)) == prefill(engine(version, SM120, LLAMA)) == ""
    with pytest.raises(Refused, match="not supported for vit attention"):
        vision(engine(version, SM120, KIMI, mm_encoder_attn_backend="flex_attention"))


@pytest.mark.parametrize("version", ["0.14.1", "0.18.0"])
def test_a_version_without_a_selector_for_the_prefill_does_not_tell(version: str) -> None:
    with pytest.raises(CannotTell, match="no selector"):
        prefill(engine(version, SM120, KIMI))


@pytest.mark.parametrize("version", VERSIONS)
def test_sizes_of_parallel_groups_are_taken_or_refused(version: str) -> None:
    assert parallel(engine(version, SM120, KIMI)) == parallel(engine(version, SM120, LLAMA)) == ""
    with pytest.raises(Refused, match="divisible by tensor parallel size"):
        parallel(engine(version, SM120, KIMI, tensor_parallel_size=6))
    assert parallel(engine(version, SM120, KIMI, decode_context_parallel_size=8)) == ""
    with pytest.raises(Refused, match=r"(KV|kv) heads"):
        parallel(engine(version, SM120, LLAMA, decode_context_parallel_size=2))
    assert parallel(engine(version, SM120, LLAMA, tensor_parallel_size=16, decode_context_parallel_size=2)) == ""
