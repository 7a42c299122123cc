"""Ending real processes that do not want to end, or that the kernel does not let go."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.llmops.vllm.plugins.module_utils.errors import LlmopsError
from ansible_collections.llmops.vllm.plugins.module_utils.procfs import ProcFs
from ansible_collections.llmops.vllm.plugins.module_utils.teardown_run import TeardownRequest, TeardownRun

LIBRARIES = "ansible_collections.llmops.vllm.plugins.module_utils"
COLLECTIONS = str(Path(__file__).parents[4] / "collections")
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start Python code in a session of its own and wait for its first line; what remains of the session is killed."""
    started: list[subprocess.Popen[str]] = []

    def begin(code: str, *arguments: str, prefix: tuple[str, ...] = ()) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [*prefix, sys.executable, "-c", code, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": COLLECTIONS},
        )
        started.append(process)
        return process

    yield begin
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    for process in started:
        process.communicate()


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def state_of(pid: int) -> str:
    found = ProcFs().process(pid)
    return found.state if found else ""


def until(true: Callable[[], Any]) -> None:
    """Wait until something is true."""
    end = time.monotonic() + 20
    while not true():
        assert time.monotonic() < end
        time.sleep(0.005)


@pytest.fixture
def request_for(tmp_path: Path) -> Callable[..., TeardownRequest]:
    """A request by PID file, with little patience."""

    def make(pid: int, **parameters: Any) -> TeardownRequest:
        path = tmp_path / "pid"
        path.write_text(str(pid), encoding="ascii")
        return TeardownRequest(pid_file=str(path), **{"grace_seconds": 0.2, "kill_seconds": 5.0, **parameters})

    return make


# Whoever is told to end leaves a child behind that does the same, up to a limit.
HYDRA = """
import os, signal, sys, time
left = int(sys.argv[1])

def replace(number, frame):
    global left
    left -= 1
    if left > 0 and os.fork() == 0:
        return
    os._exit(0)

signal.signal(signal.SIGTERM, replace)
print("ready", flush=True)
end = time.monotonic() + 30
while time.monotonic() < end:
    time.sleep(1)
"""


def members(session: int) -> list[int]:
    return [one.pid for one in ProcFs().processes().values() if one.sid == session and one.alive]


@pytest.mark.parametrize("include", [["session"], ["descendants", "group"]])
def test_process_that_answers_term_with_another_of_its_kind_is_ended_with_all_of_them(
    start: Start, request_for: Any, include: list[str]
) -> None:
    hydra = start(HYDRA, "200")
    first_line(hydra)
    result = TeardownRun(request_for(hydra.pid, include=include)).apply()
    assert result["survivors"] == []
    assert members(hydra.pid) == []


@pytest.fixture
def group() -> Iterator[Path]:
    """A control group of the unified hierarchy."""
    mounts = [line.split()[1] for line in Path("/proc/mounts").read_text("ascii").splitlines() if " cgroup2 " in line]
    path = Path(mounts[0] if mounts else "/nonexistent") / f"llmops-faults-{os.getpid()}"
    try:
        path.mkdir()
    except OSError:
        pytest.skip("no control group may be made here")
    yield path
    until(lambda: not (path / "cgroup.procs").read_text("ascii"))
    path.rmdir()


@pytest.mark.parametrize("kernel_kills", [True, False])
def test_control_group_is_emptied_of_those_that_fork_faster_than_they_are_ended(
    start: Start, group: Path, kernel_kills: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not kernel_kills:
        monkeypatch.setattr(f"{LIBRARIES}.teardown_host.kill_group", lambda path: False)
    hydra = start(
        f"print('0', end='', file=open({str(group / 'cgroup.procs')!r}, 'w'), flush=True)\n" + HYDRA,
        "200",
    )
    first_line(hydra)
    request = TeardownRequest(cgroup=str(group), grace_seconds=0.1, kill_seconds=5)
    assert TeardownRun(request).apply()["survivors"] == []
    assert (group / "cgroup.procs").read_text("ascii") == ""


IGNORE = "import signal, sys; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True); signal.pause()"


def test_stopped_process_that_ignores_term_is_killed(start: Start, request_for: Any) -> None:
    process = start(IGNORE)
    first_line(process)
    os.kill(process.pid, signal.SIGSTOP)
    until(lambda: state_of(process.pid) == "T")
    result = TeardownRun(request_for(process.pid)).apply()
    assert [(one["state"], one["signal"]) for one in result["ended"]] == [("T", "KILL")]


TRACE = """
import ctypes, os, sys, time
libc = ctypes.CDLL(None, use_errno=True)
if libc.ptrace(16, int(sys.argv[1]), 0, 0):
    print(os.strerror(ctypes.get_errno()), flush=True)
    sys.exit()
print("", flush=True)
time.sleep(30)
"""


def test_process_held_by_a_debugger_is_killed_and_its_debugger_lives(start: Start, request_for: Any) -> None:
    process = start("print('ready', flush=True); import signal; signal.pause()")
    first_line(process)
    debugger = start(TRACE, str(process.pid))
    refused = first_line(debugger)
    if refused:
        pytest.skip(f"no process may be traced here: {refused}")
    until(lambda: state_of(process.pid) == "t")
    result = TeardownRun(request_for(process.pid)).apply()
    assert [(one["state"], one["signal"]) for one in result["ended"]] == [("t", "KILL")]
    assert debugger.poll() is None


def test_zombie_is_reported_and_no_failure(start: Start, request_for: Any) -> None:
    process = start("import os, time; print(os.fork() or os._exit(0), flush=True); time.sleep(30)")
    zombie = int(first_line(process))
    until(lambda: state_of(zombie) == "Z")
    result = TeardownRun(request_for(zombie)).apply()
    assert not result["changed"]
    assert [(one["pid"], one["reason"]) for one in result["survivors"]] == [(zombie, "zombie")]
    assert str(process.pid) in result["survivors"][0]["detail"]


VFORK = """
import ctypes, os, time
libc = ctypes.CDLL(None)
print(os.getpid(), flush=True)
if libc.vfork() == 0:
    libc.sleep(30)
    libc._exit(0)
"""


def test_process_that_waits_for_the_child_that_borrowed_its_memory_is_ended_with_it(
    start: Start, request_for: Any
) -> None:
    parent = start(VFORK)
    first_line(parent)
    until(lambda: sorted(map(state_of, members(parent.pid))) == ["D", "S"])
    result = TeardownRun(request_for(parent.pid, include=["descendants"])).apply()
    assert [one["state"] for one in result["ended"]] == ["D", "S"]
    assert members(parent.pid) == []


# A filesystem whose server has read a request and never answers it: what asked cannot be ended, not even by KILL.
SILENT_FILESYSTEM = """
import ctypes, os, signal, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
device = os.open("/dev/fuse", os.O_RDWR)
options = f"fd={device},rootmode=40000,user_id=0,group_id=0".encode()
if libc.mount(b"silent", sys.argv[1].encode(), b"fuse", 0, options):
    print(os.strerror(ctypes.get_errno()), flush=True)
    sys.exit()
reader = os.fork()
if reader == 0:
    os.close(device)
    try:
        os.stat(sys.argv[1] + "/x")
    except OSError:
        os._exit(0)
unique = struct.unpack_from("=IIQ", os.read(device, 65536))[2]
major, minor = 7, 31
os.write(device, struct.pack("=IiQIIIIHHIIHH32x", 80, 0, unique, major, minor, 0, 0, 0, 0, 4096, 1, 0, 0))
os.read(device, 65536)
print(reader, flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(os.getuid() != 0 or not shutil.which("unshare"), reason="only root may mount")
def test_process_that_the_kernel_does_not_let_go_is_reported_with_what_it_waits_in(
    start: Start, request_for: Any, tmp_path: Path
) -> None:
    mount = tmp_path / "mount"
    mount.mkdir()
    server = start(SILENT_FILESYSTEM, str(mount), prefix=("unshare", "--mount", "--propagation", "private"))
    told = first_line(server)
    if not told.isdigit():
        pytest.skip(f"no filesystem of our own may be mounted here: {told}")
    reader = int(told)
    with pytest.raises(LlmopsError, match=f"PID {reader} .* survives: waits in .*fuse|request_wait") as caught:
        TeardownRun(request_for(reader, kill_seconds=0.3)).apply()
    assert [(one["pid"], one["state"], one["reason"]) for one in caught.value.details["survivors"]] == [
        (reader, "D", "uninterruptible")
    ]
    assert caught.value.details["ended"] == []
    server.communicate("")
    until(lambda: state_of(reader) in ("", "Z"))


# Runs as PID 1 of a PID namespace: a stranger gets the number of a target that ended between plan and signal.
REUSE = """
import json, os, subprocess, sys, time
from pathlib import Path
from ansible_collections.llmops.vllm.plugins.module_utils import procfs, signals
from ansible_collections.llmops.vllm.plugins.module_utils.teardown_run import TeardownRequest, TeardownRun

if "unguarded" in sys.argv:
    procfs.ProcFs.is_alive = lambda self, process: True
if "no pidfd" in sys.argv:
    signals.Sender.__init__.__defaults__ = (None,)
sleep = [sys.executable, "-c", "print('ready', flush=True); import time; time.sleep(30)"]
target = subprocess.Popen(sleep, stdout=subprocess.PIPE)
target.stdout.readline()
Path(sys.argv[1]).write_text(str(target.pid))
run = TeardownRun(TeardownRequest(pid_file=sys.argv[1], grace_seconds=0.2, kill_seconds=0.2))
target.kill()
target.wait()
time.sleep(0.02)
with open("/proc/sys/kernel/ns_last_pid", "w") as stream:
    stream.write(str(target.pid - 1))
stranger = subprocess.Popen(sleep, stdout=subprocess.PIPE)
stranger.stdout.readline()
try:
    result = run.apply()
except Exception as error:
    result = error.details
time.sleep(0.05)
print(json.dumps({
    "reused": stranger.pid == target.pid,
    "survives": stranger.poll() is None,
    "ended": [[one["pid"] == target.pid, one["signal"]] for one in result["ended"]],
}))
"""


def reuse(start: Start, tmp_path: Path, *arguments: str) -> dict[str, Any]:
    prefix = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
    process = start(REUSE, str(tmp_path / "pid"), *arguments, prefix=prefix)
    text, _error = process.communicate()
    if not text:
        pytest.skip("no PID namespace may be made here")
    found: dict[str, Any] = json.loads(text)
    assert found["reused"]
    return found


needs_namespaces = pytest.mark.skipif(os.getuid() != 0 or not shutil.which("unshare"), reason="only root may unshare")


@needs_namespaces
@pytest.mark.parametrize("how", ["pidfd", "no pidfd"])
def test_stranger_that_got_the_number_of_an_ended_target_survives(start: Start, tmp_path: Path, how: str) -> None:
    assert reuse(start, tmp_path, how) == {"reused": True, "survives": True, "ended": [[True, ""]]}


@needs_namespaces
def test_stranger_that_got_the_number_of_an_ended_target_would_die_without_the_start_time(
    start: Start, tmp_path: Path
) -> None:
    assert not reuse(start, tmp_path, "unguarded", "no pidfd")["survives"]
