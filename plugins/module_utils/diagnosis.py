# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Why a launch failed: the root line, not the last one.

A small engine over ``diagnosis_causes``: it finds the lines that can be a root (exceptions, native markers), drops
wrappers, noise and what the launch survived, and takes the earliest that is known, else the earliest. Without such a
line there is no cause: the verdict is then ``insufficient_evidence``, or ``hang`` when the log ends in waiting, never
a guess.

Usable alone: ``python -m ansible_collections.llmops.vllm.plugins.module_utils.diagnosis [--json] FILE...``.
"""

from __future__ import annotations

import json
import re
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain, islice
from typing import Any

from ansible_collections.llmops.vllm.plugins.module_utils.diagnosis_lines import TAIL_LINES, WORTH, lines_of_log
from ansible_collections.llmops.vllm.plugins.module_utils.diagnosis_prefixes import Line, LineParser
from ansible_collections.llmops.vllm.plugins.module_utils.diagnosis_report import report
from ansible_collections.llmops.vllm.plugins.module_utils.diagnosis_roots import Found, Launch, unwrapped
from ansible_collections.llmops.vllm.plugins.module_utils.phases import WAITING
from ansible_collections.llmops.vllm.plugins.module_utils.redaction import without_secrets

MAX_TEXT = 2000
MAX_CONTEXT = 240
FIRST_LINES = 64
WAITS = 3
# So many lines may follow the last of them, or the engine had gone on.
AFTER_WAITS = 3

_STATISTICS = re.compile(
    r"Avg prompt throughput: (?P<prompt>[\d.]+) .*generation throughput: (?P<answer>[\d.]+) "
    r".*?Running: (?P<running>\d+).*?(?:Waiting|Pending): (?P<waiting>\d+)"
)
_DIED = re.compile(r"(?:Worker|Engine core) proc \S+ died unexpectedly|\bpid \d+ died\b")
_LAST_BEFORE_PEERS = re.compile(r"vLLM is using nccl==|NCCL version \d")
_NOTHING = (
    "nothing in this launch's own lines names a cause; look at the kernel log (OOM killer, Xid) and at `systemctl "
    "status` of the unit for a kill from outside"
)


@dataclass(frozen=True)
class Evidence:
    """A line that proves something, with the process that wrote it and the time as far as they are known."""

    text: str
    process: str
    time: str
    line: int


@dataclass(frozen=True)
class Diagnosis:
    """``verdict`` is cause, insufficient_evidence, hang or healthy; ``evidence`` starts with the root line."""

    verdict: str
    cause_class: str = ""
    title: str = ""
    remedy: str = ""
    confidence: float = 0.0
    source: str = ""
    misleading_last_line: str = ""
    evidence: list[Evidence] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as plain values for a module's result."""
        return asdict(self)


class _Log:
    """What was read: the launches in it, the last root found, and the last lines."""

    def __init__(self) -> None:
        self.launch = Launch()
        self.tail: deque[Line] = deque(maxlen=TAIL_LINES)
        self._parser = LineParser()
        self._earlier: Found | None = None

    def read(self, lines: Iterable[Line]) -> None:
        """Take the lines of a log, in their order."""
        worth = self._telling(lines)
        first = list(islice(worth, FIRST_LINES))
        for line in first:
            # What frames the log has shows only in some of its lines.
            self._parser.parse(line)
        for line in chain(first, worth):
            self._feed(self._parser.parse(line))

    def _telling(self, lines: Iterable[Line]) -> Iterator[Line]:
        """Return the lines that can matter; the others are seen only if they are among the last."""
        in_tail = False
        for line in lines:
            if line.in_tail and not in_tail:
                self.tail.clear()
                in_tail = True
            if not line.text or line.text.isspace():
                continue
            self.tail.append(line)
            if not in_tail and WORTH.search(line.text):
                yield line

    def _feed(self, line: Line) -> None:
        if self.launch.starts_again(line):
            self._earlier = self.launch.root() or self._earlier
            self.launch = Launch()
            self.launch.starts_again(line)
        self.launch.feed(line)

    def root(self) -> Found | None:
        """Return the root of the last launch that has one."""
        return self.launch.root() or self._earlier

    def last_words(self) -> list[Line]:
        """Return the last lines of the engine, parsed."""
        parsed = [self._parser.parse(line) for line in self.tail]
        return [line for line in parsed if not line.from_manager]


def diagnose(lines: Iterable[Line]) -> Diagnosis:
    """Return the verdict over the lines of one launch, or of a log that holds several."""
    log = _Log()
    log.read(lines)
    words = log.last_words()
    last = _shorten(words[-1].text.strip(), MAX_CONTEXT) if words else ""
    found = log.root()
    if found is not None:
        # A last line that says the root's own words is not misleading.
        return _with_root(found, "" if words and words[-1].body in unwrapped(found.line).body else last)
    if log.launch.listening and not log.launch.died:
        since = [line for line in words if line.number > log.launch.listening]
        return _stuck(since) or Diagnosis(verdict="healthy", confidence=0.8)
    if log.launch.outside is not None:
        return _with_root(log.launch.outside, last)
    return (None if log.launch.ended else _stuck(words)) or _undecided(words, last)


def _undecided(words: Sequence[Line], last: str) -> Diagnosis:
    """Return the verdict where nothing names a cause; a process that was seen to die is told all the same."""
    died = next((line for line in words if _DIED.search(line.body)), None)
    return Diagnosis(
        verdict="insufficient_evidence",
        title="a process of the engine ended without a word of its own" if died else "",
        remedy=_NOTHING,
        confidence=0.5,
        misleading_last_line=last,
        evidence=[_evidence(died, MAX_CONTEXT)] if died else [],
    )


def _with_root(found: Found, misleading: str) -> Diagnosis:
    evidence = [_evidence(unwrapped(found.line))]
    evidence += [_evidence(line, MAX_CONTEXT, pattern) for line, pattern in found.contexts]
    cause = found.cause
    if cause is None:
        return Diagnosis(
            verdict="cause",
            cause_class="unclassified",
            title="an error that this collection does not know",
            remedy="read the lines around the evidence in the journal of this launch; its traceback names the code",
            confidence=0.4,
            misleading_last_line=misleading,
            evidence=evidence,
        )
    return Diagnosis(
        verdict="cause",
        cause_class=cause.cause_class,
        title=cause.title,
        remedy=cause.remedy,
        confidence=0.95 if found.contexts else cause.confidence,
        source=cause.source + (f" ({cause.versions})" if cause.versions else ""),
        misleading_last_line=misleading,
        evidence=evidence,
    )


def _stuck(words: Sequence[Line]) -> Diagnosis | None:
    """Return the verdict ``hang`` when the log ends in waiting, otherwise ``None``."""
    waits = [position for position, line in enumerate(words) if WAITING.search(line.body)]
    idle = _idle_with_requests(words)
    if idle is not None:
        return _hang(idle, "requests wait and no token is generated", 0.7)
    if len(waits) >= WAITS and len(words) - waits[-1] <= AFTER_WAITS and waits[-1] - waits[-WAITS] <= 2 * WAITS:
        return _hang(words[waits[-1]], "the engine waits for one of its processes that does not move", 0.6)
    if words and _LAST_BEFORE_PEERS.search(words[-1].body):
        return _hang(words[-1], "the log ends where the GPUs first talk to each other", 0.4)
    return None


def _idle_with_requests(words: Sequence[Line]) -> Line | None:
    """Return the last statistics line if the last few all have requests and no throughput."""
    matches = [(line, match) for line in words if (match := _STATISTICS.search(line.body))][-WAITS:]
    idle = [
        line
        for line, match in matches
        if float(match["prompt"]) == 0 == float(match["answer"]) and int(match["running"]) + int(match["waiting"])
    ]
    return idle[-1] if len(idle) == WAITS else None


def _hang(line: Line, title: str, confidence: float) -> Diagnosis:
    return Diagnosis(
        verdict="hang",
        title=title,
        remedy="look at the stacks of the engine's processes (py-spy dump) and at the GPUs' load; test the "
        "peer-to-peer path (IOMMU, ACS, NCCL_P2P_LEVEL); end the launch with process_teardown",
        confidence=confidence,
        evidence=[_evidence(line, MAX_CONTEXT)],
    )


def _shorten(text: str, limit: int, around: re.Pattern[str] | None = None) -> str:
    """Return ``text`` without secrets, and of a longer one the ``limit`` characters that matter."""
    text = without_secrets(text)
    if len(text) <= limit:
        return text
    match = around.search(text) if around else None
    start = max(0, match.start() - limit // 6) if match else 0
    return f"{'…' if start else ''}{text[start : start + limit]}…"


def _evidence(line: Line, limit: int = MAX_TEXT, around: re.Pattern[str] | None = None) -> Evidence:
    return Evidence(_shorten(line.text.strip(), limit, around), line.process, line.time, line.number)


def _summary(name: str, found: Diagnosis) -> dict[str, Any]:
    root = found.evidence[0] if found.evidence else None
    return {
        "file": name,
        "verdict": found.verdict,
        "cause_class": found.cause_class or None,
        "line": root.line if root else None,
        "evidence": root.text if root else None,
        "process": (root.process or None) if root else None,
        "remedy": found.remedy or None,
        "confidence": found.confidence,
    }


def main(argv: Sequence[str]) -> int:
    """Diagnose the files named in ``argv``; ``--json`` prints one object a line."""
    as_json = "--json" in argv
    files = [name for name in argv if name != "--json"]
    if not files or any(name.startswith("--") for name in files):
        sys.stderr.write("usage: diagnosis [--json] FILE...    (- reads the standard input)\n")
        return 2
    status = 0
    for name in files:
        try:
            with sys.stdin.buffer if name == "-" else open(name, "rb") as stream:
                found = diagnose(lines_of_log(stream))
        except OSError as exc:
            sys.stderr.write(f"{name} cannot be read: {exc.strerror}.\n")
            status = 1
            continue
        sys.stdout.write((json.dumps(_summary(name, found)) if as_json else report(name, found.as_dict())) + "\n")
    return status


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
