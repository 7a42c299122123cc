"""Unit tests for the filter applicable_patches."""

from __future__ import annotations

import pytest
from ansible.errors import AnsibleFilterError
from ansible_collections.llmops.vllm.plugins.filter.applicable_patches import FilterModule
from ansible_collections.llmops.vllm.plugins.plugin_utils import patch_conditions

applicable = FilterModule().filters()["applicable_patches"]


def names(when, version="0.17.1", capabilities=("12.0",)):
    return [patch["name"] for patch in applicable([{"name": "one", "when": when}], version, list(capabilities))]


@pytest.mark.parametrize(
    ("version", "applies"),
    [
        ("0.14.1", False),
        ("0.15.0", True),
        ("0.17.1", True),
        ("0.17.2.dev3+g1234567", True),
        ("0.18.0rc1", False),  # a candidate of what is excluded is excluded
        ("0.18.0", False),
    ],
)
def test_a_range_of_versions_is_kept(version, applies):
    assert bool(names({"vllm": ">=0.15,<0.18"}, version)) is applies


def test_one_gpu_with_the_capability_is_enough_and_none_is_not():
    when = {"compute_capability": ["12.0", "10.0"]}
    assert names(when, capabilities=["9.0", "12.0"]) == ["one"]
    assert names(when, capabilities=["9.0"]) == names(when, capabilities=[]) == []


def test_a_capability_written_as_a_number_means_the_same():
    assert names({"compute_capability": [12.0]}) == ["one"]


def test_all_conditions_have_to_hold():
    assert names({"vllm": "<0.18", "compute_capability": ["12.0"]}) == ["one"]
    assert names({"vllm": ">=0.18", "compute_capability": ["12.0"]}) == []
    assert names({"vllm": "<0.18", "compute_capability": ["9.0"]}) == []


def test_what_was_decided_goes_and_a_condition_on_the_file_stays():
    patches = [
        {"name": "a", "when": {"vllm": "<1", "keys": ["kv_cache_scheme"]}},
        {"name": "b", "when": {"vllm": "<1"}},
        {"name": "c"},
        {"name": "d", "when": None},
    ]
    assert applicable(patches, "0.32.0") == [
        {"name": "a", "when": {"keys": ["kv_cache_scheme"]}},
        {"name": "b"},
        {"name": "c"},
        {"name": "d"},
    ]


def test_a_version_that_is_not_known_matters_only_where_it_is_asked_for():
    assert names({"compute_capability": ["12.0"]}, version="") == ["one"]
    with pytest.raises(AnsibleFilterError, match=r"patch 'one': when\.vllm cannot be decided.*pin one there"):
        names({"vllm": "<1"}, version="")


@pytest.mark.parametrize(
    ("when", "said"),
    [
        ({"vllm": "new"}, "has to be a range of versions such as"),
        ({"vlm": "<1"}, "when has 'vlm'; it takes vllm, compute_capability and keys"),
        ({"compute_capability": "12.0"}, "is a list such as"),
        ("<1", "when is a dictionary, not '<1'"),
    ],
)
def test_a_condition_that_cannot_be_meant_names_the_patch(when, said):
    with pytest.raises(AnsibleFilterError, match="applicable_patches: patch 'one': ") as caught:
        names(when)
    assert said in str(caught.value)


def test_without_packaging_only_versions_cannot_be_decided(monkeypatch):
    monkeypatch.setattr(patch_conditions, "HAS_PACKAGING", False)
    assert names({"compute_capability": ["12.0"]}) == ["one"]
    with pytest.raises(AnsibleFilterError, match=r"patch 'one': when\.vllm takes the Python package packaging"):
        names({"vllm": "<1"})
