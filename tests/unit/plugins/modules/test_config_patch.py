"""Unit tests for plugins/modules/config_patch.py."""

from __future__ import annotations

import difflib
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.llmops.vllm.plugins.modules import config_patch

CONFIG = {
    "architectures": ["KimiK25ForConditionalGeneration"],
    "quantization_config": {
        "ignore": ["lm_head"],
        "kv_cache_scheme": {"dynamic": False, "num_bits": 8, "type": "float"},
        "quant_method": "modelopt",
    },
    "vision_config": {"projector_ln_eps": 1e-05},
}
LEGACY = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8"}}
KV_KEYS = ["kv_cache_scheme", "kv_cache_quant_algo"]
PATCH = {
    "name": "no-fp8-kv-cache",
    "file": "config.json",
    "reason": "no backend takes it",
    "remove_keys": KV_KEYS,
    "expect": {"/quantization_config/kv_cache_scheme/num_bits": 8},
}
LEGACY_PATCH = {**PATCH, "name": "legacy", "file": "hf_quant_config.json", "expect": {}}


@pytest.fixture
def places(tmp_path: Path) -> dict[str, str]:
    snapshot = tmp_path / "store" / "commit"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text(json.dumps(CONFIG, indent=4))
    (snapshot / "hf_quant_config.json").write_text(json.dumps(LEGACY, indent=4))
    (snapshot / "model-00001-of-00001.safetensors").write_bytes(b"\0" * 8)
    return {"snapshot": str(snapshot), "view": str(tmp_path / "model")}


def test_first_run_composes_second_run_changes_nothing(run_module: Any, places: dict[str, str]) -> None:
    first = run_module(config_patch, patches=[PATCH, LEGACY_PATCH], **places)
    assert (first["changed"], first["pending"], first["path"]) == (True, False, places["view"])
    assert re.fullmatch(r"[0-9a-f]{64}", first["digest"])
    assert [(p["name"], p["removed"], p["effective"]) for p in first["patched"]] == [
        ("no-fp8-kv-cache", ["/quantization_config/kv_cache_scheme"], True),
        ("legacy", ["/quantization/kv_cache_quant_algo"], True),
    ]
    view = Path(places["view"])
    assert "kv_cache" not in (view / "config.json").read_text() + (view / "hf_quant_config.json").read_text()
    second = run_module(config_patch, diff=True, patches=[PATCH, LEGACY_PATCH], **places)
    assert not second["changed"]
    assert "diff" not in second
    assert (second["digest"], second["patched"]) == (first["digest"], first["patched"])


def test_check_mode_predicts_and_writes_nothing(run_module: Any, places: dict[str, str]) -> None:
    predicted = run_module(config_patch, check=True, diff=True, patches=[PATCH], **places)
    assert predicted["changed"]
    assert os.listdir(Path(places["view"]).parent) == ["store"]
    done = run_module(config_patch, diff=True, patches=[PATCH], **places)
    for key in ("changed", "pending", "path", "digest", "patched", "diff"):
        assert done[key] == predicted[key]
    assert not run_module(config_patch, check=True, patches=[PATCH], **places)["changed"]


def test_the_diff_is_the_removed_lines_and_nothing_else(run_module: Any, places: dict[str, str]) -> None:
    diff = run_module(config_patch, diff=True, patches=[PATCH], **places)["diff"]
    text = next(entry for entry in diff if entry["after_header"].endswith("config.json"))
    lines = difflib.unified_diff(text["before"].splitlines(), text["after"].splitlines(), n=0, lineterm="")
    assert [line for line in lines if re.match(r"[-+] ", line)] == [
        '-        "kv_cache_scheme": {',
        '-            "dynamic": false,',
        '-            "num_bits": 8,',
        '-            "type": "float"',
        "-        },",
    ]


def test_a_hand_edited_view_is_shown_and_put_right(run_module: Any, places: dict[str, str]) -> None:
    run_module(config_patch, patches=[PATCH], **places)
    edited = Path(places["view"], "config.json")
    right = edited.read_text()
    edited.write_text("{}")
    result = run_module(config_patch, diff=True, patches=[PATCH], **places)
    assert result["changed"]
    assert [(entry["before"], entry["after"]) for entry in result["diff"]] == [("{}", right)]
    assert edited.read_text() == right


def test_a_view_without_patches_is_a_plain_copy(run_module: Any, places: dict[str, str]) -> None:
    result = run_module(config_patch, **places)
    assert (result["changed"], result["patched"]) == (True, [])
    assert Path(places["view"], "config.json").read_bytes() == Path(places["snapshot"], "config.json").read_bytes()


def test_a_patch_that_vllm_would_not_notice_is_reported(run_module: Any, places: dict[str, str]) -> None:
    patched = run_module(config_patch, patches=[LEGACY_PATCH], **places)["patched"]
    assert patched[0]["effective"] is False
    assert patched[0]["note"] == "vLLM ignores hf_quant_config.json when config.json carries quantization_config"


def test_operations_and_merge_keep_null_and_types(run_module: Any, places: dict[str, str]) -> None:
    patch = {
        "name": "p",
        "file": "config.json",
        "reason": "r",
        "operations": [
            {"op": "add", "path": "/nothing", "value": None},
            {"op": "copy", "from": "/architectures/0", "path": "/copied"},
        ],
        "merge": {"vision_config": None, "number": 1, "yes": True, "text": "1"},
    }
    result = run_module(config_patch, patches=[patch], **places)
    assert result["patched"][0]["removed"] == ["/vision_config"]
    value = json.loads(Path(places["view"], "config.json").read_text())
    assert value["nothing"] is None
    assert value["copied"] == "KimiK25ForConditionalGeneration"
    assert "vision_config" not in value
    assert [value[key] for key in ("number", "yes", "text")] == [1, True, "1"]


def test_a_snapshot_that_is_yet_to_come_is_pending_in_check_mode_only(
    run_module: Any, places: dict[str, str], tmp_path: Path
) -> None:
    absent = {**places, "snapshot": str(tmp_path / "absent"), "owner": "nobody-here-yet"}
    result = run_module(config_patch, check=True, patches=[PATCH], **absent)
    assert (result["changed"], result["pending"], result["patched"]) == (True, True, [])
    assert "does not exist yet; the patches will be tried once it is there" in result["msg"]
    failed = run_module(config_patch, patches=[PATCH], **{**absent, "owner": None})
    assert failed["failed"]
    assert f"The snapshot {tmp_path}/absent is not a directory" in failed["msg"]
    malformed = run_module(config_patch, check=True, patches=[{**PATCH, "remove_keys": []}], **absent)
    assert "at least one of operations, merge and remove_keys" in malformed["msg"]


def test_a_linked_snapshot_path_is_resolved(run_module: Any, places: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "current").symlink_to(places["snapshot"])
    run_module(config_patch, **{**places, "snapshot": str(tmp_path / "current")})
    shard = "model-00001-of-00001.safetensors"
    assert os.readlink(Path(places["view"], shard)) == f"{places['snapshot']}/{shard}"
    assert not run_module(config_patch, **places)["changed"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"patches": [{**PATCH, "file": "absent.json"}]}, "of absent.json: the snapshot has no such file"),
        ({"patches": [{**PATCH, "file": "../commit/config.json"}]}, "a plain path within the snapshot"),
        ({"patches": [{**PATCH, "file": "model-00001-of-00001.safetensors"}]}, "links to this file"),
        ({"patches": [{**PATCH, "expect": {"/quantization_config/quant_method": "fp8"}}]}, '"fp8" is expected at'),
        ({"patches": [{k: v for k, v in PATCH.items() if k != "reason"}]}, "missing required arguments: reason"),
        ({"patches": [{**PATCH, "operations": [{"op": "test", "path": "/x", "value": 1}]}]}, "operation 1 (test"),
        ({"view": "relative"}, "view must be an absolute path"),
        ({"snapshot": "relative"}, "snapshot must be an absolute path"),
        ({"file_mode": 420}, "file_mode must be a quoted octal string"),
        ({"directory_mode": "u=rwx"}, "directory_mode must be a quoted octal string"),
        ({"owner": "no-such-user"}, "owner 'no-such-user' is no user of this host"),
        ({"group": "no-such-group"}, "group 'no-such-group' is no group of this host"),
    ],
)
def test_bad_input_fails_with_one_sentence_and_writes_nothing(
    change: dict[str, Any], words: str, run_module: Any, places: dict[str, str]
) -> None:
    result = run_module(config_patch, **{**places, "patches": [PATCH], **change})
    assert result["failed"]
    assert words in result["msg"]
    assert "\n" not in result["msg"]
    assert not os.path.lexists(places["view"])


def test_owner_and_modes_are_applied(run_module: Any, places: dict[str, str]) -> None:
    ids = {"owner": str(os.geteuid()), "group": str(os.getegid())}
    run_module(config_patch, file_mode="0440", directory_mode="0550", **ids, **places)
    assert Path(places["view"], "config.json").stat().st_mode & 0o7777 == 0o440
    assert Path(places["view"]).stat().st_mode & 0o7777 == 0o550
    assert not run_module(config_patch, file_mode="0440", directory_mode="0550", **ids, **places)["changed"]
    assert run_module(config_patch, check=True, file_mode="0444", directory_mode="0550", **places)["changed"]


def test_documentation_and_argument_spec_agree() -> None:
    options = yaml.safe_load(config_patch.DOCUMENTATION)["options"]
    assert set(options) == set(config_patch.ARGUMENT_SPEC)
    assert set(options["patches"]["suboptions"]) == set(config_patch.PATCH_OPTIONS)
