"""Snapshots against a hub that misbehaves, over real sockets."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.llmops.vllm.plugins.module_utils import http_client
from ansible_collections.llmops.vllm.plugins.module_utils import part_file as part_files
from ansible_collections.llmops.vllm.plugins.module_utils.credentials import bearer
from ansible_collections.llmops.vllm.plugins.module_utils.errors import LlmopsError, PreconditionError
from ansible_collections.llmops.vllm.plugins.module_utils.file_source import WrongDigestError
from ansible_collections.llmops.vllm.plugins.module_utils.hub import Connection
from ansible_collections.llmops.vllm.plugins.module_utils.hub import Hub as HubApi
from ansible_collections.llmops.vllm.plugins.module_utils.shards import Wish
from ansible_collections.llmops.vllm.plugins.module_utils.snapshot_keeper import Outcome, SnapshotKeeper
from ansible_collections.llmops.vllm.plugins.module_utils.store import Attributes
from ansible_collections.llmops.vllm.tests.unit.hub_server import COMMIT, REPO, TOKEN, Hub, make_files

SHARD = "model-00002-of-00003.safetensors"


class Rig:
    """A store and a hub; ``pauses`` are the seconds that retries wanted to wait."""

    def __init__(self, hub: Hub, store: Path) -> None:
        self.hub = hub
        self.store = store
        self.snapshot = store / "acme--tiny-model" / COMMIT
        self.pauses: list[float] = []

    def keeper(
        self,
        check_mode: bool = False,
        token: str | None = None,
        endpoint: str | None = None,
        ca_path: str | None = None,
    ) -> SnapshotKeeper:
        url = endpoint or self.hub.endpoint
        policy = http_client.RetryPolicy(3, sleep=self.pauses.append, jitter=lambda: 0.0)

        def connect() -> Connection:
            requests = http_client.load_requests()
            client = http_client.HttpClient(
                url, requests=requests, credential=bearer(token) if token else None, ca_path=ca_path, stall_seconds=1.0
            )
            return Connection(client, HubApi(client, policy, has_token=token is not None), policy)

        return SnapshotKeeper(
            repo=REPO,
            store=str(self.store),
            endpoint=url,
            attributes=Attributes(),
            check_mode=check_mode,
            lock_timeout_seconds=0,
            connect=connect,
            stop=threading.Event(),
            sleep=time.sleep,
            monotonic=time.monotonic,
        )

    def present(self, revision: str = "main", *, workers: int = 2, **options: Any) -> Outcome:
        wish = {key: options.pop(key) for key in ("include", "exclude", "full", "reserve_bytes") if key in options}
        return self.keeper(**options).present(revision, Wish(workers=workers, **wish))

    def assert_right(self) -> None:
        for path, data in self.hub.files.items():
            assert (self.snapshot / path).read_bytes() == data
        assert not (self.snapshot / ".llmops" / "partial").exists()

    def shard_requests(self) -> list[dict[str, str]]:
        digest = hashlib.sha256(self.hub.files[SHARD]).hexdigest()
        return [headers for _where, path, headers in self.hub.requests_to("cdn") if digest in path]

    def nothing_wrong_has_a_final_name(self) -> bool:
        return all(path.read_bytes() == self.hub.files[path.name] for path in self.snapshot.glob("*.safetensors"))


@pytest.fixture
def rig(hub: Hub, tmp_path: Path) -> Rig:
    return Rig(hub, tmp_path / "store")


@pytest.mark.parametrize("where", ["info", "resolve", "cdn"])
@pytest.mark.parametrize("kind", ["500", "429", "503"])
def test_a_failure_that_passes_is_retried(rig: Rig, where: str, kind: str) -> None:
    rig.hub.fault(where, kind)
    rig.present()
    rig.assert_right()
    assert rig.pauses == [7.0 if kind == "429" else 1.0]


def test_a_body_compressed_on_the_way_is_not_taken_for_the_file(rig: Rig) -> None:
    rig.hub.fault("cdn", lambda handler, data: handler.answer(200, data, Content_Encoding="gzip"), path=SHARD)
    assert rig.present().fetched_bytes == sum(map(len, rig.hub.files.values()))
    rig.assert_right()


def test_after_a_failure_no_worker_takes_up_another_file(rig: Rig) -> None:
    rig.hub.fault("resolve", "404", path="model-00001-of-00003.safetensors")
    with pytest.raises(LlmopsError):
        rig.present(workers=1)
    assert len(rig.hub.requests_to("resolve")) == 1


@pytest.mark.parametrize("kind", ["truncate", "reset", "stall"])
def test_a_broken_transfer_continues_where_it_stopped(rig: Rig, kind: str) -> None:
    rig.hub.fault("cdn", kind, path=SHARD)
    outcome = rig.present()
    rig.assert_right()
    first, second = rig.shard_requests()
    assert "Range" not in first
    if kind == "truncate":
        assert second["Range"] == "bytes=100000-"
        assert outcome.fetched_bytes == outcome.total_bytes
    if "Range" in second:
        assert second["If-Range"].strip('"') == hashlib.sha256(rig.hub.files[SHARD]).hexdigest()


def test_progress_resets_the_number_of_failures(rig: Rig) -> None:
    rig.hub.truncate_after = 40_000
    rig.hub.fault("cdn", "truncate", times=6, path=SHARD)
    rig.present()
    rig.assert_right()
    assert rig.pauses == [1.0] * 6


def test_a_server_that_always_starts_over_does_not_count_as_progress(rig: Rig) -> None:
    rig.hub.truncate_after = 40_000
    rig.hub.fault("cdn", "truncate_from_start", times=20, path=SHARD)
    with pytest.raises(LlmopsError, match=r"4 failures without progress"):
        rig.present()


@pytest.mark.parametrize("kind", ["ignore_range", "wrong_range", "416"])
def test_a_server_that_cannot_continue_restarts_that_file_only(rig: Rig, kind: str) -> None:
    rig.hub.fault("cdn", "truncate", path=SHARD)
    rig.hub.fault("cdn", kind, path=SHARD)
    rig.present(workers=1)
    rig.assert_right()


def test_a_file_that_the_content_network_does_not_have_is_no_missing_repository(rig: Rig) -> None:
    rig.hub.fault("cdn", "404", path=SHARD)
    with pytest.raises(LlmopsError, match=rf"{rig.hub.cdn.url}/blobs/\w+ answered 404 for a file of"):
        rig.present()


def test_parts_of_another_selection_stay_resumable(rig: Rig) -> None:
    rig.hub.files[SHARD] = os.urandom(9 * 1024 * 1024)
    rig.hub.truncate_after = 5 * 1024 * 1024
    rig.hub.fault("cdn", "truncate_from_start", times=9, path=SHARD)
    with pytest.raises(LlmopsError, match="run again to resume"):
        rig.present(include=(SHARD,))
    rig.hub.faults.clear()
    assert rig.present(include=("config.json",)).fetched_bytes == len(rig.hub.files["config.json"])
    assert rig.present().reused_bytes == 4 * 1024 * 1024 + len(rig.hub.files["config.json"])
    rig.assert_right()


def test_an_expired_signed_link_is_asked_for_again(rig: Rig) -> None:
    for status in ("403", "401", "410"):
        rig.hub.fault("cdn", status, path=SHARD)
    rig.present()
    rig.assert_right()


def test_one_flipped_byte_is_noticed_and_the_file_fetched_once_more(rig: Rig) -> None:
    rig.hub.fault("cdn", "flip", path=SHARD)
    rig.present()
    rig.assert_right()
    assert len(rig.shard_requests()) == 2


def test_a_digest_wrong_twice_fails_by_name_keeps_no_bad_byte_and_lets_the_others_arrive(rig: Rig) -> None:
    rig.hub.fault("cdn", "flip", times=2, path=SHARD)
    with pytest.raises(WrongDigestError) as caught:
        rig.present()
    expected = hashlib.sha256(rig.hub.files[SHARD]).hexdigest()
    assert SHARD in caught.value.message and expected in caught.value.message
    assert rig.hub.cdn.url in caught.value.message and "Signature" not in caught.value.message
    assert caught.value.details["expected"] == expected != caught.value.details["got"]
    assert not (rig.snapshot / SHARD).exists()
    assert list((rig.snapshot / ".llmops" / "partial").iterdir()) == []
    rig.hub.log.clear()
    assert rig.present().fetched_bytes == len(rig.hub.files[SHARD])
    rig.assert_right()


def test_a_small_file_is_checked_against_its_git_digest(rig: Rig) -> None:
    rig.hub.fault("cache", "flip", times=2, path="config.json")
    with pytest.raises(WrongDigestError, match=r"config\.json .* git-sha1"):
        rig.present()


def test_the_paginated_tree_is_used_where_the_info_has_no_digests(rig: Rig) -> None:
    rig.hub.info_has_digests = False
    rig.present()
    rig.assert_right()
    assert len(rig.hub.requests_to("tree")) == 4


def test_a_mirror_that_knows_neither_lengths_nor_ranges_will_do(rig: Rig) -> None:
    rig.hub.chunked = True
    rig.hub.info_has_digests = False
    rig.hub.fault("cdn", "truncate", path=SHARD)
    rig.present()
    rig.assert_right()


def test_a_name_with_blanks_and_signs_and_letters_of_any_script_is_fetched(rig: Rig) -> None:
    for name in ("a dir/ü 漢#?%25&+.json", "a dir/~ü.safetensors"):
        rig.hub.files[name] = name.encode()
    rig.present()
    rig.assert_right()


@pytest.mark.parametrize(
    "name",
    [
        "../evil",
        "/etc/evil",
        "a/../../evil",
        "a\\b",
        "new\nline",
        "a//b",
        ".",
        "./a",
        ".llmops/manifest.json",
        "\udcff",
    ],
)
def test_a_hostile_file_name_is_refused_before_anything_is_written(rig: Rig, name: str) -> None:
    rig.hub.names["config.json"] = name
    with pytest.raises(LlmopsError, match="lists a file"):
        rig.present()
    assert not rig.store.exists()


def test_a_link_in_the_way_is_refused(rig: Rig, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("precious")
    rig.snapshot.mkdir(parents=True)
    (rig.snapshot / "config.json").symlink_to(outside)
    with pytest.raises(PreconditionError, match="symbolic link"):
        rig.present()
    assert outside.read_text() == "precious"
    (rig.snapshot / "config.json").unlink()
    (rig.snapshot / ".llmops").symlink_to(tmp_path)
    with pytest.raises(PreconditionError, match="symbolic link"):
        rig.present()


@pytest.mark.parametrize(("kind", "words"), [("loop", "redirects more than 5 times"), ("file_scheme", "not as safe")])
def test_a_bad_redirect_is_not_followed(rig: Rig, kind: str, words: str) -> None:
    rig.hub.fault("resolve", kind, times=6, path="config.json")
    with pytest.raises(LlmopsError, match=words):
        rig.present(include=("config.json",))


def test_a_portal_that_answers_html_is_an_error_of_the_endpoint(rig: Rig) -> None:
    rig.hub.fault("info", "garbage", times=4)
    with pytest.raises(LlmopsError, match="not JSON"):
        rig.present()


def test_a_file_of_another_size_than_the_api_says_is_not_taken(rig: Rig) -> None:
    rig.hub.fault("cdn", "garbage", times=4, path=SHARD)
    with pytest.raises(LlmopsError, match=f"offers 33 bytes where the hub's API says {len(rig.hub.files[SHARD])}"):
        rig.present()


def test_a_refused_connection_is_said_in_plain_words(rig: Rig) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        with pytest.raises(LlmopsError, match="the connection was refused"):
            rig.present(endpoint=f"http://127.0.0.1:{port}")


def test_a_name_that_does_not_resolve_is_said_in_plain_words(rig: Rig) -> None:
    with pytest.raises(LlmopsError, match="cannot be resolved"):
        rig.present(endpoint="http://hub.invalid")


@pytest.fixture
def tls_hub(tmp_path: Path) -> Iterator[tuple[Hub, Path]]:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 1 -subj /CN=127.0.0.1"
    name = ["-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([*command.split(), *name, "-keyout", key, "-out", cert], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    hub = Hub(make_files(), context)
    yield hub, cert
    hub.close()


def test_a_certificate_nobody_vouches_for_is_fatal_at_once(tls_hub: tuple[Hub, Path], tmp_path: Path) -> None:
    rig = Rig(tls_hub[0], tmp_path / "store")
    with pytest.raises(LlmopsError, match=r"certificate .* cannot be verified .* ca_path"):
        rig.present()
    assert rig.pauses == []


def test_over_tls_the_given_ca_is_used_for_hub_and_content(tls_hub: tuple[Hub, Path], tmp_path: Path) -> None:
    hub, cert = tls_hub
    hub.token = TOKEN
    rig = Rig(hub, tmp_path / "store")
    hub.fault("cdn", "truncate", path=SHARD)
    hub.fault("cdn", "stall", path=SHARD)
    rig.present(ca_path=str(cert), token=TOKEN)
    rig.assert_right()
    assert hub.requests_to("cdn") and hub.cdn.url.startswith("https")


def test_a_full_disk_keeps_what_arrived_and_the_next_run_resumes(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.hub.files[SHARD] = os.urandom(9 * 1024 * 1024)
    real = os.pwrite

    def pwrite(descriptor: int, data: Any, offset: int) -> int:
        if offset >= 4 * 1024 * 1024:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(descriptor, data, offset)

    with monkeypatch.context() as patch:
        patch.setattr(part_files.os, "pwrite", pwrite)
        with pytest.raises(PreconditionError, match=r"The disk is full .* will be resumed"):
            rig.present(include=(SHARD,))
    assert not (rig.snapshot / SHARD).exists()
    outcome = rig.present(include=(SHARD,))
    assert outcome.fetched_bytes == 5 * 1024 * 1024
    assert outcome.reused_bytes == 4 * 1024 * 1024
    assert (rig.snapshot / SHARD).read_bytes() == rig.hub.files[SHARD]


def test_too_little_space_fails_before_the_first_byte(rig: Rig) -> None:
    with pytest.raises(PreconditionError, match=r"are missing and .* shall stay free") as caught:
        rig.present(reserve_bytes=2**60)
    assert caught.value.details["needed_bytes"] == sum(map(len, rig.hub.files.values()))
    assert not rig.store.exists() and not rig.hub.requests_to("resolve")


def test_files_with_one_digest_are_both_fetched(rig: Rig) -> None:
    rig.hub.files["copy.safetensors"] = rig.hub.files[SHARD]
    rig.present(workers=4)
    rig.assert_right()


def test_include_and_exclude_select_and_a_later_run_adds_the_rest(rig: Rig) -> None:
    few = rig.present(COMMIT, include=("*.json", "model-*"), exclude=("*00002*",))
    assert few.files == 3
    rig.hub.log.clear()
    rest = rig.present(COMMIT)
    assert rest.reused_bytes == few.total_bytes
    assert not rig.hub.requests_to("info")
    rig.assert_right()


def test_files_without_a_manifest_are_read_and_adopted(rig: Rig) -> None:
    rig.present()
    (rig.snapshot / ".llmops" / "manifest.json").unlink()
    (rig.snapshot / SHARD).write_bytes(b"short")
    outcome = rig.present()
    assert outcome.fetched_bytes == len(rig.hub.files[SHARD]) and outcome.damaged == [SHARD]
    rig.assert_right()


def test_a_new_link_count_costs_one_reading_and_is_no_change(rig: Rig, tmp_path: Path) -> None:
    rig.present(COMMIT)
    os.link(rig.snapshot / SHARD, tmp_path / "second-name")
    assert not rig.present(COMMIT, check_mode=True).tracker.changed
    assert not rig.present(COMMIT).tracker.changed
    manifest = json.loads((rig.snapshot / ".llmops" / "manifest.json").read_text())
    recorded = next(item for item in manifest["files"] if item["path"] == SHARD)
    assert recorded["ctime_ns"] == os.stat(rig.snapshot / SHARD).st_ctime_ns


def test_a_corrupt_manifest_is_written_anew(rig: Rig) -> None:
    rig.present()
    (rig.snapshot / ".llmops" / "manifest.json").write_text("{")
    outcome = rig.present()
    assert outcome.tracker.as_diff()["before"] == {"manifest": "missing"}
    assert outcome.fetched_bytes == 0
    assert not rig.present().tracker.changed


def test_a_second_run_at_the_same_time_waits_and_says_for_whom(rig: Rig) -> None:
    rig.hub.fault("cdn", "stall", path=SHARD)
    failures: list[str] = []
    thread = threading.Thread(target=rig.present)
    thread.start()
    _wait_until((rig.snapshot / ".llmops" / "partial").exists)
    try:
        rig.present()
    except PreconditionError as error:
        failures.append(error.message)
    thread.join()
    assert len(failures) == 1
    assert f"process {os.getpid()} on {socket.gethostname()}" in failures[0]
    assert not rig.present().tracker.changed


def test_a_killed_run_is_resumed_without_fetching_twice(rig: Rig, tmp_path: Path) -> None:
    rig.hub.files[SHARD] = os.urandom(20 * 1024 * 1024)
    rig.hub.truncate_after = 13 * 1024 * 1024
    rig.hub.fault("cdn", "stall", path=SHARD)
    script = tmp_path / "fetch.py"
    script.write_text(_FETCH.format(path=sys.path, endpoint=rig.hub.endpoint, store=str(rig.store), shard=SHARD))
    process = subprocess.Popen([sys.executable, script])
    part = rig.snapshot / ".llmops" / "partial" / f"{hashlib.sha256(rig.hub.files[SHARD]).hexdigest()}.part"
    _wait_until(lambda: part.exists() and part.stat().st_size >= 12 * 1024 * 1024)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (rig.snapshot / SHARD).exists()
    outcome = rig.present(include=(SHARD,))
    assert outcome.reused_bytes >= 12 * 1024 * 1024
    assert outcome.fetched_bytes + outcome.reused_bytes == 20 * 1024 * 1024
    assert (rig.snapshot / SHARD).read_bytes() == rig.hub.files[SHARD]


_FETCH = """
import sys, threading, time
sys.path[:0] = {path!r}
from ansible_collections.llmops.vllm.plugins.module_utils import http_client
from ansible_collections.llmops.vllm.plugins.module_utils.hub import Connection, Hub
from ansible_collections.llmops.vllm.plugins.module_utils.shards import Wish
from ansible_collections.llmops.vllm.plugins.module_utils.snapshot_keeper import SnapshotKeeper
from ansible_collections.llmops.vllm.plugins.module_utils.store import Attributes
policy = http_client.RetryPolicy(3, sleep=time.sleep, jitter=lambda: 0.0)
client = http_client.HttpClient({endpoint!r}, requests=http_client.load_requests(), stall_seconds=30.0)
connection = Connection(client, Hub(client, policy, has_token=False), policy)
SnapshotKeeper(
    repo="acme/tiny-model", store={store!r}, endpoint={endpoint!r}, attributes=Attributes(), check_mode=False,
    lock_timeout_seconds=0, connect=lambda: connection, stop=threading.Event(), sleep=time.sleep,
    monotonic=time.monotonic,
).present("main", Wish(include=({shard!r},)))
"""


def _wait_until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


def test_the_token_stays_at_its_origin_even_when_the_other_one_is_the_same_host(rig: Rig) -> None:
    rig.hub.token = TOKEN
    rig.present(token=TOKEN)
    rig.assert_right()
    assert all("Authorization" not in headers for _where, _path, headers in rig.hub.requests_to("cdn"))
