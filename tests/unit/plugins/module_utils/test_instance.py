from __future__ import annotations

import json
import os

import pytest
from ansible_collections.llmops.vllm.plugins.module_utils.errors import InvalidInputError
from ansible_collections.llmops.vllm.plugins.module_utils.instance import is_proven, read_instance
from ansible_collections.llmops.vllm.plugins.module_utils.systemd import UnitState

LAUNCH = "1" * 32


def unit(invocation=LAUNCH, state="active"):
    return UnitState("u", True, "loaded", state, "running", invocation_id=invocation, main_pid=5)


@pytest.fixture
def root(tmp_path):
    releases = tmp_path / "releases" / "kimi"
    for name, outcome in (("aaa", "proven"), ("bbb", "failed")):
        (releases / name).mkdir(parents=True)
        (releases / name / "release.json").write_text(json.dumps({"outcome": outcome, "invocation_id": LAUNCH}))
    (releases / "ccc").mkdir()
    (releases / ".composing").mkdir()
    (tmp_path / "instances" / "kimi").mkdir(parents=True)
    link(tmp_path, "current", "aaa")
    return tmp_path


def link(root, name, release):
    path = root / "instances" / "kimi" / name
    path.unlink(missing_ok=True)
    path.symlink_to(f"../../releases/kimi/{release}")
    return path


def test_links_receipts_and_releases_are_read(root):
    link(root, "previous", "bbb")
    instance = read_instance(str(root), "kimi")
    assert instance.exists and not instance.warnings
    assert instance.current.as_dict() == {
        "release_id": "aaa",
        "path": str(root / "releases/kimi/aaa"),
        "receipt": {"outcome": "proven", "invocation_id": LAUNCH},
    }
    assert (instance.previous.release_id, instance.previous.proven) == ("bbb", False)
    assert [(release.release_id, release.proven) for release in instance.releases] == [
        ("aaa", True),
        ("bbb", False),
        ("ccc", False),
    ]


def test_an_absolute_link_is_the_same(root):
    path = root / "instances" / "kimi" / "current"
    path.unlink()
    path.symlink_to(root / "releases/kimi/bbb")
    assert read_instance(str(root) + "/", "kimi").current.release_id == "bbb"


def test_nothing_there_is_no_error(tmp_path):
    instance = read_instance(str(tmp_path), "kimi")
    assert (instance.exists, instance.current, instance.previous, instance.releases) == (False, None, None, ())


@pytest.mark.parametrize(
    "target", ["/etc", "../../releases/kimi", "../../releases/other/aaa", "../../releases/kimi/aaa/x"]
)
def test_a_link_that_leads_elsewhere_is_no_release_and_is_not_read(root, target):
    path = root / "instances" / "kimi" / "current"
    path.unlink()
    path.symlink_to(target)
    instance = read_instance(str(root), "kimi")
    assert (instance.current.release_id, instance.current.receipt) == ("", None)
    assert "no release below" in instance.warnings[0]


def test_a_link_to_a_release_that_is_gone_is_said(root):
    link(root, "current", "zzz")
    assert "which is not there" in read_instance(str(root), "kimi").warnings[0]


def test_a_directory_in_place_of_a_link_is_said(root):
    path = root / "instances" / "kimi" / "current"
    path.unlink()
    path.mkdir()
    instance = read_instance(str(root), "kimi")
    assert instance.current is None and "not a readable link" in instance.warnings[0]


@pytest.mark.parametrize("content", ["{", "[]", ""])
def test_a_broken_receipt_is_none_and_said(root, content):
    (root / "releases/kimi/aaa/release.json").write_text(content)
    instance = read_instance(str(root), "kimi")
    assert instance.current.receipt is None and not instance.current.proven
    assert len(instance.warnings) == 1 and "one JSON object" in instance.warnings[0]


@pytest.mark.parametrize("name", ["", "..", "a/b", ".x", "-x", "a" * 65, "a\n"])
def test_a_name_that_leaves_the_root_is_refused(tmp_path, name):
    with pytest.raises(InvalidInputError, match="instance"):
        read_instance(str(tmp_path), name)


def test_proven_takes_the_receipt_the_unit_and_the_launch(root):
    instance = read_instance(str(root), "kimi")
    linked = instance.current.linked_seconds
    assert is_proven(instance, unit(), 0)
    assert not is_proven(instance, unit(state="failed"), linked + 5)
    assert not is_proven(instance, UnitState("u"), 0)


def test_a_restart_or_reboot_keeps_a_release_proven(root):
    instance = read_instance(str(root), "kimi")
    assert is_proven(instance, unit("2" * 32), instance.current.linked_seconds + 5)


def test_a_process_older_than_the_link_is_not_proven(root):
    os.utime(root / "instances/kimi/current", (1000, 1000), follow_symlinks=False)
    instance = read_instance(str(root), "kimi")
    assert is_proven(instance, unit("2" * 32), 1001)
    assert not is_proven(instance, unit("2" * 32), 999)
    assert not is_proven(instance, unit("2" * 32), 0)


def test_a_release_whose_launch_failed_is_not_proven(root):
    link(root, "current", "bbb")
    assert not is_proven(read_instance(str(root), "kimi"), unit(), 1e12)
