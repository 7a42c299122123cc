from __future__ import annotations

import pytest
from ansible_collections.llmops.vllm.plugins.module_utils.checkpoint import Checkpoint, Problem
from ansible_collections.llmops.vllm.plugins.module_utils.engine_probe import EngineAnswer
from ansible_collections.llmops.vllm.plugins.module_utils.findings import Finding
from ansible_collections.llmops.vllm.plugins.module_utils.listener import Listener, Owner
from ansible_collections.llmops.vllm.plugins.module_utils.preflight import (
    judge_checkpoint,
    judge_engine,
    judge_port,
    overrule,
)

OURS = Owner(4242, "VLLM::APIServer", "/system.slice/vllm@kimi.service", True)
FOREIGN = Owner(17, "nginx: master process", "/system.slice/nginx.service", False)


def test_an_engine_with_nothing_to_object_is_no_finding():
    assert judge_engine(EngineAnswer("done", "", "0.32.0", "auto")) == []


@pytest.mark.parametrize(
    ("stage", "kind", "severity"),
    [
        ("parse", "serve_arguments", "no_go"),
        ("config", "engine_config", "no_go"),
        ("broken", "runtime_incomplete", "no_go"),
        ("import", "engine_not_asked", "warn"),
        ("silent", "engine_not_asked", "warn"),
        ("a stage of a later version", "engine_not_asked", "warn"),
    ],
)
def test_what_the_engine_objects_to_stops_a_launch_and_what_it_cannot_say_does_not(stage, kind, severity):
    (found,) = judge_engine(EngineAnswer(stage, "said the engine", "0.32.0", ""))
    assert (found.id, found.severity, found.evidence) == (kind, severity, "said the engine")
    assert found.what.startswith("vLLM 0.32.0 ") and found.what.endswith(".")
    assert found.remedy


def test_an_engine_whose_version_is_not_known_is_called_the_installed_one():
    (found,) = judge_engine(EngineAnswer("silent", "it ended without an answer", "", ""))
    assert found.what.startswith("the installed engine could not be asked")


@pytest.mark.parametrize("listener", [Listener(8000), Listener(8000, (OURS,)), Listener(8000, (OURS,), 1)])
def test_a_port_that_is_free_or_the_instances_own_is_no_finding(listener):
    assert judge_port(listener) == []


def test_a_port_of_somebody_else_stops_a_launch_and_its_holder_is_named():
    (found,) = judge_port(Listener(8000, (OURS, FOREIGN)))
    assert (found.id, found.severity) == ("port_in_use", "no_go")
    assert "8000" in found.what and found.evidence == "PID 17 (nginx: master process)"


def test_a_port_whose_holder_cannot_be_seen_stops_a_launch():
    (found,) = judge_port(Listener(8000, (), 1))
    assert (found.severity, found.evidence) == ("no_go", "a process that cannot be seen")


def attention(refusing, **changes):
    said = {
        "device": "ACME 9000", "head_size": 576, "mla": True, "quantized": True, "accepting": [], "error": "",
        "refusing": refusing, "selected": "", "validates": True, "capability": "12.0", **changes,
    }  # fmt: skip
    asked = {"kv_cache_dtype_asked": said.pop("asked", "auto")}
    return judge_engine(EngineAnswer("done", "", "0.17.1", "fp8_e4m3", asked, said))


REFUSED = {"TRITON_MLA": ["kv_cache_dtype not supported"], "FLASHMLA": ["compute capability not supported"]}


def test_a_kv_cache_that_no_backend_takes_names_the_dtype_the_reasons_the_patch_and_its_price():
    (found,) = attention(REFUSED)
    assert (found.id, found.severity) == ("kv_cache_dtype", "no_go")
    assert found.what == "No attention backend takes this model with a KV cache of fp8_e4m3."
    assert "TRITON_MLA: kv_cache_dtype not supported; FLASHMLA: compute capability" in found.evidence
    assert "the dtype comes from the checkpoint's configuration" in found.evidence
    assert found.remedy == "set vllm_service_patch_sets: [disable_fp8_kv_cache]"
    assert "half the KV tokens" in found.price and "ACME 9000" in found.where


def test_a_kv_cache_that_was_asked_for_is_taken_back_by_the_argument():
    (found,) = attention(REFUSED, asked="fp8")
    assert found.remedy == "set vllm_service_arguments_extra: {kv-cache-dtype: auto}"
    assert "comes from --kv-cache-dtype" in found.evidence


def test_a_backend_that_takes_the_model_is_no_finding_whatever_the_others_say():
    assert attention(REFUSED, selected="TRITON_MLA", accepting=["TRITON_MLA"]) == []
    assert attention({"CPU_MLA": []}, selected="CPU_MLA", validates=False) == []


def test_refusals_for_other_reasons_name_the_arguments():
    (found,) = attention({"TRITON_MLA": ["head_size not supported"]}, quantized=False)
    assert (found.id, found.severity) == ("attention_backend", "no_go")
    assert "attention-backend" in found.remedy


@pytest.mark.parametrize(("mla", "severity"), [(True, "no_go"), (False, "warn")])
def test_a_platform_that_validates_nothing_is_certain_to_fail_with_a_quantised_latent_cache_only(mla, severity):
    (found,) = attention(REFUSED, validates=False, selected="CPU_MLA", mla=mla)
    assert (found.id, found.severity) == ("kv_cache_dtype", severity)


def test_a_question_that_could_not_be_put_is_a_warning():
    (found,) = judge_engine(EngineAnswer("done", "", "0.14.1", "auto", {}, {"unanswered": "ImportError: selector"}))
    assert (found.id, found.severity, found.evidence) == ("attention_not_asked", "warn", "ImportError: selector")


def test_what_is_wrong_with_the_weights_becomes_a_finding():
    problems = (Problem("shard_damaged", True, "What.", "evidence"), Problem("tensor_duplicate", False, "Twice.", "x"))
    first, second = judge_checkpoint(Checkpoint({}, (), problems), "/srv/model")
    assert (first.id, first.severity, second.severity) == ("shard_damaged", "no_go", "warn")
    assert "/srv/model" in first.where and "model_store_verify: full" in first.remedy


def test_a_finding_that_is_overruled_stops_nothing_and_stays_visible():
    findings = [Finding("a", "no_go", "What is a.", "e", "r"), Finding("b", "no_go", "What is b.", "e", "r")]
    ruled = overrule(findings, ["a", "none"])
    assert [(found.id, found.severity) for found in ruled] == [("a", "warn"), ("b", "no_go")]
    assert ruled[0].what == "What is a. (overruled)"
