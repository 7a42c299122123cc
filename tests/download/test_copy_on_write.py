"""On file systems that can share the bytes of two files: btrfs and XFS, each made in a file for the test."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.llmops.vllm.tests.download import arrangements as arrange
from ansible_collections.llmops.vllm.tests.download import faults
from ansible_collections.llmops.vllm.tests.download.rig import SHARD, SHARD_BYTES, SHARDS, Rig, files_of

PACKAGES = {"btrfs": "btrfs-progs", "xfs": "xfsprogs"}
IMAGE_BYTES = 512 * 1024 * 1024  # mkfs.xfs makes none of less than 300 MB
EXTENT = re.compile(r"^ *\d+: +\d+\.\. +\d+: +(\d+)\.\. +(\d+): +\d+: .*?([\w,]*)$", re.MULTILINE)


@pytest.fixture(params=sorted(PACKAGES))
def rig(request: pytest.FixtureRequest, make_rig: Any, tmp_path: Path) -> Iterator[Rig]:
    """The store and what was given beside it on a file system of their own; the hub is behind it, or not."""
    kind = request.param
    mkfs = shutil.which(f"mkfs.{kind}") or shutil.which(f"mkfs.{kind}", path="/usr/sbin")
    if not mkfs:
        pytest.skip(f"mkfs.{kind} is not installed here (apt-get install {PACKAGES[kind]})")
    image, place = tmp_path / "image", tmp_path / "disk"
    place.mkdir()
    with image.open("wb") as stream:
        stream.truncate(IMAGE_BYTES)
    for command in ([mkfs, "-q", image], ["mount", "-o", "loop", image, place]):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            reason = (done.stderr or done.stdout).strip().splitlines()[0]
            pytest.skip(f"no {kind} can be made and mounted here: {reason}")
    try:
        rig: Rig = make_rig()
        rig.base, rig.store, rig.given = place, place / "store", place / "given"
        rig.parameters["store"] = str(rig.store)
        rig.given.mkdir()
        for name, data in rig.hub.files.items():
            (rig.given / name).parent.mkdir(parents=True, exist_ok=True)
            (rig.given / name).write_bytes(data)
        subprocess.run(["sync", "-f", place], check=True)
        yield rig
    finally:
        subprocess.run(["umount", place], check=True)


def shards(directory: Path) -> list[Path]:
    return [path for path in files_of(directory) if path.suffix == ".safetensors"]


def extents(path: Path) -> list[tuple[str, str, bool]]:
    """The first and last physical block of each extent, and whether other files have it too."""
    subprocess.run(["sync", "-f", path], check=True)
    listing = subprocess.run(["filefrag", "-v", path], capture_output=True, text=True, check=True).stdout
    return [(first, last, "shared" in flags.split(",")) for first, last, flags in EXTENT.findall(listing)]


def used_bytes(directory: Path) -> int:
    subprocess.run(["sync", "-f", directory], check=True)
    status = os.statvfs(directory)
    return (status.f_blocks - status.f_bfree) * status.f_frsize


def run_linked(rig: Rig, *others: dict[str, str]) -> dict[str, Any]:
    source = {"type": "directory", "path": str(rig.given), "link": "reflink"}
    return rig.run(sources=[source, *others], manifest=arrange.manifest(rig), workers=4)


def test_a_reflink_shares_every_byte_and_takes_no_room(rig: Rig) -> None:
    before = used_bytes(rig.store.parent)
    result = run_linked(rig)
    assert not result.get("failed"), result
    assert rig.judge().flawless and rig.hub.log == []
    assert len(shards(rig.snapshot)) == SHARDS
    for shard in shards(rig.snapshot):
        blocks = extents(shard)
        assert blocks and blocks == extents(rig.given / shard.name) and all(shared for _, _, shared in blocks)
    assert used_bytes(rig.store.parent) - before < SHARD_BYTES
    assert not run_linked(rig)["changed"]


def test_a_copy_shares_none(rig: Rig) -> None:
    result = rig.run(sources=[{"type": "directory", "path": str(rig.given)}], manifest=arrange.manifest(rig))
    assert not result.get("failed"), result
    assert rig.judge().flawless
    for shard in shards(rig.snapshot):
        blocks = extents(shard)
        assert blocks and not any(shared for _, _, shared in blocks)


def test_what_is_done_to_one_side_of_a_reflink_does_not_reach_the_other(rig: Rig) -> None:
    given = rig.given / SHARD
    given.chmod(0o600)
    run_linked(rig)
    assert given.stat().st_mode & 0o777 == 0o600 and (rig.snapshot / SHARD).stat().st_mode & 0o777 == 0o644
    with given.open("r+b") as stream:
        stream.write(b"other bytes")
    assert given.read_bytes() != rig.hub.files[SHARD] and rig.judge().flawless
    assert not rig.run(state="verified", manifest=arrange.manifest(rig)).get("failed")


def test_wrong_bytes_are_not_linked_but_come_from_the_next_source(rig: Rig) -> None:
    faults.flip_file(rig.given / SHARD)
    alone = run_linked(rig)
    assert alone["failed"] and SHARD in alone["msg"] and not (rig.snapshot / SHARD).exists()
    result = run_linked(rig, {"type": "hub"})
    assert not result.get("failed"), result
    assert rig.judge().flawless
    assert {used["type"]: used["files"] for used in result["sources"]}["hub"] == 1


def test_a_download_writes_there_too(rig: Rig) -> None:
    rig.fault("cdn", "truncate")
    assert rig.run(workers=4)["changed"]
    assert rig.judge().flawless
    assert not rig.run(verify="full")["changed"]
