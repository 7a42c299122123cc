from __future__ import annotations

import os
import subprocess

import pytest
from ansible_collections.llmops.vllm.plugins.module_utils.snapshot_lock import is_dead
from ansible_collections.llmops.vllm.plugins.plugin_utils.run_identity import git_commit, run_identity, run_process


def git(folder, *arguments):
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.com"]
    done = subprocess.run(["git", "-C", folder, *identity, *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def checkout(tmp_path):
    git(tmp_path, "init", "--quiet")
    (tmp_path / "playbooks").mkdir()
    (tmp_path / "playbooks/deploy.yml").write_text("- hosts: all\n")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "--message=first")
    return tmp_path


def test_the_commit_is_that_of_the_checkout_and_changes_show(checkout):
    commit = git(checkout, "rev-parse", "HEAD")
    (checkout / "untracked").write_text("x")
    assert git_commit(str(checkout / "playbooks")) == commit
    (checkout / "playbooks/deploy.yml").write_text("- hosts: none\n")
    assert git_commit(str(checkout / "playbooks")) == f"{commit}+changes"


def test_outside_a_checkout_there_is_no_commit(tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert git_commit(str(tmp_path)) == ""
    monkeypatch.setenv("PATH", "/nonexistent")
    assert git_commit(str(tmp_path)) == ""


def test_the_run_is_the_process_that_started_this_one():
    process = run_process()
    assert process["pid"] == os.getppid() and is_dead(process) is False
    assert is_dead({**process, "start_time": 1}) is True


def test_another_process_is_another_run(tmp_path):
    process = run_process()
    mine, again = run_identity(str(tmp_path), process), run_identity(str(tmp_path), run_process())
    assert mine["id"] == again["id"] and len(mine["id"]) == 12 and "@" in mine["holder"]
    assert run_identity(str(tmp_path), {**process, "start_time": 1})["id"] != mine["id"]
