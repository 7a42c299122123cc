# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Follow functions of an installed engine through their source, without running or importing any of it.

An engine's rules are functions: of a compute capability, a dtype, a configuration. Where the engine cannot be run, they
can still be read. What does not follow from the source (another package, a device, syntax that this reader does not
know) is unknown; where the way forks at something unknown, every way is followed, and what comes out is all that can
come out. Of ``try`` the part in which nothing goes wrong is followed, unless it imports what is not there.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ansible_collections.llmops.vllm.plugins.module_utils import engine_operations as operations
from ansible_collections.llmops.vllm.plugins.module_utils.engine_source import (
    Capability,
    Class,
    Function,
    Import,
    Member,
    Module,
    Package,
    Record,
    Super,
    Symbol,
    Unknown,
)
from ansible_collections.llmops.vllm.plugins.module_utils.engine_syntax import Flow, Frame, Raised, Syntax, Unreadable

WAYS = 128  # that are followed at most
DEPTH = 60
TRANSPARENT = frozenset(
    ("cache", "lru_cache", "staticmethod", "classmethod", "property", "cached_property", "abstractmethod",
     "with_nvml_context", "final", "override", "model_validator")
)  # fmt: skip


class Reader(Syntax):
    """Follows the source of ``package``; ``given`` are values and functions, by full name, that stand for its own.

    ``present`` says whether a module of another package, or a compiled one, is there to be imported.
    """

    def __init__(self, package: Package, given: dict[str, Any], present: Callable[[str], bool]) -> None:
        self.package = package
        self.given = given
        self.present = present
        self._way: list[bool] = []
        self._turn = 0
        self._depth = 0

    def outcomes(self, ask: Callable[[], Any]) -> list[Any]:
        """Return what each way through ``ask`` leads to: a value, ``Unknown``, or a ``Raised``."""
        found: list[Any] = []
        self._way, self._steps = [], 0
        for _number in range(WAYS):
            self._turn, self._depth = 0, 0
            found.append(self._outcome(ask))
            while self._way and self._way[-1]:
                self._way.pop()
            if not self._way:
                return found
            self._way[-1] = True
        return [*found, Unknown("too many ways through the source")]

    def _outcome(self, ask: Callable[[], Any]) -> Any:
        try:
            return ask()
        except Raised as raised:
            return raised
        except Unreadable as reason:
            return Unknown(str(reason))
        except (Flow, RecursionError, ArithmeticError, ValueError, TypeError, LookupError, AttributeError) as error:
            return Unknown(f"{type(error).__name__}: {error}")

    def holds(self, value: Any) -> bool:
        """Return whether a value counts as true on this way."""
        answer = operations.truth(value)
        if isinstance(answer, bool):
            return answer
        if self._turn == len(self._way):
            self._way.append(False)
        self._turn += 1
        return self._way[self._turn - 1]

    # Names

    def imported(self, one: Import) -> Any:
        """Return what an import binds its name to."""
        if one.name:
            return self.global_name(one.module, one.name)
        return self.given.get(one.module) or self.package.module(one.module) or Symbol(one.module)

    def named(self, path: str) -> Any:
        """Return what a full name, ``vllm.platforms.cuda.CudaPlatformBase``, stands for."""
        module, _dot, name = path.rpartition(".")
        return self.global_name(module, name)

    def global_name(self, module_name: str, name: str) -> Any:
        """Return a module's name; a module that belongs to another package makes a symbol."""
        full = f"{module_name}.{name}"
        if full in self.given:
            return self.given[full]
        module = self.package.module(module_name)
        if module is None:
            return self.package.module(full) or Symbol(full)
        for binding, guards in reversed(module.bindings.get(name, [])):
            frame = Frame(module, {})
            if all(self._is_met(test, frame) is wanted for test, wanted in guards):
                return self._bound(binding, module)
        return self.package.module(full) or self._lazy(module, name)

    def _is_met(self, test: ast.expr | tuple[str, ...], frame: Frame) -> bool:
        if isinstance(test, tuple):
            return all(self.present(name) for name in test)
        return self.holds(self.value(test, frame))

    def _bound(self, binding: Any, module: Module) -> Any:
        if isinstance(binding, Import):
            return self.imported(binding)
        if isinstance(binding, ast.FunctionDef):
            return Function(module, binding)
        if isinstance(binding, ast.ClassDef):
            return self.package.class_of(module, binding)
        return self.value(binding.value, Frame(module, {}))

    def _lazy(self, module: Module, name: str) -> Any:
        """Return an attribute that ``__getattr__`` of a module of settings makes: vllm.envs."""
        table = module.bindings.get("environment_variables")
        value = table[-1][0].value if table and isinstance(table[-1][0], (ast.Assign, ast.AnnAssign)) else None
        if isinstance(value, ast.Dict):
            for key, made in zip(value.keys, value.values):
                if isinstance(key, ast.Constant) and key.value == name:
                    return self.call(self.value(made, Frame(module, {})), (), {})
        return operations.unknown(f"{module.name}.{name}")

    def name(self, name: str, frame: Frame) -> Any:
        """Return what a name stands for in a frame."""
        if name in frame.names:
            return frame.names[name]
        if frame.function is not None and name in frame.function.closure:
            return frame.function.closure[name]
        if name in frame.module.bindings or f"{frame.module.name}.{name}" in self.given:
            return self.global_name(frame.module.name, name)
        return operations.BUILTINS.get(name, Symbol(f"builtins.{name}"))

    # Attributes

    def ancestry(self, kind: Class) -> list[Class]:
        """Return a class and those that it inherits from, in the order in which they are asked."""
        found = [kind]
        for base in kind.node.bases:
            value = self.value(base.value if isinstance(base, ast.Subscript) else base, Frame(kind.module, {}))
            if isinstance(value, Class):
                found += [one for one in self.ancestry(value) if one not in found]
        return found

    def attribute(self, value: Any, name: str) -> Any:
        """Return an attribute of a value."""
        if isinstance(value, Unknown):
            return operations.unknown(f"{value.why}.{name}")
        if isinstance(value, Symbol):
            full = f"{value.name}.{name}"
            return self.given.get(full, Symbol(full))
        if isinstance(value, Class):
            return self._of_class(self.ancestry(value), name, value)
        if isinstance(value, (Module, Super)):
            return self._of_super(value, name) if isinstance(value, Super) else self.global_name(value.name, name)
        return self._of_object(value, name) if isinstance(value, (Member, Record)) else self._of_plain(value, name)

    def _of_super(self, value: Super, name: str) -> Any:
        bound = value.bound if isinstance(value.bound, Class) else getattr(value.bound, "kind", None)
        line = self.ancestry(bound or value.owner)
        return self._of_class(line[line.index(value.owner) + 1 :], name, value.bound)

    def _of_object(self, value: Member | Record, name: str) -> Any:
        if isinstance(value, Member):
            if name in ("name", "value"):
                return getattr(value, name)
            return self._of_class(self.ancestry(value.enum), name, value)
        if name in value.attributes:
            return value.attributes[name]
        if value.kind is not None:
            return self._of_class(self.ancestry(value.kind), name, value)
        if value.open:
            return operations.unknown(f"the configuration's {name}")
        raise Raised("AttributeError", name)

    def _of_plain(self, value: Any, name: str) -> Any:
        for kind, methods in operations.METHODS.items():
            if isinstance(value, kind) and name in methods:
                return getattr(value, name)
        if value is None:
            raise Raised("AttributeError", name)
        return operations.unknown(f"{type(value).__name__}.{name}")

    def _of_class(self, line: Sequence[Class], name: str, bound: Any) -> Any:
        for kind in line:
            given = f"{kind.path}.{name}"
            if given in self.given:
                return self.given[given]
            for node in kind.node.body:
                if isinstance(node, ast.FunctionDef) and node.name == name:
                    return self._method(Function(kind.module, node, kind, bound))
                value = _assigned(node, name)
                if value is not None:
                    return self._class_value(kind, name, value)
            if f"{kind.node.name}.{name}" in kind.module.bindings:
                return self.global_name(kind.module.name, f"{kind.node.name}.{name}")
        if name == "__name__" and isinstance(bound, Class):
            return bound.node.name
        return operations.unknown(f"{line[0].node.name if line else 'object'}.{name}")

    def _class_value(self, kind: Class, name: str, value: ast.expr) -> Any:
        names = {
            target.id: None
            for node in kind.node.body
            if isinstance(node, ast.Assign)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        found = self.value(value, Frame(kind.module, {}))
        return Member(kind, name, found) if name in names and self._is_enum(kind) else found

    def _is_enum(self, kind: Class) -> bool:
        bases = [ast.unparse(base) for one in self.ancestry(kind) for base in one.node.bases]
        return any(base.rpartition(".")[2] in ("Enum", "StrEnum", "IntEnum") for base in bases)

    def _method(self, function: Function) -> Any:
        node = function.node
        decorators = _decorators(node) if isinstance(node, ast.FunctionDef) else []
        if any(name in ("property", "cached_property") for name in decorators):
            return self.call(function, (), {})
        return function

    # Calls

    def call(self, function: Any, arguments: Sequence[Any], named: Mapping[str, Any]) -> Any:
        """Return what a call leads to."""
        if isinstance(function, Function):
            return self._run(function, arguments, named)
        if isinstance(function, Class):
            return self._make(function, arguments, named)
        if isinstance(function, Symbol):
            return self._builtin(function.name.rpartition(".")[2], arguments, named, function.name)
        if isinstance(function, (Unknown, Member, Record, Module, Super)) or not callable(function):
            return operations.unknown(f"{operations.text(function)}()")
        keeps = getattr(function, "__name__", "") in ("append", "extend", "insert", "setdefault", "get", "add")
        values = [*arguments, *named.values()]
        if keeps or function in (list, tuple, len, dict) or operations.known(*values):
            return function(*arguments, **named)
        return operations.unknown(f"{getattr(function, '__name__', 'a function')}() of something not known")

    def _builtin(self, name: str, arguments: Sequence[Any], named: Mapping[str, Any], full: str) -> Any:
        if not full.startswith("builtins."):
            return operations.unknown(f"{full}()")
        if name in ("getattr", "hasattr") and len(arguments) > 1 and isinstance(arguments[1], str):
            return self._getattr(name, arguments)
        if name == "isinstance" and len(arguments) == 2:
            return self._isinstance(*arguments)
        if name in ("set", "frozenset") and not arguments:
            return set()
        return operations.unknown(f"{name}()")

    def _getattr(self, name: str, arguments: Sequence[Any]) -> Any:
        try:
            found = self.attribute(arguments[0], arguments[1])
        except Raised:
            if name == "hasattr":
                return False
            if len(arguments) > 2:
                return arguments[2]
            raise
        return found if name == "getattr" or isinstance(found, Unknown) else True

    def _isinstance(self, value: Any, kinds: Any) -> Any:
        kinds = kinds if isinstance(kinds, tuple) else (kinds,)
        if Symbol("builtins.object") in kinds:
            return True
        if isinstance(value, (Unknown, Symbol)):
            return operations.unknown("isinstance()")
        if isinstance(value, Member):
            return any(kind is value.enum or kind == Symbol("enum.Enum") for kind in kinds)
        if isinstance(value, Record) and value.kind is not None:
            return any(kind in self.ancestry(value.kind) for kind in kinds if isinstance(kind, Class))
        types = tuple(kind for kind in kinds if isinstance(kind, type))
        if isinstance(value, Record) or (len(types) < len(kinds) and not isinstance(value, types)):
            others = [kind for kind in kinds if isinstance(kind, Symbol)]
            return operations.unknown("isinstance()") if others or isinstance(value, Record) else False
        return isinstance(value, types)

    def _make(self, kind: Class, arguments: Sequence[Any], named: Mapping[str, Any]) -> Any:
        if kind.node.name == "DeviceCapability":
            return Capability(*arguments, **named)
        if kind.node.name.endswith(("Error", "Exception")):
            return Symbol(kind.path)
        fields = [
            (node.target.id, node.value)
            for one in reversed(self.ancestry(kind))
            for node in one.node.body
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
            if "ClassVar" not in ast.unparse(node.annotation)
        ]
        if not fields or any(_defines(one, "__init__") for one in self.ancestry(kind)):
            return self._initialised(kind, arguments, named)
        values = dict(zip((name for name, _default in fields), arguments))
        values.update(named)
        for name, default in fields:
            if name not in values:
                values[name] = self.value(default, Frame(kind.module, {})) if default else Unknown(name)
        return Record(values, kind, open=False)

    def _initialised(self, kind: Class, arguments: Sequence[Any], named: Mapping[str, Any]) -> Record:
        """Return an object as its ``__init__`` leaves it; what that is given and does not keep has the same name."""
        made = Record(dict(named), kind, made=True)
        begin = self._of_class(self.ancestry(kind), "__init__", made)
        if isinstance(begin, Function):
            names = [one.arg for one in begin.node.args.args[1:]]
            made = Record({**dict(zip(names, arguments)), **named}, kind, made=True)
            self._run(replace(begin, bound=made), arguments, named)
        return made

    def _run(self, function: Function, arguments: Sequence[Any], named: Mapping[str, Any]) -> Any:
        node = function.node
        if isinstance(node, ast.FunctionDef):
            strange = [name for name in _decorators(node) if name.rpartition(".")[2] not in TRANSPARENT]
            if strange:
                return operations.unknown(f"{node.name}(), which is decorated with {strange[0]}")
            if function.owner is not None and "staticmethod" not in _decorators(node) and function.bound is not None:
                arguments = (function.bound, *arguments)
        self._depth += 1
        if self._depth > DEPTH:
            raise Unreadable("calls that go too deep")
        frame = Frame(function.module, self._parameters(function, arguments, named), function)
        try:
            if isinstance(node, ast.Lambda):
                return self.value(node.body, frame)
            self.follow(node.body, frame)
            return None
        except Flow as flow:
            return flow.value
        finally:
            self._depth -= 1

    def _parameters(self, function: Function, arguments: Sequence[Any], named: Mapping[str, Any]) -> dict[str, Any]:
        wanted = function.node.args
        positional = [*wanted.posonlyargs, *wanted.args]
        names = dict(zip((one.arg for one in positional), arguments))
        rest = dict(named)
        for one in [*positional, *wanted.kwonlyargs]:
            if one.arg in rest:
                names[one.arg] = rest.pop(one.arg)
        defaults = [*zip(positional[len(positional) - len(wanted.defaults) :], wanted.defaults)]
        defaults += [(one, made) for one, made in zip(wanted.kwonlyargs, wanted.kw_defaults) if made is not None]
        for one, made in defaults:
            if one.arg not in names:
                names[one.arg] = self.value(made, Frame(function.module, {}))
        for one in [*positional, *wanted.kwonlyargs]:
            names.setdefault(one.arg, Unknown(one.arg))
        if wanted.vararg is not None:
            names[wanted.vararg.arg] = tuple(arguments[len(positional) :])
        if wanted.kwarg is not None:
            names[wanted.kwarg.arg] = rest
        return names


def _defines(kind: Class, name: str) -> bool:
    return any(isinstance(node, ast.FunctionDef) and node.name == name for node in kind.node.body)


def _assigned(node: ast.stmt, name: str) -> ast.expr | None:
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id == name:
        return node.value
    if isinstance(node, ast.Assign) and any(isinstance(one, ast.Name) and one.id == name for one in node.targets):
        return node.value
    return None


def _decorators(node: ast.FunctionDef) -> list[str]:
    names = (one.func if isinstance(one, ast.Call) else one for one in node.decorator_list)
    return [ast.unparse(name) for name in names]
