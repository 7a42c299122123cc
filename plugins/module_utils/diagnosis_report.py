# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A diagnosis as a page for people."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import Any

WIDTH = 100
LABEL = 11
MAX_SHOWN = 600

_VERDICTS = {
    "cause": "the cause is in the log",
    "insufficient_evidence": "the log does not say why",
    "hang": "the log ends in waiting",
    "healthy": "this launch came up, and nothing ended it",
}


def report(name: str, diagnosis: dict[str, Any]) -> str:
    """Return the page for ``diagnosis``, as ``Diagnosis.as_dict`` returns it; ``name`` says what was read.

    Its key ``related``, if there is one, holds findings of the preflight.
    """
    head = f"{name}: {_VERDICTS[diagnosis['verdict']]}"
    lines = [head, "-" * min(len(head), WIDTH)]
    kind = f" ({diagnosis['cause_class']})" if diagnosis["cause_class"] else ""
    sure = f", {diagnosis['confidence']:.0%} sure" if diagnosis["verdict"] == "cause" else ""
    lines += _labelled("Cause" if kind else "Seen", f"{diagnosis['title']}{kind}{sure}") if diagnosis["title"] else []
    for number, evidence in enumerate(diagnosis["evidence"]):
        where = [f"line {evidence['line']}", evidence["process"], evidence["time"]]
        lines += _labelled("Because of" if number == 0 else "and of", ", ".join(part for part in where if part))
        lines += _quoted(evidence["text"])
    if diagnosis["misleading_last_line"]:
        lines += _labelled("Not this", "the last line only reports:" if kind else "the last line:")
        lines += _quoted(diagnosis["misleading_last_line"])
    lines += _labelled("Do", diagnosis["remedy"]) if diagnosis["remedy"] else []
    lines += _labelled("Known from", diagnosis["source"]) if diagnosis["source"] else []
    for number, finding in enumerate(diagnosis.get("related", ())):
        lines += _labelled("Foreseen" if number == 0 else "", as_line(finding))
    return "\n".join(lines) + "\n"


def as_line(finding: Mapping[str, Any]) -> str:
    """Return a finding of the preflight as one sentence with what to do."""
    severity = str(finding.get("severity", "")).upper().replace("_", "-")
    remedy = f" Remedy: {str(finding['remedy']).rstrip('.')}." if finding.get("remedy") else ""
    return f"{severity} {finding['id']}: {finding['what']} ({finding.get('evidence', '')}){remedy}"


def _labelled(label: str, text: str) -> list[str]:
    wrapped = textwrap.wrap(text, WIDTH - LABEL, break_long_words=False, break_on_hyphens=False) or [""]
    return [f"{label:<{LABEL}}{wrapped[0]}", *(" " * LABEL + line for line in wrapped[1:])]


def _quoted(text: str) -> list[str]:
    shown = text if len(text) <= MAX_SHOWN else text[:MAX_SHOWN] + "…"
    indent = " " * LABEL + "| "
    return [indent + line for line in textwrap.wrap(shown, WIDTH - len(indent), break_on_hyphens=False)]
