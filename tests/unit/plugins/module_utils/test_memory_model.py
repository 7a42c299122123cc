from __future__ import annotations

import pytest
from ansible_collections.llmops.vllm.plugins.module_utils.memory_model import (
    Limits,
    NotModelled,
    allowance_bytes,
    capacity,
    largest_num_seqs,
    layer_groups,
)
from ansible_collections.llmops.vllm.plugins.module_utils.sizes import GIB, MIB

# Shapes of published checkpoints; what the tests hold them against is what engines have logged about them.
GLM = {
    "model_type": "glm_moe_dsa", "num_hidden_layers": 78, "num_attention_heads": 64, "kv_lora_rank": 512,
    "qk_rope_head_dim": 64, "index_topk": 2048, "index_head_dim": 128, "hidden_size": 6144, "vocab_size": 154880,
}  # fmt: skip
QWEN = {"num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128}
KIMI = {
    "text_config": {
        "num_hidden_layers": 61, "num_attention_heads": 64, "kv_lora_rank": 512, "qk_rope_head_dim": 64,
        "hidden_size": 7168, "vocab_size": 163840,
    }
}  # fmt: skip
# The models of tests/rig/tiny_models.py.
TINY_KIMI = {"num_hidden_layers": 3, "num_attention_heads": 8, "kv_lora_rank": 512, "qk_rope_head_dim": 64}
TINY_LLAMA = {"num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 32}


def limits(length, block=16, **more):
    return Limits(max_model_len=length, max_num_seqs=64, max_num_batched_tokens=8192, block_size=block, **more)


@pytest.mark.parametrize(
    ("config", "settings", "cache_bytes", "logged"),
    [
        # 8x RTX PRO 6000, decode context parallel 8, FP8: 19.47 GiB, "GPU KV cache size: 2,720,768 tokens"
        (GLM, limits(202752, 64, tensor=8, context=8, kv_cache_dtype="fp8"), 19.47 * GIB, 2720768),
        # one RTX 5090, vLLM 0.26: 18.75 GiB, "GPU KV cache size: 136,560 tokens"
        (QWEN, limits(16384), 18.75 * GIB, 136560),
        # vLLM 0.32 on a CPU
        (TINY_KIMI, limits(512), 64 * MIB, 19408),
        (TINY_KIMI, limits(512, kv_cache_dtype="bfloat16"), 20 * MIB, 6064),
        (TINY_LLAMA, limits(512, 128), 64 * MIB, 65536),
    ],
)
def test_the_tokens_are_what_the_engine_logs(config, settings, cache_bytes, logged):
    assert capacity(config, settings, int(cache_bytes)).tokens == pytest.approx(logged, rel=0.001)


def test_a_latent_cache_is_held_whole_by_every_rank_and_halved_by_fp8():
    found = {
        dtype: capacity(KIMI, limits(262144, tensor=8, kv_cache_dtype=dtype), 12 * GIB) for dtype in ("auto", "fp8")
    }
    assert (found["auto"].token_bytes, found["fp8"].token_bytes) == (61 * 576 * 2, 61 * 576)
    assert found["fp8"].tokens == pytest.approx(2 * found["auto"].tokens, rel=0.001)


def test_decode_context_parallelism_multiplies_the_tokens():
    one, eight = (capacity(KIMI, limits(262144, tensor=8, context=size), 12 * GIB) for size in (1, 8))
    assert eight.tokens == pytest.approx(8 * one.tokens, rel=0.001)
    assert eight.largest_model_len == 8 * one.largest_model_len


def test_heads_are_split_over_the_ranks_but_never_below_one():
    sizes = [capacity(QWEN, limits(16384, tensor=size), GIB).token_bytes for size in (1, 8, 16)]
    assert sizes == [36 * 8 * 512, 36 * 512, 36 * 512]


def test_pipeline_stages_share_the_layers():
    assert capacity(KIMI, limits(4096, pipeline=2), GIB).token_bytes == 31 * 576 * 2


def test_the_largest_context_fits_and_one_block_more_does_not():
    settings = limits(512, 128)
    largest = capacity(TINY_LLAMA, settings, 64 * MIB).largest_model_len
    assert largest == 65536
    assert capacity(TINY_LLAMA, limits(largest, 128), 64 * MIB).sequences == 1
    assert capacity(TINY_LLAMA, limits(largest + 1, 128), 64 * MIB).sequences < 1


@pytest.mark.parametrize("cache_bytes", [0, -5, 4096])
def test_a_cache_without_a_block_holds_nothing(cache_bytes):
    found = capacity(TINY_KIMI, limits(512), cache_bytes)
    assert (found.tokens, found.largest_model_len) == (0, 0)


def test_layers_with_a_window_take_no_more_than_it():
    kinds = ["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"] * 3
    config = {**QWEN, "num_hidden_layers": 12, "layer_types": kinds, "sliding_window": 1024}
    settings = Limits(131072, 64, 2048, 16)
    assert [(group.layers, group.window) for group in layer_groups(config, settings)] == [(3, 0), (9, 1024)]
    windowed, full = (capacity({**config, "sliding_window": size}, settings, 4 * GIB) for size in (1024, 0))
    assert windowed.tokens > 3 * full.tokens
    assert windowed.largest_model_len > 3 * full.largest_model_len


@pytest.mark.parametrize(
    ("config", "settings", "reason"),
    [
        ({}, limits(512), "num_hidden_layers"),
        ({"num_hidden_layers": 2}, limits(512), "num_attention_heads"),
        (QWEN, limits(512, kv_cache_dtype="nvfp4"), "nvfp4"),
        ({**QWEN, "model_type": "qwen3_next"}, limits(512), "qwen3_next"),
        ({**QWEN, "layer_types": ["linear_attention"], "sliding_window": 8}, limits(512), "linear_attention"),
    ],
)
def test_a_cache_of_an_unknown_form_is_not_guessed(config, settings, reason):
    with pytest.raises(NotModelled, match=reason):
        capacity(config, settings, GIB)


def test_the_allowance_grows_with_chunk_sequences_and_graphs():
    def needed(**changes):
        return allowance_bytes(KIMI, Limits(**{**vars(limits(4096, tensor=8)), **changes}))

    base = needed()
    assert needed(max_num_batched_tokens=32768) > needed(max_num_seqs=1024) > base > needed(graphs=False)
    assert 4 * GIB < base < 8 * GIB
    assert needed(tensor=1, graphs=False) < base


def test_fewer_sequences_leave_more_to_the_cache():
    settings = limits(4096)
    each = 163840 * 4 * 3
    assert largest_num_seqs(KIMI, settings, 10 * each) == 74
    assert largest_num_seqs(KIMI, settings, -100 * each) == 0
    assert largest_num_seqs({}, settings, GIB) == 64
