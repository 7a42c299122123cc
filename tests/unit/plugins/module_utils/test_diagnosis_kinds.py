"""The diagnosis over made-up logs of every kind of failure that it is known to meet."""

from __future__ import annotations

import re

import pytest
from ansible_collections.llmops.vllm.plugins.module_utils.diagnosis import diagnose
from ansible_collections.llmops.vllm.plugins.module_utils.diagnosis_lines import lines_of_entries, lines_of_text
from ansible_collections.llmops.vllm.plugins.module_utils.journal import Entry, clean
from ansible_collections.llmops.vllm.tests.unit.failure_kinds import arguments, engine, frames, host, names, natives

OF_THE_JOURNAL = (*engine.KINDS, *host.KINDS, *natives.KINDS, *names.KINDS, *arguments.KINDS)
KINDS = (*OF_THE_JOURNAL, *frames.KINDS)

# Their logs tell of a failure above the root line too, in fewer words or of another launch.
TOLD_BEFORE = (
    "remote code that nobody allowed",
    "two attempts that fail in different ways",
    "a JSON formatter, and an exception that was survived",
    "memory pressure",
    "an image that wants a newer driver",
    "a C++ exception that nobody catches",
)


def check(kind, found):
    shown = found.evidence[0].text if found.evidence else ""
    assert (found.verdict, found.cause_class) == kind.expected, shown
    assert re.search(kind.root, shown)


def entries(log):
    """The lines of a log as journald has them: what systemd and the kernel say is known to be theirs."""
    for line in log.splitlines():
        host = re.match(r"Mar 01 \S+ gpu-1 (?:systemd\[1\]|kernel): (.*)", line)
        yield Entry(1_772_359_260_000_000, 1 if host else 102, host[1] if host else clean(line), "stdout", bool(host))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_kind_of_failure_is_named_with_its_root_line(kind):
    check(kind, diagnose(lines_of_text(kind.log)))


@pytest.mark.parametrize("kind", OF_THE_JOURNAL, ids=lambda kind: kind.name)
def test_a_kind_of_failure_is_named_from_the_entries_of_a_journal_too(kind):
    check(kind, diagnose(lines_of_entries(entries(kind.log))))


SILENT_BEFORE = [kind for kind in KINDS if kind.cause_class and kind.name not in TOLD_BEFORE]


@pytest.mark.parametrize("kind", SILENT_BEFORE, ids=lambda kind: kind.name)
def test_no_cause_is_invented_where_the_log_ends_before_its_root_line(kind):
    root = diagnose(lines_of_text(kind.log)).evidence[0].line
    before = "".join(kind.log.splitlines(keepends=True)[: root - 1])
    found = diagnose(lines_of_text(before))
    assert found.verdict != "cause", found.evidence[0].text
