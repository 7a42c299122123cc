# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where a launch's failure began: which lines can be a root, what the launch survived, and which root came first.

A log can hold several launches. Each is read line by line; what is kept of it is bounded.
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

from ansible_collections.llmops.vllm.plugins.module_utils.diagnosis_causes import (
    CAUSES,
    NOISE,
    OUTSIDE_CAUSES,
    WRAPPERS,
    Cause,
)
from ansible_collections.llmops.vllm.plugins.module_utils.diagnosis_prefixes import Line, parse_line

REPORT_LINES = 20
CHAIN_LINES = 120
# What ended a service that had come up stands close before the line that says so.
CRASH_LINES = 400
MAX_ROOTS = 300
MAX_CLASSIFIED = 2048
WRAPPED_CHARS = 79

_NAME = r"(?:[A-Za-z_]\w*\.)*_?(?:[A-Z]\w*(?:Error|Exception|Exit|Interrupt|Timeout|NotFound)|OutOfResources)"
_EXCEPTION = re.compile(
    rf"^(?P<type>{_NAME})(?::(?:\s|$)|$)"
    r"|^(?:[a-z_]\w*\.)+\w+Error: |^(?:[a-z_]\w*\.)*(?:exc|errors?|exceptions?)\.[A-Z]\w*(?:: |$)"
    r"|^(?:(?:binascii|select|socket|struct|zlib)\.(?:error|gaierror|herror)|subprocess\.TimeoutExpired): "
    r"|^(?:[a-z_]\w*\.)+[A-Z]\w*(?:Failed|Error_\w+): |^Exception(?:: |$)|^Value error, "
)
_NATIVE = re.compile(
    r"NCCL WARN|(?:ptxas|nvcc) fatal|fatal error:|nvcc: (?:command )?not found|Assertion `.*' failed"
    r"|\*\*\* SIG\w+ received|Watchdog caught|watchdog thread terminated with exception|^terminate called"
    r"|FAILED: \[code=|uvm_spin_loop|NVRM: |ibv_reg_|[Oo]ut of memory: Killed process|oom-kill|OOMKilled"
    r"|^(?:usage: )?vllm[\w. ]*: error: |^\S+\.py: error: |^\S+ error: argument |Fatal Python error:"
    r"|^oom_kill [1-9]|^Error while creating shared memory|device-side assert|^(?:\S+: )?symbol lookup error"
    r"|error: unrecognized arguments|^!+ Segfault encountered|^ERROR: Unexpected bus error encountered"
    r"|^\s*what\(\): |^LLVM ERROR: |^Memory access fault by GPU|^OpenBLAS blas_thread_init: pthread"
    r"|^libgomp: Thread creation failed|died due to signal \d|cannot find -lcuda|^slurmstepd: error: Detected"
    r"|^docker: Error response from daemon|^nvidia-container-cli: |thread: \[[\d,]+\] Assertion `.*` failed"
    r"|^Error response from daemon: (?:could not select|driver failed|failed to create)"
    r"|\bvllm\"?: (?:command |executable file )?not found|command not found: vllm|: No module named vllm$"
    r"|was not handed over by systemd|nvshmem initialization failed"
)
_LISTENING = re.compile(r"Application startup complete\.")
_STOPPING = re.compile(r"\[shutdown\] .*(?:shutdown triggered|trigger received)|^Shutting down$")
_FATAL = re.compile(
    r"EngineDeadError|EngineCore encountered a fatal|Engine core proc \S+ died|died unexpectedly|pid \d+ died"
    r"|WorkerProc hit an exception|[Gg]ot fatal signal from worker"
    r"|\*\*\* SIG\w+ received|[Ww]atchdog|Engine loop|background loop|AsyncEngineDead|MQLLMEngine|output_handler failed"
    r"|Main process exited, code=(?:killed|dumped|exited, status=[1-9])|Failed with result"
    r"|error while attempting to bind on address|\(core dumped\)"
)
_UNIT = re.compile(r"^[\w.@\\:-]+\.(?:service|scope): ")
_LAUNCH = re.compile(r"vLLM API server version |non-default args:")
_SURVIVES_NOTHING = frozenset(
    {"port_in_use", "output_corruption_nan", "nccl_watchdog_timeout", "cuda_illegal_access", "host_oom_kill"}
)
# Lines of these levels say much, and quote what was asked; none of them tells of a failure.
_QUOTES = ("INFO", "DEBUG")
_OF_ANY_PROCESS = re.compile(r"^NVRM: ")
_BARE = re.compile(r"^\w*(?:Error|Exception):?$")
_SAYS_MORE_THAN_A_MESSAGE = re.compile(
    rf"^(?:{_NAME}|Exception)\b|^\s|^$|^Traceback|^During handling|^The above exception|^File |^[-=*#]{{3}}"
    rf"|{_NATIVE.pattern}"
)


_CONTEXTS = tuple(dict.fromkeys(pattern for cause in CAUSES for pattern in cause.contexts))


class Classified(NamedTuple):
    """What a line's text is known to mean, whoever wrote it."""

    causes: tuple[Cause, ...]
    wrapper: bool
    native: bool
    exception: str


@dataclass(frozen=True)
class Root:
    """A line at which a failure can have begun.

    ``report`` is a line that tells of a failure elsewhere, ``logged`` an exception that a process logged as a warning
    and survived, ``chained`` one that a former exception was the direct cause of.
    """

    line: Line
    causes: tuple[Cause, ...]
    report: bool
    logged: bool
    chained: bool
    type: str


class Found(NamedTuple):
    """A root with its cause (``None``: not known) and the lines that support it."""

    line: Line
    cause: Cause | None
    contexts: tuple[tuple[Line, re.Pattern[str]], ...] = ()


def classify(body: str, level: str, more: str = "") -> Classified:
    """Say what ``body`` means; ``more`` is what belongs to its message on other lines."""
    text = body.strip()
    whole = f"{text} {more}".rstrip()
    wrapper = _is_wrapper(text)
    looked_at = text if wrapper else whole
    causes = tuple(cause for cause in CAUSES if cause.matches(looked_at, level))
    exception = _EXCEPTION.match(text)
    kind = (exception["type"] or "Exception").rpartition(".")[2] if exception else ""
    return Classified(causes, wrapper, bool(_NATIVE.search(text)), kind)


def _is_wrapper(text: str) -> bool:
    return any(pattern.search(text) for pattern in WRAPPERS)


def is_noise(text: str) -> bool:
    """Whether launches that work say this as well."""
    return any(pattern.search(text) for pattern in NOISE)


def _continued(line: Line) -> str:
    """Return the rest of an exception's message on the next lines, as the engine and terminals break it."""
    rest: list[str] = []
    for text in line.after:
        parsed = parse_line(0, text)
        same = (parsed.process, parsed.level) in ((line.process, line.level), ("", ""))
        if not same or _SAYS_MORE_THAN_A_MESSAGE.search(parsed.body):
            break
        rest.append(parsed.body)
    return "".join(rest) if _hard_wrapped(line) else " ".join(rest)


def _hard_wrapped(line: Line) -> bool:
    """Whether a terminal broke the line: it is long, and the next one begins without a prefix, in the middle."""
    if not line.after or len(line.text) < WRAPPED_CHARS or not (line.process or line.level):
        return False
    below = parse_line(0, line.after[0])
    return not (below.process or below.level) and (below.body[:1].islower() or below.body[:1] in tuple(".,;:)"))


def unwrapped(line: Line) -> Line:
    """Return a line that a terminal broke as the one line that it was."""
    rest = _continued(line) if _hard_wrapped(line) else ""
    return line._replace(text=line.text + rest, body=line.body + rest)


def _source_line(line: Line) -> str:
    """Return the source line above an exception that says nothing itself."""
    if not _BARE.match(line.body):
        return ""
    body = parse_line(0, line.before).body
    return body.strip() if body[:1] in (" ", "\t") else ""


class Launch:
    """One launch in the log: what it came to, and the lines at which its failure can have begun."""

    def __init__(self) -> None:
        self.first = 0
        self.listening = 0
        self.stopped = 0
        self.fatal = 0
        self.ended = False
        self.outside: Found | None = None
        self.ended_from_outside: Found | None = None
        self._announced = ("", 0)
        self._roots: deque[Root] = deque(maxlen=MAX_ROOTS)
        self._contexts: dict[re.Pattern[str], list[Line]] = {}
        self._logged: set[str] = set()
        self._chained: set[str] = set()
        self._classified: dict[tuple[str, str], Classified] = {}

    def starts_again(self, line: Line) -> bool:
        """Whether ``line`` announces another launch; one launch may announce itself in several lines."""
        match = _LAUNCH.search(line.body)
        if match is None:
            return False
        kind, number = self._announced
        # The engine announces itself before it does anything that can fail.
        again = self.ended or bool(self._roots) or (match[0] == kind and line.number > number + REPORT_LINES)
        if not kind:
            self._announced = (match[0], line.number)
        return again

    def feed(self, line: Line) -> None:
        """Take the next line, parsed."""
        self._note(line)
        if _LISTENING.search(line.body):
            self.listening, self.stopped, self.fatal, self.ended = line.number, 0, 0, True
            self._roots.clear()
            return
        if not self.stopped and (_STOPPING.search(line.body) or (line.from_manager and "Stopping " in line.body)):
            self.stopped = line.number
        if line.level in _QUOTES:
            return
        if self.listening and not self.stopped and not self.fatal and _FATAL.search(line.body):
            self.fatal = line.number
        self._outside(line)
        full = len(self._roots) == MAX_ROOTS and (self.fatal or not self.listening)
        root = None if full else self._root(line)
        if root is not None:
            self._roots.append(root)

    def _note(self, line: Line) -> None:
        """Keep the lines that support a cause, and what becomes of tracebacks."""
        for pattern in _CONTEXTS:
            kept = self._contexts.setdefault(pattern, [])
            if len(kept) < 2 and (pattern.search(line.text) or pattern.search(line.body)):
                kept.append(line)
        if "Traceback (most recent" in line.body:
            above = parse_line(0, line.before)
            if above.level == "WARNING" and not line.level:
                self._logged.add(line.process)
            elif not above.body.startswith(("During handling", "The above exception")):
                self._logged.discard(line.process)
        if "was the direct cause of the following" in line.body:
            self._chained.add(line.process)

    def _outside(self, line: Line) -> None:
        for cause in OUTSIDE_CAUSES:
            trusted = cause.anybody or line.from_manager or _UNIT.match(line.body)
            if trusted and cause.root.search(line.body):
                found = Found(line, cause)
                if cause.acts:
                    self.ended_from_outside = self.ended_from_outside or found
                elif self.outside is None or _rank(cause) < _rank(self.outside.cause):
                    self.outside = found

    def _root(self, line: Line) -> Root | None:
        if is_noise(line.text):
            return None
        kind = self._kind(line)
        self.ended = self.ended or kind.wrapper
        chained = bool(kind.exception) and line.process in self._chained
        if chained:
            self._chained.discard(line.process)
        if not _can_be_root(line, kind) or (kind.wrapper and not kind.causes):
            return None
        logged = bool(kind.exception) and not line.level and line.process in self._logged
        return Root(line, kind.causes, kind.wrapper, logged, chained, kind.exception)

    def _kind(self, line: Line) -> Classified:
        more = _source_line(line) or (_continued(line) if _EXCEPTION.match(line.body) else "")
        key = (line.body + more, line.level)
        if key not in self._classified:
            if len(self._classified) >= MAX_CLASSIFIED:
                self._classified.clear()
            self._classified[key] = classify(line.body, line.level, more)
        return self._classified[key]

    @property
    def died(self) -> bool:
        """Whether this launch did not come up, or ended by itself after it had."""
        return not self.listening or self.fatal > 0

    def root(self) -> Found | None:
        """Return where the failure began, or ``None`` when nothing tells."""
        found = self._choose([root for root in self._roots if self._counts(root)])
        acted = self.ended_from_outside
        if acted is not None and (found is None or acted.line.number < found.line.number):
            return acted
        return found

    def _counts(self, root: Root) -> bool:
        deadly = any(cause.cause_class in _SURVIVES_NOTHING for cause in root.causes)
        if deadly and not _OF_ANY_PROCESS.match(root.line.body):
            return True
        if self.stopped and root.line.number >= self.stopped:
            return False
        near = not self.fatal or root.line.number >= self.fatal - CRASH_LINES
        return self.died and near

    def _choose(self, roots: list[Root]) -> Found | None:
        """Take the earliest known root, else the earliest; what was only logged comes last."""
        found = [(root, self._resolve(root)) for root in roots]
        known = [(root, what) for root, what in found if what.cause is not None]
        for logged in (False, True):
            if any(root.logged is logged for root, _what in known):
                return self._best([(root, what) for root, what in known if root.logged is logged])
        unknown = [(root, what) for root, what in found if not root.report]
        return min(unknown, key=lambda item: item[0].logged)[1] if unknown else None

    def _resolve(self, root: Root) -> Found:
        for cause in root.causes:
            contexts = self._supporting(cause, root.line)
            if contexts or not cause.contexts:
                return Found(root.line, cause, contexts)
        return Found(root.line, None)

    def _supporting(self, cause: Cause, line: Line) -> tuple[tuple[Line, re.Pattern[str]], ...]:
        """Return the first line for each of the cause's context patterns, the root line excepted."""
        found: list[tuple[Line, re.Pattern[str]]] = []
        for pattern in cause.contexts:
            kept = [other for other in self._contexts.get(pattern, ()) if other.text != line.text]
            if kept and kept[0].number not in [other.number for other, _pattern in found]:
                found.append((kept[0], pattern))
        return tuple(found)

    def _best(self, known: list[tuple[Root, Found]]) -> Found:
        """Return the first of the known; one that merely reports gives way to the exception that it tells of."""
        first, found = known[0]
        if not first.report:
            return _said_better(first, found, known)
        exceptions = [what for root, what in known if not root.report]
        near = first.line.number + REPORT_LINES
        return next(
            (what for what in exceptions if what.cause is found.cause),
            next((what for what in exceptions if first.line.number < what.line.number <= near), found),
        )


def _said_better(first: Root, found: Found, known: list[tuple[Root, Found]]) -> Found:
    """Return the same exception raised again from the first, if it does not merely repeat what the first said."""
    said = first.line.body.partition(": ")[2]
    for root, what in known[1:]:
        again = root.chained and root.type == first.type and what.cause is found.cause
        if again and root.line.number <= first.line.number + CHAIN_LINES and root.line.process == first.line.process:
            return what if said not in root.line.body else found
    return found


def _can_be_root(line: Line, kind: Classified) -> bool:
    """Whether a failure can have begun here: an exception, a native marker, or a known message of level ERROR."""
    known = bool(kind.causes)
    indented = line.body[:1] in (" ", "\t") and not line.body.lstrip().startswith("Value error, ")
    if kind.native or (kind.exception and (known or not indented)):
        return line.level != "WARNING" or known
    return known and not indented and line.level in ("ERROR", "CRITICAL", "WARNING")


def _rank(cause: Cause | None) -> int:
    return OUTSIDE_CAUSES.index(cause) if cause in OUTSIDE_CAUSES else len(OUTSIDE_CAUSES)
