from __future__ import annotations

import json
from pathlib import Path

import pytest
from ansible_collections.llmops.vllm.plugins.modules import audit_record, deploy_lock, release_receipt

RECEIPT = {"release": "aaa", "outcome": "proven", "time": "2026-03-01T10:00:00Z", "canaries": [{"text": "42"}]}


@pytest.fixture
def root(tmp_path):
    (tmp_path / "releases/kimi/aaa").mkdir(parents=True)
    return tmp_path


def test_a_receipt_is_kept_in_three_places(run_module, root):
    result = run_module(release_receipt, instance="kimi", receipt=RECEIPT, root=str(root))
    assert result["changed"] is True and len(result["paths"]) == 2
    texts = [json.loads(Path(path).read_text()) for path in result["paths"]]
    assert texts[0] == texts[1] and texts[0]["canaries"] == RECEIPT["canaries"]
    assert json.loads((root / "audit.jsonl").read_text())["release"] == "aaa"


def test_check_mode_keeps_nothing(run_module, root):
    assert run_module(release_receipt, check=True, instance="kimi", receipt=RECEIPT, root=str(root))["changed"] is True
    assert [path.name for path in root.iterdir()] == ["releases"]


def test_a_run_that_has_lost_its_lock_keeps_nothing(run_module, root):
    params = {"instance": "kimi", "receipt": RECEIPT, "root": str(root), "run_path": str(root / "run")}
    run_module(deploy_lock, instance="kimi", run_id="b", why="deploy", lease_seconds=60, run_path=str(root / "run"))
    result = run_module(release_receipt, run_id="a", **params)
    assert result["failed"] is True and not (root / "receipts").exists()
    assert run_module(release_receipt, run_id="b", **params)["changed"] is True


@pytest.mark.parametrize("receipt", [{}, {"release": "zzz", "time": RECEIPT["time"]}])
def test_bad_input_is_one_sentence(run_module, root, receipt):
    assert run_module(release_receipt, instance="kimi", receipt=receipt, root=str(root))["failed"] is True


@pytest.mark.parametrize("check", [False, True])
def test_a_record_is_appended_with_its_time(run_module, tmp_path, check):
    path = tmp_path / "audit.jsonl"
    for number in (1, 2):
        result = run_module(audit_record, check=check, path=str(path), record={"number": number})
        assert result["changed"] is True and result["record"]["time"].endswith("Z")
    assert path.exists() is not check
    assert check or [json.loads(line)["number"] for line in path.read_text().splitlines()] == [1, 2]


def test_a_record_that_cannot_be_kept_fails(run_module, tmp_path):
    (tmp_path / "audit.jsonl").mkdir()
    assert "audit.jsonl" in run_module(audit_record, path=str(tmp_path / "audit.jsonl"), record={})["msg"]
