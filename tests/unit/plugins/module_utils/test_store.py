from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible_collections.llmops.vllm.plugins.module_utils.errors import InvalidInputError, PreconditionError
from ansible_collections.llmops.vllm.plugins.module_utils.snapshot_removal import plan_removal, remove, users_of
from ansible_collections.llmops.vllm.plugins.module_utils.store import (
    Attributes,
    Snapshot,
    check_room,
    check_store,
    make_directories,
    opened_parent,
    set_attributes,
    write_atomically,
)

COMMIT = "0123456789abcdef0123456789abcdef01234567"
only_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


@pytest.fixture
def snapshot(tmp_path: Path) -> Snapshot:
    result = Snapshot(str(tmp_path / "store"), "acme/m", COMMIT)
    make_directories(os.path.join(result.path, "sub"), Attributes())
    Path(result.path, "sub", "a.safetensors").write_bytes(bytes(1000))
    return result


def test_no_step_below_the_store_follows_a_link(snapshot: Snapshot, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "a.safetensors").write_text("precious")
    (outside / "a.safetensors").chmod(0o600)
    Path(snapshot.path, "sub").rename(Path(snapshot.path, "moved"))
    Path(snapshot.path, "sub").symlink_to(outside)
    with pytest.raises(OSError, match=r"Not a directory|symbolic link"), opened_parent(snapshot, "sub/a.safetensors"):
        pass
    with pytest.raises(OSError, match=r"Not a directory|symbolic link"):
        set_attributes(snapshot, "sub/a.safetensors", Attributes())
    assert os.stat(outside / "a.safetensors").st_mode & 0o777 == 0o600


@only_root
def test_owner_group_and_mode_are_compared_and_given(snapshot: Snapshot) -> None:
    wanted = Attributes(0o640, 0o750, uid=65534, gid=65534)
    for path, mode in (("sub/a.safetensors", "0640"), ("sub", "0750"), (".", "0750")):
        differences = wanted.differences(os.lstat(snapshot.target(path)))
        assert differences["owner"] == ("0", "65534") and differences["mode"][1] == mode
        assert wanted.differences(set_attributes(snapshot, path, wanted)) == {}


def test_an_atomic_write_replaces_and_leaves_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "m.json.new").write_text("left by a killed run")
    write_atomically(str(tmp_path / "m.json"), "one", Attributes())
    write_atomically(str(tmp_path / "m.json"), "two", Attributes(file_mode=0o600))
    assert [path.name for path in tmp_path.iterdir()] == ["m.json"]
    assert (tmp_path / "m.json").read_text() == "two"
    assert os.stat(tmp_path / "m.json").st_mode & 0o777 == 0o600


def disk(**changes: int) -> Any:
    values = {"f_bavail": 100, "f_frsize": 4096, "f_files": 1000, "f_favail": 10, **changes}
    return lambda _path: SimpleNamespace(**values)


def test_room_is_needed_for_bytes_reserve_and_inodes(tmp_path: Path) -> None:
    path = str(tmp_path / "not" / "yet")
    check_room(path, needed_bytes=400_000, needed_inodes=10, reserve_bytes=9_600, statvfs=disk())
    with pytest.raises(
        PreconditionError, match=rf"400000 bytes are missing .* {tmp_path} has 409600 .* free 1 bytes more"
    ):
        check_room(path, needed_bytes=400_000, needed_inodes=10, reserve_bytes=9_601, statvfs=disk())
    with pytest.raises(PreconditionError, match=r"11 new files and directories .* 10 inodes free"):
        check_room(path, needed_bytes=1, needed_inodes=11, reserve_bytes=0, statvfs=disk())
    check_room(path, needed_bytes=1, needed_inodes=11, reserve_bytes=0, statvfs=disk(f_files=0, f_favail=0))


@pytest.mark.parametrize("path", ["relative", "/", "//", "/a/.."])
def test_the_store_is_an_absolute_path_below_the_root(path: str) -> None:
    with pytest.raises(InvalidInputError, match="store must be"):
        check_store(path)
    assert check_store("/srv//llm/store/") == "/srv/llm/store"


def test_removal_finds_users_through_any_link_and_survives_an_interrupted_one(
    snapshot: Snapshot, tmp_path: Path
) -> None:
    releases = tmp_path / "releases"
    for name, link in (("direct", "model"), ("deep", "model/sub/x"), ("other", "model/y")):
        path = releases / "kimi" / name / link
        path.parent.mkdir(parents=True)
        path.symlink_to("/etc/hostname" if name == "other" else f"{snapshot.path}/sub")
    (releases / "kimi" / "no-model").mkdir()
    (tmp_path / "alias").symlink_to(tmp_path / "store")
    through_alias = releases / "kimi" / "alias" / "model" / "z"
    through_alias.parent.mkdir(parents=True)
    through_alias.symlink_to(tmp_path / "alias" / "acme--m" / COMMIT / "sub" / "gone.safetensors")
    assert users_of(snapshot.path, str(releases)) == ["kimi/alias", "kimi/deep", "kimi/direct"]
    with pytest.raises(PreconditionError, match="kimi/deep"):
        plan_removal(snapshot, str(releases))
    aside = Path(snapshot.path).parent / f".{COMMIT}.removing"
    os.rename(snapshot.path, aside)
    todo = plan_removal(snapshot, str(tmp_path / "none"))
    assert (todo.present, todo.files, todo.freed_bytes) == (True, 1, 1000)
    remove(todo)
    assert not aside.parent.exists()
    assert not plan_removal(snapshot, str(tmp_path / "none")).present


def test_a_file_with_a_second_name_frees_nothing(snapshot: Snapshot, tmp_path: Path) -> None:
    os.link(Path(snapshot.path, "sub", "a.safetensors"), tmp_path / "second")
    assert plan_removal(snapshot, str(tmp_path / "none")).freed_bytes == 0
