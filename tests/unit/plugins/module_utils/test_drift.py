from __future__ import annotations

import json
from dataclasses import fields

import pytest
from ansible_collections.llmops.vllm.plugins.module_utils.deploy_lock import Lock
from ansible_collections.llmops.vllm.plugins.module_utils.drift import (
    PUT_RIGHT,
    SHOWN,
    Drift,
    Report,
    compare_api_key,
    compare_intent,
    compare_release,
    differing_parts,
    ignoring,
    is_settled,
)
from ansible_collections.llmops.vllm.plugins.module_utils.instance import Intent, read_instance
from ansible_collections.llmops.vllm.plugins.module_utils.release import release_id
from ansible_collections.llmops.vllm.tests.unit.drift_host import KEY, DriftHost, content

INTENT = [field.name for field in fields(Intent)]


@pytest.fixture
def host(tmp_path):
    return DriftHost(tmp_path)


def current(host):
    return read_instance(str(host.root), "kimi").current


def compared(host, **changes):
    report = Report()
    return compare_release(host.expected(**changes), current(host), report), report.drifts


def test_the_release_of_the_repository_has_no_drift_and_its_content(host):
    assert compared(host) == (host.content, [])


def test_another_release_is_told_with_what_it_differs_in(host):
    wanted = content(runtime="ddddeeeeffff", files={**host.content["files"], "env": "", "new": "x"})
    known, drifts = compared(host, content=wanted, release_id=release_id(wanted))
    assert known == host.content
    assert [drift.kind for drift in drifts] == ["release"]
    assert f"leads to {host.id}; the repository says {release_id(wanted)}" in drifts[0].what
    assert "(differs in: files/env, files/new, runtime)" in drifts[0].what


def test_a_host_without_the_instance_has_nothing_to_compare(host):
    (host.root / "instances/kimi/current").unlink()
    known, drifts = compared(host)
    assert known == {} and "leads to no release" in drifts[0].what


@pytest.mark.parametrize("receipt", [{"outcome": "failed"}, {}])
def test_a_release_that_has_not_proved_itself_is_drift(host, receipt):
    host.write_receipt(receipt)
    assert "proved itself" in compared(host)[1][0].what


def test_a_receipt_changed_by_hand_is_told_and_not_believed(host):
    host.write_receipt({"outcome": "proven", "content": content(runtime="other")})
    assert compared(host)[0] == host.content
    wanted = content(launcher="new")
    known, drifts = compared(host, content=wanted, release_id=release_id(wanted))
    assert known == {}
    assert ["does not describe the release" in drifts[0].what, "not known in what" in drifts[1].what] == [True, True]


def test_a_receipt_without_content_is_no_drift_while_the_release_is_the_repositorys(host):
    host.write_receipt({"outcome": "proven"})
    assert compared(host) == (host.content, [])


def test_a_content_of_another_form_is_told_but_nothing_is_compared_with_it(tmp_path):
    host = DriftHost(tmp_path)
    old = {"model": "x"}
    link = host.root / "instances/kimi/current"
    other = host.release.with_name(release_id(old))
    host.release.rename(other)
    host.release = other
    link.unlink()
    link.symlink_to(other)
    host.write_receipt({"outcome": "proven", "content": old})
    known, drifts = compared(host)
    assert known == {} and len(drifts) == 1 and "differs in: api_key_fingerprint, files" in drifts[0].what


def intended(host, lock):
    (host.root / "instances/kimi/intent.json").write_text(json.dumps({**dict.fromkeys(INTENT, ""), "target": "bbb"}))
    report = Report()
    compare_intent(read_instance(str(host.root), "kimi"), lock, report)
    return report


def test_a_rollout_that_was_interrupted_is_drift_and_one_under_way_a_note(host):
    assert "a rollout to bbb that was interrupted" in intended(host, None).drifts[0].what
    under_way = intended(host, Lock("1", "ops@here"))
    assert under_way.drifts == [] and "ops@here" in under_way.notes[0]


def test_the_same_contents_differ_in_nothing():
    assert differing_parts(content(), content()) == []
    assert differing_parts({}, {"files": {"a": ""}, "b": 1}) == ["b", "files"]


def key_drifts(host, **changes):
    report = Report()
    compare_api_key(host.expected(), {**host.content, **changes}, report)
    assert KEY not in str(report) and "sk-other" not in str(report)
    return [drift.what for drift in report.drifts]


def test_the_key_of_the_release_is_right(host):
    assert key_drifts(host) == []


def test_another_key_and_an_open_file_are_told_without_the_key(host):
    host.api_key.write_text("sk-other")
    host.api_key.chmod(0o640)
    first, second = key_drifts(host)
    assert "another key" in first and "0640" in second


def test_a_missing_key_is_told(host):
    host.api_key.unlink()
    assert key_drifts(host) == ["is missing"]
    host.api_key.symlink_to("/etc/hostname")
    assert key_drifts(host) == ["is no readable file"]


def test_an_instance_without_a_key_needs_no_file(host):
    host.api_key.unlink()
    assert key_drifts(host, api_key_fingerprint="") == []


def test_what_is_meant_to_be_is_ignored_by_kind_and_place():
    site, other = Drift("unit", "/etc/x.d/site.conf", "w"), Drift("files", "/etc/x.d/site.conf", "w")
    assert ignoring([site, other], ["unit */site.conf"]) == ([other], [site])
    assert ignoring([site, other], []) == ([site, other], [])


def test_of_very_many_differences_the_first_are_shown_and_the_rest_counted():
    report = Report()
    report.add_some("view", [(f"/m/{number:03}", "is missing") for number in range(SHOWN + 7)], "/m")
    assert len(report.drifts) == SHOWN + 1
    assert report.drifts[-1] == Drift("view", "/m", "differs in 7 further places")


def settled(host, *kinds, proven=True, **changes):
    report = Report([Drift(kind, "/somewhere", "differs") for kind in kinds])
    return is_settled(host.expected(**changes), read_instance(str(host.root), "kimi"), proven, report)


def test_nothing_is_to_be_done_where_the_release_is_proven_and_serves(host):
    assert settled(host) is True


@pytest.mark.parametrize("kind", sorted(PUT_RIGHT))
def test_what_a_deployment_puts_right_is_something_to_do(host, kind):
    assert settled(host, "unit", kind) is False


@pytest.mark.parametrize("kind", ["unit", "process", "listener", "api_key"])
def test_what_a_deployment_leaves_alone_is_nothing_to_do(host, kind):
    assert settled(host, kind) is True


def test_what_did_not_prove_itself_or_is_another_release_is_to_be_rolled_out(host):
    assert settled(host, proven=False) is False
    assert settled(host, release_id="bbbbbbbbbbbb") is False


def test_an_instance_that_is_not_there_is_to_be_rolled_out(host):
    (host.root / "instances/kimi/current").unlink()
    assert settled(host) is False
    assert settled(host, release_id="") is False


@pytest.mark.parametrize("text", [json.dumps({**dict.fromkeys(INTENT, ""), "target": "bbb"}), "{"])
def test_a_rollout_that_was_begun_and_not_ended_is_to_be_taken_up(host, text):
    (host.root / "instances/kimi/intent.json").write_text(text)
    assert settled(host) is False
