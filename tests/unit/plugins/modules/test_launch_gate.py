from __future__ import annotations

import dataclasses
import json
import os
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from ansible_collections.llmops.vllm.plugins.module_utils import procfs
from ansible_collections.llmops.vllm.plugins.module_utils.deploy_lock import DeployLock, Lock, read_lock
from ansible_collections.llmops.vllm.plugins.modules import launch_gate

LAUNCH = "1" * 32
OTHER = "2" * 32
GROUP = "/system.slice/vllm@kimi.service"
KEY = "sk-very-secret"
ROOT = "RuntimeError: expected scalar type BFloat16 but found Float8_e4m3fn"
GOOD = {"text": " Paris", "logprobs": {"tokens": [" Paris"], "token_logprobs": [-0.5]}}


class Engine(BaseHTTPRequestHandler):
    """Speaks as much of the engine's HTTP interface as the gate asks for."""

    def do_GET(self):
        self.send({"version": "0.32.0"} if self.path == "/version" else {"data": [{"id": "kimi"}]})

    def do_POST(self):
        self.server.requests.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send(self.server.answer)

    def send(self, body):
        status = 200 if self.headers["Authorization"] == f"Bearer {KEY}" else 401
        status = 500 if status == 200 and "error" in body else status
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *arguments):
        pass


class Host:
    """One host: systemctl and journalctl first on PATH, an engine in this very process."""

    def __init__(self, tmp_path, server):
        self.server = server
        self.directory = tmp_path
        self.key = tmp_path / "key"
        self.key.write_text(KEY + "\n")
        for name in ("systemctl", "journalctl"):
            command = tmp_path / name
            command.write_text(f'#!/bin/sh\necho "$*" >> {tmp_path}/{name}.asked\ncat {tmp_path}/{name}.out\n')
            command.chmod(0o755)
        self.unit()
        self.journal([])

    def unit(self, **changes):
        values = {
            "LoadState": "loaded", "ActiveState": "active", "SubState": "running", "Result": "success",
            "InvocationID": LAUNCH, "MainPID": os.getpid(), "ControlGroup": GROUP, **changes,
        }  # fmt: skip
        (self.directory / "systemctl.out").write_text("".join(f"{key}={value}\n" for key, value in values.items()))

    def journal(self, rows):
        records = []
        for number, (launch, message) in enumerate(rows):
            record = {"_SYSTEMD_INVOCATION_ID": launch, "MESSAGE": message, "_PID": "7", "__CURSOR": f"c{number}"}
            records.append(json.dumps({**record, "__REALTIME_TIMESTAMP": str(1_772_359_260_000_000 + number)}))
        (self.directory / "journalctl.out").write_text("\n".join(records) + "\n")

    def asked(self, name):
        path = self.directory / f"{name}.asked"
        return path.read_text().splitlines() if path.exists() else []

    def parameters(self, **changes):
        return {
            "unit": "vllm@kimi.service", "port": self.server.server_address[1], "served_model": "kimi",
            "api_key_file": str(self.key), "canaries": [{"kind": "completion", "prompt": "The capital is"}],
            "soak_seconds": 0, "stall_timeout_seconds": 0, **changes,
        }  # fmt: skip


@pytest.fixture
def host(tmp_path, monkeypatch):
    server = ThreadingHTTPServer(("127.0.0.1", 0), Engine)
    server.requests = []
    server.answer = {"choices": [GOOD], "usage": {"completion_tokens": 1}}
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    real = procfs.ProcFs.process

    def process(self, pid):
        found = real(self, pid)
        return found and dataclasses.replace(found, cgroups={"": GROUP if pid == os.getpid() else "/"})

    monkeypatch.setattr(procfs.ProcFs, "process", process)
    yield Host(tmp_path, server)
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_launch_that_answers_is_ready(run_module, host):
    host.journal([(LAUNCH, "INFO:     Application startup complete.")])
    result = run_module(launch_gate, **host.parameters())
    assert (result["verdict"], result["changed"], result["phase"]) == ("ready", False, "ready")
    assert (result["invocation_id"], result["main_pid"]) == (LAUNCH, os.getpid())
    assert result["canaries"][0]["text"] == " Paris" and result["canaries"][0]["problem"] == ""
    assert [step["phase"] for step in result["timeline"]][-2:] == ["canary", "soak"]
    assert host.server.requests[0]["model"] == "kimi" and host.server.requests[0]["logprobs"] == 1
    assert KEY not in json.dumps(result)


def test_asking_again_is_the_same_and_changes_nothing(run_module, host):
    results = [run_module(launch_gate, **host.parameters(invocation_id=LAUNCH)) for _ in range(2)]
    assert [(result["verdict"], result["changed"]) for result in results] == [("ready", False)] * 2


def test_check_mode_looks_at_nothing(run_module, host):
    result = run_module(launch_gate, check=True, **host.parameters())
    assert (result["verdict"], result["changed"]) == ("skipped", False)
    assert host.server.requests == [] and host.asked("systemctl") == [] and host.asked("journalctl") == []


def test_a_slice_that_is_over_says_where_the_launch_is(run_module, host):
    host.journal([(LAUNCH, "Loading safetensors checkpoint shards:  25% Completed | 3/12 [00:01<00:03]")])
    with_no_listener = host.parameters(port=1, slice_seconds=1, waited_seconds=60)
    result = run_module(launch_gate, **with_no_listener)
    assert (result["verdict"], result["phase"], result["progress"]) == ("waiting", "weights", "loading weights 3/12")
    assert 60 < result["waited_seconds"] < 65 and "failed" not in result


def test_a_failed_launch_is_explained_from_its_own_journal_only(run_module, host):
    host.unit(ActiveState="failed", SubState="failed", Result="exit-code", MainPID=0, ExecMainCode=1, ExecMainStatus=1)
    host.journal(
        [
            (OTHER, "torch.OutOfMemoryError: CUDA out of memory."),
            (LAUNCH, "(APIServer pid=7) INFO 03-01 10:00:00 [cache.py:1] Using fp8_e4m3 data type to store kv cache"),
            (LAUNCH, "(EngineCore pid=8) INFO 03-01 10:00:01 [core.py:1] with config: kv_cache_dtype=fp8_e4m3, x=1"),
            (LAUNCH, f"(Worker pid=9) ERROR 03-01 10:00:02 [m.py:1] {ROOT}"),
            (LAUNCH, "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"),
        ]
    )  # fmt: skip
    result = run_module(launch_gate, **host.parameters())
    assert result["failed"] is True and (result["verdict"], result["changed"]) == ("failed", False)
    assert result["diagnosis"]["cause_class"] == "attention_backend_unsupported"
    lines = result["msg"].split("\n")
    assert lines[0].startswith("vllm@kimi.service is not ready: vllm@kimi.service is failed (result exit-code")
    assert f"of this launch ({LAUNCH}), Worker pid=9, 2026-03-01T" in lines[2]
    assert "kv_cache_dtype=fp8_e4m3" in result["msg"] and "disable_fp8_kv_cache" in result["msg"]
    assert lines[-1] == f"All of it: journalctl --no-pager _SYSTEMD_INVOCATION_ID={LAUNCH} + INVOCATION_ID={LAUNCH}"
    assert "out of memory" not in json.dumps(result)


def test_a_restarted_unit_is_another_launch(run_module, host):
    host.unit(InvocationID=OTHER, NRestarts=1)
    result = run_module(launch_gate, **host.parameters(invocation_id=LAUNCH))
    assert result["verdict"] == "failed" and "left this launch" in result["msg"]
    assert all(LAUNCH in line and OTHER not in line for line in host.asked("journalctl"))


def test_an_answer_of_200_full_of_nan_fails(run_module, host):
    broken = {"text": "!!!!", "logprobs": {"tokens": ["!"] * 4, "token_logprobs": [float("nan")] * 4}}
    host.server.answer = {"choices": [broken]}
    result = run_module(launch_gate, **host.parameters())
    assert result["verdict"] == "failed" and "NaN" in result["msg"] and result["canaries"][0]["text"] == "!!!!"


def test_another_version_than_the_runtimes_is_refused(run_module, host):
    assert run_module(launch_gate, **host.parameters(version="0.32.0+cpu"))["verdict"] == "ready"
    result = run_module(launch_gate, **host.parameters(version="0.33.0"))
    assert result["verdict"] == "failed" and "vLLM 0.32.0 answers" in result["msg"] and host.server.requests[1:] == []


def test_the_soak_asks_again(run_module, host):
    result = run_module(launch_gate, **host.parameters(soak_completions=2))
    assert result["soak"] == {"asked": 2, "failed": 0, "problems": []} and len(host.server.requests) == 3
    assert result["death_to_verdict_seconds"] is None


def test_a_tool_call_and_a_timed_answer_are_asked_for_as_they_are_described(run_module, host):
    call = {"function": {"name": "get_weather", "arguments": '{"city": "Paris"}'}}
    host.server.answer = {"choices": [{"message": {"content": None, "tool_calls": [call]}}]}
    canaries = [{"kind": "tool_call", "prompt": "What is the weather in Paris?", "logprobs": False}]
    result = run_module(launch_gate, **host.parameters(canaries=canaries))
    assert result["verdict"] == "ready" and host.server.requests[0]["tools"]
    slow = [{**canaries[0], "max_seconds": 0.000001}]
    result = run_module(launch_gate, **host.parameters(canaries=slow))
    assert "at most 1e-06 s are allowed" in result["msg"]


def test_an_engine_that_dies_at_the_first_request_fails(run_module, host):
    host.server.answer = {"error": {"message": "EngineCore encountered an issue."}}
    result = run_module(launch_gate, **host.parameters())
    assert "canary 1 (completion) failed: HTTP 500: EngineCore encountered an issue." in result["msg"]


def test_a_foreign_listener_is_named_and_gets_no_key(run_module, host, monkeypatch):
    host.unit(ControlGroup="/system.slice/other.service")
    result = run_module(launch_gate, **host.parameters())
    assert f"foreign process: {os.getpid()} (" in result["msg"] and host.server.requests == []


def test_a_wrong_key_fails_without_showing_it(run_module, host):
    host.key.write_text("sk-another-secret")
    result = run_module(launch_gate, **host.parameters())
    assert "refuses the API key" in result["msg"] and "sk-another" not in json.dumps(result)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"unit": "kimi"}, "full name"),
        ({"invocation_id": "x"}, "invocation"),
        ({"port": 0}, "port 0"),
        ({"canaries": []}, "canaries is empty"),
        ({"canaries": [{"prompt": "x", "matches": "("}]}, "canary 1"),
        ({"canaries": [{"prompt": "x", "tool": {"name": "f"}}]}, "canary 1: tool and tool_arguments are for kind"),
        ({"soak_seconds": -1}, "soak_seconds must not be negative"),
        ({"soak_failures": -1}, "soak_failures must not be negative"),
        ({"canary_timeout_seconds": 0}, "at least 1"),
        ({"api_key_file": "/nonexistent/key"}, "cannot be read"),
    ],
)
def test_bad_input_fails_with_one_sentence_before_anything_is_asked(run_module, host, changes, words):
    result = run_module(launch_gate, **host.parameters(**changes))
    assert result["failed"] is True and words in result["msg"] and "\n" not in result["msg"]
    assert host.asked("systemctl") == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"LoadState": "not-found"}, "does not know"), ({"InvocationID": ""}, "never been started")],
)
def test_a_unit_without_a_launch_is_said(run_module, host, changes, words):
    host.unit(**changes)
    assert words in run_module(launch_gate, **host.parameters())["msg"]


@pytest.mark.parametrize(("holder", "message"), [("mine", ""), ("other", "other@two .*took it over")])
def test_the_lock_is_kept_while_the_launch_is_waited_for(run_module, host, holder, message):
    run_path = str(host.directory / "run")
    lock = DeployLock("kimi", lambda: 0.0, run_path)
    lock.apply(lock.plan_held(Lock(holder, f"{holder}@two"), 60))
    wanted = {"instance": "kimi", "run_id": "mine", "run_path": run_path}
    result = run_module(launch_gate, **host.parameters(lock=wanted))
    if message:
        assert result["failed"] and re.search(message, result["msg"]) and host.server.requests == []
    else:
        assert result["verdict"] == "ready"
    assert (read_lock("kimi", run_path).renewed_seconds > 0) == (holder == "mine")
