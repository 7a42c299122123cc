from __future__ import annotations

from types import SimpleNamespace

import pytest
from ansible_collections.llmops.vllm.plugins.callback import progress


@pytest.fixture
def printed(monkeypatch):
    lines = []
    callback = progress.CallbackModule()
    monkeypatch.setattr(callback, "_display", SimpleNamespace(display=lines.append))
    return callback, lines


HOST = SimpleNamespace(get_name=lambda: "gpu1")


@pytest.mark.parametrize("names", [("result", "host"), ("_result", "_host")])
def test_progress_is_printed_with_the_result_of_either_core_version(printed, names):
    callback, lines = printed
    callback.v2_runner_retry(SimpleNamespace(**dict(zip(names, ({"progress": "3 of 12 files"}, HOST)))))
    assert lines == ["    gpu1: 3 of 12 files"]


@pytest.mark.parametrize("values", [{}, {"progress": ""}, {"progress": None}, {"progress": {"a": 1}}, None, "text"])
def test_a_result_without_a_line_prints_nothing(printed, values):
    callback, lines = printed
    callback.v2_runner_retry(SimpleNamespace(result=values, host=HOST))
    assert lines == []


def test_an_unknown_result_is_no_crash(printed):
    callback, lines = printed
    callback.v2_runner_retry(object())
    assert lines == []


def test_it_must_be_enabled():
    assert progress.CallbackModule.CALLBACK_NEEDS_ENABLED is True
    assert progress.CallbackModule.CALLBACK_NAME == "llmops.vllm.progress"
