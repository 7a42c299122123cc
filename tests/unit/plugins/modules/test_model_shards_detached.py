"""model_shards with a real worker in a session of its own, against a hub whose content can be held back."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.llmops.vllm.plugins.module_utils.model_detached import Host
from ansible_collections.llmops.vllm.plugins.module_utils.worker_start import SessionLauncher
from ansible_collections.llmops.vllm.plugins.modules import model_shards
from ansible_collections.llmops.vllm.tests.unit.hub_server import COMMIT, REPO, TOKEN, Hub, make_files

SPEED = 50  # a slice of ten seconds takes a fifth of one


@pytest.fixture(autouse=True)
def host(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """Where workers meet; those still there are ended, and none is left as a zombie."""
    root = tmp_path / "workplaces"

    def make(_launcher: Any, _root: str) -> Host:
        return Host(SessionLauncher(), str(root), monotonic=lambda: time.monotonic() * SPEED)

    monkeypatch.setattr(model_shards, "Host", make)
    yield root
    for status in (tmp_path / "store").glob("*/*/.llmops/status.json"):
        end(json.loads(status.read_text())["pid"])


def end(pid: int) -> None:
    """End a worker, which is a child of this process, so that its number is its own until it is waited for."""
    with contextlib.suppress(ChildProcessError):
        if os.waitpid(pid, os.WNOHANG) == (0, 0):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


@pytest.fixture
def run(run_module: Any, hub: Hub, tmp_path: Path) -> Any:
    def call(**params: Any) -> dict[str, Any]:
        defaults = {"repo": REPO, "store": str(tmp_path / "store"), "endpoint": hub.endpoint, "reserve_bytes": 0}
        return run_module(model_shards, **{**defaults, "detach": True, "stall_timeout_seconds": 600, **params})

    return call


@pytest.fixture
def snapshot(tmp_path: Path) -> Path:
    return tmp_path / "store" / "acme--tiny-model" / COMMIT


def status_of(snapshot: Path) -> dict[str, Any]:
    return json.loads((snapshot / ".llmops/status.json").read_text())


def begin(run: Any, hub: Hub, **params: Any) -> dict[str, Any]:
    """Start a download that cannot end, and return what a slice says once it is under way."""
    hub.gate.close_after(400_000)
    answer = run(slice_seconds=10, **params)
    assert hub.gate.reached.wait(10)
    while not answer.get("stop_command"):
        answer = run(slice_seconds=10, follow=answer["follow"], revision=answer["commit"], **params)
    return answer


def follow(run: Any, answer: dict[str, Any], **params: Any) -> dict[str, Any]:
    return run(follow=answer["follow"], revision=answer["commit"], **params)


def ignores(pid: int, number: int) -> bool:
    """Whether a process ignores a signal, as the worker does from the first one on (proc_pid_status(5), SigIgn)."""
    status = dict(line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return bool(int(status["SigIgn"], 16) >> (number - 1) & 1)


def assert_content(snapshot: Path, hub: Hub) -> None:
    for path, data in hub.files.items():
        assert (snapshot / path).read_bytes() == data


def test_a_worker_does_the_work_and_leaves_its_result_but_no_code(
    run: Any, hub: Hub, snapshot: Path, host: Path
) -> None:
    result = run()
    total = sum(map(len, hub.files.values()))
    assert result.get("changed"), result
    assert (result["commit"], result["files"], result["fetched_bytes"]) == (COMMIT, len(hub.files), total)
    assert result["requests"] == len(hub.log)
    assert result["diff"]["before"]["config.json"] == "missing"
    assert_content(snapshot, hub)
    (place,) = host.iterdir()
    assert sorted(path.name for path in place.iterdir()) == [
        "alive", "result.json", "start.lock", "worker.json", "worker.log"
    ]  # fmt: skip
    assert {path.stat().st_mode & 0o077 for path in (host, place, *place.iterdir())} == {0}
    status = status_of(snapshot)
    assert (status["state"], status["files_done"], status["done_bytes"]) == ("done", len(hub.files), total)


def test_a_second_run_starts_no_worker(run: Any, hub: Hub, host: Path) -> None:
    run()
    (place,) = host.iterdir()
    before = (place / "worker.json").read_text()
    again = run(revision=COMMIT)
    assert not again["changed"] and again["requests"] == 0
    assert (place / "worker.json").read_text() == before


def test_check_mode_starts_none_either(run: Any, host: Path, tmp_path: Path) -> None:
    assert run(check=True)["changed"]
    assert list(tmp_path.iterdir()) == []


def test_a_slice_that_ends_first_says_how_far_it_is_and_what_to_follow(run: Any, hub: Hub, snapshot: Path) -> None:
    answer = begin(run, hub)
    status = status_of(snapshot)
    assert not answer["changed"] and answer["commit"] == COMMIT and answer["unit"] == ""
    assert answer["stop_command"] == f"kill {status['pid']}"
    assert " files, " in answer["progress"] and "kB" in answer["progress"]
    assert status["state"] == "running" and status["repo"] == REPO
    hub.gate.open()
    hub.refs["main"] = "f" * 40
    result = follow(run, answer)
    assert result["changed"] and "follow" not in result
    assert_content(snapshot, hub)


def test_another_run_finds_the_worker_and_gets_its_result(run: Any, hub: Hub) -> None:
    answer = begin(run, hub)
    other = run(slice_seconds=10)
    assert other["follow"] == answer["follow"]
    hub.gate.open()
    assert follow(run, other)["fetched_bytes"] == follow(run, answer)["fetched_bytes"] > 0


def test_a_run_that_wants_other_files_waits_and_fetches_the_rest(run: Any, hub: Hub, snapshot: Path) -> None:
    answer = begin(run, hub, exclude=["config.json"])
    other = run(slice_seconds=10)
    assert other["follow"] == answer["follow"]
    hub.gate.open()
    result = follow(run, other)
    assert result["changed"] and result["fetched_bytes"] == len(hub.files["config.json"])
    assert_content(snapshot, hub)


def test_the_workers_failure_is_the_modules(run: Any, hub: Hub, snapshot: Path) -> None:
    shard = "model-00002-of-00003.safetensors"
    hub.fault("cdn", "flip", times=2, path=shard)
    here = run(detach=False)
    hub.fault("cdn", "flip", times=2, path=shard)
    there = run()
    assert here["failed"] and there["failed"]
    assert there["msg"] == here["msg"] and there["got"] == here["got"]
    assert status_of(snapshot)["state"] == "failed" and shard in status_of(snapshot)["error"]


def test_a_worker_that_is_stopped_keeps_what_arrived(run: Any, hub: Hub, snapshot: Path) -> None:
    hub.files = make_files(shard_bytes=3_000_000)
    answer = begin(run, hub)
    pid = int(answer["stop_command"].split()[1])
    os.kill(pid, signal.SIGTERM)
    while not ignores(pid, signal.SIGTERM):
        time.sleep(0.01)
    hub.gate.open()
    stopped = follow(run, answer)
    assert stopped["failed"] and "SIGTERM" in stopped["msg"] and "resume" in stopped["msg"]
    result = run()
    assert result["changed"] and result["fetched_bytes"] < result["total_bytes"]
    assert_content(snapshot, hub)


def test_a_worker_that_is_killed_is_missed(run: Any, hub: Hub, snapshot: Path) -> None:
    answer = begin(run, hub)
    pid = int(answer["stop_command"].split()[1])
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    lost = follow(run, answer)
    assert lost["failed"] and "without a result" in lost["msg"]
    hub.gate.open()
    assert run()["changed"]
    assert_content(snapshot, hub)


def test_the_token_reaches_the_hub_and_nothing_else(run: Any, hub: Hub, tmp_path: Path) -> None:
    hub.token = TOKEN
    answer = begin(run, hub, token=TOKEN)
    process = Path("/proc", answer["stop_command"].split()[1])
    seen = [process.joinpath(name).read_bytes() for name in ("cmdline", "environ")]
    hub.gate.open()
    result = follow(run, answer, token=TOKEN)
    assert result.get("changed"), result
    seen += [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert not [content for content in seen if TOKEN.encode() in content]
    assert TOKEN not in json.dumps([answer, result])


def test_the_credentials_of_a_source_reach_it_and_nothing_else(run: Any, hub: Hub, tmp_path: Path) -> None:
    hub.token = TOKEN
    secret = tmp_path / "secret"
    secret.touch(mode=0o600)
    secret.write_text(TOKEN)
    source = {"type": "hub", "url": hub.endpoint.replace("127.0.0.1", "localhost"), "token_file": str(secret)}
    params = {"token": TOKEN, "sources": [source]}
    answer = begin(run, hub, **params)
    secret.unlink()
    process = Path("/proc", answer["stop_command"].split()[1])
    seen = [process.joinpath(name).read_bytes() for name in ("cmdline", "environ")]
    hub.gate.open()
    result = follow(run, answer, token=TOKEN, sources=[{**source, "token_file": None, "token": TOKEN}])
    assert result.get("changed") and result["sources"][0]["location"] == source["url"], result
    seen += [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert not [content for content in seen if TOKEN.encode() in content]
    assert TOKEN not in json.dumps([answer, result])


def test_a_workplace_that_is_somebody_elses_is_refused(run: Any, host: Path) -> None:
    host.mkdir(mode=0o755)
    result = run()
    assert result["failed"] and str(host) in result["msg"] and "0700" in result["msg"]
