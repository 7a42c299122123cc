from __future__ import annotations

import json
import os
import socket
import sys

import pytest
from ansible_collections.llmops.vllm.plugins.modules import launch_preflight

DONE = {"stage": "done", "error": "", "version": "0.32.0", "kv_cache_dtype": "fp8_e4m3"}


class Host:
    """A host with a runtime, a snapshot and a free port; systemd knows no unit."""

    def __init__(self, directory):
        self.directory = directory
        self.python = directory / "runtime/bin/python"
        self.python.parent.mkdir(parents=True)
        self.snapshot = directory / "snapshot"
        self.snapshot.mkdir()
        with socket.create_server(("127.0.0.1", 0)) as server:
            self.port = server.getsockname()[1]
        systemctl = directory / "systemctl"
        systemctl.write_text("#!/bin/sh\nprintf 'LoadState=not-found\\nActiveState=inactive\\nMainPID=0\\n'\n")
        systemctl.chmod(0o755)

    def engine_says(self, **changes):
        answer = {**DONE, **changes}
        self.python.write_text(
            f"#!{sys.executable} -S\nimport json, os, sys\nquestion = json.load(sys.stdin)\n"
            f"answer = {answer!r}\nseen = {{'question': question, 'environment': dict(os.environ)}}\n"
            f"open({str(self.directory / 'seen')!r}, 'w').write(json.dumps(seen))\nprint(json.dumps(answer))\n"
        )
        self.python.chmod(0o755)

    @property
    def seen(self):
        return json.loads((self.directory / "seen").read_text())

    def parameters(self, **changes):
        return {
            "runtime": str(self.directory / "runtime"), "snapshot": str(self.snapshot),
            "serve_yaml": "tensor-parallel-size: 8\n", "unit": "vllm@kimi.service", "port": self.port, **changes,
        }  # fmt: skip


@pytest.fixture
def host(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return Host(tmp_path)


def test_a_launch_that_nothing_speaks_against_is_a_go(run_module, host):
    host.engine_says()
    result = run_module(launch_preflight, **host.parameters(environment={"OMP_NUM_THREADS": 4}))
    assert (result["verdict"], result["findings"], result["changed"]) == ("go", [], False)
    assert (result["vllm_version"], result["kv_cache_dtype"]) == ("0.32.0", "fp8_e4m3")
    assert host.seen["question"] == {
        "serve_yaml": "tensor-parallel-size: 8\n", "model": str(host.snapshot), "compute_capability": "",
    }  # fmt: skip
    assert host.seen["environment"]["OMP_NUM_THREADS"] == "4"


def test_asking_again_is_the_same(run_module, host):
    host.engine_says()
    first, second = (run_module(launch_preflight, diff=True, **host.parameters()) for _ in range(2))
    assert first == second


def test_a_no_go_fails_with_the_whole_text(run_module, host):
    host.engine_says(stage="parse", error="vllm serve: error: unrecognized arguments: --no-such-flag 1")
    result = run_module(launch_preflight, **host.parameters())
    assert result["failed"] and result["verdict"] == "no_go"
    assert result["msg"].splitlines() == [
        "This launch cannot work; nothing was touched.",
        "NO-GO: vLLM 0.32.0 does not take these arguments.",
        "  evidence: vllm serve: error: unrecognized arguments: --no-such-flag 1",
        "  remedy: correct vllm_service_arguments or vllm_service_arguments_extra",
    ]
    assert [finding["id"] for finding in result["findings"]] == ["serve_arguments"]


def test_check_mode_fails_on_a_no_go_as_well(run_module, host):
    host.engine_says(stage="config", error="no backend takes fp8")
    result = run_module(launch_preflight, check=True, **host.parameters())
    assert result["failed"] and "no backend takes fp8" in result["msg"]


def test_a_port_of_somebody_else_is_a_no_go_whatever_the_engine_says(run_module, host):
    host.engine_says()
    with socket.create_server(("127.0.0.1", 0)) as server:
        result = run_module(launch_preflight, **host.parameters(port=server.getsockname()[1]))
    assert result["failed"] and [finding["id"] for finding in result["findings"]] == ["port_in_use"]
    assert f"PID {os.getpid()} (" in result["msg"]


def test_an_engine_that_cannot_be_asked_is_a_warning_and_no_failure(run_module, host, capsys):
    host.python.write_text("#!/bin/sh\necho 'Illegal instruction' >&2\n")
    host.python.chmod(0o755)
    result = run_module(launch_preflight, **host.parameters())
    assert "failed" not in result and (result["verdict"], result["vllm_version"]) == ("warn", "")
    assert "Illegal instruction" in capsys.readouterr().err


@pytest.mark.parametrize("missing", ["runtime", "snapshot"])
def test_what_is_not_there_is_a_failure(run_module, host, missing):
    host.engine_says()
    result = run_module(launch_preflight, **host.parameters(**{missing: "/no/such/directory"}))
    assert result["failed"]
    assert result["msg"].startswith(f"The engine cannot be asked on this host: the {missing} is not there: /no/such/")


@pytest.mark.parametrize("missing", ["runtime", "snapshot"])
def test_what_is_not_there_yet_is_a_warning_finding_in_check_mode(run_module, host, missing, capsys):
    host.engine_says()
    result = run_module(launch_preflight, check=True, **host.parameters(**{missing: "/no/such/directory"}))
    assert "failed" not in result and result["verdict"] == "warn" and "WARN" not in capsys.readouterr().err
    (finding,) = result["findings"]
    assert finding["id"] == "engine_not_asked" and f"the {missing} is not there" in finding["evidence"]


def test_the_engine_is_never_asked_as_root_for_want_of_its_user(run_module, host, monkeypatch):
    host.engine_says()
    monkeypatch.setattr(launch_preflight.os, "geteuid", lambda: 0)
    result = run_module(launch_preflight, **host.parameters(user="no-such-user"))
    assert result["failed"] and "there is no user 'no-such-user'" in result["msg"]
    result = run_module(launch_preflight, check=True, **host.parameters(user="no-such-user"))
    assert result["verdict"] == "warn" and "no-such-user" in result["findings"][0]["evidence"]
    assert not (host.directory / "seen").exists()


def test_a_user_who_is_not_root_asks_as_himself(run_module, host, monkeypatch):
    host.engine_says()
    monkeypatch.setattr(launch_preflight.os, "geteuid", lambda: 1000)
    assert run_module(launch_preflight, **host.parameters(user="no-such-user"))["verdict"] == "go"


def test_the_engines_cache_is_used_when_it_is_there_and_never_in_check_mode(run_module, host):
    host.engine_says()
    cache = host.directory / "cache"
    run_module(launch_preflight, **host.parameters(cache=str(cache)))
    assert host.seen["environment"]["VLLM_CACHE_ROOT"] == host.seen["environment"]["HOME"]
    cache.mkdir()
    run_module(launch_preflight, check=True, **host.parameters(cache=str(cache)))
    assert host.seen["environment"]["VLLM_CACHE_ROOT"] == host.seen["environment"]["HOME"]
    run_module(launch_preflight, **host.parameters(cache=str(cache)))
    assert host.seen["environment"]["VLLM_CACHE_ROOT"] == str(cache)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"port": 0}, "port 0 is not between 1 and 65535."),
        ({"port": 65536}, "port 65536 is not between 1 and 65535."),
        ({"timeout_seconds": 0}, "timeout_seconds must be more than 0."),
        ({"unit": "kimi"}, "unit 'kimi' is not the full name of a service, such as vllm@kimi.service."),
    ],
)
def test_a_value_that_cannot_be_right_is_refused_before_anything_is_asked(run_module, host, wrong, sentence):
    host.engine_says()
    result = run_module(launch_preflight, **host.parameters(**wrong))
    assert result["failed"] and result["msg"] == sentence
    assert not (host.directory / "seen").exists()
