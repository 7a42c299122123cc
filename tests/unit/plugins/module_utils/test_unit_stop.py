from __future__ import annotations

import pytest
from ansible_collections.llmops.vllm.plugins.module_utils.errors import LlmopsError
from ansible_collections.llmops.vllm.plugins.module_utils.systemd import CompletedRun
from ansible_collections.llmops.vllm.plugins.module_utils.unit_stop import stop_unit

UNIT = "vllm@kimi.service"
LAUNCH, NEXT = "a" * 32, "b" * 32


class Systemd:
    """Stands in for ``systemctl``: shows one state after the other, of which the last one stays."""

    def __init__(self, *states, load="loaded", refusal=""):
        self.states, self.load, self.refusal = list(states), load, refusal
        self.asked, self.slept = [], 0

    def __call__(self, argv):
        if "show" not in argv:
            self.asked.append(argv[1:])
            return CompletedRun(1 if self.refusal else 0, "", self.refusal)
        state, launch = self.states.pop(0) if len(self.states) > 1 else self.states[0]
        return CompletedRun(0, f"LoadState={self.load}\nActiveState={state}\nInvocationID={launch}\n", "")

    def sleep(self, seconds):
        self.slept += 1

    def stop(self):
        return stop_unit(self, UNIT, self.sleep)


def test_a_stop_is_asked_for_without_waiting_and_waited_for():
    systemd = Systemd(("active", LAUNCH), ("active", LAUNCH), ("deactivating", LAUNCH), ("inactive", LAUNCH))
    assert systemd.stop() is True
    assert systemd.asked == [["--no-block", "stop", "--", UNIT]]
    assert systemd.slept == 2


@pytest.mark.parametrize("state", ["inactive", "failed"])
def test_what_is_stopped_is_left(state):
    systemd = Systemd((state, LAUNCH))
    assert systemd.stop() is False and systemd.asked == []


def test_a_unit_that_waits_for_its_restart_is_stopped():
    systemd = Systemd(("activating", LAUNCH), ("inactive", LAUNCH))
    assert systemd.stop() is True


def test_a_unit_that_systemd_does_not_know_is_stopped():
    systemd = Systemd(("inactive", ""), load="not-found")
    assert systemd.stop() is False and systemd.asked == []


def test_a_refusal_is_one_sentence():
    with pytest.raises(LlmopsError, match=r"systemd did not stop vllm@kimi\.service: Access denied"):
        Systemd(("active", LAUNCH), refusal="Access\ndenied").stop()


def test_a_unit_that_somebody_starts_meanwhile_is_not_waited_for():
    with pytest.raises(LlmopsError, match="was started again while it was stopped"):
        Systemd(("active", LAUNCH), ("active", NEXT)).stop()
