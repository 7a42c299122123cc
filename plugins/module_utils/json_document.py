# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""JSON text that remembers how it was written.

``parse`` keeps, beside the value, where each part of it stands in the text. ``JsonDocument.render`` writes a changed
value by reusing the text of every part that did not change, so a diff shows the change and nothing else: indent,
separators, number spelling, escapes, inline arrays and the end of the file stay as the author of the file left them.

Accepted is JSON (RFC 8259) plus ``NaN``, ``Infinity`` and ``-Infinity``: published model configurations hold them
(``time_step_limit`` of the Mamba family), and the reader of those files, Python's ``json``, takes them. Refused, with
the name of the file and the line, is what readers disagree about: a key that stands twice in one object, a byte order
mark, bytes that are not UTF-8.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn

from ansible_collections.llmops.vllm.plugins.module_utils.errors import InvalidInputError

MAXIMUM_DEPTH = 100

_WHITESPACE = re.compile(r"[ \t\n\r]*")
_STRING = re.compile(r'"(?:[^"\\\x00-\x1f]|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})*"')
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?")
_CONSTANT = re.compile(r"null|true|false|NaN|Infinity|-Infinity")
_CONSTANTS: dict[str, Any] = {
    "null": None,
    "true": True,
    "false": False,
    "NaN": float("nan"),
    "Infinity": float("inf"),
    "-Infinity": float("-inf"),
}


class _Child(NamedTuple):
    """A member of an object, or (with an empty key) an element of an array.

    ``start`` is where its key stands, ``gap`` the text between it and the child before (empty: it is the first).
    """

    key: str
    start: int
    node: _Node
    gap: str = ""


class _Node(NamedTuple):
    """A value and the half-open range of the text that spells it."""

    value: Any
    start: int
    end: int
    children: tuple[_Child, ...] = ()


class _Gaps(NamedTuple):
    """The text between the parts of a container, and the indentation of its children (``None``: on one line)."""

    lead: str
    between: str
    tail: str
    indent: str | None


class _Style(NamedTuple):
    """How a document writes what it does not have yet."""

    unit: str | None
    newline: str
    item_separator: str
    key_separator: str
    escape_non_ascii: bool


def same(one: Any, other: Any) -> bool:
    """Whether two JSON values would be written alike: types, order of keys and NaN included."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(value, other[key]) for key, value in one.items())
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, float):
        return repr(one) == repr(other)
    return bool(one == other)


class _Parser:
    def __init__(self, text: str, name: str) -> None:
        self._text = text
        self._name = name

    def parse(self) -> _Node:
        if self._text.startswith("\ufeff"):
            self._fail(0, "the file starts with a byte order mark, which JSON readers refuse; save it without")
        root = self._value(self._skip(0), 0)
        end = self._skip(root.end)
        if end != len(self._text):
            self._fail(end, "there is more text after the end of the JSON value")
        return root

    def _fail(self, position: int, problem: str) -> NoReturn:
        line = self._text.count("\n", 0, position) + 1
        raise InvalidInputError(f"{self._name}, line {line}: {problem}.")

    def _skip(self, position: int) -> int:
        found = _WHITESPACE.match(self._text, position)
        return found.end() if found else position

    def _value(self, start: int, depth: int) -> _Node:
        if depth > MAXIMUM_DEPTH:
            self._fail(start, f"the JSON is nested deeper than {MAXIMUM_DEPTH} levels")
        opening = self._text[start : start + 1]
        if opening == "{":
            return self._object(start, depth)
        if opening == "[":
            return self._array(start, depth)
        if opening == '"':
            return self._string(start)
        constant = _CONSTANT.match(self._text, start)
        if constant:
            return _Node(_CONSTANTS[constant.group()], start, constant.end())
        return self._number(start)

    def _string(self, start: int) -> _Node:
        found = _STRING.match(self._text, start)
        if not found:
            self._fail(start, "a string is not closed, or holds a control character or an unknown escape")
        return _Node(json.loads(found.group()), start, found.end())

    def _number(self, start: int) -> _Node:
        found = _NUMBER.match(self._text, start)
        if not found:
            self._fail(start, "a JSON value is expected here")
        whole = found.group(1) is None and found.group(2) is None
        try:
            value: Any = int(found.group()) if whole else float(found.group())
        except ValueError:  # Python bounds the digits of an integer
            self._fail(start, "the number has too many digits")
        return _Node(value, start, found.end())

    def _separator(self, position: int, closing: str) -> tuple[int, bool]:
        """Return the position after the comma or the closing bracket, and whether it was the latter."""
        position = self._skip(position)
        found = self._text[position : position + 1]
        if found not in (",", closing) or not found:
            self._fail(position, f"',' or '{closing}' is expected here")
        return position + 1, found == closing

    def _array(self, start: int, depth: int) -> _Node:
        children: list[_Child] = []
        position = self._skip(start + 1)
        closed = self._text.startswith("]", position)
        position += closed
        while not closed:
            node = self._value(self._skip(position), depth + 1)
            children.append(
                _Child("", node.start, node, self._text[children[-1].node.end : node.start] if children else "")
            )
            position, closed = self._separator(node.end, "]")
        return _Node([child.node.value for child in children], start, position, tuple(children))

    def _object(self, start: int, depth: int) -> _Node:
        children: dict[str, _Child] = {}
        position = last = self._skip(start + 1)
        closed = self._text.startswith("}", position)
        position += closed
        while not closed:
            child = self._member(self._skip(position), depth)
            if child.key in children:
                self._fail(child.start, f"the key {json.dumps(child.key)} stands twice in the same object")
            children[child.key] = child._replace(gap=self._text[last : child.start] if children else "")
            last = child.node.end
            position, closed = self._separator(child.node.end, "}")
        value = {key: child.node.value for key, child in children.items()}
        return _Node(value, start, position, tuple(children.values()))

    def _member(self, start: int, depth: int) -> _Child:
        if not self._text.startswith('"', start):
            self._fail(start, "a key in double quotes is expected here")
        key = self._string(start)
        colon = self._skip(key.end)
        if not self._text.startswith(":", colon):
            self._fail(colon, "':' is expected here")
        return _Child(key.value, start, self._value(self._skip(colon + 1), depth + 1))


def _containers(node: _Node) -> Iterator[_Node]:
    if node.children:
        yield node
        for child in node.children:
            yield from _containers(child.node)


@dataclass(frozen=True)
class JsonDocument:
    """A parsed text: ``value`` (not to be changed in place), and how to write another value in its manner."""

    text: str
    root: _Node

    @property
    def value(self) -> Any:
        """The value that the text spells."""
        return self.root.value

    def render(self, value: Any) -> str:
        """Return ``value`` as text; what equals the parsed value is the parsed text, byte for byte."""
        style = self._style()
        body = self._render(value, self.root, None if style.unit is None else "", style)
        return self.text[: self.root.start] + body + self.text[self.root.end :]

    def _own_gaps(self, node: _Node) -> _Gaps:
        first, last = node.children[0], node.children[-1]
        lead = self.text[node.start + 1 : first.start]
        tail = self.text[last.node.end : node.end - 1]
        between = node.children[1].gap if len(node.children) > 1 else ""
        return _Gaps(lead, between, tail, lead.rpartition("\n")[2] if "\n" in lead else None)

    def _style(self) -> _Style:
        unit: str | None = None
        newline, item_separator, key_separator = "\n", "", ""
        for node in _containers(self.root):
            gaps = self._own_gaps(node)
            if unit is None and gaps.indent is not None:
                unit = gaps.indent[len(gaps.tail.rpartition("\n")[2]) :]
                newline = "\r\n" if "\r\n" in gaps.lead else "\n"
            if gaps.indent is None and "\n" not in gaps.between:
                item_separator = item_separator or gaps.between
            if not key_separator and isinstance(node.value, dict):
                key_separator = self._prefix(node.children[0]).rpartition('"')[2]
        if not item_separator:
            item_separator = "," if key_separator == ":" else ", "
        escape = self.text.isascii()
        return _Style(unit, newline, item_separator, key_separator or ": ", escape)

    def _prefix(self, child: _Child) -> str:
        return self.text[child.start : child.node.start]

    def _gaps(self, node: _Node | None, indent: str | None, style: _Style) -> _Gaps:
        if node is not None and node.children:
            own = self._own_gaps(node)
            if own.between:
                return own
            return own._replace(between=style.item_separator if own.indent is None else "," + own.lead)
        if indent is None or style.unit is None:
            return _Gaps("", style.item_separator, "", None)
        child = indent + style.unit
        return _Gaps(style.newline + child, "," + style.newline + child, style.newline + indent, child)

    def _render(self, value: Any, node: _Node | None, indent: str | None, style: _Style) -> str:
        if node is not None and same(value, node.value):
            return self.text[node.start : node.end]
        if not isinstance(value, (dict, list)):
            return _scalar(value, style)
        brackets = "{}" if isinstance(value, dict) else "[]"
        if not value:
            return brackets
        if node is not None and type(value) is not type(node.value):
            node = None
        gaps = self._gaps(node, indent, style)
        text = brackets[0]
        for number, (key, part, source) in enumerate(_matched(value, node.children if node else ())):
            text += ((source and source.gap) or gaps.between) if number else gaps.lead
            if source:
                text += self._prefix(source)
            elif key is not None:
                text += _scalar(key, style) + style.key_separator
            text += self._render(part, source.node if source else None, gaps.indent, style)
        return text + gaps.tail + brackets[1]


def _matched(value: Any, children: Sequence[_Child]) -> list[tuple[str | None, Any, _Child | None]]:
    """Return key (``None`` in an array), value, and the child that it was before, of each part of a container."""
    if isinstance(value, dict):
        known = {child.key: child for child in children}
        return [(key, member, known.get(key)) for key, member in value.items()]
    return [(None, element, child) for element, child in zip(value, _aligned(value, children))]


def _aligned(value: list[Any], children: Sequence[_Child]) -> list[_Child | None]:
    """Say for each element which old one it was: the equal ones at both ends, and between them by position."""
    shorter = min(len(value), len(children))
    head = 0
    while head < shorter and same(value[head], children[head].node.value):
        head += 1
    tail = 0
    while tail < shorter - head and same(value[-1 - tail], children[-1 - tail].node.value):
        tail += 1
    wanted = len(value) - head - tail
    middle: list[_Child | None] = [*children[head : len(children) - tail][:wanted]]
    middle += [None] * (wanted - len(middle))
    return [*children[:head], *middle, *children[len(children) - tail :]]


def _scalar(value: Any, style: _Style) -> str:
    if isinstance(value, str):
        escape = style.escape_non_ascii or any("\ud800" <= character <= "\udfff" for character in value)
        return json.dumps(value, ensure_ascii=escape)
    return json.dumps(value)


def parse(text: str, name: str = "JSON") -> JsonDocument:
    """Parse ``text``; ``name`` (of the file) and the line begin every error.

    Raises InvalidInputError for what is not JSON, and for what readers of JSON disagree about.
    """
    return JsonDocument(text, _Parser(text, name).parse())


def decode(content: bytes, name: str) -> str:
    """Return the text of a file. Raises InvalidInputError, with the line, for bytes that are not UTF-8."""
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise InvalidInputError(f"{name}, line {line}: the file is not UTF-8 text.") from error
