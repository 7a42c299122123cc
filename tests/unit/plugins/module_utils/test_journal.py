from __future__ import annotations

import json

import pytest
from ansible_collections.llmops.vllm.plugins.module_utils.errors import InvalidInputError, LlmopsError
from ansible_collections.llmops.vllm.plugins.module_utils.journal import Journal, clean, command_for, parse_entries
from ansible_collections.llmops.vllm.plugins.module_utils.systemd import CompletedRun

THIS = "1" * 32
OTHER = "2" * 32


def record(message, *, invocation=THIS, manager="", pid="321", usec=1_000_000, **more):
    fields = {
        "__CURSOR": f"s=a;i={usec}",
        "__REALTIME_TIMESTAMP": str(usec),
        "_PID": pid,
        "_TRANSPORT": "stdout",
        "MESSAGE": message,
        **more,
    }
    if invocation:
        fields["_SYSTEMD_INVOCATION_ID"] = invocation
    if manager:
        fields["INVOCATION_ID"] = manager
    return json.dumps(fields)


def test_own_lines_and_those_of_the_manager_are_read():
    lines = [
        record("Started vLLM.", invocation="", manager=THIS, pid="1", usec=5),
        record("hello", usec=6),
    ]
    entries = parse_entries(lines, THIS)
    assert [(entry.message, entry.from_manager, entry.realtime_usec) for entry in entries] == [
        ("Started vLLM.", True, 5),
        ("hello", False, 6),
    ]


def test_another_launch_is_never_read_even_if_journalctl_gave_it():
    lines = [
        record("RuntimeError: of yesterday", invocation=OTHER),
        record("Stopped.", invocation="", manager=OTHER, pid="1"),
        record("no invocation at all", invocation=""),
    ]
    assert parse_entries(lines, THIS) == []


def test_the_watch_is_no_evidence_but_for_the_end_that_it_made():
    said = ["RuntimeError: quoted from the engine", "killed this launch: no token for 120 s"]
    lines = [json.dumps({**json.loads(record(text)), "SYSLOG_IDENTIFIER": "llmops-vllm-watch"}) for text in said]
    assert [(entry.message, entry.from_manager) for entry in parse_entries(lines, THIS)] == [(said[1], True)]
    lines = [json.dumps({**json.loads(record(text)), "SYSLOG_IDENTIFIER": "llmops-vllm-serve"}) for text in said]
    assert [entry.from_manager for entry in parse_entries(lines, THIS)] == [False, False]


def test_a_process_cannot_speak_for_the_manager():
    forged = record("Main process exited", invocation=OTHER, manager=THIS, pid="999", _COMM="liar")
    assert parse_entries([forged], THIS) == []


def test_a_message_that_journald_calls_binary_is_decoded():
    raw = list("\rLoading shards:  50% \u2588\x1b[0m".encode())
    assert parse_entries([record(raw)], THIS)[0].message == "Loading shards:  50% \u2588"


def test_missing_and_repeated_messages_are_read():
    messages = [entry.message for entry in parse_entries([record(None), record(["a", [98, 10]])], THIS)]
    assert messages == ["", "a\nb"]


def test_a_torn_line_is_skipped():
    assert len(parse_entries(['{"MESSAGE": "half', "[]", "", record("whole")], THIS)) == 1


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        ("\x1b[0;36m(APIServer pid=1)\x1b[0;0m \x1b[32mINFO\x1b[0m x", "(APIServer pid=1) INFO x"),
        ("#033[1;36m(Worker pid=2)#033[0;0m y", "(Worker pid=2) y"),
        ("one\r\ntwo\r", "one\ntwo"),
        ("a\rb", "a\nb"),
        ("tab\tstays\x07", "tab\tstays"),
    ],
)
def test_text_is_cleaned(raw, text):
    assert clean(raw) == text


class FakeJournalctl:
    def __init__(self, *answers):
        self.answers = list(answers)
        self.calls = []

    def __call__(self, argv):
        self.calls.append(list(argv))
        return self.answers.pop(0)


def test_every_entry_is_read_once_and_only_this_launch_is_asked_for():
    runner = FakeJournalctl(
        CompletedRun(0, record("one", usec=1) + "\n", ""),
        CompletedRun(0, record("two", usec=2) + "\n", ""),
        CompletedRun(0, "", ""),
    )
    journal = Journal(runner, THIS)
    assert [[entry.message for entry in journal.read_new()] for _ in range(3)] == [["one"], ["two"], []]
    for call in runner.calls:
        assert call[-3:] == [f"_SYSTEMD_INVOCATION_ID={THIS}", "+", f"INVOCATION_ID={THIS}"]
        assert "--all" in call
    assert [[part for part in call if part.startswith("--after")] for call in runner.calls] == [
        [],
        ["--after-cursor=s=a;i=1"],
        ["--after-cursor=s=a;i=2"],
    ]


def test_a_vacuumed_cursor_makes_it_start_again():
    runner = FakeJournalctl(
        CompletedRun(0, record("one", usec=1), ""),
        CompletedRun(1, "", "Failed to seek to cursor"),
        CompletedRun(0, record("three", usec=3), ""),
    )
    journal = Journal(runner, THIS)
    journal.read_new()
    assert [entry.message for entry in journal.read_new()] == ["three"]
    assert not any("cursor" in part for part in runner.calls[2])


def test_what_was_read_before_the_journal_was_vacuumed_is_not_read_twice():
    kept = [record("two", usec=2), record("three", usec=3)]
    runner = FakeJournalctl(
        CompletedRun(0, "\n".join([record("one", usec=1), *kept]), ""),
        CompletedRun(1, "", "Failed to seek to cursor"),
        CompletedRun(0, "\n".join([*kept, record("the clock was put back", usec=1, __CURSOR="s=a;i=9")]), ""),
    )
    journal = Journal(runner, THIS)
    assert len(journal.read_new()) == 3
    assert [entry.message for entry in journal.read_new()] == ["the clock was put back"]


def test_no_entry_yet_is_no_error_and_no_permission_is_one():
    assert Journal(FakeJournalctl(CompletedRun(1, "", "")), THIS).read_new() == []
    with pytest.raises(LlmopsError, match="group systemd-journal"):
        Journal(FakeJournalctl(CompletedRun(1, "", "No journal files were opened")), THIS).read_new()


def test_only_a_real_invocation_id_is_put_into_a_match():
    with pytest.raises(InvalidInputError):
        Journal(FakeJournalctl(), "x=1 + y")


def test_the_command_for_people_shows_this_launch():
    assert command_for(THIS) == f"journalctl --no-pager _SYSTEMD_INVOCATION_ID={THIS} + INVOCATION_ID={THIS}"


def unmarked(message="boom", pid="321", at=50_000_000, unit="vllm@kimi.service", **more):
    return record(message, invocation="", pid=pid, _SYSTEMD_UNIT=unit, __MONOTONIC_TIMESTAMP=str(at), **more)


def test_last_words_that_journald_assigned_to_no_launch_are_found_by_their_process():
    others = [
        unmarked("of another process", pid="322"),
        unmarked("of an earlier process with this number", at=49_999_999),
        unmarked("of another unit", unit="vllm@other.service"),
        record(
            "of another launch", invocation=OTHER, _SYSTEMD_UNIT="vllm@kimi.service", __MONOTONIC_TIMESTAMP="60000000"
        ),
        record("of this launch", _SYSTEMD_UNIT="vllm@kimi.service", __MONOTONIC_TIMESTAMP="60000000"),
        "torn {",
        "[]",
    ]
    runner = FakeJournalctl(CompletedRun(0, "\n".join([*others, unmarked()]) + "\n", ""))
    entries = Journal(runner, THIS).read_unmarked("vllm@kimi.service", 321, 50.0)
    assert [(entry.message, entry.pid, entry.from_manager) for entry in entries] == [("boom", 321, False)]
    assert runner.calls[0][-2:] == ["_SYSTEMD_UNIT=vllm@kimi.service", "_PID=321"]


def test_a_journal_without_last_words_is_no_error():
    assert Journal(FakeJournalctl(CompletedRun(1, "", "")), THIS).read_unmarked("vllm@kimi.service", 321, 0.0) == []
