from __future__ import annotations

import json
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest
import yaml
from ansible_collections.llmops.vllm.plugins.callback import run_report
from ansible_collections.llmops.vllm.plugins.plugin_utils.run_report import (
    MESSAGE_CHARACTERS,
    SCHEMA_VERSION,
    RunReport,
    TaskEnd,
    outcome_of,
    write_atomically,
)

GATE = {"verdict": "ready", "invocation_id": "1" * 32, "timeline": [{"phase": "weights", "seconds": 3.5}], "changed": 0}
FINE = {"ok": 3, "changed": 1}
BAD = {"ok": 3, "failures": 1}


def end(values, status="ok", task="t", action="debug", host="gpu-1"):
    return TaskEnd(host, task, action, status, 10.0, 12.5, values)


def document(*ends, **summaries):
    report = RunReport("deploy.yml", False, 5.0)
    for item in ends:
        report.add(item)
    counts = {name.replace("_", "-"): value for name, value in summaries.items()}
    return report.document(20.0, counts, str), ElementTree.fromstring(report.junit(20.0, counts, str))


def test_a_deployment_tells_releases_launch_and_outcome():
    found, _xml = document(
        end({"current": {"release_id": "aaa"}}, action="llmops.vllm.vllm_instance_info"),
        end({"ansible_facts": {"vllm_service_result": {"id": "bbb", "content": {"files": {"env": "x"}}}}}),
        end(GATE, action="llmops.vllm.launch_gate"),
        end({"current": {"release_id": "bbb"}}, action="llmops.vllm.vllm_instance_info"),
        end({"changed": True, "current": "bbb"}, action="llmops.vllm.release_switch"),
        gpu_1=FINE,
    )
    assert (found["schema"], found["schema_version"]) == ("llmops.vllm/run", SCHEMA_VERSION)
    assert (found["playbook"], found["duration_seconds"], found["outcome"]) == ("deploy.yml", 15.0, "changed")
    host = found["hosts"]["gpu-1"]
    assert host["release"] == {"before": "aaa", "wanted": "bbb", "after": "bbb"}
    assert host["launch"] == {"invocation_id": "1" * 32, "verdict": "ready", "timeline": GATE["timeline"]}
    assert (host["outcome"], host["failures"], host["drift"]) == ("changed", [], None)
    assert "env" not in json.dumps(found)


def test_without_a_rollout_the_release_is_the_one_before():
    found, _xml = document(end({"current": None}, action="vllm_instance_info"), gpu_1=FINE)
    assert found["hosts"]["gpu-1"]["release"] == {"before": "", "wanted": None, "after": ""}
    assert found["hosts"]["gpu-1"]["launch"] is None


LOOK = {"current": "aaa", "expected": "bbb", "findings": [], "settled": False}


def releases(*ends):
    found, _xml = document(*ends, gpu_1=FINE)
    return tuple(found["hosts"]["gpu-1"]["release"].values())


@pytest.mark.parametrize("action", ["llmops.vllm.drift_info", "drift_info"])
def test_a_host_that_was_only_looked_at_has_its_releases(action):
    assert releases(end({**LOOK, "expected": "aaa"}, action=action)) == ("aaa", "aaa", "aaa")
    assert releases(end({**LOOK, "current": ""}, action=action)) == ("", "bbb", "")


def test_what_the_roles_find_out_after_the_look_is_told():
    look = end(LOOK, action="drift_info")
    service = end({"ansible_facts": {"vllm_service_result": {"id": "ccc"}}})
    switched = end({"changed": True, "current": "ccc"}, action="release_switch")
    assert releases(look, service, switched) == ("aaa", "ccc", "ccc")
    assert releases(end({"current": {"release_id": "old"}}, action="vllm_instance_info"), look) == ("old", "bbb", "old")


@pytest.mark.parametrize("values", [{"msg": "no systemd"}, {"skipped": True}, {"current": "aaa"}, {"expected": "bbb"}])
def test_a_look_that_was_left_out_or_failed_says_nothing(values):
    assert releases(end(values, action="drift_info")) == (None, None, None)


def test_the_schema_keeps_its_keys():
    found, _xml = document(end({}), gpu_1=FINE)
    times = {"started", "ended", "duration_seconds"}
    assert set(found) == {"schema", "schema_version", "playbook", "check_mode", "outcome", "hosts"} | times
    assert set(found["hosts"]["gpu-1"]) == {"outcome", "tasks", "release", "launch", "drift", "failures"}


def test_a_failure_is_told_with_its_message_and_without_tokens():
    found, xml = document(end({"msg": "no sk-abcdefghijkl\x00"}, "failed", "Fetch"), gpu_1=BAD)
    assert found["outcome"] == "failed"
    assert found["hosts"]["gpu-1"]["failures"] == [{"task": "Fetch", "message": "no ***"}]
    failure = xml.find("testsuite/testcase/failure")
    assert (failure.text, failure.get("message")) == ("no ***", "no ***")
    assert xml.find("testsuite").get("failures") == "1"


def test_what_a_rescue_made_good_is_no_failed_case():
    found, xml = document(end({"msg": "m"}, "failed"), end({"msg": "i"}, "ignored"), gpu_1={"ok": 1, "rescued": 1})
    assert found["hosts"]["gpu-1"]["outcome"] == "ok" and found["hosts"]["gpu-1"]["failures"]
    assert xml.find("testsuite/testcase/failure") is None
    assert [case.find("system-out").text for case in xml.iter("testcase")] == ["m", "i"]


def test_drift_is_in_both_reports():
    drift = {"verdict": "drift", "findings": [{"kind": "files", "where": "/x", "what": "is <missing>"}]}
    found, xml = document(end({"ansible_facts": {"vllm_drift_result": drift}}), gpu_1=FINE)
    assert found["hosts"]["gpu-1"]["drift"] == drift
    assert [case.get("name") for case in xml.iter("testcase")] == ["t", "files: /x"]
    assert xml.find("testsuite/testcase/failure").get("message") == "is <missing>"
    _found, xml = document(end({"ansible_facts": {"vllm_drift_result": {"findings": []}}}), gpu_1=FINE)
    assert [case.get("name") for case in xml.iter("testcase")] == ["t", "no drift"]


def test_skipped_tasks_are_no_cases_and_long_messages_are_cut():
    _found, xml = document(end({}, "skipped"), end({"msg": "x" * 99999}, "failed"), gpu_1=BAD)
    (case,) = xml.iter("testcase")
    assert len(case.find("failure").text) == MESSAGE_CHARACTERS and case.get("time") == "2.500"


@pytest.mark.parametrize(
    ("summary", "outcome"),
    [({}, "ok"), (FINE, "changed"), (BAD, "failed"), ({"unreachable": 1, "failures": 1}, "unreachable")],
)
def test_the_worst_counts(summary, outcome):
    assert outcome_of(summary) == outcome


def test_the_run_is_as_bad_as_its_worst_host():
    found, _xml = document(end({}), end({}, host="gpu-2"), gpu_1=FINE, gpu_2=BAD)
    assert found["outcome"] == "failed"


@pytest.fixture
def callback(monkeypatch):
    plugin, options, said = run_report.CallbackModule(), {"json_file": None, "junit_file": None}, []
    monkeypatch.setattr(plugin, "get_option", lambda name: options[name])
    monkeypatch.setattr(plugin, "_display", SimpleNamespace(warning=said.append))
    monkeypatch.setattr(run_report.context, "CLIARGS", {"check": True})
    plugin.v2_playbook_on_start(SimpleNamespace(_file_name="/somewhere/deploy.yml"))
    return SimpleNamespace(plugin=plugin, options=options, said=said)


STATS = SimpleNamespace(processed={"gpu-1": 1}, summarize=lambda _host: FINE)


@pytest.mark.parametrize("prefix", ["", "_"])
def test_results_of_either_core_version_are_taken_in_and_written(callback, tmp_path, prefix):
    callback.options.update(json_file=str(tmp_path / "new/run.json"), junit_file=str(tmp_path / "run.xml"))
    task = SimpleNamespace(get_name=lambda: "Do it", action="debug", _uuid="1")
    host = SimpleNamespace(get_name=lambda: "gpu-1", __str__=lambda: "gpu-1")
    values = {"result": {"changed": True}, "host": host, "task": task}
    result = SimpleNamespace(**{prefix + name: value for name, value in values.items()})
    callback.plugin.v2_runner_on_start("gpu-1", task)
    callback.plugin.v2_runner_on_ok(result)
    callback.plugin.v2_runner_on_failed(result, ignore_errors=True)
    callback.plugin.v2_runner_on_skipped(result)
    callback.plugin.v2_runner_on_unreachable(result)
    callback.plugin.v2_playbook_on_stats(STATS)
    found = json.loads((tmp_path / "new/run.json").read_text())
    assert (found["playbook"], found["check_mode"], found["outcome"]) == ("deploy.yml", True, "changed")
    assert len(list(ElementTree.parse(tmp_path / "run.xml").iter("testcase"))) == 3
    assert callback.said == []


def test_it_writes_nothing_unless_asked_and_warns_where_it_cannot(callback, tmp_path):
    callback.plugin.v2_playbook_on_stats(STATS)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("")
    callback.options["json_file"] = str(tmp_path / "file/run.json")
    callback.plugin.v2_playbook_on_stats(STATS)
    assert len(callback.said) == 1 and "cannot be written" in callback.said[0]


def test_files_that_nobody_names_have_no_default_which_would_be_a_path_below_the_working_directory():
    for option in yaml.safe_load(run_report.DOCUMENTATION)["options"].values():
        assert option["type"] == "path" and "default" not in option


def test_it_must_be_enabled():
    assert run_report.CallbackModule.CALLBACK_NEEDS_ENABLED is True


def test_a_report_replaces_the_one_before_and_leaves_nothing_aside(tmp_path):
    path = tmp_path / "r"
    write_atomically(str(path), b"1")
    write_atomically(str(path), b"2")
    assert path.read_bytes() == b"2" and [item.name for item in tmp_path.iterdir()] == ["r"]
    with pytest.raises(IsADirectoryError):
        write_atomically(str(tmp_path), b"3")
    assert [item.name for item in tmp_path.iterdir()] == ["r"]
