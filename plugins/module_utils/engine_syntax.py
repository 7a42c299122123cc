# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Statements and expressions of an engine's source, followed one by one; names, attributes and calls are a reader's."""

from __future__ import annotations

import ast
from abc import ABC, abstractmethod
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ansible_collections.llmops.vllm.plugins.module_utils import engine_operations as operations
from ansible_collections.llmops.vllm.plugins.module_utils.engine_source import (
    Function,
    Import,
    Module,
    Record,
    Super,
    Symbol,
    Unknown,
    imports,
    modules,
)

STEPS = 200_000
CATCH_ALL = frozenset(("Exception", "BaseException"))
ANCESTORS = {"ModuleNotFoundError": "ImportError", "FileNotFoundError": "OSError", "KeyError": "LookupError"}


class Raised(Exception):
    """The source raises an exception of this kind, with this text."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind = kind
        self.message = message


class Unreadable(Exception):
    """The source goes a way that this reader does not follow."""


class Flow(Exception):
    """Leaves a function (``return``) or a loop."""

    def __init__(self, kind: str, value: Any = None) -> None:
        super().__init__(kind)
        self.kind = kind
        self.value = value


class Frame:
    """The names at one place of the source."""

    def __init__(self, module: Module, names: dict[str, Any], function: Function | None = None) -> None:
        self.module = module
        self.names = names
        self.function = function

    def closure(self) -> Mapping[str, Any]:
        """Return what a function defined here sees of the functions around it: their names as they will then be."""
        return ChainMap(self.names, dict(self.function.closure) if self.function else {})


class Syntax(ABC):
    """Follows statements and values of a frame. ``present`` says whether a module is there to be imported."""

    present: Callable[[str], bool]
    _steps = 0

    @abstractmethod
    def holds(self, value: Any) -> bool:
        """Return whether a value counts as true on this way."""

    @abstractmethod
    def call(self, function: Any, arguments: Sequence[Any], named: Mapping[str, Any]) -> Any:
        """Return what a call leads to."""

    @abstractmethod
    def attribute(self, value: Any, name: str) -> Any:
        """Return an attribute of a value."""

    @abstractmethod
    def global_name(self, module_name: str, name: str) -> Any:
        """Return a module's name."""

    @abstractmethod
    def name(self, name: str, frame: Frame) -> Any:
        """Return what a name stands for in a frame."""

    # Statements

    def follow(self, body: Sequence[ast.stmt], frame: Frame) -> None:
        """Follow statements. Raises Flow, Raised and Unreadable."""
        for node in body:
            self._steps += 1
            if self._steps > STEPS:
                raise Unreadable("a way that is too long")
            follow = getattr(self, f"_follow_{type(node).__name__.lower()}", None)
            if follow is None:
                raise Unreadable(f"a statement that is not followed ({type(node).__name__})")
            follow(node, frame)

    def _follow_pass(self, node: ast.stmt, frame: Frame) -> None:
        return None

    _follow_global = _follow_nonlocal = _follow_delete = _follow_pass

    def _follow_expr(self, node: ast.Expr, frame: Frame) -> None:
        if not isinstance(node.value, ast.Constant):
            self.value(node.value, frame)

    def _follow_return(self, node: ast.Return, frame: Frame) -> None:
        raise Flow("return", self.value(node.value, frame) if node.value else None)

    def _follow_continue(self, node: ast.Continue, frame: Frame) -> None:
        raise Flow("continue")

    def _follow_break(self, node: ast.Break, frame: Frame) -> None:
        raise Flow("break")

    def _follow_if(self, node: ast.If, frame: Frame) -> None:
        self.follow(node.body if self.holds(self.value(node.test, frame)) else node.orelse, frame)

    def _follow_assert(self, node: ast.Assert, frame: Frame) -> None:
        answer = operations.truth(self.value(node.test, frame))
        if answer is False:
            raise Raised("AssertionError", operations.text(self.value(node.msg, frame)) if node.msg else "")

    def _follow_raise(self, node: ast.Raise, frame: Frame) -> None:
        made = node.exc
        message = ""
        if isinstance(made, ast.Call):
            message = ", ".join(operations.text(self.value(one, frame)) for one in made.args)
            made = made.func
        raise Raised(ast.unparse(made).rpartition(".")[2] if made else "Exception", message)

    def _follow_assign(self, node: ast.Assign, frame: Frame) -> None:
        value = self.value(node.value, frame)
        for target in node.targets:
            self.bind(target, value, frame)

    def _follow_annassign(self, node: ast.AnnAssign, frame: Frame) -> None:
        if node.value is not None:
            self.bind(node.target, self.value(node.value, frame), frame)

    def _follow_augassign(self, node: ast.AugAssign, frame: Frame) -> None:
        if isinstance(node.target, ast.Name):
            left, right = self.name(node.target.id, frame), self.value(node.value, frame)
            self.bind(node.target, operations.binary(node.op, left, right), frame)

    def _follow_functiondef(self, node: ast.FunctionDef, frame: Frame) -> None:
        frame.names[node.name] = Function(frame.module, node, None, None, frame.closure())

    def _follow_import(self, node: ast.Import | ast.ImportFrom, frame: Frame) -> None:
        package = frame.module.package_name
        for module in modules(node, package):
            if not self.present(module):
                raise Raised("ModuleNotFoundError", f"No module named '{module}'")
        for key, one in imports(node, package):
            frame.names[key] = self.imported(one)

    _follow_importfrom = _follow_import

    @abstractmethod
    def imported(self, one: Import) -> Any:
        """Return what an import binds its name to."""

    def _follow_with(self, node: ast.With, frame: Frame) -> None:
        self.follow(node.body, frame)

    def _follow_for(self, node: ast.For, frame: Frame) -> None:
        for value in self.each(self.value(node.iter, frame)):
            self.bind(node.target, value, frame)
            try:
                self.follow(node.body, frame)
            except Flow as flow:
                if flow.kind == "return":
                    raise
                if flow.kind == "break":
                    return
        self.follow(node.orelse, frame)

    def _follow_try(self, node: ast.Try, frame: Frame) -> None:
        try:
            self.follow(node.body, frame)
            self.follow(node.orelse, frame)
        except Raised as raised:
            handler = next((one for one in node.handlers if _handles(one, raised)), None)
            if handler is None:
                raise
            if handler.name:
                frame.names[handler.name] = raised.message
            self.follow(handler.body, frame)
        self.follow(node.finalbody, frame)

    def each(self, value: Any) -> Iterator[Any]:
        """Return the elements of a value. Raises Unreadable when they are not known."""
        if isinstance(value, operations.OPAQUE) or not hasattr(value, "__iter__"):
            raise Unreadable(f"a loop over {operations.text(value)}")
        return iter(list(value))

    def bind(self, target: ast.expr, value: Any, frame: Frame) -> None:
        """Give a value its name, or names."""
        if isinstance(target, ast.Name):
            frame.names[target.id] = value
        elif isinstance(target, (ast.Tuple, ast.List)):
            parts = [Unknown("a part")] * len(target.elts) if isinstance(value, Unknown) else list(self.each(value))
            for one, part in zip(target.elts, parts):
                self.bind(one, part, frame)
        elif isinstance(target, ast.Subscript):
            container, key = self.value(target.value, frame), self.value(target.slice, frame)
            if isinstance(container, dict) and operations.known(key):
                container[key] = value
        elif isinstance(target, ast.Attribute):
            thing = self.value(target.value, frame)
            if isinstance(thing, Record) and thing.made and isinstance(thing.attributes, dict):
                thing.attributes[target.attr] = value

    # Values

    def value(self, node: ast.expr, frame: Frame) -> Any:
        """Return the value of an expression."""
        self._steps += 1
        if self._steps > STEPS:
            raise Unreadable("a way that is too long")
        work = getattr(self, f"_value_{type(node).__name__.lower()}", None)
        return work(node, frame) if work is not None else operations.unknown(ast.unparse(node))

    def _value_constant(self, node: ast.Constant, frame: Frame) -> Any:
        return node.value

    def _value_name(self, node: ast.Name, frame: Frame) -> Any:
        return self.name(node.id, frame)

    def _value_attribute(self, node: ast.Attribute, frame: Frame) -> Any:
        return self.attribute(self.value(node.value, frame), node.attr)

    def _value_list(self, node: ast.List | ast.Tuple | ast.Set, frame: Frame) -> Any:
        values: list[Any] = []
        for one in node.elts:
            if isinstance(one, ast.Starred):
                values += self.each(self.value(one.value, frame))
            else:
                values.append(self.value(one, frame))
        # A set stays a list: what is asked of it is whether it holds something.
        return tuple(values) if isinstance(node, ast.Tuple) else values

    _value_tuple = _value_set = _value_list

    def _value_dict(self, node: ast.Dict, frame: Frame) -> Any:
        found: dict[Any, Any] = {}
        for key, made in zip(node.keys, node.values):
            value = self.value(made, frame)
            if key is None:
                found.update(value if isinstance(value, dict) else {})
            else:
                name = self.value(key, frame)
                found[name if operations.known(name) else Unknown(ast.unparse(key))] = value
        return found

    def _value_lambda(self, node: ast.Lambda, frame: Frame) -> Any:
        return Function(frame.module, node, None, None, frame.closure())

    def _value_ifexp(self, node: ast.IfExp, frame: Frame) -> Any:
        return self.value(node.body if self.holds(self.value(node.test, frame)) else node.orelse, frame)

    def _value_namedexpr(self, node: ast.NamedExpr, frame: Frame) -> Any:
        value = self.value(node.value, frame)
        self.bind(node.target, value, frame)
        return value

    def _value_boolop(self, node: ast.BoolOp, frame: Frame) -> Any:
        value: Any = None
        for one in node.values[:-1]:
            value = self.value(one, frame)
            if self.holds(value) is isinstance(node.op, ast.Or):
                # On a way that takes something unknown for true or false it is just that.
                return value if operations.known(value) else isinstance(node.op, ast.Or)
        return self.value(node.values[-1], frame)

    def _value_unaryop(self, node: ast.UnaryOp, frame: Frame) -> Any:
        value = self.value(node.operand, frame)
        if isinstance(node.op, ast.Not):
            answer = operations.truth(value)
            return not answer if isinstance(answer, bool) else answer
        if isinstance(node.op, ast.USub) and isinstance(value, (int, float)):
            return -value
        return operations.unknown(ast.unparse(node))

    def _value_binop(self, node: ast.BinOp, frame: Frame) -> Any:
        return operations.binary(node.op, self.value(node.left, frame), self.value(node.right, frame))

    def _value_compare(self, node: ast.Compare, frame: Frame) -> Any:
        left, answer = self.value(node.left, frame), True
        for kind, other in zip(node.ops, node.comparators):
            right = self.value(other, frame)
            found = operations.compare(kind, left, right)
            if not isinstance(found, bool):
                return found
            answer, left = answer and found, right
        return answer

    def _value_subscript(self, node: ast.Subscript, frame: Frame) -> Any:
        value = self.value(node.value, frame)
        if isinstance(value, Symbol) and value.name.endswith("typing.Literal"):
            return self.value(node.slice, frame)
        if isinstance(node.slice, ast.Slice) or isinstance(value, operations.OPAQUE):
            return value if isinstance(value, Symbol) else operations.unknown(ast.unparse(node))
        key = self.value(node.slice, frame)
        if not operations.known(key):
            return operations.unknown(ast.unparse(node))
        try:
            return value[key]
        except LookupError as error:
            raise Raised(type(error).__name__, operations.text(key)) from error

    def _value_joinedstr(self, node: ast.JoinedStr, frame: Frame) -> Any:
        return "".join(
            operations.text(self.value(part.value if isinstance(part, ast.FormattedValue) else part, frame))
            for part in node.values
        )

    def _value_listcomp(self, node: ast.ListComp | ast.GeneratorExp | ast.SetComp, frame: Frame) -> Any:
        inner = Frame(frame.module, dict(frame.names), frame.function)
        return [self.value(node.elt, inner) for _turn in self._turns(node.generators, inner)]

    _value_generatorexp = _value_setcomp = _value_listcomp

    def _value_dictcomp(self, node: ast.DictComp, frame: Frame) -> Any:
        inner = Frame(frame.module, dict(frame.names), frame.function)
        turns = self._turns(node.generators, inner)
        return {self.value(node.key, inner): self.value(node.value, inner) for _turn in turns}

    def _turns(self, generators: Sequence[ast.comprehension], frame: Frame) -> Iterator[None]:
        if not generators:
            yield None
            return
        for value in self.each(self.value(generators[0].iter, frame)):
            self.bind(generators[0].target, value, frame)
            if all(self.holds(self.value(test, frame)) for test in generators[0].ifs):
                yield from self._turns(generators[1:], frame)

    def _value_call(self, node: ast.Call, frame: Frame) -> Any:
        if ast.unparse(node.func).startswith("logger."):
            return None
        if isinstance(node.func, ast.Name) and node.func.id == "super":
            return self._super(frame)
        arguments: list[Any] = []
        for one in node.args:
            if isinstance(one, ast.Starred):
                arguments += self.each(self.value(one.value, frame))
            else:
                arguments.append(self.value(one, frame))
        named: dict[str, Any] = {}
        for keyword in node.keywords:
            value = self.value(keyword.value, frame)
            if keyword.arg is not None:
                named[keyword.arg] = value
            elif isinstance(value, dict):
                named.update(value)
        return self.call(self.value(node.func, frame), arguments, named)

    def _super(self, frame: Frame) -> Any:
        function = frame.function
        if function is None or function.owner is None:
            return operations.unknown("super()")
        return Super(function.owner, function.bound)


def _handles(handler: ast.ExceptHandler, raised: Raised) -> bool:
    if handler.type is None:
        return True
    nodes = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    names = {ast.unparse(node).rpartition(".")[2] for node in nodes}
    return bool(names & {raised.kind, ANCESTORS.get(raised.kind, ""), *CATCH_ALL})
