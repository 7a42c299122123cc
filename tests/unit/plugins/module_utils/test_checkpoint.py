from __future__ import annotations

import json

import pytest
from ansible_collections.llmops.vllm.plugins.module_utils.checkpoint import (
    INDEX,
    Checkpoint,
    layer_of,
    read_checkpoint,
    some,
)
from ansible_collections.llmops.vllm.tests.unit.checkpoints import (
    LATENT,
    LLAMA,
    bf16,
    latent,
    llama,
    write_checkpoint,
    write_index,
)


def problems(folder, config):
    return read_checkpoint(str(folder), config).problems


def kinds(folder, config):
    return [(problem.kind, problem.fatal) for problem in problems(folder, config)]


@pytest.mark.parametrize("shards", [1, 3, 12])
def test_a_whole_checkpoint_has_no_problem_and_all_its_tensors(tmp_path, shards):
    write_checkpoint(tmp_path, llama(), shards)
    found = read_checkpoint(str(tmp_path), LLAMA)
    assert (found.problems, len(found.shards)) == ((), shards)
    assert {name: (tensor.dtype, tensor.shape) for name, tensor in found.tensors.items()} == llama()
    assert found.total_bytes == sum(tensor.size_bytes for tensor in found.tensors.values()) > 0


def test_a_nested_model_with_experts_and_a_vision_tower_has_no_problem(tmp_path):
    write_checkpoint(tmp_path, latent(), 4)
    assert problems(tmp_path, {"text_config": LATENT}) == ()


def test_a_checkpoint_of_another_format_is_the_engines_matter(tmp_path):
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    assert read_checkpoint(str(tmp_path), LLAMA) == Checkpoint({}, ())


def test_a_model_without_any_weights_is_a_problem(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    assert kinds(tmp_path, LLAMA) == [("weights_missing", True)]


def test_many_shards_are_read_and_only_those_that_the_index_names(tmp_path):
    config = {**LLAMA, "num_hidden_layers": 60}
    write_checkpoint(tmp_path, llama(config), 119)
    (tmp_path / "consolidated.safetensors").write_bytes(b"another copy, that is not loaded")
    found = read_checkpoint(str(tmp_path), config)
    assert (found.problems, len(found.shards)) == ((), 119)


def test_a_damaged_shard_is_named_with_what_is_wrong(tmp_path):
    write_checkpoint(tmp_path, llama(), 3)
    path = tmp_path / "model-00002-of-00003.safetensors"
    with path.open("r+b") as stream:
        stream.truncate(path.stat().st_size - 100)
    (problem,) = problems(tmp_path, LLAMA)
    assert (problem.kind, problem.fatal) == ("shard_damaged", True)
    assert problem.evidence.startswith("model-00002-of-00003.safetensors: it is cut off: ")


@pytest.mark.parametrize("content", [b"", b"version https://git-lfs.github.com/spec/v1\n"])
def test_an_empty_file_and_a_pointer_are_damaged_shards(tmp_path, content):
    write_checkpoint(tmp_path, llama())
    (tmp_path / "model.safetensors").write_bytes(content)
    assert kinds(tmp_path, LLAMA) == [("shard_damaged", True)]


def test_a_shard_that_is_not_there_is_named(tmp_path):
    write_checkpoint(tmp_path, llama(), 3)
    (tmp_path / "model-00003-of-00003.safetensors").unlink()
    (problem,) = problems(tmp_path, LLAMA)
    assert problem.kind == "shard_missing" and "model-00003-of-00003.safetensors" in problem.evidence


def test_an_index_over_nothing_is_a_missing_shard(tmp_path):
    write_index(tmp_path, {"model.norm.weight": "model-00001-of-00001.safetensors"})
    assert kinds(tmp_path, LLAMA) == [("shard_missing", True)]


def test_a_tensor_that_is_in_no_file_or_in_another_one_is_named(tmp_path):
    weight_map = write_checkpoint(tmp_path, llama(), 3)
    write_index(tmp_path, {**weight_map, "extra.weight": "model-00001-of-00003.safetensors"})
    (problem,) = problems(tmp_path, LLAMA)
    assert problem.kind == "tensor_missing"
    assert problem.evidence == "extra.weight (model-00001-of-00003.safetensors)"
    write_index(tmp_path, {**weight_map, "model.norm.weight": "model-00003-of-00003.safetensors"})
    (problem,) = problems(tmp_path, LLAMA)
    assert problem.kind == "tensor_missing"


def test_a_tensor_that_is_there_twice_is_a_warning(tmp_path):
    write_checkpoint(tmp_path, llama())
    (tmp_path / "model-copy.safetensors").write_bytes((tmp_path / "model.safetensors").read_bytes())
    (problem,) = problems(tmp_path, LLAMA)
    assert (problem.kind, problem.fatal) == ("tensor_duplicate", False)
    assert "(model-copy.safetensors, model.safetensors)" in problem.evidence and "more" in problem.evidence


@pytest.mark.parametrize("text", ["{", "[]", '{"weight_map": 3}', '{"weight_map": {"a": 1}}', "[" * 100_000])
def test_an_index_that_is_none_is_a_problem(tmp_path, text):
    write_checkpoint(tmp_path, llama())
    (tmp_path / INDEX).write_text(text)
    assert kinds(tmp_path, LLAMA) == [("index_damaged", True)]


@pytest.mark.parametrize(
    ("tensors", "config", "lost", "partner"),
    [
        (llama(), LLAMA, "model.layers.1.mlp.up_proj.weight", "gate_proj"),
        (llama(), LLAMA, "model.layers.0.mlp.gate_proj.weight", "up_proj"),
        (llama(), LLAMA, "model.layers.1.self_attn.k_proj.weight", "q_proj"),
        (latent(), LATENT, "language_model.model.layers.2.self_attn.kv_a_proj_with_mqa.weight", "q_a_proj"),
        (latent(), LATENT, "language_model.model.layers.1.mlp.experts.3.up_proj.weight", "gate_proj"),
    ],
)
def test_a_missing_half_of_what_the_engine_fuses_is_named_with_its_partner(tmp_path, tensors, config, lost, partner):
    write_checkpoint(tmp_path, {name: shape for name, shape in tensors.items() if name != lost}, 3)
    (problem,) = [found for found in problems(tmp_path, config) if found.kind == "fused_half_missing"]
    assert problem.fatal and problem.evidence.startswith(f"{lost} (its partner ")
    assert partner in problem.evidence


@pytest.mark.parametrize(
    ("config", "gone"),
    [
        ({**LLAMA, "num_kv_shared_layers": 1}, ("model.layers.1.self_attn.k_proj.weight",)),
        ({**LLAMA, "attention_k_eq_v": True}, ("model.layers.1.self_attn.v_proj.weight",)),
    ],
)
def test_layers_that_take_their_keys_from_elsewhere_lack_nothing(tmp_path, config, gone):
    write_checkpoint(tmp_path, {name: shape for name, shape in llama().items() if name not in gone})
    assert problems(tmp_path, config) == ()


def test_a_partner_in_another_form_and_a_bias_for_one_alone_are_the_engines_matter(tmp_path):
    tensors = llama()
    tensors["model.layers.0.mlp.up_proj.qweight"] = tensors.pop("model.layers.0.mlp.up_proj.weight")
    tensors["model.layers.0.self_attn.q_proj.bias"] = bf16(256)
    write_checkpoint(tmp_path, tensors)
    assert problems(tmp_path, LLAMA) == ()


@pytest.mark.parametrize(
    ("tensors", "config", "kind", "evidence"),
    [
        (llama(), {**LLAMA, "num_hidden_layers": 4}, "layers_missing", "num_hidden_layers 4; no tensor of layers 2, 3"),
        (latent(), {**LATENT, "n_routed_experts": 8}, "experts_mismatch", "n_routed_experts 8; 4 in "),
        (llama(), {**LLAMA, "vocab_size": 400}, "shape_mismatch", "[320, 256], wanted is [400, 256]"),
        ({**llama(), "model.layers.1.mlp.up_proj.weight": bf16(100, 256)}, LLAMA, "shape_mismatch", "[100, 256]"),
    ],
)
def test_what_the_configuration_names_and_the_checkpoint_has_not_is_told(tmp_path, tensors, config, kind, evidence):
    write_checkpoint(tmp_path, tensors)
    (found,) = [problem for problem in problems(tmp_path, config) if problem.kind == kind]
    assert found.fatal and evidence in found.evidence


def test_packed_weights_have_shapes_of_their_own(tmp_path):
    packed = {**llama(), "lm_head.weight": ("U8", (320, 128)), "model.embed_tokens.weight": ("I8", (320, 64))}
    write_checkpoint(tmp_path, packed)
    assert problems(tmp_path, LLAMA) == ()


def test_one_layer_that_lacks_what_all_others_have_is_a_warning(tmp_path):
    config = {**LLAMA, "num_hidden_layers": 6}
    lost = "model.layers.4.self_attn.o_proj.weight"
    write_checkpoint(tmp_path, {name: shape for name, shape in llama(config).items() if name != lost})
    (problem,) = problems(tmp_path, config)
    assert (problem.kind, problem.fatal) == ("tensor_odd", False)
    assert problem.evidence == "layer 4 has no self_attn.o_proj.weight"


def test_a_configuration_that_says_nothing_is_held_against_nothing(tmp_path):
    write_checkpoint(tmp_path, llama())
    assert problems(tmp_path, {}) == ()


def test_layers_of_a_vision_tower_are_no_decoder_layers():
    assert layer_of("language_model.model.layers.12.mlp.gate.weight") == 12
    assert layer_of("vision_tower.encoder.layers.3.wqkv.weight") is None
    assert layer_of("model.norm.weight") is None


def test_many_items_are_cut_short():
    assert some(["a", "b", "c"]) == "a, b, c"
    assert some(list("abcde")) == "a, b, c and 2 more"


def test_an_index_is_read_as_the_hub_writes_it(tmp_path):
    weight_map = write_checkpoint(tmp_path, llama(), 2)
    assert json.loads((tmp_path / INDEX).read_text())["weight_map"] == weight_map
