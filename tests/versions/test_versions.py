"""What the sources of published versions say of models on GPUs that this machine does not have.

The expectations are what is known of these versions from their documentation, and from people who launched them; the
answers come from the sources alone. ``-`` is no backend, ``?`` before a name one of which the sdist does not tell.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from ansible_collections.llmops.vllm.plugins.module_utils.engine_experts import experts
from ansible_collections.llmops.vllm.plugins.module_utils.engine_kernels import (
    architecture,
    parallel,
    prefill,
    quantization,
    vision,
)
from ansible_collections.llmops.vllm.plugins.module_utils.engine_layers import layers
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


def kernels(engine: StaticEngine) -> dict[str, Any]:
    """What the source says of the experts, in the quantisation that it makes of the checkpoint's."""
    return experts(engine, quantization(engine)["method"])


@pytest.mark.parametrize("version", VERSIONS)
def test_experts_in_nvfp4_get_the_kernels_of_their_gpu(version: str) -> None:
    found = tuple(kernels(engine(version, capability, KIMI))["possible"] for capability in (SM90, SM100, SM120))
    assert found == EXPERTS.get(version, OTHERS)


MIXTURE = {
    "model_type": "qwen3_moe", "hidden_size": 2048, "num_attention_heads": 32, "num_key_value_heads": 4,
    "num_experts": 128, "moe_intermediate_size": 2048,
}  # fmt: skip
OPEN = {
    "model_type": "gpt_oss", "hidden_size": 2880, "intermediate_size": 2880, "num_attention_heads": 64,
    "num_key_value_heads": 8, "num_local_experts": 128, "swiglu_limit": 7.0,
    "quantization_config": {"quant_method": "mxfp4"},
}  # fmt: skip
EIGHT = {"num_bits": 8, "type": "float", "symmetric": True}
FOUR = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": True, "dynamic": False}


def compressed(form: str, weights: dict[str, Any], activations: dict[str, Any] | None) -> dict[str, Any]:
    """A checkpoint of compressed-tensors with one scheme."""
    group = {"targets": ["Linear"], "weights": weights, "input_activations": activations}
    named = {"quant_method": "compressed-tensors", "format": form, "ignore": ["lm_head", "re:.*self_attn.*"]}
    return {"text_config": {**TEXT, "moe_intermediate_size": 2048},
            "quantization_config": {**named, "config_groups": {"group_0": group}}}  # fmt: skip


def quantised(method: str, **more: Any) -> dict[str, Any]:
    """Experts in a quantisation of its own name."""
    return {**MIXTURE, "quantization_config": {"quant_method": method, **more}}


GPTQ = {"bits": 4, "group_size": 128, "sym": True, "desc_act": False}
KINDS = {
    "none": MIXTURE,
    "fp8 in blocks": quantised("fp8", activation_scheme="dynamic", weight_block_size=[128, 128]),
    "fp8 by tensor": quantised("fp8", activation_scheme="static"),
    "fp8 of ModelOpt": quantised("modelopt", quant_algo="FP8"),
    "fp8 by channel": compressed(
        "float-quantized", {**EIGHT, "strategy": "channel"}, {**EIGHT, "strategy": "token", "dynamic": True}
    ),
    "int4 in groups": compressed("pack-quantized", FOUR, None),
    "mxfp4": OPEN,
    "gptq": quantised("gptq", **GPTQ),
}  # fmt: skip
CUTLASS_FI, TRT, DEEP, MARLIN = "FLASHINFER_CUTLASS", "FLASHINFER_TRTLLM", "DEEPGEMM", "MARLIN"
TRITONS, EITHER = ("TRITON",) * 3, f"{TRT} {CUTLASS_FI}"
BY_TENSOR = {
    "0.14.1": TRITONS, "0.16.0": (CUTLASS_FI, EITHER, CUTLASS_FI), "0.32.0": (CUTLASS_FI, CUTLASS_FI, CUTLASS_FI),
}  # fmt: skip
NARROW = {"0.22.1": (MARLIN,) * 3, "0.32.0": (f"{MARLIN} HUMMING", MARLIN, MARLIN)}
# On SM90, SM100 and SM120, from each version on; before the first the version selects among no kernels.
SELECTED = {
    "none": {
        "0.16.0": TRITONS, "0.22.1": (CUTLASS_FI, EITHER, CUTLASS_FI), "0.32.0": ("TRITON", EITHER, CUTLASS_FI),
    },
    "fp8 in blocks": {
        "0.14.1": (f"{DEEP} TRITON", f"{DEEP} TRITON", "TRITON"), "0.16.0": (CUTLASS_FI, f"{TRT} {DEEP}", "TRITON"),
        "0.17.1": ("TRITON", f"{TRT} {DEEP}", "TRITON"), "0.18.0": ("TRITON", TRT, "TRITON"),
        "0.32.0": ("TRITON", TRT, DEEP),
    },
    "fp8 by tensor": BY_TENSOR,
    "fp8 of ModelOpt": BY_TENSOR,
    # What the compiled part says of CUTLASS is not in the source.
    "fp8 by channel": {
        "0.14.1": ("TRITON VLLM_CUTLASS",) * 3, "0.16.0": ("TRITON VLLM_CUTLASS", "TRITON VLLM_CUTLASS", "TRITON"),
    },
    "int4 in groups": {"0.32.0": NARROW["0.32.0"]},
    "mxfp4": {"0.22.1": ("TRITON", "FLASHINFER_TRTLLM_MXFP4_BF16", MARLIN)},
    "gptq": NARROW,
}  # fmt: skip


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("kind", SELECTED)
def test_experts_of_every_quantisation_get_the_kernels_of_their_gpu(kind: str, version: str) -> None:
    since = [one for one in SELECTED[kind] if VERSIONS.index(one) <= VERSIONS.index(version)]
    if not since:
        with pytest.raises(CannotTell, match="of this version selects none"):
            kernels(engine(version, SM120, KINDS[kind]))
        return
    found = [kernels(engine(version, capability, KINDS[kind])) for capability in (SM90, SM100, SM120)]
    assert tuple(" ".join(one["possible"]) for one in found) == SELECTED[kind][since[-1]]


@pytest.mark.parametrize("version", ["0.32.0", "0.33.0"])
def test_groups_of_weights_that_do_not_go_into_a_ranks_share_of_an_expert_need_other_kernels(version: str) -> None:
    narrow = {**KINDS["gptq"], "moe_intermediate_size": 768}
    for ranks, expected in ((2, MARLIN), (4, "TRITON")):
        assert kernels(engine(version, SM100, narrow, tensor_parallel_size=ranks))["possible"] == [expected]


@pytest.mark.parametrize("version", VERSIONS[2:])
def test_kernels_for_experts_that_are_asked_for_are_taken_or_refused(version: str) -> None:
    def asked(capability: Capability, backend: str) -> list[str]:
        return list(kernels(engine(version, capability, KIMI, moe_backend=backend))["possible"])

    assert asked(SM120, "marlin") == asked(SM90, "marlin") == ["MARLIN"]
    assert asked(SM120, "cutlass") == ["VLLM_CUTLASS"] and asked(SM90, "cutlass") == []
    assert asked(SM100, "flashinfer_trtllm") == ["FLASHINFER_TRTLLM"] and asked(SM120, "flashinfer_trtllm") == []
    since_22 = VERSIONS.index(version) >= VERSIONS.index("0.22.1")
    assert asked(SM120, "flashinfer_b12x") == (["FLASHINFER_B12X"] if since_22 else [])
    assert asked(SM100, "flashinfer_b12x") == []
    reasons = kernels(engine(version, SM120, KIMI, moe_backend="flashinfer_trtllm"))["reasons"]
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


@pytest.mark.parametrize("version", VERSIONS)
def test_sizes_of_parallel_groups_are_held_against_each_other(version: str) -> None:
    with pytest.raises(Refused, match="must be True to use EPLB"):
        parallel(engine(version, SM120, KIMI, enable_eplb=True))
    with pytest.raises(Refused, match="EPLB is not enabled"):
        parallel(engine(version, SM120, KIMI, eplb_config={"num_redundant_experts": 8}))
    if version > "0.16":
        with pytest.raises(Refused, match=r"must be divisible by ?dcp_size=3"):
            parallel(engine(version, SM120, KIMI, decode_context_parallel_size=3))


WHOLE = {
    **TEXT, "vocab_size": 163840, "intermediate_size": 18432, "moe_intermediate_size": 2048, "n_shared_experts": 1,
    "first_k_dense_replace": 1, "num_hidden_layers": 61,
}  # fmt: skip
GROUPED = {**LLAMA, "vocab_size": 128256, "intermediate_size": 14336, "num_hidden_layers": 32}


@pytest.mark.parametrize("version", VERSIONS)
def test_layers_are_spread_over_ranks_that_their_sizes_go_by(version: str) -> None:
    def asked(config: dict[str, Any], ranks: int, **arguments: Any) -> str:
        said = layers(engine(version, SM100, config, tensor_parallel_size=ranks, **arguments), "")
        return "; ".join(f"{kind}: {why}" for kind, why in said.items())

    assert asked(WHOLE, 8) == asked(GROUPED, 8) == asked(GROUPED, 16) == ""
    six, twelve = asked(WHOLE, 6), asked(GROUPED, 12)
    assert "vocabulary of 163840: 163840 is not divisible by 6" in six
    assert "384 experts of width 2048: not divisible by 6 ranks" in six
    assert "32 heads, 8 of keys and values: 32 is not divisible by 12" in twelve
    assert "feed-forward width of 14336 as input: 14336 is not divisible by 12" in twelve
    balanced = {"enable_expert_parallel": True, "enable_eplb": True}
    assert asked(WHOLE, 8, **balanced, eplb_config={"num_redundant_experts": 32}) == ""
    assert "even distribution" in asked(WHOLE, 8, **balanced, eplb_config={"num_redundant_experts": 3})


@pytest.mark.parametrize("version", VERSIONS)
def test_blocks_of_fp8_weights_go_into_a_ranks_share_or_are_refused(version: str) -> None:
    blocks = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}

    def asked(ranks: int, **sizes: int) -> dict[str, str]:
        config = {**WHOLE, "n_shared_experts": 0, "quantization_config": blocks, **sizes}
        return layers(engine(version, SM100, config, tensor_parallel_size=ranks), "fp8")

    assert asked(16) == {}
    assert asked(32)["feed-forward width of 18432 as input"].endswith(
        "not divisible by weight quantization block_k = 128."
    )
    # From a version between these on, blocks of experts are made smaller instead.
    smaller = VERSIONS.index(version) >= VERSIONS.index("0.32.0")
    assert list(asked(8, moe_intermediate_size=1536)) == ([] if smaller else ["blocks of experts of width 1536"])
