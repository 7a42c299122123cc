"""Fixtures of the tests that run model_shards."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def run_shards(run_module: Any, hub: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    # Imported late: a conftest is loaded before the collection can be found.
    collection = "ansible_collections.llmops.vllm.plugins"
    module = importlib.import_module(f"{collection}.modules.model_shards")
    policy = importlib.import_module(f"{collection}.module_utils.http_client").RetryPolicy
    monkeypatch.setattr(policy, "pause", lambda *_args: None)

    def call(**params: Any) -> dict[str, Any]:
        defaults = {
            "repo": "acme/tiny-model",
            "store": str(tmp_path / "store"),
            "releases": str(tmp_path / "releases"),
            "endpoint": hub.endpoint,
            "reserve_bytes": 0,
        }
        return run_module(module, **{**defaults, **params})

    return call


@pytest.fixture
def snapshot(tmp_path: Path) -> Path:
    return tmp_path / "store" / "acme--tiny-model" / "0123456789abcdef0123456789abcdef01234567"
