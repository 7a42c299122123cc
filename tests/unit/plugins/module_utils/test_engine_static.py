from __future__ import annotations

import pytest
from ansible_collections.llmops.vllm.plugins.module_utils.engine_experts import count_of_experts, experts
from ansible_collections.llmops.vllm.plugins.module_utils.engine_kernels import (
    architecture,
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
from ansible_collections.llmops.vllm.tests.unit.engine_files import write_engine

TEXT = {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "num_attention_heads": 64, "hidden_size": 7168}
LATENT = {"text_config": TEXT, "model_type": "copying", "vision_config": {"head_dim": 64}}


@pytest.fixture
def engine(tmp_path):
    """An engine's source, asked about a launch."""
    write_engine(tmp_path)

    def ask(config=LATENT, capability=(9, 0), kv="auto", legacy=None, whole=True, **arguments):
        launch = Launch(arguments={name.replace("_", "-"): value for name, value in arguments.items()})
        subject = Subject(Capability(*capability), config, launch, legacy, kv_cache_dtype=kv, whole=whole)
        return StaticEngine(Package(str(tmp_path)), subject)

    ask.site = tmp_path
    return ask


def test_backends_are_tried_in_the_engines_order(engine):
    said = engine().attention()
    assert (said["selected"], said["accepting"], said["refusing"]) == ("QUICK_MLA", ["QUICK_MLA", "PLAIN_MLA"], {})
    assert (said["read"], said["validates"], said["mla"], said["head_size"]) == ("source", True, True, 576)
    assert (said["capability"], said["quantized"], said["undecided"]) == ("9.0", False, {})


def test_a_refusal_has_the_engines_reasons(engine):
    said = engine(capability=(12, 0), kv="fp8").attention()
    assert (said["selected"], said["accepting"], said["quantized"]) == ("", [], True)
    assert said["refusing"] == {
        "QUICK_MLA": ["compute capability not supported"], "PLAIN_MLA": ["kv_cache_dtype not supported"],
    }  # fmt: skip


def test_what_hangs_on_a_package_is_undecided_only_where_that_cannot_be_seen(engine):
    assert engine(whole=False).attention()["refusing"] == {"QUICK_MLA": ["compute capability not supported"]}
    (engine.site / "flashinfer").mkdir()
    assert engine(whole=False).attention()["selected"] == "QUICK_MLA"
    path = engine.site / "vllm/utils/flashinfer.py"
    path.write_text("import elsewhere\n\n\ndef has_flashinfer():\n    return elsewhere.probe()\n")
    said = engine(whole=False).attention()
    assert (said["selected"], said["accepting"]) == ("", ["PLAIN_MLA"])
    assert said["undecided"] == {"QUICK_MLA": ["compute capability not supported"]}


def test_arguments_reach_the_rules(engine):
    said = engine(dcp=8).attention()
    assert said["refusing"] == {"QUICK_MLA": ["DCP not supported"], "PLAIN_MLA": ["DCP not supported"]}
    assert engine(attention_backend="plain_mla").attention()["accepting"] == ["PLAIN_MLA"]
    assert engine(attention_backend="lost").attention()["undecided"]["LOST"][0].startswith("its source was not found")


def test_a_backend_that_the_source_does_not_name_cannot_be_told(engine):
    with pytest.raises(CannotTell, match="NOPE"):
        engine(attention_backend="nope").attention()


@pytest.mark.parametrize(
    ("config", "size"),
    [
        ({"head_dim": 128}, 128),
        ({"hidden_size": 4096, "num_attention_heads": 32}, 128),
        ({"text_config": {"head_dim": 64}}, 64),
    ],
)
def test_the_head_size_of_other_models_is_that_of_a_head(engine, config, size):
    said = engine(config).attention()
    assert (said["head_size"], said["mla"], said["selected"]) == (size, False, "PLAIN")


@pytest.mark.parametrize("config", [{"hidden_size": 4096}, {"kv_lora_rank": 512}, {"head_dim": "wide"}])
def test_without_a_head_size_there_is_no_answer(engine, config):
    with pytest.raises(CannotTell, match="head size"):
        engine(config).attention()


def test_a_version_without_such_a_selector_cannot_be_told(engine):
    (engine.site / "vllm/platforms/cuda.py").write_text("class CudaPlatformBase:\n    pass\n")
    with pytest.raises(CannotTell, match="_get_backend_priorities"):
        engine().attention()


def test_the_cache_dtype_comes_from_where_the_engine_looks(engine):
    assert engine(kv_cache_dtype="bfloat16").kv_cache_dtype() == "bfloat16"
    assert engine().kv_cache_dtype() == "auto"
    assert engine({**LATENT, "quantization_config": {"kv": 8}}).kv_cache_dtype() == "fp8"
    assert engine(legacy={"kv": 8}).kv_cache_dtype() == "fp8"
    assert engine({**LATENT, "quantization_config": {}}, legacy={"kv": 8}).kv_cache_dtype() == "auto"


def test_the_language_models_quantisation_counts_where_the_engines_class_copies_it(engine):
    inner = {**LATENT, "text_config": {**TEXT, "quantization_config": {"kv": 8}}}
    assert engine(inner).kv_cache_dtype() == "fp8"
    assert engine({**inner, "model_type": "another"}).kv_cache_dtype() == "auto"


def test_the_model_is_not_changed_by_being_asked_about(engine):
    legacy = {"producer": {}}
    assert quantization(engine(legacy=legacy))["method"] == "modelopt"
    assert legacy == {"producer": {}}


def test_quantisations_are_known_by_name_and_by_content(engine):
    def of(**config):
        return quantization(engine({**LATENT, "quantization_config": config}))

    assert of(quant_method="modelopt", algo="NVFP4") == {"method": "modelopt_fp4", "known": True, "min_capability": 80}
    assert of(quant_method="modelopt") == {"method": "modelopt", "known": True, "min_capability": 80}
    assert of(quant_method="foo") == {"method": "foo", "known": False, "min_capability": None}
    assert of(quant_method="old") == {"method": "old", "known": True, "min_capability": None}
    assert quantization(engine()) == {"method": "", "known": True, "min_capability": None}
    assert quantization(engine(quantization="old"))["method"] == "old"


def test_architectures_are_looked_up_in_the_engines_table(engine):
    assert architecture(engine({"architectures": ["AcmeForCausalLM"]})) == {"names": ["AcmeForCausalLM"], "known": True}
    assert architecture(engine({"architectures": ["Other"]})) == {"names": ["Other"], "known": False}
    assert architecture(engine({})) == {"names": [], "known": False}


NVFP4 = {"quant_method": "modelopt", "algo": "NVFP4", "width": 16}
SMALL = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": True}


def with_experts(**quantization_config):
    """A model with experts 512 wide, so quantised."""
    return {"text_config": {**TEXT, "n_routed_experts": 8, "moe_intermediate_size": 512},
            "quantization_config": quantization_config}  # fmt: skip


def packed(scheme, **more):
    """A model with experts as compressed-tensors has them."""
    groups = {"group_0": {"targets": ["Linear"], "weights": scheme, "input_activations": None}}
    return with_experts(quant_method="compressed-tensors", format="pack-quantized", config_groups=groups, **more)


def kernels(engine):
    """What the source says of the experts in the quantisation that it makes of the checkpoint's."""
    return experts(engine, quantization(engine)["method"])


def test_models_without_experts_are_told_from_those_with_them():
    assert count_of_experts({"text_config": {"n_routed_experts": 8}}) == count_of_experts({"num_local_experts": 8}) == 8
    assert count_of_experts({"num_experts": None}) == count_of_experts({}) == 0


def test_kernels_for_experts_are_chosen_or_refused(engine):
    model = with_experts(**NVFP4)
    assert kernels(engine(model, capability=(12, 0))) == {"possible": ["FAST"], "reasons": []}
    assert kernels(engine(model, capability=(9, 0))) == {"possible": ["SLOW"], "reasons": []}
    refused = kernels(engine(model, moe_backend="fast"))
    assert refused == {"possible": [], "reasons": ["fast does not take 16 here"]}
    assert kernels(engine(model, enable_expert_parallel=True))["reasons"] == ["no backend for that"]


@pytest.mark.parametrize("ranks, reasons", [(16, []), (64, ["groups of 32 do not go into 8"])])
def test_kernels_that_want_whole_groups_on_each_rank_refuse_parts_of_them(engine, ranks, reasons):
    assert kernels(engine(packed(SMALL), tensor_parallel_size=ranks))["reasons"] == reasons


def test_kernels_are_told_for_every_quantisation_that_selects_them(engine):
    unquantised = {"text_config": with_experts()["text_config"]}
    claimed = {**with_experts(quant_method="mxfp4"), "model_type": "gpt_oss"}
    for model in (unquantised, claimed, packed(SMALL)):
        assert kernels(engine(model))["possible"] == ["SLOW"]
    assert quantization(engine(claimed))["method"] == "gpt_oss_mxfp4"
    assert quantization(engine({**claimed, "model_type": "acme"}))["method"] == "mxfp4"


@pytest.mark.parametrize(
    "model, why",
    [
        (with_experts(quant_method="modelopt"), "Old of this version selects none"),
        (packed({**SMALL, "strategy": "channel"}), "Old of this version selects none"),
        (packed(SMALL, ignore=["re:.*mlp.experts.0.*"]), "leaves some experts out"),
        (with_experts(quant_method="compressed-tensors", config_groups={}), "has 0 schemes"),
    ],
)
def test_where_nothing_selects_kernels_for_the_experts_the_source_does_not_tell(engine, model, why):
    with pytest.raises(CannotTell, match=why):
        kernels(engine(model))


def test_shared_experts_may_be_left_out_of_the_quantisation(engine):
    assert kernels(engine(packed(SMALL, ignore=["re:.*shared_experts.*"])))["possible"] == ["SLOW"]


def test_weights_that_are_quantised_while_they_are_loaded_are_not_told_of(engine):
    with pytest.raises(CannotTell, match="while they are loaded"):
        kernels(engine({"text_config": with_experts()["text_config"]}, quantization="modelopt_fp4"))


def test_an_error_before_kernels_are_selected_is_no_refusal(engine):
    path = engine.site / "vllm/model_executor/layers/quantization/__init__.py"
    path.write_text(
        path.read_text().replace("return cls(config", "raise ValueError('no width')\n        return cls(config")
    )
    with pytest.raises(CannotTell, match="no width"):
        kernels(engine(with_experts(**NVFP4)))


def test_an_error_that_is_no_refusal_counts_as_none(engine):
    wrong = with_experts(quant_method="compressed-tensors", format="other", config_groups={"0": {"weights": SMALL}})
    with pytest.raises(CannotTell, match="AssertionError"):
        kernels(engine(wrong))


def test_a_version_without_experts_where_they_are_looked_for_does_not_tell(engine):
    (engine.site / "vllm/model_executor/layers/fused_moe/__init__.py").unlink()
    with pytest.raises(CannotTell, match="the source has no RoutedExperts"):
        kernels(engine(with_experts(**NVFP4)))


def test_the_vision_tower_has_a_backend_where_there_is_one(engine):
    assert vision(engine()) == vision(engine(mm_encoder_attn_backend="plain")) == "PLAIN"
    assert vision(engine({"text_config": TEXT})) == vision(engine(language_model_only=True)) == ""
    with pytest.raises(Refused, match="LOST is not supported"):
        vision(engine(mm_encoder_attn_backend="lost"))


def test_the_prefill_of_latent_attention_has_a_backend(engine):
    assert prefill(engine()) == "FAST" and prefill(engine({"head_dim": 64})) == ""
    with pytest.raises(Refused, match="no backend for the prefill"):
        prefill(engine(capability=(8, 0)))
    (engine.site / "vllm/v1/attention/backends/mla/prefill/selector.py").unlink()
    with pytest.raises(CannotTell, match="no selector"):
        prefill(engine())


def test_sizes_of_parallel_groups_are_taken_or_refused(engine):
    assert parallel(engine(tensor_parallel_size=8)) == ""
    with pytest.raises(Refused, match="do not go by 3"):
        parallel(engine(tensor_parallel_size=3))
    with pytest.raises(Refused, match="3 does not go into 8"):
        parallel(engine(tensor_parallel_size=8, decode_context_parallel_size=3))
    with pytest.raises(CannotTell, match="number of heads"):
        parallel(engine({"head_dim": 64}))
    (engine.site / "vllm/config/model.py").unlink()
    with pytest.raises(CannotTell, match="no ModelConfig"):
        parallel(engine())
