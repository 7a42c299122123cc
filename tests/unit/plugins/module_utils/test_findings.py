from __future__ import annotations

import pytest
from ansible_collections.llmops.vllm.plugins.module_utils.findings import Finding, as_result, report, verdict


def finding(severity):
    return Finding(f"id_{severity}", severity, f"What is {severity}.", "the evidence", "the remedy")


@pytest.mark.parametrize(
    ("severities", "expected"),
    [
        ([], "go"),
        (["info"], "go"),
        (["info", "warn"], "warn"),
        (["warn", "no_go", "info"], "no_go"),
    ],
)
def test_the_verdict_is_the_worst_finding(severities, expected):
    findings = [finding(severity) for severity in severities]
    assert verdict(findings) == expected
    assert as_result(findings) == {"verdict": expected, "findings": [found.as_dict() for found in findings]}


def test_a_report_tells_the_worst_first_with_evidence_and_remedy():
    assert report([finding("info"), finding("warn"), finding("no_go")]).splitlines() == [
        "NO-GO: What is no_go.", "  evidence: the evidence", "  remedy: the remedy",
        "WARN: What is warn.", "  evidence: the evidence", "  remedy: the remedy",
        "INFO: What is info.", "  evidence: the evidence", "  remedy: the remedy",
    ]  # fmt: skip


def test_a_report_on_nothing_is_empty():
    assert report([]) == ""


def test_a_finding_is_plain_data_for_a_result():
    assert finding("warn").as_dict() == {
        "id": "id_warn", "severity": "warn", "what": "What is warn.",
        "evidence": "the evidence", "remedy": "the remedy", "where": "", "price": "", "source": "",
    }  # fmt: skip


def test_a_report_tells_where_the_evidence_was_read_what_the_remedy_costs_and_where_the_rule_comes_from():
    found = Finding("id", "warn", "What.", "535.1", "raise it", "nvidia-smi", "a reboot", "https://example.com/rule")
    assert found.as_text().splitlines()[1:] == [
        "  evidence: 535.1 (nvidia-smi)", "  remedy: raise it", "  price: a reboot", "  source: https://example.com/rule",
    ]  # fmt: skip
