from __future__ import annotations

import os

import pytest
from ansible_collections.llmops.vllm.plugins.module_utils.compile_cache import (
    acting_as,
    cache_key,
    fault,
    plan_caches,
    read_gpus,
)
from ansible_collections.llmops.vllm.plugins.module_utils.errors import InvalidInputError

NAMES = ["vllm/torch_compile_cache", "triton"]
ONE, TWO, THREE = (cache_key(name, [], "") for name in ("one", "two", "three"))


class Caches:
    def __init__(self, path):
        self.path = path

    def plan(self, key, keep=2):
        return plan_caches(str(self.path), NAMES, key, os.getuid(), keep)

    def use(self, key, keep=2):
        plan = self.plan(key, keep)
        plan.apply()
        return plan

    def fill(self, text):
        for name in NAMES:
            (self.path / name).mkdir(parents=True, exist_ok=True)
            (self.path / name / "kernel.so").write_text(text)

    def content(self):
        found = [self.path / name / "kernel.so" for name in NAMES]
        return [path.read_text() if path.exists() else None for path in found]


@pytest.fixture
def caches(tmp_path):
    return Caches(tmp_path)


def test_caches_survive_a_release_of_the_same_runtime(caches):
    caches.use(ONE)
    caches.fill("one")
    plan = caches.use(ONE)
    assert not plan.changed and caches.content() == ["one", "one"]


def test_those_of_another_runtime_are_put_aside_and_come_back(caches):
    caches.use(ONE)
    caches.fill("one")
    plan = caches.use(TWO)
    assert plan.aside == tuple(NAMES) and caches.content() == [None, None]
    caches.fill("two")
    assert caches.use(ONE).back == tuple(NAMES) and caches.content() == ["one", "one"]
    assert caches.use(TWO).changed and caches.content() == ["two", "two"]


def test_what_nobody_knows_the_origin_of_is_dropped(caches):
    caches.fill("foreign")
    assert set(caches.use(ONE).dropped) == set(NAMES) and caches.content() == [None, None]


def test_a_damaged_cache_is_dropped_and_the_others_stay(caches):
    caches.use(ONE)
    caches.fill("one")
    (caches.path / "triton/kernel.so").write_text("")
    plan = caches.use(ONE)
    assert plan.dropped == {"triton": "kernel.so is empty"} and caches.content() == ["one", None]
    assert plan.differences().as_diff()["before"] == {"triton": "kernel.so is empty"}


def test_one_that_was_damaged_while_it_was_aside_does_not_come_back(caches):
    caches.use(ONE)
    caches.fill("one")
    caches.use(TWO)
    (caches.path / ".kept" / ONE / "triton/kernel.so").write_text("")
    assert caches.use(ONE).back == ("vllm/torch_compile_cache",)


def test_only_so_many_sets_are_kept(caches):
    for number, key in enumerate((ONE, TWO, THREE)):
        caches.use(key, keep=1)
        caches.fill(key)
        for kept in (caches.path / ".kept").glob("*"):
            os.utime(kept, (number, number))
    assert [path.name for path in (caches.path / ".kept").iterdir()] == [TWO]


def test_without_a_directory_nothing_happens(tmp_path):
    plan = plan_caches(str(tmp_path / "none"), NAMES, ONE, os.getuid(), 2)
    assert not plan.changed
    plan.apply()
    assert not (tmp_path / "none").exists()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can act as somebody else")
def test_it_acts_as_the_engines_user(tmp_path):
    groups = os.getgroups()
    with acting_as(12345, 12346):
        assert (os.geteuid(), os.getegid(), os.getgroups()) == (12345, 12346, [12346])
        with pytest.raises(PermissionError):
            (tmp_path / "x").mkdir()
    assert (os.geteuid(), os.getegid(), os.getgroups()) == (0, os.getgid(), groups)


def test_planning_changes_nothing(caches):
    caches.use(ONE)
    caches.fill("one")
    assert caches.plan(TWO).changed and caches.content() == ["one", "one"]


def test_foreign_things_are_named(tmp_path):
    cache = tmp_path / "cache"
    cache.mkdir()
    assert fault(str(cache), os.getuid()) == ""
    (cache / "notes.txt").write_text("")
    (cache / "__init__.py").write_text("")
    (cache / "inside").symlink_to("notes.txt")
    assert fault(str(cache), os.getuid()) == ""
    assert "somebody else" in fault(str(cache), os.getuid() + 1) or os.getuid() == 0
    (cache / "out").symlink_to("/etc/passwd")
    assert fault(str(cache), os.getuid()) == "out leads out of it"
    (cache / "out").unlink()
    (cache / "notes.txt").chmod(0o666)
    assert fault(str(cache), os.getuid()) == "notes.txt can be written by everybody"
    (cache / "notes.txt").unlink()
    os.mkfifo(cache / "pipe")
    assert "is no file" in fault(str(cache), os.getuid())
    assert "no directory" in fault(str(cache / "missing"), 0)


@pytest.mark.skipif(os.getuid() != 0, reason="needs another user's file")
def test_a_file_of_another_user_is_foreign(tmp_path):
    (tmp_path / "x.so").write_text("x")
    os.chown(tmp_path / "x.so", 12345, -1)
    assert fault(str(tmp_path), 0) == "x.so belongs to somebody else"
    assert fault(str(tmp_path), 12345) == ""


def test_the_key_is_runtime_gpus_and_driver(tmp_path):
    information = tmp_path / "driver/nvidia/gpus/0000:01:00.0"
    information.mkdir(parents=True)
    (information / "information").write_text("Model: \t\t NVIDIA H200\nIRQ: 1\n")
    (tmp_path / "driver/nvidia/version").write_text("NVRM version: 580.95.05\nGCC\n")
    assert read_gpus(str(tmp_path)) == (["NVIDIA H200"], "NVRM version: 580.95.05")
    assert read_gpus(str(tmp_path / "none")) == ([], "")
    keys = {
        cache_key("r", ["a"], "d"),
        cache_key("r", ["b"], "d"),
        cache_key("r", ["a"], "e"),
        cache_key("q", ["a"], "d"),
    }
    assert len(keys) == 4


@pytest.mark.parametrize("name", ["", "..", "../x", "/etc", ".kept", "a/b/c"])
def test_a_name_that_leads_elsewhere_is_refused(tmp_path, name):
    with pytest.raises(InvalidInputError):
        plan_caches(str(tmp_path), [name], ONE, 0, 1)
