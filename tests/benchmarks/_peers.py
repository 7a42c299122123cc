# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Programs of other people to compare with, each in an environment of its own that outlives the checkout."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LOCKS = {
    "ansible-builder": ROOT / "tests/pipelines/builder.lock",
    "hf": ROOT / "tests/benchmarks/peers/hf-current.lock",
    "hf-0.36": ROOT / "tests/benchmarks/peers/hf-0.36.lock",
    "psutil": ROOT / "tests/benchmarks/peers/psutil.lock",
    "olah": ROOT / "tests/download/olah.lock",
}
UV = ROOT / ".cache/uv-venv/bin/uv"  # made by tests/tools/bootstrap.sh


class MissingPeerError(Exception):
    """An environment cannot be made here; the text says why."""


def programs_of(name: str) -> Path:
    """Return the folder of the programs of the environment ``name``, made where it is not there yet."""
    lock = LOCKS[name]
    digest = hashlib.sha256(lock.read_bytes() + sys.version.encode()).hexdigest()[:12]
    cache = Path(os.environ.get("LLMOPS_CACHE") or Path.home() / ".cache/llmops-vllm")
    environment = cache / f"clients/{name}-{digest}"
    if not (environment / ".complete").exists():
        if not UV.exists():
            raise MissingPeerError("the installer is missing: run `make env`")
        _uv("venv", "--clear", "--no-python-downloads", "--python", sys.executable, str(environment))
        binaries = ("--require-hashes", "--only-binary", ":all:")
        _uv("pip", "sync", *binaries, "--python", f"{environment}/bin/python", str(lock))
        (environment / ".complete").touch()
    return environment / "bin"


def _uv(*arguments: str) -> None:
    variables = {**os.environ, "UV_SYSTEM_CERTS": "true"}
    command = [str(UV), "--quiet", *arguments]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    if done.returncode:
        raise MissingPeerError(f"it cannot be installed: {(done.stderr.strip().splitlines() or ['no message'])[-1]}")
