from __future__ import annotations

from types import SimpleNamespace

import pytest
from ansible_collections.llmops.vllm.plugins.action import launch_gate
from ansible_collections.llmops.vllm.plugins.plugin_utils import progress_line


def waiting(progress):
    return {"verdict": "waiting", "progress": progress, "invocation_id": "1" * 32, "waited_seconds": 0.5}


@pytest.fixture
def printed(monkeypatch):
    lines = []
    monkeypatch.setattr(progress_line.display, "display", lines.append)
    return lines


def run(monkeypatch, answers, **arguments):
    """Run the plugin against a module that gives ``answers``; return the result and the arguments of each call."""
    calls = []

    def execute(self, module_name, module_args, task_vars):
        assert module_name == "llmops.vllm.launch_gate"
        calls.append(dict(module_args))
        return answers.pop(0)

    monkeypatch.setattr(launch_gate.ActionBase, "run", lambda self, tmp=None, task_vars=None: {})
    monkeypatch.setattr(launch_gate.ActionModule, "_execute_module", execute)
    action = launch_gate.ActionModule.__new__(launch_gate.ActionModule)
    action._task = SimpleNamespace(args=arguments)
    return action.run(task_vars={"inventory_hostname": "gpu1"}), calls


def test_slices_follow_the_launch_of_the_first_one(monkeypatch, printed):
    times = iter([100.0, 110.0, 110.0, 350.0, 350.0])
    monkeypatch.setattr(launch_gate.time, "monotonic", lambda: next(times))
    answers = [waiting("loading weights 3/12"), waiting("loading weights 9/12"), {"verdict": "ready"}]
    result, calls = run(monkeypatch, answers, unit="u.service")
    assert result["verdict"] == "ready"
    assert calls[0] == {"unit": "u.service", "slice_seconds": 10}
    assert calls[1] == {**calls[0], "invocation_id": "1" * 32, "waited_seconds": 10.0}
    assert calls[2]["waited_seconds"] == 250.0
    assert printed == ["    gpu1: loading weights 3/12, 10s", "    gpu1: loading weights 9/12, 4m10s"]


def test_a_line_is_repeated_only_after_a_while(monkeypatch, printed):
    times = iter([100.0, *(moment for moment in (110.0, 120.0, 130.0, 141.0) for _ in range(2))])
    monkeypatch.setattr(launch_gate.time, "monotonic", lambda: next(times))
    run(monkeypatch, [*[waiting("compiling") for _ in range(4)], {"verdict": "ready"}])
    assert printed == ["    gpu1: compiling, 10s", "    gpu1: compiling, 41s"]


@pytest.mark.parametrize(
    "answer", [{"verdict": "failed", "failed": True}, {"failed": True, "msg": "x"}, {"verdict": "skipped"}]
)
def test_everything_else_ends_at_once(monkeypatch, printed, answer):
    result, calls = run(monkeypatch, [dict(answer)])
    assert result == answer and len(calls) == 1 and printed == []


def test_a_given_slice_is_used(monkeypatch, printed):
    _, calls = run(monkeypatch, [{"verdict": "ready"}], slice_seconds=3)
    assert calls[0]["slice_seconds"] == 3
