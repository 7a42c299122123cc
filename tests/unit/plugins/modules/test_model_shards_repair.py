"""Damage is found, located, and repaired without fetching more than what is wrong; a check changes nothing."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.llmops.vllm.plugins.module_utils import digests, shards
from ansible_collections.llmops.vllm.plugins.module_utils.errors import PreconditionError
from ansible_collections.llmops.vllm.tests.unit.hub_server import COMMIT, Hub, sha256_of

SHARD = "model-00002-of-00003.safetensors"
CHUNK = 32 * 1024


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch, hub: Hub) -> Iterator[None]:
    monkeypatch.setattr(digests, "CHUNK_BYTES", CHUNK)
    hub.files[SHARD] = os.urandom(10 * CHUNK - 100)
    yield


@pytest.fixture
def run(run_shards: Any) -> Any:
    return run_shards


def damage(path: Path, *offsets: int) -> None:
    before = os.stat(path)
    with path.open("r+b") as stream:
        for offset in offsets:
            stream.seek(offset)
            byte = stream.read(1)
            stream.seek(offset)
            stream.write(bytes([byte[0] ^ 1]))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def assert_right(snapshot: Path, hub: Hub) -> None:
    for name, data in hub.files.items():
        assert (snapshot / name).read_bytes() == data
    assert not (snapshot / ".llmops" / "partial").exists()


@pytest.mark.parametrize(
    ("offsets", "chunks"),
    [((0,), 1), ((CHUNK - 1, CHUNK), 2), ((3 * CHUNK + 5, 3 * CHUNK + 500, 7 * CHUNK), 2), ((10 * CHUNK - 101,), 1)],
)
def test_only_the_chunks_that_are_wrong_are_fetched(
    run: Any, hub: Hub, snapshot: Path, offsets: tuple[int, ...], chunks: int
) -> None:
    run()
    damage(snapshot / SHARD, *offsets)
    with (snapshot / SHARD).open("rb") as mapped:
        hub.log.clear()
        result = run(verify="full", revision=COMMIT)
        assert result["changed"] and result["damaged"] == [SHARD], result
        assert result["fetched_bytes"] <= chunks * CHUNK
        assert result["fetched_bytes"] + result["reused_bytes"] == result["total_bytes"]
        assert len(hub.requests_to("cdn")) == chunks
        assert mapped.read() != hub.files[SHARD], "the damaged file itself is not written"
    assert_right(snapshot, hub)
    assert not run(verify="full", revision=COMMIT)["changed"]


def test_a_file_cut_short_is_continued(run: Any, hub: Hub, snapshot: Path) -> None:
    run()
    os.truncate(snapshot / SHARD, 6 * CHUNK + 10)
    result = run(revision=COMMIT)
    assert result["fetched_bytes"] == len(hub.files[SHARD]) - 6 * CHUNK
    assert_right(snapshot, hub)


def test_without_ranges_the_rest_of_the_file_is_fetched(run: Any, hub: Hub, snapshot: Path) -> None:
    run()
    damage(snapshot / SHARD, 4 * CHUNK)
    hub.fault("cdn", "ignore_range", times=2, path=SHARD)
    result = run(verify="full", revision=COMMIT)
    assert result["fetched_bytes"] == len(hub.files[SHARD])
    assert_right(snapshot, hub)


def test_a_wrong_chunk_from_one_source_comes_from_the_next(run: Any, hub: Hub, snapshot: Path, tmp_path: Path) -> None:
    run()
    damage(snapshot / SHARD, 4 * CHUNK)
    usb = tmp_path / "usb"
    usb.mkdir()
    (usb / SHARD).write_bytes(hub.files[SHARD])
    damage(usb / SHARD, 4 * CHUNK + 9)
    hub.log.clear()
    sources = [{"type": "directory", "path": str(usb)}, {"type": "hub"}]
    run(verify="full", revision=COMMIT, sources=sources)
    assert_right(snapshot, hub)
    assert [headers["Range"] for _where, _path, headers in hub.requests_to("cdn")] == [
        f"bytes={4 * CHUNK}-{5 * CHUNK - 1}"
    ]


def test_a_repair_that_fails_leaves_no_wrong_file_and_the_next_run_repairs(run: Any, hub: Hub, snapshot: Path) -> None:
    run()
    damage(snapshot / SHARD, 4 * CHUNK)
    hub.fault("resolve", "404", times=2, path=SHARD)
    assert run(verify="full", revision=COMMIT)["failed"]
    assert not (snapshot / SHARD).exists()
    hub.log.clear()
    result = run(revision=COMMIT)
    assert result["fetched_bytes"] == CHUNK
    assert_right(snapshot, hub)


def test_a_broken_connection_is_retried_within_the_chunk(run: Any, hub: Hub, snapshot: Path) -> None:
    run()
    damage(snapshot / SHARD, 4 * CHUNK)
    hub.truncate_after = 1000
    hub.fault("cdn", "truncate", path=SHARD)
    result = run(verify="full", revision=COMMIT)
    assert result["fetched_bytes"] == CHUNK + 1000
    assert_right(snapshot, hub)


def test_without_room_for_a_second_version_the_file_is_fetched_whole(
    run: Any, hub: Hub, snapshot: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run()
    damage(snapshot / SHARD, 4 * CHUNK)

    def check_room(_path: str, *, needed_bytes: int, **_others: Any) -> None:
        if needed_bytes:
            raise PreconditionError("full")

    monkeypatch.setattr(shards, "check_room", check_room)
    assert run(verify="full", revision=COMMIT)["fetched_bytes"] == len(hub.files[SHARD])
    assert_right(snapshot, hub)


def test_marks_of_another_chunk_size_or_of_an_older_manifest_are_made_anew_when_all_is_read(
    run: Any, hub: Hub, snapshot: Path
) -> None:
    run()
    path = snapshot / ".llmops" / "manifest.json"
    data = json.loads(path.read_text())
    assert next(len(item["marks"]) for item in data["files"] if item["path"] == SHARD) == 9 * digests.MARK_DIGITS
    path.write_text(json.dumps({**data, "chunk_bytes": 1}))
    assert not run(verify="full", revision=COMMIT)["changed"]
    assert json.loads(path.read_text()) == data


def test_marks_survive_a_resumed_download(run: Any, hub: Hub, snapshot: Path) -> None:
    run()
    expected = (snapshot / ".llmops" / "manifest.json").read_text()
    for path in snapshot.glob("*.safetensors"):
        path.unlink()
    hub.fault("cdn", "truncate", path=SHARD)
    run(revision=COMMIT)
    marks = [item.get("marks") for item in json.loads((snapshot / ".llmops" / "manifest.json").read_text())["files"]]
    assert marks == [item.get("marks") for item in json.loads(expected)["files"]]


def test_state_verified_reads_everything_says_what_is_wrong_and_writes_nothing(
    run: Any, hub: Hub, snapshot: Path
) -> None:
    assert "missing" in run(state="verified")["msg"]
    assert not snapshot.parent.parent.exists()
    run()
    result = run(state="verified", revision=COMMIT)
    assert not result.get("failed") and not result["changed"] and result["files"] == 6
    damage(snapshot / SHARD, 4 * CHUNK)
    (snapshot / "config.json").chmod(0o600)
    (snapshot / "empty").unlink()
    (snapshot / "model-extra.safetensors").write_bytes(b"x")
    before = {path: (path.lstat().st_mtime_ns, path.lstat().st_ctime_ns) for path in snapshot.rglob("*")}
    hub.log.clear()
    result = run(state="verified", revision=COMMIT)
    assert result["failed"] and hub.log == []
    assert sorted(result["wrong"]) == [
        "empty: missing",
        "mode of config.json: 0600, not 0644",
        "model-00002-of-00003.safetensors: damaged, wrong digest",
        "model-extra.safetensors: does not belong to the commit",
    ]
    assert "state=present" in result["msg"] and SHARD in result["msg"]
    assert {path: (path.lstat().st_mtime_ns, path.lstat().st_ctime_ns) for path in snapshot.rglob("*")} == before


def test_consecutive_samples_go_round_all_files(run: Any, hub: Hub, snapshot: Path) -> None:
    run()
    for name in hub.files:
        damage(snapshot / name, 0) if hub.files[name] else None
    # the manifest is made to believe in the damaged files, as if bits had rotten on the disk
    path = snapshot / ".llmops" / "manifest.json"
    data = json.loads(path.read_text())
    for item in data["files"]:
        item["ctime_ns"] = os.stat(snapshot / item["path"]).st_ctime_ns
    path.write_text(json.dumps(data))
    assert not run(revision=COMMIT, check=True)["changed"]
    found: set[str] = set()
    for number in range(5):
        result = run(revision=COMMIT, check=True, verify="sample", sample_percent=20, sample_number=number)
        assert 0 < len(result["damaged"]) < 5
        found.update(result["damaged"])
    assert found == {name for name, content in hub.files.items() if content}


@pytest.mark.parametrize("percent", [0, 101])
def test_a_sample_is_some_percent(run: Any, percent: int) -> None:
    assert "sample_percent must be from 1 to 100" in run(verify="sample", sample_percent=percent)["msg"]


def test_a_peer_can_repair_too(run: Any, hub: Hub, snapshot: Path, tmp_path: Path) -> None:
    run(store=str(tmp_path / "seed"), publish_blobs=True)
    run()
    damage(snapshot / SHARD, CHUNK)
    own = {"type": "directory", "path": str(tmp_path / "seed" / ".llmops"), "link": "reflink"}
    result = run(revision=COMMIT, verify="full", sources=[own])
    assert result["fetched_bytes"] == CHUNK
    assert sha256_of((snapshot / SHARD).read_bytes()) == sha256_of(hub.files[SHARD])
