#!/usr/bin/env python3
# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Time `deploy_kimi.yml` where there is nothing to do, and count what it asks the hub. Needs the rehearsal to be up.

usage: make bench-noop    the last line is one JSON object: seconds (median), runs, hub_requests, changed
"""

from __future__ import annotations

import json
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
ACCESS_LOG = ROOT / ".rehearsal/log/access.log"
COMMAND = [str(ROOT / ".venv/bin/ansible-playbook"), "deploy_kimi.yml", "-i", "inventories/rehearsal"]
RUNS = 5


def deploy() -> tuple[float, int]:
    """Run the command; return its seconds and how many tasks changed something."""
    began = time.monotonic()
    output = subprocess.run(COMMAND, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return time.monotonic() - began, int(re.findall(r"changed=(\d+)", output)[-1])


def main() -> int:
    """Run the benchmark."""
    if not ACCESS_LOG.exists():
        print("The rehearsal is not up: run `make rehearsal` first.", file=sys.stderr)
        return 2
    requests = len(ACCESS_LOG.read_text().splitlines())
    seconds, changed = zip(*(deploy() for _ in range(RUNS)))
    requests = len(ACCESS_LOG.read_text().splitlines()) - requests
    for number, (duration, changes) in enumerate(zip(seconds, changed), 1):
        print(f"run {number}: {duration:6.2f} s, changed={changes}")
    result = {
        "seconds": round(statistics.median(seconds), 2),
        "runs": RUNS,
        "hub_requests": requests,
        "changed": sum(changed),
    }
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
