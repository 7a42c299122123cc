"""A mirror that wants credentials, by somebody else: nginx, and behind it an origin where no credential belongs."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.llmops.vllm.tests.download import arrangements as arrange
from ansible_collections.llmops.vllm.tests.download.rig import Rig, files_of

USER, PASSWORD, SECRET = "vllm", "pass wörd$", "mirr0r-5ecret"
SCHEMES = ("basic", "bearer", "header")
CONFIGURATION = """\
worker_processes 1; daemon off; pid {root}/nginx.pid; error_log {root}/error.log warn; {user}
events {{ worker_connections 64; }}
http {{
  log_format seen '$server_port $status $http_authorization|$http_private_token';
  access_log {root}/access.log seen;
  client_body_temp_path {root}/t1; proxy_temp_path {root}/t2; fastcgi_temp_path {root}/t3;
  uwsgi_temp_path {root}/t4; scgi_temp_path {root}/t5;
  root {root}/files;
  server {{
    listen 127.0.0.1:{basic};
    auth_basic mirror; auth_basic_user_file {root}/passwords;
    location ~ safetensors$ {{ try_files /none @elsewhere; }}
    location @elsewhere {{ return 302 http://127.0.0.1:{cdn}$uri; }}
  }}
  server {{
    listen 127.0.0.1:{bearer};
    if ($http_authorization != "Bearer {secret}") {{ return 401; }}
    location ~ safetensors$ {{ return 302 http://127.0.0.1:{cdn}$uri; }}
  }}
  server {{
    listen 127.0.0.1:{header};
    if ($http_private_token != "{secret}") {{ return 403; }}
    location ~ safetensors$ {{ return 302 http://127.0.0.1:{cdn}$uri; }}
  }}
  server {{
    listen 127.0.0.1:{cdn};
    if ($http_authorization) {{ return 400; }}
    if ($http_private_token) {{ return 400; }}
  }}
}}
"""


@dataclass(frozen=True)
class Mirror:
    """nginx on a port for each scheme, and on one more to which it redirects."""

    root: Path
    ports: dict[str, int]

    def url(self, scheme: str) -> str:
        """Where files lie behind the door of that kind."""
        return f"http://127.0.0.1:{self.ports[scheme]}"

    def seen(self, scheme: str) -> list[str]:
        """The status and the credentials of every request to that port."""
        lines = (self.root / "access.log").read_text().splitlines()
        return [line.partition(" ")[2] for line in lines if line.startswith(f"{self.ports[scheme]} ")]


@pytest.fixture
def rig(make_rig: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rig:
    """No hub is asked, and a netrc has another password for every host."""
    rig: Rig = make_rig(small=True)
    netrc = tmp_path / "allowed"
    netrc.write_text("machine 127.0.0.1 login other password other\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    rig.parameters["manifest"] = arrange.manifest(rig)
    return rig


@pytest.fixture
def mirror(rig: Rig, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mirror]:
    nginx = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
    if not nginx:
        pytest.skip("nginx is not installed here (apt-get install nginx-light)")
    root = tmp_path_factory.mktemp("nginx")
    for name, data in rig.hub.files.items():
        (root / "files" / name).parent.mkdir(parents=True, exist_ok=True)
        (root / "files" / name).write_bytes(data)
    (root / "passwords").write_text(f"{USER}:{{PLAIN}}{PASSWORD}\n")
    running = Mirror(root, dict(zip((*SCHEMES, "cdn"), free_ports(4))))
    user = "user root;" if os.geteuid() == 0 else ""
    text = CONFIGURATION.format(root=root, user=user, secret=SECRET, **running.ports)
    (root / "nginx.conf").write_text(text)
    process = subprocess.Popen([nginx, "-p", root, "-e", root / "error.log", "-c", "nginx.conf"])
    try:
        await_port(running.ports["cdn"], root / "error.log")
        yield running
    finally:
        process.terminate()
        process.wait()


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [opened.getsockname()[1] for opened in sockets]
    for opened in sockets:
        opened.close()
    return ports


def await_port(port: int, log: Path) -> None:
    for _attempt in range(200):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise AssertionError(f"nginx does not answer: {log.read_text()}")


def credentials(scheme: str, secret: str = "") -> dict[str, str]:
    if scheme == "basic":
        return {"username": USER, "password": secret or PASSWORD}
    return {"token": secret or SECRET, **({"header": "PRIVATE-TOKEN"} if scheme == "header" else {})}


def in_files(options: dict[str, str], folder: Path) -> dict[str, str]:
    """Put secrets into files that only their owner can read."""
    secrets = {name: options[name] for name in ("token", "password") if name in options}
    for name, secret in secrets.items():
        (folder / name).touch(mode=0o600)
        (folder / name).write_text(f"{secret}\n")
    rest = {name: value for name, value in options.items() if name not in secrets}
    return {**rest, **{f"{name}_file": str(folder / name) for name in secrets}}


def traces(rig: Rig, result: dict[str, Any], *secrets: str) -> list[str]:
    """Where a secret can be read after the run: in its result, or in a file."""
    texts = {"result": json.dumps(result, ensure_ascii=False)}
    texts |= {str(path): path.read_bytes().decode("utf-8", "replace") for path in files_of(rig.base / "store")}
    return [name for name, text in texts.items() if any(secret in text for secret in secrets)]


@pytest.mark.parametrize("from_files", [False, True])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_credentials_open_the_mirror_and_go_no_further(
    rig: Rig, mirror: Mirror, tmp_path_factory: pytest.TempPathFactory, scheme: str, from_files: bool
) -> None:
    options = credentials(scheme)
    given = in_files(options, tmp_path_factory.mktemp("secrets")) if from_files else options
    source = {"type": "mirror", "url": mirror.url(scheme), **given}
    result = rig.run(sources=[source], _ansible_inject_invocation=True)
    assert not result.get("failed"), result
    assert result["invocation"]["module_args"]["sources"][0]["url"] == mirror.url(scheme)
    assert rig.judge().flawless and rig.hub.log == []
    (status_and_seen,) = set(mirror.seen(scheme)) - {line for line in mirror.seen(scheme) if line[:3] == "302"}
    assert status_and_seen.startswith("200 ")
    assert set(mirror.seen("cdn")) == {"200 -|-"} and len(mirror.seen("cdn")) == 6
    assert not traces(rig, result, PASSWORD, SECRET, "Basic ", "Bearer ")
    assert not rig.run(sources=[source])["changed"]


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("secret", ["", "wr0ng"])
def test_without_the_right_credentials_the_mirror_is_left_and_it_is_said_why(
    rig: Rig, mirror: Mirror, scheme: str, secret: str
) -> None:
    given = credentials(scheme, secret) if secret else {}
    source = {"type": "mirror", "url": mirror.url(scheme), **given}
    alone = rig.run(sources=[source])
    hint = "its credentials are wrong or may not read it" if secret else "it may want credentials"
    status = 403 if scheme == "header" else 401
    assert alone["failed"] and f"does not let this host in ({status}): {hint}." in alone["msg"]
    before = len(mirror.seen(scheme))
    result = rig.run(sources=[source, {"type": "hub"}])
    assert rig.judge().flawless
    (hub,) = (used for used in result["sources"] if used["type"] == "hub")
    assert hub["files"] == len(rig.hub.files) - 1
    if status == 401:
        assert [used["skipped"] for used in result["sources"] if used["type"] == "mirror"] == [True]
        assert len(mirror.seen(scheme)) == before + 1
    assert mirror.seen("cdn") == [] and not traces(rig, result, "wr0ng")
