# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a run of Ansible did, host by host, as one JSON document and as JUnit XML.

Tasks are told here as they end; what Ansible hides (``no_log``) arrives hidden. Only messages, facts made for this
purpose and the results of the gate are kept, never arguments of tasks.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Callable
from xml.etree import ElementTree

from ansible_collections.llmops.vllm.plugins.module_utils.errors import InvalidInputError
from ansible_collections.llmops.vllm.plugins.module_utils.plain_json import plain_json
from ansible_collections.llmops.vllm.plugins.module_utils.redaction import without_secrets

SCHEMA = "llmops.vllm/run"
SCHEMA_VERSION = 1
MESSAGE_CHARACTERS = 8000
GATE = ("llmops.vllm.launch_gate", "launch_gate")
SWITCH = ("llmops.vllm.release_switch", "release_switch")
INSTANCE_INFO = ("llmops.vllm.vllm_instance_info", "vllm_instance_info")
LOOK = ("llmops.vllm.drift_info", "drift_info")
_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
# From best to worst.
OUTCOMES = ("ok", "changed", "failed", "unreachable")
Summaries = Mapping[str, Mapping[str, int]]


@dataclass(frozen=True)
class TaskEnd:
    """How one task ended on one host; times are seconds since the epoch.

    ``status`` is ok, changed, skipped, failed, ignored or unreachable.
    """

    host: str
    task: str
    action: str
    status: str
    started: float
    ended: float
    values: Mapping[str, Any]


@dataclass
class HostRecord:
    """What is known of one host so far."""

    ends: list[TaskEnd] = field(default_factory=list)
    before: str | None = None
    wanted: str | None = None
    after: str | None = None
    gate: Mapping[str, Any] = field(default_factory=dict)
    facts: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    failures: list[dict[str, str]] = field(default_factory=list)


class RunReport:
    """Collects the ends of tasks and renders them."""

    def __init__(self, playbook: str, check_mode: bool, started: float) -> None:
        self._playbook = playbook
        self._check_mode = check_mode
        self._started = started
        self._hosts: dict[str, HostRecord] = {}

    def add(self, end: TaskEnd) -> None:
        """Take in the end of one task."""
        record = self._hosts.setdefault(end.host, HostRecord())
        record.ends.append(end)
        if end.status in ("failed", "unreachable"):
            record.failures.append({"task": clean(end.task), "message": message_of(end.values)})
        if end.action in GATE and end.values.get("verdict"):
            record.gate = end.values
        if end.action in INSTANCE_INFO and record.before is None and "current" in end.values:
            record.before = _release_of(end.values["current"])
        if end.action in LOOK and {"current", "expected"} <= end.values.keys():
            record.before = str(end.values["current"]) if record.before is None else record.before
            record.wanted = str(end.values["expected"])
        if end.action in SWITCH and "current" in end.values:
            record.after = str(end.values["current"])
        facts = end.values.get("ansible_facts")
        for name in ("vllm_service_result", "vllm_drift_result"):
            if isinstance(facts, Mapping) and isinstance(facts.get(name), Mapping):
                record.facts[name] = facts[name]

    def document(self, ended: float, summaries: Summaries, time_of: Callable[[float], str]) -> dict[str, Any]:
        """Return the JSON document.

        ``summaries`` are Ansible's own counts for each host, which know what a rescue has made good; ``time_of``
        renders seconds since the epoch.
        """
        hosts = {name: _host_document(record, summaries.get(name, {})) for name, record in sorted(self._hosts.items())}
        outcomes = [host["outcome"] for host in hosts.values()]
        return {
            "schema": SCHEMA,
            "schema_version": SCHEMA_VERSION,
            "playbook": self._playbook,
            "check_mode": self._check_mode,
            "started": time_of(self._started),
            "ended": time_of(ended),
            "duration_seconds": round(ended - self._started, 3),
            "outcome": max(outcomes, key=OUTCOMES.index, default="ok"),
            "hosts": hosts,
        }

    def junit(self, ended: float, summaries: Summaries, time_of: Callable[[float], str]) -> str:
        """Return the run as JUnit XML: a suite for each host, a case for each task and each drift that was found."""
        root = ElementTree.Element("testsuites", name=clean(self._playbook), time=f"{ended - self._started:.3f}")
        for name, record in sorted(self._hosts.items()):
            good = outcome_of(summaries.get(name, {})) in ("ok", "changed")
            cases = [_case_of(name, end, good) for end in record.ends if end.status != "skipped"]
            cases += _drift_cases(name, record)
            failures = sum(1 for case in cases if case.find("failure") is not None)
            suite = ElementTree.SubElement(
                root,
                "testsuite",
                name=clean(name),
                tests=str(len(cases)),
                failures=str(failures),
                timestamp=time_of(self._started),
            )
            suite.extend(cases)
        ElementTree.indent(root)
        return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def _release_of(current: Any) -> str:
    return str(current.get("release_id", "")) if isinstance(current, Mapping) else ""


def _host_document(record: HostRecord, summary: Mapping[str, int]) -> dict[str, Any]:
    service = record.facts.get("vllm_service_result", {})
    drift = record.facts.get("vllm_drift_result")
    verdict = record.gate.get("verdict")
    return {
        "outcome": outcome_of(summary),
        "tasks": dict(sorted(summary.items())),
        "release": {
            "before": record.before,
            "wanted": _text(service.get("id", record.wanted)),
            "after": record.before if record.after is None else clean(record.after),
        },
        "launch": {
            "invocation_id": _text(record.gate.get("invocation_id")),
            "verdict": _text(verdict),
            "timeline": plain_or_none(record.gate.get("timeline")) or [],
        }
        if record.gate
        else None,
        "drift": plain_or_none(drift),
        "failures": record.failures,
    }


def outcome_of(summary: Mapping[str, int]) -> str:
    """Return the outcome of a host with these counts; what was rescued or ignored is no failure."""
    counted = {"unreachable": "unreachable", "failures": "failed", "changed": "changed"}
    return next((outcome for name, outcome in counted.items() if summary.get(name)), "ok")


def _text(value: Any) -> str | None:
    return None if value is None else clean(str(value))


def plain_or_none(value: Any) -> Any:
    """Return ``value`` as plain JSON without secrets, or None for what is none."""
    try:
        return _cleaned(plain_json(value))
    except InvalidInputError:
        return None


def _cleaned(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _cleaned(member) for key, member in value.items()}
    if isinstance(value, list):
        return [_cleaned(member) for member in value]
    return clean(value) if isinstance(value, str) else value


def clean(text: str) -> str:
    """Return ``text`` without what looks like a secret and what XML cannot hold, cut to a readable length."""
    return _NOT_XML.sub("", without_secrets(text))[:MESSAGE_CHARACTERS]


def message_of(values: Mapping[str, Any]) -> str:
    """Return what a result says in words."""
    for name in ("msg", "censored", "stderr", "reason"):
        said = values.get(name)
        if said:
            return clean("\n".join(map(str, said)) if isinstance(said, list) else str(said))
    return ""


def _case_of(host: str, end: TaskEnd, made_good: bool) -> ElementTree.Element:
    case = ElementTree.Element(
        "testcase", classname=clean(host), name=clean(end.task), time=f"{max(0.0, end.ended - end.started):.3f}"
    )
    message = message_of(end.values)
    if end.status in ("failed", "unreachable") and not made_good:
        failure = ElementTree.SubElement(case, "failure", type=end.status, message=message.partition("\n")[0])
        failure.text = message
    elif end.status in ("failed", "unreachable", "ignored"):
        ElementTree.SubElement(case, "system-out").text = message
    return case


def _drift_cases(host: str, record: HostRecord) -> list[ElementTree.Element]:
    """Return a case for each difference, or one that passes when there is none."""
    drift = record.facts.get("vllm_drift_result")
    if drift is None:
        return []
    cases = []
    for finding in drift.get("findings") or []:
        name = f"{finding.get('kind')}: {finding.get('where')}"
        case = ElementTree.Element("testcase", classname=f"{clean(host)}.drift", name=clean(name), time="0")
        ElementTree.SubElement(case, "failure", type="drift", message=clean(str(finding.get("what"))))
        cases.append(case)
    return cases or [ElementTree.Element("testcase", classname=f"{clean(host)}.drift", name="no drift", time="0")]


def write_atomically(path: str, content: bytes) -> None:
    """Replace ``path`` by ``content``; a reader sees the old or the new one. Raises OSError."""
    directory = os.path.dirname(os.path.abspath(path))
    os.makedirs(directory, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(prefix=".llmops-", dir=directory)
    try:
        with open(descriptor, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(temporary, 0o644)  # a report is for others to read, and holds no secret
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise
