from __future__ import annotations

import hashlib
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.llmops.vllm.plugins.module_utils.bandwidth import LEAST_BYTES_PER_SECOND, Bandwidth
from ansible_collections.llmops.vllm.plugins.module_utils.digests import StoppedError
from ansible_collections.llmops.vllm.plugins.module_utils.download import Transfer, fetch_all
from ansible_collections.llmops.vllm.plugins.module_utils.file_source import Source, SourceError
from ansible_collections.llmops.vllm.plugins.module_utils.http_client import RetryPolicy
from ansible_collections.llmops.vllm.plugins.module_utils.part_file import Part
from ansible_collections.llmops.vllm.plugins.module_utils.repo_listing import RepoFile
from ansible_collections.llmops.vllm.plugins.module_utils.transfer_progress import Counters

DATA = bytes(range(256)) * 40
FILE = RepoFile("a.safetensors", len(DATA), "sha256", hashlib.sha256(DATA).hexdigest())
OTHERS_BYTES = 1_000_000  # what other transfers take of a limit for every read of this one
POLICY = RetryPolicy(1, sleep=lambda _seconds: None, jitter=lambda: 0.0)


class Clock:
    now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Answer:
    """So many bytes with every read, each of which takes so many seconds, and pays for itself and for others."""

    foreign = False

    def __init__(self, clock: Clock, offset: int, count: int, seconds: float, limit: Bandwidth | None) -> None:
        self._limit, self.held_back_seconds = limit, 0.0
        self.url, self.status = "http://x/a", 206 if offset else 200
        self.headers = {"Content-Range": f"bytes {offset}-{len(DATA) - 1}/{len(DATA)}"} if offset else {}
        self._clock, self._offset, self._count, self._seconds = clock, offset, count, seconds

    def __enter__(self) -> Answer:
        return self

    def __exit__(self, *_exc: object) -> None:
        pass

    def read_into(self, view: memoryview) -> int:
        piece = DATA[self._offset : self._offset + min(self._count, len(view))]
        view[: len(piece)] = piece
        self._offset += len(piece)
        self._clock.now += self._seconds
        if self._limit:
            self.held_back_seconds += self._limit.take(len(piece) + OTHERS_BYTES)
        return len(piece)


def source(name: str, clock: Clock, count: int, seconds: float, limit: Bandwidth | None = None) -> Source:
    def ask(_file: RepoFile, headers: Mapping[str, str], _conditions: Mapping[str, str]) -> Any:
        offset = int(headers.get("Range", "bytes=0-")[6:-1])
        return Answer(clock, offset, count, seconds, limit)

    return Source("mirror", name, POLICY, ask, lambda _answer: SourceError("no"))


def transfer(tmp_path: Path, clock: Clock, sources: list[Source]) -> None:
    part = Part(str(tmp_path), FILE, "boot")
    Transfer(part, sources, counters=Counters(), stop=threading.Event(), monotonic=clock.monotonic).run(
        lambda _descriptor, _marks: None
    )


def test_a_source_that_drips_is_left_for_the_next_one_which_continues(tmp_path: Path) -> None:
    clock = Clock()
    dripping, brisk = source("slow", clock, 100, 5.0), source("fast", clock, 4096, 0.1)
    transfer(tmp_path, clock, [dripping, brisk])
    assert dripping.usage.received == 1200 and brisk.usage.received == len(DATA) - 1200
    assert (dripping.usage.files, brisk.usage.files) == (0, 1)


def test_the_last_source_may_drip(tmp_path: Path) -> None:
    clock = Clock()
    dripping = source("slow", clock, 100, 5.0)
    transfer(tmp_path, clock, [dripping])
    assert dripping.usage.files == 1


def lowest_limit(clock: Clock) -> Bandwidth:
    return Bandwidth(LEAST_BYTES_PER_SECOND, monotonic=clock.monotonic, sleep=clock.sleep)


def test_a_limit_on_the_bandwidth_makes_no_source_look_slow(tmp_path: Path) -> None:
    clock = Clock()
    limited = source("brisk", clock, 100, 0.01, lowest_limit(clock))
    transfer(tmp_path, clock, [limited, source("next", clock, 4096, 0.1)])
    assert len(DATA) / clock.now < 10
    assert limited.usage.files == 1 and limited.usage.received == len(DATA)


def test_under_a_limit_a_source_that_drips_is_still_left(tmp_path: Path) -> None:
    clock = Clock()
    limit = lowest_limit(clock)
    dripping, brisk = source("slow", clock, 100, 5.0, limit), source("fast", clock, 4096, 0.1, limit)
    transfer(tmp_path, clock, [dripping, brisk])
    assert dripping.usage.received == 1200 and brisk.usage.files == 1


def test_a_run_that_is_stopped_has_not_succeeded() -> None:
    stop = threading.Event()

    def fetch(_file: RepoFile) -> None:
        stop.set()

    with pytest.raises(StoppedError):
        fetch_all([FILE, RepoFile("b", 1, "sha256", "0" * 64)], fetch, workers=1, stop=stop)
