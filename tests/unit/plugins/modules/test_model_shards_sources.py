"""Files from mirrors, peers and directories, with the hub's digests or with a manifest and no hub at all."""

from __future__ import annotations

import functools
import json
import os
import shutil
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils import basic
from ansible_collections.llmops.vllm.tests.unit.hub_server import COMMIT, REPO, TOKEN, Hub, git_sha1, sha256_of

SHARD = "model-00002-of-00003.safetensors"


class WebServer:
    """A plain web server of the standard library: it knows no ranges."""

    def __init__(self, root: Path) -> None:
        requests: list[str] = []
        headers: list[str] = []

        class Handler(SimpleHTTPRequestHandler):
            def log_message(self, *_args: Any) -> None:
                requests.append(self.path)
                headers.append(str(self.headers))

        self.root, self.requests, self.headers = root, requests, headers
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=str(root)))
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def serve() -> Iterator[Callable[[Path], WebServer]]:
    servers: list[WebServer] = []

    def start(root: Path) -> WebServer:
        servers.append(WebServer(root))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


@pytest.fixture
def run(run_shards: Any) -> Any:
    return run_shards


def digest(name: str, data: bytes) -> str:
    return sha256_of(data) if name.endswith(".safetensors") else git_sha1(data)


def as_repo(hub: Hub, root: Path) -> Path:
    for name, data in hub.files.items():
        root.joinpath(name).parent.mkdir(parents=True, exist_ok=True)
        root.joinpath(name).write_bytes(data)
    return root


def as_blobs(hub: Hub, root: Path, names: list[str] | None = None) -> Path:
    blobs = root / "blobs"
    blobs.mkdir(parents=True)
    for name in hub.files if names is None else names:
        (blobs / digest(name, hub.files[name])).write_bytes(hub.files[name])
    return root


def manifest_of(hub: Hub) -> dict[str, Any]:
    files = []
    for name, data in hub.files.items():
        kind = "sha256" if name.endswith(".safetensors") else "git_sha1"
        files.append({"path": name, "size": len(data), kind: digest(name, data)})
    return {"commit": COMMIT, "files": files}


def assert_right(snapshot: Path, hub: Hub) -> None:
    for name, data in hub.files.items():
        assert (snapshot / name).read_bytes() == data
    assert not (snapshot / ".llmops" / "partial").exists()


def refused_port() -> str:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{taken.getsockname()[1]}"


def test_a_mirror_serves_the_repository_paths_and_gets_no_token(
    run: Any, hub: Hub, snapshot: Path, tmp_path: Path, serve: Any
) -> None:
    hub.token = TOKEN
    mirror = serve(tmp_path / "web")
    as_repo(hub, tmp_path / "web" / REPO / COMMIT)
    sources = [{"type": "mirror", "url": mirror.url + "/{repo}/{commit}/"}, {"type": "hub"}]
    result = run(sources=sources, token=TOKEN)
    assert result["changed"], result
    assert_right(snapshot, hub)
    assert hub.requests_to("resolve") == []
    assert result["requests"] == len(hub.log) + len(mirror.requests)
    total = sum(map(len, hub.files.values()))
    where = f"{mirror.url}/{REPO}/{COMMIT}"
    assert result["sources"] == [
        {"type": "mirror", "location": where, "files": 5, "bytes": total, "skipped": False},
    ]
    assert not any("Authorization" in text for text in mirror.headers)


def test_what_a_mirror_does_not_have_comes_from_the_next_source(
    run: Any, hub: Hub, snapshot: Path, tmp_path: Path, serve: Any
) -> None:
    mirror = serve(as_blobs(hub, tmp_path / "web", ["config.json", SHARD]))
    result = run(sources=[{"type": "mirror", "url": mirror.url, "layout": "blobs"}, {"type": "hub"}])
    assert_right(snapshot, hub)
    assert [(used["type"], used["files"]) for used in result["sources"]] == [("mirror", 2), ("hub", 3)]


def test_wrong_bytes_are_asked_for_twice_and_then_come_from_the_next_source(
    run: Any, hub: Hub, snapshot: Path, tmp_path: Path, serve: Any
) -> None:
    mirror = serve(as_repo(hub, tmp_path / "web"))
    (tmp_path / "web" / SHARD).write_bytes(bytes(len(hub.files[SHARD])))
    result = run(sources=[{"type": "mirror", "url": mirror.url}, {"type": "hub"}])
    assert_right(snapshot, hub)
    assert mirror.requests.count(f"/{SHARD}") == 2
    assert [used["files"] for used in result["sources"]] == [4, 1]


def test_a_file_that_no_source_can_give_names_all_of_them_and_both_digests(
    run: Any, hub: Hub, snapshot: Path, tmp_path: Path, serve: Any
) -> None:
    mirror = serve(as_repo(hub, tmp_path / "web"))
    (tmp_path / "web" / SHARD).write_bytes(bytes(len(hub.files[SHARD])))
    (tmp_path / "usb").mkdir()
    sources = [{"type": "mirror", "url": mirror.url}, {"type": "directory", "path": str(tmp_path / "usb")}]
    result = run(sources=sources)
    assert result["failed"]
    assert f"{SHARD} comes from none of the 2 sources. {mirror.url}: " in result["msg"]
    assert f"{tmp_path / 'usb'} holds neither {SHARD} nor blobs/" in result["msg"]
    assert result["expected"] == sha256_of(hub.files[SHARD]) != result["got"]
    assert [refusal["location"] for refusal in result["refusals"]] == [mirror.url, str(tmp_path / "usb")]
    assert not (snapshot / SHARD).exists()
    assert list((snapshot / ".llmops" / "partial").iterdir()) == []


def test_a_source_that_does_not_answer_is_given_up_for_the_run(
    run: Any, hub: Hub, snapshot: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dead = refused_port()
    sources = [{"type": "mirror", "url": dead}, {"type": "hub"}]
    result = run(sources=sources, workers=1, retries=2)
    assert_right(snapshot, hub)
    assert result["requests"] == len(hub.log) + 3
    assert result["sources"][0] == {"type": "mirror", "location": dead, "files": 0, "bytes": 0, "skipped": True}
    warning = f"{dead} was skipped for the rest of the run: 3 failures in a row, the last time because 127.0.0.1"
    assert warning in str(result.get("warnings")) + capsys.readouterr().err


def test_a_broken_source_is_continued_by_the_next_one(
    run: Any, hub: Hub, snapshot: Path, tmp_path: Path, serve: Any
) -> None:
    hub.fault("cdn", "truncate_from_start", times=9, path=SHARD)
    usb = as_blobs(hub, tmp_path / "usb")
    result = run(sources=[{"type": "hub"}, {"type": "directory", "path": str(usb)}], retries=0)
    assert_right(snapshot, hub)
    assert result["fetched_bytes"] == result["total_bytes"]
    assert result["sources"][1]["bytes"] == len(hub.files[SHARD]) - 100_000


def test_peers_give_what_they_have_and_a_bad_one_does_no_harm(
    run: Any, hub: Hub, snapshot: Path, tmp_path: Path, serve: Any
) -> None:
    names = sorted(hub.files)
    good = serve(as_blobs(hub, tmp_path / "good", names[:4]))
    bad = serve(as_blobs(hub, tmp_path / "bad"))
    for blob in (tmp_path / "bad" / "blobs").iterdir():
        blob.write_bytes(os.urandom(blob.stat().st_size) or b"x")
    result = run(sources=[{"type": "peers", "urls": [good.url, bad.url, refused_port()]}, {"type": "hub"}])
    assert_right(snapshot, hub)
    files = {used["location"]: used["files"] for used in result["sources"]}
    assert files[good.url] == 3 and files[bad.url] == 0 and files[hub.endpoint] == 2


def test_with_a_manifest_and_a_directory_there_is_neither_hub_nor_requests(
    run: Any, hub: Hub, snapshot: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usb = as_repo(hub, tmp_path / "usb")
    monkeypatch.setitem(sys.modules, "requests", None)
    params = {"manifest": manifest_of(hub), "sources": [{"type": "directory", "path": str(usb)}]}
    assert run(check=True, **params)["fetched_bytes"] == sum(map(len, hub.files.values()))
    result = run(**params)
    assert result["changed"] and result["commit"] == COMMIT, result
    assert_right(snapshot, hub)
    assert hub.log == [] and result["requests"] == 0
    assert not run(**params)["changed"]


def test_the_manifest_of_a_snapshot_serves_the_hosts_without_a_hub(
    run: Any, hub: Hub, snapshot: Path, tmp_path: Path
) -> None:
    run(exclude=[SHARD])
    usb = tmp_path / "usb"
    shutil.copytree(snapshot, usb)
    hub.log.clear()
    params = {
        "manifest": str(usb / ".llmops" / "manifest.json"),
        "sources": [{"type": "directory", "path": str(usb)}],
        "store": str(tmp_path / "other"),
    }
    assert run(exclude=[SHARD], **params)["files"] == 5
    assert not run(exclude=[SHARD], revision=COMMIT, **params)["changed"]
    assert SHARD in run(**params)["msg"]
    assert hub.log == []


@pytest.mark.parametrize(
    ("manifest", "words"),
    [
        ("relative.json", "absolute path"),
        ("/no/such/manifest.json", "cannot be read on this host"),
        ({"commit": COMMIT}, "a list of files"),
        ({"commit": "main", "files": [{}]}, "40 hexadecimal digits"),
        ({"commit": COMMIT, "files": [{"path": "a", "size": 1}]}, "needs path, size and sha256"),
        ({"commit": COMMIT, "files": [{"path": "a", "size": "1", "sha256": "0" * 64}]}, "needs path, size"),
        ({"commit": COMMIT, "files": [{"path": "../a", "size": 1, "sha256": "0" * 64}]}, "'..' part"),
        ({"commit": COMMIT, "files": [{"path": "a", "size": 1, "sha256": "0" * 40}]}, "not a sha256"),
        ({"commit": COMMIT, "repo": "a/b", "files": [{}]}, "the files of a/b, not of"),
        ({"commit": "f" * 40, "files": [{"path": "a", "size": 1, "sha256": "0" * 64}]}, f"not of {COMMIT}"),
    ],
)
def test_a_manifest_that_cannot_be_used_is_refused(run: Any, tmp_path: Path, manifest: Any, words: str) -> None:
    result = run(manifest=manifest, revision=COMMIT)
    assert result["failed"] and words in result["msg"], result["msg"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ({"type": "mirror"}, "url"),
        ({"type": "peers"}, "urls"),
        ({"type": "directory"}, "path"),
        ({"type": "mirror", "url": "ftp://x"}, "http(s) URL"),
        ({"type": "mirror", "url": "http://u:pw@x"}, "http(s) URL"),
        ({"type": "mirror", "url": "http://x/{branch}"}, "{repo} and {commit}"),
        ({"type": "torrent"}, "torrent"),
        ({"type": "mirror", "url": "http://x", "token": "pw@", "username": "u"}, "either a token or a username"),
        ({"type": "hub", "token": "pw@"}, "the module's token or token_file"),
    ],
)
def test_a_source_that_cannot_be_meant_is_refused(run: Any, tmp_path: Path, source: Any, words: str) -> None:
    result = run(sources=[source])
    assert result["failed"] and words in result["msg"] and ":pw@" not in result["msg"]
    assert "at least one" in run(sources=[])["msg"]
    assert list(tmp_path.iterdir()) == []


def test_links_inside_a_directory_and_files_of_another_size_are_not_taken(
    run: Any, hub: Hub, tmp_path: Path, snapshot: Path
) -> None:
    usb = as_repo(hub, tmp_path / "usb")
    secret = tmp_path / "secret"
    secret.write_bytes(hub.files[SHARD])
    (usb / SHARD).unlink()
    (usb / SHARD).symlink_to(secret)
    (usb / "config.json").write_bytes(b"{}")
    source = {"type": "directory", "path": str(usb)}
    result = run(sources=[source], workers=1)
    assert result["failed"] and SHARD in result["msg"] and "symbolic link" in result["msg"]
    result = run(sources=[source], exclude=[SHARD], workers=1)
    assert "config.json has 2 bytes, not 23" in result["msg"]
    assert run(sources=[source, {"type": "hub"}])["sources"][0]["files"] == 2
    assert_right(snapshot, hub)


def test_hard_links_are_verified_cost_no_room_and_never_change_what_they_link_to(
    run: Any, hub: Hub, tmp_path: Path, snapshot: Path
) -> None:
    usb = as_repo(hub, tmp_path / "usb")
    (usb / "config.json").write_bytes(b"x" * 23)
    source = {"type": "directory", "path": str(usb), "link": "hardlink"}
    result = run(sources=[source, {"type": "hub"}])
    assert result["changed"], result
    assert_right(snapshot, hub)
    assert (snapshot / SHARD).samefile(usb / SHARD)
    assert (usb / "config.json").read_bytes() == b"x" * 23
    assert not run(revision=COMMIT)["changed"]


def test_a_part_that_is_another_name_of_a_file_is_never_written(
    run: Any, hub: Hub, tmp_path: Path, snapshot: Path
) -> None:
    usb = as_repo(hub, tmp_path / "usb")
    partial = snapshot / ".llmops" / "partial"
    partial.mkdir(parents=True)
    os.link(usb / SHARD, partial / f"{sha256_of(hub.files[SHARD])}.part")
    before = os.stat(usb / SHARD).st_mtime_ns
    run()
    assert_right(snapshot, hub)
    assert (usb / SHARD).read_bytes() == hub.files[SHARD] and os.stat(usb / SHARD).st_mtime_ns == before


def test_where_reflinks_do_not_exist_the_next_source_is_asked(
    run: Any, hub: Hub, tmp_path: Path, snapshot: Path
) -> None:
    usb = as_repo(hub, Path("/dev/shm") / f"llmops-test-{os.getpid()}")
    try:
        sources = [{"type": "directory", "path": str(usb), "link": "reflink"}, {"type": "hub"}]
        result = run(sources=sources)
        assert_right(snapshot, hub)
        assert [used["type"] for used in result["sources"]] == ["hub"]
        assert "cannot be reflinked into the store" in run(sources=sources[:1], store=str(tmp_path / "other"))["msg"]
    finally:
        shutil.rmtree(usb)


def test_a_second_hub_gets_its_own_token_and_not_the_first_ones(run: Any, hub: Hub, snapshot: Path) -> None:
    hub.token = TOKEN
    result = run(sources=[{"type": "hub", "url": hub.endpoint.replace("127.0.0.1", "localhost")}], token=TOKEN)
    assert "does not exist or it is private" in result["msg"]
    source = {"type": "hub", "url": hub.endpoint.replace("127.0.0.1", "localhost")}
    assert "the token given is wrong" in run(sources=[{**source, "token": "other"}], token=TOKEN)["msg"]
    assert run(sources=[{**source, "token": TOKEN}], token=TOKEN)["changed"]
    assert_right(snapshot, hub)
    assert json.loads((snapshot / ".llmops" / "manifest.json").read_text())["endpoint"] == hub.endpoint


def test_the_log_of_the_host_shows_no_secret_however_it_is_written(
    run: Any, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    logged: list[str] = []
    monkeypatch.setattr(basic, "has_journal", False)
    monkeypatch.setattr(basic.AnsibleModule, "_log_to_syslog", lambda _module, text: logged.append(text))
    mirror = {"type": "mirror", "url": hub.endpoint, "username": "u", "password": "back\\slash'\"5ecret"}
    result = run(sources=[mirror, {"type": "hub"}], token="t0ken")
    assert not any(secret in text for text in [*logged, json.dumps(result)] for secret in ("5ecret", "t0ken"))


def test_published_files_feed_other_hosts_and_go_with_their_snapshot(
    run: Any, hub: Hub, snapshot: Path, tmp_path: Path, serve: Any
) -> None:
    predicted = run(publish_blobs=True, check=True, diff=True)
    assert predicted["diff"]["after"]["published blobs"] == len(hub.files)
    assert run(publish_blobs=True)["changed"]
    root = tmp_path / "store" / ".llmops"
    assert (root / "blobs" / sha256_of(hub.files[SHARD])).samefile(snapshot / SHARD)
    assert sorted(path.name for path in (root / "blobs").iterdir()) == sorted(
        digest(name, data) for name, data in hub.files.items()
    )
    assert not run(publish_blobs=True, revision=COMMIT)["changed"]
    peer = serve(root)
    hub.log.clear()
    other = run(
        store=str(tmp_path / "other"),
        manifest=str(snapshot / ".llmops" / "manifest.json"),
        sources=[{"type": "peers", "urls": [peer.url]}],
    )
    assert_right(tmp_path / "other" / "acme--tiny-model" / COMMIT, hub)
    assert other["sources"][0]["files"] == 5 and hub.log == []
    removed = run(state="absent", revision=COMMIT)
    assert removed["freed_bytes"] >= sum(map(len, hub.files.values()))
    assert not (root / "blobs").exists()


def test_publishing_later_reads_no_file_again(run: Any, hub: Hub, snapshot: Path) -> None:
    run()
    result = run(publish_blobs=True, revision=COMMIT, diff=True)
    assert result["diff"] == {"before": {"published blobs": 0}, "after": {"published blobs": 6}}
    manifest = json.loads((snapshot / ".llmops" / "manifest.json").read_text())
    assert all(os.stat(snapshot / item["path"]).st_ctime_ns == item["ctime_ns"] for item in manifest["files"])


def test_a_damaged_file_is_not_served_and_its_replacement_is(
    run: Any, hub: Hub, snapshot: Path, tmp_path: Path
) -> None:
    run(publish_blobs=True)
    (snapshot / SHARD).write_bytes(bytes(len(hub.files[SHARD])))
    assert run(publish_blobs=True)["damaged"] == [SHARD]
    blob = tmp_path / "store" / ".llmops" / "blobs" / sha256_of(hub.files[SHARD])
    assert blob.samefile(snapshot / SHARD) and blob.read_bytes() == hub.files[SHARD]


def test_a_new_revision_takes_what_did_not_change_from_the_store_itself(
    run: Any, hub: Hub, snapshot: Path, tmp_path: Path
) -> None:
    run(publish_blobs=True)
    newer = "f" * 40
    hub.refs["main"] = hub.refs[newer] = newer
    hub.files["config.json"] = b"{}"
    own = {"type": "directory", "path": str(tmp_path / "store" / ".llmops"), "link": "hardlink"}
    result = run(sources=[own, {"type": "hub"}], publish_blobs=True)
    assert [used["files"] for used in result["sources"]] == [4, 1]
    assert (snapshot / SHARD).samefile(snapshot.parent / newer / SHARD)
    assert (snapshot.parent / newer / "config.json").read_bytes() == b"{}"
    assert run(state="absent", revision=COMMIT)["freed_bytes"] < 10_000
    assert len(list((tmp_path / "store" / ".llmops" / "blobs").iterdir())) == len(hub.files)
