from __future__ import annotations

from types import SimpleNamespace

import pytest
from ansible_collections.llmops.vllm.plugins.action import model_shards
from ansible_collections.llmops.vllm.plugins.plugin_utils import progress_line

COMMIT = "0" * 40
STOP = "systemctl stop llmops-model-x.service"


def unfinished(progress, stop_command=STOP):
    return {"changed": False, "follow": "w1", "commit": COMMIT, "progress": progress, "stop_command": stop_command}


@pytest.fixture
def printed(monkeypatch):
    lines = []
    monkeypatch.setattr(progress_line.display, "display", lines.append)
    return lines


def run(monkeypatch, answers, asynchronous=0, **arguments):
    """Run the plugin against a module that gives ``answers``; return the result and the arguments of each call."""
    calls = []

    def execute(self, module_name, module_args, task_vars, wrap_async):
        assert module_name == "llmops.vllm.model_shards" and wrap_async == asynchronous
        calls.append(dict(module_args))
        return answers.pop(0)

    monkeypatch.setattr(model_shards.ActionBase, "run", lambda self, tmp=None, task_vars=None: {})
    monkeypatch.setattr(model_shards.ActionModule, "_execute_module", execute)
    action = model_shards.ActionModule.__new__(model_shards.ActionModule)
    action._task = SimpleNamespace(args=arguments, async_val=asynchronous)
    return action.run(task_vars={"inventory_hostname": "gpu1"}), calls


def test_slices_follow_the_worker_of_the_first_one_at_its_commit(monkeypatch, printed):
    answers = [unfinished("3/12 files"), unfinished("9/12 files"), {"changed": True}]
    result, calls = run(monkeypatch, answers, repo="acme/x", revision="main", detach=True)
    assert result == {"changed": True}
    assert calls[0] == {"repo": "acme/x", "revision": "main", "detach": True, "slice_seconds": 10}
    assert calls[1] == calls[2] == {**calls[0], "revision": COMMIT, "follow": "w1"}
    assert printed == [
        f"    gpu1: the download goes on if this run ends; to stop it: {STOP}",
        "    gpu1: 3/12 files",
        "    gpu1: 9/12 files",
    ]


def test_how_to_stop_it_is_said_once_it_is_known(monkeypatch, printed):
    run(monkeypatch, [unfinished("starting", ""), unfinished("3/12 files"), unfinished("4/12 files"), {}])
    assert [line for line in printed if STOP in line] == [printed[1]] and len(printed) == 4


@pytest.mark.parametrize("answer", [{"changed": False}, {"failed": True, "msg": "x"}])
def test_a_final_answer_is_one_call(monkeypatch, printed, answer):
    result, calls = run(monkeypatch, [dict(answer)])
    assert result == answer and len(calls) == 1 and printed == []


def test_an_asynchronous_task_waits_in_one_call(monkeypatch, printed):
    job = {"ansible_job_id": "j1", "started": 1, "finished": 0}
    result, calls = run(monkeypatch, [dict(job)], asynchronous=600, detach=True)
    assert result == job and calls == [{"detach": True}]


def test_a_given_slice_is_used(monkeypatch, printed):
    _, calls = run(monkeypatch, [unfinished("3/12 files"), {}], slice_seconds=3)
    assert [call["slice_seconds"] for call in calls] == [3, 3]


@pytest.mark.parametrize(("waited", "slice_seconds"), [(0, 10), (60, 10), (120, 20), (360, 60), (36000, 60)])
def test_the_longer_it_takes_the_longer_the_slices(waited, slice_seconds):
    assert model_shards.slice_after(waited) == slice_seconds
