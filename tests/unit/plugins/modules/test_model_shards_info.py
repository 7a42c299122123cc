from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ansible_collections.llmops.vllm.plugins.modules import model_shards, model_shards_info
from ansible_collections.llmops.vllm.tests.unit.hub_server import COMMIT, REPO, Hub

SHARD = "model-00001-of-00003.safetensors"


@pytest.fixture
def store(run_module: Any, hub: Hub, tmp_path: Path) -> Path:
    path = tmp_path / "store"
    result = run_module(model_shards, repo=REPO, store=str(path), endpoint=hub.endpoint, reserve_bytes=0)
    assert result["changed"]
    return path


@pytest.mark.parametrize("check", [False, True])
def test_a_complete_snapshot_is_listed(run_module: Any, hub: Hub, store: Path, check: bool) -> None:
    (store / "not-a-repo").mkdir()
    (store / "acme--tiny-model" / "tmp").mkdir()
    result = run_module(model_shards_info, check=check, store=str(store))
    assert not result["changed"]
    assert result["snapshots"] == [
        {
            "repo": REPO,
            "commit": COMMIT,
            "path": str(store / "acme--tiny-model" / COMMIT),
            "manifest": str(store / "acme--tiny-model" / COMMIT / ".llmops" / "manifest.json"),
            "endpoint": hub.endpoint,
            "complete": True,
            "files": len(hub.files),
            "total_bytes": sum(map(len, hub.files.values())),
            "partial_bytes": 0,
            "changed": [],
        }
    ]


def test_a_changed_or_missing_file_makes_a_snapshot_incomplete(run_module: Any, store: Path) -> None:
    snapshot = store / "acme--tiny-model" / COMMIT
    (snapshot / SHARD).write_bytes(b"other")
    (snapshot / "config.json").unlink()
    (found,) = run_module(model_shards_info, store=str(store))["snapshots"]
    assert found["complete"] is False and found["changed"] == ["config.json", SHARD]


def test_a_snapshot_without_manifest_is_incomplete_and_shows_what_arrives(run_module: Any, store: Path) -> None:
    snapshot = store / "acme--tiny-model" / COMMIT
    (snapshot / ".llmops" / "manifest.json").unlink()
    (snapshot / ".llmops" / "partial").mkdir()
    (snapshot / ".llmops" / "partial" / "ab.part").write_bytes(bytes(7))
    (found,) = run_module(model_shards_info, store=str(store), repo=REPO)["snapshots"]
    assert (found["complete"], found["files"], found["partial_bytes"]) == (False, 0, 7)


def test_nothing_is_listed_for_another_repository_or_an_absent_store(
    run_module: Any, store: Path, tmp_path: Path
) -> None:
    assert run_module(model_shards_info, store=str(store), repo="acme/other")["snapshots"] == []
    assert run_module(model_shards_info, store=str(tmp_path / "none"))["snapshots"] == []


def test_bad_input_fails_with_one_sentence(run_module: Any, tmp_path: Path) -> None:
    assert "org/name" in run_module(model_shards_info, store=str(tmp_path), repo="x")["msg"]
    (tmp_path / "file").touch()
    assert "cannot be read" in run_module(model_shards_info, store=str(tmp_path / "file"))["msg"]
