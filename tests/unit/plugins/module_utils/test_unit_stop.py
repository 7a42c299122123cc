from __future__ import annotations

import pytest
from ansible_collections.llmops.vllm.plugins.module_utils.errors import LlmopsError
from ansible_collections.llmops.vllm.plugins.module_utils.systemd import NO_ANSWER, CompletedRun
from ansible_collections.llmops.vllm.plugins.module_utils.unit_stop import stop_unit

UNIT = "vllm@kimi.service"


class Systemd:
    """Stands in for ``systemctl``: shows one state after the other, of which the last one stays."""

    def __init__(self, *states, load="loaded", ends=(0,), said=""):
        self.states, self.load, self.ends, self.said = list(states), load, list(ends), said
        self.asked = []

    def __call__(self, argv):
        if "show" not in argv:
            self.asked.append(argv)
            return CompletedRun(self.ends.pop(0), "", self.said)
        state = self.states.pop(0) if len(self.states) > 1 else self.states[0]
        return CompletedRun(0, f"LoadState={self.load}\nActiveState={state}\n", "")


def test_a_unit_is_stopped():
    systemd = Systemd("active", "inactive")
    assert stop_unit(systemd, UNIT) is True
    assert systemd.asked == [["systemctl", "stop", "--", UNIT]]


def test_a_stop_that_takes_longer_than_systemctl_may_wait_is_waited_for():
    systemd = Systemd("active", "deactivating", "deactivating", "failed", ends=(NO_ANSWER, NO_ANSWER, 0))
    assert stop_unit(systemd, UNIT) is True
    assert len(systemd.asked) == 3


@pytest.mark.parametrize("state", ["inactive", "failed"])
def test_what_is_stopped_is_left(state):
    systemd = Systemd(state)
    assert stop_unit(systemd, UNIT) is False and systemd.asked == []


def test_a_unit_that_waits_for_its_restart_is_stopped():
    assert stop_unit(Systemd("activating", "inactive"), UNIT) is True


def test_a_unit_that_systemd_does_not_know_is_stopped():
    systemd = Systemd("inactive", load="not-found")
    assert stop_unit(systemd, UNIT) is False and systemd.asked == []


def test_a_refusal_is_one_sentence():
    with pytest.raises(LlmopsError, match=r"systemd did not stop vllm@kimi\.service: Access denied"):
        stop_unit(Systemd("active", ends=(1,), said="Access\ndenied"), UNIT)


def test_a_unit_that_somebody_starts_again_is_not_waited_for():
    with pytest.raises(LlmopsError, match="it is activating again; see who starts it"):
        stop_unit(Systemd("active", "activating"), UNIT)
