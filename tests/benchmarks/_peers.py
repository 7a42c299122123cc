# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Programs of other people, to compare with and to test with, each in an environment that outlives the checkout."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LOCKS = {
    "ansible-builder": ROOT / "tests/pipelines/builder.lock",
    "hf": ROOT / "tests/benchmarks/peers/hf-current.lock",
    "hf-0.36": ROOT / "tests/benchmarks/peers/hf-0.36.lock",
    "node": ROOT / "tests/pipelines/node.lock",
    "psutil": ROOT / "tests/benchmarks/peers/psutil.lock",
    "olah": ROOT / "tests/download/olah.lock",
}
UV = ROOT / ".cache/uv-venv/bin/uv"  # made by tests/tools/bootstrap.sh


class MissingPeerError(Exception):
    """An environment cannot be made here; the text says why."""


def programs_of(name: str) -> Path:
    """Return the folder of the programs of the environment ``name``, made where it is not there yet."""
    lock = LOCKS[name]
    environment = place_of(name, lock.read_bytes() + sys.version.encode())
    if not (environment / ".complete").exists():
        if not UV.exists():
            raise MissingPeerError("the installer is missing: run `make env`")
        _uv("venv", "--clear", "--no-python-downloads", "--python", sys.executable, str(environment))
        binaries = ("--require-hashes", "--only-binary", ":all:")
        _uv("pip", "sync", *binaries, "--python", f"{environment}/bin/python", str(lock))
        (environment / ".complete").touch()
    return environment / "bin"


def packages_of_npm(folder: Path) -> Path:
    """Return a copy of ``folder`` beside which the packages of its ``package-lock.json`` are installed."""
    node = programs_of("node")
    files = sorted(folder.iterdir())
    environment = place_of("npm", b"".join(path.read_bytes() for path in files))
    if not (environment / ".complete").exists():
        environment.mkdir(parents=True, exist_ok=True)
        for path in files:
            shutil.copy(path, environment)
        options = ("--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error")
        _install([str(node / "npm"), "ci", *options, "--prefix", str(environment)])
        (environment / ".complete").touch()
    return environment


def place_of(name: str, content: bytes) -> Path:
    """Return the folder of what is installed under ``name`` as ``content`` says."""
    cache = Path(os.environ.get("LLMOPS_CACHE") or Path.home() / ".cache/llmops-vllm")
    return cache / f"clients/{name}-{hashlib.sha256(content).hexdigest()[:12]}"


def _uv(*arguments: str) -> None:
    _install([str(UV), "--quiet", *arguments])


def _install(command: list[str]) -> None:
    variables = {**os.environ, "UV_SYSTEM_CERTS": "true"}
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    if done.returncode:
        raise MissingPeerError(f"it cannot be installed: {(done.stderr.strip().splitlines() or ['no message'])[-1]}")
