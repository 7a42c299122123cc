"""A teardown from request to proof, with systemd, GPUs and the clock made up and the processes real."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import stat
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.llmops.vllm.plugins.module_utils.cgroups import Cgroup
from ansible_collections.llmops.vllm.plugins.module_utils.errors import (
    InvalidInputError,
    LlmopsError,
    PreconditionError,
)
from ansible_collections.llmops.vllm.plugins.module_utils.procfs import Process, ProcFs
from ansible_collections.llmops.vllm.plugins.module_utils.sizes import GIB
from ansible_collections.llmops.vllm.plugins.module_utils.systemd import CompletedRun
from ansible_collections.llmops.vllm.plugins.module_utils.teardown import Plan, Selector, Target
from ansible_collections.llmops.vllm.plugins.module_utils.teardown_host import (
    GpuMemory,
    LivingUnits,
    TeardownHost,
    find_devices,
)
from ansible_collections.llmops.vllm.plugins.module_utils.teardown_run import TeardownRequest, TeardownRun

USER = str(os.getuid())
UNIT = "no-such-unit-7531.service"  # these tests really end what they select


class Commands:
    """systemctl and nvidia-smi as they answer; every list of answers ends in its last."""

    def __init__(self, **answers: list[CompletedRun]) -> None:
        self.answers = {name.replace("_", "-"): list(values) for name, values in answers.items()}
        self.calls: list[list[str]] = []

    def __call__(self, argv: Sequence[str]) -> CompletedRun:
        self.calls.append(list(argv))
        answers = self.answers.get(argv[0])
        if not answers:
            return CompletedRun(127, "", "")
        return answers.pop(0) if len(answers) > 1 else answers[0]


def answer(text: str, code: int = 0) -> CompletedRun:
    return CompletedRun(code, text, "")


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def teardown(commands: Commands | None = None, clock: Clock | None = None, **params: Any) -> TeardownRun:
    ticking = clock or Clock()
    return TeardownRun(TeardownRequest(**params), run=commands or Commands(), clock=ticking, sleep=ticking.sleep)


@pytest.fixture
def nobody(tmp_path: Path) -> str:
    """A PID file that names no process."""
    path = tmp_path / "pid"
    path.write_text("4194303", encoding="ascii")
    return str(path)


def gpus(*mib: int) -> CompletedRun:
    return answer("".join(f"00000000:{number:02X}:00.0, {used}\n" for number, used in enumerate(mib)))


def test_gpu_memory_is_awaited_and_what_was_freed_is_told(nobody: str) -> None:
    commands = Commands(nvidia_smi=[gpus(90000, 8), gpus(90000, 8), gpus(4, 8)])
    result = teardown(commands, pid_file=nobody, gpu_memory_floor_bytes=GIB).apply()
    assert result["freed_bytes"] == (90000 - 4) * 1024 * 1024
    assert result["gpu_memory"] == {
        "gpus": [
            {"bus_id": "00000000:00:00.0", "used_bytes": 4 << 20},
            {"bus_id": "00000000:01:00.0", "used_bytes": 8 << 20},
        ],
        "processes": [],
        "skipped": "",
    }
    assert result["waited_seconds"] == 1.0
    assert not result["changed"]


def test_gpu_memory_that_stays_in_use_fails_with_the_whole_result(nobody: str) -> None:
    with pytest.raises(LlmopsError, match=r"not clean: GPU 00000000:00:00\.0 still has \d+ bytes") as caught:
        teardown(Commands(nvidia_smi=[gpus(90000)]), pid_file=nobody, gpu_memory_floor_bytes=GIB).apply()
    assert caught.value.details["waited_seconds"] == 60.0
    assert caught.value.details["gpu_memory"]["gpus"][0]["used_bytes"] == 90000 << 20


def test_who_holds_memory_at_the_end_is_named_also_when_it_runs_in_another_namespace(nobody: str) -> None:
    def command(argv: Sequence[str]) -> CompletedRun:
        if argv[1].startswith("--query-gpu"):
            return gpus(4, 90000, 80000)
        return answer(
            f"00000000:01:00.0, {os.getpid()}, 538, python --token abc\n"
            "00000000:01:00.0, 4194302, 89000, VLLM::Worker_TP1\n"
            "00000000:00:00.0, 7, 1, below, the floor\n"
            "00000000:01:00.0, [N/A], [N/A], [Not Found]\n"
        )

    clock = Clock()
    request = TeardownRequest(pid_file=nobody, gpu_memory_floor_bytes=GIB)
    with pytest.raises(LlmopsError) as caught:
        TeardownRun(request, run=command, clock=clock, sleep=clock.sleep).apply()
    assert (
        f"of PID {os.getpid()} (python --token ***), PID 4194302 (VLLM::Worker_TP1), which is not visible here; "
        "GPU 00000000:02:00.0 still has 83886080000 bytes in use, more than the floor."
    ) in caught.value.message
    assert [(one["pid"], one["used_bytes"] >> 20) for one in caught.value.details["gpu_memory"]["processes"]] == [
        (os.getpid(), 538),
        (4194302, 89000),
    ]


@pytest.mark.parametrize(
    ("answers", "reason"),
    [
        ([], "nvidia-smi is not installed"),
        ([answer("NVIDIA-SMI has failed because\nmore", 9)], "nvidia-smi ended with status 9: NVIDIA-SMI has failed"),
        ([answer("0000000F:01:00.0, [N/A]\n")], "nvidia-smi reports no GPU memory"),
    ],
)
def test_gpu_check_that_cannot_be_made_is_skipped_and_says_why(
    nobody: str, answers: list[CompletedRun], reason: str
) -> None:
    result = teardown(Commands(nvidia_smi=answers), pid_file=nobody, gpu_memory_floor_bytes=0).apply()
    assert result["gpu_memory"]["skipped"].startswith(reason)
    assert result["freed_bytes"] is None


def test_only_the_memory_of_selected_devices_counts(tmp_path: Path) -> None:
    for number, bus_id in enumerate(("0000:00:00.0", "0000:01:00.0")):
        directory = tmp_path / "driver" / "nvidia" / "gpus" / bus_id
        directory.mkdir(parents=True)
        (directory / "information").write_text(f"Model: X\nDevice Minor: \t {number}\n", encoding="ascii")
    devices = ["/dev/nvidia1", "/dev/nvidiactl"]
    uses, skipped = GpuMemory(Commands(nvidia_smi=[gpus(5, 6)]), devices, ProcFs(str(tmp_path))).read()
    assert [(use.minor, use.used_bytes >> 20) for use in uses] == [(1, 6)]
    assert skipped == ""
    both, _ = GpuMemory(Commands(nvidia_smi=[gpus(5, 6)]), ["/dev/nvidiactl"], ProcFs(str(tmp_path))).read()
    assert len(both) == 2


def unit(state: str = "inactive", group: str = "", main_pid: int = 0) -> CompletedRun:
    return answer(f"LoadState=loaded\nActiveState={state}\nMainPID={main_pid}\nControlGroup={group}\n")


def test_unit_that_left_nothing_changes_nothing() -> None:
    result = teardown(Commands(systemctl=[unit()]), unit=UNIT).apply()
    assert (result["changed"], result["unit_state"], result["targets"]) == (False, "inactive", [])


def test_a_unit_is_stopped_before_anything_is_looked_for() -> None:
    commands = Commands(systemctl=[unit("active"), answer(""), unit()])
    result = teardown(commands, unit=UNIT, stop_unit=True).apply()
    assert (result["changed"], result["stopped"], result["targets"]) == (True, True, [])
    assert result["unit_state"] == "inactive"
    assert [call for call in commands.calls if "stop" in call] == [["systemctl", "stop", "--", UNIT]]
    again = teardown(Commands(systemctl=[unit()]), unit=UNIT, stop_unit=True).apply()
    assert (again["changed"], again["stopped"]) == (False, False)


def test_check_mode_says_that_a_unit_would_be_stopped_and_stops_nothing() -> None:
    commands = Commands(systemctl=[unit("active")])
    request = TeardownRequest(unit=UNIT, stop_unit=True)
    run = TeardownRun(request, run=commands, clock=Clock(), sleep=Clock().sleep, check_mode=True)
    assert (run.report()["changed"], run.report()["stopped"], run.warnings) == (True, True, [])
    assert not [call for call in commands.calls if "stop" in call]


def test_a_stop_needs_to_know_of_which_unit() -> None:
    with pytest.raises(InvalidInputError, match="stop_unit needs to know which unit"):
        teardown(stop_unit=True, orphans=True, owner="root")


def test_unknown_unit_on_a_systemd_host_selects_nothing_but_no_systemd_is_an_error() -> None:
    commands = Commands(systemctl=[answer("LoadState=not-found\nActiveState=inactive\nMainPID=0\nControlGroup=\n")])
    assert not teardown(commands, unit=UNIT).apply()["changed"]
    with pytest.raises(PreconditionError, match="systemd does not answer on this host"):
        teardown(Commands(systemctl=[answer("System has not been booted with systemd", 1)]), unit=UNIT)


def test_root_control_group_of_a_unit_is_never_taken_for_the_whole_host() -> None:
    assert teardown(Commands(systemctl=[unit(group="/")]), unit=UNIT).apply()["targets"] == []


def test_living_units_are_those_of_which_systemd_does_not_say_that_they_are_dead() -> None:
    commands = Commands(systemctl=[answer("ActiveState=failed\n"), answer("ActiveState=active\n"), answer("", 1)])
    living = LivingUnits(commands)
    assert [living("a.service"), living("b.service"), living("c.service")] == [False, True, True]
    assert [living("a.service"), living("docker/1"), living("user@1.service/x.service")] == [False, True, True]
    assert len(commands.calls) == 3


def test_port_that_a_socket_unit_or_ancestor_holds_blocks_before_any_signal() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        with pytest.raises(PreconditionError, match=f"nothing was signalled: TCP port .*PID {os.getpid()} ") as caught:
            teardown(port=server.getsockname()[1], owner=USER)
        assert caught.value.details["protected"][0]["blocking"]
        assert caught.value.details["port_free"] is False


def test_port_that_is_taken_again_is_no_clean_host(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port = server.getsockname()[1]
        run = teardown(port=port, owner=USER)
        server.listen()
        with pytest.raises(LlmopsError, match=f"TCP port {port} still has a listener"):
            run.apply()
        assert teardown_port_unchecked(run, port)["port_free"] is False


def teardown_port_unchecked(run: TeardownRun, port: int) -> dict[str, Any]:
    run.request = TeardownRequest(port=port, owner=USER, expect_port_free=False)
    return run.apply()


def test_devices_are_character_devices_by_number() -> None:
    found = find_devices(["/dev/nul?", "/dev/null", "/dev/fd", "/dev/none*"])
    assert found == {os.stat("/dev/null").st_rdev: "/dev/null"}
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


class StubLayout:
    """A layout in which every group has the given kill file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def kill_file(self, group: Cgroup) -> str:
        return str(self.path)

    def unit_of(self, process: Process) -> None:
        return None


@pytest.mark.parametrize(("spared", "written"), [(0, "1"), (1, "")])
def test_group_is_killed_as_a_whole_only_when_all_in_it_are_targets(tmp_path: Path, spared: int, written: str) -> None:
    path = tmp_path / "cgroup.kill"
    path.touch()
    group = Cgroup(("",), "/x")
    layout: Any = StubLayout(path)
    host = TeardownHost(ProcFs(), layout, Selector(groups=(group,)), lambda unit: True, 99)
    members = [Process(pid, 1, pid, pid, 1, "x", "S", 1, False, {"": "/x"}, "/nonexistent") for pid in (70, 71, 72)]
    host._processes = {one.pid: one for one in members}
    killed = host.kill_groups(Plan(tuple(Target(one, ("x",), True, 0) for one in members[spared:])))
    assert killed == ({70, 71, 72} if written else set())
    assert path.read_text(encoding="ascii") == written


def as_nobody(work: Callable[[], None]) -> None:
    """Run ``work`` in a child of an unprivileged user; it must not raise."""
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setresgid(65534, 65534, 65534)
            os.setresuid(65534, 65534, 65534)
            work()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.skipif(os.getuid() != 0, reason="needs two users")
def test_unprivileged_user_ends_what_is_his_and_is_told_of_a_holder_that_he_may_not_look_at() -> None:
    own = subprocess.Popen(["sleep", "86397"], user=65534)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        def work() -> None:
            server.close()  # the child's copy; root's stays open
            with pytest.raises(PreconditionError, match=f"TCP port {port} is held by a process that this user may not"):
                teardown(port=port, owner="65534")
            result = TeardownRun(TeardownRequest(title="sleep 86397", owner="65534")).apply()
            assert own.pid in [one["pid"] for one in result["ended"]]

        as_nobody(work)
    assert own.wait(5) == -signal.SIGTERM


@pytest.mark.skipif(os.getuid() != 0, reason="needs two users")
def test_process_that_may_not_be_signalled_is_a_survivor_and_the_host_not_clean() -> None:
    other = subprocess.Popen(["sleep", "86396"], user=65533)
    try:

        def work() -> None:
            run = TeardownRun(TeardownRequest(title="sleep 86396", owner="65533", grace_seconds=0, kill_seconds=1))
            with pytest.raises(LlmopsError, match=f"PID {other.pid} .* may not signal it") as caught:
                run.apply()
            assert [one["reason"] for one in caught.value.details["survivors"]] == ["not_permitted"]
            assert caught.value.details["ended"] == []

        as_nobody(work)
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


BOMB = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready", flush=True)
end = time.monotonic() + 30
while time.monotonic() < end:
    time.sleep(0.03)
    if os.fork() == 0:
        parent = os.getppid()
        while time.monotonic() < end and os.getppid() == parent:
            time.sleep(0.02)
"""


@pytest.fixture
def bomb() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", BOMB], stdout=subprocess.PIPE, start_new_session=True)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    yield process
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()


@pytest.mark.parametrize("include", [["descendants"], ["session"], ["descendants", "group"]])
def test_children_that_are_born_while_they_are_ended_do_not_get_away(
    bomb: subprocess.Popen[bytes], tmp_path: Path, include: list[str]
) -> None:
    path = tmp_path / "pid"
    path.write_text(str(bomb.pid), encoding="ascii")
    request = TeardownRequest(pid_file=str(path), include=include, grace_seconds=0.2)
    result = TeardownRun(request).apply()
    assert len(result["ended"]) > 2
    left = [one for one in ProcFs().processes().values() if one.sid == bomb.pid and one.alive]
    assert left == []
