"""Each predicate of the gate, with a control: what it catches gets through when it is switched off."""

from __future__ import annotations

import dataclasses

import pytest
from ansible_collections.llmops.vllm.plugins.module_utils import launch_follow
from ansible_collections.llmops.vllm.plugins.module_utils.canary import Canary, CanaryResult
from ansible_collections.llmops.vllm.plugins.module_utils.engine_api import Answer
from ansible_collections.llmops.vllm.plugins.module_utils.gate import Failed, Ready, Waiter
from ansible_collections.llmops.vllm.plugins.module_utils.journal import Entry
from ansible_collections.llmops.vllm.plugins.module_utils.launch_follow import Clock, GateSettings, LaunchGate
from ansible_collections.llmops.vllm.plugins.module_utils.listener import Listener, Owner
from ansible_collections.llmops.vllm.plugins.module_utils.systemd import UnitState

LAUNCH = "1" * 32
EPOCH = 1_772_359_000.0
RUNNING = UnitState(
    name="vllm@kimi.service", systemd=True, load_state="loaded", active_state="active", sub_state="running",
    invocation_id=LAUNCH, main_pid=10, control_group="/system.slice/vllm@kimi.service", exec_main_start_seconds=1.0,
)  # fmt: skip
OURS = Listener(8000, (Owner(10, "vllm serve", "/system.slice/vllm@kimi.service", True),))
FOREIGN = Listener(8000, (Owner(99, "nc -l 8000", "/user.slice", False, "joe"),))
LIMIT_SECONDS = 3600


class Host:
    """A host on which a launch comes up after 100 s and is fine but for one thing."""

    def __init__(self):
        self.now = 1.0
        self.state = RUNNING
        self.later = None
        self.port = OURS
        self.model = "kimi"
        self.vllm = "0.32.0"
        self.problem = ""
        self.soak_problem = ""
        self.asked = 0
        self.lines = [(0.0, "loading"), (50.0, "loading"), (100.0, "INFO:     Application startup complete.")]

    def sleep(self, seconds):
        self.now += seconds

    def unit(self, fresh=False):
        return dataclasses.replace(self.state, **self.later) if self.later and self.now > 60 else self.state

    def entries(self):
        due = [line for line in self.lines if line[0] <= self.now]
        self.lines = [line for line in self.lines if line[0] > self.now]
        return [Entry(int((EPOCH + at) * 1e6), 10, text, "stdout", text.startswith("vllm@")) for at, text in due]

    def listener(self, control_group, main_pid):
        return self.port if self.now >= 100 else Listener(8000)

    def models(self):
        return Answer(200, {"data": [{"id": self.model}]}, "")

    def version(self):
        return Answer(200, {"version": self.vllm}, "")

    def canary(self, canary):
        self.asked += 1
        problem = self.problem if self.asked == 1 else self.soak_problem
        return CanaryResult(canary.kind, canary.prompt, "", 1, 0.1, problem)


class Now:
    def __init__(self, work):
        self.poll = work


def verdict_of(host, **changes):
    settings = GateSettings(
        "vllm@kimi.service", LAUNCH, "kimi", (Canary("hi"),), stall_timeout_seconds=120, soak_seconds=10,
        soak_completions=3, version="0.32.0",
    )  # fmt: skip
    clock = Clock(lambda: host.now, lambda: EPOCH + host.now, host.sleep)
    gate = LaunchGate(dataclasses.replace(settings, **changes), host, clock, Now)
    return Waiter(lambda: host.now, host.sleep).wait(gate.step, LIMIT_SECONDS)


def restarted(host):
    host.later = {"invocation_id": "2" * 32}


def other_process(host):
    host.later = {"main_pid": 11}


def gives_up(host):
    host.lines.insert(2, (60.0, "(EngineCore pid=11) ERROR 03-01 10:00:00 [core.py:1] EngineCore failed to start."))


def killed_by_the_kernel(host):
    host.lines.insert(2, (60.0, "vllm@kimi.service: A process of this unit has been killed by the OOM killer."))


def says_nothing(host):
    host.lines = [(0.0, "loading"), (300.0, "loading")]
    host.listener = lambda *_: OURS if host.now >= 301 else Listener(8000)


def only_waits(host):
    says_nothing(host)
    waiting = "No available shared memory broadcast block found in 60 seconds."
    host.lines[1:1] = [(at, waiting) for at in range(60, 300, 60)]


def stranger(host):
    host.port = FOREIGN


def another_model(host):
    host.model = "old"


def another_version(host):
    host.vllm = "0.31.0+cpu"


def fails_later(host):
    host.soak_problem = "HTTP 500: it died"


def never_active(host):
    host.state = dataclasses.replace(RUNNING, active_state="activating", status_text="heartbeat failed")
    host.lines.append((5000.0, "too late"))


CAUGHT = [
    ("unit_alive", restarted, {}, "has left this launch"),
    ("unit_alive", other_process, {}, "was 10 and is 11 now"),
    ("not_fatal", gives_up, {}, "the engine has given up"),
    ("not_fatal", killed_by_the_kernel, {}, "killed by the OOM killer"),
    ("progressing", says_nothing, {}, "no progress for 120 s"),
    ("progressing", only_waits, {}, "no progress for 120 s"),
    ("within_time", lambda host: None, {"timeout_seconds": 30}, "not ready after 30 s"),
    ("listener_ours", stranger, {}, "99 (nc -l 8000) of user joe in /user.slice"),
    ("model_served", another_model, {}, "serves old instead of kimi"),
    ("version_matches", another_version, {}, "vLLM 0.31.0+cpu answers, but the runtime of this release is 0.32.0"),
    ("within_budget", fails_later, {"soak_failures": 2}, "3 of 3 completions of the soak failed, 2 may: HTTP 500"),
    ("unit_active", never_active, {}, "vllm@kimi.service is still activating (heartbeat failed)"),
]


def test_the_launch_is_ready_without_any_of_these_faults():
    assert verdict_of(Host()) == Ready("the launch has proved itself")


@pytest.mark.parametrize(("name", "break_it", "changes", "words"), CAUGHT)
def test_a_fault_is_caught_by_its_predicate_and_by_no_other(monkeypatch, name, break_it, changes, words):
    host = Host()
    break_it(host)
    verdict = verdict_of(host, **changes)
    assert isinstance(verdict, Failed) and words in verdict.reason
    assert host.now < 240, "a verdict that comes late is of little use"
    monkeypatch.setattr(launch_follow, name, lambda *_arguments: Ready())
    unwatched = Host()
    break_it(unwatched)
    assert isinstance(verdict_of(unwatched, **changes), Ready)


def test_every_predicate_has_a_control():
    predicates = {
        name
        for name in vars(launch_follow)
        if getattr(vars(launch_follow)[name], "__annotations__", {}).get("return") == "Verdict"
    }
    assert {name for name, *_rest in CAUGHT} == predicates


def test_a_canary_that_fails_is_a_verdict_and_one_that_passes_is_none():
    host = Host()
    host.problem = "the answer does not contain 'Paris'"
    verdict = verdict_of(host)
    assert isinstance(verdict, Failed) and "canary 1 (chat) failed" in verdict.reason and host.asked == 1
