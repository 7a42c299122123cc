from __future__ import annotations

import os

import pytest
from ansible_collections.llmops.vllm.plugins.modules import compile_cache


@pytest.fixture
def call(run_module, tmp_path):
    def run(check=False, **params):
        defaults = {"path": str(tmp_path), "runtime": "one", "owner": str(os.getuid()), "names": ["triton"]}
        return run_module(compile_cache, check=check, **{**defaults, **params})

    return run


def test_caches_are_given_a_key_once_and_kept(call, tmp_path):
    assert call(check=True)["changed"] is True and not list(tmp_path.iterdir())
    assert call()["changed"] is True
    (tmp_path / "triton").mkdir()
    assert call()["changed"] is False
    result = call(runtime="two")
    assert (result["changed"], result["aside"]) == (True, ["triton"])
    assert call()["back"] == ["triton"]


def test_a_dropped_cache_is_said(call, tmp_path, capsys):
    (tmp_path / "triton").mkdir()
    result = call()
    assert "nobody knows" in result["dropped"]["triton"]
    assert "triton is dropped" in str(result.get("warnings")) + capsys.readouterr().err


@pytest.mark.parametrize("params", [{"owner": "no-such-user"}, {"names": ["../x"]}])
def test_bad_input_is_one_sentence(call, params):
    assert call(**params)["failed"] is True
