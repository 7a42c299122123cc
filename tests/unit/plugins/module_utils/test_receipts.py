from __future__ import annotations

import hashlib
import json
import os
import stat

import pytest
from ansible_collections.llmops.vllm.plugins.module_utils.audit import append_record, read_records
from ansible_collections.llmops.vllm.plugins.module_utils.errors import InvalidInputError, PreconditionError
from ansible_collections.llmops.vllm.plugins.module_utils.receipts import plan_receipt
from ansible_collections.llmops.vllm.plugins.module_utils.release_switch import Place

DRIVER = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build\n"


@pytest.fixture
def place(tmp_path):
    root = tmp_path / "llm"
    release = root / "releases/kimi/aaa"
    runtime = root / "runtimes/r1"
    packages = runtime / "lib/python3.12/site-packages"
    packages.mkdir(parents=True)
    (packages / "vllm-0.32.0.dist-info").mkdir()
    (runtime / "runtime.lock").write_text("vllm==0.32.0")
    (release / "model").mkdir(parents=True)
    (release / "runtime").symlink_to(runtime)
    (release / "vllm@.service").write_text("unit")
    (release / "instance.conf").write_text("settings")
    snapshot = root / "store/org--name/abc"
    (snapshot / ".llmops").mkdir(parents=True)
    (snapshot / ".llmops/manifest.json").write_text("manifest")
    (release / "model/config.json").write_text("{}")
    (release / "model/m.safetensors").symlink_to(snapshot / "m.safetensors")
    (tmp_path / "proc/driver/nvidia").mkdir(parents=True)
    (tmp_path / "proc/driver/nvidia/version").write_text(DRIVER)
    return Place("kimi", str(root), str(tmp_path / "run"))


def keep(place, replaces_own=True, retain=0, **more):
    receipt = {"release": "aaa", "outcome": "proven", "time": "2026-03-01T10:00:00Z", "action": "deploy", **more}
    plan = plan_receipt(
        place, receipt, replaces_own=replaces_own, retain=retain, proc=os.path.join(place.root, "../proc")
    )
    plan.apply()
    return plan


def own(place):
    with open(place.release("aaa") + "/release.json") as stream:
        return json.load(stream)


def kept(place):
    return sorted(os.listdir(os.path.join(place.root, "receipts/kimi")))


def sha256(text):
    return hashlib.sha256(text.encode()).hexdigest()


def test_a_receipt_says_what_the_host_knows_about_the_release(place):
    keep(place)
    evidence = own(place)["evidence"]
    assert evidence["packages"] == {"vllm": "0.32.0"} and evidence["driver"] == "580.95.05"
    assert evidence["manifest_sha256"] == sha256("manifest") and evidence["unit_sha256"] == sha256("unitsettings")
    assert evidence["runtime_lock_sha256"] == sha256("vllm==0.32.0")


def test_it_stays_when_the_release_goes_and_is_one_line_of_the_record(place):
    keep(place, run={"id": "r", "holder": "ops@one", "git_commit": "c"}, replaced="nothing", canaries=["long"])
    assert kept(place) == ["2026-03-01T100000Z-aaa.json"]
    record = read_records(os.path.join(place.root, "audit.jsonl"))[0]
    assert record["run"]["git_commit"] == "c" and record["outcome"] == "proven" and "canaries" not in record


def test_what_was_found_when_it_was_composed_is_carried_on(place):
    keep(place, evidence={"preflight": {"verdict": "go"}, "patches": []})
    keep(place, time="2026-03-02T10:00:00Z", evidence={"preflight": None})
    assert own(place)["evidence"]["preflight"] == {"verdict": "go"}


def test_a_receipt_beside_the_own_one_leaves_it_proven(place):
    keep(place)
    keep(place, replaces_own=False, outcome="failed", time="2026-03-02T10:00:00Z")
    assert own(place)["outcome"] == "proven" and len(kept(place)) == 2


def test_the_oldest_go_first_and_never_the_new_one(place):
    for day in (3, 4, 5, 1):
        keep(place, retain=2, time=f"2026-03-0{day}T10:00:00Z")
    assert kept(place) == ["2026-03-01T100000Z-aaa.json", "2026-03-05T100000Z-aaa.json"]
    assert len(read_records(os.path.join(place.root, "audit.jsonl"))) == 4


def test_a_release_without_runtime_model_and_gpu_has_a_receipt_as_well(place, tmp_path):
    bare = tmp_path / "llm/releases/kimi/bbb"
    bare.mkdir()
    keep(place, release="bbb")
    evidence = json.loads((bare / "release.json").read_text())["evidence"]
    assert (evidence["unit_sha256"], evidence["packages"], evidence["manifest_sha256"]) == ("", {}, "")


@pytest.mark.parametrize("bad", [{"time": "yesterday"}, {"time": "../x"}, {"release": "../aaa"}, {"release": ""}])
def test_what_would_lead_elsewhere_is_refused(place, bad):
    with pytest.raises(InvalidInputError):
        keep(place, **bad)
    assert not os.path.exists(os.path.join(place.root, "receipts"))


def test_a_release_that_is_not_there_is_refused(place):
    with pytest.raises(PreconditionError, match="no directory"):
        keep(place, release="zzz")


def test_lines_are_appended_for_root_and_group_only(tmp_path):
    path = tmp_path / "new/audit.jsonl"
    old = os.umask(0o022)
    try:
        append_record(str(path), {"a": 1})
    finally:
        os.umask(old)
    append_record(str(path), {"b": "two\nlines"})
    assert read_records(str(path)) == [{"a": 1}, {"b": "two\nlines"}]
    assert stat.S_IMODE(path.stat().st_mode) == 0o640 and len(path.read_text().splitlines()) == 2


def test_a_torn_line_spoils_no_other(tmp_path):
    path = tmp_path / "audit.jsonl"
    path.write_text('{"a": 1}\n{"tor')
    append_record(str(path), {"b": 2})
    assert read_records(str(path)) == [{"a": 1}, {"b": 2}]


def test_a_link_in_place_of_the_record_is_not_followed(tmp_path):
    (tmp_path / "audit.jsonl").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PreconditionError, match="append"):
        append_record(str(tmp_path / "audit.jsonl"), {})
    assert not (tmp_path / "elsewhere").exists()


def test_no_record_is_no_error(tmp_path):
    assert read_records(str(tmp_path / "audit.jsonl")) == []
