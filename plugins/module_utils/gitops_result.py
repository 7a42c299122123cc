# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a pull leaves behind: its result for people and programs, numbers for the node exporter, its own memory."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from ansible_collections.llmops.vllm.plugins.module_utils.directories import replace_file

OUTCOMES = ("deployed", "unchanged", "refused", "broken", "failed", "held", "unreachable")
GOOD = ("deployed", "unchanged")
SCHEMA = 1
_LONGEST_REASON = 4000
_ANSI = re.compile(r"\x1b\[[0-9;]*m")


@dataclass
class Result:
    """One pull. Times are seconds since the epoch.

    ``commit`` is what the repository offered, ``deployed_commit`` what the host has after all. ``service_touched`` says
    whether a launch of any instance on the host ended or began meanwhile.
    """

    host: str
    url: str
    revision: str
    started: float
    finished: float = 0.0
    outcome: str = "failed"
    reason: str = ""
    commit: str = ""
    subject: str = ""
    signer: str = ""
    key: str = ""
    deployed_commit: str = ""
    service_touched: bool = False
    exit_status: int | None = None

    def document(self) -> dict[str, Any]:
        """Return the result as JSON holds it; times are in UTC."""
        values = asdict(self)
        for name in ("started", "finished"):
            values[name] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(values[name]))
        return {"schema": SCHEMA, **values, "duration_seconds": round(self.finished - self.started, 1)}

    def sentence(self) -> str:
        """Return the result in one line, for the journal."""
        what = f"{self.revision} ({self.commit[:12]})" if self.commit else self.revision
        has = f"; the host has {self.deployed_commit[:12]}" if self.deployed_commit not in ("", self.commit) else ""
        return f"{self.outcome}: {what}{has}{': ' if self.reason else ''}{self.reason}"


@dataclass
class Memory:
    """What a pull has to know of the ones before. It counts only for the same repository and revision."""

    url: str = ""
    revision: str = ""
    commit: str = ""
    deployed_at: float = 0.0
    held: str = ""
    counts: dict[str, int] = field(default_factory=dict)

    def about(self, url: str, revision: str) -> Memory:
        """Return the memory as far as it is about this repository and revision."""
        if (self.url, self.revision) == (url, revision):
            return self
        return Memory(url=url, revision=revision, deployed_at=self.deployed_at, counts=self.counts)

    def count(self, outcome: str) -> None:
        """Add one to the pulls that ended so."""
        self.counts[outcome] = self.counts.get(outcome, 0) + 1


def read_memory(path: str) -> Memory:
    """Return what the file at ``path`` holds; one that is missing or no longer understood is an empty memory."""
    try:
        with open(path, encoding="utf-8") as stream:
            values = json.load(stream)
        return Memory(**values)
    except (OSError, ValueError, TypeError):
        return Memory()


def write_json(path: str, value: Any, mode: int = 0o640) -> None:
    """Write ``value`` to ``path``, whole or not at all."""
    write_text(path, json.dumps(value, indent=2, sort_keys=True) + "\n", mode)


def write_text(path: str, text: str, mode: int = 0o640) -> None:
    """Write ``text`` to ``path``, whole or not at all."""
    replace_file(path, text.encode("utf-8"), mode)


def metrics(result: Result, memory: Memory) -> str:
    """Return the result in the text format of the node exporter's textfile collector."""
    seconds = round(result.finished - result.started, 1)
    labels = {"revision": result.revision, "commit": result.commit, "deployed_commit": result.deployed_commit}
    touched = int(result.service_touched)
    outcomes = [(_labels({"outcome": name}), int(name == result.outcome)) for name in OUTCOMES]
    runs = [(_labels({"outcome": name}), memory.counts.get(name, 0)) for name in OUTCOMES]
    families: list[tuple[str, str, str, Sequence[tuple[str, float]]]] = [
        ("last_run_timestamp_seconds", "gauge", "When the last pull ended.", [("", round(result.finished))]),
        ("last_success_timestamp_seconds", "gauge", "When one last succeeded.", [("", round(memory.deployed_at))]),
        ("last_run_duration_seconds", "gauge", "How long the last pull took.", [("", seconds)]),
        ("outcome", "gauge", "1 for how the last pull ended.", outcomes),
        ("runs_total", "counter", "Pulls by how they ended.", runs),
        ("service_touched", "gauge", "1 if the last pull ended or began a launch.", [("", touched)]),
        ("info", "gauge", "What the host follows and has.", [(_labels(labels), 1)]),
    ]
    lines = [line for family in families for line in _family(*family)]
    return "\n".join(lines) + "\n"


def _family(name: str, kind: str, help_text: str, samples: Sequence[tuple[str, float]]) -> list[str]:
    full = f"llmops_gitops_{name}"
    return [
        f"# HELP {full} {help_text}",
        f"# TYPE {full} {kind}",
        *(f"{full}{labels} {value}" for labels, value in samples),
    ]


def _labels(values: dict[str, str]) -> str:
    escaped = (
        '{}="{}"'.format(name, value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n"))
        for name, value in values.items()
    )
    return "{" + ",".join(escaped) + "}"


def why(lines: Sequence[str]) -> str:
    """Return why a run of ansible-playbook failed, from its output: its errors, or else its last words."""
    clean = [_ANSI.sub("", line).rstrip() for line in lines]
    marks = ("fatal: ",) if any(line.startswith("fatal: ") for line in clean) else ("[ERROR]", "ERROR!")
    blocks = [_block(clean, number) for number, line in enumerate(clean) if line.startswith(marks)]
    said = max((_message(block) for block in blocks), key=len, default=[line for line in clean if line][-5:])
    return "\n".join(said)[:_LONGEST_REASON]


def _block(lines: Sequence[str], start: int) -> list[str]:
    block = [lines[start]]
    for line in lines[start + 1 :]:
        if not line or line.startswith(("TASK [", "PLAY ", "fatal: ", "[ERROR]", "ok: ", "changed: ")):
            break
        block.append(line)
    return block


def _message(block: list[str]) -> list[str]:
    """Return what a failed task says of itself, where its result is shown as YAML, or else all of it."""
    start = next((number for number, line in enumerate(block) if line.startswith("    msg:")), None)
    if start is None:
        return block
    end = next((n for n in range(start + 1, len(block)) if not block[n].startswith("     ")), len(block))
    first = block[start].strip()[len("msg:") :].strip(" '|>-")
    return [line for line in [first, *(line.strip() for line in block[start + 1 : end])] if line]
