from __future__ import annotations

import dataclasses
import os
import socket
import subprocess
import sys

import pytest
from ansible_collections.llmops.vllm.plugins.module_utils.gate_host import UnitWatch
from ansible_collections.llmops.vllm.plugins.module_utils.procfs import ProcFs
from ansible_collections.llmops.vllm.plugins.module_utils.systemd import CompletedRun

LAUNCH = "1" * 32
GROUP = "/system.slice/vllm@kimi.service"


class Cgroups(ProcFs):
    """The real /proc, in which the processes of this test lie in a unit's control group."""

    def __init__(self, groups):
        super().__init__()
        self.groups = groups

    def process(self, pid):
        return self.processes().get(pid)

    def processes(self):
        found = super().processes().items()
        return {pid: dataclasses.replace(one, cgroups={"": self.groups.get(pid, "/user.slice")}) for pid, one in found}


@pytest.fixture(params=["127.0.0.1", "::1"])
def listener(request):
    family = socket.AF_INET6 if ":" in request.param else socket.AF_INET
    try:
        server = socket.socket(family)
        server.bind((request.param, 0))
    except OSError:
        pytest.skip(f"{request.param} is not there")
    server.listen()
    yield server.getsockname()[1]
    server.close()


def test_a_real_listener_of_the_main_process_is_ours(listener):
    found = look_at_port(Cgroups({os.getpid(): GROUP}), listener, GROUP, os.getpid())
    assert [(owner.pid, owner.ours) for owner in found.owners] == [(os.getpid(), True)]
    assert found.unseen == 0


def test_a_real_listener_outside_the_unit_is_foreign_and_named(listener):
    found = look_at_port(Cgroups({}), listener, GROUP, 0)
    assert [(owner.pid, owner.ours, owner.cgroup) for owner in found.owners] == [(os.getpid(), False, "/user.slice")]
    assert "pytest" in found.owners[0].command or "python" in found.owners[0].command


def test_a_real_listener_in_another_process_of_the_unit_is_ours():
    code = "import socket as s, sys; l = s.create_server(('127.0.0.1', 0)); print(l.getsockname()[1], flush=1); input()"
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        port = int(child.stdout.readline())
        found = look_at_port(Cgroups({child.pid: GROUP + "/payload"}), port, GROUP, os.getpid())
        assert [(owner.pid, owner.ours) for owner in found.owners] == [(child.pid, True)]
    finally:
        child.communicate("\n")


def test_a_free_port_has_no_owner():
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        assert look_at_port(ProcFs(), bound.getsockname()[1], GROUP, 0).owners == ()


@pytest.mark.parametrize(
    ("path", "group", "inside"),
    [
        (GROUP, GROUP, True),
        (GROUP + "/sub", GROUP, True),
        ("/libpod_parent/libpod-1" + GROUP, GROUP, True),
        (GROUP + "2", GROUP, False),
        ("/system.slice/other.service", GROUP, False),
        ("/", "/", False),
        (GROUP, "", False),
    ],
)
def test_membership_of_a_control_group(path, group, inside):
    process = Cgroups({os.getpid(): path}).process(os.getpid())
    assert in_control_group(process, group) is inside


def shown(invocation=LAUNCH, pid=0):
    text = f"LoadState=loaded\nActiveState=active\nSubState=running\nInvocationID={invocation}\nMainPID={pid}\n"
    return CompletedRun(0, text, "")


class Host:
    def __init__(self, tmp_path):
        self.now = 0.0
        self.calls = 0
        self.answer = shown(pid=os.getpid())
        self.link = tmp_path / "invocation:u.service"
        self.link.symlink_to(LAUNCH)
        self.watch = UnitWatch(self.show, "u.service", ProcFs(), lambda: self.now, str(tmp_path))

    def show(self, argv):
        self.calls += 1
        return self.answer


@pytest.fixture
def host(tmp_path):
    return Host(tmp_path)


def test_systemctl_is_not_asked_again_while_nothing_changes(host):
    for _ in range(8):
        assert host.watch.look().invocation_id == LAUNCH
        host.now += 0.5
    assert host.calls == 1
    host.now = 6.0
    host.watch.look()
    assert host.calls == 2


def test_a_new_launch_is_seen_at_the_next_look(host):
    host.watch.look()
    host.link.unlink()
    host.link.symlink_to("2" * 32)
    host.answer = shown("2" * 32, os.getpid())
    assert host.watch.look().invocation_id == "2" * 32


def test_the_end_of_the_main_process_is_seen_at_the_next_look(host):
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    host.answer = shown(pid=child.pid)
    host.watch.look()
    assert host.watch.look().main_pid == child.pid and host.calls == 1
    child.communicate(b"\n")
    host.answer = shown(pid=0)
    assert host.watch.look().main_pid == 0


def test_a_zombie_is_no_main_process(host):
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    host.answer = shown(pid=child.pid)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    host.watch.look()
    host.watch.look()
    assert host.calls == 2
    child.wait()


def test_without_the_invocation_link_systemctl_is_asked_every_time(host):
    host.link.unlink()
    host.watch.look()
    host.watch.look()
    assert host.calls == 2
