from __future__ import annotations

from dataclasses import replace

import pytest
from ansible_collections.llmops.vllm.plugins.module_utils.engine_probe import EngineAnswer
from ansible_collections.llmops.vllm.plugins.module_utils.launch import Launch
from ansible_collections.llmops.vllm.plugins.module_utils.preflight import judge_engine
from ansible_collections.llmops.vllm.plugins.module_utils.preflight_source import (
    Reading,
    consult_source,
    judge_reading,
    with_reading,
)
from ansible_collections.llmops.vllm.plugins.module_utils.runtime_facts import Runtime
from ansible_collections.llmops.vllm.tests.unit.engine_files import write_engine

TEXT = {
    "kv_lora_rank": 512, "qk_rope_head_dim": 64, "num_attention_heads": 64, "n_routed_experts": 8,
    "moe_intermediate_size": 64,
}  # fmt: skip
MODEL = {
    "architectures": ["AcmeForCausalLM"], "text_config": TEXT, "vision_config": {"head_dim": 64},
    "quantization_config": {"quant_method": "modelopt", "algo": "NVFP4", "kv": 8},
}  # fmt: skip
SILENT = EngineAnswer("silent", "it ended without an answer", "", "")
DONE = EngineAnswer("done", "", "0.99.0", "auto", {"dtype": "bfloat16"}, {"unanswered": "ImportError: selector"})
ANSWERED = {"selected": "TRITON_MLA", "validates": True}


@pytest.fixture
def consult(tmp_path):
    """Consult the source of an engine; return the reading, and all findings of answer and reading."""
    write_engine(tmp_path)

    def ask(answer=SILENT, config=MODEL, capability="12.0", legacy=None, device="cpu", **arguments):
        runtime = Runtime("/srv/runtime", str(tmp_path), {"vllm": "0.99.0+cpu"}, device)
        given = {name.replace("_", "-"): value for name, value in arguments.items()}
        launch = Launch(arguments=given, runtime=runtime)
        reading = consult_source(answer, launch, config, legacy, capability)
        told = with_reading(answer, reading, launch)
        found = [*judge_engine(told), *judge_reading(reading, told, capability, str(tmp_path))]
        return reading, told, {finding.id: finding for finding in found}

    ask.site = tmp_path
    return ask


def test_a_silent_engines_source_refuses_a_cache_dtype_that_no_backend_takes(consult):
    reading, told, found = consult()
    assert (told.kv_cache_dtype, told.version) == ("fp8", "0.99.0")
    assert list(found) == ["engine_not_asked", "kv_cache_dtype"]
    finding = found["kv_cache_dtype"]
    assert (finding.severity, finding.remedy) == ("no_go", "set vllm_service_patch_sets: [disable_fp8_kv_cache]")
    assert finding.where == (
        "the attention selector of vLLM 0.99.0, read in its source for a GPU of compute capability 12.0"
    )
    assert "PLAIN_MLA: kv_cache_dtype not supported" in finding.evidence
    assert reading.kernels["experts"] == {"possible": ["FAST"], "reasons": []}


def test_what_the_source_takes_is_no_finding_beside_the_engines_silence(consult):
    reading, told, found = consult(capability="9.0")
    assert list(found) == ["engine_not_asked"] and found["engine_not_asked"].severity == "warn"
    assert (told.attention["selected"], reading.kernels["vision"]) == ("QUICK_MLA", "PLAIN")
    assert reading.kernels["quantization"]["method"] == "modelopt_fp4" and reading.kernels["prefill"] == "FAST"


def test_a_dtype_that_an_argument_asks_for_is_the_arguments_to_give_up(consult):
    _reading, _told, found = consult(kv_cache_dtype="fp8_e4m3")
    assert found["kv_cache_dtype"].remedy == "set vllm_service_arguments_extra: {kv-cache-dtype: auto}"


def test_an_unquantised_dtype_that_no_backend_lists_is_refused_with_both_remedies(consult):
    path = consult.site / "vllm/v1/attention/backend.py"
    path.write_text(path.read_text().replace('["auto", "bfloat16"]', '["auto"]'))
    finding = consult(kv_cache_dtype="bfloat16")[2]["kv_cache_dtype"]
    assert finding.severity == "no_go" and finding.price == ""
    assert "kv-cache-dtype: auto" in finding.remedy and "disable_fp8_kv_cache" in finding.remedy


def test_an_engine_that_answers_all_but_the_selector_has_that_read(consult):
    reading, told, found = consult(DONE)
    assert found == {} and told.attention["selected"] == "PLAIN_MLA" and told.attention["read"] == "source"
    assert "architecture" not in reading.kernels and told.config["dtype"] == "bfloat16"


def test_the_engines_own_answer_is_not_read_again(consult):
    answer = EngineAnswer("done", "", "0.99.0", "auto", {}, ANSWERED)
    reading, told, found = consult(answer)
    assert (reading.attention, told.attention, found) == ({}, ANSWERED, {})


@pytest.mark.parametrize("stage", ["parse", "config"])
def test_an_engine_that_has_refused_is_not_read(consult, stage):
    assert consult(EngineAnswer(stage, "no", "0.99.0", ""))[0] == Reading()


@pytest.mark.parametrize("change", [{"capability": ""}, {"capability": "twelve"}, {"config": {}}])
def test_without_gpu_or_model_there_is_nothing_to_read(consult, change):
    reading, _told, found = consult(**change)
    assert reading == Reading() and list(found) == ["engine_not_asked"]


def test_a_source_that_does_not_tell_leaves_the_question_open(consult):
    (consult.site / "vllm/platforms/cuda.py").write_text("")
    _reading, told, found = consult(DONE)
    assert list(found) == ["attention_not_asked"] and found["attention_not_asked"].severity == "warn"
    assert told.attention["unanswered"].startswith("ImportError: selector; its source: ")
    _reading, _told, found = consult()
    assert found["source_not_told"].severity == "info" and "vision: " in found["source_not_told"].evidence


def test_backends_that_may_take_the_model_make_a_warning_and_no_verdict(consult):
    for name in ("utils/flashinfer.py", "v1/attention/backend.py"):
        path = consult.site / "vllm" / name
        changed = path.read_text().replace("is not None", "").replace('"auto", "bfloat16"', '"auto"')
        path.write_text(changed.replace("importlib.util.find_spec", "importlib.metadata.version"))
    _reading, told, found = consult(capability="9.0", device="cuda")
    assert told.attention["undecided"] == {"QUICK_MLA": ["compute capability not supported"]}
    assert found["attention_undecided"].severity == "warn"


def test_model_and_kernels_that_the_engine_lacks_are_refused(consult):
    unknown = {**MODEL, "architectures": ["Nobody"], "quantization_config": {"quant_method": "foo"}}
    found = consult(config=unknown, capability="9.0")[2]
    assert found["architecture_unknown"].severity == "warn" and found["quantization_unknown"].severity == "no_go"
    found = consult(capability="7.5")[2]
    assert found["quantization_capability"].evidence == "modelopt_fp4 needs compute capability 8.0, and they have 7.5"
    assert found["prefill_backend"].evidence == "no backend for the prefill"
    found = consult(capability="9.0", moe_backend="fast", mm_encoder_attn_backend="lost")[2]
    assert found["moe_backend"].evidence == "fast does not take 1 here"
    assert found["moe_backend"].remedy == "set vllm_service_arguments_extra: {moe-backend: another}, or leave it out"
    assert "not supported" in found["vision_backend"].evidence


def test_sizes_of_parallel_groups_that_do_not_go_are_refused(consult):
    finding = consult(capability="9.0", tensor_parallel_size=6)[2]["parallel_sizes"]
    assert finding.severity == "no_go" and "tensor-parallel-size" in finding.remedy
    assert finding.evidence == "64 heads do not go by 6; 8 experts of width 64: not divisible by 6 ranks"


@pytest.mark.parametrize(("trials", "told"), [({}, True), ({"model": None}, True), ({"model": ""}, False)])
def test_layers_are_read_of_an_engine_that_has_not_made_them_itself(consult, trials, told):
    reading, _answer, found = consult(replace(DONE, trials=trials), tensor_parallel_size=6)
    assert ("parallel_sizes" in found) is told
    expected = {"8 experts of width 64": "not divisible by 6 ranks"}
    assert reading.kernels.get("layers", {}) == (expected if told else {})


@pytest.mark.parametrize(
    ("given", "config", "dtype"),
    [("half", {}, "float16"), ("auto", {"torch_dtype": "float16"}, "float16"), ("", {"dtype": "bfloat16"}, "bfloat16")],
)
def test_the_dtype_of_an_engine_that_was_not_asked_comes_from_launch_and_model(consult, given, config, dtype):
    path = consult.site / "vllm/v1/attention/backend.py"
    changed = path.read_text().replace("use_dcp=False):", "use_dcp=False, dtype=None):\n        return [str(dtype)]")
    path.write_text(changed.replace("class Att", "import torch\n\n\nclass Att").replace("[str(dtype)]", "[f'{dtype}']"))
    arguments = {"dtype": given} if given else {}
    told = consult(config={"head_dim": 64, **config}, **arguments)[1]
    assert told.attention["refusing"]["PLAIN"] == [f"torch.{dtype}"]
