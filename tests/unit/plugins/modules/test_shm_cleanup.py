"""shm_cleanup and shm_info on a real tmpfs directory, real processes and real sockets."""

from __future__ import annotations

import contextlib
import mmap
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.llmops.vllm.plugins.modules import shm_cleanup, shm_info

ME = str(os.getuid())
UUID = "0f9cf3a2-1c1c-4e1f-9d7d-0123456789ab"
RENDEZVOUS = "vllm_dist_" + "0a" * 16
READY = "print('ready', flush=True); sys.stdin.read()"


@pytest.fixture
def shm() -> Iterator[Path]:
    """A directory of its own on the tmpfs of /dev/shm."""
    path = tempfile.mkdtemp(dir="/dev/shm")
    yield Path(path)
    shutil.rmtree(path)


@contextlib.contextmanager
def using(code: str) -> Iterator[int]:
    """Run Python code, then ``READY``, in another process; yields its PID."""
    process = subprocess.Popen(
        [sys.executable, "-c", f"import mmap, os, socket, sys; {code}; {READY}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout and process.stdin
    assert process.stdout.readline() == b"ready\n"
    yield process.pid
    process.stdin.close()
    process.wait()
    process.stdout.close()


def segment(directory: Path, name: str, size: int = 8192) -> Path:
    path = directory / name
    path.write_bytes(b"\1" * size)
    path.chmod(0o600)
    return path


def verdicts(result: dict[str, Any]) -> dict[str, tuple[str, str]]:
    assert "objects" in result, result
    return {one["name"]: (one["verdict"], one["reason"]) for one in result["objects"]}


NAMES = (
    "psm_0a1b2c3d",
    "sem.mp-ab1_cdef",
    "sem.loky-77-abcd",
    "nccl-AbC123",
    "vllm_offload_engine-0.mmap",
    "vllm_ec_0.mmap",
    "vllm_dist_" + "ab" * 16 + "-tp:0-[0-1]-cpushm_0",
    "torch_123_456_0",
    "cuda.shm.0.1f.1",
    "__KMP_REGISTERED_LIB_4711_0",
    "plasmaAbCdEf",
)


def test_unused_leftovers_of_every_family_go_and_a_second_run_changes_nothing(run_module: Any, shm: Path) -> None:
    for name in NAMES:
        segment(shm, name)
    first = run_module(shm_cleanup, owner=ME, shm_path=str(shm), diff=True)
    assert verdicts(first) == dict.fromkeys(NAMES, ("removed", "unused"))
    assert first["changed"]
    assert first["freed_bytes"] == 8192 * len(NAMES)
    assert first["diff"]["before"][f"{shm}/psm_0a1b2c3d"] == "python_shm"
    assert first["diff"]["after"] == {}
    assert list(shm.iterdir()) == []
    second = run_module(shm_cleanup, owner=ME, shm_path=str(shm))
    assert not second["changed"]
    assert second["objects"] == []


def test_check_mode_tells_the_same_and_removes_nothing(run_module: Any, shm: Path) -> None:
    path = segment(shm, "psm_0a1b2c3d")
    result = run_module(shm_cleanup, check=True, owner=ME, shm_path=str(shm))
    assert result["changed"]
    assert verdicts(result) == {"psm_0a1b2c3d": ("removed", "unused")}
    assert path.exists()


def test_names_outside_the_families_are_not_touched(run_module: Any, shm: Path) -> None:
    names = ("psm_0a1b2c3d.bak", "xpsm_0a1b2c3d", "psm_0A1B2C3D", "postgresql.1", "sem.other", UUID)
    for name in names:
        segment(shm, name)
    assert run_module(shm_cleanup, owner=ME, shm_path=str(shm))["objects"] == []
    assert sorted(path.name for path in shm.iterdir()) == sorted(names)


@pytest.mark.parametrize(
    "code",
    [
        "handle = open({path!r})",
        "fd = os.open({path!r}, os.O_RDWR); view = mmap.mmap(fd, 4096); os.close(fd)",
        "fd = os.open({path!r}, os.O_RDONLY); view = mmap.mmap(fd, 4096, prot=mmap.PROT_READ); os.close(fd)",
    ],
    ids=["opened", "mapped", "mapped read-only"],
)
def test_object_in_use_is_kept_with_its_user(run_module: Any, shm: Path, code: str) -> None:
    path = segment(shm, "psm_0a1b2c3d")
    with using(code.format(path=str(path))) as pid:
        result = run_module(shm_cleanup, owner=ME, shm_path=str(shm))
    assert verdicts(result) == {"psm_0a1b2c3d": ("kept", "in_use")}
    assert result["objects"][0]["used_by"] == [pid]
    assert not result["changed"]
    assert path.exists()


def test_object_renamed_while_mapped_is_kept(run_module: Any, shm: Path) -> None:
    path = segment(shm, "psm_ffffffff")
    with using(f"fd = os.open({str(path)!r}, os.O_RDWR); view = mmap.mmap(fd, 4096)") as pid:
        path.rename(shm / "psm_0a1b2c3d")
        result = run_module(shm_cleanup, owner=ME, shm_path=str(shm))
    assert verdicts(result) == {"psm_0a1b2c3d": ("kept", "in_use")}
    assert result["objects"][0]["used_by"] == [pid]


def test_same_name_again_after_its_user_lost_the_old_object_goes(run_module: Any, shm: Path) -> None:
    path = segment(shm, "psm_0a1b2c3d")
    with using(f"fd = os.open({str(path)!r}, os.O_RDWR)"):
        path.unlink()
        segment(shm, "psm_0a1b2c3d")
        result = run_module(shm_cleanup, owner=ME, shm_path=str(shm))
    assert verdicts(result) == {"psm_0a1b2c3d": ("removed", "unused")}


def test_descriptor_in_flight_between_processes_counts_as_in_use(run_module: Any, shm: Path) -> None:
    path = segment(shm, "psm_0a1b2c3d")
    left, right = socket.socketpair(socket.AF_UNIX)
    with left, right:
        descriptor = os.open(path, os.O_RDWR)
        socket.send_fds(left, [b"x"], [descriptor])
        os.close(descriptor)
        result = run_module(shm_cleanup, owner=ME, shm_path=str(shm))
    assert verdicts(result) == {"psm_0a1b2c3d": ("kept", "in_use")}
    assert result["objects"][0]["used_by"] == []


def test_object_with_a_second_name_is_kept(run_module: Any, shm: Path) -> None:
    path = segment(shm, "psm_0a1b2c3d")
    os.link(path, shm / "other")
    assert verdicts(run_module(shm_cleanup, owner=ME, shm_path=str(shm))) == {"psm_0a1b2c3d": ("kept", "several_names")}


def test_links_directories_and_pipes_with_such_names_are_kept(run_module: Any, shm: Path) -> None:
    victim = segment(shm, "victim")
    (shm / "psm_00000001").symlink_to(victim)
    (shm / "psm_00000002").mkdir()
    os.mkfifo(shm / "psm_00000003")
    result = run_module(shm_cleanup, owner=ME, shm_path=str(shm))
    assert set(verdicts(result).values()) == {("kept", "other_kind")}
    assert len(list(shm.iterdir())) == 4


@pytest.mark.skipif(os.getuid() != 0, reason="only root may give files away")
def test_object_of_another_owner_is_kept(run_module: Any, shm: Path) -> None:
    os.chown(segment(shm, "psm_00000001"), 12345, 12345)
    segment(shm, "psm_00000002")
    result = run_module(shm_cleanup, owner="12345", shm_path=str(shm))
    assert verdicts(result) == {"psm_00000001": ("removed", "unused"), "psm_00000002": ("kept", "other_owner")}


def test_young_objects_are_kept(run_module: Any, shm: Path) -> None:
    path = segment(shm, "psm_00000001")
    os.utime(path, (1, 1))  # the change of attributes is young all the same
    for limits in ({"older_than_seconds": 60}, {"older_than_epoch": path.stat().st_ctime}):
        result = run_module(shm_cleanup, owner=ME, shm_path=str(shm), **limits)
        assert verdicts(result) == {"psm_00000001": ("kept", "too_young")}
    result = run_module(shm_cleanup, owner=ME, shm_path=str(shm), older_than_epoch=path.stat().st_ctime + 60)
    assert verdicts(result) == {"psm_00000001": ("removed", "unused")}


def test_keep_list_families_and_extra_families_choose(run_module: Any, shm: Path) -> None:
    for name in ("psm_00000001", "psm_00000002", "nccl-AbC123", "acme_1"):
        segment(shm, name)
    result = run_module(
        shm_cleanup,
        owner=ME,
        shm_path=str(shm),
        families=["python_shm"],
        extra_families={"acme": "acme_[0-9]"},
        keep=["*01"],
    )
    assert verdicts(result) == {
        "acme_1": ("removed", "unused"),
        "psm_00000001": ("kept", "keep_list"),
        "psm_00000002": ("removed", "unused"),
    }
    assert (shm / "nccl-AbC123").exists()


@pytest.fixture
def rpc() -> Iterator[Path]:
    """A short path, as a socket's must be."""
    path = tempfile.mkdtemp(prefix="rpc")
    yield Path(path)
    shutil.rmtree(path)


def bind(path: Path) -> socket.socket:
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(path))
    server.listen()
    return server


def test_stale_socket_and_rendezvous_file_go_only_when_their_path_is_given(
    run_module: Any, shm: Path, rpc: Path
) -> None:
    bind(rpc / UUID).close()
    segment(rpc, RENDEZVOUS)
    segment(rpc, "psm_0a1b2c3d")
    assert run_module(shm_cleanup, owner=ME, shm_path=str(shm))["objects"] == []
    result = run_module(shm_cleanup, owner=ME, shm_path=str(shm), rpc_base_path=str(rpc))
    assert verdicts(result) == {UUID: ("removed", "unused"), RENDEZVOUS: ("removed", "unused")}
    assert [path.name for path in rpc.iterdir()] == ["psm_0a1b2c3d"]


def test_listening_and_bound_sockets_are_kept(run_module: Any, shm: Path, rpc: Path) -> None:
    with bind(rpc / UUID):
        result = run_module(shm_cleanup, owner=ME, shm_path=str(shm), rpc_base_path=str(rpc))
    assert verdicts(result) == {UUID: ("kept", "in_use")}
    (rpc / UUID).unlink()
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(rpc / UUID))
        result = run_module(shm_cleanup, owner=ME, shm_path=str(shm), rpc_base_path=str(rpc))
    assert verdicts(result) == {UUID: ("kept", "in_use")}


def test_plain_file_with_a_sockets_name_is_kept(run_module: Any, shm: Path, rpc: Path) -> None:
    segment(rpc, UUID)
    result = run_module(shm_cleanup, owner=ME, shm_path=str(shm), rpc_base_path=str(rpc))
    assert verdicts(result) == {UUID: ("kept", "other_kind")}


def test_info_tells_what_could_go_and_never_changes(run_module: Any, shm: Path) -> None:
    path = segment(shm, "psm_00000001")
    used = segment(shm, "psm_00000002")
    with using(f"handle = open({str(used)!r})") as pid:
        result = run_module(shm_info, shm_path=str(shm))
    assert verdicts(result) == {"psm_00000001": ("removable", "unused"), "psm_00000002": ("kept", "in_use")}
    assert result["objects"][1]["used_by"] == [pid]
    assert result["freed_bytes"] == 8192
    assert not result["changed"]
    assert path.exists()


def test_sparse_object_is_counted_by_what_it_occupies(run_module: Any, shm: Path) -> None:
    path = segment(shm, "psm_00000001", 4096)
    os.truncate(path, 1 << 30)
    (one,) = run_module(shm_info, shm_path=str(shm))["objects"]
    assert (one["apparent_bytes"], one["allocated_bytes"]) == (1 << 30, mmap.PAGESIZE)


def test_missing_directory_holds_nothing(run_module: Any, shm: Path) -> None:
    result = run_module(shm_cleanup, owner=ME, shm_path=str(shm / "none"), rpc_base_path=str(shm / "none"))
    assert result["objects"] == []


@pytest.mark.parametrize(
    ("params", "part"),
    [
        ({"shm_path": "relative"}, "not an absolute path"),
        ({"shm_path": "/etc/passwd"}, "/etc/passwd cannot be searched"),
        ({"older_than_seconds": -1}, "older_than_seconds is negative"),
        ({"families": ["nonsense"]}, "value of families must be one or more of"),
        ({"extra_families": {"all": ".*"}}, "matches anything"),
        ({"extra_families": {"nccl": "x"}}, "is taken"),
        ({"extra_families": {"x": "("}}, "not a regular expression"),
        ({"owner": "no-such-user-x"}, "is no user of this host"),
    ],
)
def test_bad_input_fails_with_one_sentence(run_module: Any, params: dict[str, Any], part: str) -> None:
    result = run_module(shm_cleanup, **{"owner": ME, **params})
    assert result["failed"]
    assert part in result["msg"]
