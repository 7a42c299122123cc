from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from ansible_collections.llmops.vllm.plugins.module_utils import known_hazards, related_findings
from ansible_collections.llmops.vllm.plugins.module_utils.diagnosis_causes import CAUSES, OUTSIDE_CAUSES
from ansible_collections.llmops.vllm.plugins.module_utils.errors import InvalidInputError
from ansible_collections.llmops.vllm.plugins.module_utils.related_findings import (
    RELATED,
    check_findings,
    related,
    stored_findings,
)

LIBRARIES = Path(related_findings.__file__).parent
LAUNCH = "1" * 32


def finding(name, severity="warn"):
    return {"id": name, "severity": severity, "what": f"{name} is so.", "evidence": "seen", "remedy": "do it"}


def ids(findings):
    return [one["id"] for one in findings]


def test_only_findings_that_can_be_behind_the_cause_are_told_the_worst_first():
    findings = [finding("shm_small"), finding("clock"), finding("shm_too_small", "no_go")]
    assert ids(related(findings, "cause", "shm_exhausted")) == ["shm_too_small", "shm_small"]
    assert related(findings, "cause", "cuda_oom") == []


def test_a_hang_has_findings_and_a_healthy_launch_has_none():
    findings = [finding("acs_redirects"), finding("clock")]
    assert ids(related(findings, "hang", "")) == ["acs_redirects"]
    assert related(findings, "healthy", "") == []


@pytest.mark.parametrize(("verdict", "cause_class"), [("insufficient_evidence", ""), ("cause", "unclassified")])
def test_where_no_cause_is_known_all_are_told(verdict, cause_class):
    assert ids(related([finding("clock", "info"), finding("x")], verdict, cause_class)) == ["x", "clock"]


def test_every_finding_that_the_preflight_has_is_related_to_something():
    known = {hazard["id"] for hazard in known_hazards.KNOWN_HAZARDS}
    for path in LIBRARIES.glob("*.py"):
        text = path.read_text()
        if (path.name != "related_findings.py" and "import Finding" in text) or path.name == "checkpoint.py":
            known |= set(re.findall(r"(?:Finding|Problem)\(\s*\"([a-z0-9_]+)\"", text))
    assert len(known) > 50
    assert known - set(RELATED) == set()


def test_related_classes_exist():
    classes = {cause.cause_class for cause in (*CAUSES, *OUTSIDE_CAUSES)} | {"*", "hang", "nccl_p2p_hang"}
    assert {name for names in RELATED.values() for name in names} - classes == set()


def test_findings_of_another_form_are_refused():
    assert check_findings([finding("clock")]) == [finding("clock")]
    for wrong in ({"id": "x"}, {"what": "x"}, "x"):
        with pytest.raises(InvalidInputError, match="finding 2 has no id"):
            check_findings([finding("clock"), wrong])


def write_receipt(root, release, content):
    folder = root / "releases/kimi" / release
    folder.mkdir(parents=True)
    (folder / "release.json").write_text(json.dumps(content))


def test_findings_are_read_from_the_receipt_of_this_launch_alone(tmp_path):
    kept = {"evidence": {"preflight": {"findings": [finding("clock"), "x", {"id": "y"}]}}}
    write_receipt(tmp_path, "a", {"invocation_id": LAUNCH, **kept})
    write_receipt(tmp_path, "b", {"invocation_id": "2" * 32, "evidence": {"preflight": None}})
    assert ids(stored_findings(str(tmp_path), "kimi", LAUNCH)) == ["clock"]
    assert stored_findings(str(tmp_path), "kimi", "2" * 32) == []
    assert stored_findings(str(tmp_path), "kimi", "3" * 32) == []
    assert stored_findings(str(tmp_path / "none"), "kimi", LAUNCH) == []
