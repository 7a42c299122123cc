from __future__ import annotations

import json
import os

import pytest
from ansible_collections.llmops.vllm.plugins.modules import launch_diagnosis

LAUNCH = "1" * 32
OTHER = "2" * 32
UNIT = "vllm@kimi.service"
ROOT = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
LAST = "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"


class Host:
    """systemctl and journalctl first on PATH, which print what a test gave them and note what they were asked."""

    def __init__(self, directory):
        self.directory = directory
        for name in ("systemctl", "journalctl"):
            command = directory / name
            command.write_text(f'#!/bin/sh\necho "$*" >> {directory}/{name}.asked\ncat {directory}/{name}.out\n')
            command.chmod(0o755)
        self.unit(LAUNCH)
        self.journal()

    def unit(self, invocation_id):
        lines = ["LoadState=loaded", "ActiveState=failed", f"InvocationID={invocation_id}"]
        (self.directory / "systemctl.out").write_text("\n".join(lines) + "\n")

    def journal(self, *rows):
        records = [
            {
                "_SYSTEMD_INVOCATION_ID": launch, "_SYSTEMD_UNIT": UNIT, "MESSAGE": message, "_PID": "7",
                "__CURSOR": f"c{number}", "__REALTIME_TIMESTAMP": str(1_772_359_260_000_000 + number),
            }
            for number, (launch, message) in enumerate(rows)
        ]  # fmt: skip
        (self.directory / "journalctl.out").write_text("".join(json.dumps(record) + "\n" for record in records))

    def asked(self, name):
        return (self.directory / f"{name}.asked").read_text().splitlines()


@pytest.fixture
def host(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return Host(tmp_path)


@pytest.mark.parametrize("check", [False, True])
def test_the_last_launch_of_a_unit_is_diagnosed_and_nothing_of_another(run_module, host, check):
    host.journal((OTHER, "OSError: [Errno 98] Address already in use"), (LAUNCH, ROOT), (LAUNCH, LAST))
    result = run_module(launch_diagnosis, check=check, diff=check, unit=UNIT)
    assert (result["changed"], result["verdict"], result["cause_class"]) == (False, "cause", "cuda_oom")
    assert result["invocation_id"] == LAUNCH and LAUNCH in result["command"]
    assert result["evidence"] == [{"text": ROOT, "process": "pid=7", "time": "2026-03-01T10:01:00Z", "line": 1}]
    assert result["misleading_last_line"] == LAST and "max-model-len" in result["remedy"]
    assert result["msg"] == f"{UNIT}, launch {LAUNCH}: the cause is in the log" == result["report"][0]
    assert "Address already in use" not in json.dumps(result)


def test_a_second_look_says_the_same(run_module, host):
    host.journal((LAUNCH, ROOT))
    assert run_module(launch_diagnosis, unit=UNIT) == run_module(launch_diagnosis, unit=UNIT)


def test_a_given_launch_is_read_and_not_the_last(run_module, host):
    host.journal((OTHER, "OSError: [Errno 98] Address already in use"), (LAUNCH, ROOT))
    result = run_module(launch_diagnosis, unit=UNIT, invocation_id=OTHER)
    assert (result["cause_class"], result["invocation_id"]) == ("port_in_use", OTHER)
    assert run_module(launch_diagnosis, invocation_id=LAUNCH)["cause_class"] == "cuda_oom"


def test_a_launch_that_systemd_has_forgotten_is_found_in_the_journal(run_module, host):
    host.unit("")
    host.journal((LAUNCH, ROOT))
    assert run_module(launch_diagnosis, unit=UNIT)["invocation_id"] == LAUNCH
    assert host.asked("journalctl")[0].endswith(f"_SYSTEMD_UNIT={UNIT} + UNIT={UNIT} _PID=1")


def test_a_saved_log_and_a_text_need_no_systemd(run_module, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    path = tmp_path / "saved.log"
    path.write_text(f"(EngineCore pid=5) ERROR 03-01 10:00:00 [core.py:1] {ROOT}\n{LAST}\n")
    for given in ({"path": str(path)}, {"text": path.read_text()}):
        result = run_module(launch_diagnosis, **given)
        assert (result["cause_class"], result["evidence"][0]["process"]) == ("cuda_oom", "EngineCore pid=5")
        assert (result["invocation_id"], result["command"]) == ("", "")


def test_lines_without_a_cause_are_said_to_be_so(run_module):
    result = run_module(launch_diagnosis, text=LAST)
    assert (result["verdict"], result["cause_class"], result["evidence"]) == ("insufficient_evidence", "", [])
    assert result["remedy"]


def test_evidence_holds_no_secret(run_module):
    text = (
        "INFO 03-01 10:00:00 [utils.py:1] non-default args: {'api_key': ['top'], 'kv_cache_dtype': 'fp8'}\n"
        "ValueError: No valid attention backend found for cuda with kv_cache_dtype=fp8, token hf_abcdefghijkl\n"
    )
    result = run_module(launch_diagnosis, text=text)
    assert len(result["evidence"]) == 2
    shown = json.dumps([result["evidence"], result["report"]])
    assert "'top'" not in shown and "hf_abc" not in shown


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({}, "one of the following is required"),
        ({"path": "/x", "unit": UNIT}, "mutually exclusive"),
        ({"unit": "-H other"}, "full name of a service"),
        ({"unit": UNIT, "invocation_id": "x=1 + y"}, "32 lower-case hexadecimal digits"),
        ({"path": "/nonexistent/vllm.log"}, "path /nonexistent/vllm.log cannot be read: No such file or directory."),
        ({"path": "/proc"}, "cannot be read: Is a directory."),
    ],
)
def test_bad_input_fails_with_one_sentence(run_module, params, words):
    result = run_module(launch_diagnosis, **params)
    assert result["failed"] and words in result["msg"]


def test_a_host_without_systemd_and_a_unit_without_a_launch_are_told_apart(run_module, host, monkeypatch):
    host.unit("")
    assert "no launch of vllm@kimi.service is known" in run_module(launch_diagnosis, unit=UNIT)["msg"]
    monkeypatch.setenv("PATH", "/nonexistent")
    assert "systemd does not answer" in run_module(launch_diagnosis, unit=UNIT)["msg"]
