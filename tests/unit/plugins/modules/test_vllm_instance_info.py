from __future__ import annotations

import json
import os

import pytest
from ansible_collections.llmops.vllm.plugins.modules import vllm_instance_info

LAUNCH = "1" * 32


@pytest.fixture
def systemctl(tmp_path, monkeypatch):
    """Put a systemctl that shows one active unit first on PATH."""
    directory = tmp_path / "bin"
    directory.mkdir()
    command = directory / "systemctl"
    lines = [f"InvocationID={LAUNCH}", "LoadState=loaded", "ActiveState=active", "SubState=running", "MainPID=5"]
    command.write_text("#!/bin/sh\n" + "".join(f"echo {line}\n" for line in lines) + 'echo "StatusText=$*"\n')
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{directory}:{os.environ['PATH']}")


@pytest.fixture
def root(tmp_path):
    release = tmp_path / "releases" / "kimi" / "aaa"
    release.mkdir(parents=True)
    (release / "release.json").write_text(json.dumps({"outcome": "proven", "invocation_id": LAUNCH}))
    (tmp_path / "instances" / "kimi").mkdir(parents=True)
    (tmp_path / "instances" / "kimi" / "current").symlink_to("../../releases/kimi/aaa")
    return tmp_path


@pytest.mark.parametrize("check", [False, True])
def test_a_proven_instance_is_shown_as_such(run_module, root, systemctl, check):
    result = run_module(vllm_instance_info, check=check, instance="kimi", root=str(root))
    assert result["changed"] is False and result["exists"] is True
    assert (result["proven"], result["proven_release"], result["serving"]) == (True, True, True)
    assert result["current"]["release_id"] == "aaa" and result["previous"] is None
    assert result["releases"] == [{"release_id": "aaa", "proven": True}]
    assert result["unit"]["systemd"] is True and result["unit"]["main_pid"] == 5
    assert result["unit"]["status_text"].endswith("-- vllm@kimi.service")


def test_the_unit_can_be_named(run_module, root, systemctl):
    result = run_module(vllm_instance_info, instance="kimi", root=str(root), unit="other.service")
    assert result["unit"]["status_text"].endswith("-- other.service")


def test_a_host_without_systemd_is_no_error(run_module, root, monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    result = run_module(vllm_instance_info, instance="kimi", root=str(root))
    assert (result["proven_release"], result["serving"], result["proven"]) == (True, False, False)
    assert result["unit"]["systemd"] is False and result["unit"]["active_state"] == ""


def test_an_absent_instance_is_no_error(run_module, tmp_path, systemctl):
    result = run_module(vllm_instance_info, instance="none", root=str(tmp_path))
    assert (result["exists"], result["current"], result["releases"], result["proven"]) == (False, None, [], False)


def test_what_is_not_understood_is_a_warning(run_module, root, systemctl, capsys):
    (root / "releases/kimi/aaa/release.json").write_text("{")
    result = run_module(vllm_instance_info, instance="kimi", root=str(root))
    assert result["current"]["receipt"] is None and result["proven"] is False
    assert "no receipt" in str(result.get("warnings")) + capsys.readouterr().err


@pytest.mark.parametrize(("instance", "unit"), [("../x", None), ("kimi", "x"), ("kimi", "-H a.service")])
def test_bad_names_fail_with_one_sentence(run_module, tmp_path, instance, unit):
    result = run_module(vllm_instance_info, instance=instance, root=str(tmp_path), unit=unit)
    assert result["failed"] is True and ("instance" in result["msg"] or "full name" in result["msg"])
