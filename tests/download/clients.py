"""The hub's own client, beside the module."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from ansible_collections.llmops.vllm.tests.benchmarks._peers import programs_of


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
