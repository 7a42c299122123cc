from __future__ import annotations

import json

import pytest
from ansible_collections.llmops.vllm.plugins.module_utils.diagnosis import diagnose
from ansible_collections.llmops.vllm.plugins.module_utils.diagnosis_lines import lines_of_entries
from ansible_collections.llmops.vllm.plugins.module_utils.errors import LlmopsError, PreconditionError
from ansible_collections.llmops.vllm.plugins.module_utils.launch_evidence import find_last_launch, read_launch
from ansible_collections.llmops.vllm.plugins.module_utils.systemd import CompletedRun

THIS = "1" * 32
OTHER = "2" * 32
UNIT = "vllm@kimi.service"
GROUP = "/system.slice/vllm@kimi.service"


def record(message, *, usec, launch=THIS, pid="42", **more):
    fields = {"MESSAGE": message, "_PID": pid, "__REALTIME_TIMESTAMP": str(usec), "_SYSTEMD_UNIT": UNIT, **more}
    if launch:
        fields["_SYSTEMD_INVOCATION_ID"] = launch
    return json.dumps(fields)


def ended(usec=9):
    words = f"{UNIT}: Main process exited, code=exited, status=1/FAILURE"
    return record(words, usec=usec, launch="", pid="1", INVOCATION_ID=THIS)


class Runner:
    """Answers as systemctl and journalctl do, from what a test gave it."""

    def __init__(self, invocation=THIS, own=(), unmarked=(), last=()):
        self.invocation, self.own, self.unmarked, self.last = invocation, own, unmarked, last

    def __call__(self, argv):
        if argv[0] == "systemctl":
            values = {
                "LoadState": "loaded",
                "InvocationID": self.invocation,
                "ExecMainPID": "42",
                "ControlGroup": GROUP,
            }
            return CompletedRun(0, "".join(f"{key}={value}\n" for key, value in values.items()), "")
        rows = self.last if "--reverse" in argv else self.unmarked if "--boot" in argv else self.own
        return CompletedRun(0, "\n".join(rows), "")


def messages(entries):
    return [entry.message for entry in entries]


def test_last_words_come_in_their_place_when_the_main_process_has_ended():
    words = record("boom", usec=5, launch="", __MONOTONIC_TIMESTAMP="1")
    runner = Runner(own=[record("hello", usec=1), ended()], unmarked=[words])
    assert messages(read_launch(runner, THIS, UNIT))[:2] == ["hello", "boom"]
    still_running = Runner(own=[record("hello", usec=1)], unmarked=[words])
    assert messages(read_launch(still_running, THIS, UNIT)) == ["hello"]


def test_nothing_of_the_units_present_launch_is_added_to_an_earlier_one(tmp_path):
    events = tmp_path / GROUP[1:] / "memory.events"
    events.parent.mkdir(parents=True)
    events.write_text("oom 3\noom_kill 3\n")
    runner = Runner(OTHER, own=[record("hello", usec=1), ended()], unmarked=[record("of the other", usec=5, launch="")])
    assert "of the other" not in messages(read_launch(runner, THIS, UNIT, (str(tmp_path),)))
    assert not any("oom_kill" in text for text in messages(read_launch(runner, THIS, UNIT, (str(tmp_path),))))


@pytest.mark.parametrize(("count", "verdict"), [(2, "cause"), (0, "insufficient_evidence")])
def test_kills_that_the_control_group_counts_explain_an_end_without_words(tmp_path, count, verdict):
    events = tmp_path / GROUP[1:] / "memory.events"
    events.parent.mkdir(parents=True)
    events.write_text(f"low 0\noom {count}\noom_kill {count}\noom_group_kill 0\n")
    entries = read_launch(Runner(own=[record("hello", usec=1)]), THIS, UNIT, ("/nonexistent", str(tmp_path)))
    found = diagnose(lines_of_entries(entries))
    assert found.verdict == verdict
    assert (found.cause_class == "host_oom_kill") is (count > 0)


def test_a_launch_can_be_read_without_its_unit():
    assert messages(read_launch(Runner(own=[record("hello", usec=1)]), THIS)) == ["hello"]


def test_the_journal_names_the_last_launch_of_a_forgotten_unit():
    assert find_last_launch(Runner(), UNIT) == THIS
    assert find_last_launch(Runner("", last=["torn {", "[]", record("x", usec=1, launch=OTHER)]), UNIT) == OTHER
    by_manager = record(
        "Failed.", usec=2, launch="", pid="1", _SYSTEMD_UNIT="init.scope", UNIT=UNIT, INVOCATION_ID=THIS
    )
    forged = record("Failed.", usec=2, launch="", _SYSTEMD_UNIT="x.service", UNIT=UNIT, INVOCATION_ID=OTHER)
    assert find_last_launch(Runner("", last=[record("x", usec=3, launch=""), forged, by_manager]), UNIT) == THIS
    with pytest.raises(PreconditionError, match="no launch"):
        find_last_launch(Runner("", last=[record("x", usec=1, launch="not an id")]), UNIT)


def test_a_journal_that_cannot_be_read_is_an_error():
    with pytest.raises(LlmopsError, match="journal cannot be read"):
        read_launch(lambda argv: CompletedRun(127, "", f"{argv[0]}: not here"), THIS)
