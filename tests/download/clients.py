"""Programs of other people to compare with, each in an environment of its own that outlives the checkout."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LOCKS = {
    "hf": ROOT / "tests/benchmarks/peers/hf-current.lock",
    "hf-0.36": ROOT / "tests/benchmarks/peers/hf-0.36.lock",
    "olah": ROOT / "tests/download/olah.lock",
}
UV = ROOT / ".cache/uv-venv/bin/uv"  # made by tests/tools/bootstrap.sh


def programs_of(name: str) -> Path:
    """Return the folder of the programs of the environment ``name``, made where it is not there yet."""
    lock = LOCKS[name]
    digest = hashlib.sha256(lock.read_bytes() + sys.version.encode()).hexdigest()[:12]
    cache = Path(os.environ.get("LLMOPS_CACHE") or Path.home() / ".cache/llmops-vllm")
    environment = cache / f"clients/{name}-{digest}"
    if not (environment / ".complete").exists():
        _uv("venv", "--clear", "--no-python-downloads", "--python", sys.executable, str(environment))
        _uv(
            "pip",
            "sync",
            "--require-hashes",
            "--only-binary",
            ":all:",
            "--python",
            f"{environment}/bin/python",
            str(lock),
        )
        (environment / ".complete").touch()
    return environment / "bin"


def run_hf(name: str, endpoint: str, home: Path, *arguments: str) -> str:
    """Run the hub's own client and return what it prints."""
    variables = {
        "HF_ENDPOINT": endpoint,
        "HF_HOME": str(home),
        "HF_HUB_DISABLE_UPDATE_CHECK": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "HF_HUB_DISABLE_XET": "1",
        "DO_NOT_TRACK": "1",
    }
    command = [str(programs_of(name) / "hf"), "download", *arguments]
    done = subprocess.run(
        command, env={**os.environ, **variables}, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def _uv(*arguments: str) -> None:
    environment = {**os.environ, "UV_SYSTEM_CERTS": "true"}
    subprocess.run([str(UV), "--quiet", *arguments], env=environment, check=True)
