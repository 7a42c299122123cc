from __future__ import annotations

import math

from ansible_collections.llmops.vllm.plugins.module_utils.prometheus import count, read_samples, total, values_of

TEXT = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="kimi {k2}"} 3.0
vllm:num_requests_running{engine="1",model_name="kimi {k2}"} 4.0
vllm:kv_cache_usage_perc{engine="0"} NaN
vllm:generation_tokens_total 1.7e+03
vllm:cut_off{engine="0"} 1.
vllm:broken{engine="0"} none
http_requests_total{handler="/metrics"} 5.0
"""


def test_samples_are_vllms_own_with_their_labels_and_lines():
    samples = read_samples(TEXT)
    assert [sample.name for sample in samples[2:]] == [
        "vllm:kv_cache_usage_perc",
        "vllm:generation_tokens_total",
        "vllm:cut_off",
    ]
    assert samples[0].labels == 'engine="0",model_name="kimi {k2}"'
    assert samples[0].text == 'vllm:num_requests_running{engine="0",model_name="kimi {k2}"} 3.0'
    assert math.isnan(samples[2].value)


def test_the_engines_of_a_server_count_as_one():
    samples = read_samples(TEXT)
    assert values_of(samples, "vllm:num_requests_running") == [3.0, 4.0]
    assert count(samples, "vllm:num_requests_running") == 7
    assert total(samples, "vllm:generation_tokens_total") == 1700.0


def test_what_is_not_counted_is_nothing_and_no_number_is_no_count():
    samples = read_samples(TEXT)
    assert total(samples, "vllm:num_requests_waiting") is None
    assert count(samples, "vllm:num_requests_waiting") is None
    assert count(samples, "vllm:kv_cache_usage_perc") is None
