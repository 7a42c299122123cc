# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Operators and builtin functions on what is read from an engine's source; what is unknown makes an unknown result."""

from __future__ import annotations

import ast
import operator
from collections.abc import Mapping
from typing import Any, Callable

from ansible_collections.llmops.vllm.plugins.module_utils.engine_source import (
    Capability,
    Class,
    Function,
    Member,
    Module,
    Record,
    Super,
    Symbol,
    Unknown,
)

DTYPES = frozenset(
    f"torch.{name}"
    for name in (
        "float16", "half", "bfloat16", "float32", "float", "float64", "uint8", "int8", "int32", "int64", "bool",
        "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e8m0fnu", "float4_e2m1fn_x2",
    )
)  # fmt: skip
NAMES = {"torch.half": "torch.float16", "torch.float": "torch.float32"}
METHODS: Mapping[type, frozenset[str]] = {
    str: frozenset(
        (
            "startswith",
            "endswith",
            "lower",
            "upper",
            "strip",
            "split",
            "replace",
            "partition",
            "rpartition",
            "join",
            "format",
        )
    ),
    dict: frozenset(("get", "items", "keys", "values", "setdefault", "update", "copy", "pop")),
    list: frozenset(("append", "insert", "extend", "index", "count", "remove", "copy", "pop")),
    tuple: frozenset(("index", "count")),
    set: frozenset(("add", "update", "union", "discard")),
    Capability: frozenset(("major", "minor", "to_int", "as_version_str")),
}
BINARY: Mapping[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Div: operator.truediv,
    ast.Mod: operator.mod,
    ast.BitOr: operator.or_,
    ast.BitAnd: operator.and_,
}
ORDER: Mapping[type, Callable[[Any, Any], Any]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
BUILTINS: Mapping[str, Callable[..., Any]] = {
    "len": len, "int": int, "str": str, "float": float, "bool": bool, "list": list, "tuple": tuple, "set": set,
    "frozenset": frozenset, "dict": dict, "min": min, "max": max, "sum": sum, "sorted": sorted, "range": range,
    "enumerate": lambda *values: list(enumerate(*values)), "zip": lambda *values: list(zip(*values)), "abs": abs,
    "reversed": lambda values: list(reversed(values)), "any": any, "all": all,
    "next": lambda values, *default: [*values, *default][0],
}  # fmt: skip
OPAQUE = (Unknown, Symbol, Class, Function, Member, Module, Record, Super)


def known(*values: Any) -> bool:
    """Whether nothing in the values is unknown, as deep as lists and maps go."""
    for value in values:
        if isinstance(value, Unknown):
            return False
        if isinstance(value, (list, tuple, set, frozenset)) and not known(*value):
            return False
        if isinstance(value, dict) and not known(*value, *value.values()):
            return False
    return True


def plain(*values: Any) -> bool:
    """Whether the values are ordinary ones all through, which Python's own functions may be given."""
    for value in values:
        if isinstance(value, OPAQUE):
            return False
        if isinstance(value, (list, tuple, set, frozenset)) and not plain(*value):
            return False
    return True


def unknown(what: str) -> Unknown:
    """Return an unknown value for an expression, told in few words."""
    return Unknown(what if len(what) <= 80 else f"{what[:77]}...")


def truth(value: Any) -> bool | Unknown:
    """Return whether a value counts as true."""
    if isinstance(value, Unknown):
        return value
    if isinstance(value, Symbol):
        return True if value.name in DTYPES else Unknown(value.name)
    if isinstance(value, OPAQUE):
        return True
    return bool(value)


def equal(left: Any, right: Any) -> bool | Unknown:
    """Return whether two values are equal."""
    if isinstance(left, Unknown) or isinstance(right, Unknown):
        return left if isinstance(left, Unknown) else right
    if isinstance(left, Symbol) or isinstance(right, Symbol):
        return _symbols_equal(left, right)
    if isinstance(left, Member) or isinstance(right, Member):
        return _members_equal(left, right)
    if isinstance(left, Record) and isinstance(right, Record):
        return _records_equal(left, right)
    return _all_equal(left, right)


def _records_equal(left: Record, right: Record) -> bool | Unknown:
    if left.open or right.open or left.kind is not right.kind:
        return left is right or Unknown("two objects")
    # Fields come in the order in which they were given.
    names = {**left.attributes, **right.attributes}
    sides = (tuple(one.attributes.get(name, Unknown(name)) for name in names) for one in (left, right))
    return equal(*sides)


def _all_equal(left: Any, right: Any) -> bool | Unknown:
    if not isinstance(left, (list, tuple)) or not isinstance(right, (list, tuple)):
        return bool(left == right)
    if isinstance(left, list) is not isinstance(right, list) or len(left) != len(right):
        return False
    answers = [equal(one, other) for one, other in zip(left, right)]
    return False if False in answers else next((one for one in answers if one is not True), True)


def _symbols_equal(left: Any, right: Any) -> bool | Unknown:
    if not isinstance(left, Symbol):
        left, right = right, left
    name = NAMES.get(left.name, left.name)
    if isinstance(right, Symbol):
        other = NAMES.get(right.name, right.name)
        return name == other or (False if {name, other} <= DTYPES else Unknown(f"{name} == {other}"))
    return False if name in DTYPES else Unknown(name)


def _members_equal(left: Any, right: Any) -> bool:
    if isinstance(left, Member) and isinstance(right, Member):
        return left.enum is right.enum and left.name == right.name
    member, other = (left, right) if isinstance(left, Member) else (right, left)
    texts = any(isinstance(base, ast.Name) and base.id in ("str", "StrEnum") for base in member.enum.node.bases)
    return bool(texts and member.value == other)


def contains(container: Any, value: Any) -> bool | Unknown:
    """Return whether a value is in a container."""
    if isinstance(container, OPAQUE):
        return unknown(f"in {container}")
    if isinstance(container, str):
        return value in container if isinstance(value, str) else unknown(f"in {container!r}")
    answers = [equal(one, value) for one in container]
    return True if True in answers else next((one for one in answers if one is not False), False)


def compare(kind: ast.cmpop, left: Any, right: Any) -> bool | Unknown:
    """Return the result of one comparison."""
    if isinstance(kind, (ast.In, ast.NotIn)):
        answer = left if isinstance(left, Unknown) else contains(right, left)
    elif isinstance(kind, (ast.Is, ast.IsNot)):
        answer = _identical(left, right)
    elif isinstance(kind, (ast.Eq, ast.NotEq)):
        answer = equal(left, right)
    else:
        if not plain(left, right):
            return unknown("an order of values that are not known")
        return bool(ORDER[type(kind)](left, right))
    if isinstance(kind, (ast.NotIn, ast.IsNot, ast.NotEq)) and isinstance(answer, bool):
        return not answer
    return answer


def _identical(left: Any, right: Any) -> bool | Unknown:
    if isinstance(left, Unknown) or isinstance(right, Unknown):
        return left if isinstance(left, Unknown) else right
    if isinstance(left, (Member, Symbol)) and right is not None:
        return equal(left, right)
    # What another package gives a name to may be None there.
    if isinstance(left, Symbol) and left.name not in DTYPES:
        return Unknown(left.name)
    return left is right


def binary(kind: ast.operator, left: Any, right: Any) -> Any:
    """Return the result of an arithmetic operator; lists that hold unknown values are joined all the same."""
    joined = isinstance(left, (list, tuple)) and isinstance(right, (list, tuple)) and isinstance(kind, ast.Add)
    function = BINARY.get(type(kind))
    if function is None or not (joined or plain(left, right)):
        return unknown(f"{type(kind).__name__} of values that are not known")
    return function(left, right)


def text(value: Any) -> str:
    """Return a value as it would stand in a message."""
    if isinstance(value, Unknown):
        return "?"
    if isinstance(value, Symbol):
        return value.name
    if isinstance(value, Class):
        return value.path
    if isinstance(value, Member):
        return f"{value.enum.node.name}.{value.name}"
    if isinstance(value, Record):
        inside = ", ".join(f"{name}={text(one)}" for name, one in value.attributes.items())
        return f"{value.kind.node.name if value.kind else 'object'}({inside})"
    return f"{value.major}.{value.minor}" if isinstance(value, Capability) else str(value)
