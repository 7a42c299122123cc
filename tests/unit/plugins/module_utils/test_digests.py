from __future__ import annotations

import hashlib
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.llmops.vllm.plugins.module_utils import digests
from ansible_collections.llmops.vllm.plugins.module_utils.digests import (
    MARK_DIGITS,
    MarkedDigester,
    StoppedError,
    examine,
)
from ansible_collections.llmops.vllm.plugins.module_utils.repo_listing import RepoFile
from ansible_collections.llmops.vllm.plugins.module_utils.shards import Sample
from hypothesis import given, settings
from hypothesis import strategies as st

CHUNK = 64


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digests, "CHUNK_BYTES", CHUNK)


def file_of(data: bytes, path: str = "a") -> RepoFile:
    return RepoFile(path, len(data), "sha256", hashlib.sha256(data).hexdigest())


def digested(data: bytes, cuts: list[int]) -> MarkedDigester:
    digester = MarkedDigester(file_of(data))
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    for start, end in zip(edges, edges[1:]):
        digester.update(memoryview(data)[start:end])
    return digester


@given(st.binary(max_size=5 * CHUNK), st.lists(st.integers(0, 5 * CHUNK), max_size=6))
def test_how_the_bytes_arrive_makes_no_difference(data: bytes, cuts: list[int]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(digests, "CHUNK_BYTES", CHUNK)
        digester = digested(data, cuts)
        assert digester.hexdigest() == hashlib.sha256(data).hexdigest() and digester.position == len(data)
        marks = [hashlib.sha256(data[:end]).hexdigest()[:MARK_DIGITS] for end in range(CHUNK, len(data), CHUNK)]
        assert digester.marks == "".join(marks)
        assert digester.agrees_with(digester.marks) and digester.copy().marks == digester.marks


def test_a_file_is_read_no_further_than_its_first_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digests, "READ_BYTES", CHUNK // 2)
    data = os.urandom(10 * CHUNK)
    marks = digested(data, []).marks
    path = tmp_path / "a"
    path.write_bytes(data)
    assert examine(str(path), file_of(data), marks, threading.Event()) == digests.Examination(True, marks)
    path.write_bytes(data[: 3 * CHUNK] + bytes(7 * CHUNK))
    found = examine(str(path), file_of(data), marks, threading.Event())
    assert not found.right and len(found.marks) == 4 * MARK_DIGITS
    assert not examine(str(path), file_of(data), "", threading.Event()).right


def test_being_stopped_is_not_being_damaged(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"data")
    stop = threading.Event()
    stop.set()
    with pytest.raises(StoppedError):
        examine(str(path), file_of(b"data"), "", stop)


def test_what_the_disk_cannot_give_is_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_args: Any) -> None:
        raise OSError(5, "Input/output error")

    path = tmp_path / "a"
    path.write_bytes(b"data")
    monkeypatch.setattr(digests, "_read", fail)
    assert not examine(str(path), file_of(b"data"), "", threading.Event()).right


@settings(max_examples=50)
@given(st.lists(st.integers(1, 1000), min_size=1, max_size=30), st.integers(1, 100), st.integers(0, 10**6))
def test_consecutive_samples_read_everything_and_not_much_more_each(
    sizes: list[int], percent: int, number: int
) -> None:
    files = [RepoFile(str(i), size, "sha256", f"{i:064x}") for i, size in enumerate(sizes)]
    rounds = -(-100 // percent)
    shares = [Sample(percent, number + turn).of(files) for turn in range(rounds + 1)]
    assert set().union(*shares) == {file.path for file in files}
    by_path = {file.path: file.size for file in files}
    for share in shares:
        assert share
        assert sum(by_path[path] for path in share) <= sum(sizes) * percent / 100 + 2 * max(sizes) + 2
    assert Sample().of(files) == set()
