"""Unit tests for the filters batches, release_id and serve_yaml, directly and through the template engine."""

from __future__ import annotations

import datetime
import json
from typing import Any

import pytest
import yaml
from ansible.errors import AnsibleError, AnsibleFilterError
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar, trust_as_template
from ansible_collections.llmops.vllm.plugins.filter.batches import FilterModule as Batches
from ansible_collections.llmops.vllm.plugins.filter.release_id import FilterModule as ReleaseId
from ansible_collections.llmops.vllm.plugins.filter.serve_yaml import FilterModule as ServeYaml
from ansible_collections.llmops.vllm.plugins.module_utils.release import release_id
from hypothesis import given
from hypothesis import strategies as st

make_batches = Batches().filters()["batches"]
filter_release_id = ReleaseId().filters()["release_id"]
serve_yaml = ServeYaml().filters()["serve_yaml"]


def template(text: str, **variables: Any) -> Any:
    return Templar(loader=DataLoader(), variables=variables).template(trust_as_template(text))


def test_release_id_in_a_template_sees_what_variables_resolve_to() -> None:
    tagged = trust_as_template("{{ commit }}")
    variables = {"commit": "abc", "content": {"model": tagged, "list": [tagged, 1, {"deep": tagged}], "none": None}}
    expected = release_id({"none": None, "list": ["abc", 1, {"deep": "abc"}], "model": "abc"})
    assert template("{{ content | llmops.vllm.release_id }}", **variables) == expected
    inline = "{{ {'none': none, 'model': commit, 'list': [commit, 1, {'deep': commit}]} | llmops.vllm.release_id }}"
    assert template(inline, **variables) == expected


def test_release_id_refuses_what_is_not_json_with_a_sentence() -> None:
    with pytest.raises(AnsibleFilterError, match=r"release_id: The value of type date \(at '/a'\) is not JSON"):
        filter_release_id({"a": datetime.date(2026, 1, 1)})


def test_release_id_of_an_undefined_variable_fails() -> None:
    with pytest.raises(AnsibleError, match="undefined"):
        template("{{ {'a': absent} | llmops.vllm.release_id }}")


def test_serve_yaml_keeps_the_order_and_writes_dashes() -> None:
    text = serve_yaml(
        {
            "tensor_parallel_size": 8,
            "gpu-memory-utilization": 0.95,
            "trust_remote_code": True,
            "enable_prefix_caching": False,
            "served_model_name": ["kimi", "kimi-k2.5"],
            "compilation_config": {"cudagraph_mode": "PIECEWISE", "pass_config": {"fuse_norm": True}},
            "kv-transfer-config.kv_role": "kv_both",
            "quantization": None,
        }
    )
    assert text == (
        "tensor-parallel-size: 8\n"
        "gpu-memory-utilization: 0.95\n"
        "trust-remote-code: true\n"
        "enable-prefix-caching: false\n"
        "served-model-name:\n"
        "- kimi\n"
        "- kimi-k2.5\n"
        'compilation-config: \'{"cudagraph_mode": "PIECEWISE", "pass_config": {"fuse_norm": true}}\'\n'
        "kv-transfer-config.kv_role: kv_both\n"
    )


@given(
    st.dictionaries(
        st.from_regex(r"[a-z]{1,5}(-[a-z]{1,3})?", fullmatch=True).filter(lambda key: key != "config"),
        st.booleans()
        | st.integers()
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(st.characters(codec="utf-8")).filter(lambda text: not text.startswith("--"))
        | st.lists(st.integers() | st.sampled_from(["a", "no", "1", "0x1", "1e5", "~"])),
        max_size=5,
    )
)
def test_serve_yaml_is_read_back_as_it_was_given(arguments: dict[str, Any]) -> None:
    assert yaml.safe_load(serve_yaml(arguments)) == arguments
    assert list(yaml.safe_load(serve_yaml(arguments))) == list(arguments)


@pytest.mark.parametrize(
    "value", ["on", "null", "1.0", "0o17", "1e3", "- x", "a: b", "x #y", "'", '"', "", " x ", "a\nb", "é"]
)
def test_serve_yaml_keeps_strings_strings(value: str) -> None:
    assert yaml.safe_load(serve_yaml({"chat-template": value})) == {"chat-template": value}


def test_serve_yaml_keeps_long_json_on_one_line_and_its_own_spelling() -> None:
    value = {f"key_{number}": "a b " * 10 for number in range(20)}
    text = serve_yaml({"hf_overrides": value})
    assert len(text.splitlines()) == 1
    assert json.loads(yaml.safe_load(text)["hf-overrides"]) == value


def test_serve_yaml_of_a_list_of_dictionaries_writes_json_elements() -> None:
    assert yaml.safe_load(serve_yaml({"lora_modules": [{"name": "a"}]})) == {"lora-modules": ['{"name": "a"}']}


@pytest.mark.parametrize("arguments", [{}, {"quantization": None}])
def test_serve_yaml_of_nothing_is_an_empty_mapping(arguments: dict[str, Any]) -> None:
    assert serve_yaml(arguments) == "{}\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"--port": 1}, "'--port' cannot be an argument .* without leading dashes"),
        ({"port=1 --host": 1}, "cannot be an argument"),
        ({"port\n": 1}, "cannot be an argument"),
        ({"": 1}, "cannot be an argument"),
        ({"a b": 1}, "cannot be an argument"),
        ({"config": "x.yaml"}, "cannot be an argument"),
        ({1: 1}, "must be a string"),
        ({"max_num_seqs": 1, "max-num-seqs": 2}, "'max-num-seqs' is given twice"),
        ({"max_num_seqs": None, "max-num-seqs": 2}, "'max-num-seqs' is given twice"),
        ({"host": "--trust-remote-code"}, "starts with '--'"),
        ({"names": ["a", "--b"]}, "starts with '--'"),
        ({"names": [["a"]]}, "cannot hold lists or null"),
        ({"names": [None]}, "cannot hold lists or null"),
        ({"x": float("nan")}, "is not JSON"),
        ({"x": datetime.date(2026, 1, 1)}, "is not JSON"),
        (["port"], "must be a dictionary, not list"),
    ],
)
def test_serve_yaml_refuses_what_cannot_be_passed(arguments: Any, words: str) -> None:
    with pytest.raises(AnsibleFilterError, match=words):
        serve_yaml(arguments)


def test_serve_yaml_in_a_template_resolves_variables() -> None:
    arguments = {
        "port": trust_as_template("{{ port }}"),
        "served_model_name": [trust_as_template("{{ name }}")],
        "speculative_config": {"model": trust_as_template("{{ name }}-draft")},
    }
    text = template("{{ arguments | llmops.vllm.serve_yaml }}", arguments=arguments, port=8000, name="kimi")
    assert yaml.safe_load(text) == {
        "port": 8000,
        "served-model-name": ["kimi"],
        "speculative-config": '{"model": "kimi-draft"}',
    }


@pytest.mark.parametrize(
    ("serial", "hosts", "minimum", "expected"),
    [
        ([1, "25%", "100%"], 4, 1, [1, "25%", 3]),
        ([1, "25%", "100%"], 4, 0, [1, "25%", "100%"]),
        ([1, "25%", "100%"], 16, 14, [1, 2, 2]),
        ([1, "100%"], 1, 1, [1, "100%"]),
        ([1, "100%"], 2, 5, [1, 1]),
        ("100%", 8, 2, [6]),
        ("4", 8, 6, [2]),
        (2, 8, 2, [2]),
    ],
)
def test_no_batch_takes_more_hosts_than_leave_the_minimum(
    serial: Any, hosts: int, minimum: int, expected: list[Any]
) -> None:
    assert make_batches(serial, hosts, minimum) == expected


@pytest.mark.parametrize("serial", [[], [0], ["0%"], ["half"], [-1], [None], ["25 %"]])
def test_what_is_no_batch_is_refused_with_a_sentence(serial: Any) -> None:
    with pytest.raises(AnsibleFilterError, match="batch"):
        make_batches(serial, 4)


def test_batches_are_made_in_a_template() -> None:
    assert template("{{ [1, '100%'] | llmops.vllm.batches(hosts, 1) }}", hosts=3) == [1, 2]
