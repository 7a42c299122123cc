#!/usr/bin/env python3
# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Time `make rehearsal` from a clean clone, cold and warm.

usage: make bench-rehearsal    the last line is one JSON object: cold_seconds, warm_seconds

Cold: no environment, no cache, no image; only installed system packages stay. Warm: another clean clone, caches and
images there. Ends the rehearsal of this checkout, if there is one, as both use the same names.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]


def engine_images(engine: str) -> list[str]:
    """The images that a rehearsal has made or fetched."""
    listed = subprocess.run(
        [engine, "images", "--format", "{{.Repository}}:{{.Tag}}"], capture_output=True, text=True, check=True
    ).stdout
    return [name for name in listed.split() if "llmops-host:" in name or name.endswith("library/debian:bookworm")]


def rehearse(folder: Path, cache: Path) -> float:
    """Clone this checkout's HEAD into `folder`, run the two commands of the README; return the first one's seconds."""
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(folder)], check=True)
    environment = {**os.environ, "LLMOPS_CACHE": str(cache)}
    began = time.monotonic()
    log = folder.with_suffix(".log")
    with log.open("w") as output:
        subprocess.run(["make", "rehearsal"], cwd=folder, env=environment, stdout=output, stderr=output, check=True)
    seconds = time.monotonic() - began
    subprocess.run(["make", "rehearsal-down"], cwd=folder, env=environment, capture_output=True, check=True)
    return seconds


def main() -> None:
    """Run the benchmark."""
    subprocess.run(["make", "rehearsal-down"], cwd=ROOT, capture_output=True, check=False)
    engine = os.environ.get("RIG_ENGINE", "podman")
    for image in engine_images(engine):
        subprocess.run([engine, "rmi", "--force", image], capture_output=True, check=False)
    with tempfile.TemporaryDirectory(dir="/var/tmp") as scratch:
        folder, cache = Path(scratch), Path(scratch, "cache")
        result = {}
        for name in ("cold", "warm"):
            result[f"{name}_seconds"] = round(rehearse(folder / name, cache), 1)
            print(f"{name}: {result[f'{name}_seconds']} s")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
