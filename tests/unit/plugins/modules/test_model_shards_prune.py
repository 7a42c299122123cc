"""Snapshots that nothing uses go by policy or to make room; those in use never do."""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible_collections.llmops.vllm.plugins.module_utils import store
from ansible_collections.llmops.vllm.plugins.module_utils.snapshot_lock import SnapshotLock
from ansible_collections.llmops.vllm.tests.unit.hub_server import COMMIT, Hub

OLD = ["a" * 40, "b" * 40, "c" * 40]


@pytest.fixture
def run(run_shards: Any) -> Any:
    return run_shards


@pytest.fixture
def old(run: Any, hub: Hub, snapshot: Path) -> list[Path]:
    """Three older snapshots, wanted 300, 200 and 100 seconds before the manifest of the epoch's day 1000."""
    paths = []
    for age, commit in zip((300, 200, 100), OLD):
        hub.refs[commit] = commit
        run(revision=commit, exclude=["model-0000[23]*"])
        paths.append(snapshot.parent / commit)
        seconds = 1000 * 86400 - age
        os.utime(paths[-1] / ".llmops" / "manifest.json", (seconds, seconds))
    return paths


def use(tmp_path: Path, target: Path) -> None:
    model = tmp_path / "releases" / "kimi" / "r1" / "model"
    model.mkdir(parents=True)
    (model / "a.safetensors").symlink_to(target / "model-00001-of-00003.safetensors")


def removed(result: dict[str, Any]) -> list[str]:
    return [item["commit"] for item in result["removed"]]


def alive(paths: list[Path]) -> list[str]:
    return [path.name for path in paths if path.exists()]


def test_the_policy_keeps_those_wanted_last(run: Any, old: list[Path]) -> None:
    predicted = run(revision=COMMIT, prune={"keep": 1}, check=True, diff=True)
    assert removed(predicted) == OLD[:2] and alive(old) == OLD
    assert "files, 3" in predicted["diff"]["before"][str(old[0])]
    result = run(revision=COMMIT, prune={"keep": 1})
    assert result["changed"] and removed(result) == OLD[:2] and alive(old) == OLD[2:]
    assert result["freed_bytes"] == predicted["freed_bytes"] == sum(item["freed_bytes"] for item in result["removed"])
    again = run(revision=COMMIT, prune={"keep": 1})
    assert not again["changed"] and again["removed"] == []


def test_what_is_linked_locked_or_young_stays(run: Any, old: list[Path], tmp_path: Path) -> None:
    use(tmp_path, old[0])
    os.utime(old[1] / ".llmops" / "manifest.json")
    path = tmp_path / "store" / ".llmops" / f"acme--tiny-model--{OLD[2]}.lock"
    with SnapshotLock(str(path), timeout_seconds=0, sleep=lambda _s: None, monotonic=lambda: 0.0):
        assert removed(run(revision=COMMIT, prune={"keep": 0, "min_age_seconds": 3600})) == []
    assert alive(old) == OLD
    assert removed(run(revision=COMMIT, prune={"keep": 0, "min_age_seconds": 3600})) == [OLD[2]]
    assert removed(run(revision=COMMIT, prune={"keep": 0})) == [OLD[1]]
    assert alive(old) == [OLD[0]]


def test_being_wanted_again_makes_a_snapshot_young(run: Any, old: list[Path]) -> None:
    assert not run(revision=OLD[0], exclude=["model-0000[23]*"])["changed"]
    assert removed(run(revision=COMMIT, prune={"keep": 1})) == OLD[1:]


def test_being_wanted_within_the_hour_writes_nothing(run: Any, old: list[Path]) -> None:
    mark = old[0] / ".llmops" / "manifest.json"
    seconds = time.time() - 3000
    os.utime(mark, (seconds, seconds))
    assert not run(revision=OLD[0], exclude=["model-0000[23]*"])["changed"]
    assert mark.stat().st_mtime == pytest.approx(seconds, abs=1)


def test_a_run_without_a_policy_removes_nothing(run: Any, old: list[Path]) -> None:
    assert removed(run(revision=COMMIT)) == [] and alive(old) == OLD


@pytest.fixture
def small_disk(monkeypatch: pytest.MonkeyPatch, snapshot: Path) -> dict[str, int]:
    """A disk that holds so many bytes."""
    disk = {"bytes": 0}
    real = store.check_room

    def statvfs(_path: str) -> Any:
        used = sum(path.stat().st_size for path in snapshot.parent.rglob("*") if path.is_file())
        return SimpleNamespace(f_bavail=disk["bytes"] - used, f_frsize=1, f_files=0, f_favail=0)

    def check_room(path: str, **params: Any) -> None:
        real(path, **params, statvfs=statvfs)

    monkeypatch.setattr("ansible_collections.llmops.vllm.plugins.module_utils.shards.check_room", check_room)
    return disk


def test_room_is_made_only_when_asked_and_no_more_than_needed(
    run: Any, hub: Hub, snapshot: Path, old: list[Path], small_disk: dict[str, int], tmp_path: Path
) -> None:
    small_disk["bytes"] = 1_600_000  # some 910,000 are taken, 900,048 are needed
    refused = run(revision=COMMIT)
    assert refused["failed"] and "choose another store" in refused["msg"] and alive(old) == OLD
    use(tmp_path, old[0])
    predicted = run(revision=COMMIT, make_room=True, check=True)
    assert removed(predicted) == [OLD[1]] and alive(old) == OLD
    result = run(revision=COMMIT, make_room=True)
    assert removed(result) == [OLD[1]] and alive(old) == [OLD[0], OLD[2]]
    assert result["freed_bytes"] >= 300_000
    assert (snapshot / "model-00003-of-00003.safetensors").exists()


def test_nothing_is_removed_when_it_would_not_be_enough(
    run: Any, old: list[Path], small_disk: dict[str, int], snapshot: Path
) -> None:
    small_disk["bytes"] = 899_000
    result = run(revision=COMMIT, make_room=True)
    assert result["failed"] and "Removing the 3 snapshots that nothing uses would free" in result["msg"]
    assert alive(old) == OLD and not snapshot.exists()


def test_a_negative_number_is_refused(run: Any) -> None:
    assert "keep of prune must not be negative" in run(prune={"keep": -1})["msg"]
