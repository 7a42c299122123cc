"""The proofs behind a removal: /proc, the kernel's own answer, and what happens between look and unlink."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import json
import mmap
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.llmops.vllm.plugins.module_utils import shm, shm_sysv, shm_usage
from ansible_collections.llmops.vllm.plugins.module_utils.procfs import Process, ProcFs
from ansible_collections.llmops.vllm.plugins.module_utils.shm_run import ShmRequest, ShmRun
from ansible_collections.llmops.vllm.plugins.module_utils.systemd import CompletedRun
from hypothesis import given
from hypothesis import strategies as st

NAME = "psm_0a1b2c3d"
UUID = "0f9cf3a2-1c1c-4e1f-9d7d-0123456789ab"
NOBODY = 65534
ME = str(os.getuid())
needs_root = pytest.mark.skipif(os.getuid() != 0, reason="needs processes of two users")


@pytest.fixture
def directory() -> Iterator[Path]:
    path = tempfile.mkdtemp(dir="/dev/shm", prefix="t")
    yield Path(path)
    shutil.rmtree(path)


def segment(directory: Path, name: str = NAME, uid: int | None = None, mode: int = 0o600) -> Path:
    path = directory / name
    path.write_bytes(b"\1" * 4096)
    path.chmod(mode)
    if uid is not None:
        os.chown(path, uid, uid)
    return path


def planned(directory: Path, **params: Any) -> ShmRun:
    return ShmRun(ShmRequest(**{"owner": ME, "shm_path": str(directory), **params}))


def asked(found: shm.ShmObject) -> str:
    with shm_usage.Kernel() as kernel:
        return kernel.ask(found)


def only(run: ShmRun) -> tuple[str, str]:
    (one,) = run.result("removed")["objects"]
    return one["verdict"], one["reason"]


def test_object_opened_between_look_and_removal_is_kept(directory: Path) -> None:
    path = segment(directory)
    run = planned(directory)
    assert only(run) == ("removed", "unused")
    with path.open("rb"):
        run.remove()
    assert only(run) == ("kept", "in_use")
    assert not run.changed
    assert path.exists()


@pytest.mark.parametrize("kind", ["file", "link", "pipe", "directory", "socket"])
def test_what_took_the_place_of_an_object_after_the_look_is_kept(directory: Path, kind: str) -> None:
    path = segment(directory)
    run = planned(directory)
    path.rename(directory / "victim")
    if kind == "file":
        segment(directory)
    elif kind == "link":
        path.symlink_to(directory / "victim")
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    else:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(path))
    run.remove()
    assert only(run) == ("kept", "changed")
    assert len(list(directory.iterdir())) == 2


def test_object_that_goes_by_itself_after_the_look_is_no_error(directory: Path) -> None:
    path = segment(directory)
    run = planned(directory)
    path.unlink()
    run.remove()
    assert only(run) == ("kept", "gone")


def test_directory_replaced_by_another_after_the_look_loses_nothing(directory: Path) -> None:
    inner = directory / "shm"
    inner.mkdir()
    segment(inner)
    run = planned(inner)
    inner.rename(directory / "away")
    inner.mkdir()
    kept = segment(inner)
    run.remove()
    assert only(run) == ("kept", "changed")
    assert kept.exists()


def test_open_by_another_process_while_the_lease_is_held_does_not_end_this_process(directory: Path) -> None:
    path = segment(directory)
    found = shm.scan(str(directory), shm.FAMILIES)[0]
    descriptor = os.open(path, os.O_RDONLY)
    with shm_usage.Kernel():
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        opener = subprocess.Popen([sys.executable, "-c", f"open({str(path)!r})"])
        with pytest.raises(subprocess.TimeoutExpired):
            opener.wait(0.3)
        os.close(descriptor)
        assert opener.wait(10) == 0
    assert asked(found) == shm.UNUSED


def without_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(descriptor: int, command: int, argument: int) -> int:
        raise OSError(errno.EINVAL, "no leases on this filesystem")

    monkeypatch.setattr(fcntl, "fcntl", refuse)


def test_filesystem_without_leases_relies_on_proc(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_leases(monkeypatch)
    path = segment(directory)
    with path.open("rb"):
        run = planned(directory)
    assert run.result("removed")["objects"][0]["used_by"] == [os.getpid()]
    if os.getuid() == 0:
        run = planned(directory)
        run.remove()
        assert only(run) == ("removed", "unused")


def as_nobody(work: Callable[[], Any]) -> Any:
    """Run ``work`` in a child of an unprivileged user and return its result."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setresgid(NOBODY, NOBODY, NOBODY)
            os.setresuid(NOBODY, NOBODY, NOBODY)
            os.write(write, json.dumps(work()).encode())
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    os.close(write)
    with os.fdopen(read, "rb") as stream:
        text = stream.read()
    assert os.waitpid(child, 0)[1] == 0
    return json.loads(text)


@needs_root
def test_unprivileged_owner_removes_what_the_kernel_calls_unused_and_keeps_what_root_uses(directory: Path) -> None:
    os.chown(directory, NOBODY, NOBODY)
    segment(directory, "psm_00000001", NOBODY)
    used = segment(directory, "psm_00000002", NOBODY)
    segment(directory, "psm_00000003")

    with used.open("rb") as handle:

        def work() -> Any:
            handle.close()  # the child's copy; root's stays open
            run = planned(directory, owner=str(NOBODY))
            run.remove()
            return run.result("removed")

        result = as_nobody(work)
    assert [(one["verdict"], one["reason"], one["used_by"]) for one in result["objects"]] == [
        ("removed", "unused", []),
        ("kept", "in_use", []),
        ("kept", "other_owner", []),
    ]
    assert result["unreadable_processes"] > 0


@contextlib.contextmanager
def hidden_process(uid: int) -> Iterator[int]:
    """A process of another user that not even its own user may look at; yields its PID."""
    ready, told = os.pipe()
    child = os.fork()
    if child == 0:
        os.setresuid(uid, uid, uid)
        ctypes.CDLL(None).prctl(4, 0)  # PR_SET_DUMPABLE
        os.write(told, b"x")
        signal.pause()
    os.read(ready, 1)
    yield child
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(ready)
    os.close(told)


@needs_root
@pytest.mark.parametrize(
    ("uid", "mode", "expected"),
    [
        (NOBODY, 0o600, ("kept", "not_provable")),
        (12345, 0o600, ("removed", "unused")),
        (12345, 0o666, ("kept", "not_provable")),
    ],
    ids=["its owner's", "a stranger's", "a stranger's that may open it"],
)
def test_without_leases_a_process_that_may_not_be_looked_at_decides_by_permission(
    directory: Path, monkeypatch: pytest.MonkeyPatch, uid: int, mode: int, expected: tuple[str, str]
) -> None:
    without_leases(monkeypatch)
    os.chown(directory, NOBODY, NOBODY)
    segment(directory, NAME, NOBODY, mode)
    real_pids = ProcFs.pids
    with hidden_process(uid) as hidden:
        # Other users' processes of this machine would blur the picture.
        monkeypatch.setattr(ProcFs, "pids", lambda self: [pid for pid in real_pids(self) if pid == hidden])
        found = as_nobody(lambda: only(planned(directory, owner=str(NOBODY))))
    assert tuple(found) == expected


LISTEN = (
    "import os, socket, sys; os.chdir(sys.argv[1]); s = socket.socket(socket.AF_UNIX); s.bind(sys.argv[2]);"
    "s.listen(); print('ready', flush=True); sys.stdin.read()"
)


@needs_root
def test_socket_of_another_network_namespace_bound_by_a_relative_path_is_in_use(directory: Path) -> None:
    command = ["unshare", "--net", sys.executable, "-c", LISTEN, str(directory), UUID]
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert server.stdin and server.stdout and server.stderr
    ready = server.stdout.readline()
    found = shm.scan(str(directory), [family for family in shm.FAMILIES if family.place == shm.RPC])
    usage = shm_usage.find_usage(ProcFs(), found, found)
    answers = [asked(one) for one in found]
    server.stdin.close()
    server.wait()
    server.stdout.close()
    server.stderr.close()
    if not ready:
        pytest.skip("no network namespace may be made here")
    assert UUID in usage.socket_names
    assert answers == [shm.IN_USE]
    assert [asked(one) for one in found] == [shm.UNUSED]


def test_datagram_socket_is_in_use_for_the_kernel_too(directory: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server:
        server.bind(str(directory / UUID))
        (found,) = shm.scan(str(directory), [family for family in shm.FAMILIES if family.place == shm.RPC])
        assert asked(found) == shm.IN_USE
    assert asked(found) == shm.UNUSED


def test_nothing_is_searched_when_there_is_no_candidate(directory: Path) -> None:
    class Untouchable(ProcFs):
        def pids(self) -> list[int]:
            raise AssertionError("looked at processes")

    segment(directory)
    run = ShmRun(ShmRequest(owner=ME, shm_path=str(directory), keep=["*"]), proc=Untouchable())
    assert only(run) == ("kept", "keep_list")


def test_open_files_are_looked_through_only_for_what_the_kernel_does_not_call_unused(directory: Path) -> None:
    class Sealed(ProcFs):
        def open_files(self, pid: int) -> Any:
            raise AssertionError("looked at open files")

    path = segment(directory)
    assert only(ShmRun(ShmRequest(owner=ME, shm_path=str(directory)), proc=Sealed())) == ("removed", "unused")
    with path.open("rb"), pytest.raises(AssertionError, match="looked at open files"):
        ShmRun(ShmRequest(owner=ME, shm_path=str(directory)), proc=Sealed())


def test_object_that_only_proc_shows_in_use_is_kept(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shm_usage.Kernel, "ask", lambda self, found: shm.UNUSED)
    path = segment(directory)
    with path.open("rb") as handle, mmap.mmap(handle.fileno(), 4096, prot=mmap.PROT_READ):
        run = planned(directory)
    assert run.result("removed")["objects"][0]["used_by"] == [os.getpid()]


names = st.text(st.characters(exclude_characters="/\0", exclude_categories=("Cs",)), min_size=1, max_size=30)
lookalikes = st.builds(
    "".join,
    st.tuples(st.sampled_from(["", "x", ".", "\n"]), st.sampled_from([NAME, UUID]), st.sampled_from(["", "\n", " "])),
)


@given(names | lookalikes)
def test_only_a_whole_name_is_of_a_family(name: str) -> None:
    matched = [family.name for family in shm.FAMILIES if family.pattern.fullmatch(name)]
    if name in (NAME, UUID):
        assert len(matched) == 1
    elif NAME in name or UUID in name or not name.isascii():
        assert matched == []


@given(
    st.builds(
        shm.Policy,
        st.none() | st.just(1),
        st.none() | st.just(50.0),
        st.sampled_from([(), ("*",), ("x",)]),
    ),
    st.sampled_from([0, 1]),
    st.sampled_from([10, 50, 90]),
    st.sampled_from([0o100600, 0o120777, 0o140600, 0o040700]),
    st.sampled_from([shm.UNUSED, shm.IN_USE, shm.NOT_PROVABLE, "gone"]),
    st.booleans(),
    st.booleans(),
)
def test_removable_is_only_what_every_rule_lets_go(
    policy: shm.Policy, uid: int, mtime: int, mode: int, answer: str, used: bool, hidden: bool
) -> None:
    status = os.stat_result((mode, 7, 8, 1, uid, 0, 0, 0, mtime, mtime))
    found = shm.ShmObject("/dev/shm", NAME, shm.FAMILIES[0], status)
    usage = shm.Usage({(8, 7): frozenset({5})} if used else {}, frozenset(), frozenset({uid} if hidden else ()), 0)
    (verdict,) = shm.plan([found], policy, lambda some, unproven: usage, lambda one: answer)
    blind = hidden and uid != 0
    allowed = (
        mode == 0o100600
        and policy.owner_uid in (None, uid)
        and (policy.before_epoch is None or mtime < policy.before_epoch)
        and policy.keep != ("*",)
    )
    assert verdict.removable == (
        allowed and not used and (answer == shm.UNUSED or (answer == "not_provable" and not blind))
    )
    assert shm.plan([found], policy, lambda some, unproven: usage, lambda one: answer) == [verdict]


SHMGET = "import ctypes; print(ctypes.CDLL(None).shmget(0, 8192, 0o1600))"


def test_system_v_segment_of_a_dead_process_goes_and_one_of_a_living_process_stays(directory: Path) -> None:
    libc = ctypes.CDLL(None)
    dead = int(subprocess.check_output([sys.executable, "-c", SHMGET]))
    living = libc.shmget(0, 8192, 0o1600)
    try:
        run = planned(directory, sysv=True)
        before = {one["name"]: (one["verdict"], one["reason"]) for one in run.result("removed")["objects"]}
        assert before[str(dead)] == ("removed", "unused")
        assert before[str(living)] == ("kept", "in_use")
        found = [one for one in shm_sysv.scan(ProcFs()) if one.number == dead and one.family == shm_sysv.SEGMENT]
        if shutil.which("ipcrm"):
            calls: list[list[str]] = []

            def command(argv: Any) -> CompletedRun:
                calls.append(list(argv))
                return CompletedRun(subprocess.call(argv), "", "")

            assert shm_sysv.remove(found[0], ProcFs(), command) == shm.UNUSED
            assert calls == [["ipcrm", "-m", str(dead)]]
            assert shm_sysv.remove(found[0], ProcFs(), command) == "changed"
            assert len(calls) == 1
        else:
            missing = shm_sysv.remove(found[0], ProcFs(), lambda argv: CompletedRun(127, "", ""))
            assert missing == "ipcrm_missing"
    finally:
        libc.shmctl(living, 0, None)
        libc.shmctl(dead, 0, None)


def semaphores(perms: int = 0o600, uid: int = 7, otime: int = 10) -> shm_sysv.SysvObject:
    fields = {"key": 0, "semid": 3, "perms": perms, "nsems": 1, "uid": uid, "otime": otime, "ctime": 5}
    return shm_sysv.SysvObject(shm_sysv.SEMAPHORES, fields)


def table(*uids: int) -> dict[int, Process]:
    found = {}
    for pid, uid in enumerate((0, *uids), start=1):
        found[pid] = Process(pid, 0, pid, pid, 1, "x", "S", 1, False, {}, "/nonexistent")
        found[pid].__dict__["uids"] = (uid,) * 4
    return found


@pytest.mark.parametrize(
    ("found", "uids", "reason"),
    [
        (semaphores(), (8,), "unused"),
        (semaphores(), (8, 7), "not_provable"),
        (semaphores(perms=0o660), (8,), "not_provable"),
        (semaphores(uid=8), (8,), "other_owner"),
        (semaphores(otime=20), (8,), "too_young"),
    ],
)
def test_semaphores_go_only_when_no_process_of_their_owner_lives(
    found: shm_sysv.SysvObject, uids: tuple[int, ...], reason: str
) -> None:
    verdict = shm_sysv.judge(found, 7, 20.0, table(*uids), self_pid=99)
    assert (verdict.removable, verdict.reason) == (reason == "unused", reason)
