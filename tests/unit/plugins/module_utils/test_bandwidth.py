from __future__ import annotations

import io
import threading
from typing import Any

import pytest
from ansible_collections.llmops.vllm.plugins.module_utils.bandwidth import Bandwidth, ReadSize, TimedReads
from ansible_collections.llmops.vllm.plugins.module_utils.errors import InvalidInputError
from hypothesis import given
from hypothesis import strategies as st


class Clock:
    def __init__(self) -> None:
        self.now = 100.0
        self.slept = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.slept += seconds


@given(
    rate=st.integers(65_536, 10**9),
    steps=st.lists(st.tuples(st.integers(0, 10**7), st.floats(0, 3)), min_size=1, max_size=40),
)
def test_the_rate_is_never_exceeded_but_for_a_short_burst(rate: int, steps: list[tuple[int, float]]) -> None:
    clock = Clock()
    bandwidth = Bandwidth(rate, monotonic=clock, sleep=clock.sleep)
    taken = 0
    for count, pause in steps:
        clock.now += pause
        began = clock.now
        assert bandwidth.take(count) == clock.now - began
        taken += count
        assert taken <= rate * (clock.now - 100.0 + 0.25) * 1.000001 + 1


def test_a_steady_stream_runs_at_the_rate() -> None:
    clock = Clock()
    bandwidth = Bandwidth(1_000_000, monotonic=clock, sleep=clock.sleep)
    for _read in range(100):
        bandwidth.take(100_000)
    assert 9.7 <= clock.now - 100.0 <= 10.0


def test_what_was_not_used_for_an_hour_is_not_made_up_for() -> None:
    clock = Clock()
    bandwidth = Bandwidth(100_000, monotonic=clock, sleep=clock.sleep)
    clock.now += 3600
    bandwidth.take(1_000_000)
    assert 9.7 <= clock.slept <= 10.0


def test_a_slow_reader_pays_nothing() -> None:
    clock = Clock()
    bandwidth = Bandwidth(1_000_000, monotonic=clock, sleep=clock.sleep)
    for _read in range(10):
        clock.now += 0.26
        bandwidth.take(bandwidth.read_bytes)
    assert clock.slept == 0.0


def test_threads_share_one_rate() -> None:
    debts: list[float] = []
    bandwidth = Bandwidth(100_000, monotonic=lambda: 0.0, sleep=debts.append)
    threads = [threading.Thread(target=bandwidth.take, args=(100_000,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(debts) == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]


def test_reads_are_small_enough_for_a_low_rate_to_flow_evenly() -> None:
    assert Bandwidth(100_000, monotonic=lambda: 0.0, sleep=lambda _s: None).read_bytes == 25_000
    assert Bandwidth(65_536, monotonic=lambda: 0.0, sleep=lambda _s: None).read_bytes == 16 * 1024


@pytest.mark.parametrize("rate", [-1, 0, 65_535])
def test_a_rate_at_which_servers_give_up_is_bad_input(rate: int) -> None:
    with pytest.raises(InvalidInputError, match=f"bandwidth_bytes_per_second must be 0 or at least 65536, not {rate}"):
        Bandwidth(rate, monotonic=lambda: 0.0, sleep=lambda _s: None)


class Connection:
    def __init__(self, bytes_per_second: int, largest: int = 10**9) -> None:
        self.clock = Clock()
        self.rate = bytes_per_second
        self.largest = largest
        self.size = ReadSize(self.clock)

    def readinto(self, view: memoryview) -> int:
        self.clock.now += len(view) / self.rate
        return min(len(view), self.largest)

    def read(self, times: int) -> int:
        buffer = memoryview(bytearray(4 * 1024 * 1024))
        return [self.size.read(self.readinto, buffer) for _ in range(times)][-1]


def test_a_quick_connection_fills_the_buffer_at_once() -> None:
    connection = Connection(100_000_000)
    assert connection.read(1) == 64 * 1024
    assert connection.read(10) == 4 * 1024 * 1024


def test_a_slow_connection_gets_reads_of_about_a_second() -> None:
    assert Connection(1_000_000).read(20) == 256 * 1024
    assert Connection(1_000).read(20) == 16 * 1024


def test_a_connection_that_slows_down_is_noticed() -> None:
    connection = Connection(100_000_000)
    connection.read(20)
    connection.rate = 100_000
    assert connection.read(20) == 64 * 1024


def test_a_short_answer_is_no_reason_to_ask_for_more() -> None:
    connection = Connection(100_000_000, largest=10)
    connection.read(20)
    assert connection.size.bytes == 64 * 1024


class Dripping(io.RawIOBase):
    def __init__(self, clock: Clock, size: int) -> None:
        self.clock, self.left = clock, size

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self.clock.now += 0.4
        count = min(1, self.left)
        buffer[:count] = b"x" * count
        self.left -= count
        return count


def test_a_large_read_of_a_dripping_connection_returns_after_a_second_with_what_has_come() -> None:
    clock = Clock()
    raw = Dripping(clock, 5)
    reader = io.BufferedReader(raw)
    timed = TimedReads(raw, clock)
    counts = []
    for _read in range(3):
        timed.begin()
        counts.append(reader.readinto(bytearray(100_000)))
    assert counts == [3, 2, 0]


def test_a_single_byte_is_waited_for_however_long_it_takes() -> None:
    clock = Clock()
    raw = Dripping(clock, 1)
    timed = TimedReads(raw, clock)
    timed.begin()
    clock.now += 100
    assert io.BufferedReader(raw).readinto(bytearray(100_000)) == 1


def test_a_read_that_nobody_began_here_waits_for_all_of_it() -> None:
    clock = Clock()
    raw = Dripping(clock, 5)
    TimedReads(raw, clock)
    assert io.BufferedReader(raw).readinto(bytearray(100_000)) == 5
