from __future__ import annotations

import os
import subprocess
import sys

import pytest
from ansible_collections.llmops.vllm.plugins.module_utils.gate_host import UnitWatch
from ansible_collections.llmops.vllm.plugins.module_utils.procfs import ProcFs
from ansible_collections.llmops.vllm.plugins.module_utils.systemd import CompletedRun

LAUNCH = "1" * 32


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
