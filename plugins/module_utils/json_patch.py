# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Changes of a JSON value: RFC 6902 operations, RFC 7396 merge, and removal of a key wherever it stands.

Every function returns a new value and leaves its argument alone: a patch that fails half way has changed nothing.
"""

from __future__ import annotations

import copy
import json
import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ansible_collections.llmops.vllm.plugins.module_utils.errors import InvalidInputError, PreconditionError

_INDEX = re.compile(r"0|[1-9][0-9]{0,9}")
_BAD_ESCAPE = re.compile(r"~(?![01])")
_REQUIRED_MEMBERS: dict[str, tuple[str, ...]] = {
    "add": ("path", "value"),
    "remove": ("path",),
    "replace": ("path", "value"),
    "move": ("from", "path"),
    "copy": ("from", "path"),
    "test": ("path", "value"),
}


@dataclass(frozen=True)
class Changes:
    """The topmost places, as JSON pointers in document order, at which two values differ."""

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()


def parse_pointer(pointer: Any) -> list[str]:
    """Return the reference tokens of a JSON pointer (RFC 6901 §3, §4). Raises InvalidInputError."""
    if not isinstance(pointer, str) or (pointer and not pointer.startswith("/")):
        raise InvalidInputError(f"{_show(pointer)} is no JSON pointer: it must be empty or start with '/'.")
    if _BAD_ESCAPE.search(pointer):
        raise InvalidInputError(
            f"{_show(pointer)} is no JSON pointer: '~' must be written '~0', and '/' in a key '~1'."
        )
    return [token.replace("~1", "/").replace("~0", "~") for token in pointer.split("/")[1:]]


def build_pointer(tokens: Sequence[str]) -> str:
    """Return the JSON pointer of reference tokens."""
    return "".join("/" + token.replace("~", "~0").replace("/", "~1") for token in tokens)


def json_equal(one: Any, other: Any) -> bool:
    """Equality as RFC 6902 §4.6 defines it: numbers by value, objects without order, true and 1 distinct."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(json_equal(value, other[key]) for key, value in one.items())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(json_equal, one, other))
    return bool(one == other)


def resolve(document: Any, pointer: str) -> Any:
    """Return what ``pointer`` points at. Raises PreconditionError when nothing is there."""
    value = document
    for token in parse_pointer(pointer):
        if isinstance(value, dict) and token in value:
            value = value[token]
        elif isinstance(value, list) and _INDEX.fullmatch(token) and int(token) < len(value):
            value = value[int(token)]
        else:
            raise PreconditionError(f"there is nothing at {_show(pointer)}")
    return value


def check_value(value: Any) -> None:
    """Refuse what no JSON text can spell. Raises InvalidInputError."""
    if isinstance(value, dict):
        for key, member in value.items():
            if not isinstance(key, str):
                raise InvalidInputError(f"the key {key!r} must be a string; put it in quotes")
            check_value(member)
    elif isinstance(value, list):
        for element in value:
            check_value(element)
    elif isinstance(value, float) and not math.isfinite(value):
        raise InvalidInputError(f"{value} is not a JSON number")
    elif value is not None and not isinstance(value, (str, int, float)):
        raise InvalidInputError(f"a value of type {type(value).__name__} is not JSON")


def validate_operations(operations: Sequence[Any]) -> None:
    """Check the form of RFC 6902 operations (§4) before any document is at hand. Raises InvalidInputError."""
    for number, operation in enumerate(operations, 1):
        try:
            _validate_operation(operation)
        except InvalidInputError as error:
            raise InvalidInputError(f"operation {number}: {error.message.rstrip('.')}.") from error


def _validate_operation(operation: Any) -> None:
    if not isinstance(operation, dict):
        raise InvalidInputError("it must be a dictionary")
    kind = operation.get("op")
    if not isinstance(kind, str) or kind not in _REQUIRED_MEMBERS:
        raise InvalidInputError(f"op must be one of {', '.join(_REQUIRED_MEMBERS)}, not {_show(kind)}")
    for member in _REQUIRED_MEMBERS[kind]:
        if member not in operation:
            raise InvalidInputError(f"{kind} needs {_show(member)}")
    for member in ("path", "from"):
        if member in _REQUIRED_MEMBERS[kind]:
            parse_pointer(operation[member])
    if "value" in _REQUIRED_MEMBERS[kind]:
        check_value(operation["value"])
    if kind == "remove" and operation["path"] == "":
        raise InvalidInputError("the whole document cannot be removed")
    if kind == "move" and operation["path"].startswith(operation["from"] + "/"):
        raise InvalidInputError("a value cannot be moved into itself")


def apply_operations(document: Any, operations: Sequence[Mapping[str, Any]]) -> Any:
    """Apply RFC 6902 operations in order, all or none.

    Raises InvalidInputError for a malformed operation, and PreconditionError when the document is not as an operation
    needs it; both name the operation.
    """
    validate_operations(operations)
    result = copy.deepcopy(document)
    for number, operation in enumerate(operations, 1):
        try:
            result = _OPERATIONS[operation["op"]](result, operation)
        except PreconditionError as error:
            where = f"operation {number} ({operation['op']} {_show(operation['path'])})"
            raise PreconditionError(f"{where}: {error.message.rstrip('.')}.") from error
    return result


def _parent(document: Any, pointer: str) -> tuple[Any, str]:
    tokens = parse_pointer(pointer)
    parent = resolve(document, build_pointer(tokens[:-1]))
    if not isinstance(parent, (dict, list)):
        raise PreconditionError(f"{_show(build_pointer(tokens[:-1]))} is neither an object nor an array")
    return parent, tokens[-1]


def _put(document: Any, pointer: str, value: Any) -> Any:
    if not pointer:
        return value
    parent, last = _parent(document, pointer)
    if isinstance(parent, dict):
        parent[last] = value
        return document
    if last != "-" and not _INDEX.fullmatch(last):
        raise PreconditionError(f"{_show(last)} is no index of an array")
    position = len(parent) if last == "-" else int(last)
    if position > len(parent):
        raise PreconditionError(f"the array has {len(parent)} elements only")
    parent.insert(position, value)
    return document


def _take(document: Any, pointer: str) -> Any:
    value = resolve(document, pointer)
    parent, last = _parent(document, pointer)
    if isinstance(parent, dict):
        del parent[last]
    else:
        del parent[int(last)]
    return value


def _add(document: Any, operation: Mapping[str, Any]) -> Any:
    return _put(document, operation["path"], copy.deepcopy(operation["value"]))


def _remove(document: Any, operation: Mapping[str, Any]) -> Any:
    _take(document, operation["path"])
    return document


def _replace(document: Any, operation: Mapping[str, Any]) -> Any:
    pointer = operation["path"]
    resolve(document, pointer)
    value = copy.deepcopy(operation["value"])
    if not pointer:
        return value
    parent, token = _parent(document, pointer)
    parent[token if isinstance(parent, dict) else int(token)] = value
    return document


def _move(document: Any, operation: Mapping[str, Any]) -> Any:
    resolve(document, operation["from"])
    if operation["from"] == operation["path"]:
        return document
    return _put(document, operation["path"], _take(document, operation["from"]))


def _copy(document: Any, operation: Mapping[str, Any]) -> Any:
    return _put(document, operation["path"], copy.deepcopy(resolve(document, operation["from"])))


def _test(document: Any, operation: Mapping[str, Any]) -> Any:
    found = resolve(document, operation["path"])
    if not json_equal(found, operation["value"]):
        raise PreconditionError(f"{_show(operation['value'])} is expected, but {_show(found)} is there")
    return document


_OPERATIONS: dict[str, Callable[[Any, Mapping[str, Any]], Any]] = {
    "add": _add,
    "remove": _remove,
    "replace": _replace,
    "move": _move,
    "copy": _copy,
    "test": _test,
}


def check_expectations(document: Any, expectations: Mapping[str, Any]) -> None:
    """Check that each JSON pointer has its value in ``document``. Raises PreconditionError for the first without."""
    for pointer, expected in expectations.items():
        try:
            found = resolve(document, pointer)
        except PreconditionError as error:
            raise PreconditionError(
                f"{_show(expected)} is expected at {_show(pointer)}, but nothing is there."
            ) from error
        if not json_equal(found, expected):
            raise PreconditionError(f"{_show(expected)} is expected at {_show(pointer)}, but {_show(found)} is there.")


def merge(target: Any, patch: Any) -> Any:
    """Return ``target`` merged with ``patch`` (RFC 7396 §2): null removes, objects merge, all else replaces."""
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merge(result.get(key), value)
    return result


def remove_keys(document: Any, keys: Collection[str]) -> tuple[Any, list[str]]:
    """Return ``document`` without the members called one of ``keys``, at any depth, and the pointers removed."""
    removed: list[str] = []
    return _without(document, frozenset(keys), (), removed), removed


def _without(value: Any, keys: frozenset[str], at: tuple[str, ...], removed: list[str]) -> Any:
    if isinstance(value, list):
        return [_without(element, keys, (*at, str(index)), removed) for index, element in enumerate(value)]
    if not isinstance(value, dict):
        return value
    result = {}
    for key, member in value.items():
        if key in keys:
            removed.append(build_pointer((*at, key)))
        else:
            result[key] = _without(member, keys, (*at, key), removed)
    return result


def find_changes(before: Any, after: Any) -> Changes:
    """Return where two JSON values differ; an array of another length counts as changed as a whole."""
    added: list[str] = []
    removed: list[str] = []
    changed: list[str] = []

    def compare(one: Any, other: Any, at: tuple[str, ...]) -> None:
        if isinstance(one, dict) and isinstance(other, dict):
            removed.extend(build_pointer((*at, key)) for key in one if key not in other)
            added.extend(build_pointer((*at, key)) for key in other if key not in one)
            for key in one:
                if key in other:
                    compare(one[key], other[key], (*at, key))
        elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
            for index, element in enumerate(one):
                compare(element, other[index], (*at, str(index)))
        elif type(one) is not type(other) or repr(one) != repr(other):
            changed.append(build_pointer(at))

    compare(before, after, ())
    return Changes(tuple(added), tuple(removed), tuple(changed))


def _show(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=repr)
    return text if len(text) <= 120 else text[:120] + "…"
