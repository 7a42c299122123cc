from __future__ import annotations

import os

import pytest
from ansible_collections.llmops.vllm.plugins.module_utils.drift import Report
from ansible_collections.llmops.vllm.plugins.module_utils.drift_weights import compare_weights
from ansible_collections.llmops.vllm.plugins.module_utils.repo_listing import Listing
from ansible_collections.llmops.vllm.plugins.module_utils.shards import Wish
from ansible_collections.llmops.vllm.plugins.module_utils.store import Attributes
from ansible_collections.llmops.vllm.tests.unit.drift_host import COMMIT, DriftHost

WANTED = Attributes(0o640, 0o750)


@pytest.fixture
def host(tmp_path):
    host = DriftHost(tmp_path)
    host.finish_download()
    return host


def weights(host, report=None, **wish):
    report = report or Report()
    compare_weights(host.expected(), Wish(**{"attributes": WANTED, **wish}), report)
    assert all((drift.kind, drift.where) == ("weights", str(host.snapshot)) for drift in report.drifts)
    return [drift.what for drift in report.drifts]


def rewritten(host, **changes):
    host.manifest.unlink()
    host.manifest.parent.rmdir()
    host.finish_download(**changes)


def test_a_snapshot_as_its_download_has_left_it_has_no_drift(host):
    assert weights(host) == []


def test_files_that_are_missing_cut_or_open_to_others_are_named(host):
    (host.snapshot / "config.json").unlink()
    assert weights(host) == ["differs in config.json"]
    os.truncate(host.snapshot / "model.safetensors", 3)
    (host.snapshot / "tokenizer.json").chmod(0o666)
    assert weights(host) == ["differs in config.json, mode of tokenizer.json, model.safetensors"]


def test_of_many_differences_the_first_are_named_and_the_rest_counted(host):
    for path in host.snapshot.glob("[!.]*"):
        path.chmod(0o644)
    host.snapshot.chmod(0o755)
    (said,) = weights(host)
    assert said == "differs in mode of ., mode of config.json, mode of model.safetensors and 1 more"


def test_a_group_that_may_not_read_the_files_is_told(host):
    gid = host.snapshot.stat().st_gid
    assert weights(host, attributes=Attributes(0o640, 0o750, gid=gid)) == []
    (said,) = weights(host, attributes=Attributes(0o640, 0o750, gid=gid + 1))
    assert "group of " in said


def test_a_file_of_the_same_size_that_was_written_since_is_told(host):
    (host.snapshot / "model.safetensors").write_bytes(b"WEIGHTS")
    assert weights(host) == ["has files that were touched since they were verified: model.safetensors"]


@pytest.mark.parametrize(
    "changes",
    [{"complete": False}, {"include": ("*.json",)}, {"exclude": ("*.md",)}],
    ids=["part", "include", "exclude"],
)
def test_a_download_that_did_not_end_or_was_of_other_files_is_told(host, changes):
    rewritten(host, **changes)
    assert weights(host) == ["was not left as a whole download leaves it"]


def test_files_that_were_chosen_are_right_without_the_others(host):
    (host.snapshot / "model.safetensors").unlink()
    rewritten(host, include=("*.json",))
    assert weights(host, include=("*.json",)) == []


def test_a_snapshot_that_other_hosts_shall_take_from_needs_second_names(host):
    assert weights(host, publish=True) == ["differs in published blobs"]


def test_a_snapshot_that_is_not_there_is_told_once(host):
    host.snapshot.rename(host.root / "elsewhere")
    assert weights(host) == ["is missing"]
    told = Report()
    told.add("weights", str(host.snapshot), "is missing")
    assert weights(host, told) == ["is missing"]


@pytest.mark.parametrize("text", [None, "{", "[]"])
def test_a_snapshot_without_a_manifest_that_can_be_read_is_told(host, text):
    host.manifest.unlink()
    if text is not None:
        host.manifest.write_text(text)
    assert weights(host) == ["has no manifest that says what belongs to it"]


@pytest.mark.parametrize("listing", [Listing("acme/other", COMMIT, ()), Listing("acme/tiny", "f" * 40, ())])
def test_the_manifest_of_another_model_or_commit_is_not_believed(host, listing):
    rewritten(host, listing=listing, records={})
    assert weights(host) == ["has no manifest that says what belongs to it"]


def test_a_link_in_the_place_of_a_file_cannot_be_compared(host):
    (host.snapshot / "config.json").unlink()
    (host.snapshot / "config.json").symlink_to("/etc/hostname")
    (said,) = weights(host)
    assert said.startswith("cannot be compared: ") and "config.json" in said


def test_nothing_is_read_and_nothing_written(host, monkeypatch):
    before = {path: path.lstat() for path in host.root.rglob("*")}
    monkeypatch.setattr("ansible_collections.llmops.vllm.plugins.module_utils.shards.examine", pytest.fail)
    weights(host, publish=True)
    assert {path: path.lstat().st_mtime_ns for path in host.root.rglob("*")} == {
        path: status.st_mtime_ns for path, status in before.items()
    }
