from __future__ import annotations

import os
import subprocess
import sys

import pytest
from ansible_collections.llmops.vllm.plugins.modules import vllm_watch


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "llmops-vllm-watch")


def test_the_program_is_there_and_runs_without_ansible_and_whatever_the_environment(run_module, path, tmp_path):
    result = run_module(vllm_watch, path=path, interpreter=sys.executable)
    assert (result["changed"], result["interpreter"]) == (True, sys.executable)
    assert os.stat(path).st_mode & 0o7777 == 0o755
    (tmp_path / "json.py").write_text("raise SystemExit(9)")
    environ = {"PYTHONPATH": str(tmp_path), "PATH": "/nowhere"}
    argv = [path, "start", str(tmp_path / "none.json")]
    done = subprocess.run(argv, env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1 and "none.json cannot be read" in done.stderr, done.stderr


def test_a_second_run_changes_nothing(run_module, path):
    first = run_module(vllm_watch, path=path)
    before = os.stat(path)
    second = run_module(vllm_watch, path=path)
    assert (second["changed"], second["sha256"]) == (False, first["sha256"])
    assert os.stat(path).st_ino == before.st_ino


def test_another_program_is_replaced_as_a_whole(run_module, path):
    with open(path, "w", encoding="ascii") as stream:
        stream.write("old")
    with open(path, encoding="ascii") as running:
        assert run_module(vllm_watch, path=path)["changed"]
        assert running.read() == "old"
    assert os.stat(path).st_size > 10000


def test_check_mode_writes_nothing_and_the_diff_is_the_same(run_module, path):
    planned = run_module(vllm_watch, check=True, diff=True, path=path)
    assert planned["changed"] and not os.path.exists(path)
    done = run_module(vllm_watch, diff=True, path=path)
    assert planned["diff"] == done["diff"] and "llmops-vllm-watch" in str(done["diff"])


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"interpreter": "python3"}, "must be an absolute path without white space"),
        ({"interpreter": "/usr/bin/my python"}, "must be an absolute path without white space"),
        ({"path": "relative/watch"}, "path"),
    ],
)
def test_bad_input_is_one_sentence(run_module, path, params, words):
    result = run_module(vllm_watch, **{"path": path, **params})
    assert result["failed"] and words in result["msg"] and not os.path.exists(path)


def test_a_directory_that_is_not_there_fails(run_module, tmp_path):
    assert run_module(vllm_watch, path=str(tmp_path / "none/watch"))["failed"]


def test_the_hosts_own_python_is_named_without_its_version(monkeypatch):
    monkeypatch.setattr(sys, "executable", os.path.realpath(vllm_watch.SYSTEM_PYTHON))
    if os.path.exists(vllm_watch.SYSTEM_PYTHON):
        assert vllm_watch.find_interpreter(None) == vllm_watch.SYSTEM_PYTHON
    monkeypatch.setattr(sys, "executable", "/opt/python/bin/python3.12")
    assert vllm_watch.find_interpreter(None) == "/opt/python/bin/python3.12"
