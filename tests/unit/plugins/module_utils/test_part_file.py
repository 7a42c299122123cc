from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.llmops.vllm.plugins.module_utils import part_file
from ansible_collections.llmops.vllm.plugins.module_utils.part_file import (
    BLOCK_BYTES,
    Journal,
    Part,
    PartWriter,
    buffer_bytes_for,
    continues_at,
    resume_offset,
)
from ansible_collections.llmops.vllm.plugins.module_utils.repo_listing import SHA256, RepoFile
from hypothesis import given, settings
from hypothesis import strategies as st

FILE = RepoFile("a.safetensors", 100_000, SHA256, "ab" * 32)
BOOT = "boot-1"


def take_in(writer: PartWriter, data: bytes, step: int) -> None:
    done = 0
    while done < len(data):
        view = writer.space(min(step, len(data) - done))
        view[:] = data[done : done + len(view)]
        writer.advance(len(view))
        done += len(view)


@settings(max_examples=60)
@given(
    data=st.binary(max_size=40_000),
    step=st.integers(1, 9_000),
    blocks=st.integers(1, 4),
    direct=st.booleans(),
    sync_at=st.integers(0, 40_000),
)
def test_what_is_taken_in_is_what_the_file_holds(
    data: bytes, step: int, blocks: int, direct: bool, sync_at: int
) -> None:
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        path = os.path.join(folder, "x.part")
        writer = PartWriter(path, 0, direct=direct, buffer_bytes=blocks * BLOCK_BYTES)
        take_in(writer, data[:sync_at], step)
        safe = writer.sync()
        assert safe <= writer.position and Path(path).read_bytes() == data[:safe]
        take_in(writer, data[sync_at:], step)
        assert writer.position == len(data)
        writer.finish()
        writer.close()
        assert Path(path).read_bytes() == data


def test_a_file_system_that_refuses_direct_writes_gets_ordinary_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = PartWriter(str(tmp_path / "x.part"), 0, buffer_bytes=BLOCK_BYTES)
    real, calls = os.pwrite, []

    def pwrite(descriptor: int, data: Any, offset: int) -> int:
        calls.append(writer.direct)
        if writer.direct:
            raise OSError(errno.EINVAL, "Invalid argument")
        return real(descriptor, data, offset)

    writer.direct = True
    monkeypatch.setattr(part_file.os, "pwrite", pwrite)
    data = os.urandom(3 * BLOCK_BYTES + 5)
    take_in(writer, data, 1000)
    writer.finish()
    writer.close()
    assert (tmp_path / "x.part").read_bytes() == data
    assert calls[0] is True and not any(calls[1:])


def test_a_short_write_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.pwrite
    monkeypatch.setattr(part_file.os, "pwrite", lambda fd, data, offset: real(fd, data[:1500], offset))
    writer = PartWriter(str(tmp_path / "x.part"), 0, direct=False, buffer_bytes=2 * BLOCK_BYTES)
    data = os.urandom(5 * BLOCK_BYTES)
    take_in(writer, data, 3000)
    writer.finish()
    writer.close()
    assert (tmp_path / "x.part").read_bytes() == data


def test_a_restarted_writer_forgets_everything(tmp_path: Path) -> None:
    writer = PartWriter(str(tmp_path / "x.part"), 0, buffer_bytes=BLOCK_BYTES)
    take_in(writer, os.urandom(10_000), 4096)
    writer.restart()
    assert writer.position == 0
    take_in(writer, b"new", 4096)
    writer.finish()
    writer.close()
    assert (tmp_path / "x.part").read_bytes() == b"new"


@given(st.integers(1, 16))
def test_the_buffers_of_all_writers_stay_small_together(workers: int) -> None:
    size = buffer_bytes_for(workers)
    assert size % BLOCK_BYTES == 0 and 1024 * 1024 <= size <= 4 * 1024 * 1024
    assert workers * size <= 24 * 1024 * 1024


def test_a_writer_does_not_follow_a_link(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("precious")
    (tmp_path / "x.part").symlink_to(tmp_path / "precious")
    with pytest.raises(OSError, match="symbolic link"):
        PartWriter(str(tmp_path / "x.part"), 0)
    assert (tmp_path / "precious").read_text() == "precious"


@given(
    good=st.integers(-5, 300_000),
    length=st.integers(0, 300_000),
    written_under=st.sampled_from(["", BOOT, "boot-0"]),
    now=st.sampled_from(["", BOOT]),
)
def test_only_trusted_whole_blocks_are_continued(good: int, length: int, written_under: str, now: str) -> None:
    offset = resume_offset(Journal(FILE.digest, FILE.size, max(0, good), written_under), length, now)
    assert offset % BLOCK_BYTES == 0
    assert 0 <= offset <= min(length, FILE.size)
    if not now or written_under != now:
        assert offset <= max(0, good)


@given(first=st.integers(0, 1000), last=st.integers(0, 1000), total=st.integers(0, 1000), offset=st.integers(0, 1000))
def test_a_content_range_continues_only_at_the_very_byte_and_size(
    first: int, last: int, total: int, offset: int
) -> None:
    accepted = continues_at(f"bytes {first}-{last}/{total}", offset, 900)
    assert accepted == (first == offset and offset <= last < 900 and total == 900)


@given(st.text(max_size=40))
def test_any_other_content_range_is_refused_without_an_error(text: str) -> None:
    assert continues_at(text, 0, 10) in (False, text.strip().startswith("bytes"))


@given(st.one_of(st.binary(max_size=200), st.text(max_size=100).map(lambda text: text.encode("utf-8", "replace"))))
def test_any_damaged_journal_means_starting_over(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        part = Part(folder, FILE, BOOT)
        Path(folder, f"{FILE.digest}.json").write_bytes(content)
        Path(part.path).write_bytes(bytes(50_000))
        assert part.resumable_bytes() == 0


def test_a_journal_of_another_file_is_not_used(tmp_path: Path) -> None:
    part = Part(str(tmp_path), FILE, BOOT)
    part.save(8192, "http://a:80", '"etag"')
    Path(part.path).write_bytes(bytes(20_000))
    assert part.load() == Journal(FILE.digest, FILE.size, 8192, BOOT, "http://a:80", '"etag"')
    assert part.resumable_bytes() == 16_384
    assert Part(str(tmp_path), FILE, "boot-2").resumable_bytes() == 8192
    grown = RepoFile(FILE.path, FILE.size + 1, SHA256, FILE.digest)
    assert Part(str(tmp_path), grown, BOOT).resumable_bytes() == 0
    part.forget()
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_leaves_the_old_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    part = Part(str(tmp_path), FILE, BOOT)
    part.save(4096, "", "")

    def full(*_args: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(part_file.os, "fsync", full)
    part.save(8192, "", "")
    assert part.load().good_until == 4096
