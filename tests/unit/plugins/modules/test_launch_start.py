from __future__ import annotations

import pytest
from ansible_collections.llmops.vllm.plugins.module_utils.systemd import CompletedRun
from ansible_collections.llmops.vllm.plugins.modules import launch_start

SHOWN = "LoadState=loaded\nActiveState={}\nSubState=dead\nInvocationID=" + "a" * 32 + "\nUnitFileState=enabled\n"


@pytest.fixture
def call(run_module, monkeypatch):
    calls = []

    def run(active="active", check=False, **params):
        def systemctl(argv):
            calls.append(argv[1])
            return CompletedRun(0, SHOWN.format(active), "")

        monkeypatch.setattr(launch_start, "run_command", systemctl)
        return run_module(launch_start, check=check, unit="vllm@kimi.service", **params)

    run.calls = calls
    return run


def test_what_runs_is_named_and_left(call):
    result = call()
    assert (result["changed"], result["started"], result["invocation_id"]) == (False, False, "a" * 32)


def test_check_mode_says_that_it_would_start_and_does_not(call):
    result = call(active="failed", check=True)
    assert (result["changed"], result["started"]) == (True, True)
    assert result["diff"]["after"] == {"vllm@kimi.service": "started"}
    assert set(call.calls) == {"show"}


@pytest.mark.parametrize("params", [{"wait_seconds": 0}, {"unit": "vllm"}])
def test_bad_input_is_one_sentence(call, params, run_module):
    assert run_module(launch_start, **{"unit": "vllm@kimi.service", **params})["failed"] is True
