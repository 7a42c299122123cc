from __future__ import annotations

import os
import socket

import pytest
from ansible_collections.llmops.vllm.plugins.module_utils.release import release_id
from ansible_collections.llmops.vllm.plugins.modules import drift_info
from ansible_collections.llmops.vllm.tests.unit.drift_host import COMMIT, DriftHost, content


@pytest.fixture
def host(tmp_path, monkeypatch):
    """Lay out a host, and put a systemctl that shows its active unit first on PATH."""
    host = DriftHost(tmp_path)
    directory = tmp_path / "bin"
    directory.mkdir()
    command = directory / "systemctl"
    lines = ["LoadState=loaded", "ActiveState=active", "SubState=running", "UnitFileState=enabled", "MainPID=5"]
    lines.append(f"FragmentPath={host.unit_file}")
    command.write_text("#!/bin/sh\n" + "".join(f"echo {line}\n" for line in lines))
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{directory}:{os.environ['PATH']}")
    return host


@pytest.fixture
def look(run_module, host, free_port):
    def call(**params):
        return run_module(drift_info, **{**host.parameters(), "port": free_port, **params})

    return call


@pytest.fixture
def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


@pytest.mark.parametrize("level", ["none", "stat", "full"])
def test_an_untouched_host_has_no_drift(look, host, level):
    result = look(runtime_level=level)
    assert (result["changed"], result["drift"], result["findings"], result["notes"]) == (False, False, [], [])
    assert result["current"] == result["expected"] == host.id
    assert result["model"] == {"repo": "acme/tiny", "commit": COMMIT}


def test_check_mode_tells_the_same(run_module, host, free_port):
    result = run_module(drift_info, check=True, diff=True, **{**host.parameters(), "port": free_port})
    assert result["drift"] is False and "diff" not in result


def test_each_kind_is_found(look, host):
    (host.release / "env").write_text("B=1\n")
    (host.release / "model/config.json").write_text("{}")
    (host.packages / "x.pth").write_text("")
    host.api_key.write_text("other")
    result = look()
    assert result["drift"] is True
    assert [finding["kind"] for finding in result["findings"]] == ["files", "view", "runtime", "api_key"]
    assert set(result["findings"][0]) == {"kind", "where", "what"}


def test_what_is_meant_to_be_is_ignored(look, host):
    (host.packages / "x.pth").write_text("")
    result = look(ignore=["runtime *.pth"])
    assert (result["drift"], result["findings"], len(result["ignored"])) == (False, [], 1)


def test_a_host_without_the_instance_is_drift_and_no_error(look, host):
    (host.root / "instances/kimi/current").unlink()
    result = look()
    assert [finding["kind"] for finding in result["findings"]] == ["release"] and result["model"] == {}


def test_a_host_without_systemd_fails(look, monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    result = look()
    assert result["failed"] is True and "systemd does not answer" in result["msg"]


@pytest.mark.parametrize(
    ("params", "sentence"),
    [
        ({"release_id": "0" * 12}, "release_id is 000000000000, but content is that of"),
        ({"content": {"model": {}}}, "content lacks files, launcher, patches, runtime"),
        ({"root": "relative"}, "root must be an absolute path"),
        ({"instance": "../x"}, "instance '../x'"),
        ({"unit": "-H a.service"}, "is not the full name of a service"),
        ({"launcher": "serve"}, "launcher must be an absolute path"),
    ],
)
def test_bad_input_fails_with_one_sentence(look, params, sentence):
    result = look(**params)
    assert result["failed"] is True and sentence in result["msg"]


def test_a_model_that_is_no_name_fails(look, run_module, host):
    bad = content(model={"repo": "../x", "commit": COMMIT})
    link = host.root / "instances/kimi/current"
    link.unlink()
    link.symlink_to(host.release.rename(host.release.with_name(release_id(bad))))
    result = look(content=bad, release_id=release_id(bad))
    assert result["failed"] is True and "../x" in result["msg"]
