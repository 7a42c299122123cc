# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The lines of a launch, out of what other tools put around them, and of a long log only those that can matter.

A log is read as bytes, once, in blocks: lines of level INFO are skipped unless they are a milestone or a context, and
of the others only those with a telling word become text. What is kept does not grow with the log.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timezone
from typing import IO, Any

from ansible_collections.llmops.vllm.plugins.module_utils.diagnosis_prefixes import (
    LEVELS_OF_PYTHON,
    PROCESS,
    Line,
    process_name,
)
from ansible_collections.llmops.vllm.plugins.module_utils.journal import (
    ENDED_THIS_LAUNCH,
    MAIN_PROCESS_EXITED,
    Entry,
    clean,
    decode_field,
)

BLOCK_BYTES = 1024 * 1024
# So much of the log is in memory before and after each line that is looked at.
AROUND_BYTES = 16 * 1024
MAX_LINE_BYTES = 64 * 1024
TAIL_LINES = 200
AFTER_LINES = 4
REPEATS = 64
TAIL_KEY_BYTES = 96
MAX_SEEN = 4096
MAX_SHAPE_BYTES = 4096

_NO_DIGITS = bytes.maketrans(b"123456789", b"000000000")
_NO_HEX = bytes.maketrans(b"123456789abcdefABCDEF", b"0" * 21)
# In most long logs nearly every line is of this kind.
_NOT_INFO = re.compile(rb"\n(?![^\n]{0,110}?(?:INFO|DEBUG)(?: \d\d-\d\d |: {2}))([^\n]+)")
# Lines of level INFO that matter all the same: milestones, what the launch was told, two lines written as one.
MILESTONES = (b"startup complete", b"non-default args", b"server version", b"hutdown", b"Shutting down")
CONTEXTS = (b"kv_cache_dtype", b"store kv cache", b"VLLM::", b"RayWorker")
_ERROR = b"ERROR "
_AT_ANY_LEVEL = (*MILESTONES, *CONTEXTS, _ERROR)
# Every other line worth a closer look contains one of these.
# Each alternative begins with a letter of its own, not with a choice of letters: that is much faster to search for.
WORTH = re.compile(
    r"rror|xception|EXCEPTION|atal|NCCL WARN|not found|ssert|\*\*\* SIG|atchdog|code=|Xid|ibv_|oom|OOM|kill|Kill"
    r"|Exit|Interrupt|Timeout|timeout|OutOfRes|uvm_spin|ailed|startup complete|hutdown|Shutting down|terminate called"
    r"|server version|non-default args|kv_cache_dtype|kv cache|VLLM::|RayWorker|ray::|timed out|died|NotFound"
    r"|Traceback|direct cause|During handling|ERRNO|Stopping|start-limit|restart|repeated too|segfault"
    r"|general protection|mismatch|Segfault|SIGKILL|SIGTERM|No module named|LLVM ERROR|core dumped"
    r"|Memory access fault|double free|free\(\)|malloc\(\)|munmap_chunk|corrupted size|stack smashing|what\(\): "
    r"|cannot find -lcuda|not handed over|exc\.[A-Z]"
)
_WORTH_BYTES = re.compile(WORTH.pattern.encode())
_NEEDS_OTHERS = re.compile(r"(?:Error|Exception|Timeout|OutOfResources|NotFound|Failed)(?::|$)|Value error|Traceback")
# journalctl writes a message with colours or other control characters as an array of its bytes.
_ARRAY = re.compile(rb'"MESSAGE": ?\[([\d, ]+)\]')
_STRUCTURED = re.compile(r'[^{]{0,60}(\{".*\})\s*$', re.S)
_TEXT_KEYS = ("log", "MESSAGE", "message", "msg", "text", "line", "textPayload", "_raw")
_EXCEPTION_KEYS = ("exc_info", "exc_text", "exception", "stack_trace", "stacktrace", "traceback")
_INNER_KEYS = ("_source", "jsonPayload", "result", "fields")
# A field of an object that is written over several lines.
_FIELD = re.compile(rf'\s+"(?:{"|".join((*_TEXT_KEYS, *_EXCEPTION_KEYS))})"\s*:\s*("(?:[^"\\]|\\.)*"),?\s*$')


def lines_of_text(text: str) -> Iterator[Line]:
    """Return the lines of a log given as text that can matter; see `lines_of_log`."""
    return lines_of_log(io.BytesIO(text.encode("utf-8", "replace")))


def lines_of_log(stream: IO[bytes]) -> Iterator[Line]:
    """Return those lines of a log that can matter and its last lines, numbered as in the log.

    Reads ``stream`` once, in blocks. Raises ``OSError`` when it cannot be read.
    """
    seen: dict[bytes, int] = {}
    known: dict[bytes, bool] = {}
    number, tail = 1, b""
    for data, start, end in _windows(stream):
        counted = start
        for begin, stop in _worth_a_look(data, start, end, known):
            number += data.count(b"\n", counted, begin)
            counted = begin
            raw = data[begin:stop]
            if not _too_often(_said(raw), seen):
                yield from _pieces(number, raw, data, begin, stop)
        number += data.count(b"\n", counted, end)
        tail = data[max(0, end - AROUND_BYTES) : end]
    last = tail.removesuffix(b"\n").split(b"\n")[-TAIL_LINES:]
    first = number - len(last) + (0 if tail.endswith(b"\n") else 1)
    for offset, raw in enumerate(last):
        for text in _texts(raw):
            yield Line(first + offset, text, in_tail=True)


def _windows(stream: IO[bytes]) -> Iterator[tuple[bytes, int, int]]:
    """Return (bytes, start, end): whole lines to look at, with some bytes before and after them for their context."""
    # Each line begins after a line feed, the first one too.
    data, start = b"\n", 1
    while True:
        block = stream.read(BLOCK_BYTES)
        data += block
        if not block:
            yield data, start, len(data)
            return
        end = data.rfind(b"\n", start, max(start, len(data) - AROUND_BYTES)) + 1
        if end <= start:
            if len(data) - start > BLOCK_BYTES:
                # One line without an end: its head and its tail are enough.
                data = data[: start + MAX_LINE_BYTES] + data[-MAX_LINE_BYTES:]
            continue
        yield data, start, end
        keep = max(0, end - AROUND_BYTES)
        data, start = data[keep:], end - keep


def _worth_a_look(data: bytes, start: int, end: int, known: dict[bytes, bool]) -> list[tuple[int, int]]:
    """Return the bounds of the lines in ``data[start:end]`` that can matter, in order; ``known`` is kept for the next.

    Most lines of a long log differ from others in their digits only, so that each kind is searched once.
    """
    found = set()
    for literal in _AT_ANY_LEVEL:
        at = data.find(literal, start, end)
        while at >= 0:
            begin, stop = data.rfind(b"\n", start, at) + 1 or start, _end_of(data, at, end)
            if literal != _ERROR or _has_a_telling_word(data[begin:stop], known):
                found.add(begin)
            at = data.find(literal, stop, end)
    for match in _NOT_INFO.finditer(data, start - 1, end):
        if _has_a_telling_word(match[1], known):
            found.add(match.start(1))
    return [(begin, _end_of(data, begin, end)) for begin in sorted(found)]


def _has_a_telling_word(raw: bytes, known: dict[bytes, bool]) -> bool:
    said = _from_array(raw)
    shape = said[:MAX_SHAPE_BYTES].translate(_NO_DIGITS)
    if shape not in known:
        if len(known) >= MAX_SEEN:
            known.clear()
        known[shape] = _WORTH_BYTES.search(said) is not None
    return known[shape]


def _from_array(raw: bytes) -> bytes:
    """Return the message that ``raw`` holds as an array of bytes, else ``raw``."""
    array = _ARRAY.search(raw) if b'"MESSAGE":' in raw else None
    try:
        return bytes(map(int, array[1].split(b","))) if array else raw
    except ValueError:
        return raw


def _end_of(data: bytes, begin: int, end: int) -> int:
    at = data.find(b"\n", begin, end)
    return end if at < 0 else at


def _too_often(raw: bytes, seen: dict[bytes, int]) -> bool:
    """Whether the same text has come many times since the last milestone; the first times say everything."""
    if any(literal in raw for literal in MILESTONES):
        seen.clear()
        return False
    key = (raw[:TAIL_KEY_BYTES] + raw[-TAIL_KEY_BYTES:]).translate(_NO_HEX)
    count = seen.get(key, 0) + 1
    if len(seen) >= MAX_SEEN:
        seen.clear()
    seen[key] = count
    return count > REPEATS


def _said(raw: bytes) -> bytes:
    """Return what a line says, without what another tool wrote around it as JSON."""
    return "\n".join(_texts(raw)).encode() if b'"' in raw[:80] else raw


def _texts(raw: bytes) -> list[str]:
    """Return the cleaned text of a line of a log; one that another tool wrote as JSON can hold several lines."""
    if len(raw) > MAX_LINE_BYTES:
        raw = raw[: MAX_LINE_BYTES // 2] + raw[-MAX_LINE_BYTES // 2 :]
    text = raw.decode("utf-8", "replace")
    if '"' in text[:80]:
        text = _unwrapped(text)
    return [piece for piece in clean(text).split("\n") if piece.strip()]


def _unwrapped(text: str) -> str:
    """Return what a JSON object (Docker's json-file, journalctl -o json, structured loggers) says, else ``text``."""
    match = _STRUCTURED.match(text) or _FIELD.match(text)
    if match is None:
        return text
    try:
        said = json.loads(match[1])
    except ValueError:
        return text
    return said if isinstance(said, str) else "\n".join(_said_in(said)) or text


def _said_in(fields: dict[str, Any]) -> Iterator[str]:
    """Return the message of a structured entry and the exception that belongs to it."""
    inner: dict[str, Any] = next((fields[key] for key in _INNER_KEYS if isinstance(fields.get(key), dict)), {})
    for keys in (_TEXT_KEYS, _EXCEPTION_KEYS):
        values = (both[key] for both in (fields, inner) for key in keys if isinstance(both.get(key), (str, list)))
        found = next(values, None)
        if found and keys is _TEXT_KEYS and fields.get("levelname") in LEVELS_OF_PYTHON:
            yield f"{fields['levelname']} - {decode_field(found)}"
        elif found:
            yield decode_field(found)


def _pieces(number: int, raw: bytes, data: bytes, begin: int, stop: int) -> Iterator[Line]:
    """Return the line at ``data[begin:stop]``, which may hold several, with the lines around it."""
    texts = _texts(raw)
    for position, text in enumerate(texts):
        if len(texts) > 1 and not WORTH.search(text):
            continue
        if not _NEEDS_OTHERS.search(text):
            yield Line(number, text)
            continue
        above, below = texts[:position], texts[position + 1 :]
        before = _last_said(above) or _last_said(_above(data, begin))
        after = tuple(below[:AFTER_LINES]) if below else _below(data, stop)
        yield Line(number, text, before=before, after=after)


def _above(data: bytes, begin: int) -> list[str]:
    lines = data[max(0, begin - AROUND_BYTES) : begin - 1].rsplit(b"\n", 3)[-3:]
    return [text for raw in lines for text in _texts(raw)[-1:]]


def _below(data: bytes, stop: int) -> tuple[str, ...]:
    lines = data[stop + 1 : stop + 1 + AROUND_BYTES].split(b"\n", AFTER_LINES)[:AFTER_LINES]
    return tuple(text for raw in lines for text in (_texts(raw) or [""])[:1])


def _clock(realtime_usec: int) -> str:
    if not realtime_usec:
        return ""
    return datetime.fromtimestamp(realtime_usec / 1_000_000, tz=timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def lines_of_entries(entries: Iterable[Entry]) -> list[Line]:
    """Turn journal entries into lines; an unprefixed line gets its process from its PID, as other lines named it.

    What systemd says of an end that the unit's watch made is left out: nobody from outside killed that process.
    """
    names: dict[int, str] = {}
    lines: list[Line] = []
    written: dict[int, list[int]] = {}
    ended_by_watch = False
    for entry in entries:
        ended_by_watch = ended_by_watch or (entry.from_manager and entry.message.startswith(ENDED_THIS_LAUNCH))
        if ended_by_watch and entry.from_manager and MAIN_PROCESS_EXITED in entry.message:
            continue
        when = _clock(entry.realtime_usec)
        for text in entry.lines:
            owner = PROCESS.match(text)
            if owner and owner["pid"] and int(owner["pid"]) == entry.pid:
                names[entry.pid] = process_name(owner)
            process = names.get(entry.pid, f"pid={entry.pid}" if entry.pid else "")
            speaker = "systemd" if entry.from_manager else process
            written.setdefault(entry.pid, []).append(len(lines))
            lines.append(Line(len(lines) + 1, text, "", "", speaker, when, entry.from_manager))
    for own in written.values():
        for position, index in enumerate(own):
            above = [lines[other].text for other in own[max(0, position - 3) : position]]
            below = tuple(lines[other].text for other in own[position + 1 : position + 1 + AFTER_LINES])
            lines[index] = lines[index]._replace(before=_last_said(above), after=below)
    return lines


def _last_said(texts: Sequence[str]) -> str:
    """Return the last text that says something; marks below a source line do not."""
    return next((text for text in reversed(texts) if text[-1:] not in ("^", "~", "")), "")
