"""Runs that are killed, hung up on, started twice or run out of disk. Here the module is a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.llmops.vllm.tests.download.rig import CUT_AT, MIB, SHARD_BYTES, Rig, is_clear
from ansible_collections.llmops.vllm.tests.download.table import Row, Table
from ansible_collections.llmops.vllm.tests.download.test_faults import share
from ansible_collections.llmops.vllm.tests.unit.hub_server import sha256_of

SECTION = "Interruptions"
IN_THE_THIRD = 2 * SHARD_BYTES + CUT_AT  # 46 % of the model; 4 MiB of the third shard are on the disk
IN_THE_FIFTH = 4 * SHARD_BYTES + CUT_AT  # 79 %
WITHOUT_FLOCK = "import fcntl; fcntl.flock = lambda *arguments: None"
# Runs a command as its child, as the shell of a connection does.
PARENT = "import subprocess, sys; subprocess.Popen(sys.argv[1:]).wait()"


def wait_until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)


def wait_for_gate(rig: Rig, shard: int) -> None:
    """Wait until the hub holds back and the module has written all that it can write of ``shard``."""
    assert rig.hub.gate.reached.wait(60)
    name = f"model-{shard:05d}-of-00006.safetensors"
    part = rig.snapshot / f".llmops/partial/{sha256_of(rig.hub.files[name])}.part"
    wait_until(lambda: part.exists() and part.stat().st_size >= 4 * MIB)


def result_of(process: subprocess.Popen[str]) -> dict[str, Any]:
    output, errors = process.communicate(timeout=120)
    assert output, errors
    return json.loads(output)


def assert_nothing_wrong(rig: Rig) -> None:
    verdict = rig.judge()
    assert (verdict.wrong, verdict.strays, verdict.leaks) == ([], [], [])


def interrupt(rig: Rig, how: signal.Signals, at: int, shard: int) -> int:
    """End a run in the middle of ``shard``; return the bytes that the hub had sent in it."""
    rig.hub.sent_bytes = 0
    rig.hub.gate.close_after(at)
    with rig.start() as process:
        wait_for_gate(rig, shard)
        process.send_signal(how)
        process.wait(30)
    sent = rig.hub.sent_bytes
    rig.hub.gate.open(hang_up=True)
    assert_nothing_wrong(rig)
    rig.hub.sent_bytes = 0
    return sent


def finish(rig: Rig, table: Table, fault: str, sent: int, ends: str, times: int = 1) -> None:
    """Let the next run do the rest; ``sent`` is what the interrupted ones were sent."""
    kept = len(rig.judge().right)
    result = rig.run()
    assert result["changed"], result
    assert rig.judge().flawless
    assert not (rig.snapshot / ".llmops/partial").exists()
    in_memory = CUT_AT - 4 * MIB + MIB // 4  # and a piece that the gate let through
    assert result["fetched_bytes"] <= rig.total_bytes - sent + times * in_memory
    table.add(
        SECTION,
        Row(fault, "plain", ends, f"{kept} of 10", 0, share(sent, rig), share(rig.hub.sent_bytes, rig), ""),
    )  # fmt: skip


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT], ids=lambda s: s.name)
def test_a_run_that_is_ended_by_a_signal_is_resumed(make_rig: Any, table: Table, how: signal.Signals) -> None:
    rig = make_rig()
    if how is signal.SIGINT:
        rig.parameters["stall_timeout_seconds"] = 3  # which is how long an orderly end may take
    sent = interrupt(rig, how, IN_THE_THIRD, shard=3)
    finish(rig, table, f"{how.name} in the third of six shards", sent, "ended")


def test_a_run_that_is_killed_twice_fetches_nothing_twice_but_what_was_in_memory(make_rig: Any, table: Table) -> None:
    rig = make_rig()
    sent = interrupt(rig, signal.SIGKILL, IN_THE_THIRD, shard=3)
    sent += interrupt(rig, signal.SIGKILL, IN_THE_FIFTH - IN_THE_THIRD, shard=5)
    finish(rig, table, "SIGKILL in the third shard, and again in the fifth", sent, "ended", times=2)


def test_a_run_whose_controller_is_lost_goes_on_to_the_end(make_rig: Any, table: Table) -> None:
    rig = make_rig()
    rig.hub.gate.close_after(IN_THE_THIRD)
    parent = subprocess.Popen([sys.executable, "-c", PARENT, *rig.command()], stdout=subprocess.PIPE)
    wait_for_gate(rig, shard=3)
    parent.kill()
    parent.wait()
    assert parent.stdout
    parent.stdout.close()
    rig.hub.gate.open()
    wait_until(lambda: rig.judge().flawless and not list((rig.store / ".llmops").glob("*.lease")))
    again = rig.run()
    assert not again["changed"], again
    table.add(
        SECTION,
        Row(
            "the connection of the controller is lost",
            "plain",
            "right",
            "10 of 10",
            0,
            share(rig.hub.sent_bytes, rig),
            "nothing to do",
            "",
        ),
    )


@pytest.mark.parametrize("before", ["", WITHOUT_FLOCK], ids=["flock", "no flock"])
def test_two_runs_at_once_fetch_everything_once(make_rig: Any, table: Table, before: str) -> None:
    rig = make_rig()
    rig.hub.gate.close_after(IN_THE_THIRD)
    first = rig.start(before)
    wait_for_gate(rig, shard=3)
    asked = len(rig.hub.requests_to("info"))
    second = rig.start(before)
    wait_until(lambda: len(rig.hub.requests_to("info")) > asked)
    rig.hub.gate.open()
    results = [result_of(first), result_of(second)]
    assert [result["changed"] for result in results] == [True, False], results
    assert rig.judge().flawless
    assert rig.hub.sent_bytes == rig.total_bytes
    fault = f"two runs at once{' where flock does nothing' if before else ''}"
    table.add(SECTION, Row(fault, "plain", "right", "10 of 10", 0, "100 %", "nothing to do", ""))


def test_a_second_run_that_may_not_wait_says_for_whom(make_rig: Any, table: Table) -> None:
    rig = make_rig()
    rig.hub.gate.close_after(IN_THE_THIRD)
    first = rig.start()
    wait_for_gate(rig, shard=3)
    second = rig.run(lock_timeout_seconds=0)
    assert second["failed"] and is_clear(second["msg"]) and str(first.pid) in second["msg"]
    rig.hub.gate.open()
    assert result_of(first)["changed"]
    assert rig.judge().flawless
    says = rig.plain_words(second["msg"])
    table.add(
        SECTION,
        Row("a second run that may not wait", "plain", "error", "10 of 10", 0, "100 %", "nothing to do", says),
    )


@pytest.fixture
def small_disk(tmp_path: Path, table: Table) -> Iterator[Path]:
    """A file system of 64 MiB for the store alone."""
    place = tmp_path / "store"
    place.mkdir()
    mount = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64m,mode=755", "tmpfs", place], capture_output=True, text=True, check=False
    )
    if mount.returncode:
        table.partial = True
        pytest.skip(f"no file system can be mounted here: {mount.stderr.strip().splitlines()[0]}")
    yield place
    subprocess.run(["umount", place], check=True)


def test_a_disk_that_fills_up_keeps_what_arrived(make_rig: Any, table: Table, small_disk: Path) -> None:
    rig = make_rig()
    rig.hub.gate.close_after(IN_THE_FIFTH)
    process = rig.start()
    wait_for_gate(rig, shard=5)
    filler = small_disk / "filler"
    with filler.open("wb", buffering=0) as stream:
        fill(stream.fileno())
    sent = rig.hub.sent_bytes
    rig.hub.gate.open()
    result = result_of(process)
    assert result["failed"] and is_clear(result["msg"]), result
    assert "The disk is full" in result["msg"]
    filler.unlink()
    verdict = rig.judge()
    assert (verdict.wrong, verdict.strays) == ([], [])
    rig.hub.sent_bytes = 0
    again = rig.run()
    assert rig.judge().flawless, again
    assert again["fetched_bytes"] <= rig.total_bytes - sent + 2 * MIB
    table.add(
        SECTION,
        Row(
            "another program fills the disk in the fifth shard",
            "plain",
            "error",
            f"{len(verdict.right)} of {len(rig.hub.files)}",
            0,
            "at most 85 %",
            share(rig.hub.sent_bytes, rig),
            rig.plain_words(result["msg"]),
        ),
    )


def fill(descriptor: int) -> None:
    """Write until there is no room left, down to the last block."""
    for size in (MIB, 4096):
        try:
            while True:
                os.write(descriptor, bytes(size))
        except OSError:
            continue
