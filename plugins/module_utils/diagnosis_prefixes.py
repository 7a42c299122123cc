# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One line of a launch, and what the engine and other tools have put before its text."""

from __future__ import annotations

import re
from typing import NamedTuple

MAX_SHAPES = 8
MAX_FRAME = 160
MAX_PREFIXES = 12

_ISO = r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?: ?(?:Z|UTC|[+-]\d\d:?\d\d))?"
_FRAMES = re.compile(
    r"^(?:"
    rf"\[{_ISO}(?:[ ,](?P<ray>[DIWEF]) \d+ \d+)?\] ?(?:\S+\.(?:cc|cpp|h):\d+: )?"  # CI, Ray's core
    rf"|(?P<iso>{_ISO})(?: (?:stdout|stderr) [FP])?[ ,\t]?(?:\| |- )?"  # Kubernetes, Docker, Python's logging
    r"|[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d(?:\.\d+)? \S+ (?P<unit>[^\s:]+): "  # syslog, journalctl
    r"|[\w.-]+ (?P<ident>[\w.@\\:-]+\[\d+\]|kernel): "  # journalctl -o short-iso, after its time
    r"|(?P<dmesg>\[ *\d+\.\d{6}\] |\[[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \d{4}\] )"
    r"|[A-Z][a-z]{2} (?=\d{4}-\d\d-\d\d )"  # journalctl -o short-full
    r"|(?!(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) )[\w.-]+ +\| ?"
    r"| *\| |\[pod/[^\]]+\] |\[\w+\.py:\d+\] "  # compose, exception groups, kubectl --prefix
    r"|\[rank\d+\]: ?|(?P<glog>\[?[DIWEF]\d{3,4} \d\d:\d\d:\d\d\.\d+ +(?:\d+ )?\S+:\d+\] )"
    r"|E   +(?=[A-Za-z_.]+(?:Error|Exception))"
    r"|(?: {4})?MESSAGE=)"  # journalctl -o export, -o verbose
)
PROCESS = re.compile(
    r"^\((?:(?P<name>[A-Za-z_][\w:.-]*)(?P<rank> rank=\d+| TP\d+)? )?pid=(?P<pid>\d+)(?:, ip=[^)]*)?\) ?"
    r"|^\((?:raylet|autoscaler|gcs_server)[^)]*\) "
)
_WORDS = r"DEBUG|INFO|WARNING|ERROR|CRITICAL"
_LEVEL = re.compile(
    rf"^(?P<level>{_WORDS}) (?P<time>(?:\d{{4}}-)?\d\d-\d\d \d\d:\d\d:\d\d)(?:[.,]\d+)? \[?[\w./-]+:\d+\] ?"
    rf"|^(?P<uvicorn>{_WORDS}): {{2,}}|^(?:[\w.]+ - )?(?P<python>{_WORDS}) (?:- |\S+\.py:\d+ -- )"
    rf"|^(?P<basic>{_WORDS}):[\w.]+:|^(?P<loguru>{_WORDS}) +\| [\w.]+:\S+:\d+ - "
    r"|^\[ *(?P<bracket>DEBUG|INFO|WARN|WARNING|ERROR|Debug|Info|Warning|Error|info|warn|error) *\] (?:\([^)]+\) )?"
)
_LEVEL_GROUPS = ("level", "uvicorn", "python", "basic", "loguru", "bracket")
_LEVELS = {"WARN": "WARNING"}
LEVELS_OF_PYTHON = frozenset(_WORDS.split("|"))
_LETTERS = {"D": "DEBUG", "I": "INFO", "W": "WARNING", "E": "ERROR", "F": "CRITICAL"}
_EMBEDDED = re.compile(
    rf"\((?:[A-Za-z_][\w:.-]*(?: rank=\d+| TP\d+)? )?pid=\d+[^)]*\) |(?:{_WORDS}) \d\d-\d\d \d\d:\d\d:\d\d "
    r"|Traceback \(most recent call last\):$"
)
_FRAME_LIKE = re.compile(r"[^'\"{}()]*[\s\]|:>-]")
_STAMP = re.compile(
    rf"(?:\([\w:.-]+(?: rank=\d+| TP\d+)? pid=\d+\) )*(?:{_WORDS}) \d\d-\d\d \d\d:\d\d:\d\d \[[\w./-]+:\d+\] "
)
_DIGITS = re.compile(r"\d+")
_LATER_EXCEPTION = re.compile(r"(?<=[\s\]|:>-])(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception)(?=: |$)")
_REPEATED = re.compile(r"\s*\[repeated \d+x across cluster\].*$")


class Line(NamedTuple):
    """One line of a launch: ``number`` counts from 1, ``body`` is the text without prefixes.

    ``before`` is the line above, marks left out, and ``after`` holds the next ones, both as they stand in the log.
    ``from_manager`` is true for what systemd or the kernel says. Lines ``in_tail`` come last and once more: the end of
    the log as it is, whatever they say.
    """

    number: int
    text: str
    body: str = ""
    level: str = ""
    process: str = ""
    time: str = ""
    from_manager: bool = False
    before: str = ""
    after: tuple[str, ...] = ()
    in_tail: bool = False


class LineParser:
    """Takes prefixes off; frames of tools that it does not know are learned from the log itself.

    Where a prefix of the engine or the head of a traceback stands further right, what is left of it is a frame; other
    lines of the same shape (digits may differ) have it as well.
    """

    def __init__(self) -> None:
        self._shapes: list[re.Pattern[str]] = []

    def parse(self, line: Line) -> Line:
        """Return ``line`` with body, level, process and time; what is already known of them stays."""
        body = line.text
        for _prefix in range(MAX_PREFIXES):
            frame = _FRAMES.match(body)
            owner = None if frame else PROCESS.match(body)
            stamp = None if frame or owner else _LEVEL.match(body)
            match = frame or owner or stamp or self._learned(body, line.before)
            if match is None:
                break
            if frame:
                line = _framed(line, frame)
            elif owner:
                line = line._replace(process=process_name(owner) or line.process)
            elif stamp:
                line = line._replace(level=_level(stamp) or line.level, time=line.time or stamp["time"] or "")
            body = body[match.end() :]
        return line._replace(body=(_REPEATED.sub("", body) if "[repeated " in body else body).rstrip())

    def _learned(self, body: str, before: str) -> re.Match[str] | None:
        for shape in self._shapes:
            match = shape.match(body)
            if match:
                return match
        found = _EMBEDDED.search(body, 1, MAX_FRAME) or _below_same_frame(body, before)
        if found is not None and len(self._shapes) < MAX_SHAPES and _FRAME_LIKE.fullmatch(body[: found.start()]):
            self._shapes.append(re.compile(_DIGITS.sub(r"\\d+", re.escape(body[: found.start()]))))
            return self._shapes[-1].match(body)
        # Two processes wrote at once, and what the first said ends in the middle.
        stamp = _STAMP.search(body, 1)
        return re.compile(f".{{{stamp.start()}}}").match(body) if stamp else None


def _below_same_frame(body: str, before: str) -> re.Match[str] | None:
    """Return the exception in ``body`` if the line above has the same text before it, and source code after that."""
    found = _LATER_EXCEPTION.search(body, 1, MAX_FRAME)
    if found is None:
        return None
    head = _DIGITS.sub("0", body[: found.start()])
    above = _DIGITS.sub("0", before)
    return found if above.startswith(head + "  ") else None


def _framed(line: Line, frame: re.Match[str]) -> Line:
    """Return ``line`` with what a frame says about it."""
    speaker = frame["unit"] or frame["ident"] or ""
    host = speaker.startswith(("systemd[", "systemd-oomd[", "kernel")) or frame["dmesg"] is not None
    letter = frame["ray"] or (frame["glog"] or "").lstrip("[")[:1]
    return line._replace(
        from_manager=line.from_manager or host,
        time=line.time or frame["iso"] or "",
        level=_LETTERS.get(letter, line.level),
    )


def _level(stamp: re.Match[str]) -> str:
    level = next(stamp[name] for name in _LEVEL_GROUPS if stamp[name]).upper()
    # Another tool that puts a level in brackets files an engine's errors under INFO as well.
    return "" if stamp["bracket"] and level in ("INFO", "DEBUG") else _LEVELS.get(level, level)


def process_name(owner: re.Match[str]) -> str:
    """Return the name, rank and number of the process that ``PROCESS`` has found, as they stand there."""
    if not owner["pid"]:
        return ""
    return f"{owner['name'] or ''}{owner['rank'] or ''} pid={owner['pid']}".lstrip()


def parse_line(number: int, text: str) -> Line:
    """Split a cleaned line, taken for itself, into its prefixes and its body."""
    return LineParser().parse(Line(number, text))
