"""Unit tests for plugins/modules/file_tree.py."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.llmops.vllm.plugins.modules import file_tree


@pytest.fixture
def entries(tmp_path: Path) -> list[dict[str, Any]]:
    release = tmp_path / "release"
    return [
        {"path": str(release), "state": "directory", "mode": "0750"},
        {"path": str(release / "env"), "state": "file", "content": 'A="é"\n'},
        {"path": str(release / "unit"), "state": "file", "content": "", "mode": "0600"},
        {"path": str(release / "runtime"), "state": "link", "target": "/nowhere/yet"},
    ]


def warnings_of(result: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> str:
    return " ".join(str(warning) for warning in result.get("warnings", [])) + capsys.readouterr().err


def snapshot_of(root: Path) -> dict[str, Any]:
    return {str(path): (os.lstat(path).st_mode, os.lstat(path).st_ino) for path in root.rglob("*")}


def test_first_run_makes_everything_second_run_changes_nothing(
    run_module: Any, entries: list[dict[str, Any]], tmp_path: Path
) -> None:
    first = run_module(file_tree, entries=entries, file_mode="0640")
    assert (first["changed"], first["changed_paths"]) == (True, [entry["path"] for entry in entries])
    release = tmp_path / "release"
    assert {path.name: oct(stat.S_IMODE(path.lstat().st_mode)) for path in [release, *release.glob("[eu]n*")]} == {
        "release": "0o750",
        "env": "0o640",
        "unit": "0o600",
    }
    assert (release / "env").read_text(encoding="utf-8") == 'A="é"\n'
    assert os.readlink(release / "runtime") == "/nowhere/yet"
    assert sorted(os.listdir(release)) == ["env", "runtime", "unit"]
    before = snapshot_of(tmp_path)
    second = run_module(file_tree, diff=True, entries=entries, file_mode="0640")
    assert (second["changed"], second["changed_paths"]) == (False, [])
    assert "diff" not in second
    assert snapshot_of(tmp_path) == before


def test_check_mode_predicts_the_same_and_writes_nothing(
    run_module: Any, entries: list[dict[str, Any]], tmp_path: Path
) -> None:
    predicted = run_module(file_tree, check=True, diff=True, entries=entries)
    assert predicted["changed"] and os.listdir(tmp_path) == []
    done = run_module(file_tree, diff=True, entries=entries)
    for key in ("changed", "changed_paths", "diff"):
        assert done[key] == predicted[key]
    assert not run_module(file_tree, check=True, entries=entries)["changed"]


def test_the_diff_is_a_listing_and_the_text_of_each_file(
    run_module: Any, entries: list[dict[str, Any]], tmp_path: Path
) -> None:
    run_module(file_tree, entries=entries)
    release = tmp_path / "release"
    release.chmod(0o700)
    entries[1]["content"] = "B=2\n"
    entries[3]["target"] = "/elsewhere"
    result = run_module(file_tree, diff=True, entries=entries)
    assert result["changed_paths"] == [str(release), str(release / "env"), str(release / "runtime")]
    listing, text = result["diff"]
    assert listing["before"] == {str(release): {"mode": "0700"}, str(release / "runtime"): {"target": "/nowhere/yet"}}
    assert listing["after"] == {str(release): {"mode": "0750"}, str(release / "runtime"): {"target": "/elsewhere"}}
    header = str(release / "env")
    assert text == {"before_header": header, "after_header": header, "before": 'A="é"\n', "after": "B=2\n"}
    assert os.readlink(release / "runtime") == "/elsewhere"


def test_content_that_is_no_text_is_shown_as_its_size(run_module: Any, tmp_path: Path) -> None:
    entry = {"path": str(tmp_path / "file"), "state": "file", "content": "text\n"}
    for content in (b"\xff\xfe", b"a\0", b"x" * (1024 * 1024 + 1)):
        (tmp_path / "file").write_bytes(content)
        (tmp_path / "file").chmod(0o644)
        (text,) = run_module(file_tree, diff=True, entries=[entry])["diff"]
        assert text["before"] == f"({len(content)} bytes, not shown)\n"
        assert (tmp_path / "file").read_text() == "text\n"


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"path": "relative"}, "path must be an absolute path, not 'relative'"),
        ({"path": "/"}, "must be an absolute path below /"),
        ({"path": "/srv/../etc/x"}, "without '..'"),
        ({"content": None}, "is a file and needs content"),
        ({"target": "/x"}, "is a file and cannot have target"),
        ({"state": "directory"}, "is a directory and cannot have content"),
        ({"state": "link", "content": None}, "is a link and needs target"),
        ({"state": "link", "content": None, "target": "x"}, "must be an absolute path, not 'x'"),
        ({"state": "link", "content": None, "target": "/x", "mode": "0644"}, "is a link and cannot have mode"),
        ({"mode": "420"}, "must be a quoted octal string"),
        ({"mode": "0044"}, "lets the owner in"),
        ({"owner": "no-such-user"}, "owner 'no-such-user' is no user of this host"),
        ({"group": "no-such-group"}, "group 'no-such-group' is no group of this host"),
    ],
)
def test_bad_input_is_one_sentence_and_nothing_is_written(
    run_module: Any, tmp_path: Path, change: dict[str, Any], sentence: str
) -> None:
    good = {"path": str(tmp_path / "first"), "state": "directory"}
    bad = {"path": str(tmp_path / "file"), "state": "file", "content": "x", **change}
    result = run_module(file_tree, entries=[good, bad])
    assert result["failed"] and sentence in result["msg"]
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("option", ["file_mode", "directory_mode"])
def test_a_default_mode_is_checked_too(run_module: Any, entries: list[dict[str, Any]], option: str) -> None:
    entries[0].pop("mode")
    assert f"{option} must be a quoted octal string" in run_module(file_tree, entries=entries, **{option: "640"})["msg"]


def test_an_unknown_owner_and_a_missing_parent_are_warnings_in_check_mode(
    run_module: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    entries = [{"path": str(tmp_path / "later" / name), "state": "directory"} for name in "ab"]
    result = run_module(file_tree, check=True, entries=entries, owner="no-such-user", group="no-such-group")
    assert not result.get("failed") and result["changed"]
    warned = warnings_of(result, capsys)
    for part in ("no-such-user", "no-such-group", f"{tmp_path / 'later'}, in which"):
        assert warned.count(part) == 1
    failed = run_module(file_tree, entries=entries)
    assert failed["failed"] and f"The directory {tmp_path / 'later'}, in which" in failed["msg"]


def test_an_entry_can_have_another_owner_than_the_rest(run_module: Any, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root gives files away")
    entries = [
        {"path": str(tmp_path / "dir"), "state": "directory"},
        {"path": str(tmp_path / "dir" / "file"), "state": "file", "content": "", "owner": "0", "group": "1"},
        {"path": str(tmp_path / "dir" / "link"), "state": "link", "target": "/x"},
    ]
    run_module(file_tree, entries=entries, owner="2", group="3")
    owners = [(os.lstat(entry["path"]).st_uid, os.lstat(entry["path"]).st_gid) for entry in entries]
    assert owners == [(2, 3), (0, 1), (2, 3)]
    assert not run_module(file_tree, entries=entries, owner="2", group="3")["changed"]


def test_a_directory_that_is_a_link_to_one_is_followed_only_when_asked(run_module: Any, tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir(mode=0o700)
    (tmp_path / "root").symlink_to(tmp_path / "disk")
    entry = {"path": str(tmp_path / "root"), "state": "directory", "mode": "0755"}
    assert "is a symbolic link" in run_module(file_tree, entries=[entry])["msg"]
    below = {"path": str(tmp_path / "root/store"), "state": "directory"}
    result = run_module(file_tree, entries=[{**entry, "follow": True}, below])
    assert result["changed_paths"] == [str(tmp_path / "disk"), str(tmp_path / "root/store")]
    assert stat.S_IMODE((tmp_path / "disk").stat().st_mode) == 0o755 and (tmp_path / "root").is_symlink()
    assert run_module(file_tree, entries=[{**entry, "follow": True}, below])["changed"] is False
    file = {"path": str(tmp_path / "file"), "state": "file", "content": "", "follow": True}
    assert "cannot have follow" in run_module(file_tree, entries=[file])["msg"]
