"""Unit tests for plugins/module_utils/file_tree.py and file_tree_apply.py."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.llmops.vllm.plugins.module_utils.errors import (
    InvalidInputError,
    LlmopsError,
    PreconditionError,
)
from ansible_collections.llmops.vllm.plugins.module_utils.file_tree import Entry, check_path, plan_tree, render_diff
from ansible_collections.llmops.vllm.plugins.module_utils.file_tree_apply import apply_tree

PID = 4242
ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")


def directory(path: Path, **changes: Any) -> Entry:
    return Entry(**{"path": str(path), "state": "directory", "mode": 0o755, **changes})


def file(path: Path, content: bytes = b"new\n", **changes: Any) -> Entry:
    return Entry(**{"path": str(path), "state": "file", "content": content, "mode": 0o644, **changes})


def link(path: Path, target: str = "/new", **changes: Any) -> Entry:
    return Entry(**{"path": str(path), "state": "link", "target": target, **changes})


def make(*entries: Entry) -> list[str]:
    plan = plan_tree(entries)
    apply_tree(plan, PID, lambda _pid: False)
    return plan.changed_paths


def test_paths_are_made_plain() -> None:
    assert check_path("path", "//srv//llm/./x/") == "/srv/llm/x"
    for wrong in ("srv", "", "/", "//", "/srv/..", "/a/../b", "/a\0b"):
        with pytest.raises(InvalidInputError):
            check_path("path", wrong)


def put(path: Path, kind: str) -> None:
    if kind == "directory":
        path.mkdir()
    elif kind == "file":
        path.write_text("old\n")
    elif kind == "fifo":
        os.mkfifo(path)
    else:
        path.symlink_to("/tmp" if kind == "link to a directory" else "/etc/hostname")


@pytest.mark.parametrize(
    ("wanted", "present"),
    [
        ("directory", "file"),
        ("directory", "link to a directory"),
        ("file", "directory"),
        ("file", "link to a file"),
        ("file", "fifo"),
        ("link", "directory"),
        ("link", "file"),
    ],
)
def test_another_kind_in_the_way_is_refused_before_anything_is_written(
    tmp_path: Path, wanted: str, present: str
) -> None:
    put(tmp_path / "x", present)
    before = os.lstat(tmp_path / "x")
    entry = {"directory": directory, "file": file, "link": link}[wanted](tmp_path / "x")
    with pytest.raises(PreconditionError, match=rf"{tmp_path}/x shall be .* but is .*; nothing was changed\.$"):
        plan_tree([directory(tmp_path / "first"), entry])
    assert os.listdir(tmp_path) == ["x"]
    assert os.lstat(tmp_path / "x") == before


def test_a_parent_has_to_exist_or_to_be_an_earlier_entry(tmp_path: Path) -> None:
    parent, child = tmp_path / "a", tmp_path / "a" / "b"
    for entries in ([directory(child)], [directory(child), directory(parent)]):
        with pytest.raises(PreconditionError, match=f"The directory {parent}, in which {child} shall be"):
            plan_tree(entries)
    assert make(directory(parent), directory(child)) == [str(parent), str(child)]


def test_a_prediction_takes_a_missing_parent_for_granted_and_says_so_once(tmp_path: Path) -> None:
    plan = plan_tree([file(tmp_path / "a" / "x"), file(tmp_path / "a" / "y")], predict=True)
    assert len(plan.changed_paths) == 2
    assert plan.warnings == [f"The directory {tmp_path}/a, in which {tmp_path}/a/x shall be, does not exist yet."]


def test_a_parent_that_is_no_directory_is_refused_in_a_prediction_too(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("")
    (tmp_path / "b").symlink_to("/nowhere")
    for name in "ab":
        with pytest.raises(PreconditionError, match="is not a directory"):
            plan_tree([file(tmp_path / name / "x")], predict=True)


def test_entries_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="declared twice"):
        plan_tree([directory(tmp_path / "a"), file(tmp_path / "a")])
    with pytest.raises(InvalidInputError, match="which an earlier entry makes a symbolic link"):
        plan_tree([link(tmp_path / "a", "/tmp"), file(tmp_path / "a" / "b" / "c")])


def test_a_link_above_the_last_component_is_the_operators_choice(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    make(file(tmp_path / "link" / "x"))
    assert (tmp_path / "real" / "x").read_text() == "new\n"


def test_a_file_is_replaced_not_rewritten_and_a_wrong_mode_alone_is_corrected_in_place(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_text("old\n")
    path.chmod(0o600)
    with path.open() as reader:
        assert make(file(path)) == [str(path)]
        assert reader.read() == "old\n"
    inode = path.stat().st_ino
    path.chmod(0o666)
    assert make(file(path)) == [str(path)]
    assert (path.stat().st_ino, stat.S_IMODE(path.stat().st_mode)) == (inode, 0o644)
    assert make(file(path)) == []


@pytest.mark.parametrize("size", [0, 1024 * 1024 + 1])
def test_content_of_any_size_is_compared(tmp_path: Path, size: int) -> None:
    path = tmp_path / "x"
    assert make(file(path, b"a" * size)) == [str(path)]
    assert make(file(path, b"a" * size)) == []
    assert make(file(path, b"b" * (size + 1))) == [str(path)]
    assert path.read_bytes() == b"b" * (size + 1)


def test_a_link_with_another_target_is_replaced(tmp_path: Path) -> None:
    assert make(link(tmp_path / "x")) == [str(tmp_path / "x")]
    assert make(link(tmp_path / "x")) == []
    assert make(link(tmp_path / "x", "/other")) == [str(tmp_path / "x")]
    assert os.readlink(tmp_path / "x") == "/other"
    assert os.listdir(tmp_path) == ["x"]


@ROOT_ONLY
def test_owners_are_corrected_and_a_link_is_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("")
    entries = [
        directory(tmp_path / "d", uid=2, gid=3),
        file(tmp_path / "d" / "f", uid=2, gid=3),
        link(tmp_path / "d" / "l", str(target), uid=2, gid=3),
    ]
    make(*entries)
    assert make(*entries) == []
    for entry in entries:
        os.chown(entry.path, 0, 0, follow_symlinks=False)
    plan = plan_tree(entries)
    assert render_diff(plan)[0]["before"][entries[0].path] == {"owner": "root", "group": "root"}
    assert make(*entries) == [entry.path for entry in entries]
    assert {(os.lstat(entry.path).st_uid, os.lstat(entry.path).st_gid) for entry in entries} == {(2, 3)}
    assert target.stat().st_uid == 0


@ROOT_ONLY
def test_a_replaced_file_keeps_the_owner_that_its_entry_does_not_declare(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("old\n")
    os.chown(tmp_path / "x", 2, 3)
    make(file(tmp_path / "x", gid=4))
    assert ((tmp_path / "x").stat().st_uid, (tmp_path / "x").stat().st_gid) == (2, 4)


@pytest.mark.parametrize("interruption", [KeyboardInterrupt(), OSError(28, "No space left on device")])
def test_after_an_interruption_every_path_is_old_or_new_and_a_further_run_does_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, interruption: BaseException
) -> None:
    entries = [directory(tmp_path / "d"), *(file(tmp_path / "d" / name) for name in ("one", "two", "three"))]
    make(entries[0])
    (tmp_path / "d" / "two").write_text("old\n")
    replace = os.replace

    def interrupted(old: str, new: str, **directories: int) -> None:
        if new == "two":
            raise interruption
        replace(old, new, **directories)

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", interrupted)
        with pytest.raises((KeyboardInterrupt, LlmopsError)) as raised:
            make(*entries)
    if isinstance(interruption, OSError):
        assert str(raised.value) == f"Cannot make {tmp_path}/d/two as declared: No space left on device."
    assert {path.name: path.read_text() for path in (tmp_path / "d").iterdir()} == {"one": "new\n", "two": "old\n"}
    assert make(*entries) == [str(tmp_path / "d" / name) for name in ("two", "three")]


def test_what_a_killed_process_left_aside_is_removed_and_that_of_a_living_one_is_not(tmp_path: Path) -> None:
    for pid in (PID, 7, 8):
        (tmp_path / f".x.partial-{pid}").write_text("ha")
    (tmp_path / ".x.partial-old").write_text("somebody's")
    apply_tree(plan_tree([file(tmp_path / "x")]), PID, lambda pid: pid == 8)
    assert sorted(os.listdir(tmp_path)) == [".x.partial-8", ".x.partial-old", "x"]
    assert (tmp_path / "x").read_text() == "new\n"


def test_a_link_put_in_the_way_after_the_comparison_is_not_followed(tmp_path: Path) -> None:
    outside, inside = tmp_path / "outside", tmp_path / "d"
    outside.mkdir(mode=0o700)
    inside.mkdir(mode=0o700)
    attributes, below = plan_tree([directory(inside)]), plan_tree([directory(inside), file(inside / "x")])
    inside.rmdir()
    inside.symlink_to(outside)
    for plan in (attributes, below):
        with pytest.raises(LlmopsError):
            apply_tree(plan, PID, lambda _pid: False)
    assert stat.S_IMODE(outside.stat().st_mode) == 0o700 and os.listdir(outside) == []


def test_a_thing_replaced_by_another_kind_after_the_comparison_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("new\n")
    plan = plan_tree([file(tmp_path / "x", mode=0o600)])
    (tmp_path / "x").unlink()
    (tmp_path / "x").mkdir()
    with pytest.raises(PreconditionError, match="replaced by something else meanwhile"):
        apply_tree(plan, PID, lambda _pid: False)
