from __future__ import annotations

import pytest
from ansible_collections.llmops.vllm.plugins.module_utils.checkpoint import Checkpoint
from ansible_collections.llmops.vllm.plugins.module_utils.engine_probe import EngineAnswer
from ansible_collections.llmops.vllm.plugins.module_utils.memory_model import NotModelled
from ansible_collections.llmops.vllm.plugins.module_utils.preflight_memory import (
    judge_memory,
    layout_of,
    limits_of,
    reckon,
    summary,
)
from ansible_collections.llmops.vllm.plugins.module_utils.safetensors_header import Tensor
from ansible_collections.llmops.vllm.plugins.module_utils.sizes import GIB, MIB

CONFIG = {
    "num_hidden_layers": 61, "num_attention_heads": 64, "kv_lora_rank": 512, "qk_rope_head_dim": 64,
    "hidden_size": 7168, "vocab_size": 163840,
}  # fmt: skip
TOLD = {
    "device": "cuda", "max_model_len": 131072, "max_num_seqs": 64, "max_num_batched_tokens": 8192, "block_size": 64,
    "dtype": "bfloat16", "tensor_parallel_size": 8, "pipeline_parallel_size": 1, "decode_context_parallel_size": 1,
    "gpu_memory_utilization": 0.95, "kv_cache_memory_bytes": None, "enforce_eager": False,
}  # fmt: skip
CARD = 95 * GIB


def weights(gib_per_gpu):
    name = "model.layers.1.mlp.experts.0.up_proj.weight"
    return Checkpoint({name: Tensor(name, "U8", (1,), int(8 * gib_per_gpu * GIB), "a")}, ("a",))


def answered(**changes):
    return EngineAnswer("done", "", "0.32.0", changes.pop("kv_cache_dtype", "auto"), {**TOLD, **changes})


def judged(gib_per_gpu=71.8, memory=CARD, **changes):
    answer = answered(**changes)
    fit = reckon(weights(gib_per_gpu), CONFIG, answer, memory)
    return fit, [(found.id, found.severity, found.remedy) for found in judge_memory(fit, CONFIG, answer)]


def test_what_fits_is_reckoned_from_the_memory_of_a_gpu():
    fit, findings = judged()
    assert findings == [] and fit.estimated
    assert fit.weights_bytes == pytest.approx(71.8 * GIB)
    # Published: about 190K tokens on 8x RTX PRO 6000 with a BF16 cache, which the settings above come near.
    assert fit.capacity.tokens == pytest.approx(190_000, rel=0.1)
    assert fit.as_dict()["largest_model_len"] == fit.capacity.largest_model_len > 131072


def test_an_estimate_says_that_a_context_may_be_too_long_and_which_would_fit():
    fit, ((kind, severity, remedy),) = judged(max_model_len=200_000)
    assert (kind, severity) == ("context_does_not_fit", "warn")
    assert f"max-model-len: {fit.capacity.largest_model_len}" in remedy


def test_a_context_that_fits_under_no_circumstances_is_a_no_go():
    assert [entry[:2] for entry in judged(max_model_len=1_000_000)[1]] == [("context_does_not_fit", "no_go")]


def test_weights_that_alone_are_too_large_are_a_no_go():
    ((kind, severity, remedy),) = judged(gib_per_gpu=72, memory=80 * GIB, gpu_memory_utilization=0.85)[1]
    assert (kind, severity) == ("weights_do_not_fit", "no_go") and "gpu-memory-utilization" in remedy


def test_a_size_of_the_cache_that_is_given_is_no_estimate():
    fit, findings = judged(kv_cache_memory_bytes=4 * GIB, max_model_len=65536)
    assert (fit.estimated, fit.capacity.cache_bytes) == (False, 4 * GIB)
    assert [entry[:2] for entry in findings] == [("context_does_not_fit", "no_go")]


def test_a_cache_without_a_block_asks_for_more_and_not_for_a_shorter_context():
    ((kind, severity, remedy),) = judged(kv_cache_memory_bytes=4096)[1]
    assert (kind, severity) == ("context_does_not_fit", "no_go") and "kv-cache-memory-bytes" in remedy


def test_on_a_cpu_only_a_given_size_is_reckoned_with_and_held_against_the_memory():
    cpu = {"device": "cpu", "tensor_parallel_size": 1, "block_size": 16, "max_model_len": 512}
    assert reckon(weights(0.01), CONFIG, answered(**cpu), 24 * GIB) is None
    assert judged(0.01, 24 * GIB, **cpu, kv_cache_memory_bytes=64 * MIB)[1] == []
    findings = judged(0.01, 24 * GIB, **cpu, kv_cache_memory_bytes=900 * GIB)[1]
    assert [entry[:2] for entry in findings] == [("kv_cache_too_large", "no_go")]


def test_without_a_memory_nothing_is_reckoned():
    assert reckon(weights(1), CONFIG, answered(), 0) is None


def test_an_engine_that_does_not_tell_its_limits_is_not_guessed_about():
    with pytest.raises(NotModelled):
        limits_of(EngineAnswer("done", "", "0.14.1", "auto"))
    with pytest.raises(NotModelled):
        limits_of(answered(max_model_len=-1))


def test_the_layout_is_the_engines():
    layout = layout_of(answered(enable_expert_parallel=True, mm_encoder_tp_mode="data", data_parallel_size=2))
    assert (layout.tensor, layout.data, layout.expert_parallel, layout.vision, layout.vision_whole) == (
        8, 2, True, True, True,
    )  # fmt: skip
    assert not layout_of(answered(language_model_only=True)).vision


def test_the_summary_names_every_part_and_calls_an_estimate_one():
    text = summary(judged()[0])
    for part in ("weights 71.80 GiB of 95.00 GiB", "(an estimate)", "70272 bytes per token", "largest max-model-len"):
        assert part in text
    assert "estimate" not in summary(judged(kv_cache_memory_bytes=16 * GIB)[0])
