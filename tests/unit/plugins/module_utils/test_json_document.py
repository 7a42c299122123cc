"""Unit tests for plugins/module_utils/json_document.py."""

from __future__ import annotations

import json
from typing import Any

import pytest
from ansible_collections.llmops.vllm.plugins.module_utils.errors import InvalidInputError
from ansible_collections.llmops.vllm.plugins.module_utils.json_document import decode, parse, same
from hypothesis import given
from hypothesis import strategies as st

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=20,
)
FORMATS = st.fixed_dictionaries(
    {
        "indent": st.sampled_from([None, 0, 1, 2, 4, "\t"]),
        "separators": st.sampled_from([None, (",", ":"), (", ", ": "), (",", ": ")]),
        "ensure_ascii": st.booleans(),
    }
)
NESTED = {
    "model_type": "kimi",
    "quantization_config": {"ignore": ["a", "b"], "kv_cache_scheme": {"num_bits": 8}, "quant_method": "modelopt"},
    "vision_config": {"merge": [2, 2], "eps": 1e-05},
}


@given(value=JSON_VALUES, style=FORMATS, end=st.sampled_from(["", "\n", "\r\n", "\n\n"]))
def test_an_unchanged_document_is_the_same_text(value: Any, style: dict[str, Any], end: str) -> None:
    text = json.dumps(value, **style) + end
    document = parse(text)
    assert same(document.value, json.loads(text))
    assert document.render(json.loads(text)) == text


@given(before=JSON_VALUES, after=JSON_VALUES, style=FORMATS)
def test_any_change_of_any_document_is_written_as_json_of_the_new_value(
    before: Any, after: Any, style: dict[str, Any]
) -> None:
    text = parse(json.dumps(before, **style) + "\n").render(after)
    assert same(json.loads(text), after)
    text.encode("utf-8")


@pytest.mark.parametrize("end", ["", "\n"])
@pytest.mark.parametrize(
    "style",
    [
        {"indent": 1},
        {"indent": 2},
        {"indent": 4},
        {"indent": "\t"},
        {},
        {"separators": (",", ":")},
        {"indent": 2, "ensure_ascii": False},
    ],
)
def test_a_change_is_written_as_the_whole_file_is(style: dict[str, Any], end: str) -> None:
    before = {**NESTED, "greeting": "grüß"}
    after = {
        **before,
        "quantization_config": {"ignore": ["a"], "new": {"x": [1, {"y": "ß"}]}},
        "empty": {},
        "more": [1],
    }
    assert parse(json.dumps(before, **style) + end).render(after) == json.dumps(after, **style) + end


def test_the_spelling_of_everything_else_is_left_alone() -> None:
    text = '{"a": 1.50, "b":[1,  2,3],\n   "\\u00e9": 1E5, "c" : "\\/x", "gone": 0, "lim": [0.0, Infinity, NaN]\n}\n'
    document = parse(text)
    value = {key: member for key, member in document.value.items() if key != "gone"}
    assert document.render(value) == text.replace(', "gone": 0', "")


def test_an_element_removed_from_the_middle_of_an_array_leaves_its_neighbours_as_they_were() -> None:
    text = '[\n  {"a":1},\n  {"b": 2},\n  {"c" :3}\n]'
    assert parse(text).render([{"a": 1}, {"c": 3}]) == '[\n  {"a":1},\n  {"c" :3}\n]'


def test_line_ends_of_the_file_are_kept() -> None:
    text = json.dumps({"a": 1}, indent=2).replace("\n", "\r\n") + "\r\n"
    assert (
        parse(text).render({"a": 1, "b": [2]})
        == json.dumps({"a": 1, "b": [2]}, indent=2).replace("\n", "\r\n") + "\r\n"
    )


@pytest.mark.parametrize(("one", "other"), [(1, True), (1, 1.0), ({"a": 1, "b": 2}, {"b": 2, "a": 1}), (0.0, -0.0)])
def test_values_that_are_written_differently_are_not_the_same(one: Any, other: Any) -> None:
    assert not same(one, other)
    assert same(one, one)


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ('{\n "a": 1,\n "b": {"x": 1},\n "a": 2\n}', 4, 'the key "a" stands twice'),
        ('{"a": 1,\n "\\u0061": 2}', 2, 'the key "a" stands twice'),
        ('{"a": 1,\n}', 2, "a key in double quotes is expected"),
        ("[1,\n]", 2, "a JSON value is expected"),
        ("[1\n2]", 2, "',' or ']' is expected"),
        ("[1,\n", 2, "a JSON value is expected"),
        ("[1", 1, "',' or ']' is expected"),
        ('{"a" 1}', 1, "':' is expected"),
        ('{"a": "x\ny"}', 1, "a string is not closed"),
        ("{}\n\n{}", 3, "more text after the end"),
        ("", 1, "a JSON value is expected"),
        ("\ufeff{}", 1, "byte order mark"),
        ("[" * 200 + "]" * 200, 1, "nested deeper than 100"),
        ("9" * 5000, 1, "too many digits"),
        ("[01]", 1, "',' or ']' is expected"),
        ("[\u0661]", 1, "a JSON value is expected"),
    ],
)
def test_what_is_not_json_is_refused_with_file_and_line(text: str, line: int, words: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        parse(text, "config.json")
    assert caught.value.message.startswith(f"config.json, line {line}: ")
    assert words in caught.value.message


def test_bytes_that_are_not_utf8_are_refused_with_file_and_line() -> None:
    assert decode("é".encode(), "config.json") == "é"
    with pytest.raises(InvalidInputError, match=r"config\.json, line 2: the file is not UTF-8"):
        decode(b'{\n"\xff"}', "config.json")
