from __future__ import annotations

import pytest
from ansible_collections.llmops.vllm.plugins.module_utils.engine_probe import EngineAnswer
from ansible_collections.llmops.vllm.plugins.module_utils.gate import Listener, Owner
from ansible_collections.llmops.vllm.plugins.module_utils.preflight import judge_engine, judge_port

OURS = Owner(4242, "VLLM::APIServer", "/system.slice/vllm@kimi.service", True)
FOREIGN = Owner(17, "nginx: master process", "/system.slice/nginx.service", False)


def test_an_engine_with_nothing_to_object_is_no_finding():
    assert judge_engine(EngineAnswer("done", "", "0.32.0", "auto")) == []


@pytest.mark.parametrize(
    ("stage", "kind", "severity"),
    [
        ("parse", "serve_arguments", "no_go"),
        ("config", "engine_config", "no_go"),
        ("broken", "runtime_incomplete", "no_go"),
        ("import", "engine_not_asked", "warn"),
        ("silent", "engine_not_asked", "warn"),
        ("a stage of a later version", "engine_not_asked", "warn"),
    ],
)
def test_what_the_engine_objects_to_stops_a_launch_and_what_it_cannot_say_does_not(stage, kind, severity):
    (found,) = judge_engine(EngineAnswer(stage, "said the engine", "0.32.0", ""))
    assert (found.id, found.severity, found.evidence) == (kind, severity, "said the engine")
    assert found.what.startswith("vLLM 0.32.0 ") and found.what.endswith(".")
    assert found.remedy


def test_an_engine_whose_version_is_not_known_is_called_the_installed_one():
    (found,) = judge_engine(EngineAnswer("silent", "it ended without an answer", "", ""))
    assert found.what.startswith("the installed engine could not be asked")


@pytest.mark.parametrize("listener", [Listener(8000), Listener(8000, (OURS,)), Listener(8000, (OURS,), 1)])
def test_a_port_that_is_free_or_the_instances_own_is_no_finding(listener):
    assert judge_port(listener) == []


def test_a_port_of_somebody_else_stops_a_launch_and_its_holder_is_named():
    (found,) = judge_port(Listener(8000, (OURS, FOREIGN)))
    assert (found.id, found.severity) == ("port_in_use", "no_go")
    assert "8000" in found.what and found.evidence == "PID 17 (nginx: master process)"


def test_a_port_whose_holder_cannot_be_seen_stops_a_launch():
    (found,) = judge_port(Listener(8000, (), 1))
    assert (found.severity, found.evidence) == ("no_go", "a process that cannot be seen")
