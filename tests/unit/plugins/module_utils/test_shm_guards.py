"""What each guard protects: the same scene with the guard, and without it."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.llmops.vllm.plugins.module_utils import shm, shm_usage
from ansible_collections.llmops.vllm.plugins.module_utils.procfs import ProcFs
from ansible_collections.llmops.vllm.plugins.module_utils.shm_run import ShmRequest, ShmRun

NAME = "psm_0a1b2c3d"
UUID = "0f9cf3a2-1c1c-4e1f-9d7d-0123456789ab"
ME = str(os.getuid())
needs_root = pytest.mark.skipif(os.getuid() != 0, reason="only root may do this to its host")
Patch = pytest.MonkeyPatch


@pytest.fixture
def directory() -> Iterator[Path]:
    path = tempfile.mkdtemp(dir="/dev/shm", prefix="t")
    yield Path(path)
    shutil.rmtree(path)


def segment(directory: Path, name: str = NAME) -> Path:
    path = directory / name
    path.write_bytes(b"\1" * 4096)
    path.chmod(0o600)
    return path


def cleaned(directory: Path, before_removal: Callable[[], Any] = lambda: None, **parameters: Any) -> None:
    run = ShmRun(ShmRequest(**{"owner": ME, "shm_path": str(directory), **parameters}))
    before_removal()
    run.remove()


def proc_only(monkeypatch: Patch) -> None:
    """A filesystem without leases, where /proc is the only proof."""

    def refuse(descriptor: int, command: int, argument: int) -> int:
        raise OSError(errno.EINVAL, "no leases on this filesystem")

    monkeypatch.setattr(fcntl, "fcntl", refuse)


@contextlib.contextmanager
def using(code: str, *prefix: str) -> Iterator[None]:
    """Run code in another process until the block ends."""
    command = [*prefix, sys.executable, "-c", f"import mmap, os, sys; {code}; print('x', flush=True); sys.stdin.read()"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout
    ready = process.stdout.readline()
    try:
        if not ready and prefix:
            pytest.skip("no namespace may be made here")
        yield
    finally:
        process.communicate()


def opened(path: Path) -> AbstractContextManager[None]:
    return using(f"handle = open({str(path)!r})")


def mapped(path: Path) -> AbstractContextManager[None]:
    return using(f"fd = os.open({str(path)!r}, os.O_RDWR); view = mmap.mmap(fd, 4096); os.closerange(3, 64)")


def unchanged(path: Path, work: Callable[[], None]) -> bool:
    """Whether ``work`` leaves the very object under its name."""
    before = os.lstat(path).st_ino
    work()
    return os.path.lexists(path) and os.lstat(path).st_ino == before


def scene_owner(directory: Path, monkeypatch: Patch) -> bool:
    os.chown(segment(directory), 12345, 12345)
    return unchanged(directory / NAME, lambda: cleaned(directory))


def scene_keep_list(directory: Path, monkeypatch: Patch) -> bool:
    return unchanged(segment(directory), lambda: cleaned(directory, keep=["psm_*"]))


def scene_age(directory: Path, monkeypatch: Patch) -> bool:
    return unchanged(segment(directory), lambda: cleaned(directory, older_than_seconds=60))


def scene_several_names(directory: Path, monkeypatch: Patch) -> bool:
    path = segment(directory)
    os.link(path, directory / "other")
    return unchanged(path, lambda: cleaned(directory))


def scene_pipe(directory: Path, monkeypatch: Patch) -> bool:
    os.mkfifo(directory / NAME)
    return unchanged(directory / NAME, lambda: cleaned(directory))


def scene_replaced_after_the_look(directory: Path, monkeypatch: Patch) -> bool:
    path = segment(directory)
    successors: list[int] = []

    def replace() -> None:
        path.rename(directory / "old")
        successors.append(os.lstat(segment(directory)).st_ino)

    cleaned(directory, replace)
    return path.exists() and os.lstat(path).st_ino == successors[0]


def scene_linked_after_the_look(directory: Path, monkeypatch: Patch) -> bool:
    path = segment(directory)

    def replace() -> None:
        path.rename(directory / "old")
        path.symlink_to(directory / "old")

    cleaned(directory, replace)
    return path.is_symlink()


def scene_directory_replaced_after_the_look(directory: Path, monkeypatch: Patch) -> bool:
    inner = directory / "shm"
    inner.mkdir()
    segment(inner)

    def replace() -> None:
        inner.rename(directory / "away")
        inner.mkdir()
        segment(inner)

    cleaned(inner, replace)
    return (inner / NAME).exists()


def scene_in_flight(directory: Path, monkeypatch: Patch) -> bool:
    path = segment(directory)
    left, right = socket.socketpair(socket.AF_UNIX)
    with left, right:
        descriptor = os.open(path, os.O_RDWR)
        socket.send_fds(left, [b"x"], [descriptor])
        os.close(descriptor)
        return unchanged(path, lambda: cleaned(directory))


def scene_opened_after_the_look(directory: Path, monkeypatch: Patch) -> bool:
    path = segment(directory)
    with contextlib.ExitStack() as stack:
        return unchanged(path, lambda: cleaned(directory, lambda: stack.enter_context(path.open("rb"))))


def scene_opened(directory: Path, monkeypatch: Patch) -> bool:
    proc_only(monkeypatch)
    path = segment(directory)
    with opened(path):
        return unchanged(path, lambda: cleaned(directory))


def scene_mapped(directory: Path, monkeypatch: Patch) -> bool:
    proc_only(monkeypatch)
    path = segment(directory)
    with mapped(path):
        return unchanged(path, lambda: cleaned(directory))


def scene_renamed_while_mapped(directory: Path, monkeypatch: Patch) -> bool:
    proc_only(monkeypatch)
    path = segment(directory, "psm_ffffffff")
    with mapped(path):
        path.rename(directory / NAME)
        return unchanged(directory / NAME, lambda: cleaned(directory))


ELSEWHERE = (
    "import ctypes; libc = ctypes.CDLL(None);"
    "assert not libc.mount({path!r}.encode(), b'/mnt', None, 4096, None);"  # MS_BIND
    "assert not libc.umount2(b'/dev/shm', 2);"  # MNT_DETACH: the original path leads nowhere there
)
UNSHARE = ("unshare", "--mount", "--propagation", "private")


def scene_opened_elsewhere(directory: Path, monkeypatch: Patch) -> bool:
    proc_only(monkeypatch)
    path = segment(directory)
    with using(ELSEWHERE.format(path=str(directory)) + f"handle = open('/mnt/{NAME}')", *UNSHARE):
        return unchanged(path, lambda: cleaned(directory))


def scene_mapped_elsewhere(directory: Path, monkeypatch: Patch) -> bool:
    proc_only(monkeypatch)
    path = segment(directory)
    code = f"fd = os.open('/mnt/{NAME}', os.O_RDWR); view = mmap.mmap(fd, 4096); os.closerange(3, 64)"
    with using(ELSEWHERE.format(path=str(directory)) + code, *UNSHARE):
        return unchanged(path, lambda: cleaned(directory))


def scene_bound_socket(directory: Path, monkeypatch: Patch) -> bool:
    """Not listening: the kernel refuses a connection, and only its table of sockets knows it."""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(directory / UUID))
        return unchanged(directory / UUID, lambda: cleaned(directory, rpc_base_path=str(directory)))


def scene_renamed_socket(directory: Path, monkeypatch: Patch) -> bool:
    """The kernel's table knows the name at binding only; a connection reaches it all the same."""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(directory / "first"))
        server.listen()
        (directory / "first").rename(directory / UUID)
        return unchanged(directory / UUID, lambda: cleaned(directory, rpc_base_path=str(directory)))


def without_reason(reason: str) -> tuple[Any, str, Any]:
    real = shm.Policy.reason_to_keep
    return shm.Policy, "reason_to_keep", lambda self, found: real(self, found).replace(reason, "")


NOTHING_IN_MAPS = (shm_usage._Search, "_mapped", lambda *_: ())
NOTHING_IN_FD = (shm_usage._Search, "_opened", lambda *_: ())
LEASE_ALWAYS_GRANTED = (shm_usage, "_answer_of_file", lambda *_: shm.UNUSED)
ANY_OBJECT_IS_THE_SAME = (shm.ShmObject, "is_still", lambda *_: True)

Scene = Callable[[Path, Patch], bool]
GUARDS: dict[str, tuple[Scene, list[tuple[Any, str, Any]]]] = {
    "owner": (scene_owner, [without_reason("other_owner")]),
    "keep list": (scene_keep_list, [without_reason("keep_list")]),
    "age": (scene_age, [without_reason("too_young")]),
    "hard links": (scene_several_names, [without_reason("several_names")]),
    "kind of file": (scene_pipe, [without_reason("other_kind")]),
    "identity": (scene_replaced_after_the_look, [ANY_OBJECT_IS_THE_SAME]),
    "identity of the directory's entry": (scene_directory_replaced_after_the_look, [ANY_OBJECT_IS_THE_SAME]),
    "no link is followed": (scene_linked_after_the_look, [ANY_OBJECT_IS_THE_SAME, (os, "O_NOFOLLOW", 0)]),
    "lease": (scene_in_flight, [LEASE_ALWAYS_GRANTED]),
    "lease at removal": (scene_opened_after_the_look, [LEASE_ALWAYS_GRANTED]),
    "open files": (scene_opened, [NOTHING_IN_FD]),
    "mappings": (scene_mapped, [NOTHING_IN_MAPS]),
    "mappings by device and inode": (scene_renamed_while_mapped, [NOTHING_IN_MAPS]),
    "open files of other mounts": (scene_opened_elsewhere, [NOTHING_IN_FD]),
    "mappings of other mounts": (scene_mapped_elsewhere, [NOTHING_IN_MAPS]),
    "table of sockets": (scene_bound_socket, [(ProcFs, "unix_sockets", lambda *_: iter(()))]),
    "connection": (scene_renamed_socket, [(shm_usage, "_answer_of_socket", lambda *_: shm.UNUSED)]),
}


@needs_root
@pytest.mark.parametrize("name", GUARDS)
def test_object_stays_and_without_its_guard_would_go(name: str, directory: Path, monkeypatch: Patch) -> None:
    scene, guard = GUARDS[name]
    assert scene(directory, monkeypatch)
    for path in directory.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    for what in guard:
        monkeypatch.setattr(*what)
    assert not scene(directory, monkeypatch)
