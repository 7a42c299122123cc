from __future__ import annotations

import fcntl
import json
import os
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.llmops.vllm.plugins.module_utils import snapshot_lock
from ansible_collections.llmops.vllm.plugins.module_utils.errors import PreconditionError
from ansible_collections.llmops.vllm.plugins.module_utils.snapshot_lock import (
    STALE_SECONDS,
    SnapshotLock,
    boot_id,
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
    me = {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "boot_id": boot_id(),
        "start_time": process_start(os.getpid()),
    }
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


@pytest.mark.parametrize("changes", [{"boot_id": "another"}, {"start_time": 1}, {"pid": 2**22 + 1}, {"pid": "x"}])
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
    file = lease(tmp_path / "x.lock", host="elsewhere")
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
