from __future__ import annotations

import pytest
from ansible_collections.llmops.vllm.plugins.module_utils.transfer_progress import (
    Counters,
    Progress,
    RateMeter,
    amount,
    duration,
    snapshot_of,
)

GB = 10**9


def fetching(received: int, **changes: int) -> Progress:
    values = {"files": 119, "files_done": 37, "total_bytes": 540 * GB, "present_bytes": 100 * GB, **changes}
    return Progress("fetching", counters=Counters(received=received, resumed=GB), **values)


def test_a_person_reads_files_bytes_rate_and_time_left() -> None:
    now = snapshot_of(fetching(70 * GB), 1.94 * GB)
    assert now["text"] == "37/119 files, 171 of 540 GB, 1.9 GB/s, 3m10s left"
    assert (now["done_bytes"], now["remaining_seconds"]) == (171 * GB, 190)


def test_nothing_is_said_about_the_time_left_while_nothing_arrives() -> None:
    now = snapshot_of(fetching(0), 0.0)
    assert now["text"] == "37/119 files, 101 of 540 GB, 0 B/s" and now["remaining_seconds"] is None


def test_units_are_named_twice_where_they_differ() -> None:
    assert "300 MB of 540 GB" in snapshot_of(fetching(0, present_bytes=-700 * 10**6), 1.0)["text"]


def test_bytes_that_came_twice_are_not_more_than_all() -> None:
    assert snapshot_of(fetching(900 * GB), 1.0)["done_bytes"] == 540 * GB


@pytest.mark.parametrize(
    ("phase", "text"),
    [
        ("planning", "planning"),
        ("waiting", "waiting for another run on this snapshot"),
        ("verifying", "read 0/119 files, 0 B of 540 GB"),
        ("done", "done"),
    ],
)
def test_other_phases_have_words_of_their_own(phase: str, text: str) -> None:
    assert snapshot_of(Progress(phase, files=119, total_bytes=540 * GB), 5.0)["text"] == text


def test_the_rate_is_that_of_the_last_seconds() -> None:
    times = iter([0.0, 10.0, 20.0, 30.0])
    meter = RateMeter(lambda: next(times), window_seconds=15)
    assert [meter.rate(received) for received in (0, 1000, 2000, 2000)] == [0.0, 100.0, 100.0, 50.0]


def test_one_look_gives_no_rate() -> None:
    assert RateMeter(lambda: 5.0).rate(1000) == 0.0


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (999, "999 B"), (1500, "1.5 kB"), (9.96e6, "10 MB"), (5.4e11, "540 GB"), (2e12, "2.0 TB")],
)  # fmt: skip
def test_sizes_are_readable(size: float, text: str) -> None:
    assert amount(size) == text


@pytest.mark.parametrize(("seconds", "text"), [(0, "0s"), (59.9, "59s"), (250, "4m10s"), (3725, "1h02m")])
def test_durations_are_readable(seconds: float, text: str) -> None:
    assert duration(seconds) == text
