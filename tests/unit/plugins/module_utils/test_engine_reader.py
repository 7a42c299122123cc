from __future__ import annotations

import ast
import textwrap
from pathlib import Path

import pytest
from ansible_collections.llmops.vllm.plugins.module_utils import engine_operations as operations
from ansible_collections.llmops.vllm.plugins.module_utils import engine_syntax
from ansible_collections.llmops.vllm.plugins.module_utils.engine_reader import Reader
from ansible_collections.llmops.vllm.plugins.module_utils.engine_source import (
    Capability,
    Class,
    Member,
    Package,
    Record,
    Symbol,
    Unknown,
)
from ansible_collections.llmops.vllm.plugins.module_utils.engine_syntax import Raised


@pytest.fixture
def source(tmp_path):
    """Write a package of these modules, and put a question to its function ``ask``."""

    def write(text, given=None, present=(), **modules):
        for name, content in {"main": text, **modules}.items():
            path = tmp_path / "acme" / f"{name.replace('__', '/')}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            (path.parent / "__init__.py").touch()
            path.write_text(textwrap.dedent(content))
        package = Package(str(tmp_path), "acme")
        reader = Reader(package, dict(given or {}), lambda name: name in present or package.module(name) is not None)

        def ask(*arguments, **named):
            return reader.outcomes(lambda: reader.call(reader.named("acme.main.ask"), arguments, named))

        ask.reader = reader
        return ask

    return write


@pytest.mark.parametrize(
    ("body", "value"),
    [
        ("return [n * 2 for n in (1, 2, 3) if n != 2]", [2, 6]),
        ("return {name: len(name) for name in ('a', 'bb')}", {"a": 1, "bb": 2}),
        ("return {**{'a': 1}, 'b': 2}", {"a": 1, "b": 2}),
        ("a, (b, c) = 1, (2, 3)\nreturn [*(a, b), c]", [1, 2, 3]),
        ("total = 0\nfor n in range(5):\n    if n == 1:\n        continue\n    if n == 4:\n        break\n"
         "    total += n\nelse:\n    total = -1\nreturn total", 5),
        ("return 1 < 2 <= 2 and 'x' in 'xyz' and 3 not in (1, 2)", True),
        ("return None or 0 or 'last'", "last"),
        ("return 'yes' if not [] else 'no'", "yes"),
        ("return f'{(1, 2)} {None}'", "(1, 2) None"),
        ("if (n := 3) > 2:\n    return -n", -3),
        ("with open('x') as stream:\n    return 1", 1),
        ("def inner(x, *rest, flag=False, **more):\n    return x, rest, flag, more, outer\nouter = 7\n"
         "return inner(1, 2, flag=True, z=0)", (1, (2,), True, {"z": 0}, 7)),
        ("return (lambda x, y=2: x + y)(1)", 3),
        ("try:\n    return {}['a']\nexcept (KeyError, ValueError) as error:\n    return error", "a"),
        ("try:\n    x = 1\nfinally:\n    x = 2\nreturn x", 2),
        ("return next((n for n in (1, 2) if n > 1), None)", 2),
        ("return isinstance('a', (int, str)), isinstance(1, str)", (True, False)),
        ("return 'FP8'.lower().startswith('fp'), ' a '.strip()", (True, "a")),
        ("found = []\nfound.append(1)\nfound.extend([2])\nreturn found", [1, 2]),
        ("kept = {}\nkept['a'] = 1\nreturn kept.get('a'), kept.get('b', 2)", (1, 2)),
        ("return any(n == 2 for n in (1, 2)), all([])", (True, True)),
        ("return None", None),
        ("pass", None),
        ("logger.warning('x %s', undefined)\nreturn 1", 1),
    ],
)  # fmt: skip
def test_ordinary_functions_lead_to_what_they_return(source, body, value):
    assert source(f"def ask():\n{textwrap.indent(body, '    ')}\n")() == [value]


def test_names_come_from_other_modules_of_the_package_and_from_what_is_given(source):
    ask = source(
        """
        import acme.settings as settings
        from . import parts
        from .parts import double as twice
        from acme.parts import HIDDEN
        from elsewhere import thing
        from elsewhere.deep import other
        LIMIT: int = twice(4)

        def ask(n):
            from .parts import triple
            return twice(n), triple(n), parts.double(n), settings.SIZE, LIMIT, HIDDEN, thing, other
        """,
        {"acme.parts.HIDDEN": "given", "elsewhere.deep.other": 5},
        parts="def double(n):\n    return n * 2\n\n\ndef triple(n):\n    return n * 3\n",
        settings="SIZE = 9\n",
    )
    assert ask(2) == [(4, 6, 4, 9, 8, "given", Symbol("elsewhere.thing"), 5)]


def test_a_module_of_settings_makes_them_when_they_are_asked_for(source):
    ask = source(
        "import acme.envs as envs\n\n\ndef ask():\n    return envs.FAST, envs.OTHER\n",
        {"os.getenv": {"FAST": "1"}.get},
        envs="""
        import os

        environment_variables: dict = {
            "SLOW": lambda: undefined(),
            "FAST": lambda: bool(int(os.getenv("FAST", "0"))),
            "OTHER": lambda: os.getenv("OTHER", "none"),
        }


        def __getattr__(name):
            return environment_variables[name]()
        """,
    )
    assert ask() == [(True, "none")]


CLASSES = """
from enum import Enum
from typing import ClassVar, NamedTuple


class Kind(str, Enum):
    PLAIN = "plain"
    OTHER = "other"

    def twice(self):
        return self.value * 2


class Shape(NamedTuple):
    rows: int
    columns: int = 2
    ANY: ClassVar["Shape"]


Shape.ANY = Shape(-1, -1)


class Base:
    sizes = [1, 2]
    kind = Kind.PLAIN

    @staticmethod
    def name():
        return "base"

    @classmethod
    def takes(cls, size):
        return size in cls.sizes and cls.name() != "none"

    @property
    def first(self):
        return self.sizes[0]


class Child(Base):
    sizes: list = [3, *Base.sizes]

    @staticmethod
    def name():
        return "child"

    @classmethod
    def takes(cls, size, *rest):
        return size < 4 and super().takes(size)


class Kept:
    def __init__(self, base):
        self.base = base * 1


"""


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("Child.takes(3), Child.takes(5), Base.takes(3)", (True, False, False)),
        ("Child.name(), Base.kind == 'plain', Base.kind == Kind.OTHER, Base.kind is Kind.PLAIN",
         ("child", True, False, True)),
        ("Kind.OTHER.name, Kind.OTHER.value, Kind.OTHER.twice()", ("OTHER", "other", "otherother")),
        ("Child.first", 3),
        ("Shape(1).columns, Shape(1) == Shape(1, 2), Shape(1) in (Shape(2, 2), Shape(1, 3))", (2, True, False)),
        ("Shape.ANY == Shape(-1, -1), Shape(3, 4).rows", (True, 3)),
        ("Kept(4).base, isinstance(Kept(4), Kept), isinstance(Kept(4), Base)", (4, True, False)),
        ("isinstance(Kind.PLAIN, Enum), Child.__name__", (True, "Child")),
        ("getattr(Child, 'sizes', 0), hasattr(Child, 'name')", ([3, 1, 2], True)),
    ],
)  # fmt: skip
def test_classes_are_followed_to_those_they_inherit_from(source, expression, value):
    assert source(f"{CLASSES}\ndef ask():\n    return {expression}\n")() == [value]


def test_a_method_that_is_given_stands_for_the_sources_own(source):
    ask = source(f"{CLASSES}\ndef ask():\n    return Child.takes(1)\n", {"acme.main.Base.takes": lambda size: "given"})
    assert ask() == ["given"]


def test_members_and_classes_are_told_as_such(source):
    ask = source(f"{CLASSES}\ndef ask():\n    return [Kind.PLAIN, Child, Kept(1)]\n")
    ((member, kind, record),) = ask()
    assert isinstance(member, Member) and isinstance(kind, Class) and isinstance(record, Record)
    assert [operations.text(one) for one in (member, kind, record)] == ["Kind.PLAIN", "acme.main.Child", "Kept(base=1)"]


def test_where_something_unknown_decides_every_way_is_followed(source):
    ask = source(
        """
        from elsewhere import fast, wide

        def ask():
            if fast():
                return "fast"
            return "wide" if wide and fast() else "narrow"
        """
    )
    assert sorted(set(ask())) == ["fast", "narrow", "wide"]


def test_what_does_not_hang_on_the_unknown_has_one_answer(source):
    ask = source(
        """
        import torch
        from elsewhere import thing

        def ask(dtype):
            reasons = []
            if dtype not in [torch.float16, torch.bfloat16]:
                reasons.append("dtype")
            if dtype == torch.half or thing.size > 3:
                reasons.append("size")
            return reasons
        """
    )
    assert ask(Symbol("torch.float16")) == [["size"]]
    assert ask(Symbol("torch.float32")) == [["dtype"], ["dtype", "size"]]


def test_what_another_package_gives_a_name_to_is_neither_none_nor_not(source):
    ask = source(
        "from elsewhere import thing\nimport torch\n\n\ndef ask():\n    return thing is None, torch.half is None\n"
    )
    ((first, second),) = ask()
    assert isinstance(first, Unknown) and second is False


def test_an_import_of_what_is_not_there_fails(source):
    text = """
    try:
        from . import compiled
        THERE = True
    except ImportError:
        THERE = False

    def ask():
        try:
            import extra.part
        except ImportError as error:
            return THERE, error
        return THERE, "there"
    """
    assert source(text)() == [(False, "No module named 'extra.part'")]
    assert source(text, present=("acme.compiled", "extra.part"))() == [(True, "there")]


def test_conditions_around_a_definition_count(source):
    text = """
    from elsewhere import flag

    if flag:
        def ask():
            return "one"
    else:
        def ask():
            return "other"
    """
    assert source(text, {"elsewhere.flag": True})() == ["one"]
    assert source(text, {"elsewhere.flag": False})() == ["other"]


@pytest.mark.parametrize(
    ("body", "kind", "message"),
    [
        ("raise ValueError(f'no {1 + 1}')", "ValueError", "no 2"),
        ("raise errors.Special", "Special", ""),
        ("assert 1 == 2, 'not so'", "AssertionError", "not so"),
        ("return ()[0]", "IndexError", "0"),
        ("return None.size", "AttributeError", "size"),
        ("try:\n    raise OSError('a')\nexcept ValueError:\n    return 1", "OSError", "a"),
    ],
)
def test_an_error_that_the_source_raises_is_an_outcome(source, body, kind, message):
    (raised,) = source(f"import errors\n\n\ndef ask():\n{textwrap.indent(body, '    ')}\n")()
    assert isinstance(raised, Raised) and (raised.kind, raised.message) == (kind, message)


@pytest.mark.parametrize(
    "body",
    [
        "while True:\n    pass",
        "return ask()",
        "for one in elsewhere():\n    return one",
        "return sum(n for n in range(200000))",
        "return 1 // 0",
        "return decorated()",
        "return elsewhere() + 1",
        "return (1, elsewhere())[1]",
        "return open('/etc/passwd').read()",
        "return __import__('os').system('true')",
        "return eval('1')",
        "return ().__class__.__base__",
        "return print",
        "return 'a'.encode",
    ],
)
def test_what_cannot_be_followed_is_unknown(source, body, monkeypatch):
    monkeypatch.setattr(engine_syntax, "STEPS", 2000)
    decorated = "@elsewhere\ndef decorated():\n    return 1\n"
    found = source(f"import elsewhere\n\n\n{decorated}\n\ndef ask():\n{textwrap.indent(body, '    ')}\n")()
    assert found and all(isinstance(one, (Unknown, Symbol)) for one in found)


def test_too_many_ways_are_not_all_followed(source):
    tests = "\n".join(f"    if elsewhere({n}):\n        total += {2**n}" for n in range(9))
    found = source(f"import elsewhere\n\n\ndef ask():\n    total = 0\n{tests}\n    return total\n")()
    assert found[-1] == Unknown("too many ways through the source") and len(found) == 129


def test_a_file_that_is_no_python_and_one_that_is_not_there_make_symbols(source):
    ask = source(
        "from acme.broken import thing\nfrom acme.absent import other\n\n\ndef ask():\n    return thing, other\n"
    )
    Path(ask.reader.package.root, "acme/broken.py").write_text("def (:\n")
    assert ask() == [(Symbol("acme.broken.thing"), Symbol("acme.absent.other"))]


def test_a_package_holds_its_parts_compiled_ones_and_its_neighbours(tmp_path):
    (tmp_path / "acme/inner").mkdir(parents=True)
    (tmp_path / "acme/_C.abi3.so").touch()
    (tmp_path / "acme/one.py").touch()
    (tmp_path / "beside").mkdir()
    package = Package(str(tmp_path), "acme")
    assert all(package.holds(name) for name in ("acme", "acme._C", "acme.one", "acme.inner", "beside"))
    assert not any(package.holds(name) for name in ("acme._D", "acme.none.deep", "absent"))
    assert package.module("beside") is None and package.module("acme.../one") is None


def test_a_capability_has_what_engines_ask_it_for(source):
    ask = source(
        """
        class DeviceCapability:
            major: int
            minor: int

        def ask(capability):
            low = DeviceCapability(8, 0)
            texts = capability.to_int(), capability.as_version_str()
            return capability >= low, capability.major, *texts, capability == low
        """
    )
    assert ask(Capability(12, 1)) == [(True, 12, 121, "12.1", False)]


def test_an_open_record_does_not_know_what_it_was_not_told_and_a_closed_one_lacks_it(source):
    ask = source("def ask(config):\n    return getattr(config, 'size', 7), hasattr(config, 'size')\n")
    assert ask(Record({}, open=False)) == [(7, False)]
    ((size, there),) = ask(Record({}))
    assert isinstance(size, Unknown) and isinstance(there, Unknown)
    assert ask(Record({"size": 3})) == [(3, True)]


def test_operators_on_what_is_unknown_are_unknown():
    there = Unknown("x")
    assert operations.binary(ast.Add(), there, 1) == Unknown("Add of values that are not known")
    assert operations.binary(ast.Add(), [there], [1]) == [there, 1]
    assert operations.compare(ast.NotEq(), there, 1) == there
    assert isinstance(operations.compare(ast.Lt(), Symbol("a.b"), 1), Unknown)
    assert operations.contains([1, there], 1) is True and operations.contains([1, there], 2) == there
    assert operations.equal((1, there), (2, 3)) is False and operations.equal((1, there), (1, 3)) == there
    assert operations.equal([1], (1,)) is False
    assert operations.truth(Symbol("torch.half")) is True and isinstance(operations.truth(Symbol("a.b")), Unknown)
    assert operations.known([1, {"a": (there,)}]) is False
    assert operations.unknown("x" * 99).why.endswith("...") and operations.text(there) == "?"


def test_an_object_has_what_its_constructors_set(source):
    ask = source(
        """
        class Base:
            def __init__(self, size):
                super().__init__()
                self.size, self.half = size, size // 2


        class Kind(Base):
            name: str = "kind"

            def __init__(self, size, scale=3):
                super().__init__(size * scale)
                self.scale = scale
                self.size = self.size + 1


        def ask(given):
            given.size = 5
            made = Kind(4)
            return made.size, made.half, made.scale, given.size
        """
    )
    assert ask(Record({"size": 1})) == [(13, 6, 3, 1)], "and one that was given stays as it is"


def test_objects_are_equal_whatever_the_order_of_their_fields(source):
    ask = source(
        """
        class Key:
            kind: str
            second: int = 0
            third: bool = True


        def ask():
            return Key("a", third=True) == Key("a"), Key("a", third=False) == Key("a"), isinstance(Key("a"), object)
        """
    )
    assert ask() == [(True, False, True)]
