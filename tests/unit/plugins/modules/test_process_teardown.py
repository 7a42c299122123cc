"""process_teardown on real processes of this machine."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.llmops.vllm.plugins.module_utils.signals import Executor
from ansible_collections.llmops.vllm.plugins.modules import process_teardown

USER = str(os.getuid())
READY = "print('ready', flush=True)"
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start Python code in a session of its own, and wait until it prints a line."""
    started: list[subprocess.Popen[str]] = []

    def begin(code: str, *arguments: str, executable: str = sys.executable) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [executable, "-c", code, *arguments], stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline()
        return process

    yield begin
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()


def has_ended(pid: int) -> bool:
    """Whether a process is gone or a zombie that its parent (this test) has not collected."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


SLEEP = f"import time; {READY}; time.sleep(600)"
IGNORE_TERM = f"import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); {READY}; time.sleep(600)"
TREE = (
    "import subprocess, sys, time; child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']);"
    "print(child.pid, flush=True); time.sleep(600)"
)
LISTEN = (
    "import socket, time; server = socket.socket(); server.bind(('127.0.0.1', 0)); server.listen();"
    "print(server.getsockname()[1], flush=True); time.sleep(600)"
)


def pid_file(tmp_path: Path, pid: int) -> str:
    path = tmp_path / "service.pid"
    path.write_text(f"{pid}\n", encoding="ascii")
    return str(path)


def test_pid_file_process_is_ended_by_term_and_the_second_run_changes_nothing(
    run_module: Any, start: Start, tmp_path: Path
) -> None:
    process = start(SLEEP)
    path = pid_file(tmp_path, process.pid)
    first = run_module(process_teardown, pid_file=path)
    assert first["changed"]
    assert [(one["pid"], one["signal"]) for one in first["ended"]] == [(process.pid, "TERM")]
    assert first["ended"][0]["command"].startswith(f"{sys.executable} -c ")
    assert first["ended"][0]["user"] == first["targets"][0]["user"] != "?"
    assert process.wait(5) == -signal.SIGTERM
    second = run_module(process_teardown, pid_file=path)
    assert not second["changed"]
    assert second["targets"] == second["ended"] == second["survivors"] == []


def test_check_mode_lists_the_tree_and_ends_nothing(run_module: Any, start: Start, tmp_path: Path) -> None:
    process = start(TREE)
    path = pid_file(tmp_path, process.pid)
    result = run_module(process_teardown, check=True, diff=True, pid_file=path, include=["descendants"])
    assert result["changed"]
    parent, child = result["targets"]
    assert (parent["pid"], parent["main"], child["ppid"], child["main"]) == (process.pid, True, process.pid, False)
    lines = result["diff"]["before"].splitlines()
    assert lines[0].startswith(f"{process.pid} ")
    assert lines[1].startswith(f"  {child['pid']} ")
    assert result["diff"]["after"] == ""
    assert process.poll() is None
    assert not has_ended(child["pid"])


def test_descendants_are_ended_though_the_death_of_their_parent_cuts_the_tie(
    run_module: Any, start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ansible_collections.llmops.vllm.plugins.module_utils.signals.SETTLE_SECONDS", 0.1)
    process = start(TREE)
    result = run_module(process_teardown, pid_file=pid_file(tmp_path, process.pid), include=["descendants"])
    assert len(result["ended"]) == 2
    assert result["survivors"] == []
    assert all(has_ended(one["pid"]) for one in result["ended"])


def test_process_that_ignores_term_is_killed_after_the_grace(run_module: Any, start: Start, tmp_path: Path) -> None:
    process = start(IGNORE_TERM)
    result = run_module(process_teardown, pid_file=pid_file(tmp_path, process.pid), grace_seconds=0.2)
    assert [(one["pid"], one["signal"]) for one in result["ended"]] == [(process.pid, "KILL")]
    assert result["ended"][0]["after_seconds"] >= 0.2
    assert process.wait(5) == -signal.SIGKILL


def test_stopped_process_is_ended_within_the_grace(run_module: Any, start: Start, tmp_path: Path) -> None:
    process = start(SLEEP)
    os.kill(process.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED)
    result = run_module(process_teardown, pid_file=pid_file(tmp_path, process.pid))
    assert [one["signal"] for one in result["ended"]] == ["TERM"]


def test_listener_of_the_owner_is_ended_and_the_port_is_free(run_module: Any, start: Start) -> None:
    process = start(LISTEN)
    port = listening_port(process.pid)
    result = run_module(process_teardown, port=port, owner=USER)
    assert [one["pid"] for one in result["ended"]] == [process.pid]
    assert result["ended"][0]["user"]
    assert result["port_free"] is True
    with socket.socket() as again:
        again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        again.bind(("127.0.0.1", port))


def listening_port(pid: int) -> int:
    inodes = {os.readlink(f"/proc/{pid}/fd/{name}") for name in os.listdir(f"/proc/{pid}/fd")}
    for line in Path("/proc/net/tcp").read_text(encoding="ascii").splitlines()[1:]:
        fields = line.split()
        if f"socket:[{fields[9]}]" in inodes:
            return int(fields[1].rpartition(":")[2], 16)
    raise AssertionError("does not listen")


def test_foreign_listener_fails_by_name_and_is_not_signalled(run_module: Any, start: Start) -> None:
    process = start(LISTEN)
    port = listening_port(process.pid)
    result = run_module(process_teardown, port=port, owner="4000000001")
    assert result["failed"]
    for part in (f"TCP port {port}", f"PID {process.pid}", "of user ", "no unit", "running ", sys.executable):
        assert part in result["msg"]
    assert [(one["pid"], one["blocking"]) for one in result["foreign"]] == [(process.pid, True)]
    time.sleep(0.05)
    assert process.poll() is None


@pytest.mark.skipif(os.getuid() != 0, reason="only root may end another user's process")
def test_foreign_listener_is_ended_when_it_is_allowed_by_name(run_module: Any, start: Start) -> None:
    process = start(LISTEN)
    port = listening_port(process.pid)
    result = run_module(process_teardown, port=port, owner="4000000001", allow_foreign=["root"])
    assert [one["pid"] for one in result["ended"]] == [process.pid]


def test_unix_socket_holder_is_ended(run_module: Any, start: Start, tmp_path: Path) -> None:
    path = tmp_path / "engine.sock"
    bind = f"s = socket.socket(socket.AF_UNIX); s.bind({str(path)!r}); s.listen()"
    code = f"import socket, time; {bind}; {READY}; time.sleep(600)"
    process = start(code)
    result = run_module(process_teardown, socket_path=str(path), owner=USER)
    assert [one["pid"] for one in result["ended"]] == [process.pid]


def test_device_holder_of_the_owner_is_selected(run_module: Any, start: Start) -> None:
    process = start(f"import time; handle = open('/dev/full'); {READY}; time.sleep(600)")
    result = run_module(process_teardown, check=True, devices=["/dev/ful?"], owner=USER)
    assert {one["pid"]: one["via"] for one in result["targets"]}[process.pid] == ["/dev/full"]


def test_title_selects_only_a_whole_match(run_module: Any, start: Start) -> None:
    process = start("import time; print('x', flush=True); time.sleep(600)", "unique-word-7531")
    partly = run_module(process_teardown, check=True, title="unique-word-7531", owner=USER)
    assert partly["targets"] == []
    whole = run_module(process_teardown, title=r".*python.* -c .* unique-word-7531", owner=USER)
    assert [one["pid"] for one in whole["ended"]] == [process.pid]


def test_self_and_ancestors_are_never_targets(run_module: Any) -> None:
    result = run_module(
        process_teardown, check=True, exe=sys.executable.replace(".", r"\.") + ".*|/.+python.*", owner=USER
    )
    found = {one["pid"] for one in result["targets"]}
    assert not found & {os.getpid(), os.getppid(), 1}
    assert os.getpid() in {one["pid"] for one in result["protected"]}


@pytest.mark.parametrize(
    ("params", "part"),
    [
        ({}, "Nothing is selected"),
        ({"port": 8000}, "port needs an owner"),
        ({"port": 70000, "owner": "root"}, "not between 1 and 65535"),
        ({"devices": ["/etc/*"], "owner": "root"}, "does not lie below /dev"),
        ({"exe": ".*", "owner": "root"}, "matches anything"),
        ({"exe": "(", "owner": "root"}, "not a regular expression"),
        ({"exe": "/bin/x"}, "missing parameter(s) required by 'exe': owner"),
        ({"orphans": True}, "orphans is True but all of the following are missing: owner"),
        ({"owner": "no-such-user-x", "orphans": True}, "is no user of this host"),
        ({"cgroup": "/"}, "holds the whole host"),
        ({"cgroup": "system.slice"}, "not an absolute path"),
        ({"cgroup": "/a", "grace_seconds": -1}, "grace_seconds is negative"),
        ({"unit": "--help"}, "not the full name"),
    ],
)
def test_bad_input_fails_with_one_sentence(run_module: Any, params: dict[str, Any], part: str) -> None:
    result = run_module(process_teardown, **params)
    assert result["failed"]
    assert part in result["msg"]


def test_pid_file_without_a_number_is_refused(run_module: Any, tmp_path: Path) -> None:
    path = tmp_path / "x.pid"
    path.write_text("-1\n", encoding="ascii")
    assert "does not hold a process id" in run_module(process_teardown, pid_file=str(path))["msg"]


def test_absent_pid_file_selects_nothing(run_module: Any, tmp_path: Path) -> None:
    assert not run_module(process_teardown, pid_file=str(tmp_path / "none.pid"))["changed"]


def test_pid_file_older_than_its_process_is_stale(run_module: Any, start: Start, tmp_path: Path) -> None:
    process = start(SLEEP)
    path = pid_file(tmp_path, process.pid)
    os.utime(path, (time.time() - 3600, time.time() - 3600))
    result = run_module(process_teardown, pid_file=path)
    assert not result["changed"]
    assert process.poll() is None


def test_unit_on_a_host_without_systemd_says_so(run_module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    result = run_module(process_teardown, unit="no-such-unit-7531.service")
    assert "systemd does not answer on this host" in result["msg"]


ORPHAN_OWNER = 54321
ENGINE = """
import os, subprocess, sys, time
os.setsid()
if os.fork():
    os._exit(0)
if int(sys.argv[1]):
    os.setuid(int(sys.argv[1]))
worker = subprocess.Popen(["VLLM::Worker_TP0", "600"], executable="/bin/sleep")
print(os.getpid(), worker.pid, flush=True)
os.close(1)
os.execv("/bin/sleep", ["VLLM::EngineCore", "600"])
"""


def orphaned_engine(uid: int) -> list[int]:
    """PIDs of an engine and its worker whose API server is gone."""
    code = [sys.executable, "-c", ENGINE, str(uid)]
    process = subprocess.Popen(code, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    found = [int(word) for word in process.stdout.readline().split()]
    process.stdout.close()
    process.wait()
    return found


@pytest.mark.skipif(os.getuid() != 0, reason="runs processes of two users")
def test_orphans_of_the_owner_are_ended_and_a_decoy_of_another_user_is_reported(
    run_module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ansible_collections.llmops.vllm.plugins.module_utils.signals.SETTLE_SECONDS", 0.1)
    engine, worker = orphaned_engine(ORPHAN_OWNER)
    decoy = orphaned_engine(ORPHAN_OWNER + 1)
    try:
        if Path(f"/proc/{engine}/stat").read_text("ascii").split()[3] != "1":
            pytest.skip("orphans are adopted by another process than PID 1 here")
        result = run_module(process_teardown, orphans=True, owner=str(ORPHAN_OWNER))
        assert [one["pid"] for one in result["targets"]] == [engine, worker]
        assert has_ended(engine)
        assert has_ended(worker)
        reported = {one["pid"]: one for one in result["foreign"]}
        assert reported[decoy[0]]["user"] == str(ORPHAN_OWNER + 1)
        assert not reported[decoy[0]]["blocking"]
        assert not any(has_ended(pid) for pid in decoy)
    finally:
        for pid in (engine, worker, *decoy):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"VLLM::"):
                    os.kill(pid, signal.SIGKILL)


@pytest.fixture
def group() -> Iterator[Path]:
    """A control group of the unified hierarchy."""
    mounts = [line.split()[1] for line in Path("/proc/mounts").read_text("ascii").splitlines() if " cgroup2 " in line]
    if not mounts or not os.access(mounts[0], os.W_OK) or os.getuid() != 0:
        pytest.skip("no control group may be made here")
    path = Path(mounts[0]) / f"llmops-test-{os.getpid()}"
    try:
        path.mkdir()
    except OSError:
        pytest.skip("no control group may be made here")
    yield path
    for _attempt in range(100):
        with contextlib.suppress(OSError):
            path.rmdir()
            return
        time.sleep(0.02)


def test_control_group_is_emptied_by_the_kernels_own_kill_whatever_user_is_in_it(
    run_module: Any, group: Path, start: Start
) -> None:
    stubborn = start(IGNORE_TERM)
    stranger = start(
        IGNORE_TERM.replace("import signal", "import os, signal").replace("; print", "; os.setuid(65534); print")
    )
    outside = start(SLEEP)
    for process in (stubborn, stranger):
        (group / "cgroup.procs").write_text(str(process.pid), encoding="ascii")
    result = run_module(process_teardown, cgroup=str(group), grace_seconds=0.2)
    assert {one["pid"] for one in result["ended"]} == {stubborn.pid, stranger.pid}
    assert outside.poll() is None
    assert not run_module(process_teardown, cgroup=f"/{group.name}")["changed"]


def test_group_of_targets_only_is_killed_at_once_by_the_kernel(
    group: Path, start: Start, monkeypatch: pytest.MonkeyPatch, run_module: Any
) -> None:
    monkeypatch.setattr(Executor, "_kill_all", lambda self, targets: None)
    stubborn = start(IGNORE_TERM)
    (group / "cgroup.procs").write_text(str(stubborn.pid), encoding="ascii")
    if not (group / "cgroup.kill").exists():
        pytest.skip("this kernel has no cgroup.kill")
    result = run_module(process_teardown, cgroup=str(group), grace_seconds=0.1, kill_seconds=5)
    assert [one["pid"] for one in result["ended"]] == [stubborn.pid]
    assert stubborn.wait(5) == -signal.SIGKILL


def test_group_that_holds_this_module_loses_the_others_only(run_module: Any, group: Path, start: Start) -> None:
    stubborn = start(IGNORE_TERM)
    home = next(
        line[3:] for line in Path("/proc/self/cgroup").read_text("ascii").splitlines() if line.startswith("0::")
    )
    mount = group.parent
    for pid in (stubborn.pid, os.getpid()):
        (group / "cgroup.procs").write_text(str(pid), encoding="ascii")
    try:
        checked = run_module(process_teardown, check=True, cgroup=str(group))
    finally:
        (mount / home.strip("/") / "cgroup.procs").write_text(str(os.getpid()), encoding="ascii")
    assert checked["failed"]
    assert f"PID {os.getpid()}" in checked["msg"]
    assert [one["pid"] for one in checked["targets"]] == [stubborn.pid]
    assert [one["pid"] for one in checked["protected"]] == [os.getpid()]
