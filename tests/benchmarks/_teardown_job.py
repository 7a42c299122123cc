#!/usr/bin/env python3
# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One job of process_teardown or shm_cleanup in an interpreter of its own; prints what it took as one JSON object.

usage: _teardown_job.py teardown|shm plan|apply PARAMETERS    PARAMETERS are the module's, as JSON
       _teardown_job.py psutil-port PORT | psutil-maps DIRECTORY | psutil-end PID
"""

from __future__ import annotations

import importlib
import json
import os
import re
import sys
import time
from pathlib import Path
from typing import Any, Callable

ROOT = Path(__file__).parents[2]
MODULES = "ansible_collections.llmops.vllm.plugins.modules"


def peak_mb() -> float:
    """The largest resident size that this program had; `ru_maxrss` would count that of its parent too."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text(encoding="ascii"))
    return int(found[1]) / 1024 if found else 0.0


def teardown(how: str, parameters: dict[str, Any]) -> Callable[[], dict[str, Any]]:
    """The job of process_teardown; the module is imported for its memory counts as well."""
    module = importlib.import_module(f"{MODULES}.process_teardown")

    def job() -> dict[str, Any]:
        run = module.TeardownRun(module.TeardownRequest(**parameters))
        result = run.apply() if how == "apply" else run.report()
        return {name: len(result[name]) for name in ("targets", "ended", "survivors", "foreign")}

    return job


def shm(how: str, parameters: dict[str, Any]) -> Callable[[], dict[str, Any]]:
    """The job of shm_cleanup."""
    module = importlib.import_module(f"{MODULES}.shm_cleanup")

    def job() -> dict[str, Any]:
        run = module.ShmRun(module.ShmRequest(**parameters))
        if how == "apply":
            run.remove()
        objects = run.result("removed")["objects"]
        removed = sum(one["verdict"] == "removed" for one in objects)
        return {"removed": removed, "kept": len(objects) - removed}

    return job


def psutil_port(port: str) -> Callable[[], dict[str, Any]]:
    """Who listens on a port, by psutil."""
    psutil = importlib.import_module("psutil")

    def job() -> dict[str, Any]:
        found = {
            one.pid
            for one in psutil.net_connections("tcp")
            if one.status == psutil.CONN_LISTEN and one.laddr.port == int(port)
        }
        return {"targets": len(found)}

    return job


def psutil_maps(directory: str) -> Callable[[], dict[str, Any]]:
    """Which files of a directory nobody maps or opens, by psutil and by name; they are removed."""
    psutil = importlib.import_module("psutil")

    def job() -> dict[str, Any]:
        used = set()
        for process in psutil.process_iter():
            try:
                used |= {one.path for one in process.memory_maps()} | {one.path for one in process.open_files()}
            except psutil.Error:
                continue
        unused = [entry.path for entry in os.scandir(directory) if entry.path not in used]
        for path in unused:
            os.unlink(path)
        return {"removed": len(unused)}

    return job


def psutil_end(pid: str) -> Callable[[], dict[str, Any]]:
    """TERM and wait for all children of a process, by psutil."""
    psutil = importlib.import_module("psutil")

    def job() -> dict[str, Any]:
        children = psutil.Process(int(pid)).children()
        for child in children:
            child.terminate()
        gone, _alive = psutil.wait_procs(children, timeout=30)
        return {"ended": len(gone)}

    return job


def main() -> None:
    """Import, then do the job by the clock."""
    name, *arguments = sys.argv[1:]
    began = time.perf_counter()
    sys.path.insert(0, str(ROOT / "collections"))
    if name in ("teardown", "shm"):
        job = {"teardown": teardown, "shm": shm}[name](arguments[0], json.loads(arguments[1]))
    else:
        job = {"psutil-port": psutil_port, "psutil-maps": psutil_maps, "psutil-end": psutil_end}[name](*arguments)
    imported, cpu = time.perf_counter(), time.process_time()
    result = job()
    print(
        json.dumps(
            {
                "seconds": time.perf_counter() - imported,
                "cpu_seconds": time.process_time() - cpu,
                "import_seconds": imported - began,
                "peak_mb": peak_mb(),
                **result,
            }
        )
    )


if __name__ == "__main__":
    main()
