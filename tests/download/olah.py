"""A hub written by somebody else, olah, serving a repository from a local mirror: git with LFS pointers."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ansible_collections.llmops.vllm.tests.benchmarks._peers import programs_of
from ansible_collections.llmops.vllm.tests.unit.hub_server import REPO, sha256_of


def make_mirror(root: Path, files: dict[str, bytes]) -> str:
    """Lay out ``files`` as the repository REPO below ``root`` and return its commit."""
    repository = root / "models" / REPO
    repository.mkdir(parents=True)
    for name, data in files.items():
        place = repository / name
        place.parent.mkdir(parents=True, exist_ok=True)
        if not name.endswith(".safetensors"):
            place.write_bytes(data)
            continue
        digest = sha256_of(data)
        place.write_text(f"version https://git-lfs.github.com/spec/v1\noid sha256:{digest}\nsize {len(data)}\n")
        blob = repository / ".git/lfs/objects" / digest[:2] / digest[2:4] / digest
        blob.parent.mkdir(parents=True, exist_ok=True)
        blob.write_bytes(data)
    _git(repository, "init", "--quiet", "--initial-branch=main", ".")
    _git(repository, "add", "--all")
    _git(repository, "commit", "--quiet", "--message=model")
    return _git(repository, "rev-parse", "HEAD").strip()


@contextmanager
def serving(root: Path, work: Path) -> Iterator[str]:
    """Serve the mirror below ``root`` and give its endpoint."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    work.mkdir()
    configuration = work / "olah.toml"
    configuration.write_text(
        f'[basic]\nhost = "127.0.0.1"\nport = {port}\nrepos-path = "{work}/repos"\nmirrors-path = ["{root}"]\n'
        "[accessibility]\noffline = true\n"
    )
    with (work / "log").open("w") as log:
        server = subprocess.Popen(
            [str(programs_of("olah") / "olah-cli"), "--config", str(configuration), "--log-path", str(work / "logs")],
            stdout=log, stderr=log, cwd=work,
        )  # fmt: skip
    try:
        _wait_for(port, server, work / "log")
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait(20)


def _wait_for(port: int, server: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except ConnectionRefusedError:
            assert server.poll() is None and time.monotonic() < deadline, log.read_text()
            time.sleep(0.1)
        else:
            return


def _git(repository: Path, *arguments: str) -> str:
    # The attributes name a filter, which would want git-lfs and turn pointers into pointers.
    settings = ["user.name=test", "user.email=test@localhost", "filter.lfs.clean=cat", "filter.lfs.smudge=cat"]
    options = [part for setting in settings for part in ("-c", setting)]
    variables = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    command = ["git", *options, *arguments]
    done = subprocess.run(command, cwd=repository, env=variables, capture_output=True, text=True, check=True)
    return done.stdout
