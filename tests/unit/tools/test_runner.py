"""The test runner: it is green only for what ran and showed it."""

from __future__ import annotations

import importlib
import sys
import time
from pathlib import Path

import pytest

TOOLS = Path(__file__).parents[2] / "tools"


@pytest.fixture(scope="module")
def runner():
    sys.path.insert(0, str(TOOLS))
    try:
        yield importlib.import_module("runner")
    finally:
        sys.path.remove(str(TOOLS))


@pytest.fixture
def said():
    return []


@pytest.fixture
def run(runner, tmp_path, said):
    def call(*steps, demand_all=False, jobs=1):
        return runner.Runner(tmp_path, tmp_path / "logs", demand_all, said.append, jobs).run(steps)

    return call


def shell(runner, script, name="step", **settings):
    return runner.Step(name, name, (("sh", "-c", script),), **settings)


def states(outcomes):
    return [outcome.state for outcome in outcomes]


def test_a_failed_step_shows_its_tail_and_the_next_one_runs(runner, run, said):
    lines = "for i in $(seq 100); do echo line-$i; done; exit 3"
    outcomes = run(shell(runner, lines), shell(runner, "true", "next"))
    assert states(outcomes) == ["failed", "passed"]
    assert "ended with status 3" in outcomes[0].detail
    assert "line-41\n" in "".join(said)
    assert "line-40\n" not in "".join(said)


def test_the_whole_output_is_kept(runner, run, tmp_path):
    run(shell(runner, "echo out; echo err >&2", "a"))
    assert (tmp_path / "logs/01-a.log").read_text().splitlines()[1:] == ["out", "err"]


def test_all_commands_run_and_one_failure_is_enough(runner, run, tmp_path):
    step = runner.Step("a", "a", (("false",), ("echo", "second")))
    assert states(run(step)) == ["failed"]
    assert "second" in (tmp_path / "logs/01-a.log").read_text()


def test_the_summary_ends_with_the_last_words_of_what_failed(runner, run):
    lines = runner.summary(run(shell(runner, "seq 100; false", "counts"), shell(runner, "echo well", "fine")))
    assert lines[-3:] == ["    | 100", "", "1 passed, 1 failed, 0 skipped"]
    assert "    | 1" not in lines and not any("well" in line for line in lines)


def test_a_command_line_of_many_words_does_not_bury_what_failed(runner, run, said, tmp_path):
    words = ["x" * 99] * 100
    outcomes = run(runner.Step("a", "a", (("sh", "-c", "echo wrong; exit 1", *words),)))
    assert all(len(text) < 2000 and "wrong" in text for text in ("".join(said), "\n".join(runner.summary(outcomes))))
    assert len((tmp_path / "logs/01-a.log").read_text()) > 9900


def test_status_0_without_the_proof_fails(runner, run):
    outcome = run(shell(runner, "echo no tests ran", proof=(r"[1-9]\d* passed",)))[0]
    assert outcome.state == "failed"
    assert "does not show" in outcome.detail


def test_status_0_with_the_disproof_fails(runner, run):
    outcome = run(shell(runner, "echo skipping: no hosts matched", disproof=("no hosts matched",)))[0]
    assert outcome.state == "failed"


def test_the_tally_sums_or_counts(runner, run, said):
    run(shell(runner, "echo 3 passed; echo 4 passed", tally=((r"(\d+) passed", "tests"), ("passed", "runs"))))
    assert "7 tests, 2 runs)" in said[-1]


def test_a_step_with_an_obstacle_is_skipped_and_says_why(runner, run, said):
    outcomes = run(shell(runner, "exit 1", obstacle=lambda: "there is no host."))
    assert states(outcomes) == ["skipped"]
    assert "not run: there is no host." in "".join(said)
    assert runner.summary(outcomes)[-1] == "0 passed, 0 failed, 1 skipped"


def test_where_everything_is_demanded_a_step_not_run_has_failed(runner, run):
    assert states(run(shell(runner, "true", obstacle=lambda: "no."), demand_all=True)) == ["failed"]


def test_a_step_is_not_run_when_the_one_before_it_failed(runner, run):
    outcomes = run(shell(runner, "false", "hosts"), shell(runner, "true", "scenario", after="hosts"))
    assert states(outcomes) == ["failed", "skipped"]


def test_a_command_that_does_not_end_is_ended_with_its_children(runner, run, tmp_path):
    outcome = run(shell(runner, f"(trap '' TERM; exec sleep 60) & echo $! > {tmp_path}/pid; wait", timeout_seconds=1))[
        0
    ]
    assert "did not end within 1 s" in outcome.detail
    status = Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}/stat")
    for _ in range(500):
        if not status.exists() or status.read_text().split()[2] == "Z":
            return
        time.sleep(0.01)
    pytest.fail("the child lives on")


def test_a_command_that_is_not_there_fails(runner, run):
    assert "cannot be started" in run(runner.Step("a", "a", (("no-such-command",),)))[0].detail


def test_settings_of_the_callers_shell_do_not_reach_a_step(runner, run, monkeypatch, tmp_path):
    monkeypatch.setenv("ANSIBLE_COLLECTIONS_PATH", "/elsewhere")
    monkeypatch.setenv("GIT_DIR", "/elsewhere")
    run(shell(runner, "env"))
    assert "/elsewhere" not in (tmp_path / "logs/01-step.log").read_text()


def test_programs_of_the_environment_come_first(runner, run, tmp_path):
    program = tmp_path / ".venv/bin/sh"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\necho from the environment\n")
    program.chmod(0o755)
    run(shell(runner, "echo from PATH"))
    assert "from the environment" in (tmp_path / "logs/01-step.log").read_text()


def rendezvous(path, mine, other):
    """A script that ends with 0 only when `other` runs at the same time."""
    return f"cd {path}; touch {mine}; for i in $(seq 200); do [ -e {other} ] && exit 0; sleep 0.01; done; exit 1"


def test_neighbours_that_may_run_beside_each_other_do_and_each_is_said_in_one_piece(runner, run, said, tmp_path):
    one = shell(runner, rendezvous(tmp_path, "one", "two"), "one", beside=True)
    two = shell(runner, rendezvous(tmp_path, "two", "one"), "two", beside=True)
    outcomes = run(shell(runner, "true", "first"), one, two, jobs=2)
    assert states(outcomes) == ["passed"] * 3
    assert [outcome.step.name for outcome in outcomes] == ["first", "one", "two"]
    assert sorted(line[:17] for line in said[2:]) == ["[ 2/3] one ... ok", "[ 3/3] two ... ok"]


@pytest.mark.parametrize(("beside", "jobs"), [(False, 2), (True, 1)])
def test_others_run_alone(runner, run, tmp_path, beside, jobs):
    script = f"cd {tmp_path}; mkdir lock || exit 1; sleep 0.05; rmdir lock"
    outcomes = run(*(shell(runner, script, name, beside=beside) for name in "abc"), jobs=jobs)
    assert states(outcomes) == ["passed"] * 3


def test_a_step_beside_others_does_not_run_when_what_it_comes_after_failed(runner, run):
    steps = [shell(runner, "true", name, beside=True, after="hosts") for name in "ab"]
    assert states(run(shell(runner, "false", "hosts"), *steps, jobs=2)) == ["failed", "skipped", "skipped"]


def test_an_interruption_ends_what_runs_beside(runner, run, tmp_path, monkeypatch):
    script = f"cd {tmp_path}; trap 'touch ended; exit' TERM; touch started; while :; do sleep 0.02; done"

    def interrupted(self, timeout=None):
        while not (tmp_path / "started").exists():
            time.sleep(0.01)
        raise KeyboardInterrupt

    monkeypatch.setattr("concurrent.futures.Future.result", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(*(shell(runner, script, name, beside=True) for name in "ab"), jobs=2)
    assert (tmp_path / "ended").exists()
