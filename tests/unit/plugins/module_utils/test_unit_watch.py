"""The watch over real processes, a real HTTP server and a real socket of systemd's; only systemd itself is played."""

from __future__ import annotations

import json
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from ansible_collections.llmops.vllm.plugins.module_utils import unit_watch
from ansible_collections.llmops.vllm.plugins.module_utils.canary import CanaryResult
from ansible_collections.llmops.vllm.plugins.module_utils.engine_api import Answer, EngineApi
from ansible_collections.llmops.vllm.plugins.module_utils.journal import Entry
from ansible_collections.llmops.vllm.plugins.module_utils.listener import Listener, Owner
from ansible_collections.llmops.vllm.plugins.module_utils.procfs import ProcFs
from ansible_collections.llmops.vllm.plugins.module_utils.sd_notify import notify
from ansible_collections.llmops.vllm.plugins.module_utils.systemd import CompletedRun, UnitState
from ansible_collections.llmops.vllm.plugins.module_utils.unit_watch import (
    Heartbeat,
    Host,
    MainProcess,
    Start,
    StopRequestedError,
    ended,
    heartbeat,
)
from ansible_collections.llmops.vllm.plugins.module_utils.watch_settings import (
    Note,
    read_note,
    read_settings,
    write_note,
)

UNIT = "vllm@kimi.service"
LAUNCH = "1" * 32
FP8 = "RuntimeError: expected scalar type BFloat16 but found Float8_e4m3fn"
GONE = "FileNotFoundError: Weight files referenced in index but missing: {'/m/model-00003-of-00004.safetensors'}"


@pytest.fixture
def told(tmp_path, monkeypatch):
    """Return what systemd was told since the last call."""
    receiver = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    receiver.bind(str(tmp_path / "notify"))
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
    arrived = queue.SimpleQueue()

    def receive():
        while True:
            text = receiver.recv(4096).decode()
            arrived.put(text)
            if text == "the end":
                return

    thread = threading.Thread(target=receive)
    thread.start()

    def read():
        notify("that was all")
        return list(iter(lambda: arrived.get(timeout=5), "that was all"))

    yield read
    notify("the end")
    thread.join()
    receiver.close()


@pytest.fixture
def settings(tmp_path):
    values = {
        "unit": UNIT, "port": 8000, "served_model": "kimi", "canary": {"kind": "completion", "prompt": "x"},
        "stall_timeout_seconds": 60, "heartbeat_seconds": 10, "hang_seconds": 40,
    }  # fmt: skip

    def make(**changes):
        (tmp_path / "watch.json").write_text(json.dumps({**values, **changes}))
        return read_settings(str(tmp_path / "watch.json"))

    return make


@pytest.fixture
def engine():
    """A process that plays the engine's: it ignores SIGTERM, as the real one does while it loads, and nothing else."""
    code = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # tests that run under nohup have it ignored
print(flush=True)
time.sleep(60)
"""
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


class Systemd:
    """Answers as systemctl and journalctl do, and keeps what it was asked to do."""

    def __init__(self):
        self.state = {"LoadState": "loaded", "ActiveState": "active", "SubState": "running", "InvocationID": LAUNCH}
        self.state["MainPID"] = "10"
        self.lines = []
        self.orders = []

    def __call__(self, argv, timeout_seconds=0.0):
        if argv[0] == "journalctl":
            texts = [{"MESSAGE": line, "_SYSTEMD_INVOCATION_ID": LAUNCH, "_PID": "10"} for line in self.lines]
            return CompletedRun(0, "".join(json.dumps(text) + "\n" for text in texts), "")
        if argv[1] == "show":
            return CompletedRun(0, "".join(f"{key}={value}\n" for key, value in self.state.items()), "")
        self.orders.append(" ".join(argv[1:]))
        if argv[1] == "kill":
            self.state.update(ActiveState="failed", SubState="failed", MainPID="0")
        return CompletedRun(0, "", "")


class Observed:
    """A launch as the gate observes it."""

    def __init__(self, clock):
        self.clock = clock
        self.state = UnitState(
            name=UNIT, systemd=True, load_state="loaded", active_state="activating", sub_state="start-post",
            invocation_id=LAUNCH, main_pid=10, control_group="/x", exec_main_start_seconds=1.0,
        )  # fmt: skip
        self.lines = []
        self.listens = False
        self.problem = ""

    def unit(self):
        return self.state

    def entries(self):
        lines, self.lines = self.lines, []
        return [Entry(int((1e9 + self.clock.now) * 1e6), 10, line, "stdout", False) for line in lines]

    def unmarked(self, invocation_id):
        del invocation_id
        return []

    def listener(self, control_group, main_pid):
        del control_group
        return Listener(8000, (Owner(main_pid, "vllm", "/x", True),) if self.listens else ())

    def models(self):
        return Answer(200, {"data": [{"id": "kimi"}]}, "")

    def canary(self, canary):
        return CanaryResult(canary.kind, canary.prompt, "Paris", 1, 0.1, self.problem)


class Clock:
    def __init__(self):
        self.now = 1.0

    def sleep(self, seconds):
        self.now += seconds


@pytest.fixture
def world(tmp_path, engine, settings, monkeypatch):
    """A start over a played host and a real process; ``plan`` maps numbers of looks to what happens then."""

    def make(plan, **changes):
        clock = Clock()
        observed = Observed(clock)
        systemd = Systemd()
        host = Host(
            {"INVOCATION_ID": LAUNCH}, systemd, lambda: clock.now, lambda: 1e9 + clock.now, clock.sleep,
            str(tmp_path / "notes"),
        )  # fmt: skip
        main = MainProcess(engine.pid, ProcFs())
        looks = []

        def wait(seconds):
            looks.append(seconds)
            clock.now += seconds
            time.sleep(0.001)
            plan.get(len(looks), lambda seen: None)(observed)

        monkeypatch.setattr(main, "wait", wait)
        return Start(settings(**changes), host, main, observed), observed, host

    return make


def test_a_start_succeeds_when_the_launch_has_answered_and_shows_where_it_is(world, told, capfd):
    def loads(seen):
        seen.lines = ["Loading safetensors checkpoint shards:  31% Completed | 37/119 [04:10<00:00]"]

    start, _seen, host = world({2: loads, 600: lambda seen: setattr(seen, "listens", True)}, stall_timeout_seconds=900)
    assert start.run() == 0
    said = told()
    assert "STATUS=loading weights 37/119, 4m10s" in said
    assert said[-1].startswith("STATUS=serves, proved after 5m")
    assert "This launch has proved itself after 5m" in capfd.readouterr().err
    assert read_note(UNIT, LAUNCH, host.notes) is None


def test_the_status_is_told_once_a_second_and_not_at_every_look(world, told):
    start, _seen, _host = world({20: lambda seen: setattr(seen, "listens", True)})
    assert start.run() == 0
    assert 8 <= len(told()) <= 16


def test_a_launch_that_dies_fails_with_its_cause(world, told, engine, capfd):
    def dies(seen):
        engine.kill()
        engine.wait()
        seen.lines = [f"(Worker pid=7) ERROR 11-29 15:49:29 [multiproc_executor.py:953] {GONE}"]
        seen.state = UnitState(
            name=UNIT, systemd=True, load_state="loaded", active_state="activating", sub_state="start-post",
            invocation_id=LAUNCH, main_pid=0, exec_main_code=1, exec_main_status=1,
        )  # fmt: skip

    start, _seen, host = world({3: dies})
    assert start.run() == 1
    assert told()[-1] == "STATUS=failed: a shard is missing (weights_corrupt_or_missing)"
    note = read_note(UNIT, LAUNCH, host.notes)
    assert note is not None and "a restart does not cure it" in note.not_again and note.lines == []
    journal = capfd.readouterr().err
    assert f"<3>Evidence of this launch ({LAUNCH})" in journal and GONE in journal
    assert "killed this launch" not in journal


def test_a_start_that_stands_still_is_ended_and_says_so(world, told, engine, capfd):
    start, _seen, host = world({1: lambda seen: seen.lines.append("non-default args: {}")}, hang_policy="stop")
    assert start.run() == 1
    assert engine.wait(5) == -signal.SIGKILL
    assert "no progress for 60 s" in told()[-1]
    note = read_note(UNIT, LAUNCH, host.notes)
    assert note is not None and "vllm_service_hang_policy" in note.not_again
    assert "<3>killed this launch: no progress for 60 s" in capfd.readouterr().err


def test_an_engine_that_has_given_up_does_not_hang_though_its_process_is_still_there(world, told, engine):
    def gives_up(seen):
        seen.lines.append("RuntimeError: Engine core initialization failed. Failed core proc(s): {}")

    start, _seen, host = world({1: gives_up}, hang_policy="stop")
    assert start.run() == 1
    assert engine.wait(5) == -signal.SIGKILL
    note = read_note(UNIT, LAUNCH, host.notes)
    assert note is not None and note.not_again == ""


def test_a_start_that_moves_on_is_never_ended_however_long_it_takes(world):
    plan = {number: lambda seen: seen.lines.append("Loading a shard") for number in range(1, 600, 100)}
    plan[600] = lambda seen: setattr(seen, "listens", True)
    start, _seen, _host = world(plan)
    assert start.run() == 0


def test_an_answer_that_is_wrong_fails_the_start(world, told, engine):
    def listens(seen):
        seen.listens, seen.problem = True, "the log probability of token 1 is nan"

    start, _seen, _host = world({1: listens})
    assert start.run() == 1
    assert engine.wait(5) == -signal.SIGKILL
    assert "canary 1 (completion) failed: the log probability" in told()[-1]


def test_a_stop_while_it_loads_ends_the_engine_that_ignores_sigterm(world, told, engine):
    def stop(seen):
        raise StopRequestedError

    start, _seen, host = world({2: stop})
    assert start.run() == 0
    assert engine.wait(5) == -signal.SIGHUP
    assert told()[-1] == "STATUS=stopped while it was starting"
    assert read_note(UNIT, LAUNCH, host.notes) is None


def test_waiting_for_a_process_ends_with_it_and_does_not_turn_in_circles(engine):
    main = MainProcess(engine.pid, ProcFs())
    assert main.alive
    threading.Timer(0.05, engine.kill).start()
    begun = time.monotonic()
    main.wait(5)
    assert time.monotonic() - begun < 1
    assert not main.alive
    begun = time.monotonic()
    main.wait(0.05)
    assert time.monotonic() - begun >= 0.05
    main.send(signal.SIGKILL)


def test_a_process_is_held_without_pidfd_as_well(engine, monkeypatch):
    monkeypatch.delattr("os.pidfd_open", raising=False)
    main = MainProcess(engine.pid, ProcFs())
    assert main.alive
    main.wait(0.01)
    main.send(signal.SIGKILL)
    engine.wait(5)
    assert not main.alive
    assert not MainProcess(0, ProcFs()).alive


@pytest.fixture
def after(tmp_path, settings):
    """Run ``ended`` over what systemd says, and return systemd."""

    def run(environ, lines=(), note=None, **changes):
        systemd = Systemd()
        systemd.lines = list(lines)
        host = Host({"INVOCATION_ID": LAUNCH, **environ}, systemd, sleep=lambda seconds: None, notes=str(tmp_path))
        if note is not None:
            write_note(UNIT, note, host.notes)
        assert ended(settings(**changes), host) == 0
        return systemd

    return run


def test_an_end_that_was_asked_for_is_no_failure(after, told, capfd):
    assert after({"SERVICE_RESULT": "success", "EXIT_CODE": "exited", "EXIT_STATUS": "0"}).orders == []
    assert told() == ["STATUS=stopped"]
    assert capfd.readouterr().err == ""


def test_an_engine_that_died_with_exit_status_0_is_explained_and_may_start_again(after, told, capfd):
    environ = {"SERVICE_RESULT": "exit-code", "EXIT_CODE": "exited", "EXIT_STATUS": "0"}
    assert after(environ).orders == []
    assert "exit status 0 although nobody had asked it to" in told()[-1]
    assert "has ended: the main process ended, exit status 0" in capfd.readouterr().err


def test_what_a_restart_does_not_cure_is_not_started_again(after, told, capfd):
    environ = {"SERVICE_RESULT": "exit-code", "EXIT_CODE": "exited", "EXIT_STATUS": "0"}
    lines = [
        "INFO 11-29 15:49:29 [x.py:1] kv_cache_dtype=fp8_e4m3",
        f"(Worker pid=7) ERROR 11-29 15:49:29 [m.py:953] {FP8}",
    ]
    systemd = after(environ, lines)
    assert systemd.orders == [f"--no-block stop -- {UNIT}"]
    assert "(attention_backend_unsupported)" in told()[-1]
    assert "It is not started again: a restart does not cure it" in capfd.readouterr().err


def test_what_another_part_of_the_watch_found_is_said_in_the_units_own_journal(after, told, capfd):
    note = Note(LAUNCH, "failed: hung", "the policy", ["killed this launch: no token for 40 s"])
    systemd = after({"SERVICE_RESULT": "signal", "EXIT_CODE": "killed", "EXIT_STATUS": "KILL"}, note=note)
    assert systemd.orders == [f"--no-block stop -- {UNIT}"]
    assert told() == ["STATUS=failed: hung"]
    assert "<3>killed this launch: no token for 40 s\n" in capfd.readouterr().err


def test_a_note_about_another_launch_is_not_believed(after, told):
    after(
        {"SERVICE_RESULT": "signal", "EXIT_CODE": "killed", "EXIT_STATUS": "KILL"}, note=Note("2" * 32, "failed: old")
    )
    assert "old" not in told()[-1]


class Engine(BaseHTTPRequestHandler):
    def do_GET(self):
        self.answer(f'vllm:generation_tokens_total{{e="0"}} {self.server.tokens}\nvllm:num_requests_running 1.0\n')

    def do_POST(self):
        assert json.loads(self.rfile.read(int(self.headers["Content-Length"])))["max_tokens"] == 1
        self.server.asked += 1
        self.server.release.wait(5)
        self.answer("{}")

    def answer(self, text):
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *arguments):
        pass


@pytest.fixture
def server():
    made = ThreadingHTTPServer(("127.0.0.1", 0), Engine)
    made.tokens, made.asked, made.release = 1, 0, threading.Event()
    thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield made
    made.release.set()
    made.shutdown()
    thread.join()
    made.server_close()


def watching(server, settings, tmp_path, **changes):
    clock, systemd = Clock(), Systemd()
    host = Host({}, systemd, lambda: clock.now, sleep=clock.sleep, notes=str(tmp_path / "notes"))
    watch = Heartbeat(settings(**changes), host, EngineApi("127.0.0.1", server.server_address[1]), LAUNCH)
    return watch, clock, systemd, host


def test_an_engine_that_makes_no_token_and_gives_no_answer_is_ended(server, settings, tmp_path, told, capfd):
    watch, clock, systemd, host = watching(server, settings, tmp_path)
    reasons = []
    while not any(reasons):
        clock.now += 10
        reasons.append(watch.beat())
    assert len(reasons) == 5 and "no token for 40 s" in reasons[-1]
    assert all("WATCHDOG=1" in text for text in told())
    watch.end(reasons[-1])
    assert systemd.orders == [f"kill --kill-who=main --signal=KILL -- {UNIT}"]
    note = read_note(UNIT, LAUNCH, host.notes)
    assert note is not None and note.not_again == "" and note.lines[0].startswith("killed this launch: no token")
    assert "hangs, and is restarted" in capfd.readouterr().err


def test_a_busy_engine_is_left_alone(server, settings, tmp_path):
    watch, clock, _systemd, _host = watching(server, settings, tmp_path)
    for _beat in range(30):
        clock.now += 10
        server.tokens += 1
        assert watch.beat() == ""
    assert server.asked == 0


def test_another_launch_is_not_ended_for_this_one(server, settings, tmp_path):
    watch, _clock, systemd, host = watching(server, settings, tmp_path)
    systemd.state["InvocationID"] = "2" * 32
    watch.end("no token")
    assert systemd.orders == [] and read_note(UNIT, LAUNCH, host.notes) is None


def test_a_process_that_does_not_go_takes_its_whole_group_with_it(server, settings, tmp_path):
    watch, _clock, systemd, _host = watching(server, settings, tmp_path, hang_policy="stop")
    orders = []

    def runner(argv, timeout_seconds=0.0):
        if argv[1] == "kill":
            orders.append(" ".join(argv[2:]))
            return CompletedRun(0, "", "")
        return systemd(argv)

    object.__setattr__(watch._host, "runner", runner)
    watch.end("no token")
    assert orders == [f"--kill-who=main --signal=KILL -- {UNIT}", f"--signal=KILL -- {UNIT}"]


def test_there_is_nothing_to_watch_beside_a_unit_that_does_not_serve(settings, capfd):
    systemd = Systemd()
    systemd.state["ActiveState"] = "activating"
    assert heartbeat(settings(), Host({}, systemd)) == 0
    assert "does not serve" in capfd.readouterr().err


def test_the_program_says_how_it_is_called(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["llmops-vllm-watch", "dance"])
    assert unit_watch.main() == 2
    assert "start|ended|heartbeat SETTINGS" in capsys.readouterr().err


def test_settings_that_cannot_be_read_are_the_units_status(monkeypatch, told, tmp_path, capfd):
    monkeypatch.setattr(sys, "argv", ["llmops-vllm-watch", "start", str(tmp_path / "none.json")])
    assert unit_watch.main() == 1
    assert "cannot be read" in told()[-1] and "<3>" in capfd.readouterr().err
