from __future__ import annotations

import json
import os
import shutil
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.llmops.vllm.tests.unit.hub_server import COMMIT, REPO, TOKEN, Hub, git_sha1, sha256_of


@pytest.fixture
def run(run_shards: Any) -> Any:
    return run_shards


def everything(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*"))


def warnings_of(result: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> str:
    """Where a warning shows up in a process that is no AnsiballZ module depends on the version of ansible-core."""
    return str(result.get("warnings")) + capsys.readouterr().err


def assert_content(snapshot: Path, hub: Hub) -> None:
    for path, data in hub.files.items():
        assert (snapshot / path).read_bytes() == data


def test_first_run_makes_the_snapshot_present_with_modes_and_manifest(run: Any, hub: Hub, snapshot: Path) -> None:
    result = run()
    total = sum(map(len, hub.files.values()))
    assert result["changed"], result
    assert result["path"] == str(snapshot)
    assert (result["repo"], result["commit"], result["files"]) == (REPO, COMMIT, len(hub.files))
    assert (result["total_bytes"], result["fetched_bytes"], result["reused_bytes"]) == (total, total, 0)
    assert result["requests"] == len(hub.log)
    assert_content(snapshot, hub)
    assert not (snapshot / ".llmops" / "partial").exists()
    manifest = json.loads((snapshot / ".llmops" / "manifest.json").read_text())
    assert manifest["complete"] and manifest["repo"] == REPO and manifest["commit"] == COMMIT
    shard = next(item for item in manifest["files"] if item["path"].endswith(".safetensors"))
    status = os.stat(snapshot / shard["path"])
    assert shard["algorithm"] == "sha256"
    assert (shard["mtime_ns"], shard["ctime_ns"], shard["inode"]) == (
        status.st_mtime_ns,
        status.st_ctime_ns,
        status.st_ino,
    )
    assert status.st_mode & 0o7777 == 0o644
    assert os.stat(snapshot).st_mode & 0o7777 == 0o755


def test_second_run_changes_nothing_and_asks_the_hub_once(run: Any, hub: Hub) -> None:
    run()
    hub.log.clear()
    result = run()
    assert not result["changed"]
    assert result["requests"] == 1 and len(hub.log) == 1
    assert result["fetched_bytes"] == 0 and result["reused_bytes"] == result["total_bytes"]


def test_a_complete_pinned_snapshot_needs_neither_network_nor_requests(
    run: Any, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(revision=COMMIT)
    hub.log.clear()
    monkeypatch.setitem(sys.modules, "requests", None)
    result = run(revision=COMMIT)
    assert not result["changed"] and result["requests"] == 0 and hub.log == []


def test_check_mode_says_what_would_be_fetched_and_writes_nothing(run: Any, hub: Hub, tmp_path: Path) -> None:
    result = run(check=True, diff=True)
    assert result["changed"]
    assert result["fetched_bytes"] == result["total_bytes"] == sum(map(len, hub.files.values()))
    assert result["diff"]["before"]["config.json"] == "missing"
    assert result["diff"]["after"]["config.json"] == "present, 23 bytes"
    assert everything(tmp_path) == []
    assert hub.requests_to("resolve") == []


def test_check_mode_after_the_run_reports_no_difference(run: Any) -> None:
    run()
    result = run(check=True, diff=True)
    assert not result["changed"] and result["diff"] == {"before": {}, "after": {}}


def test_the_token_reaches_the_endpoint_and_never_the_content_network_or_the_result(
    run: Any, hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login other password other\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    hub.token = TOKEN
    result = run(token=TOKEN)
    assert result["changed"], result
    assert all("Authorization" not in headers for _where, _path, headers in hub.requests_to("cdn"))
    assert all(headers["Authorization"] == f"Bearer {TOKEN}" for _where, _path, headers in hub.requests_to("resolve"))
    assert TOKEN not in json.dumps({**result, "invocation": None})


def test_a_token_file_is_used_only_when_nobody_else_can_read_it(run: Any, hub: Hub, tmp_path: Path) -> None:
    hub.token = TOKEN
    path = tmp_path / "token"
    path.write_text(f"{TOKEN}\n")
    path.chmod(0o640)
    refused = run(token_file=str(path))
    assert refused["failed"] and "0640" in refused["msg"]
    path.chmod(0o600)
    assert run(token_file=str(path))["changed"]


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"repo": "acme/missing"}, "There is no repository acme/missing"),
        ({"revision": "no-such"}, "has no branch, tag or commit 'no-such'"),
        ({"repo": "no-slash"}, "org/name"),
        ({"repo": "../../etc"}, "org/name"),
        ({"revision": ""}, "revision must be"),
        ({"workers": 17}, "workers must be from 1 to 16"),
        ({"file_mode": "420"}, "file_mode must be a quoted octal string"),
        ({"directory_mode": "0644"}, "directory_mode must be"),
        ({"store": "relative"}, "store"),
        ({"endpoint": "ftp://hub"}, "endpoint must be an http(s) URL"),
        ({"endpoint": "http://user:pw@hub"}, "endpoint must be an http(s) URL"),
        ({"owner": "no-such-user"}, "owner 'no-such-user' is no user of this host"),
        ({"include": ["*.gguf"]}, "leave none of the 6 files"),
        ({"state": "absent"}, "full commit id"),
        ({"ca_path": "/no/such/bundle"}, "does not exist"),
        ({"reserve_bytes": 2**62}, "shall stay free"),
        ({"token": "two words"}, "token must hold one token"),
    ],
)
def test_bad_input_fails_with_one_sentence_and_writes_nothing(
    run: Any, tmp_path: Path, params: dict[str, Any], words: str
) -> None:
    if params.get("store") == "relative":
        params = {"store": "/"}
    result = run(**params)
    assert result["failed"] and words in result["msg"], result["msg"]
    assert everything(tmp_path) == []


def test_private_and_gated_repositories_say_what_to_do(run: Any, hub: Hub) -> None:
    hub.token = TOKEN
    assert "give a token" in run()["msg"]
    assert "the token given is wrong" in run(token="hf_other")["msg"]
    hub.token, hub.gated = None, True
    assert "accept its licence" in run()["msg"]


def test_missing_requests_fails_by_name_and_only_warns_in_check_mode(
    run: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "requests", None)
    assert "python3-requests" in run()["msg"]
    result = run(check=True)
    assert result["changed"] and "python3-requests" in warnings_of(result, capsys)


def test_an_owner_that_does_not_exist_yet_is_a_warning_in_check_mode(
    run: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    result = run(check=True, owner="nobody-yet")
    assert not result.get("failed") and "nobody-yet" in warnings_of(result, capsys)


def test_a_changed_mode_is_repaired_without_fetching(run: Any, snapshot: Path) -> None:
    run()
    (snapshot / "config.json").chmod(0o600)
    result = run(diff=True)
    assert result["changed"] and result["fetched_bytes"] == 0
    assert result["diff"] == {"before": {"mode of config.json": "0600"}, "after": {"mode of config.json": "0644"}}
    assert not run()["changed"]


def test_a_damaged_shard_is_found_by_full_verification_and_fetched_again(run: Any, hub: Hub, snapshot: Path) -> None:
    run()
    shard = snapshot / "model-00002-of-00003.safetensors"
    before = os.stat(shard)
    data = bytearray(shard.read_bytes())
    data[1000] ^= 1
    shard.write_bytes(data)
    os.utime(shard, ns=(before.st_atime_ns, before.st_mtime_ns))
    predicted = run(verify="full", check=True)
    assert predicted["changed"] and predicted["damaged"] == [shard.name]
    result = run(verify="full")
    assert result["changed"] and result["damaged"] == [shard.name]
    assert result["fetched_bytes"] == len(data)
    assert_content(snapshot, hub)
    assert not run(verify="full")["changed"]


def test_absent_removes_the_snapshot_and_says_what_is_freed(run: Any, snapshot: Path) -> None:
    run()
    predicted = run(state="absent", revision=COMMIT, check=True)
    assert snapshot.is_dir()
    result = run(state="absent", revision=COMMIT)
    assert result["changed"] and predicted["changed"]
    assert result["freed_bytes"] == predicted["freed_bytes"] > 900_000
    assert not snapshot.parent.exists()
    assert not run(state="absent", revision=COMMIT)["changed"]


def test_absent_refuses_while_a_release_links_into_the_snapshot(run: Any, snapshot: Path, tmp_path: Path) -> None:
    run()
    model = tmp_path / "releases" / "kimi" / "3f2a9c" / "model"
    model.mkdir(parents=True)
    (model / "a.safetensors").symlink_to(snapshot / "model-00001-of-00003.safetensors")
    for check in (True, False):
        result = run(state="absent", revision=COMMIT, check=check)
        assert result["failed"] and "kimi/3f2a9c" in result["msg"] and result["used_by"] == ["kimi/3f2a9c"]
    assert snapshot.is_dir()


def test_the_metadata_of_the_hubs_own_client_lies_beside_and_is_no_change(run: Any, hub: Hub, snapshot: Path) -> None:
    run(file_mode="0640", directory_mode="0750")
    folder = snapshot / ".cache" / "huggingface" / "download"
    for name, data in hub.files.items():
        commit, etag, seconds = (folder / f"{name}.metadata").read_text().splitlines()
        assert (commit, etag) == (COMMIT, sha256_of(data) if name.endswith(".safetensors") else git_sha1(data))
        assert os.stat(snapshot / name).st_mtime <= float(seconds)
    assert os.stat(folder).st_mode & 0o7777 == 0o750
    assert os.stat(folder / "config.json.metadata").st_mode & 0o7777 == 0o640
    shutil.rmtree(snapshot / ".cache")
    assert not run(revision=COMMIT, file_mode="0640", directory_mode="0750")["changed"]
    assert (folder / "config.json.metadata").exists()
    (snapshot / "config.json").unlink()
    os.utime(folder / "config.json.metadata", (0, 0))
    (folder / "config.json.metadata").write_text("old")
    run(file_mode="0640", directory_mode="0750")
    assert (folder / "config.json.metadata").read_text().startswith(COMMIT)
    assert not run(state="verified", file_mode="0640", directory_mode="0750").get("failed")


def test_a_repository_with_files_of_that_name_keeps_them(run: Any, hub: Hub, snapshot: Path) -> None:
    hub.files[".cache/huggingface/download/config.json.metadata"] = b"from the repository"
    run()
    assert_content(snapshot, hub)
    assert not (snapshot / ".cache" / "huggingface" / "download" / "empty.metadata").exists()
    assert not run(revision=COMMIT)["changed"]


def test_a_proxy_is_used_for_everything_and_its_password_is_nowhere(
    run: Any, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_PROXY", "")
    monkeypatch.setenv("no_proxy", "")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        result = run(proxy=f"http://user:geheim@127.0.0.1:{taken.getsockname()[1]}", retries=0)
    assert result["failed"] and "proxy" in result["msg"] and hub.log == []
    assert "geheim" not in json.dumps(result)
    assert "proxy must be" in run(proxy="socks5://user:geheim@host")["msg"]


def test_a_limit_on_the_bandwidth_is_for_all_transfers_together(run: Any, hub: Hub) -> None:
    result = run(bandwidth_bytes_per_second=3_000_000)
    assert result["elapsed_seconds"] >= (result["fetched_bytes"] - 3_000_000 / 4) / 3_000_000
    assert "bandwidth_bytes_per_second must be" in run(bandwidth_bytes_per_second=-1)["msg"]


def test_releases_are_looked_for_beside_the_store(run: Any, snapshot: Path, tmp_path: Path) -> None:
    run()
    model = tmp_path / "releases" / "kimi" / "3f2a9c" / "model"
    model.mkdir(parents=True)
    (model / "a.safetensors").symlink_to(snapshot / "model-00001-of-00003.safetensors")
    assert run(state="absent", revision=COMMIT, releases=None)["used_by"] == ["kimi/3f2a9c"]


def test_a_link_in_the_way_of_the_metadata_is_not_followed_and_does_no_harm(
    run: Any, hub: Hub, snapshot: Path, tmp_path: Path
) -> None:
    (tmp_path / "outside").mkdir()
    snapshot.mkdir(parents=True)
    (snapshot / ".cache").symlink_to(tmp_path / "outside")
    run()
    assert_content(snapshot, hub)
    assert list((tmp_path / "outside").iterdir()) == []
    assert not run(revision=COMMIT)["changed"]
