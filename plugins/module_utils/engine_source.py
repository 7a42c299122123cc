# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The source of an installed Python package, as syntax trees: its modules, and what they give a name to.

Nothing of the package is imported or run. What ``engine_reader`` makes of it are the values below, and plain ones.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Union

SOURCE_BYTES_MAX = 8 * 1024 * 1024
Guard = tuple[Union[ast.expr, "tuple[str, ...]"], bool]  # a condition, or modules that have to be there; or must not
Binding = Union[ast.FunctionDef, ast.ClassDef, ast.Assign, ast.AnnAssign, "Import"]


class Capability(NamedTuple):
    """Compute capability of a GPU; the methods are those that engines ask their own such type for."""

    major: int
    minor: int

    def to_int(self) -> int:
        """Return 120 for 12.0."""
        return self.major * 10 + self.minor

    def as_version_str(self) -> str:
        """Return 12.0."""
        return f"{self.major}.{self.minor}"


@dataclass(frozen=True)
class Unknown:
    """A value that the source does not tell; ``why`` names the expression."""

    why: str


@dataclass(frozen=True)
class Symbol:
    """Something of another package, by its full name: ``torch.bfloat16``."""

    name: str


@dataclass(frozen=True)
class Import:
    """A name that an import binds: to ``module``, or to what ``name`` is there."""

    module: str
    name: str = ""


@dataclass(eq=False)
class Module:
    """A module and, for each name, what it was bound to and under which conditions, in the order of the text.

    ``package_name`` is what relative imports start from.
    """

    package: Package
    name: str
    tree: ast.Module
    package_name: str
    bindings: dict[str, list[tuple[Binding, tuple[Guard, ...]]]] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Class:
    """A class of the package; one and the same class is one and the same object."""

    module: Module
    node: ast.ClassDef

    @property
    def path(self) -> str:
        """Return the full name."""
        return f"{self.module.name}.{self.node.name}"


@dataclass(frozen=True)
class Function:
    """A function, or a lambda; ``owner`` is the class whose body it stands in, ``closure`` the names around it."""

    module: Module
    node: ast.FunctionDef | ast.Lambda
    owner: Class | None = None
    bound: Any = None
    closure: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Super:
    """``super()`` in a method of ``owner``, called on ``bound``."""

    owner: Class
    bound: Any


@dataclass(frozen=True)
class Member:
    """A member of an enumeration; members of one that is a text too compare equal to their text."""

    enum: Class
    name: str
    value: Any


@dataclass(frozen=True)
class Record:
    """An object with attributes. Where it is ``open`` an attribute that is not there is unknown, and not missing.

    ``made`` is one that the source itself has made, whose attributes it sets.
    """

    attributes: Mapping[str, Any]
    kind: Class | None = None
    open: bool = True
    made: bool = False


class Package:
    """A package below ``root``, the directory that holds its own directory."""

    def __init__(self, root: str, name: str = "vllm") -> None:
        self.root = root
        self.name = name
        self._modules: dict[str, Module | None] = {}
        self._classes: dict[int, Class] = {}

    def module(self, name: str) -> Module | None:
        """Return a module by its full name, None for one of another package or without readable source."""
        if name not in self._modules:
            self._modules[name] = self._read(name)
        return self._modules[name]

    def holds(self, name: str) -> bool:
        """Whether a module of that name is there, as source or compiled, of this package or beside it."""
        base = os.path.join(self.root, *name.split("."))
        if os.path.isdir(base) or os.path.exists(f"{base}.py"):
            return True
        directory, stem = os.path.split(base)
        try:
            return any(found.startswith(f"{stem}.") and found.endswith(".so") for found in os.listdir(directory))
        except OSError:
            return False

    def class_of(self, module: Module, node: ast.ClassDef) -> Class:
        """Return the one object for a class."""
        return self._classes.setdefault(id(node), Class(module, node))

    def _read(self, name: str) -> Module | None:
        parts = name.split(".")
        if parts[0] != self.name or not all(part.isidentifier() for part in parts):
            return None
        base = os.path.join(self.root, *parts)
        for path in (f"{base}.py", os.path.join(base, "__init__.py")):
            try:
                with open(path, encoding="utf-8") as stream:
                    tree = ast.parse(stream.read(SOURCE_BYTES_MAX))
            except FileNotFoundError:
                continue
            except (OSError, ValueError, SyntaxError, RecursionError):
                return None  # such as syntax that is newer than this Python
            here = name if path.endswith("__init__.py") else name.rpartition(".")[0]
            return self.read_tree(name, tree, here)
        return None

    def read_tree(self, name: str, tree: ast.Module, here: str) -> Module:
        """Return a module for a syntax tree; relative imports start from the package ``here``."""
        module = Module(self, name, tree, here)
        for key, binding, guards in _bindings(tree.body, here, ()):
            module.bindings.setdefault(key, []).append((binding, guards))
        return module


def _bindings(
    body: list[ast.stmt], package: str, guards: tuple[Guard, ...]
) -> Iterator[tuple[str, Binding, tuple[Guard, ...]]]:
    """Find what gives a name to something, and when. What a failed import leads to needs the import to fail."""
    for node in body:
        if isinstance(node, (ast.If, ast.Try, ast.With)):
            for inner, extra in _parts(node, package):
                yield from _bindings(inner, package, (*guards, *extra))
        else:
            for key, binding in _names(node, package):
                yield key, binding, guards


def _parts(node: ast.If | ast.Try | ast.With, package: str) -> Iterator[tuple[list[ast.stmt], tuple[Guard, ...]]]:
    if isinstance(node, ast.If):
        yield node.body, ((node.test, True),)
        yield node.orelse, ((node.test, False),)
    elif isinstance(node, ast.With):
        yield node.body, ()
    else:
        needed = [
            name for one in node.body if isinstance(one, (ast.Import, ast.ImportFrom)) for name in modules(one, package)
        ]
        yield [*node.body, *node.orelse], ((tuple(needed), True),)
        for handler in node.handlers:
            yield handler.body, ((tuple(needed), False),)


def _names(node: ast.stmt, package: str) -> Iterator[tuple[str, Binding]]:
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        yield node.name, node
    elif isinstance(node, ast.Assign):
        for target in node.targets:
            if isinstance(target, ast.Name):
                yield target.id, node
            elif isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name):
                yield f"{target.value.id}.{target.attr}", node  # a class is given an attribute after its body
    elif isinstance(node, ast.AnnAssign):
        if isinstance(node.target, ast.Name) and node.value is not None:
            yield node.target.id, node
    elif isinstance(node, (ast.Import, ast.ImportFrom)):
        yield from imports(node, package)


def imports(node: ast.Import | ast.ImportFrom, package: str) -> Iterator[tuple[str, Import]]:
    """Return what an import binds; ``package`` is the one that relative names start from."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            whole = alias.name if alias.asname else alias.name.partition(".")[0]
            yield alias.asname or whole, Import(whole)
        return
    for alias in node.names:
        yield alias.asname or alias.name, Import(_origin(node, package), alias.name)


def modules(node: ast.Import | ast.ImportFrom, package: str) -> list[str]:
    """Return the modules that have to be there for an import to succeed."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    origin = _origin(node, package)
    # "from . import compiled" is about the parts of a package, and not the package.
    return [origin] if node.module else [f"{origin}.{alias.name}" for alias in node.names]


def _origin(node: ast.ImportFrom, package: str) -> str:
    base = package
    for _level in range(node.level - 1):
        base = base.rpartition(".")[0]
    module = node.module or ""
    return module if not node.level else f"{base}.{module}" if module else base
