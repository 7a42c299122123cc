from __future__ import annotations

import json

import pytest
from ansible_collections.llmops.vllm.plugins.module_utils.instance_status import (
    Clock,
    Host,
    instance_names,
    load_of,
    read_status,
)
from ansible_collections.llmops.vllm.plugins.module_utils.receipts import evidence_of
from ansible_collections.llmops.vllm.plugins.module_utils.systemd import CompletedRun

LAUNCH = "1" * 32
SHOWN = f"LoadState=loaded\nActiveState=active\nSubState=running\nMainPID=5\nInvocationID={LAUNCH}\n"


def metrics(tokens, use=0.25, engine="0"):
    return (
        f'# HELP vllm:generation_tokens_total x\nvllm:generation_tokens_total{{engine="{engine}"}} {tokens}\n'
        f'vllm:kv_cache_usage_perc{{engine="{engine}"}} {use}\nvllm:num_requests_running{{engine="{engine}"}} 3.0\n'
        f'vllm:num_requests_waiting{{engine="{engine}"}} 1.0\n'
    )


@pytest.fixture
def root(tmp_path):
    for name in ("kimi", "llama"):
        release = tmp_path / "releases" / name / "aaa"
        release.mkdir(parents=True)
        probe = {"host": "127.0.0.1", "port": 8000}
        receipt = {"release": "aaa", "outcome": "proven", "invocation_id": LAUNCH, "time": "2", "probe": probe}
        (release / "release.json").write_text(json.dumps(receipt))
        (tmp_path / "instances" / name).mkdir(parents=True)
        (tmp_path / "instances" / name / "current").symlink_to(release)
    return tmp_path


def read(root, answers=(), shown=SHOWN, names=("kimi",)):
    answers = list(answers)
    slept = []
    times = iter([100.0, *[102.0] * 20])
    clock = Clock(lambda: 1000.0, lambda: next(times), slept.append)
    host = Host(
        root=str(root),
        run_path=str(root / "run"),
        run=lambda argv: CompletedRun(0, shown, ""),
        metrics=lambda host, port: answers.pop(0),
        unit_path=str(root / "units"),
    )
    return read_status(host, names, 2.0, clock), slept


def test_a_serving_instance_with_its_load(root):
    (status,), slept = read(root, [metrics(100), metrics(300)])
    assert (status.release, status.state, status.phase, status.proven) == ("aaa", "active", "serves", True)
    assert (status.load.tokens_per_second, status.load.kv_use) == (100.0, 0.25)
    assert (status.load.running, status.load.waiting) == (3, 1)
    assert status.as_dict()["tokens_per_second"] == 100.0 and slept == [2.0]


def test_files_that_somebody_changed_are_drift(root):
    release, units = root / "releases/kimi/aaa", root / "units"
    settings = units / "vllm@kimi.service.d/release.conf"
    settings.parent.mkdir(parents=True)
    for name, installed in (("vllm@.service", units / "vllm@.service"), ("instance.conf", settings)):
        (release / name).write_text(name)
        installed.write_text(name)
    receipt = json.loads((release / "release.json").read_text())
    receipt["evidence"] = evidence_of(str(release))
    (release / "release.json").write_text(json.dumps(receipt))
    assert read(root, [None])[0][0].drift == []
    settings.write_text("by hand")
    assert read(root, [None])[0][0].drift == [str(settings)]
    (release / "instance.conf").write_text("by hand")
    assert read(root, [None])[0][0].drift == ["units of the release"]


def test_a_release_that_cannot_be_read_is_drift(root):
    assert "vllm@.service" in read(root, [None])[0][0].drift[0]


def test_all_instances_share_one_wait(root):
    statuses, slept = read(root, [metrics(0)] * 4, names=instance_names(str(root)))
    assert [status.instance for status in statuses] == ["kimi", "llama"] and slept == [2.0]


def test_an_engine_without_an_answer_costs_no_wait(root):
    (status,), slept = read(root, [None])
    assert status.load.tokens_per_second is None and not slept


def test_a_unit_that_does_not_run_is_not_asked(root):
    (status,), _slept = read(root, shown="LoadState=loaded\nActiveState=failed\nSubState=failed\nMainPID=0\n")
    assert (status.state, status.phase, status.proven, status.since) == ("failed", "failed", False, "")


def test_the_phase_is_what_the_service_tells_systemd(root):
    (status,), _slept = read(root, [None], SHOWN.replace("active", "activating") + "StatusText=weights 3/12\n")
    assert status.phase == "weights 3/12" and status.proven is False


def test_the_newest_verdict_is_shown_also_of_another_release(root):
    failed = root / "releases/kimi/bbb"
    failed.mkdir()
    verdict = {"task": "x", "message": "out of memory\nmore"}
    receipt = {"release": "bbb", "outcome": "failed", "time": "3", "verdict": verdict}
    (failed / "release.json").write_text(json.dumps(receipt))
    (status,), _slept = read(root, [None])
    assert status.last_verdict == "bbb failed out of memory"


def test_several_engines_of_one_server_are_one_load():
    first = metrics(100, 0.2) + metrics(100, 0.4, "1")
    later = metrics(150, 0.2) + metrics(150, 0.4, "1")
    load = load_of(first, later, 1.0)
    assert (load.tokens_per_second, load.kv_use, load.running) == (100.0, 0.3, 6)


def test_metrics_of_something_else_are_no_load():
    assert load_of("up 1\n", "vllm:generation_tokens_total x\n", 1.0).tokens_per_second is None


def test_a_restart_between_two_looks_is_no_negative_rate():
    assert load_of(metrics(1000), metrics(5), 1.0).tokens_per_second == 0.0


def test_a_host_without_instances_has_none(tmp_path):
    assert instance_names(str(tmp_path)) == []
