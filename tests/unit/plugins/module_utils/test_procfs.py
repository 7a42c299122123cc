"""Reading /proc: from a made-up tree, and from the real one."""

from __future__ import annotations

import fcntl
import os
import socket
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from ansible_collections.llmops.vllm.plugins.module_utils import shares
from ansible_collections.llmops.vllm.plugins.module_utils.cgroups import CgroupLayout
from ansible_collections.llmops.vllm.plugins.module_utils.errors import InvalidInputError
from ansible_collections.llmops.vllm.plugins.module_utils.procfs import ProcFs, Wanted


class Tree:
    """A made-up /proc."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "net").mkdir()
        (root / "self").mkdir()

    def add(self, pid: int, *, cgroup: str = "0::/\n", comm: str = "x", ppid: int = 1, flags: int = 0) -> None:
        directory = self.root / str(pid)
        (directory / "fd").mkdir(parents=True)
        fields = ["S", ppid, pid, pid, 0, -1, flags, *[0] * 10, 3, 0, 4711, *[0] * 30]
        (directory / "stat").write_bytes(os.fsencode(f"{pid} ({comm}) " + " ".join(map(str, fields)) + "\n"))
        (directory / "cgroup").write_text(cgroup, encoding="utf-8")
        (directory / "status").write_text("Name:\tx\nUid:\t5\t6\t7\t8\nGid:\t0\t0\t0\t0\n", encoding="utf-8")
        (directory / "cmdline").write_bytes(b"vllm\0serve\0/model\0")

    def proc(self) -> ProcFs:
        return ProcFs(str(self.root), lambda: 100.0, 100)


@pytest.fixture
def made(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def test_process_is_read_whatever_its_name(made: Tree) -> None:
    made.add(70, comm="a) S (b 1 2", ppid=69, cgroup="1:name=systemd:/a:b\n0::/c\n")
    one = made.proc().processes()[70]
    assert (one.comm, one.ppid, one.state, one.threads, one.start_ticks) == ("a) S (b 1 2", 69, "S", 3, 4711)
    assert one.cgroups == {"name=systemd": "/a:b", "": "/c"}
    assert (one.uids, one.uid, one.cmdline, one.exe) == ((5, 6, 7, 8), 6, ("vllm", "serve", "/model"), "")
    assert not one.kernel_thread
    assert made.proc().running_seconds(one) == pytest.approx(100 - 47.11)


def test_kernel_thread_is_known_by_its_flag(made: Tree) -> None:
    made.add(3, flags=0x00200040)
    assert made.proc().processes()[3].kernel_thread


def test_process_that_goes_while_it_is_read_is_left_out(made: Tree) -> None:
    (made.root / "71").mkdir()
    assert made.proc().processes() == {}


def test_helpers_read_what_one_process_would(made: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    for pid in range(2, 30):
        made.add(pid, comm=os.fsdecode(b"\xff ") + "x" * pid, ppid=pid - 1)
    alone = made.proc().processes()
    monkeypatch.setattr(shares, "WORTH_SHARING", 10)
    monkeypatch.setattr(threading, "active_count", lambda: 1)
    assert made.proc().processes() == alone
    assert list(alone) == list(range(2, 30))


def test_open_files_are_all_there_however_they_are_numbered(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    opened = os.open(tmp_path / "file", os.O_RDONLY)
    far = fcntl.fcntl(opened, fcntl.F_DUPFD, 900)
    try:
        with ProcFs().open_files(os.getpid()) as files:
            found = dict(zip(files.names, files.links))
            assert {0, 1, 2, opened, far, files.directory} <= {int(name) for name in found}
            assert found[str(opened)] == found[str(far)] == str(tmp_path / "file")
    finally:
        os.close(opened)
        os.close(far)


def test_open_files_without_a_gap_are_read_without_a_list(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = socket.socketpair()
    child = os.fork()
    if child == 0:
        os.dup2(theirs.fileno(), 0)
        os.closerange(3, 4096)
        os.write(0, b".")
        os.read(0, 1)
        os._exit(0)
    theirs.close()
    try:
        ours.recv(1)
        if not os.stat(f"/proc/{child}/fd").st_size:
            pytest.skip("this kernel does not count open files (Linux 6.2 does)")
        monkeypatch.setattr(os, "listdir", lambda path: pytest.fail("listed"))
        with ProcFs().open_files(child) as files:
            assert list(files.names) == ["0", "1", "2"]
    finally:
        ours.close()
        os.waitpid(child, 0)


def test_this_process_is_read_from_the_real_proc() -> None:
    one = ProcFs().processes()[os.getpid()]
    assert (one.ppid, one.pgid, one.sid) == (os.getppid(), os.getpgid(0), os.getsid(0))
    assert one.uids[:3] == os.getresuid()
    assert one.exe == os.path.realpath(sys.executable)
    assert 0 <= ProcFs().running_seconds(one) < 86400
    assert ProcFs().is_alive(one)
    assert not ProcFs().is_alive(replace(one, start_ticks=one.start_ticks - 1))


def test_listeners_are_found_by_port_and_their_holders_by_inode() -> None:
    proc = ProcFs()
    with socket.socket() as server, socket.create_server(("::1", 0), family=socket.AF_INET6) as server6:
        server.bind(("127.0.0.1", 0))
        port = server.getsockname()[1]
        assert proc.tcp_listeners(port) == {}
        server.listen()
        inode = os.stat(server.fileno()).st_ino
        assert proc.tcp_listeners(port) == {inode: os.getuid()}
        assert list(proc.tcp_listeners(server6.getsockname()[1])) == [os.stat(server6.fileno()).st_ino]
        found = proc.holders(Wanted({inode: "port", 1: "nobody's"}), proc.processes())
    assert found.by_pid[os.getpid()] == ("port",)
    assert found.unseen == ("nobody's",)


def test_unix_sockets_are_listed_with_blanks_in_their_path(tmp_path: Path) -> None:
    path = tmp_path / "a b"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        assert (os.stat(server.fileno()).st_ino, str(path)) in list(ProcFs().unix_sockets())


V2 = "30 1 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
HYBRID = (
    "30 1 0:26 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
    "31 1 0:27 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,name=systemd\n"
    "32 1 0:28 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
)


def layout(made: Tree, mounts: str, first: str) -> CgroupLayout:
    (made.root / "self" / "mountinfo").write_text(mounts, encoding="ascii")
    made.add(1, cgroup=first)
    return CgroupLayout(made.proc())


@pytest.mark.parametrize(
    ("cgroup", "unit"),
    [
        ("0::/system.slice/vllm@kimi.service\n", "vllm@kimi.service"),
        ("0::/system.slice/system-vllm.slice/vllm@kimi.service/child\n", "vllm@kimi.service"),
        ("1:name=systemd:/system.slice/a.service\n0::/\n", "a.service"),
        ("0::/system.slice/_cpu.service\n", "cpu.service"),
        ("0::/machine.slice/libpod-1.scope/system.slice/vllm@kimi.service\n", "libpod-1.scope"),
        ("0::/docker/4711/system.slice/vllm@kimi.service\n", "docker/4711"),
        ("0::/user.slice/user-1.slice/session-3.scope\n", None),
        ("0::/user.slice/user-1.slice/user@1.service/app.slice/tmux-1.scope\n", None),
        (
            "0::/user.slice/user-1.slice/user@1.service/app.slice/vllm@kimi.service\n",
            "user@1.service/vllm@kimi.service",
        ),
        ("0::/init.scope\n", None),
        ("0::/\n", None),
        ("0::/../other\n", "/../other"),
        ("2:cpu:/\n1:name=systemd:/system.slice/a.service\n0::/system.slice\n", "a.service"),
        ("2:cpu:/system.slice/a.service/own\n1:name=systemd:/system.slice/a.service\n0::/\n", "a.service"),
        ("8:pids:/libpod_parent/libpod-1\n1:name=systemd:/system.slice/a.service\n0::/\n", "/libpod_parent/libpod-1"),
    ],
)
def test_unit_is_the_first_that_is_no_slice(made: Tree, cgroup: str, unit: str | None) -> None:
    where = layout(made, V2, "0::/init.scope\n")
    made.add(80, cgroup=cgroup)
    assert where.unit_of(made.proc().processes()[80]) == unit


def test_units_of_a_container_whose_groups_are_the_hosts_lie_below_its_own(made: Tree) -> None:
    where = layout(made, V2, "0::/libpod/1/init.scope\n")
    made.add(80, cgroup="0::/libpod/1/system.slice/a.service\n")
    made.add(81, cgroup="0::/system.slice/a.service\n")
    processes = made.proc().processes()
    assert where.unit_of(processes[80]) == "a.service"
    assert where.unit_of(processes[81]) == "/system.slice/a.service"
    with pytest.raises(InvalidInputError, match="root of a hierarchy"):
        where.resolve("/libpod/1")


def test_container_sees_its_units_although_its_hierarchies_have_different_roots(made: Tree) -> None:
    where = layout(made, HYBRID, "8:pids:/init.scope\n1:name=systemd:/../../init.scope\n0::/init.scope\n")
    made.add(80, cgroup="8:pids:/s.slice/a.service\n1:name=systemd:/../../s.slice/a.service\n0::/s.slice/a.service\n")
    made.add(81, cgroup="8:pids:/\n1:name=systemd:/../../s.slice/a.service\n0::/\n")
    made.add(83, cgroup="8:pids:/\n1:name=systemd:/../..\n0::/s.slice/a.service\n")
    made.add(82, cgroup="8:pids:/x\n1:name=systemd:/../../../s.slice/a.service\n0::/\n")
    processes = made.proc().processes()
    units = [where.unit_of(processes[pid]) for pid in (80, 81, 83, 82)]
    assert units == ["a.service", "a.service", "a.service", "/../../../s.slice/a.service"]


def test_group_is_found_by_mount_point_or_by_its_own_path(made: Tree) -> None:
    where = layout(made, HYBRID, "1:name=systemd:/init.scope\n0::/\n")
    made.add(80, cgroup="2:cpu,cpuacct:/batch/x\n1:name=systemd:/system.slice/a.service\n0::/\n")
    one = made.proc().processes()[80]
    assert where.resolve("/system.slice/a.service").holds(one)
    assert where.resolve("/sys/fs/cgroup/systemd/system.slice").holds(one)
    assert where.resolve("/sys/fs/cgroup/cpu,cpuacct/batch").holds(one)
    assert not where.resolve("/sys/fs/cgroup/unified/system.slice").holds(one)
    assert not where.resolve("/system.slice/a.servic").holds(one)
    for root in ("/", "/sys/fs/cgroup/cpu,cpuacct", "/sys/fs/cgroup/unified/", "//"):
        with pytest.raises(InvalidInputError, match="root of a hierarchy"):
            where.resolve(root)
    for path in ("a", "/a/../b"):
        with pytest.raises(InvalidInputError, match="not an absolute path"):
            where.resolve(path)


def test_kill_file_is_that_of_the_unified_hierarchy_where_it_exists(made: Tree, tmp_path: Path) -> None:
    mount = tmp_path / "cg"
    (mount / "a.slice").mkdir(parents=True)
    where = layout(made, f"30 1 0:26 /top {mount} rw - cgroup2 cgroup2 rw\n", "0::/top\n")
    group = where.control_group("/top/a.slice")
    assert where.kill_file(group) is None
    (mount / "a.slice" / "cgroup.kill").touch()
    assert where.kill_file(group) == f"{mount}/a.slice/cgroup.kill"
    assert where.kill_file(where.control_group("/elsewhere/a.slice")) is None
