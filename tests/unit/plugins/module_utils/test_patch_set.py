"""Unit tests for plugins/module_utils/patch_set.py."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from ansible_collections.llmops.vllm.plugins.module_utils.errors import (
    InvalidInputError,
    LlmopsError,
    PreconditionError,
)
from ansible_collections.llmops.vllm.plugins.module_utils.patch_set import (
    IGNORED,
    KEYS_MISSING,
    NESTED,
    NOTHING_TO_DO,
    Patch,
    apply_patches,
)

BLOCK = {"kv_cache_scheme": {"num_bits": 8, "type": "float"}, "quant_method": "modelopt"}
LEGACY = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8"}}
KV_KEYS = ["kv_cache_scheme", "kv_cache_quant_algo"]


def reading(**files: Any) -> Callable[[str], bytes | None]:
    contents = {f"{name}.json": json.dumps(value, indent=2).encode() for name, value in files.items()}
    return contents.get


def patch(file: str, **more: Any) -> Patch:
    return Patch.from_parameters({"name": f"patch-{file}", "file": file, "reason": "test", **more})


def test_patches_of_one_file_build_on_each_other_and_the_content_comes_once() -> None:
    first = patch("config.json", operations=[{"op": "add", "path": "/b", "value": 2}])
    second = patch("config.json", expect={"/b": 2}, merge={"b": 3, "a": None})
    outcome = apply_patches([first, second], reading(config={"a": 1}))
    assert outcome.contents == {"config.json": json.dumps({"b": 3}, indent=2).encode()}
    assert [report.as_result() for report in outcome.reports] == [
        {
            "name": "patch-config.json",
            "file": "config.json",
            "reason": "test",
            "added": ["/b"],
            "removed": [],
            "changed": [],
            "effective": True,
            "note": "",
        },
        {
            "name": "patch-config.json",
            "file": "config.json",
            "reason": "test",
            "added": [],
            "removed": ["/a"],
            "changed": ["/b"],
            "effective": True,
            "note": "",
        },
    ]


def test_within_a_patch_operations_come_first_then_merge_then_removal() -> None:
    one = patch(
        "config.json",
        operations=[{"op": "add", "path": "/x", "value": {"gone": 1, "kept": 1}}],
        merge={"x": {"kept": 2, "gone": 3}},
        remove_keys=["gone"],
    )
    assert json.loads(apply_patches([one], reading(config={})).contents["config.json"]) == {"x": {"kept": 2}}


def test_a_patch_that_finds_its_work_done_has_no_effect_and_no_content() -> None:
    outcome = apply_patches([patch("config.json", remove_keys=KV_KEYS)], reading(config={"a": 1}))
    assert outcome.contents == {}
    assert (outcome.reports[0].effective, outcome.reports[0].note) == (False, NOTHING_TO_DO)


def test_two_patches_that_undo_each_other_leave_the_file_alone() -> None:
    there = patch("config.json", operations=[{"op": "add", "path": "/b", "value": 2}])
    back = patch("config.json", remove_keys=["b"])
    assert apply_patches([there, back], reading(config={"a": 1})).contents == {}


def test_an_optional_file_may_be_missing_and_another_may_not() -> None:
    outcome = apply_patches([patch("x.json", remove_keys=["a"], optional=True)], reading())
    assert (outcome.reports[0].effective, outcome.reports[0].note) == (False, "the snapshot has no such file")
    with pytest.raises(
        InvalidInputError, match=r"patch 'patch-x\.json' of x\.json: the snapshot has no such file; corr"
    ):
        apply_patches([patch("x.json", remove_keys=["a"])], reading())


def test_a_patch_for_keys_that_stand_nowhere_is_skipped_with_its_expectations() -> None:
    one = patch("config.json", merge={"b": 1}, expect={"/x": 1}, when={"keys": ["kv_cache_scheme", "x"]})
    outcome = apply_patches([one], reading(config={"a": 1}))
    assert outcome.contents == {} and outcome.reports[0].note == KEYS_MISSING
    deep = patch("config.json", merge={"b": 1}, when={"keys": ["kv_cache_scheme", "x"]})
    outcome = apply_patches([deep], reading(config={"a": [BLOCK]}))
    assert outcome.reports[0].effective and json.loads(outcome.contents["config.json"])["b"] == 1


def test_an_expectation_that_does_not_hold_names_patch_file_and_both_values() -> None:
    one = patch("config.json", remove_keys=["a"], expect={"/a": 2})
    with pytest.raises(PreconditionError) as caught:
        apply_patches([one], reading(config={"a": 1}))
    assert caught.value.message == (
        "patch 'patch-config.json' of config.json: 2 is expected at \"/a\", but 1 is there."
    )


def test_a_file_that_is_not_json_is_named_with_the_line() -> None:
    with pytest.raises(InvalidInputError, match=r"of config\.json: config\.json, line 2: "):
        apply_patches([patch("config.json", remove_keys=["a"])], {"config.json": b'{"a": 1\n"b": 2}'}.get)


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({}, "at least one of operations, merge and remove_keys"),
        ({"merge": {}, "operations": [], "remove_keys": []}, "at least one of operations, merge and remove_keys"),
        ({"remove_keys": ["a"], "file": "../config.json"}, "a plain path within the snapshot"),
        ({"remove_keys": ["a"], "file": "/etc/passwd"}, "a plain path within the snapshot"),
        ({"remove_keys": ["a"], "file": "a//b.json"}, "a plain path within the snapshot"),
        ({"remove_keys": ["a"], "file": "./config.json"}, "a plain path within the snapshot"),
        ({"remove_keys": ["a"], "reason": " "}, "reason must not be empty"),
        ({"operations": [{"op": "nonsense"}]}, "operation 1: op must be one of"),
        ({"remove_keys": ["a"], "expect": {"a": 1}}, "is no JSON pointer"),
        ({"merge": {"a": float("inf")}}, "not a JSON number"),
        ({"remove_keys": ["a"], "when": {"vllm": "<1"}}, "when has vllm, which is decided before"),
        ({"remove_keys": ["a"], "when": {"keys": []}}, "when.keys has to be a list of keys"),
    ],
)
def test_a_patch_that_no_file_could_make_right_is_refused(parameters: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        Patch.from_parameters({"name": "p", "file": "config.json", "reason": "r", **parameters})
    assert caught.value.message.startswith("patch 'p': ")
    assert words in caught.value.message


def test_patching_only_the_file_that_vllm_ignores_is_reported_as_without_effect() -> None:
    read = reading(config={"quantization_config": BLOCK}, hf_quant_config=LEGACY)
    outcome = apply_patches([patch("hf_quant_config.json", remove_keys=KV_KEYS)], read)
    report = outcome.reports[0]
    assert (report.effective, report.note) == (False, IGNORED)
    assert report.changes.removed == ("/quantization/kv_cache_quant_algo",)
    assert "hf_quant_config.json" in outcome.contents


def test_patching_both_files_is_effective_and_the_precedence_only_a_note() -> None:
    read = reading(config={"quantization_config": BLOCK}, hf_quant_config=LEGACY)
    both = [patch(file, remove_keys=KV_KEYS) for file in ("hf_quant_config.json", "config.json")]
    reports = apply_patches(both, read).reports
    assert [(report.effective, report.note) for report in reports] == [(True, IGNORED), (True, "")]


def test_a_patch_of_config_json_that_does_nothing_does_not_make_the_other_one_effective() -> None:
    read = reading(config={"quantization_config": {"quant_method": "modelopt"}}, hf_quant_config=LEGACY)
    both = [patch(file, remove_keys=KV_KEYS) for file in ("config.json", "hf_quant_config.json")]
    reports = apply_patches(both, read).reports
    assert [(report.effective, report.note) for report in reports] == [(False, NOTHING_TO_DO), (False, IGNORED)]


@pytest.mark.parametrize("config", [{}, {"quantization_config": None}, [], {"text_config": {}}])
def test_without_a_block_in_config_json_the_other_file_counts(config: Any) -> None:
    read = reading(config=config, hf_quant_config=LEGACY)
    report = apply_patches([patch("hf_quant_config.json", remove_keys=KV_KEYS)], read).reports[0]
    assert (report.effective, report.note) == (True, "")


def test_taking_the_block_out_of_config_json_makes_the_other_file_count() -> None:
    read = reading(config={"quantization_config": BLOCK}, hf_quant_config=LEGACY)
    first = patch("config.json", operations=[{"op": "remove", "path": "/quantization_config"}])
    reports = apply_patches([first, patch("hf_quant_config.json", remove_keys=KV_KEYS)], read).reports
    assert [(report.effective, report.note) for report in reports] == [(True, ""), (True, "")]


def test_a_block_in_text_config_only_is_worth_a_note() -> None:
    read = reading(config={"text_config": {"quantization_config": BLOCK}}, hf_quant_config=LEGACY)
    report = apply_patches([patch("hf_quant_config.json", remove_keys=KV_KEYS)], read).reports[0]
    assert (report.effective, report.note) == (True, NESTED)


def test_the_error_keeps_its_family() -> None:
    with pytest.raises(LlmopsError) as caught:
        apply_patches([patch("config.json", operations=[{"op": "remove", "path": "/x"}])], reading(config={}))
    assert type(caught.value) is PreconditionError
    assert 'operation 1 (remove "/x"): there is nothing at' in caught.value.message
