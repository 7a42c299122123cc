from __future__ import annotations

import grp
import os
import pwd

import pytest
from ansible_collections.llmops.vllm.plugins.module_utils import prerequisites
from ansible_collections.llmops.vllm.plugins.module_utils.drift import Drift, Report
from ansible_collections.llmops.vllm.plugins.module_utils.drift_prerequisites import (
    compare_directories,
    compare_prerequisites,
)
from ansible_collections.llmops.vllm.plugins.module_utils.file_tree import Entry
from ansible_collections.llmops.vllm.plugins.module_utils.prerequisites import Account, Prerequisites
from ansible_collections.llmops.vllm.plugins.module_utils.systemd import CompletedRun

ME = pwd.getpwuid(os.getuid())
MINE = Account(ME.pw_name, grp.getgrgid(ME.pw_gid).gr_name, ME.pw_dir, ME.pw_shell)


def found(wanted, run=lambda _argv: pytest.fail("asked")):
    report = Report()
    compare_prerequisites(wanted, run, report)
    return report.drifts


def directories(*entries):
    report = Report()
    compare_directories(entries, report)
    return [(os.path.basename(drift.where), drift.what) for drift in report.drifts if drift.kind == "host"]


def test_a_host_that_has_all_of_it_has_no_drift():
    assert found(Prerequisites(["libc.so.6"], ["json"], [], MINE)) == []
    assert found(Prerequisites()) == []


def test_each_thing_that_is_missing_is_named(monkeypatch):
    monkeypatch.setattr(prerequisites.sys, "executable", "/another/python3")
    wanted = Prerequisites(["libno-such-thing.so.1"], ["no_such_module"], ["no_such_venv"])
    drifts = found(wanted, lambda _argv: CompletedRun(0, "no_such_venv\n", ""))
    names = ["libno-such-thing.so.1", "no_such_module", "no_such_venv"]
    assert drifts == [Drift("host", name, "is not found") for name in names]


def test_an_account_that_is_missing_or_another_one_is_told():
    gone = Account("no-such-user", MINE.group, MINE.home, MINE.shell)
    assert found(Prerequisites(account=gone)) == [
        Drift("host", "the account", "is another one: there is no user no-such-user")
    ]
    moved = Account(MINE.user, MINE.group, "/else", "/bin/else")
    assert [drift.what for drift in found(Prerequisites(account=moved))] == [
        f"is another one: the home of {ME.pw_name} is {ME.pw_dir}",
        f"is another one: the shell of {ME.pw_name} is {ME.pw_shell}",
    ]


def test_directories_as_they_were_made_have_no_drift(tmp_path):
    tmp_path.chmod(0o755)
    status = tmp_path.stat()
    entry = Entry(str(tmp_path), "directory", mode=0o755, uid=status.st_uid, gid=status.st_gid)
    assert directories(entry) == directories() == []


def test_each_directory_that_differs_is_named_with_what_differs(tmp_path):
    for name in ("open", "right"):
        (tmp_path / name).mkdir()
        (tmp_path / name).chmod(0o777 if name == "open" else 0o750)
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "right")
    names = ("gone", "open", "right", "file", "link", "gone/below", "file/below")
    entries = [Entry(str(tmp_path / name), "directory", mode=0o750) for name in names[:-1]]
    assert directories(*entries) == [
        ("gone", "is missing"),
        ("open", "has mode 0777, not 0750"),
        ("file", "is not a directory"),
        ("link", "is not a directory"),
        ("below", "is missing"),
    ]


def test_another_owner_and_group_are_told(tmp_path):
    status = tmp_path.stat()
    ((_name, said),) = directories(Entry(str(tmp_path), "directory", uid=status.st_uid + 1, gid=status.st_gid + 1))
    assert "has owner " in said and "has group " in said
