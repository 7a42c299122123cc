from __future__ import annotations

from types import SimpleNamespace

import pytest
from ansible_collections.llmops.vllm.plugins.action import deploy_lock
from ansible_collections.llmops.vllm.plugins.plugin_utils import progress_line

LOCK = {"run_id": "a", "holder": "x@y", "why": "z", "since": "t", "process": {}}
HELD = {"failed": True, "msg": "locked", "lock": LOCK}
FREE = {"changed": True, "lock": {"run_id": "me"}}


@pytest.fixture
def run(monkeypatch):
    def call(answers, dead=False, **arguments):
        """Run the plugin against a module that gives ``answers``; return the result, the calls and the lines shown."""
        calls, lines = [], []

        def execute(self, module_name, module_args, task_vars):
            assert module_name == "llmops.vllm.deploy_lock"
            calls.append(dict(module_args))
            return dict(answers.pop(0))

        clock = SimpleNamespace(now=0.0)
        monkeypatch.setattr(progress_line.display, "display", lines.append)
        monkeypatch.setattr(deploy_lock.time, "monotonic", lambda: clock.now)
        monkeypatch.setattr(deploy_lock.time, "sleep", lambda seconds: setattr(clock, "now", clock.now + seconds))
        monkeypatch.setattr(deploy_lock, "is_dead", lambda process: dead)
        monkeypatch.setattr(deploy_lock.ActionBase, "run", lambda self, tmp=None, task_vars=None: {})
        monkeypatch.setattr(deploy_lock.ActionModule, "_execute_module", execute)
        action = deploy_lock.ActionModule.__new__(deploy_lock.ActionModule)
        action._task = SimpleNamespace(args=arguments)
        return action.run(task_vars={"inventory_hostname": "gpu1", "playbook_dir": "/"}), calls, lines

    return call


def test_the_run_names_itself(run):
    result, calls, _lines = run([FREE], instance="kimi")
    assert calls[0]["run_id"] == result["run"]["id"] and calls[0]["holder"] == result["run"]["holder"]
    assert calls[0]["process"]["pid"] > 0 and calls[0]["instance"] == "kimi" and result["changed"] is True


def test_all_tasks_of_a_run_are_the_same_run(run):
    assert run([FREE])[0]["run"]["id"] == run([FREE])[0]["run"]["id"]


def test_a_lock_in_the_way_fails_at_once_without_a_time_to_wait(run):
    result, calls, lines = run([HELD])
    assert result["failed"] is True and len(calls) == 1 and not lines


def test_it_waits_and_says_for_whom(run):
    result, calls, lines = run([HELD, HELD, FREE], wait_seconds=30)
    assert result["changed"] is True and len(calls) == 3
    assert lines == ["    gpu1: waiting for x@y, z, since t"]


def test_waiting_has_an_end(run):
    result, calls, _lines = run([HELD] * 4, wait_seconds=12)
    assert result["failed"] is True and len(calls) == 4


def test_a_run_that_is_gone_from_this_controller_is_named_once(run):
    result, calls, _lines = run([HELD, FREE], dead=True)
    assert result["changed"] is True and calls[1]["dead_run_id"] == "a"
    result, calls, _lines = run([HELD, HELD], dead=True)
    assert result["failed"] is True and len(calls) == 2


def test_another_failure_is_passed_on(run):
    result, calls, _lines = run([{"failed": True, "msg": "bad name"}], wait_seconds=60)
    assert result["msg"] == "bad name" and len(calls) == 1
