from __future__ import annotations

import pytest
from ansible_collections.llmops.vllm.plugins.module_utils.errors import LlmopsError, PreconditionError
from ansible_collections.llmops.vllm.plugins.module_utils.launch_start import IDLE_LOOKS, plan_start
from ansible_collections.llmops.vllm.plugins.module_utils.systemd import CompletedRun

UNIT = "vllm@kimi.service"
OLD, NEW = "a" * 32, "b" * 32


class Systemd:
    """Stands in for ``systemctl``: a queue, and what becomes of a start after some looks."""

    def __init__(self, active="inactive", sub="dead", launch=OLD, enabled="disabled", looks=3, becomes="activating"):
        self.active, self.sub, self.launch, self.enabled = active, sub, launch, enabled
        self.looks, self.becomes = looks, becomes
        self.calls, self.queued, self.refuses, self.now = [], False, "", 0.0

    def __call__(self, argv):
        words = [word for word in argv[1:] if not word.startswith("-")]
        if words[0] == "show":
            return self.show(argv)
        self.calls.append(words[0])
        if words[0] == self.refuses:
            return CompletedRun(1, "", "Failed to start:\nUnit is masked.")
        if words[0] == "enable":
            self.enabled = "enabled"
        self.queued = self.queued or words[0] == "start"
        return CompletedRun(0, "", "")

    def show(self, argv):
        if "--property=Job" in argv:
            return CompletedRun(0, "77\n" if self.queued else "\n", "")
        if self.queued and self.becomes:
            self.looks -= 1
            if self.looks <= 0:
                self.queued, self.active, self.launch = False, self.becomes, NEW
        text = f"LoadState=loaded\nActiveState={self.active}\nSubState={self.sub}\n"
        return CompletedRun(0, text + f"InvocationID={self.launch}\nUnitFileState={self.enabled}\n", "")

    def sleep(self, seconds):
        self.now += seconds

    def start(self, enable=True):
        return plan_start(self, UNIT, enable).apply(self, lambda: self.now, self.sleep, 60)


def test_the_launch_before_is_waited_out():
    systemd = Systemd()
    assert systemd.start() == NEW
    assert systemd.calls == ["enable", "daemon-reload", "reset-failed", "start"]


def test_a_launch_that_ends_at_once_is_named_all_the_same():
    assert Systemd(looks=1, becomes="failed").start() == NEW


@pytest.mark.parametrize("active", ["active", "activating", "reloading"])
def test_what_runs_is_left_alone(active):
    systemd = Systemd(active=active, enabled="enabled")
    plan = plan_start(systemd, UNIT, True)
    assert not plan.changed and not plan.differences().changed
    assert systemd.start() == OLD and systemd.calls == []


def test_what_runs_and_is_not_enabled_is_enabled_and_nothing_else():
    systemd = Systemd(active="active")
    plan = plan_start(systemd, UNIT, True)
    assert plan.differences().as_diff() == {
        "before": {f"{UNIT} at boot": "disabled"},
        "after": {f"{UNIT} at boot": "enabled"},
    }
    assert systemd.start() == OLD and systemd.calls == ["enable"]


def test_a_unit_is_not_enabled_unless_it_is_wanted():
    systemd = Systemd()
    systemd.start(enable=False)
    assert "enable" not in systemd.calls


def test_a_unit_that_waits_for_its_restart_is_started():
    assert Systemd(active="activating", sub="auto-restart").start() == NEW


def test_a_start_that_systemd_refuses_is_a_sentence():
    systemd = Systemd()
    systemd.refuses = "start"
    with pytest.raises(LlmopsError, match=r"systemd did not start vllm@kimi.service: Failed to start: Unit is masked"):
        systemd.start()


def test_a_start_that_systemd_drops_is_not_waited_for():
    systemd = Systemd(becomes="")
    plan = plan_start(systemd, UNIT, False)
    systemd.sleep = lambda seconds: setattr(systemd, "queued", False)
    with pytest.raises(LlmopsError, match=r"dropped the start of vllm@kimi.service: it is inactive"):
        plan.apply(systemd, lambda: 0.0, systemd.sleep, 60)


def test_a_start_that_waits_for_others_is_waited_for_so_long():
    systemd = Systemd(looks=IDLE_LOOKS * 20)
    assert systemd.start() == NEW and systemd.now > 5
    with pytest.raises(LlmopsError, match=r"not begun to start vllm@kimi.service within 60 s.*list-jobs"):
        Systemd(becomes="").start()


def test_a_host_without_systemd_is_told():
    with pytest.raises(PreconditionError, match="systemd does not answer"):
        plan_start(lambda argv: CompletedRun(127, "", "no systemctl"), UNIT, True)
