from __future__ import annotations

import pytest
from ansible_collections.llmops.vllm.plugins.modules import deploy_lock


@pytest.fixture
def call(run_module, tmp_path):
    def run(check=False, **params):
        defaults = {"instance": "kimi", "run_id": "mine", "holder": "ops@one", "run_path": str(tmp_path / "run")}
        return run_module(deploy_lock, check=check, **{**defaults, **params})

    return run


def test_the_lock_is_taken_once_and_renewed_without_a_change(call):
    first = call(why="deploy aaa")
    assert (first["changed"], first["before"], first["lock"]["holder"]) == (True, None, "ops@one")
    assert "ops@one" in first["diff"]["after"]["lock"] and first["diff"]["before"] == {}
    second = call()
    assert second["changed"] is False and second["lock"]["why"] == "deploy aaa"


def test_another_run_fails_with_the_holder(call):
    call(why="deploy aaa")
    result = call(run_id="other")
    assert result["failed"] is True and "locked by ops@one since 2" in result["msg"] and "deploy aaa" in result["msg"]
    assert result["lock"]["run_id"] == "mine"


def test_a_dead_run_is_taken_over_with_a_word(call):
    call()
    result = call(run_id="other", dead_run_id="mine")
    assert result["changed"] is True and result["before"]["run_id"] == "mine" and "Took over" in result["note"]
    assert call()["failed"] is True


def test_a_run_without_a_sign_for_the_lease_is_taken_over(call):
    call()
    assert call(run_id="other", lease_seconds=0)["changed"] is True


def test_check_mode_tells_and_takes_nothing(call):
    assert call(check=True)["changed"] is True
    assert call(run_id="other")["changed"] is True
    assert call(check=True, state="free", run_id="other")["changed"] is True
    assert call(run_id="other")["changed"] is False


def test_release_by_the_holder_by_force_and_by_nobody_else(call):
    assert call(state="free")["changed"] is False
    call()
    assert "not released" in call(state="free", run_id="other")["msg"]
    forced = call(state="free", run_id="other", force=True)
    assert (forced["changed"], forced["before"]["run_id"], forced["lock"]) == (True, "mine", None)


@pytest.mark.parametrize("params", [{"instance": "../x"}, {"run_id": ""}])
def test_bad_input_is_one_sentence(call, params):
    assert call(**params)["failed"] is True
