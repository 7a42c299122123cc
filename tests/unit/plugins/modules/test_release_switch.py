from __future__ import annotations

import pytest
from ansible_collections.llmops.vllm.plugins.modules import deploy_lock, release_switch


@pytest.fixture
def folder(tmp_path):
    release = tmp_path / "llm/releases/kimi/aaa"
    release.mkdir(parents=True)
    (release / "vllm@.service").write_text("unit")
    (release / "instance.conf").write_text("settings")
    return tmp_path


@pytest.fixture
def call(run_module, folder):
    def run(state, check=False, **params):
        paths = {"root": folder / "llm", "run_path": folder / "run", "unit_path": folder / "units"}
        defaults = {"instance": "kimi", "release": "aaa", **{name: str(path) for name, path in paths.items()}}
        return run_module(release_switch, check=check, diff=True, state=state, **{**defaults, **params})

    return run


def test_a_release_takes_over_in_steps_each_done_once(call, folder):
    for state in ("intended", "switched", "proven"):
        first = call(state)
        assert first["changed"] is True and first["paths"] and first["diff"]["after"] != first["diff"]["before"]
        assert call(state)["changed"] is False
    assert (folder / "llm/instances/kimi/proven").readlink().name == "aaa"
    assert (folder / "units/vllm@kimi.service.d/release.conf").read_text() == "settings"
    assert not list((folder / "run").iterdir())


RECEIPT = {"release": "aaa", "outcome": "proven", "time": "2026-03-01T10:00:00Z"}


@pytest.mark.parametrize("check", [False, True])
def test_the_receipt_is_kept_with_the_last_step(call, folder, check):
    call("switched")
    result = call("proven", check=check, receipt=RECEIPT)
    kept = folder / "llm/receipts/kimi/2026-03-01T100000Z-aaa.json"
    assert result["changed"] is True and result["paths"][0] == str(kept)
    assert kept.exists() is not check and (folder / "llm/instances/kimi/proven").is_symlink() is not check
    assert (folder / "llm/releases/kimi/aaa/release.json").exists() is not check


@pytest.mark.parametrize(
    ("state", "receipt", "said"),
    [
        ("switched", RECEIPT, "for state proven only"),
        ("proven", {**RECEIPT, "release": "bbb"}, "of release bbb, not of aaa"),
        ("proven", {**RECEIPT, "time": "now"}, "time 'now'"),
    ],
)
def test_a_receipt_that_does_not_fit_is_refused_and_nothing_moves(call, folder, state, receipt, said):
    assert said in call(state, receipt=receipt)["msg"]
    assert not (folder / "llm/instances").exists()


def test_check_mode_moves_nothing(call, folder):
    result = call("switched", check=True)
    assert result["changed"] is True and str(folder / "llm/instances/kimi/current") in result["paths"]
    assert not (folder / "llm/instances").exists() and not (folder / "units").exists()


def test_a_run_that_lost_its_lock_moves_nothing(call, run_module, folder):
    def hold(run_id, **more):
        return run_module(deploy_lock, instance="kimi", run_id=run_id, run_path=str(folder / "run"), **more)

    assert "released" in call("intended", run_id="mine")["msg"]
    hold("mine", holder="ops@one")
    assert call("intended", run_id="mine")["changed"] is True
    hold("other", holder="ci@two", dead_run_id="mine")
    result = call("switched", run_id="mine")
    assert result["failed"] is True and "ci@two" in result["msg"]
    assert not (folder / "llm/instances/kimi/current").is_symlink()


@pytest.mark.parametrize("params", [{"release": ""}, {"release": "../aaa"}, {"release": "zzz"}, {"instance": "/"}])
def test_bad_input_is_one_sentence(call, params):
    assert call("intended", **params)["failed"] is True
