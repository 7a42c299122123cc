from __future__ import annotations

import pytest
from ansible_collections.llmops.vllm.plugins.module_utils.engine_layers import layers
from ansible_collections.llmops.vllm.plugins.module_utils.engine_source import Capability, Package
from ansible_collections.llmops.vllm.plugins.module_utils.engine_static import StaticEngine, Subject
from ansible_collections.llmops.vllm.plugins.module_utils.launch import Launch
from ansible_collections.llmops.vllm.tests.unit.engine_files import write_engine

DENSE = {
    "vocab_size": 1024, "hidden_size": 512, "num_attention_heads": 8, "num_key_value_heads": 4,
    "intermediate_size": 1536, "num_hidden_layers": 6,
}  # fmt: skip
EXPERTS = {**DENSE, "n_routed_experts": 16, "moe_intermediate_size": 256}
BALANCED = {"enable_expert_parallel": True, "enable_eplb": True}


@pytest.fixture
def ask(tmp_path):
    """Ask the source of an engine about spreading a model."""
    write_engine(tmp_path)

    def ask(model, method="", environment=None, **arguments):
        launch = Launch({name.replace("_", "-"): value for name, value in arguments.items()}, environment or {})
        return layers(
            StaticEngine(Package(str(tmp_path)), Subject(Capability(9, 0), model, launch, whole=True)), method
        )

    ask.site = tmp_path
    return ask


@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
@pytest.mark.parametrize("model", [DENSE, EXPERTS, {**DENSE, "kv_lora_rank": 16, "qk_rope_head_dim": 8}, {}])
def test_a_model_whose_sizes_go_by_the_ranks_is_spread(ask, model, ranks):
    assert ask(model, tensor_parallel_size=ranks) == {}


@pytest.mark.parametrize(
    ("model", "ranks", "objections"),
    [
        ({"vocab_size": 1000}, 6, {"vocabulary of 1000": "1024 is not divisible by 6"}),
        ({**DENSE, "num_key_value_heads": 3}, 8, {"8 heads, 3 of keys and values": "8 is not divisible by 3"}),
        ({**DENSE, "num_attention_heads": 12}, 8, {"12 heads, 4 of keys and values": "12 is not divisible by 8"}),
        (
            {**DENSE, "intermediate_size": 1540}, 8,
            {"feed-forward width of 1540 as output": "not divisible by 8 ranks",
             "feed-forward width of 1540 as input": "1540 is not divisible by 8"},
        ),
        ({**EXPERTS, "moe_intermediate_size": 252}, 8, {"16 experts of width 252": "not divisible by 8 ranks"}),
        (
            {**EXPERTS, "moe_intermediate_size": 252, "n_shared_experts": 1, "first_k_dense_replace": 1}, 8,
            {"shared experts' width of 252 as output": "not divisible by 8 ranks",
             "shared experts' width of 252 as input": "252 is not divisible by 8",
             "16 experts of width 252": "not divisible by 8 ranks"},
        ),
    ],
)  # fmt: skip
def test_sizes_that_do_not_go_by_the_ranks_are_refused(ask, model, ranks, objections):
    assert ask(model, tensor_parallel_size=ranks) == objections


def test_experts_that_stay_whole_are_not_divided(ask):
    wide = {**EXPERTS, "moe_intermediate_size": 252, "n_shared_experts": 1}
    assert "16 experts of width 252" in ask(wide, tensor_parallel_size=8)
    found = ask(wide, tensor_parallel_size=8, enable_expert_parallel=True)
    assert not [kind for kind in found if "shared" in kind]


@pytest.mark.parametrize(
    ("arguments", "objection"),
    [
        ({**BALANCED, "eplb_config": {"num_redundant_experts": 8}}, None),
        ({**BALANCED, "eplb_config": '{"num_redundant_experts": 3}'}, "19 experts do not go by 8"),
        ({"eplb_config": {"num_redundant_experts": 8}}, "copies are for balance"),
    ],
)
def test_copies_of_experts_have_to_go_by_the_ranks(ask, arguments, objection):
    found = ask(EXPERTS, tensor_parallel_size=8, **arguments)
    assert found == ({"16 experts of width 256": objection} if objection else {})


def test_blocks_of_weights_have_to_go_into_a_ranks_share(ask):
    blocks = {"quant_method": "blocks", "weight_block_size": [64, 64]}
    dense = {**DENSE, "quantization_config": blocks}
    assert ask(dense, "blocks", tensor_parallel_size=8) == {}
    narrow = {**dense, "num_attention_heads": 16}
    assert ask(narrow, "blocks", tensor_parallel_size=16) == {
        "feed-forward width of 1536 as input": "96 is not divisible by blocks of 64"
    }
    assert ask({**narrow, "quantization_config": {**blocks, "ignored_layers": ["model.layers.0.mlp.down_proj"]}},
               "blocks", tensor_parallel_size=16) == {}  # fmt: skip
    some = {**EXPERTS, "moe_intermediate_size": 256, "quantization_config": blocks}
    assert ask(some, "blocks", tensor_parallel_size=4) == {}
    assert ask(some, "blocks", tensor_parallel_size=8) == {
        "blocks of experts of width 256": "32 of an expert is not divisible by blocks of 64"
    }


def test_a_partition_into_stages_has_to_be_one_for_as_many(ask):
    named = {"VLLM_PP_LAYER_PARTITION": "2,4"}
    assert ask(DENSE, environment=named, pipeline_parallel_size=2) == {}
    assert ask(DENSE, environment=named, pipeline_parallel_size=3) == {
        "6 layers over 3 stages": "2,4 is not for 3 stages"
    }


def test_what_one_rank_would_meet_as_well_is_no_objection_to_more(ask):
    path = ask.site / "vllm/model_executor/layers/vocab_parallel_embedding.py"
    path.write_text(
        path.read_text().replace("self.weight =", "raise ValueError('of another kind')\n        self.weight =")
    )
    assert ask({"vocab_size": 1024}, tensor_parallel_size=2) == {}


def test_a_version_whose_layers_are_elsewhere_objects_to_nothing(ask):
    for name in ("linear", "vocab_parallel_embedding", "fused_moe/layer"):
        (ask.site / f"vllm/model_executor/layers/{name}.py").unlink()
    assert ask({**EXPERTS, "vocab_size": 1000}, tensor_parallel_size=3) == {}
