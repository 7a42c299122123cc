"""Unit tests for plugins/module_utils/release.py and plain_json.py."""

from __future__ import annotations

import datetime
import re
from collections import OrderedDict, UserDict
from typing import Any

import pytest
from ansible_collections.llmops.vllm.plugins.module_utils.errors import InvalidInputError
from ansible_collections.llmops.vllm.plugins.module_utils.plain_json import plain_json
from ansible_collections.llmops.vllm.plugins.module_utils.release import release_id
from hypothesis import given
from hypothesis import strategies as st

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=15,
)


def reversed_keys(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: reversed_keys(value[key]) for key in reversed(value)}
    return [reversed_keys(element) for element in value] if isinstance(value, list) else value


@given(VALUES)
def test_the_id_is_twelve_digits_and_does_not_depend_on_the_order_of_keys(content: Any) -> None:
    assert re.fullmatch(r"[0-9a-f]{12}", release_id(content))
    assert release_id(reversed_keys(content)) == release_id(content)


def test_the_id_is_the_same_on_every_machine() -> None:
    # sha256 of {"a":[1,null,true],"b":"\u00fc"}
    assert release_id({"b": "ü", "a": [1, None, True]}) == "abdf7187ef20"


@pytest.mark.parametrize(
    ("one", "other"), [({"a": 1}, {"a": "1"}), ({"a": 1}, {"a": 1.0}), ({"a": None}, {}), ([1, 2], [2, 1]), (1, True)]
)
def test_other_content_has_another_id(one: Any, other: Any) -> None:
    assert release_id(one) != release_id(other)


def test_any_mapping_and_sequence_counts_by_what_it_returns() -> None:
    class Computed(list):  # type: ignore[type-arg]
        def __iter__(self) -> Any:
            return iter(["computed"])

    content = UserDict({"a": OrderedDict(b=(1, 2)), "c": Computed(["stored"])})
    assert plain_json(content) == {"a": {"b": [1, 2]}, "c": ["computed"]}
    assert release_id(content) == release_id({"a": {"b": [1, 2]}, "c": ["computed"]})


def test_only_exact_types_are_returned() -> None:
    class Text(str):
        __slots__ = ()

    class Number(int):
        pass

    plain = plain_json({Text("k"): [Text("v"), Number(1), True]})
    assert [type(key) for key in plain] == [str]
    assert [type(value) for value in plain["k"]] == [str, int, bool]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"a": [{1: 2}]}, r"The key 1 \(in '/a/0'\) must be a string"),
        ({True: 2}, r"The key True \(in '/'\) must be a string"),
        ({"a/b": float("nan")}, r"The value nan \(at '/a~1b'\) is not JSON"),
        ([datetime.date(2026, 1, 1)], r"The value of type date \(at '/0'\) is not JSON"),
        (b"x", r"The value of type bytes \(at '/'\) is not JSON"),
        ({"a": {1, 2}}, r"The value of type set \(at '/a'\) is not JSON"),
    ],
)
def test_what_is_not_json_is_refused_with_its_place(content: Any, words: str) -> None:
    with pytest.raises(InvalidInputError, match=words):
        release_id(content)
