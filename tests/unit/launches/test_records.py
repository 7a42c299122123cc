"""The launches that were tried on the real engine: what the preflight said, what the diagnosis makes of their logs."""

from __future__ import annotations

import re

import pytest
from ansible_collections.llmops.vllm.plugins.module_utils.diagnosis import Diagnosis, diagnose
from ansible_collections.llmops.vllm.plugins.module_utils.diagnosis_lines import lines_of_log
from ansible_collections.llmops.vllm.tests.launches import records, table
from ansible_collections.llmops.vllm.tests.launches.cases import CASES, SERVES, Case

KNOWN = records.load()
TRIED = [case for case in CASES if records.tried(case, KNOWN)]
ROOTED = [case for case in TRIED if case.root]
HEALTHY = [case for case in TRIED if case.ends == SERVES]
MACHINE = re.compile(r"/root\b|/home/|/tmp/|\.cache/llmops|/work\b")


def named(cases: list[Case]) -> list[object]:
    return [pytest.param(case, id=case.name) for case in cases]


def diagnosis(case: Case) -> Diagnosis:
    with (records.LOGS / f"{case.name}.log").open("rb") as stream:
        return diagnose(lines_of_log(stream))


def test_every_launch_that_was_tried_has_its_log() -> None:
    assert {path.stem for path in records.LOGS.glob("*.log")} == {case.name for case in TRIED}
    assert set(KNOWN) <= {case.name for case in CASES}


def test_the_preflight_misses_no_failure_and_refuses_no_healthy_launch() -> None:
    found = table.counts(KNOWN)
    assert found.launches == len(TRIED) >= 30
    assert (found.missed, found.false_alarms) == ([], [])


def test_the_tokens_of_the_cache_are_reckoned_as_the_engine_logs_them() -> None:
    found = table.counts(KNOWN)
    assert found.kv_tokens_compared == len(HEALTHY)
    assert found.kv_tokens_error_percent < 3


@pytest.mark.parametrize("case", named([case for case in CASES if case.name in KNOWN]))
def test_a_launch_ends_as_its_case_says_and_is_refused_for_the_right_reason(case: Case) -> None:
    assert records.ending(case, KNOWN) == case.ends
    refused = KNOWN[case.name]["preflight"]["no_go"]
    assert case.finding in refused if case.finding else refused == []


@pytest.mark.parametrize("case", named(ROOTED))
def test_the_diagnosis_names_the_true_line_and_its_class(case: Case) -> None:
    found = diagnosis(case)
    assert (found.verdict, found.cause_class) == ("cause", case.cause_class), found
    assert found.evidence[0].line == KNOWN[case.name]["engine"]["root_line"] > 0, found


@pytest.mark.parametrize("case", named(HEALTHY))
def test_the_diagnosis_finds_nothing_in_a_healthy_launch(case: Case) -> None:
    assert diagnosis(case).verdict == "healthy"


def test_the_page_in_docs_is_what_the_records_say() -> None:
    assert table.PAGE.read_text(encoding="utf-8") == table.page(KNOWN), f"run `LAUNCH=0 {table.COMMAND}`"


def test_the_logs_tell_nothing_of_the_machine_that_made_them() -> None:
    told = [
        f"{path.name}: {line}"
        for path in records.LOGS.iterdir()
        for line in path.read_text(encoding="utf-8").splitlines()
        if MACHINE.search(line)
    ]
    assert told == []


def test_a_line_is_found_where_it_is_first_said() -> None:
    assert records.root_line("one\ntwo\ntwo", "two") == 2
    assert records.root_line("one", "two") == records.root_line("one", "") == 0


def test_a_port_becomes_the_usual_one_and_nothing_else_does() -> None:
    assert records.publishable("http://127.0.0.1:41234 pid=412345", 41234) == "http://127.0.0.1:8000 pid=412345"
