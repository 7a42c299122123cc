"""Workers that outlive what started them: their code, their place, their start, and what they tell."""

from __future__ import annotations

import fcntl
import io
import json
import os
import subprocess
import sys
import threading
import time
import zipfile
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from ansible_collections.llmops.vllm.plugins.module_utils import model_worker
from ansible_collections.llmops.vllm.plugins.module_utils.errors import LlmopsError, PreconditionError
from ansible_collections.llmops.vllm.plugins.module_utils.model_detached import DetachedRequest, Host
from ansible_collections.llmops.vllm.plugins.module_utils.model_request import Surroundings
from ansible_collections.llmops.vllm.plugins.module_utils.store import Snapshot
from ansible_collections.llmops.vllm.plugins.module_utils.systemd import CompletedRun
from ansible_collections.llmops.vllm.plugins.module_utils.worker_payload import LIBRARIES, pack
from ansible_collections.llmops.vllm.plugins.module_utils.worker_place import (
    ALIVE,
    CODE,
    JOB,
    LOG,
    Workplace,
    default_root,
    hold,
    read_json,
)
from ansible_collections.llmops.vllm.plugins.module_utils.worker_start import (
    SessionLauncher,
    Start,
    SystemdLauncher,
    find_launcher,
)
from ansible_collections.llmops.vllm.tests.unit.hub_server import COMMIT, REPO, TOKEN, Hub

UNIT = "llmops-model-acme--tiny.service"
DEFAULTS: dict[str, Any] = {
    "repo": REPO, "revision": "main", "state": "present", "manifest": None, "sources": None, "token": None,
    "token_file": None, "publish_blobs": False, "include": [], "exclude": [], "verify": None, "sample_percent": 5,
    "sample_number": None, "workers": 8, "reserve_bytes": 0, "owner": None, "group": None, "file_mode": "0644",
    "directory_mode": "0755", "stall_timeout_seconds": 600, "retries": 0, "proxy": None,
    "bandwidth_bytes_per_second": 0, "lock_timeout_seconds": 5, "ca_path": None,
    "prune": None, "make_room": False, "releases": None, "detach": True,
    "slice_seconds": 0, "follow": "",
}  # fmt: skip


@pytest.fixture
def place(tmp_path: Path) -> Workplace:
    made = Workplace(str(tmp_path / "root"), "acme--tiny")
    with made.reserved():
        return made


def start_of(place: Workplace, code: bytes = b"", apart: bool = True, writable: str = "/srv/llm/store") -> Start:
    return Start(place, b'{"token": "secret"}', code, "Download of acme/tiny", writable, apart)


def script(text: str) -> bytes:
    """A payload that runs ``text``."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("__main__.py", text)
    return buffer.getvalue()


class Systemd:
    """Answers for systemctl and systemd-run, and notes what it was asked and what lay in the workplace then."""

    def __init__(self, place: Workplace, **answers: CompletedRun) -> None:
        self.place = place
        self.answers = answers
        self.calls: list[list[str]] = []
        self.files: dict[str, int] = {}

    def __call__(self, argv: Any) -> CompletedRun:
        self.calls.append(list(argv))
        if argv[0] == "systemd-run":
            self.files = {path.name: path.stat().st_mode & 0o777 for path in Path(self.place.directory).iterdir()}
        return self.answers.get(argv[0].replace("-", "_"), CompletedRun(0, "", ""))


def test_this_interpreter_can_do_a_whole_download_in_a_session_of_its_own(hub: Hub, tmp_path: Path) -> None:
    hub.token = TOKEN
    params = {**DEFAULTS, "store": str(tmp_path / "store"), "endpoint": hub.endpoint}
    around = Surroundings(False, token=lambda: TOKEN, warn=lambda _text: None)
    host = Host(SessionLauncher(), str(tmp_path / "root"))
    answer = DetachedRequest(params, around, host).run()
    assert answer.values["changed"] and answer.values["commit"] == COMMIT
    snapshot = Snapshot(params["store"], REPO, COMMIT)
    assert all(Path(snapshot.target(path)).read_bytes() == data for path, data in hub.files.items())
    status = read_json(snapshot.target(model_worker.STATUS_FILE))
    assert status["state"] == "done"
    assert DetachedRequest({**params, "revision": COMMIT}, around, host).run().values["requests"] == 0
    reap()


def test_the_job_holds_what_files_of_secrets_hold_since_they_may_be_gone_before_it_is_done(
    hub: Hub, tmp_path: Path
) -> None:
    jobs: list[dict[str, Any]] = []

    class Launcher(SessionLauncher):
        def start(self, start: Start) -> None:
            jobs.append(json.loads(start.job))
            raise LlmopsError("not today")

    source = {"type": "mirror", "url": hub.endpoint, "link": None, "username": "u", "password_file": "/secret"}
    params = {**DEFAULTS, "store": str(tmp_path / "store"), "endpoint": hub.endpoint, "sources": [source]}
    around = Surroundings(
        False, token=lambda: None, warn=lambda _text: None, read_secret=lambda path, _option: f"in {path}"
    )
    with pytest.raises(LlmopsError, match="not today"):
        DetachedRequest(params, around, Host(Launcher(), str(tmp_path / "root"))).run()
    assert jobs[0]["params"]["sources"] == [
        {"type": "mirror", "url": hub.endpoint, "link": None, "username": "u", "password": "in /secret"}
    ]


def reap() -> None:
    """Forget children that have ended."""
    while True:
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def test_the_payload_is_what_the_entry_needs_and_starts_it(tmp_path: Path) -> None:
    path = tmp_path / "payload.zip"
    path.write_bytes(pack(model_worker.__name__))
    names = zipfile.ZipFile(path).namelist()
    assert "ansible_collections/llmops/vllm/plugins/module_utils/shards.py" in names
    assert not [name for name in names if name.startswith("ansible/") or "/modules/" in name]
    done = subprocess.run([sys.executable, "-I", path], input=b"{}", capture_output=True, check=False)
    assert b"KeyError: 'environment'" in done.stderr


@pytest.mark.parametrize("source", ["x = 1\n", b"x = 1\n"])
def test_sources_come_from_the_import_system(source: Any) -> None:
    name = f"{LIBRARIES}.one"
    module = ModuleType(name)
    module.__spec__ = SimpleNamespace(loader=SimpleNamespace(get_source=lambda _name: source))  # type: ignore[assignment]
    archive = zipfile.ZipFile(io.BytesIO(pack(name, {name: module, "other": module})))
    assert archive.read(f"{name.replace('.', '/')}.py") == b"x = 1\n" and "other.py" not in archive.namelist()


def test_a_source_that_cannot_be_had_is_said() -> None:
    name = f"{LIBRARIES}.one"
    with pytest.raises(LlmopsError, match="set detach to false"):
        pack(name, {name: ModuleType(name)})
    with pytest.raises(LlmopsError, match="not loaded"):
        pack(name, {})


def test_a_worker_is_alive_as_long_as_it_holds_its_lock(place: Workplace) -> None:
    assert not place.is_alive()
    lock = hold(place.path(ALIVE))
    assert place.is_alive() and place.is_alive()
    os.close(lock)
    assert not place.is_alive()


def test_a_look_at_a_worker_does_not_keep_it_from_starting(place: Workplace) -> None:
    descriptor = os.open(place.path(ALIVE), os.O_RDWR | os.O_CREAT)
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    threading.Timer(0.05, os.close, (descriptor,)).start()
    os.close(hold(place.path(ALIVE)))


def test_one_start_at_a_time(place: Workplace) -> None:
    order = []

    def other() -> None:
        with place.reserved():
            order.append("second")

    thread = threading.Thread(target=other)
    with place.reserved():
        thread.start()
        thread.join(0.05)
        order.append("first")
    thread.join()
    assert order == ["first", "second"]


def test_files_of_a_workplace_are_for_its_user_only(place: Workplace) -> None:
    place.write_json("x.json", {"a": 1})
    assert place.read_json("x.json") == {"a": 1} and place.read_json("y.json") == {}
    assert {os.stat(path).st_mode & 0o777 for path in (place.root, place.directory)} == {0o700}
    assert os.stat(place.path("x.json")).st_mode & 0o777 == 0o600


@pytest.mark.parametrize("kind", ["link", "open"])
def test_a_workplace_that_others_could_have_made_is_refused(tmp_path: Path, kind: str) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o755)
    if kind == "link":
        (tmp_path / "root").symlink_to(elsewhere)
    root = tmp_path / "root" if kind == "link" else elsewhere
    with pytest.raises(PreconditionError, match="0700"), Workplace(str(root), "x").reserved():
        pass
    assert list(elsewhere.iterdir()) == []


def test_old_workplaces_are_forgotten_but_not_those_at_work(place: Workplace) -> None:
    others = [Workplace(place.root, name) for name in ("new", "old", "working")]
    for other in others:
        with other.reserved():
            other.write_json("result.json", {})
    lock = hold(others[2].path(ALIVE))
    for other in others[1:]:
        os.utime(other.directory, (time.time() - 90000,) * 2)
    place.forget_others()
    os.close(lock)
    assert sorted(os.listdir(place.root)) == ["acme--tiny", "new", "working"]


def test_root_meets_its_workers_in_run_and_others_in_a_place_of_their_own() -> None:
    assert default_root(0) == "/run/llmops-model"
    assert default_root(1000) == "/var/tmp/llmops-model-1000"


def test_systemd_runs_the_worker_as_a_service_with_its_job_on_standard_input(place: Workplace) -> None:
    systemd = Systemd(place)
    SystemdLauncher(systemd).start(start_of(place))
    run = systemd.calls[-1]
    assert run[:3] == ["systemd-run", "--quiet", f"--unit={UNIT}"]
    assert run[run.index("--") + 1 :] == [sys.executable, "-I", "-X", "utf8", place.path(CODE)]
    wanted = {"Type=notify", f"StandardInput=file:{place.path(JOB)}", "ProtectSystem=strict", "NoNewPrivileges=yes"}
    wanted |= {'ReadWritePaths="/srv/llm/store"', "CPUWeight=20", "IOWeight=20", "Description=Download of acme/tiny"}
    assert wanted <= {option.partition("=")[2] for option in run}
    assert "secret" not in " ".join(run)
    assert systemd.files[JOB] == systemd.files[CODE] == 0o600
    assert set(os.listdir(place.directory)) == {"start.lock", CODE}


def test_files_that_are_linked_into_the_store_need_its_mounts_untouched(place: Workplace) -> None:
    systemd = Systemd(place)
    SystemdLauncher(systemd).start(start_of(place, apart=False))
    properties = {option.partition("=")[2] for option in systemd.calls[-1]}
    assert "ProtectSystem=full" in properties and not [each for each in properties if each.startswith("ReadWrite")]


def test_a_path_with_blanks_is_one_word_for_systemd(place: Workplace) -> None:
    systemd = Systemd(place)
    SystemdLauncher(systemd).start(start_of(place, writable='/srv/my "models"'))
    assert '--property=ReadWritePaths="/srv/my \\"models\\""' in systemd.calls[-1]


def test_a_service_that_does_not_start_is_a_sentence_and_leaves_neither_code_nor_job(place: Workplace) -> None:
    systemd = Systemd(place, systemd_run=CompletedRun(1, "", "Job for x failed.\nSee more.\n"))
    with pytest.raises(LlmopsError, match=rf"{UNIT}: Job for x failed. See more. See journalctl -u {UNIT}"):
        SystemdLauncher(systemd).start(start_of(place))
    assert os.listdir(place.directory) == ["start.lock"]


def test_systemd_is_asked_how_a_worker_ended(place: Workplace) -> None:
    shown = CompletedRun(0, "LoadState=loaded\nResult=oom-kill\n", "")
    assert SystemdLauncher(Systemd(place, systemctl=shown)).fate("acme--tiny") == "systemd says oom-kill"
    assert SystemdLauncher(Systemd(place)).fate("acme--tiny") == "systemd no longer knows it"


def test_without_systemd_or_root_it_is_a_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def launcher() -> type:
        return type(find_launcher(lambda _argv: CompletedRun(0, "", ""), str(tmp_path)))

    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert launcher() is SessionLauncher
    (tmp_path / "run/systemd/system").mkdir(parents=True)
    assert launcher() is SystemdLauncher
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert launcher() is SessionLauncher


def test_a_session_that_ends_at_once_is_said_with_its_log(place: Workplace) -> None:
    with pytest.raises(LlmopsError, match=f"did not start; see {place.path(LOG)}"):
        SessionLauncher().start(start_of(place, script("import sys; sys.exit('no such thing')")))
    assert "no such thing" in Path(place.path(LOG)).read_text()
    assert not Path(place.path(CODE)).exists()


def test_a_session_inherits_nothing_that_somebody_waits_for(place: Workplace) -> None:
    text = (
        "import fcntl, os, sys\n"
        f"fcntl.flock(os.open({place.path(ALIVE)!r}, os.O_RDWR | os.O_CREAT, 0o600), fcntl.LOCK_EX)\n"
        f"os.unlink({place.path(CODE)!r})\n"
        "print(os.getsid(0) == os.getpid(), sys.stdin.read(), sorted(os.environ), flush=True)\n"
    )
    SessionLauncher().start(start_of(place, script(text)))
    reap()
    told = Path(place.path(LOG)).read_text()
    assert told.startswith('True {"token": "secret"}') and "secret" not in told.partition("}")[2]
