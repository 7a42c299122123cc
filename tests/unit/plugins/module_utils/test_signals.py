"""Carrying out a plan: on a simulated host with its own clock, and on real processes."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from ansible_collections.llmops.vllm.plugins.module_utils.procfs import Process, ProcFs
from ansible_collections.llmops.vllm.plugins.module_utils.signals import (
    GONE,
    NOT_PERMITTED,
    SENT,
    Executor,
    Host,
    Outcome,
    Sender,
    kill_group,
)
from ansible_collections.llmops.vllm.plugins.module_utils.teardown import Plan, Target

TERM, KILL, CONT, STOP = signal.SIGTERM, signal.SIGKILL, signal.SIGCONT, signal.SIGSTOP


class FakeHost:
    """Processes that end when ``dies_after`` says so (signal to seconds), on a clock that only sleeping moves."""

    def __init__(self) -> None:
        self.now = 0.0
        self.processes: dict[int, Process] = {}
        self.main: set[int] = set()
        self.dies_after: dict[int, dict[int, float]] = {}
        self.death: dict[int, float] = {}
        self.sent: list[tuple[int, int]] = []
        self.denied: set[int] = set()
        self.born_at: dict[int, float] = {}

    def add(
        self,
        pid: int,
        dies_after: dict[int, float],
        *,
        main: bool = False,
        state: str = "S",
        born: float = 0.0,
        title: str = "x",
    ) -> None:
        made = Process(pid, 1, pid, pid, pid, "x", state, 1, False, {}, "/nonexistent")
        made.__dict__.update(uids=(0,) * 4, cmdline=(title,), exe="")
        self.processes[pid] = made
        self.dies_after[pid] = dies_after
        self.born_at[pid] = born
        if main:
            self.main.add(pid)

    def lives(self, pid: int) -> bool:
        return self.born_at[pid] <= self.now < self.death.get(pid, float("inf"))

    def look(self, known: Iterable[Process] = ()) -> Plan:
        living = [pid for pid in self.processes if self.lives(pid)]
        return Plan(tuple(Target(self.processes[pid], ("x",), pid in self.main, 0) for pid in living))

    def is_alive(self, process: Process) -> bool:
        return self.lives(process.pid)

    def send(self, process: Process, number: int) -> str:
        if process.pid in self.denied:
            return NOT_PERMITTED
        if not self.lives(process.pid):
            return GONE
        self.sent.append((process.pid, number))
        if number in self.dies_after[process.pid]:
            end = self.now + self.dies_after[process.pid][number]
            self.death[process.pid] = min(end, self.death.get(process.pid, float("inf")))
        return SENT

    def sleep(self, seconds: float) -> None:
        assert seconds >= 0
        self.now += seconds

    def end(self, grace: float = 30, kill: float = 10) -> Outcome:
        host = Host(
            self.look, self.is_alive, self.send, lambda: self.now, self.sleep, waits_in=lambda process: "nfs_wait"
        )
        return Executor(host, grace, kill).run(self.look())


@pytest.fixture
def host() -> FakeHost:
    return FakeHost()


def signals(outcome: Outcome) -> dict[int, str]:
    return {one.process.pid: one.signal for one in outcome.ended}


def test_who_dies_with_the_group_before_a_signal_of_its_own_was_killed_all_the_same(host: FakeHost) -> None:
    host.add(1, {}, main=True)
    host.add(2, {})

    def kill_groups(plan: Plan) -> set[int]:
        host.death.update(dict.fromkeys((1, 2), host.now))
        return {1, 2}

    seen = Host(host.look, host.is_alive, host.send, lambda: host.now, host.sleep, kill_groups)
    outcome = Executor(seen, 1, 10).run(host.look())
    assert signals(outcome) == {1: "KILL", 2: "KILL"}
    assert not {KILL, STOP} & {number for _pid, number in host.sent}


def test_kernel_kills_no_group_with_a_resource_tracker_before_that_one_had_time(host: FakeHost) -> None:
    host.add(1, {KILL: 0.0}, main=True)
    host.add(2, {KILL: 0.0}, title="python -c from multiprocessing.resource_tracker import main;main(31)")
    alive_at_kill: list[list[int]] = []

    def kill_groups(plan: Plan) -> set[int]:
        alive_at_kill.append([target.process.pid for target in plan.targets])
        return set()

    seen = Host(host.look, host.is_alive, host.send, lambda: host.now, host.sleep, kill_groups)
    Executor(seen, 1, 10).run(host.look())
    assert alive_at_kill == [[2]]


def test_killing_goes_on_as_long_as_fewer_are_left(host: FakeHost) -> None:
    for number in range(1, 6):
        host.add(number, {KILL: 4.0 * number}, main=True)
    outcome = host.end(grace=1, kill=5)
    assert outcome.survivors == ()
    assert outcome.waited_seconds > 20
    for number in range(1, 4):
        host.add(number, {KILL: 100.0}, main=True)
        host.death.pop(number, None)
    assert len(host.end(grace=1, kill=5).survivors) == 3


def test_only_the_main_process_gets_term_when_the_others_follow_it(host: FakeHost) -> None:
    host.add(1, {TERM: 1.0}, main=True)
    host.add(2, {})
    host.death[2] = 1.5
    outcome = host.end()
    assert host.sent == [(1, TERM)]
    assert signals(outcome) == {1: "TERM", 2: ""}
    assert outcome.survivors == ()
    assert 1.5 <= outcome.waited_seconds < 1.8


def test_others_get_term_soon_after_the_main_process_went_without_them(host: FakeHost) -> None:
    host.add(1, {TERM: 1.0}, main=True)
    host.add(2, {TERM: 1.0})
    outcome = host.end(grace=30)
    assert host.sent == [(1, TERM), (2, TERM)]
    assert 3.0 <= outcome.waited_seconds < 3.8


def test_main_process_that_ignores_term_has_its_grace_then_the_rest_then_all_are_killed(host: FakeHost) -> None:
    host.add(1, {KILL: 0.0}, main=True)
    host.add(2, {KILL: 0.0})
    outcome = host.end(grace=30)
    assert host.sent == [(1, TERM), (2, TERM), (1, STOP), (2, STOP), (2, KILL), (1, KILL)]
    assert 60.0 <= outcome.waited_seconds < 61.0
    assert signals(outcome) == {1: "KILL", 2: "KILL"}


def test_lone_process_that_ignores_term_waits_one_grace_only(host: FakeHost) -> None:
    host.add(1, {KILL: 0.0}, main=True)
    assert 30.0 <= host.end(grace=30).waited_seconds < 31.0


def test_stopped_process_is_continued_to_take_its_term(host: FakeHost) -> None:
    host.add(1, {CONT: 0.1}, main=True, state="T")
    host.end()
    assert host.sent == [(1, TERM), (1, CONT)]


def test_resource_tracker_is_killed_only_after_it_had_time_to_clean_up(host: FakeHost) -> None:
    host.add(1, {KILL: 0.0}, main=True)
    host.add(2, {KILL: 0.0}, title="python -c from multiprocessing.resource_tracker import main;main(31)")
    host.end(grace=1)
    assert host.sent[-1] == (2, KILL)
    assert host.sent.index((1, KILL)) < host.sent.index((2, KILL))
    assert (2, STOP) not in host.sent


@pytest.mark.parametrize(("state", "reason"), [("D", "uninterruptible"), ("t", "traced"), ("S", "ignored_kill")])
def test_survivor_of_kill_is_reported_with_its_reason(host: FakeHost, state: str, reason: str) -> None:
    host.add(1, {}, main=True, state=state)
    outcome = host.end(grace=1, kill=5)
    assert [one.reason for one in outcome.survivors] == [reason]
    assert outcome.ended == ()
    assert 6.0 <= outcome.waited_seconds < 7.5
    if state == "D":
        assert "nfs_wait" in outcome.survivors[0].detail


def test_process_that_may_not_be_signalled_is_reported_at_once(host: FakeHost) -> None:
    host.add(1, {}, main=True)
    host.denied.add(1)
    outcome = host.end(grace=0, kill=10)
    assert [one.reason for one in outcome.survivors] == ["not_permitted"]
    assert outcome.waited_seconds < 1


def test_children_born_while_killing_are_killed_too(host: FakeHost) -> None:
    host.add(1, {KILL: 0.0}, main=True)
    for number in range(5):
        host.add(10 + number, {KILL: 0.0}, born=1.0 + 0.01 * number)
    outcome = host.end(grace=1)
    assert outcome.survivors == ()
    assert set(signals(outcome)) == {1, 10, 11, 12, 13, 14}


def test_child_that_only_its_living_parent_betrays_is_found_before_the_parent_is_killed(host: FakeHost) -> None:
    host.add(1, {KILL: 0.0}, main=True)
    real_send = host.send

    def send(process: Process, number: int) -> str:
        if number == KILL and process.pid == 1 and 2 not in host.death:
            raise AssertionError("the child got away")
        if number == STOP and process.pid == 1:
            host.add(2, {KILL: 0.0}, born=host.now)  # forked after the last look, before it was stopped
        return real_send(process, number)

    host.send = send  # type: ignore[method-assign]
    host.end(grace=1)
    assert host.sent == [(1, TERM), (1, STOP), (2, STOP), (2, KILL), (1, KILL)]


def test_one_that_appears_and_survives_is_respawned(host: FakeHost) -> None:
    host.add(1, {KILL: 0.02}, main=True)
    host.add(2, {}, born=1.01)
    assert [one.reason for one in host.end(grace=1, kill=2).survivors] == ["respawned"]


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    yield process
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    process.wait()


def no_pidfd(pid: int) -> int:
    raise OSError(38, "Function not implemented")


SENDERS: list[Callable[[], Sender]] = [
    lambda: Sender(ProcFs()),
    lambda: Sender(ProcFs(), no_pidfd),
    lambda: Sender(ProcFs(), None),
]


@pytest.mark.parametrize("make", SENDERS, ids=["pidfd", "kernel without pidfd", "python without pidfd"])
def test_signal_reaches_the_process_and_never_one_that_took_over_its_pid(
    sleeper: subprocess.Popen[bytes], make: Callable[[], Sender]
) -> None:
    looked_at = ProcFs().process(sleeper.pid)
    assert looked_at is not None
    earlier = replace(looked_at, start_ticks=looked_at.start_ticks - 1)
    assert make()(earlier, TERM) == GONE
    time.sleep(0.05)
    assert sleeper.poll() is None
    assert make()(looked_at, TERM) == SENT
    assert sleeper.wait(5) == -TERM
    assert make()(looked_at, TERM) == GONE


def test_unprivileged_signal_to_root_is_not_permitted(sleeper: subprocess.Popen[bytes]) -> None:
    if os.getuid() != 0:
        pytest.skip("needs a process of another user")
    target = ProcFs().process(sleeper.pid)
    assert target is not None
    child = os.fork()
    if child == 0:
        os.setresuid(65534, 65534, 65534)
        os._exit(0 if Sender(ProcFs())(target, TERM) == NOT_PERMITTED else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_kill_group_writes_to_the_kernels_file_and_tolerates_a_group_that_has_gone(tmp_path: Path) -> None:
    path = tmp_path / "cgroup.kill"
    path.touch()
    assert kill_group(str(path))
    assert path.read_text(encoding="ascii") == "1"
    assert not kill_group(str(tmp_path / "gone" / "cgroup.kill"))
