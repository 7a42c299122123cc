from __future__ import annotations

import pytest
from ansible_collections.llmops.vllm.plugins.module_utils.launch import UNIT_PATH, Launch
from ansible_collections.llmops.vllm.plugins.module_utils.runtime_facts import Runtime

CUDA = Runtime(device="cuda")


@pytest.mark.parametrize(
    "name", ["tensor-parallel-size", "tensor_parallel_size", "--tensor-parallel-size", "tp", "-tp"]
)
def test_an_argument_is_found_however_it_is_written(name):
    assert Launch({name: "8"}).count("tensor-parallel-size") == 8


@pytest.mark.parametrize(
    ("arguments", "count"),
    [
        ({}, 1),
        ({"tensor-parallel-size": 8}, 8),
        ({"tp": 4, "pp": 2}, 8),
        ({"tp": 2, "dp": 4}, 8),
        ({"tp": 2, "data-parallel-size": 16, "data-parallel-size-local": 2}, 4),
        ({"tp": 16, "nnodes": 2}, 0),
        ({"tp": 16, "distributed-executor-backend": "ray"}, 0),
        ({"tp": "eight"}, 1),
    ],
)
def test_gpus_are_counted_over_all_dimensions_of_this_host(arguments, count):
    assert Launch(arguments, runtime=CUDA).gpu_count == count


def test_an_engine_on_the_cpu_uses_no_gpus():
    assert Launch({"tp": 8}, runtime=Runtime(device="cpu")).gpu_count == 0


@pytest.mark.parametrize(
    ("arguments", "full"),
    [
        ({}, True),
        ({"enforce-eager": True}, False),
        ({"enforce-eager": False}, True),
        ({"compilation-config": {"cudagraph_mode": "PIECEWISE"}}, False),
        ({"compilation-config": '{"cudagraph_mode": "none"}'}, False),
        ({"cc": '{"cudagraph_mode": "FULL_DECODE_ONLY"}'}, True),
        ({"compilation-config": "{not json"}, True),
        ({"compilation-config": 3}, True),
    ],
)
def test_whole_graphs_are_the_default_and_are_left_out_when_told(arguments, full):
    assert Launch(arguments).full_graphs is full


def test_what_is_not_given_has_the_engines_and_systemds_defaults():
    launch = Launch(runtime=Runtime("/r"))
    assert (launch.utilisation, launch.path, launch.text("moe-backend"), launch.is_set("enforce-eager")) == (
        0.9,
        f"/r/bin:{UNIT_PATH}",
        "",
        False,
    )
    assert Launch({"gpu-memory-utilization": "0.95"}, {"PATH": "/bin"}).utilisation == 0.95
