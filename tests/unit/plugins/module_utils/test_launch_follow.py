from __future__ import annotations

import dataclasses
import threading

import pytest
from ansible_collections.llmops.vllm.plugins.module_utils.canary import Canary, CanaryResult
from ansible_collections.llmops.vllm.plugins.module_utils.engine_api import Answer
from ansible_collections.llmops.vllm.plugins.module_utils.gate import Failed, NotYet, Ready, Waiter
from ansible_collections.llmops.vllm.plugins.module_utils.journal import Entry
from ansible_collections.llmops.vllm.plugins.module_utils.launch_follow import (
    Background,
    Clock,
    GateSettings,
    LaunchGate,
)
from ansible_collections.llmops.vllm.plugins.module_utils.listener import Listener, Owner
from ansible_collections.llmops.vllm.plugins.module_utils.systemd import UnitState

LAUNCH = "1" * 32
EPOCH = 1_772_359_000.0
RUNNING = UnitState(
    name="vllm@kimi.service", systemd=True, load_state="loaded", active_state="active", sub_state="running",
    invocation_id=LAUNCH, main_pid=10, control_group="/system.slice/vllm@kimi.service", exec_main_start_seconds=1.0,
)  # fmt: skip
OURS = Listener(8000, (Owner(10, "vllm serve", "/system.slice/vllm@kimi.service", True),))


class World:
    """A host in fast motion: ``events`` maps seconds to what happens then."""

    def __init__(self, events=()):
        self.now = 1.0
        self.state = RUNNING
        self.port = Listener(8000)
        self.model = Answer(200, {"data": [{"id": "kimi"}]}, "")
        self.answers = []
        self.asked = []
        self.lines = []
        self.last_words = []
        self.events = sorted(events, key=lambda event: event[0])

    def sleep(self, seconds):
        self.now += seconds
        while self.events and self.events[0][0] <= self.now:
            self.events.pop(0)[1](self)

    def say(self, text, manager=False):
        self.lines.append(Entry(int((EPOCH + self.now) * 1e6), 10, text, "stdout", manager))

    def unit(self, fresh=False):
        return self.state

    def version(self):
        return Answer(200, {"version": "0.32.0+cpu"}, "")

    def entries(self):
        lines, self.lines = self.lines, []
        return lines

    def unmarked(self, invocation_id):
        assert invocation_id == RUNNING.invocation_id
        return self.last_words

    def listener(self, control_group, main_pid):
        assert (control_group, main_pid) == (RUNNING.control_group, 10)
        return self.port

    def models(self):
        return self.model

    def canary(self, canary):
        self.asked.append(canary.prompt)
        problem = self.answers.pop(0) if self.answers else ""
        return CanaryResult(canary.kind, canary.prompt, "text", 2, 0.2, problem)


class Now:
    """A background call that is over at once."""

    def __init__(self, work):
        self.work = work

    def poll(self):
        return self.work()


class Later(Now):
    """A background call that is never over."""

    def poll(self):
        return None


def gate(world, start=Now, **changes):
    settings = GateSettings("vllm@kimi.service", LAUNCH, "kimi", (Canary("one"), Canary("two")))
    clock = Clock(lambda: world.now, lambda: EPOCH + world.now, world.sleep)
    return LaunchGate(dataclasses.replace(settings, **changes), world, clock, start)


def run(world, the_gate, slice_seconds=0):
    return Waiter(lambda: world.now, world.sleep).wait(the_gate.step, slice_seconds, the_gate.may_pause)


def listen(world):
    world.say("INFO:     Application startup complete.")
    world.port = OURS


def test_a_launch_proves_itself_step_by_step():
    world = World(
        [
            (3, lambda w: w.say("Loading safetensors checkpoint shards:  25% Completed | 3/12 [00:01<00:03]")),
            (20, listen),
        ]
    )
    world.say("Started.", manager=True)
    follow = gate(world)
    verdict = run(world, follow)
    assert verdict == Ready("the launch has proved itself")
    assert world.asked == ["one", "two"]
    assert [result.problem for result in follow.found.canaries] == ["", ""]
    assert [step["phase"] for step in follow.timeline()] == [
        "starting", "weights", "listening", "canary", "canary", "soak",
    ]  # fmt: skip
    assert (follow.found.main_pid, follow.found.phase) == (10, "ready")
    assert 22 <= world.now - 1.0 <= 25


def test_the_progress_is_told_between_slices():
    world = World()
    world.say("Loading safetensors checkpoint shards:  25% Completed | 3/12 [00:01<00:03]")
    follow = gate(world, waited_seconds=30)
    assert isinstance(run(world, follow, 10), NotYet)
    assert follow.found.progress == "loading weights 3/12"
    assert follow.waited_seconds == 40


def die(world):
    world.say("torch.OutOfMemoryError: CUDA out of memory.")
    world.say("Main process exited, code=exited, status=1/FAILURE", manager=True)
    world.state = dataclasses.replace(RUNNING, active_state="failed", main_pid=0, exec_main_code=1, exec_main_status=1)


def test_the_death_of_the_process_is_seen_within_a_second_and_explained():
    world = World([(7.3, die)])
    follow = gate(world)
    verdict = run(world, follow)
    assert isinstance(verdict, Failed) and "exit status 1" in verdict.reason
    assert world.now - 7.3 <= 1.0
    diagnosis = follow.diagnosis()
    assert diagnosis["cause_class"] == "cuda_oom"
    assert world.now - 7.3 <= 1.0


def test_a_restart_is_a_failure_although_the_new_launch_is_healthy():
    def restart(world):
        world.state = dataclasses.replace(RUNNING, invocation_id="2" * 32, main_pid=20, n_restarts=1)
        world.port = OURS

    world = World([(4, restart)])
    verdict = run(world, gate(world))
    assert isinstance(verdict, Failed) and "left this launch" in verdict.reason
    assert world.asked == []


def test_a_line_that_gives_up_ends_the_wait_before_the_process_does():
    world = World(
        [(4, lambda w: w.say("(EngineCore pid=1) ERROR 03-01 10:00:00 [core.py:1] EngineCore failed to start."))]
    )
    verdict = run(world, gate(world))
    assert verdict == Failed("the engine has given up")
    assert world.now < 8


def test_a_stalled_launch_fails_and_a_slow_one_does_not():
    world = World([(t, lambda w: w.say("still loading")) for t in range(50, 500, 50)] + [(500, listen)])
    assert isinstance(run(world, gate(world, stall_timeout_seconds=60)), Ready)
    silent = World()
    verdict = run(silent, gate(silent, stall_timeout_seconds=60))
    assert isinstance(verdict, Failed) and "no progress for 60 s" in verdict.reason


def test_a_stall_is_seen_across_slices():
    world = World()
    world.say("hello")
    for _ in range(10):
        follow = gate(world, stall_timeout_seconds=60)
        verdict = run(world, follow, 10)
        world.lines = [Entry(int((EPOCH + 1) * 1e6), 10, "hello", "stdout", False)]
        if isinstance(verdict, Failed):
            break
    assert isinstance(verdict, Failed) and 60 <= world.now - 1 <= 62


def test_the_whole_time_counts_earlier_slices():
    world = World()
    verdict = run(world, gate(world, timeout_seconds=100, waited_seconds=90))
    assert isinstance(verdict, Failed) and "not ready after 100 s" in verdict.reason
    assert world.now - 1 == 10


def test_a_foreign_listener_ends_the_wait_and_is_asked_nothing():
    world = World()
    world.port = Listener(8000, (Owner(99, "nc -l 8000", "/user.slice", False),))
    verdict = run(world, gate(world))
    assert isinstance(verdict, Failed) and "nc -l 8000" in verdict.reason
    assert world.asked == []


def test_a_listener_that_cannot_be_seen_is_given_three_looks():
    world = World()
    world.port = Listener(8000, unseen=1)
    verdict = run(world, gate(world))
    assert isinstance(verdict, Failed) and "cannot be seen" in verdict.reason
    assert world.now - 1 == 1.0


def test_a_wrong_model_ends_the_wait():
    world = World()
    world.port = OURS
    world.model = Answer(200, {"data": [{"id": "old"}]}, "")
    assert run(world, gate(world)) == Failed("/v1/models serves old instead of kimi")


def test_a_canary_that_fails_ends_the_wait_and_the_rest_is_not_sent():
    world = World()
    world.port = OURS
    world.answers = ["HTTP 500: EngineCore encountered an issue."]
    follow = gate(world)
    assert run(world, follow) == Failed("canary 1 (chat) failed: HTTP 500: EngineCore encountered an issue.")
    assert world.asked == ["one"]
    follow.diagnosis()  # reads the journal anew, in which the launch has come no further than to listen
    assert follow.found.phase == "canary"


def test_a_death_during_a_canary_is_not_hidden_by_the_hanging_request():
    world = World([(5, die)])
    world.port = OURS
    assert isinstance(run(world, gate(world, Later)), Failed)
    assert world.now <= 6


def test_a_death_in_the_soak_fails():
    world = World([(3.5, die)])
    world.port = OURS
    verdict = run(world, gate(world, soak_seconds=5))
    assert isinstance(verdict, Failed)
    assert world.asked == ["one", "two"]


def test_the_soak_asks_the_canaries_again_evenly_and_keeps_to_its_budget():
    world = World()
    world.port = OURS
    world.answers = ["", "", "", "HTTP 500: busy", "", ""]
    follow = gate(world, soak_seconds=12, soak_completions=4, soak_failures=1)
    assert isinstance(run(world, follow), Ready)
    assert world.asked == ["one", "two", "one", "two", "one", "two"]
    assert follow.soak() == {"asked": 4, "failed": 1, "problems": ["HTTP 500: busy"]}
    assert 12 <= world.now - 1 <= 15
    assert [result.problem for result in follow.found.canaries] == ["", ""]


def test_a_soak_that_is_over_its_budget_ends_at_once():
    world = World()
    world.port = OURS
    world.answers = ["", "", "HTTP 500: busy"]
    verdict = run(world, gate(world, soak_seconds=60, soak_completions=10))
    assert verdict == Failed("1 of 1 completions of the soak failed: HTTP 500: busy")
    assert world.now < 5


def test_a_listener_that_changes_during_the_soak_is_seen_at_its_end():
    stranger = Listener(8000, (Owner(99, "nc -l 8000", "/user.slice", False, "joe"),))
    world = World([(4, lambda w: setattr(w, "port", stranger))])
    world.port = OURS
    verdict = run(world, gate(world, soak_seconds=5))
    assert isinstance(verdict, Failed) and "nc -l 8000" in verdict.reason


def test_a_unit_that_proves_itself_to_systemd_is_waited_for():
    activating = dataclasses.replace(RUNNING, active_state="activating", sub_state="start", status_text="canary")
    world = World([(30, lambda w: setattr(w, "state", RUNNING))])
    world.state = activating
    world.port = OURS
    follow = gate(world)
    assert isinstance(run(world, follow), Ready) and 29 <= world.now - 1 <= 30


def test_the_time_from_death_to_verdict_is_told_of_this_launch_alone():
    world = World([(7.3, die)])
    follow = gate(world)
    run(world, follow)
    world.state = dataclasses.replace(world.state, exec_main_exit_seconds=7.3)
    assert follow.death_to_verdict_seconds() == pytest.approx(world.now - 7.3)
    world.state = dataclasses.replace(world.state, invocation_id="2" * 32)
    assert follow.death_to_verdict_seconds() is None
    world.state = RUNNING
    assert follow.death_to_verdict_seconds() is None


def test_a_unit_that_is_still_starting_is_waited_for_unless_the_gate_is_part_of_the_start():
    starting = dataclasses.replace(RUNNING, active_state="activating", sub_state="start-post")

    def begin(**changes):
        world = World([(20, lambda w: setattr(w, "state", RUNNING))])
        world.port, world.state = OURS, starting
        assert isinstance(run(world, gate(world, soak_seconds=0, **changes)), Ready)
        return world.now

    assert begin() >= 20
    assert begin(starting=True) < 10


def test_a_slice_does_not_end_during_the_proof():
    world = World()
    world.port = OURS
    follow = gate(world, soak_seconds=30)
    assert isinstance(run(world, follow, 1), Ready)


def test_lines_that_arrive_after_the_death_are_waited_for():
    world = World([(2, lambda w: setattr(w, "state", dataclasses.replace(RUNNING, active_state="failed", main_pid=0)))])
    world.events.append((2.3, lambda w: w.say("torch.OutOfMemoryError: CUDA out of memory.")))
    follow = gate(world)
    assert isinstance(run(world, follow), Failed)
    assert follow.diagnosis()["cause_class"] == "cuda_oom"


@pytest.mark.parametrize(("manager_saw_it", "cause"), [(True, "cuda_oom"), (False, "")])
def test_last_words_without_a_launch_count_once_systemd_saw_this_launch_die(manager_saw_it, cause):
    world = World([(2, lambda w: setattr(w, "state", dataclasses.replace(RUNNING, active_state="failed", main_pid=0)))])
    world.last_words = [Entry(1, 10, "torch.OutOfMemoryError: CUDA out of memory.", "stdout", False)]
    world.say("vllm@kimi.service: Main process exited, code=exited, status=1/FAILURE", manager=manager_saw_it)
    follow = gate(world)
    assert isinstance(run(world, follow), Failed)
    assert follow.diagnosis()["cause_class"] == cause


def test_a_pause_ends_with_the_answer_and_is_a_sleep_while_none_is_awaited():
    world = World()
    world.port = OURS
    answered = []

    class Pending:
        def __init__(self, work):
            self.work = work

        def wait(self, seconds):
            answered.append(seconds)

        def poll(self):
            return self.work() if answered else None

    follow = gate(world, start=Pending)
    follow.pause(0.5)
    assert world.now == 1.5 and answered == []
    assert isinstance(follow.step(), NotYet)
    follow.pause(0.5)
    assert world.now == 1.5 and answered == [0.5]


def test_a_background_call_returns_its_result_or_raises_its_error():
    go = threading.Event()
    result = CanaryResult("chat", "p", "t", 1, 0.1, "")

    def work():
        go.wait(5)
        return result

    call = Background(work)
    assert call.poll() is None
    go.set()
    call.wait(5)
    assert call.poll() is result

    def broken():
        raise ValueError("no")

    failing = Background(broken)
    failing.wait(5)
    with pytest.raises(ValueError, match="no"):
        failing.poll()
