from __future__ import annotations

import grp
import os
import pwd
import sys

import pytest
from ansible_collections.llmops.vllm.plugins.module_utils.prerequisites import (
    Account,
    missing_libraries,
    missing_modules,
    missing_python3_modules,
    service_manager,
)
from ansible_collections.llmops.vllm.plugins.module_utils.systemd import CompletedRun, run_command

ME = pwd.getpwuid(os.getuid())
MINE = Account(ME.pw_name, grp.getgrgid(ME.pw_gid).gr_name, ME.pw_dir, ME.pw_shell)


def test_systemd_is_known_by_its_directory_and_others_by_their_name(tmp_path):
    assert service_manager(str(tmp_path)) == "not known"
    (tmp_path / "proc/1").mkdir(parents=True)
    (tmp_path / "proc/1/comm").write_text("tini\n")
    assert service_manager(str(tmp_path)) == "tini"
    (tmp_path / "run/systemd/system").mkdir(parents=True)
    assert service_manager(str(tmp_path)) == "systemd"


def test_only_what_is_not_found_is_missing():
    assert missing_libraries(["libc.so.6", "libno-such-thing.so.1"]) == ["libno-such-thing.so.1"]
    assert missing_modules(["json", "no_such_thing"]) == ["no_such_thing"]


def test_python3_is_asked_where_it_is_another_interpreter(tmp_path):
    names = ["json", "no_such_thing"]
    other = tmp_path / "python3"
    other.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    other.chmod(0o755)
    assert missing_python3_modules(names, run_command, lambda name: str(other)) == ["no_such_thing"]
    assert missing_python3_modules(names, lambda argv: pytest.fail("asked"), lambda name: sys.executable) == names[1:]


def test_without_a_python3_that_answers_all_of_it_is_missing():
    names = ["json", "venv"]
    assert missing_python3_modules(names, run_command, lambda name: None) == names
    failing = lambda argv: CompletedRun(1, "", "broken")  # noqa: E731 # a runner is called with one argument
    assert missing_python3_modules(names, failing, lambda name: "/other/python3") == names
    assert missing_python3_modules([], run_command, lambda name: None) == []


def test_an_account_that_is_as_asked_has_no_difference():
    assert MINE.differences() == []


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"group": "no-such-group"}, ["there is no group no-such-group"]),
        ({"user": "no-such-user"}, ["there is no user no-such-user"]),
        ({"home": "/else"}, [f"the home of {ME.pw_name} is {ME.pw_dir}"]),
        ({"shell": "/bin/else"}, [f"the shell of {ME.pw_name} is {ME.pw_shell}"]),
        (
            {"group": next(group.gr_name for group in grp.getgrall() if group.gr_gid != ME.pw_gid)},
            [f"the primary group of {ME.pw_name} is not "],
        ),
    ],
)
def test_each_difference_of_an_account_is_named(values, said):
    found = Account(**{**MINE.__dict__, **values}).differences()
    assert len(found) == len(said) and all(one.startswith(text) for one, text in zip(found, said))
