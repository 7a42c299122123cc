from __future__ import annotations

import dataclasses
import re

import pytest
from ansible_collections.llmops.vllm.plugins.module_utils.engine_api import Answer
from ansible_collections.llmops.vllm.plugins.module_utils.gate import (
    Failed,
    NotYet,
    NoWaiter,
    Ready,
    Waiter,
    failure_message,
    listener_ours,
    model_served,
    not_fatal,
    progressing,
    unit_active,
    unit_alive,
    version_matches,
    within_budget,
    within_time,
)
from ansible_collections.llmops.vllm.plugins.module_utils.journal import Entry
from ansible_collections.llmops.vllm.plugins.module_utils.listener import Listener, Owner
from ansible_collections.llmops.vllm.plugins.module_utils.systemd import UnitState

LAUNCH = "1" * 32
RUNNING = UnitState(
    name="vllm@kimi.service", systemd=True, load_state="loaded", active_state="active", sub_state="running",
    result="success", invocation_id=LAUNCH, main_pid=10,
)  # fmt: skip


def unit(**changes):
    return unit_alive(dataclasses.replace(RUNNING, **changes), LAUNCH, 10)


def test_a_running_unit_is_alive():
    assert isinstance(unit(), Ready)
    assert isinstance(unit_alive(RUNNING, LAUNCH, 0), Ready)
    assert isinstance(unit(active_state="activating", sub_state="start-post"), Ready)


def test_a_unit_before_its_main_process_is_not_yet():
    assert isinstance(unit(active_state="activating", sub_state="start-pre", main_pid=0), NotYet)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"systemd": False}, "systemd does not answer"),
        ({"load_state": "not-found"}, "does not know"),
        ({"invocation_id": "2" * 32, "n_restarts": 1}, "has left this launch: launch 2222.* .1 automatic restart"),
        ({"invocation_id": ""}, "not loaded any more"),
        ({"active_state": "failed", "result": "exit-code", "exec_main_code": 1, "exec_main_status": 3},
         "is failed .result exit-code, exit status 3"),
        ({"active_state": "failed", "result": "signal", "exec_main_code": 2, "exec_main_status": 9}, "by signal 9"),
        ({"active_state": "inactive"}, "is inactive"),
        ({"active_state": "deactivating"}, "is deactivating"),
        ({"active_state": "activating", "sub_state": "auto-restart", "main_pid": 0}, "waits for its restart"),
        ({"active_state": "activating", "sub_state": "start-post", "main_pid": 0}, "main process .* is gone"),
        ({"main_pid": 0}, "main process .* is gone"),
        ({"main_pid": 11}, "was 10 and is 11 now"),
    ],
)  # fmt: skip
def test_every_way_out_of_the_launch_fails(changes, words):
    verdict = unit(**changes)
    assert isinstance(verdict, Failed)
    assert re.search(words, verdict.reason)


def entry(text, manager=False):
    return Entry(1, 10, text, "stdout", manager)


def test_the_engines_own_surrender_fails():
    fatal = entry("(EngineCore pid=1) ERROR 03-01 10:00:00 [core.py:1] EngineCore failed to start.")
    assert isinstance(not_fatal([entry("hello"), fatal]), Failed)


def test_an_error_that_is_no_surrender_does_not_fail():
    assert isinstance(not_fatal([entry("ERROR something"), entry("EngineCore failed to start.", True)]), Ready)


def test_a_silent_launch_fails_after_the_stall_timeout_only():
    assert isinstance(progressing(599, 600, "x"), Ready)
    silent = progressing(600, 600, "loading weights 3/12")
    assert silent == Failed("no progress for 600 s while loading weights 3/12", stalled=True)
    assert isinstance(progressing(1e9, 0, "x"), Ready)


def test_the_whole_wait_is_limited_only_when_asked():
    assert isinstance(within_time(59, 60, "x"), Ready)
    assert isinstance(within_time(60, 60, "x"), Failed)
    assert isinstance(within_time(1e9, 0, "x"), Ready)


OURS = Owner(10, "vllm serve", "/system.slice/vllm@kimi.service", True)
FOREIGN = Owner(99, "python3 -m http.server", "/user.slice", False, "joe")


def test_a_listener_of_the_unit_is_ready():
    assert isinstance(listener_ours(Listener(8000, (OURS,))), Ready)


@pytest.mark.parametrize("owners", [(FOREIGN,), (OURS, FOREIGN)])
def test_a_foreign_listener_fails_and_is_named(owners):
    verdict = listener_ours(Listener(8000, owners))
    assert isinstance(verdict, Failed)
    assert "port 8000" in verdict.reason and "99 (python3 -m http.server) of user joe in /user.slice" in verdict.reason


def test_no_listener_and_one_nobody_can_see_are_not_yet():
    assert isinstance(listener_ours(Listener(8000)), NotYet)
    assert isinstance(listener_ours(Listener(8000, (OURS,), unseen=1)), NotYet)


def test_a_unit_that_is_activating_is_not_active_yet_and_says_where_it_is():
    assert isinstance(unit_active(RUNNING), Ready)
    loading = dataclasses.replace(RUNNING, active_state="activating", status_text="weights 3/12")
    assert unit_active(loading) == NotYet("vllm@kimi.service is still activating (weights 3/12)")


def version(text, status=200):
    return Answer(status, {"version": text} if text else None, "connection refused")


def test_the_version_of_the_runtime_is_ready_and_another_one_fails():
    assert isinstance(version_matches(version("0.32.0"), "0.32.0+cpu"), Ready)
    assert isinstance(version_matches(version("0.31.0"), ""), Ready)
    assert isinstance(version_matches(version("0.31.0"), "0.32.0"), Failed)
    assert isinstance(version_matches(version("", 0), "0.32.0"), NotYet)
    assert isinstance(version_matches(version("", 404), "0.32.0"), Failed)


def test_the_soak_has_a_budget():
    assert isinstance(within_budget([], 3, 0), Ready)
    assert isinstance(within_budget(["a"], 3, 1), Ready)
    assert within_budget(["a", "b"], 3, 1) == Failed("2 of 3 completions of the soak failed, 1 may: b")


def models(*names):
    return Answer(200, {"data": [{"id": name} for name in names]}, "")


def test_the_expected_model_is_ready_and_another_one_fails():
    assert isinstance(model_served(models("a", "kimi"), "kimi"), Ready)
    assert model_served(models("old"), "kimi") == Failed("/v1/models serves old instead of kimi")
    assert isinstance(model_served(models(), "kimi"), Failed)


@pytest.mark.parametrize("answer", [Answer(0, None, "connection refused"), Answer(503, None, "HTTP status 503")])
def test_no_models_yet_is_not_yet(answer):
    assert isinstance(model_served(answer, "kimi"), NotYet)


@pytest.mark.parametrize("status", [401, 403])
def test_a_refused_key_fails_with_what_to_do(status):
    verdict = model_served(Answer(status, None, "Unauthorized"), "kimi")
    assert isinstance(verdict, Failed) and "api_key_file" in verdict.reason


class FakeTime:
    def __init__(self):
        self.now = 100.0
        self.slept = []

    def clock(self):
        return self.now

    def sleep(self, seconds):
        self.slept.append(seconds)
        self.now += seconds


def steps(*verdicts):
    remaining = list(verdicts)
    return lambda: remaining.pop(0) if len(remaining) > 1 else remaining[0]


def test_the_waiter_ends_with_the_first_final_verdict():
    time = FakeTime()
    assert Waiter(time.clock, time.sleep).wait(steps(NotYet("a"), NotYet("b"), Ready("c")), 0) == Ready("c")
    assert Waiter(time.clock, time.sleep).wait(steps(NotYet("a"), Failed("d")), 0) == Failed("d")
    assert time.slept == [0.5, 0.5, 0.5]


def test_a_slice_ends_in_time_unless_it_must_not():
    time = FakeTime()
    assert Waiter(time.clock, time.sleep).wait(steps(NotYet("a")), 10) == NotYet("a")
    assert time.now - 100 == 10
    verdicts = steps(*[NotYet("canary")] * 30, Ready("done"))
    assert Waiter(time.clock, time.sleep).wait(verdicts, 1, lambda: False) == Ready("done")


def test_check_mode_waits_for_nothing():
    def never():
        raise AssertionError

    assert isinstance(NoWaiter().wait(never, 0), NotYet)


CAUSE = {
    "verdict": "cause", "cause_class": "cuda_oom", "title": "GPU memory ran out", "remedy": "lower it",
    "evidence": [
        {"text": "torch.OutOfMemoryError: x", "process": "Worker pid=2", "time": "2026-03-01T10:00:00Z"},
        {"text": "context", "process": "", "time": ""},
    ],
}  # fmt: skip


def test_the_message_names_cause_evidence_launch_remedy_and_command():
    lines = failure_message("vllm@kimi.service", LAUNCH, "it is failed", CAUSE, "journalctl X").split("\n")
    assert lines == [
        "vllm@kimi.service is not ready: it is failed.",
        "Cause: GPU memory ran out (cuda_oom).",
        f"Evidence of this launch ({LAUNCH}), Worker pid=2, 2026-03-01T10:00:00Z: torch.OutOfMemoryError: x",
        f"    and of this launch ({LAUNCH}): context",
        "Remedy: lower it.",
        "All of it: journalctl X",
    ]


def test_the_message_invents_no_cause():
    diagnosis = {"verdict": "insufficient_evidence", "evidence": [], "remedy": "look at the kernel log"}
    message = failure_message("u.service", LAUNCH, "it is gone", diagnosis, "journalctl X")
    assert "Cause: not in this launch's own lines." in message and "Evidence" not in message
