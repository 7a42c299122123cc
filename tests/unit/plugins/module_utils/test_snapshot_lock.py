from __future__ import annotations

import fcntl
import json
import os
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.llmops.vllm.plugins.module_utils import snapshot_lock
from ansible_collections.llmops.vllm.plugins.module_utils.errors import PreconditionError
from ansible_collections.llmops.vllm.plugins.module_utils.snapshot_lock import (
    STALE_SECONDS,
    SnapshotLock,
    boot_id,
    identity,
    is_held,
    process_start,
)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def monotonic(self) -> float:
        return self.now


def lock(path: Path, clock: Clock, timeout_seconds: float = 10.0) -> SnapshotLock:
    return SnapshotLock(str(path), timeout_seconds=timeout_seconds, sleep=clock.sleep, monotonic=clock.monotonic)


def lease(path: Path, **changes: Any) -> Path:
    me = identity()
    file = path.with_name(f"{path.name}.lease")
    file.write_text(json.dumps({**me, **changes}))
    return file


def test_the_lock_is_free_again_afterwards(tmp_path: Path) -> None:
    clock = Clock()
    for _turn in range(2):
        with lock(tmp_path / "x.lock", clock):
            assert (tmp_path / "x.lock.lease").exists()
        assert not (tmp_path / "x.lock.lease").exists()
    assert clock.now == 0.0


def test_waiting_for_another_holder_is_bounded_and_names_it(tmp_path: Path) -> None:
    clock = Clock()
    words = rf"process {os.getpid()} on .* within 10 seconds"
    with lock(tmp_path / "x.lock", clock), pytest.raises(PreconditionError, match=words):
        lock(tmp_path / "x.lock", clock).__enter__()
    assert 10.0 <= clock.now <= 11.0


@pytest.mark.parametrize("changes", [{"start_time": 1}, {"pid": 2**22 + 1}, {"pid": "x"}])
def test_the_lease_of_a_dead_holder_on_this_host_is_taken_over(tmp_path: Path, changes: dict[str, Any]) -> None:
    clock = Clock()
    lease(tmp_path / "x.lock", **changes)
    with lock(tmp_path / "x.lock", clock):
        assert clock.now == 0.0


def test_where_flock_does_nothing_the_lease_of_a_live_holder_still_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot_lock.fcntl, "flock", lambda *_args: None)
    held = subprocess.Popen(["sleep", "60"])
    try:
        lease(tmp_path / "x.lock", pid=held.pid, start_time=process_start(held.pid))
        with pytest.raises(PreconditionError, match=f"process {held.pid} "), lock(tmp_path / "x.lock", Clock()):
            pass
    finally:
        held.kill()
        held.wait()


def test_a_lease_of_another_host_counts_until_it_stands_still_for_two_minutes(tmp_path: Path) -> None:
    clock = Clock()
    file = lease(tmp_path / "x.lock", boot_id="another", host="elsewhere")
    touches = 0
    real_sleep = clock.sleep

    def sleep(seconds: float) -> None:
        nonlocal touches
        real_sleep(seconds)
        if clock.now <= 100.0:
            touches += 1
            os.utime(file, ns=(touches, touches))

    clock.sleep = sleep  # type: ignore[method-assign]
    with lock(tmp_path / "x.lock", clock, timeout_seconds=1000.0):
        assert 100.0 + STALE_SECONDS <= clock.now <= 102.0 + STALE_SECONDS


def test_a_failed_wait_leaves_no_descriptor_behind(tmp_path: Path) -> None:
    holder = os.open(tmp_path / "x.lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(holder, fcntl.LOCK_EX)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(PreconditionError), lock(tmp_path / "x.lock", Clock()):
        pass
    assert len(os.listdir("/proc/self/fd")) == before
    os.close(holder)


def test_a_process_that_is_gone_has_no_start_time(tmp_path: Path) -> None:
    assert process_start(os.getpid()) is not None
    assert process_start(2**22 + 1) is None and process_start(None) is None
    assert boot_id(str(tmp_path)) == ""


def root_of(tmp_path: Path, machine_id: str = "m1") -> str:
    """A host that has rebooted since it made a lease under boot "old"."""
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "machine-id").write_text(f"{machine_id}\n")
    kernel = tmp_path / "proc" / "sys" / "kernel" / "random"
    kernel.mkdir(parents=True)
    (kernel / "boot_id").write_text("new\n")
    return str(tmp_path)


@pytest.mark.parametrize(("machine_id", "waits"), [("m1", False), ("m2", True), ("", True)])
def test_a_reboot_frees_the_lease_but_another_host_of_the_same_name_does_not(
    tmp_path: Path, machine_id: str, waits: bool
) -> None:
    lease(tmp_path / "x.lock", boot_id="old", machine_id="m1")
    clock = Clock()
    root = root_of(tmp_path, machine_id)
    with SnapshotLock(
        str(tmp_path / "x.lock"), timeout_seconds=1000, sleep=clock.sleep, monotonic=clock.monotonic, root=root
    ):
        assert (clock.now >= STALE_SECONDS) == waits


def test_a_process_of_another_pid_namespace_is_not_looked_for_in_ours(tmp_path: Path) -> None:
    lease(tmp_path / "x.lock", pid=2**22 + 1, pid_namespace="pid:[1]")
    with pytest.raises(PreconditionError), lock(tmp_path / "x.lock", Clock()):
        pass


def test_of_two_waiters_that_see_a_stale_lease_only_one_takes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.lock"
    lease(path, pid=2**22 + 1)
    monkeypatch.setattr(snapshot_lock.fcntl, "flock", lambda *_args: None)
    first, second = lock(path, Clock()), lock(path, Clock(), 0.0)
    real = second._is_stale

    def late() -> bool:
        answer = real()
        if answer:
            first.__enter__()
        return answer

    monkeypatch.setattr(second, "_is_stale", late)
    with pytest.raises(PreconditionError, match=f"process {os.getpid()} on"):
        second.__enter__()
    assert len(list(tmp_path.glob("x.lock.lease*"))) == 1
    first.__exit__()


def test_a_holder_whose_lease_was_taken_over_is_told_and_leaves_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot_lock, "HEARTBEAT_SECONDS", 0.01)
    told = threading.Event()
    clock = Clock()
    held = SnapshotLock(
        str(tmp_path / "x.lock"),
        timeout_seconds=0,
        sleep=clock.sleep,
        monotonic=clock.monotonic,
        on_lost=told.set,
    )
    with pytest.raises(PreconditionError, match="another one took over"), held:
        (tmp_path / "x.lock.lease").unlink()
        time.sleep(0.05)
        assert json.loads((tmp_path / "x.lock.lease").read_text())["pid"] == os.getpid(), "one that was removed is back"
        lease(tmp_path / "x.lock", token="other")
        assert told.wait(5.0)
    assert (tmp_path / "x.lock.lease").exists()


def test_whether_a_lock_is_held_can_be_seen_without_taking_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.lock"
    assert not is_held(str(path)) and list(tmp_path.iterdir()) == []
    with lock(path, Clock()):
        assert is_held(str(path))
        (tmp_path / "x.lock.lease").unlink()
        assert is_held(str(path)), "by flock"
    assert not is_held(str(path))
    file = lease(path, boot_id="another", host="elsewhere")
    assert is_held(str(path))
    os.utime(file, (0, 0))
    assert not is_held(str(path))
