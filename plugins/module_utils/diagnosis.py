# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Why a launch failed: the root line, not the last one.

A small engine over ``diagnosis_causes``: it finds the lines that can be a root (exceptions, native markers), drops
wrappers, noise and what the launch survived, and takes the earliest that is known, else the earliest. Without such a
line there is no cause: the verdict is then ``insufficient_evidence``, never a guess.

Usable alone: ``python -m ansible_collections.llmops.vllm.plugins.module_utils.diagnosis [--json] FILE...``.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from typing import Any, NamedTuple

from ansible_collections.llmops.vllm.plugins.module_utils.diagnosis_causes import (
    CAUSES,
    MANAGER_CAUSES,
    NOISE,
    WRAPPERS,
    Cause,
)
from ansible_collections.llmops.vllm.plugins.module_utils.journal import Entry, clean

MAX_TEXT = 2000
MAX_CONTEXT = 240
REPORT_LINES = 20

# Frames that other tools put around a line: CI time stamps, compose names, syslog, pytest, torch ranks.
_FRAMES = re.compile(
    r"^(?:\[\d{4}-\d\d-\d\dT[^\]]*\] |[\w.-]+ +\| |\[\w+\.py:\d+\] "
    r"|[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \S+ (?P<unit>[^\s:]+): "
    r"|\[rank\d+\]: ?|E   +(?=[A-Za-z_.]+(?:Error|Exception)))"
)
_PROCESS = re.compile(r"^\((?P<name>[\w-]+)(?P<rank> rank=\d+)? pid=(?P<pid>\d+)(?:, ip=[^)]*)?\) ?")
_LEVEL = re.compile(
    r"^(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL) (?P<time>\d\d-\d\d \d\d:\d\d:\d\d) \[?[\w./-]+:\d+\] ?"
)
_EXCEPTION = re.compile(
    r"^(?:[A-Za-z_]\w*\.)*_?[A-Z]\w*(?:Error|Exception|Exit|Interrupt|Timeout|OutOfResources|NotFound)(?::(?:\s|$)|$)"
    r"|^(?:[a-z_]\w*\.)+[A-Z]\w*(?:Failed|Error_\w+): |^Exception(?:: |$)|^Value error, "
)
_NATIVE = re.compile(
    r"NCCL WARN|(?:ptxas|nvcc) fatal|fatal error:|nvcc: not found|Assertion `.*' failed|\*\*\* SIG\w+ received"
    r"|Watchdog caught|watchdog thread terminated with exception|^terminate called|FAILED: \[code=|uvm_spin_loop"
    r"|NVRM: Xid|ibv_reg_|Out of memory: Killed process|oom-kill|^(?:usage: )?vllm[\w. ]*: error: |^\S+\.py: error: "
    r"|Fatal Python error:"
)
# Every line worth a closer look contains one of these; most lines of a long log do not.
_WORTH = re.compile(
    r"Error|Exception|error|fatal|Fatal|NCCL WARN|not found|Assert|\*\*\* SIG|atchdog|code=|Xid|ibv_reg|oom-kill|Killed"
    r"|Exit|Interrupt|Timeout|OutOfResources|uvm_spin|Failed|failed|startup complete|\[shutdown\]|terminate called"
    r"|vLLM API server version|non-default args|fatal signal|kv_cache_dtype|kv cache|VLLM::|timed out|OOM|died|NotFound"
)
_LISTENING = re.compile(r"Application startup complete\.")
_STOPPING = re.compile(r"\[shutdown\] .*(?:shutdown triggered|trigger received)|^INFO: +Shutting down|^Stopping ")
_FATAL = re.compile(
    r"EngineDeadError|EngineCore encountered a fatal|Engine core proc \S+ died|died unexpectedly"
    r"|WorkerProc hit an exception|Got fatal signal from worker"
    r"|\*\*\* SIG\w+ received|[Ww]atchdog|Engine loop|background loop|AsyncEngineDead|MQLLMEngine|output_handler failed"
    r"|Main process exited, code=(?:killed|dumped|exited, status=[1-9])|Failed with result"
)
_LAUNCH = re.compile(r"vLLM API server version |non-default args:")
_SURVIVES_NOTHING = frozenset(
    {"port_in_use", "output_corruption_nan", "nccl_watchdog_timeout", "cuda_illegal_access", "host_oom_kill"}
)


class Line(NamedTuple):
    """One line of a launch: ``number`` counts from 1, ``body`` is the text without prefixes."""

    number: int
    text: str
    body: str = ""
    level: str = ""
    process: str = ""
    time: str = ""
    from_manager: bool = False


@dataclass(frozen=True)
class Evidence:
    """A line that proves something, with the process that wrote it and the time as far as they are known."""

    text: str
    process: str
    time: str
    line: int


@dataclass(frozen=True)
class Diagnosis:
    """``verdict`` is cause, insufficient_evidence or healthy; ``evidence`` starts with the root line."""

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


@dataclass(frozen=True)
class _Candidate:
    line: Line
    cause: Cause | None
    contexts: tuple[tuple[Line, re.Pattern[str]], ...]
    report: bool


def parse_line(number: int, text: str, process: str = "", time: str = "") -> Line:
    """Split a cleaned line into its prefixes and its body."""
    body, level, from_manager = text, "", False
    while True:
        frame = _FRAMES.match(body)
        owner = None if frame else _PROCESS.match(body)
        stamp = None if frame or owner else _LEVEL.match(body)
        match = frame or owner or stamp
        if match is None:
            return Line(number, text, body.rstrip(), level, process, time, from_manager)
        if frame:
            from_manager = from_manager or (frame["unit"] or "").startswith("systemd[")
        elif owner:
            process = f"{owner['name']}{owner['rank'] or ''} pid={owner['pid']}"
        elif stamp:
            level, time = stamp["level"], time or stamp["time"]
        body = body[match.end() :]


def _known(line: Line, text: str) -> list[Cause]:
    return [cause for cause in CAUSES if cause.root.search(text) and (line.level != "WARNING" or cause.at_warning)]


def _wrapper(body: str) -> bool:
    return any(pattern.search(body) for pattern in WRAPPERS)


class _Reader:
    """Goes over the lines once and keeps what matters."""

    def __init__(self) -> None:
        self.interesting: list[Line] = []
        self.last: Line | None = None
        self._before = ""
        self._sources: dict[int, str] = {}

    def read(self, lines: Iterable[Line]) -> None:
        for line in lines:
            if _WORTH.search(line.text):
                parsed = line if line.body else parse_line(line.number, line.text, line.process, line.time)
                if line.from_manager:
                    parsed = Line(line.number, line.text, line.text, "", "systemd", line.time, True)
                self.interesting.append(parsed)
                if parsed.body.startswith("AssertionError"):
                    self._sources[line.number] = self._before
            if line.text and not line.from_manager and not line.text.isspace():
                self.last = line
                # Marks below a source line are no source line.
                if line.text[-1] not in "^~":
                    self._before = line.text

    def source_of(self, line: Line) -> str:
        """Return the indented source line above an exception that says nothing itself."""
        if line.body not in ("AssertionError", "AssertionError:"):
            return ""
        body = parse_line(0, self._sources.get(line.number, "")).body
        return body.strip() if body[:1] in (" ", "\t") else ""


def _index(lines: Sequence[Line], pattern: re.Pattern[str], last: bool = False) -> int:
    found = [number for number, line in enumerate(lines) if pattern.search(line.body)]
    return (found[-1] if last else found[0]) if found else -1


def _is_root(line: Line, body: str, known: bool) -> bool:
    """Whether a failure can have begun here: an exception, a native marker, or a known message of level ERROR."""
    indented = line.body[:1] in (" ", "\t") and not body.startswith("Value error, ")
    if _NATIVE.search(body) or (_EXCEPTION.match(body) and (known or not indented)):
        return line.level != "WARNING" or known
    return known and not indented and line.level in ("ERROR", "CRITICAL", "WARNING")


def _candidate(reader: _Reader, line: Line) -> _Candidate | None:
    if line.from_manager or line.level in ("INFO", "DEBUG") or any(pattern.search(line.text) for pattern in NOISE):
        return None
    body = line.body.strip()
    matching = _known(line, f"{body} {reader.source_of(line)}".rstrip())
    if not _is_root(line, body, bool(matching)):
        return None
    for cause in matching:
        contexts = _contexts(reader.interesting, cause, line)
        if contexts or not cause.contexts:
            return _Candidate(line, cause, contexts, _wrapper(body))
    return None if _wrapper(body) else _Candidate(line, None, (), False)


def _contexts(lines: Sequence[Line], cause: Cause, root: Line) -> tuple[tuple[Line, re.Pattern[str]], ...]:
    """Return the first line for each of the cause's context patterns, the root line excepted."""
    found: list[tuple[Line, re.Pattern[str]]] = []
    for pattern in cause.contexts:
        line = next((line for line in lines if line.number != root.number and pattern.search(line.text)), None)
        if line is not None and line.number not in [other.number for other, _rank in found]:
            found.append((line, pattern))
    return tuple(found)


def _survived(lines: Sequence[Line]) -> tuple[int, int, bool]:
    """Return the numbers of the lines that end the start and begin the stop, and whether it died in between."""
    listening = _index(lines, _LISTENING, last=True)
    if listening < 0:
        return 0, 0, True
    after = lines[listening + 1 :]
    stop = _index(after, _STOPPING)
    serving = after if stop < 0 else after[:stop]
    fatal = any(_FATAL.search(line.body) for line in serving)
    return lines[listening].number, (after[stop].number if stop >= 0 else 0), fatal


def _attempts(lines: Sequence[Line]) -> list[list[Line]]:
    """Split a text that holds several launches; one launch may announce itself in several lines."""
    attempts: list[list[Line]] = [[]]
    ended = False
    for line in lines:
        if ended and _LAUNCH.search(line.body):
            attempts.append([])
            ended = False
        ended = ended or bool(_LISTENING.search(line.body)) or _wrapper(line.body)
        attempts[-1].append(line)
    return attempts


def _roots(reader: _Reader, lines: Sequence[Line]) -> list[_Candidate]:
    start, stop, died = _survived(lines)
    roots = []
    for line in lines:
        candidate = _candidate(reader, line) if line.number > start else None
        if candidate is None:
            continue
        always = candidate.cause is not None and candidate.cause.cause_class in _SURVIVES_NOTHING
        if always or (died and not (stop and line.number >= stop)):
            roots.append(candidate)
    return roots


def _choose(roots: Sequence[_Candidate]) -> _Candidate | None:
    """Take the earliest known root, else the earliest; a line that merely reports gives way to the exception."""
    known = [root for root in roots if root.cause is not None]
    if not known:
        return roots[0] if roots else None
    first = known[0]
    if not first.report:
        return first
    exceptions = [root for root in known if not root.report]
    near = first.line.number + REPORT_LINES
    return next(
        (root for root in exceptions if root.cause is first.cause),
        next((root for root in exceptions if first.line.number < root.line.number <= near), first),
    )


def _shorten(text: str, limit: int, around: re.Pattern[str] | None = None) -> str:
    """Return ``text``, and of a longer one the ``limit`` characters that matter."""
    if len(text) <= limit:
        return text
    match = around.search(text) if around else None
    start = max(0, match.start() - limit // 6) if match else 0
    return f"{'…' if start else ''}{text[start : start + limit]}…"


def _evidence(line: Line, limit: int = MAX_TEXT, around: re.Pattern[str] | None = None) -> Evidence:
    return Evidence(_shorten(line.text.strip(), limit, around), line.process, line.time, line.number)


def diagnose(lines: Iterable[Line]) -> Diagnosis:
    """Return the verdict over the lines of one launch."""
    reader = _Reader()
    reader.read(lines)
    chosen = [_choose(_roots(reader, attempt)) for attempt in _attempts(reader.interesting)]
    root = next((candidate for candidate in reversed(chosen) if candidate is not None), None)
    last = _shorten(reader.last.text.strip(), MAX_CONTEXT) if reader.last else ""
    if root is None:
        return _without_root(reader, last)
    evidence = [_evidence(root.line)]
    evidence += [_evidence(line, MAX_CONTEXT, pattern) for line, pattern in root.contexts]
    misleading = "" if reader.last is None or reader.last.number == root.line.number else last
    if root.cause is None:
        return Diagnosis(
            verdict="cause",
            cause_class="unclassified",
            title="an error that this collection does not know",
            remedy="read the lines around the evidence in the journal of this launch; its traceback names the code",
            confidence=0.4,
            misleading_last_line=misleading,
            evidence=evidence,
        )
    confidence = 0.95 if root.contexts else 0.85
    return _found(root.cause, confidence, misleading, evidence)


def _found(cause: Cause, confidence: float, misleading: str, evidence: list[Evidence]) -> Diagnosis:
    return Diagnosis(
        verdict="cause",
        cause_class=cause.cause_class,
        title=cause.title,
        remedy=cause.remedy,
        confidence=confidence,
        source=cause.source,
        misleading_last_line=misleading,
        evidence=evidence,
    )


def _without_root(reader: _Reader, last: str) -> Diagnosis:
    for cause in MANAGER_CAUSES:
        for line in reader.interesting:
            if line.from_manager and cause.root.search(line.body):
                return _found(cause, 0.6, last, [_evidence(line)])
    start, _stop, died = _survived(reader.interesting)
    if start and not died:
        return Diagnosis(verdict="healthy", confidence=0.8)
    return Diagnosis(
        verdict="insufficient_evidence",
        remedy="nothing in this launch's own lines names a cause; look at the kernel log (OOM killer, Xid) and at "
        "`systemctl status` of the unit for a kill from outside",
        confidence=0.5,
        misleading_last_line=last,
    )


def _clock(realtime_usec: int) -> str:
    if not realtime_usec:
        return ""
    return datetime.fromtimestamp(realtime_usec / 1_000_000, tz=timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def lines_of_entries(entries: Iterable[Entry]) -> list[Line]:
    """Turn journal entries into lines; an unprefixed line gets its process from its PID, as other lines named it."""
    names: dict[int, str] = {}
    lines: list[Line] = []
    for entry in entries:
        when = _clock(entry.realtime_usec)
        for text in entry.lines:
            owner = _PROCESS.match(text)
            if owner and int(owner["pid"]) == entry.pid:
                names[entry.pid] = f"{owner['name']}{owner['rank'] or ''} pid={entry.pid}"
            process = names.get(entry.pid, f"pid={entry.pid}" if entry.pid else "")
            lines.append(Line(len(lines) + 1, text, "", "", process, when, entry.from_manager))
    return lines


def lines_of_text(text: Iterable[str]) -> Iterator[Line]:
    """Turn a saved log's lines into ours, one at a time; numbers are those of the text."""
    for number, line in enumerate(text, start=1):
        yield Line(number, clean(line))


def _report(name: str, found: Diagnosis) -> str:
    lines = [f"{name}: {found.verdict}" + (f" ({found.cause_class})" if found.cause_class else "")]
    if found.title:
        lines.append(f"  cause:    {found.title}")
    for evidence in found.evidence:
        lines.append(f"  evidence: line {evidence.line}" + (f", {evidence.process}" if evidence.process else ""))
        lines.append(f"            {evidence.text}")
    if found.misleading_last_line:
        lines.append(f"  not:      {found.misleading_last_line[:200]}")
    if found.remedy:
        lines.append(f"  remedy:   {found.remedy}")
    return "\n".join(lines)


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
    if not files:
        sys.stderr.write("usage: diagnosis [--json] FILE...\n")
        return 2
    for name in files:
        with open(name, encoding="utf-8", errors="replace", newline="\n") as handle:
            found = diagnose(lines_of_text(handle))
        sys.stdout.write((json.dumps(_summary(name, found)) if as_json else _report(name, found)) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
