from __future__ import annotations

import os

import pytest
from ansible_collections.llmops.vllm.plugins.module_utils.drift import Report
from ansible_collections.llmops.vllm.plugins.module_utils.drift_files import compare_files, compare_view
from ansible_collections.llmops.vllm.tests.unit.drift_host import DriftHost


@pytest.fixture
def host(tmp_path):
    return DriftHost(tmp_path)


def files(host, **changes):
    report = Report()
    compare_files(host.expected(**changes), str(host.release), host.content, report)
    return [(os.path.relpath(drift.where, host.root), drift.what) for drift in report.drifts]


def view(host):
    report = Report()
    compare_view(host.expected(), str(host.release), host.content, report)
    return [(drift.kind, os.path.relpath(drift.where, host.release / "model"), drift.what) for drift in report.drifts]


def test_an_untouched_release_has_no_drift(host):
    assert files(host) == [] and view(host) == []
    assert files(host, uid=os.getuid(), gid=None) == []


def test_times_are_not_compared(host):
    for path in [*host.release.rglob("*"), host.unit_file, host.settings, host.launcher]:
        os.utime(path, (1, 1), follow_symlinks=False)
    assert files(host) == [] and view(host) == []


def test_a_changed_line_is_told_by_its_number_and_not_by_what_it_holds(host):
    path = host.release / "serve.yaml"
    path.write_text("port: 8000\nseed: 2-secret\n")
    found = files(host)
    assert [what for _where, what in found] == ["differs in line 2"]
    assert "secret" not in str(found)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("port: 8001\nseed: 2\n", "in lines 1, 2"),
        ("\n" * 20, "from line 1 on"),
        ("port: 8000\r\nseed: 1\n", "in its line ends"),
        ("x" * 2_000_000, "is much larger than it was deployed"),
    ],
)
def test_other_changes_of_a_file_are_told(host, text, what):
    (host.release / "serve.yaml").write_bytes(text.encode())
    assert what in files(host)[0][1]


def test_missing_files_modes_kinds_and_links_are_told(host):
    (host.release / "env").unlink()
    (host.release / "serve.yaml").chmod(0o666)
    (host.release / "runtime").unlink()
    (host.release / "runtime").symlink_to("/opt/other")
    host.launcher.unlink()
    host.launcher.mkdir()
    host.unit_file.chmod(0o600)
    found = dict(files(host))
    release = os.path.relpath(host.release, host.root)
    assert found.pop(f"{release}/runtime").startswith("leads to /opt/other, not to ")
    assert found == {
        f"{release}/serve.yaml": "has mode 0666, not 0640",
        f"{release}/env": "is missing",
        "etc/vllm@.service": "has mode 0600, not 0644",
        "etc/serve": "is not a regular file",
    }


def test_a_foreign_owner_is_told_where_owners_are_known(host):
    uid = os.getuid() + 1
    assert all("has owner" in what for _where, what in files(host, uid=uid))
    assert len(files(host, uid=uid)) == 8


def test_a_view_changed_by_hand_is_told_place_by_place(host):
    model = host.release / "model"
    (model / "config.json").write_text('{"a": 2}')
    (model / "tokenizer.json").chmod(0o644)
    (model / "extra.py").write_text("")
    (model / "model.safetensors").unlink()
    (model / "model.safetensors").symlink_to("/tmp/other.safetensors")
    assert view(host) == [
        ("view", "config.json", "is not what the model and its patches make"),
        ("view", "extra.py", "is not of the model"),
        ("view", "model.safetensors", "leads elsewhere"),
        ("view", "tokenizer.json", "has another owner or mode"),
    ]


def test_a_missing_file_of_the_view_and_a_file_in_place_of_a_link_are_told(host):
    model = host.release / "model"
    (model / "tokenizer.json").unlink()
    (model / "tokenizer.json").mkdir()
    (model / "config.json").unlink()
    found = view(host)
    assert ("view", "config.json", "is missing") in found
    assert ("view", "tokenizer.json", "is a directory, not a file") in found


def test_a_view_that_cannot_be_compared_says_why(host):
    model = host.release / "model"
    (model / "model.safetensors").unlink()
    (model / "model.safetensors").write_bytes(b"real")
    assert "is a real file" in view(host)[0][2]


def test_a_missing_view_and_a_missing_snapshot_are_told(host):
    (host.release / "model").rename(host.root / "away")
    assert view(host) == [("view", ".", "is missing")]
    host.snapshot.rename(host.root / "gone")
    assert [kind for kind, _where, _what in view(host)] == ["weights"]
