from __future__ import annotations

import dataclasses
import os
import socket
import subprocess
import sys

import pytest
from ansible_collections.llmops.vllm.plugins.module_utils.listener import in_control_group, look_at_port
from ansible_collections.llmops.vllm.plugins.module_utils.procfs import ProcFs

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
