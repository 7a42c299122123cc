"""Unit tests for plugins/module_utils/view.py and view_composition.py, on real directories."""

from __future__ import annotations

import os
import re
import socket
import stat
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.llmops.vllm.plugins.module_utils import view_composition
from ansible_collections.llmops.vllm.plugins.module_utils.errors import (
    InvalidInputError,
    LlmopsError,
    PreconditionError,
)
from ansible_collections.llmops.vllm.plugins.module_utils.left_aside import process_exists
from ansible_collections.llmops.vllm.plugins.module_utils.view import (
    Permissions,
    ViewPlan,
    plan_view,
    read_source,
    render_diff,
    snapshot_sources,
)
from ansible_collections.llmops.vllm.plugins.module_utils.view_composition import apply_view

CONFIG = b'{\n  "a": 1\n}\n'
PATCHED = {"config.json": b'{\n  "a": 2\n}\n'}


@pytest.fixture
def snapshot(tmp_path: Path) -> Path:
    root = tmp_path / "store" / "commit"
    (root / "tokenizer" / "deep").mkdir(parents=True)
    (root / "config.json").write_bytes(CONFIG)
    (root / "modeling.py").write_text("print(1)\n")
    (root / ".gitattributes").write_text("x\n")
    (root / "model-00001-of-00002.safetensors").write_bytes(b"\0" * 64)
    (root / "tokenizer" / "deep" / "adapter.safetensors").write_bytes(b"\1" * 64)
    (root / "tokenizer" / "vocab.bin").write_bytes(b"\xff\0")
    (root / "model.safetensors.index.json").write_text("{}")
    for hidden in (".llmops", "tokenizer/.cache"):
        (root / hidden).mkdir()
        (root / hidden / "manifest.json").write_text("{}")
    return root


@pytest.fixture
def view(tmp_path: Path) -> Path:
    (tmp_path / "release").mkdir()
    return tmp_path / "release" / "model"


def planned(
    snapshot: Path, view: Path, contents: Mapping[str, bytes] = PATCHED, permissions: Permissions | None = None
) -> ViewPlan:
    return plan_view(str(snapshot), str(view), snapshot_sources(str(snapshot)), contents, permissions or Permissions())


def compose(snapshot: Path, view: Path, **more: Any) -> ViewPlan:
    plan = planned(snapshot, view, **more)
    apply_view(plan, os.getpid(), process_exists)
    return plan


def fingerprint(root: Path) -> list[tuple[Any, ...]]:
    found = []
    for path in sorted([root, *root.rglob("*")]):
        status = path.lstat()
        content = path.read_bytes() if stat.S_ISREG(status.st_mode) else b""
        found.append((str(path), status.st_ino, status.st_mode, status.st_mtime_ns, status.st_ctime_ns, content))
    return found


def test_shards_become_absolute_links_and_everything_else_a_real_copy(snapshot: Path, view: Path) -> None:
    compose(snapshot, view)
    kinds = {
        str(path.relative_to(view)): "link" if path.is_symlink() else "directory" if path.is_dir() else "file"
        for path in view.rglob("*")
    }
    assert kinds == {
        ".gitattributes": "file",
        "config.json": "file",
        "model-00001-of-00002.safetensors": "link",
        "model.safetensors.index.json": "file",
        "modeling.py": "file",
        "tokenizer": "directory",
        "tokenizer/deep": "directory",
        "tokenizer/deep/adapter.safetensors": "link",
        "tokenizer/vocab.bin": "file",
    }
    for name in ("model-00001-of-00002.safetensors", "tokenizer/deep/adapter.safetensors"):
        assert os.readlink(view / name) == str(snapshot / name)
    assert (view / "config.json").read_bytes() == PATCHED["config.json"]
    assert (view / "modeling.py").read_text() == "print(1)\n"
    assert (view / "modeling.py").stat().st_nlink == 1
    assert os.listdir(view.parent) == ["model"]


def test_the_snapshot_is_never_written(snapshot: Path, view: Path) -> None:
    before = fingerprint(snapshot)
    compose(snapshot, view)
    (view / "config.json").write_text("edited")
    compose(snapshot, view)
    assert fingerprint(snapshot) == before


def test_a_correct_view_is_left_untouched(snapshot: Path, view: Path) -> None:
    first = compose(snapshot, view)
    before = fingerprint(view)
    second = compose(snapshot, view)
    assert (first.changed, second.changed) == (True, False)
    assert fingerprint(view) == before
    assert first.digest == second.digest
    assert render_diff(second) == []


@pytest.mark.parametrize(
    "spoil",
    [
        lambda view: (view / "config.json").write_text("{}"),
        lambda view: (view / "modeling.py").unlink(),
        lambda view: (view / "extra.json").write_text("{}"),
        lambda view: (view / "modeling.py").chmod(0o600),
        lambda view: (view / "tokenizer").chmod(0o700),
        lambda view: view.chmod(0o700),
        lambda view: ((view / "modeling.py").unlink(), (view / "modeling.py").symlink_to("/etc/passwd")),
        lambda view: (
            (view / "model-00001-of-00002.safetensors").unlink(),
            (view / "model-00001-of-00002.safetensors").symlink_to("elsewhere"),
        ),
        lambda view: (view / ".llmops").mkdir(),
        lambda view: os.mkfifo(view / "pipe"),
    ],
    ids=["edited", "lost", "added", "mode", "directory mode", "root mode", "linked", "relinked", "hidden", "pipe"],
)
def test_a_view_that_was_tampered_with_is_replaced_and_the_diff_says_so(spoil: Any, snapshot: Path, view: Path) -> None:
    compose(snapshot, view)
    spoil(view)
    plan = planned(snapshot, view)
    assert plan.changed
    assert render_diff(plan)
    apply_view(plan, os.getpid(), process_exists)
    assert not planned(snapshot, view).changed
    assert os.listdir(view.parent) == ["model"]


def test_the_digest_follows_names_kinds_contents_and_targets_only(snapshot: Path, view: Path, tmp_path: Path) -> None:
    plan = compose(snapshot, view)
    assert re.fullmatch(r"[0-9a-f]{64}", plan.digest)
    assert planned(snapshot, tmp_path / "other", permissions=Permissions(0o600, 0o700)).digest == plan.digest
    assert planned(snapshot, view, contents={}).digest != plan.digest
    (snapshot / "new.txt").write_text("")
    assert planned(snapshot, view).digest != plan.digest


def test_modes_and_owners_are_set_on_everything(snapshot: Path, view: Path) -> None:
    uid, gid = (4242, 4343) if os.geteuid() == 0 else (os.geteuid(), os.getegid())
    permissions = Permissions(0o440, 0o550, uid, gid)
    compose(snapshot, view, permissions=permissions)
    for path in [view, *view.rglob("*")]:
        status = path.lstat()
        assert (status.st_uid, status.st_gid) == (uid, gid)
        if not path.is_symlink():
            assert stat.S_IMODE(status.st_mode) == (0o550 if path.is_dir() else 0o440)
    assert not planned(snapshot, view, permissions=permissions).changed
    compose(snapshot, view)
    assert stat.S_IMODE((view / "config.json").stat().st_mode) == 0o644


def test_a_new_view_shows_its_patched_files_against_the_snapshot(snapshot: Path, view: Path) -> None:
    summary, text = render_diff(planned(snapshot, view))
    assert summary["before"] == ""
    assert summary["after"] == f"view of {snapshot}: 2 links, 5 copies, 1 of them patched\n"
    assert text == {
        "before_header": f"{snapshot}/config.json",
        "after_header": f"{view}/config.json",
        "before": CONFIG.decode(),
        "after": PATCHED["config.json"].decode(),
    }


def test_a_present_view_shows_only_what_this_run_changes(snapshot: Path, view: Path) -> None:
    compose(snapshot, view)
    (view / "config.json").write_text("edited\n")
    (view / "tokenizer" / "vocab.bin").write_bytes(b"\xff\1")
    (view / "modeling.py").chmod(0o600)
    (view / "extra.json").write_text("{}")
    listing, text = render_diff(planned(snapshot, view))
    assert [line.split()[0] for line in listing["before"].splitlines()] == [
        "extra.json",
        "modeling.py",
        "tokenizer/vocab.bin",
    ]
    assert [line.split()[:3] for line in listing["after"].splitlines()] == [
        ["modeling.py", "file", "0644"],
        ["tokenizer/vocab.bin", "file", "0644"],
    ]
    assert (text["before_header"], text["before"]) == (f"{view}/config.json", "edited\n")
    assert text["after"] == PATCHED["config.json"].decode()


def test_links_within_the_snapshot_are_followed_to_the_file(snapshot: Path, view: Path) -> None:
    (snapshot / ".llmops" / "blob").write_bytes(b"\2")
    (snapshot / "linked.safetensors").symlink_to(".llmops/blob")
    (snapshot / "copied.py").symlink_to("modeling.py")
    compose(snapshot, view)
    assert os.readlink(view / "linked.safetensors") == str(snapshot / ".llmops" / "blob")
    assert not (view / "copied.py").is_symlink()
    assert (view / "copied.py").read_text() == "print(1)\n"


@pytest.mark.parametrize(
    "target", ["../outside", "/etc/passwd", "../commit-other/x", "missing", "tokenizer", "loop.py"]
)
def test_links_that_leave_the_snapshot_or_lead_to_no_file_are_refused(target: str, snapshot: Path) -> None:
    (snapshot.parent / "outside").write_text("secret")
    (snapshot.parent / "commit-other").mkdir()
    (snapshot.parent / "commit-other" / "x").write_text("secret")
    (snapshot / "loop.py").symlink_to(target)
    with pytest.raises(PreconditionError, match=r"loop\.py is a link "):
        snapshot_sources(str(snapshot))


def test_pipes_and_sockets_in_the_snapshot_are_refused(snapshot: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(snapshot)  # the path of a socket is short
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("s")
        with pytest.raises(PreconditionError, match="neither a file, a directory nor a link"):
            snapshot_sources(str(snapshot))
    os.unlink("s")
    os.mkfifo("p")
    with pytest.raises(PreconditionError, match="neither a file, a directory nor a link"):
        snapshot_sources(str(snapshot))


def test_what_a_dot_directory_holds_does_not_matter(snapshot: Path) -> None:
    (snapshot / ".llmops" / "link").symlink_to("/etc/passwd")
    os.mkfifo(snapshot / ".llmops" / "pipe")
    assert not [path for path in snapshot_sources(str(snapshot)) if ".llmops" in path or ".cache" in path]


def test_a_path_that_leaves_the_snapshot_names_none_of_its_files(snapshot: Path) -> None:
    (snapshot.parent / "outside").write_text("secret")
    sources = snapshot_sources(str(snapshot))
    for path in (
        "../outside",
        str(snapshot.parent / "outside"),
        "tokenizer/../config.json",
        "tokenizer",
        "",
        ".llmops/x",
    ):
        assert read_source(sources, path) is None
    assert not [path for path in sources if path.startswith("/") or ".." in path.split("/")]
    assert read_source(sources, "config.json") == CONFIG
    with pytest.raises(InvalidInputError, match="links to this file"):
        read_source(sources, "model-00001-of-00002.safetensors")


def test_a_missing_snapshot_is_named(tmp_path: Path) -> None:
    with pytest.raises(PreconditionError, match=r"/absent is not a directory on this host; download the model"):
        snapshot_sources(str(tmp_path / "absent"))


def test_the_view_must_not_touch_the_snapshot(snapshot: Path, tmp_path: Path) -> None:
    for inside in (snapshot, snapshot / "model", snapshot / "tokenizer"):
        with pytest.raises(InvalidInputError, match="lies in the snapshot"):
            planned(snapshot, inside)
    (tmp_path / "alias").symlink_to(snapshot)
    with pytest.raises(InvalidInputError, match="lies in the snapshot"):
        planned(snapshot, tmp_path / "alias" / "model")
    with pytest.raises(InvalidInputError, match="would replace the directory that holds the snapshot"):
        planned(snapshot, snapshot.parent)


def test_what_is_not_a_view_is_not_replaced(snapshot: Path, view: Path) -> None:
    view.mkdir()
    (view / "thesis.txt").write_text("years of work")
    with pytest.raises(PreconditionError, match="holds other things than a view"):
        planned(snapshot, view)
    (view / "config.json").write_text("{}")
    (view / "weights.safetensors").write_bytes(b"real")
    with pytest.raises(PreconditionError, match=r"weights\.safetensors is a real file"):
        planned(snapshot, view)
    assert (view / "thesis.txt").exists()


@pytest.mark.parametrize("make", [lambda view: view.write_text("x"), lambda view: view.symlink_to("/tmp")])
def test_a_file_or_link_in_the_place_of_the_view_is_refused(make: Any, snapshot: Path, view: Path) -> None:
    make(view)
    with pytest.raises(InvalidInputError, match="exists and is not a directory"):
        planned(snapshot, view)


def test_an_empty_directory_becomes_the_view(snapshot: Path, view: Path) -> None:
    view.mkdir()
    assert compose(snapshot, view).changed
    assert (view / "config.json").exists()


def test_a_missing_parent_directory_is_named(snapshot: Path, tmp_path: Path) -> None:
    plan = planned(snapshot, tmp_path / "absent" / "model")
    with pytest.raises(PreconditionError, match="absent does not exist; create it"):
        apply_view(plan, os.getpid(), process_exists)


def test_a_snapshot_that_changes_meanwhile_leaves_nothing_behind(snapshot: Path, view: Path) -> None:
    plan = planned(snapshot, view)
    (snapshot / "modeling.py").write_text("print(2)\n")
    with pytest.raises(PreconditionError, match=r"modeling\.py changed while the view was composed"):
        apply_view(plan, os.getpid(), process_exists)
    assert os.listdir(view.parent) == []


def test_a_failed_swap_puts_the_former_view_back(snapshot: Path, view: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compose(snapshot, view, contents={})
    before = fingerprint(view)
    rename = os.rename

    def failing(source: str, target: str) -> None:
        if ".partial-" in source:
            raise OSError(28, "No space left on device", target)
        rename(source, target)

    monkeypatch.setattr(view_composition.os, "rename", failing)
    with pytest.raises(LlmopsError, match=r"Cannot compose the view .*: No space left on device"):
        compose(snapshot, view)
    assert [line[:1] + line[2:4] + line[5:] for line in fingerprint(view)] == [
        line[:1] + line[2:4] + line[5:] for line in before
    ]
    assert os.listdir(view.parent) == ["model"]


def test_what_a_dead_process_left_aside_is_removed_and_that_of_a_live_one_is_not(snapshot: Path, view: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    child.wait()
    (view.parent / f".model.partial-{child.pid}").mkdir()
    (view.parent / f".model.replaced-{child.pid}").mkdir(0o500)
    (view.parent / f".model.partial-{os.getppid()}").mkdir()
    (view.parent / f".model.partial-{os.getpid()}").mkdir()
    (view.parent / ".model.partial-x").mkdir()
    compose(snapshot, view)
    assert sorted(os.listdir(view.parent)) == [f".model.partial-{os.getppid()}", ".model.partial-x", "model"]


def test_replacing_a_view_does_not_follow_its_links(snapshot: Path, view: Path, tmp_path: Path) -> None:
    compose(snapshot, view)
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").write_text("x")
    (view / "link").symlink_to(tmp_path / "precious")
    compose(snapshot, view)
    assert not (view / "link").exists()
    assert (tmp_path / "precious" / "file").exists()
