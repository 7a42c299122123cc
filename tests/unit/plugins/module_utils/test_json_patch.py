"""Unit tests for plugins/module_utils/json_patch.py."""

from __future__ import annotations

import copy
import datetime
from typing import Any

import pytest
from ansible_collections.llmops.vllm.plugins.module_utils.errors import (
    InvalidInputError,
    LlmopsError,
    PreconditionError,
)
from ansible_collections.llmops.vllm.plugins.module_utils.json_patch import (
    Changes,
    apply_operations,
    build_pointer,
    check_expectations,
    check_value,
    find_changes,
    json_equal,
    merge,
    parse_pointer,
    remove_keys,
    resolve,
)
from hypothesis import given
from hypothesis import strategies as st

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from("abc~/"), inner, max_size=4),
    max_leaves=20,
)
RFC6901 = {"foo": ["bar", "baz"], "": 0, "a/b": 1, "c%d": 2, "e^f": 3, "g|h": 4, "i\\j": 5, 'k"l': 6, " ": 7, "m~n": 8}


@pytest.mark.parametrize(
    ("pointer", "value"),
    [
        ("", RFC6901),
        ("/foo", ["bar", "baz"]),
        ("/foo/0", "bar"),
        ("/", 0),
        ("/a~1b", 1),
        ("/c%d", 2),
        ("/e^f", 3),
        ("/g|h", 4),
        ("/i\\j", 5),
        ('/k"l', 6),
        ("/ ", 7),
        ("/m~0n", 8),
    ],
)
def test_the_pointers_of_rfc_6901_section_5_resolve(pointer: str, value: Any) -> None:
    assert resolve(RFC6901, pointer) == value


@given(st.lists(st.text()))
def test_a_built_pointer_parses_to_its_tokens(tokens: list[str]) -> None:
    assert parse_pointer(build_pointer(tokens)) == tokens


# RFC 6902, appendix A, in order: document, operations, result.
RFC6902 = {
    "A1": ({"foo": "bar"}, [{"op": "add", "path": "/baz", "value": "qux"}], {"foo": "bar", "baz": "qux"}),
    "A2": (
        {"foo": ["bar", "baz"]},
        [{"op": "add", "path": "/foo/1", "value": "qux"}],
        {"foo": ["bar", "qux", "baz"]},
    ),
    "A3": ({"baz": "qux", "foo": "bar"}, [{"op": "remove", "path": "/baz"}], {"foo": "bar"}),
    "A4": ({"foo": ["bar", "qux", "baz"]}, [{"op": "remove", "path": "/foo/1"}], {"foo": ["bar", "baz"]}),
    "A5": (
        {"baz": "qux", "foo": "bar"},
        [{"op": "replace", "path": "/baz", "value": "boo"}],
        {"baz": "boo", "foo": "bar"},
    ),
    "A6": (
        {"foo": {"bar": "baz", "waldo": "fred"}, "qux": {"corge": "grault"}},
        [{"op": "move", "from": "/foo/waldo", "path": "/qux/thud"}],
        {"foo": {"bar": "baz"}, "qux": {"corge": "grault", "thud": "fred"}},
    ),
    "A7": (
        {"foo": ["all", "grass", "cows", "eat"]},
        [{"op": "move", "from": "/foo/1", "path": "/foo/3"}],
        {"foo": ["all", "cows", "eat", "grass"]},
    ),
    "A8": (
        {"baz": "qux", "foo": ["a", 2, "c"]},
        [{"op": "test", "path": "/baz", "value": "qux"}, {"op": "test", "path": "/foo/1", "value": 2}],
        {"baz": "qux", "foo": ["a", 2, "c"]},
    ),
    "A10": (
        {"foo": "bar"},
        [{"op": "add", "path": "/child", "value": {"grandchild": {}}}],
        {"foo": "bar", "child": {"grandchild": {}}},
    ),
    "A11": (
        {"foo": "bar"},
        [{"op": "add", "path": "/baz", "value": "qux", "xyz": 123}],
        {"foo": "bar", "baz": "qux"},
    ),
    "A14": ({"/": 9, "~1": 10}, [{"op": "test", "path": "/~01", "value": 10}], {"/": 9, "~1": 10}),
    "A16": (
        {"foo": ["bar"]},
        [{"op": "add", "path": "/foo/-", "value": ["abc", "def"]}],
        {"foo": ["bar", ["abc", "def"]]},
    ),
    "copy": ({"a": {"b": 1}}, [{"op": "copy", "from": "/a", "path": "/c"}], {"a": {"b": 1}, "c": {"b": 1}}),
    "root": ({"a": 1}, [{"op": "add", "path": "", "value": [1]}, {"op": "replace", "path": "/0", "value": 2}], [2]),
    "root replaced": ({"a": 1}, [{"op": "replace", "path": "", "value": None}], None),
    "move to itself": ({"a": 1, "b": 2}, [{"op": "move", "from": "/a", "path": "/a"}], {"a": 1, "b": 2}),
}


@pytest.mark.parametrize(("document", "operations", "result"), RFC6902.values(), ids=RFC6902)
def test_operations_do_what_rfc_6902_shows(document: Any, operations: list[Any], result: Any) -> None:
    before = copy.deepcopy(document)
    assert apply_operations(document, operations) == result
    assert document == before


def test_a_copied_value_is_a_value_of_its_own() -> None:
    operations = [{"op": "copy", "from": "/a", "path": "/c"}, {"op": "add", "path": "/c/b", "value": 2}]
    assert apply_operations({"a": {"b": 1}}, operations) == {"a": {"b": 1}, "c": {"b": 2}}


def test_replacing_a_member_keeps_its_place() -> None:
    result = apply_operations({"a": 1, "b": 2}, [{"op": "replace", "path": "/a", "value": 3}])
    assert list(result.items()) == [("a", 3), ("b", 2)]


@pytest.mark.parametrize(
    ("document", "operation", "words"),
    [
        (
            {"baz": "qux"},
            {"op": "test", "path": "/baz", "value": "bar"},
            '"bar" is expected, but "qux" is there',
        ),  # A.9
        ({"foo": "bar"}, {"op": "add", "path": "/baz/bat", "value": "qux"}, 'there is nothing at "/baz"'),  # A.12
        (
            {"/": 9, "~1": 10},
            {"op": "test", "path": "/~01", "value": "10"},
            '"10" is expected, but 10 is there',
        ),  # A.15
        ({"a": 1}, {"op": "remove", "path": "/b"}, 'there is nothing at "/b"'),
        ({"a": 1}, {"op": "replace", "path": "/b", "value": 1}, 'there is nothing at "/b"'),
        ({"a": 1}, {"op": "add", "path": "/a/b", "value": 1}, "neither an object nor an array"),
        ({"a": [1]}, {"op": "add", "path": "/a/3", "value": 1}, "has 1 elements only"),
        ({"a": [1]}, {"op": "add", "path": "/a/01", "value": 1}, "no index of an array"),
        ({"a": [1]}, {"op": "remove", "path": "/a/-"}, "there is nothing at"),
        ({"a": [1]}, {"op": "test", "path": "/a/0", "value": True}, "true is expected, but 1 is there"),
    ],
)
def test_a_document_that_does_not_fit_is_refused_naming_the_operation(
    document: Any, operation: dict[str, Any], words: str
) -> None:
    before = copy.deepcopy(document)
    first = {"op": "add", "path": "/new", "value": 1}
    with pytest.raises(PreconditionError) as caught:
        apply_operations(document, [first, operation])
    assert caught.value.message.startswith(f'operation 2 ({operation["op"]} "{operation["path"]}"): ')
    assert words in caught.value.message
    assert document == before


@pytest.mark.parametrize(
    ("operation", "words"),
    [
        ({"op": "delete", "path": "/a"}, 'op must be one of add, remove, replace, move, copy, test, not "delete"'),
        ({"op": ["add"], "path": "/a"}, "op must be one of"),
        ({"path": "/a"}, "op must be one of"),
        ({"op": "add", "path": "/a"}, 'add needs "value"'),
        ({"op": "move", "path": "/a"}, 'move needs "from"'),
        ({"op": "remove", "path": "a"}, "must be empty or start with '/'"),
        ({"op": "remove", "path": 1}, "is no JSON pointer"),
        ({"op": "remove", "path": "/a~2"}, "'~' must be written '~0'"),
        ({"op": "remove", "path": ""}, "the whole document cannot be removed"),
        ({"op": "move", "from": "/a", "path": "/a/b"}, "cannot be moved into itself"),
        ({"op": "add", "path": "/a", "value": float("nan")}, "not a JSON number"),
        ({"op": "add", "path": "/a", "value": [{1: 2}]}, "must be a string"),
        ({"op": "add", "path": "/a", "value": datetime.date(2026, 1, 1)}, "a value of type date is not JSON"),
        ("remove", "it must be a dictionary"),
    ],
)
def test_a_malformed_operation_is_refused(operation: Any, words: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        apply_operations({"a": 1}, [operation])
    assert caught.value.message.startswith("operation 1: ")
    assert words in caught.value.message


# RFC 7396, appendix A: original, patch, result.
RFC7396 = [
    ({"a": "b"}, {"a": "c"}, {"a": "c"}),
    ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
    ({"a": "b"}, {"a": None}, {}),
    ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
    ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
    ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
    ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
    ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
    (["a", "b"], ["c", "d"], ["c", "d"]),
    ({"a": "b"}, ["c"], ["c"]),
    ({"a": "foo"}, None, None),
    ({"a": "foo"}, "bar", "bar"),
    ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
    ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
    ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
]


@pytest.mark.parametrize(("target", "patch", "result"), RFC7396)
def test_merge_does_what_rfc_7396_shows(target: Any, patch: Any, result: Any) -> None:
    before = copy.deepcopy(target)
    assert merge(target, patch) == result
    assert target == before


@given(target=VALUES, patch=VALUES)
def test_merging_twice_is_merging_once(target: Any, patch: Any) -> None:
    once = merge(target, patch)
    assert json_equal(merge(once, patch), once)


def test_a_key_is_removed_wherever_it_stands_and_reported() -> None:
    document = {"a": {"kv": 1, "list": [{"kv": 2}, 3, [{"kv": {"kv": 4}}]]}, "kv": None, "x/y": {"kv": 5}}
    before = copy.deepcopy(document)
    result, removed = remove_keys(document, ["kv", "absent"])
    assert result == {"a": {"list": [{}, 3, [{}]]}, "x/y": {}}
    assert removed == ["/a/kv", "/a/list/0/kv", "/a/list/2/0/kv", "/kv", "/x~1y/kv"]
    assert document == before


@given(document=VALUES, keys=st.sets(st.sampled_from("abc~/")))
def test_removing_keys_again_removes_nothing(document: Any, keys: set[str]) -> None:
    once, removed = remove_keys(document, keys)
    assert remove_keys(once, keys) == (once, [])
    assert (once == document) == (not removed)
    for pointer in removed:
        resolve(document, pointer)


@given(before=VALUES, after=VALUES)
def test_changes_are_found_exactly_when_there_are_some_and_where_they_are(before: Any, after: Any) -> None:
    changes = find_changes(before, after)
    assert (changes == Changes()) == json_equal(before, after)
    for pointer in changes.removed + changes.changed:
        resolve(before, pointer)
    for pointer in changes.added + changes.changed:
        resolve(after, pointer)


def test_changes_tell_added_removed_and_changed_apart() -> None:
    before = {"a": 1, "b": {"c": [1, 2], "d": [1]}, "e": 1}
    after = {"b": {"c": [1, 3], "d": [1, 2]}, "e": 1.0, "f": {"g": 1}}
    assert find_changes(before, after) == Changes(("/f",), ("/a",), ("/b/c/1", "/b/d", "/e"))


def test_expectations_that_hold_are_silent_and_others_are_named() -> None:
    document = {"q": {"bits": 8, "on": True}}
    check_expectations(document, {"/q/bits": 8.0, "/q/on": True, "": document})
    with pytest.raises(PreconditionError, match='4 is expected at "/q/bits", but 8 is there'):
        check_expectations(document, {"/q/bits": 4})
    with pytest.raises(PreconditionError, match='8 is expected at "/bits", but nothing is there'):
        check_expectations(document, {"/bits": 8})
    with pytest.raises(LlmopsError, match="1 is expected"):
        check_expectations(document, {"/q/on": 1})


def test_a_long_value_is_shortened_in_a_message() -> None:
    with pytest.raises(PreconditionError) as caught:
        check_expectations({"a": "x" * 1000}, {"/a": 1})
    assert len(caught.value.message) < 250


def test_ordinary_values_are_json() -> None:
    check_value({"a": [1, 1.5, None, True, "x"]})
