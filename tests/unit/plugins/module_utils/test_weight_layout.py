from __future__ import annotations

import pytest
from ansible_collections.llmops.vllm.plugins.module_utils.safetensors_header import Tensor
from ansible_collections.llmops.vllm.plugins.module_utils.weight_layout import Layout, weights_per_gpu

LATENT = {"num_hidden_layers": 4, "kv_lora_rank": 512, "num_attention_heads": 8}
GROUPED = {"num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 2}


def share(names, config, **layout):
    tensors = {name: Tensor(name, "BF16", (size // 2,), size, "a") for name, size in names.items()}
    found = weights_per_gpu(tensors, config, Layout(**layout))
    return found.split_bytes, found.whole_bytes, found.left_out_bytes


@pytest.mark.parametrize(
    "name",
    [
        "model.embed_tokens.weight",
        "lm_head.weight",
        "model.layers.0.self_attn.q_proj.weight",
        "model.layers.0.self_attn.o_proj.weight",
        "model.layers.0.self_attn.q_b_proj.weight",
        "model.layers.0.mlp.gate_proj.weight_scale",
        "model.layers.0.mlp.down_proj.weight",
        "model.layers.0.mlp.shared_experts.up_proj.weight",
        "language_model.model.layers.0.mlp.experts.7.down_proj.weight",
        "vision_tower.encoder.blocks.0.wqkv.weight",
    ],
)
def test_what_tensor_parallelism_splits(name):
    assert share({name: 800}, LATENT, tensor=8) == (100, 0, 0)


@pytest.mark.parametrize(
    "name",
    [
        "model.norm.weight",
        "model.layers.0.input_layernorm.weight",
        "model.layers.0.self_attn.q_a_proj.weight",
        "model.layers.0.self_attn.kv_a_proj_with_mqa.weight",
        "model.layers.0.self_attn.indexer.wq_b.weight",
        "model.layers.0.mlp.gate.weight",
        "model.layers.0.of_a_later_model.weight",
    ],
)
def test_what_every_rank_holds_whole(name):
    assert share({name: 800}, LATENT, tensor=8) == (0, 800, 0)


def test_keys_and_values_are_split_over_no_more_ranks_than_they_have_heads():
    assert share({"model.layers.0.self_attn.k_proj.weight": 800}, GROUPED, tensor=8) == (400, 0, 0)
    assert share({"model.layers.0.self_attn.v_proj.weight": 800}, {**GROUPED, "num_key_value_heads": 8}, tensor=8) == (
        100, 0, 0,
    )  # fmt: skip


def test_the_absorbed_projection_is_held_twice():
    assert share({"model.layers.0.self_attn.kv_b_proj.weight": 800}, LATENT, tensor=8) == (200, 0, 0)


def test_expert_parallelism_spreads_experts_over_the_data_parallel_ranks_too():
    expert = {"model.layers.1.mlp.experts.7.down_proj.weight": 1600}
    assert share(expert, LATENT, tensor=4, data=2, expert_parallel=True) == (200, 0, 0)
    assert share(expert, LATENT, tensor=4, data=2) == (400, 0, 0)


def test_a_pipeline_stage_holds_its_layers_and_one_end():
    tensors = {f"model.layers.{number}.mlp.up_proj.weight": 100 for number in range(4)}
    assert share(tensors, GROUPED, pipeline=2) == (0, 200, 0)
    assert share({"model.embed_tokens.weight": 100, "lm_head.weight": 100}, GROUPED, pipeline=2) == (0, 100, 0)


def test_what_is_not_loaded_is_left_out():
    assert share({"model.layers.4.mlp.up_proj.weight": 100}, GROUPED) == (0, 0, 100)
    assert share({"vision_tower.blocks.0.wo.weight": 100}, GROUPED, vision=False) == (0, 0, 100)
    assert share({"lm_head.weight": 100}, {**GROUPED, "tie_word_embeddings": True}) == (0, 0, 100)


def test_a_vision_tower_that_works_on_data_is_held_whole():
    assert share({"vision_tower.blocks.0.wo.weight": 800}, GROUPED, tensor=8, vision_whole=True) == (0, 800, 0)


def test_the_sum_is_what_a_gpu_holds():
    tensors = {"a": Tensor("model.norm.weight", "BF16", (1,), 2, "a")}
    assert weights_per_gpu(tensors, GROUPED, Layout()).total_bytes == 2
