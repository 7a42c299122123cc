"""The page of the documentation that holds what the preflight said against what became of each launch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ansible_collections.llmops.vllm.tests.launches.cases import SECTIONS, SERVES, Case
from ansible_collections.llmops.vllm.tests.launches.records import ending

PAGE = Path(__file__).parents[2] / "docs/preflight-launches.md"


def told(case: Case, record: dict[str, Any]) -> str:
    """Return one line about a trial, for whoever waits."""
    preflight, engine = record["preflight"], record.get("engine", {})
    ids = ", ".join(preflight["no_go"]) or preflight["msg"]
    right = (preflight["verdict"] == "no_go") != (case.ends == SERVES)
    as_expected = engine.get("ends", case.ends) == case.ends and (
        case.finding in preflight["no_go"] or not case.finding
    )
    mark = "right" if right and as_expected else "LOOK " if right else "WRONG"
    tokens = f"; tokens {preflight['kv_tokens']} / {engine.get('kv_tokens')}" if engine.get("kv_tokens") else ""
    return (
        f"{mark} {case.name}: {preflight['verdict']} ({ids}); engine {engine.get('ends')} "
        f"in {engine.get('seconds')} s, root at line {engine.get('root_line')}{tokens}"
    )


def counts(known: dict[str, Any]) -> dict[str, Any]:
    """Return launches, missed failures, false alarms, and the largest error of the tokens reckoned, in percent."""
    missed, alarms, errors = [], [], [0.0]
    cases = [case for cases in SECTIONS.values() for case in cases if "engine" in known.get(case.name, {})]
    for case in cases:
        record = known[case.name]
        refused, serves = record["preflight"]["verdict"] == "no_go", ending(case, record, known) == SERVES
        if refused == serves:
            (alarms if refused else missed).append(case.name)
        logged, reckoned = record["engine"]["kv_tokens"], record["preflight"]["kv_tokens"]
        if serves and logged:
            errors.append(abs((reckoned or 0) / logged - 1) * 100)
    return {
        "launches": len(cases), "missed": missed, "false_alarms": alarms,
        "kv_tokens_error_percent": round(max(errors), 3),
    }  # fmt: skip


def write(known: dict[str, Any]) -> None:
    """Write the page."""
