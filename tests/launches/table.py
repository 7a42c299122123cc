"""The page of the documentation that holds what the preflight said against what became of each launch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ansible_collections.llmops.vllm.tests.launches.cases import CASES, SECTIONS, SERVES, Case
from ansible_collections.llmops.vllm.tests.launches.records import Record, ending, load, tried

PAGE = Path(__file__).parents[2] / "docs/preflight-launches.md"
COMMAND = "make launches"
HEADINGS = ("Launch", "The preflight", "The engine", "Class", "Root line", "KV tokens: reckoned, logged")
INTRODUCTION = f"""\
# What the preflight says, and what the engine does

Every row is a launch of the real engine (vLLM 0.32.0 for the CPU, tiny models), and this page is written by
`{COMMAND}`: `launch_preflight` is asked about a release, then that release is started as its unit starts it, and asked
for a completion and a chat as soon as it says that it is healthy. Both happen in a sandbox with the paths of a host,
and the engine runs under a user without privileges. A row is right when the verdict is `no_go` exactly where the launch
does not end in the right answers.

- *The preflight*: the verdict, and the findings that are `no_go`.
- *The engine*: "serves" is a right completion and a chat. "dies" is an end before it listens, "dies at the first
  request" an end, or a refusal, after it has called itself healthy, and "answers wrongly" are completions whose tokens
  are not those of the unharmed model. In brackets: what the same version was seen to do, not yet tried by this script.
- *Class* and *Root line*: what the diagnosis makes of the launch's log, and the line of that log. The logs are in
  `tests/launches/logs`, where the unit tests hold the diagnosis against them.
- *KV tokens*: what the preflight reckoned, and what the engine logged at its start.
- What systemd says of a unit's limits is played by a script in the sandbox.
"""


@dataclass(frozen=True)
class Counts:
    """What the table comes to: numbers of cases that were asked about and launched; names of those that went wrong."""

    asked: int
    launches: int
    missed: list[str]
    false_alarms: list[str]
    kv_tokens_error_percent: float
    kv_tokens_compared: int


def counts(known: dict[str, Record], cases: Iterable[Case] = CASES) -> Counts:
    """Return what the table comes to, or some of its cases."""
    asked = [case for case in cases if case.name in known]
    refused = {case.name: known[case.name]["preflight"]["verdict"] == "no_go" for case in asked}
    serves = {case.name: ending(case, known) == SERVES for case in asked}
    errors = [
        abs((known[case.name]["preflight"]["kv_tokens"] or 0) / known[case.name]["engine"]["kv_tokens"] - 1) * 100
        for case in asked
        if tried(case, known) and serves[case.name] and known[case.name]["engine"]["kv_tokens"]
    ]
    return Counts(
        asked=len(asked),
        launches=sum(tried(case, known) for case in asked),
        missed=[name for name in refused if not refused[name] and not serves[name]],
        false_alarms=[name for name in refused if refused[name] and serves[name]],
        kv_tokens_error_percent=round(max(errors, default=0.0), 3),
        kv_tokens_compared=len(errors),
    )


def told(case: Case, record: Record) -> str:
    """Return one line about a trial, for whoever waits."""
    preflight, engine = record["preflight"], record.get("engine", {})
    ids = ", ".join(preflight["no_go"]) or preflight["msg"]
    right = (preflight["verdict"] == "no_go") != (case.ends == SERVES)
    ends = ending(case, {**load(), case.name: record})
    expected = ends == case.ends and (case.finding in preflight["no_go"] or not case.finding)
    mark = "right" if right and expected else "LOOK " if right else "WRONG"
    tokens = f"; tokens {preflight['kv_tokens']} / {engine.get('kv_tokens')}" if engine.get("kv_tokens") else ""
    return (
        f"{mark} {case.name}: {preflight['verdict']} ({ids}); engine {ends} "
        f"in {engine.get('seconds')} s, root at line {engine.get('root_line')}{tokens}"
    )


def _cells(case: Case, known: dict[str, Record]) -> Iterable[str]:
    record = known[case.name]
    found = ", ".join(f"`{name}`" for name in record["preflight"]["no_go"])
    yield case.what
    yield f"{record['preflight']['verdict']}: {found}" if found else record["preflight"]["verdict"]
    if not tried(case, known):
        yield from (f"({case.ends})", f"`{case.cause_class}`" if case.cause_class else "", "", "")
        return
    engine = record["engine"]
    yield ending(case, known)
    yield f"`{case.cause_class}`" if case.cause_class else ""
    line = engine["root_line"]
    yield f"[{case.name}.log](../tests/launches/logs/{case.name}.log), {line}" if line else ""
    served = engine["kv_tokens"] and ending(case, known) == SERVES
    yield f"{record['preflight']['kv_tokens']}, {engine['kv_tokens']}" if served else ""


def _line(cells: Iterable[str]) -> str:
    told = [cell.replace("|", "\\|") for cell in cells]
    return f"| {' | '.join(told)} |\n"


def page(known: dict[str, Record]) -> str:
    """Return the whole page."""
    found = counts(known)
    sums = (
        f"\n**{found.asked} questions, {found.launches} launches; failures missed: {len(found.missed)}; false alarms: "
        f"{len(found.false_alarms)}.** KV tokens, of {found.kv_tokens_compared} launches: off by at most "
        f"{found.kv_tokens_error_percent:g} %.\n"
    )
    text = INTRODUCTION + sums
    for title, cases in SECTIONS.items():
        text += f"\n## {title}\n\n{_line(HEADINGS)}|{' --- |' * len(HEADINGS)}\n"
        text += "".join(_line(_cells(case, known)) for case in cases if case.name in known)
    return text


def write(known: dict[str, Record]) -> dict[str, Any]:
    """Write the page; return what the table comes to."""
    PAGE.write_text(page(known), encoding="utf-8")
    return vars(counts(known))
