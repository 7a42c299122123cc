#!/usr/bin/env python3
# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Time the diagnosis of a log of 100 MB, and what the gate costs and how soon it sees a death.

usage: make bench-gate    the last line is one JSON object:
    diagnose_100mb_seconds       wall time of the command, its start included; the median of three runs
    diagnose_100mb_cpu_seconds   its processor time, which other work on the machine changes less
    diagnose_mb                  its peak memory in MB, the interpreter included
    death_to_verdict_seconds     from the end of the main process to the end of launch_gate with the root cause
    gate_cpu_percent             of one core, while launch_gate waits for a load; the commands that it calls included

A process that sleeps stands for the engine, and scripts that print files for systemctl and journalctl, so that this
needs neither systemd nor an engine.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from _measure import cpu_seconds

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT / "collections")}
LIBRARY = "ansible_collections.llmops.vllm.plugins.module_utils.diagnosis"
LOG_BYTES, RUNS = 100_000_000, 3
WARM_SECONDS, WATCHED_SECONDS = 5.0, 15.0
LAUNCH, UNIT = "1" * 32, "vllm@bench.service"
ROOT_LINE = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
FAILED_START = f"""\
(Worker_TP0 pid=102) ERROR 03-01 10:01:00 [multiproc_executor.py:953] Traceback (most recent call last):
(Worker_TP0 pid=102) ERROR 03-01 10:01:00 [multiproc_executor.py:953] {ROOT_LINE}
(APIServer pid=100) RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {{}}
"""


def long_log(path: Path) -> None:
    """A service that ran for long, then failed to start again."""
    head = "(APIServer pid=100) INFO"
    lines = [
        f'{head}:     192.0.2.{number % 250}:{number} - "POST /v1/chat/completions HTTP/1.1" 200 OK\n'
        if number % 4
        else f"{head} 03-01 10:00:{number % 60:02} [loggers.py:248] Engine 000: Avg prompt throughput: {number}.5 "
        f"tokens/s, Avg generation throughput: 12.3 tokens/s, Running: {number % 9} reqs, Waiting: 0 reqs\n"
        for number in range(20_000)
    ]
    lines[::50] = ["(Worker_TP0 pid=102) WARNING 03-01 10:00:00 [x.py:1] a kernel has no tuned configuration\n"] * 400
    block = "".join(lines)
    with path.open("w", encoding="utf-8") as stream:
        for _copy in range(LOG_BYTES // len(block)):
            stream.write(block)
        stream.write(f"{head} 03-01 10:00:59 [api_server.py:1] vLLM API server version 0.32.0\n{FAILED_START}")


def diagnose(path: Path) -> tuple[float, float, float]:
    """Seconds, processor seconds and peak MB of one run of the command."""
    began = time.monotonic()
    command = [sys.executable, "-m", LIBRARY, "--json", str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=ENVIRONMENT) as process:
        assert process.stdout
        found = json.loads(process.stdout.read())
        _pid, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    assert found["cause_class"] == "cuda_oom", found
    return time.monotonic() - began, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


class Host:
    """systemctl and journalctl that print files, and a process that stands for the engine."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.engine = subprocess.Popen(["sleep", "600"])
        for name in ("systemctl", "journalctl"):
            (folder / name).write_text(f"#!/bin/sh\nexec cat {folder}/{name}.out\n")
            (folder / name).chmod(0o755)
        (folder / f"invocation:{UNIT}").symlink_to(LAUNCH)
        self.says("active", "running", self.engine.pid, "(EngineCore pid=101) INFO 03-01 10:00:00 [core.py:1] loading")

    def says(self, active: str, sub: str, pid: int, journal: str) -> None:
        """Make the commands show this state and these lines."""
        fields = {"_SYSTEMD_INVOCATION_ID": LAUNCH, "_PID": "102", "__REALTIME_TIMESTAMP": str(time.time_ns() // 1000)}
        entries = [json.dumps({**fields, "MESSAGE": line, "__CURSOR": line}) for line in journal.splitlines()]
        show = f"LoadState=loaded\nActiveState={active}\nSubState={sub}\nInvocationID={LAUNCH}\nMainPID={pid}\n"
        for name, content in (("journalctl", "\n".join(entries) + "\n"), ("systemctl", show)):
            (self.folder / f"{name}.new").write_text(content)
            (self.folder / f"{name}.new").replace(self.folder / f"{name}.out")

    def die(self) -> float:
        """End the engine as a failed start does; return when."""
        self.says("failed", "failed", 0, FAILED_START)
        (self.folder / f"invocation:{UNIT}").unlink()
        at = time.monotonic()
        self.engine.send_signal(signal.SIGKILL)
        self.engine.wait()
        return at


def gate(folder: Path) -> tuple[float, float]:
    """Seconds from death to verdict, and percent of one core while waiting."""
    host = Host(folder)
    try:
        parameters = {"unit": UNIT, "port": 1, "served_model": "bench", "canaries": [{"prompt": "Hello"}]}
        environment = {**ENVIRONMENT, "PATH": f"{folder}:{os.environ['PATH']}"}
        command = [sys.executable, str(HERE / "_gate_job.py"), str(folder), json.dumps(parameters)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as process:
            time.sleep(WARM_SECONDS)
            before, began = with_children(process.pid), time.monotonic()
            time.sleep(WATCHED_SECONDS)
            percent = 100 * (with_children(process.pid) - before) / (time.monotonic() - began)
            died = host.die()
            output = process.communicate()[0]
            seconds = time.monotonic() - died
    finally:
        host.engine.kill()
    result = json.loads(output.splitlines()[-1])
    assert result["diagnosis"]["evidence"][0]["text"].endswith(ROOT_LINE), result
    return seconds, percent


def with_children(pid: int) -> float:
    """Processor seconds of a process and of its children that have ended."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return cpu_seconds([pid]) + (int(fields[13]) + int(fields[14])) / os.sysconf("SC_CLK_TCK")


def main() -> int:
    """Run the benchmark."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        long_log(folder / "launch.log")
        runs = [diagnose(folder / "launch.log") for _ in range(RUNS)]
        for number, (seconds, used, size) in enumerate(runs, 1):
            print(f"diagnosis {number}: {seconds:5.2f} s, {used:5.2f} CPU s, {size:4.0f} MB")
        latency, percent = gate(folder)
    result = {
        "diagnose_100mb_seconds": round(statistics.median(seconds for seconds, _used, _size in runs), 2),
        "diagnose_100mb_cpu_seconds": round(statistics.median(used for _seconds, used, _size in runs), 2),
        "diagnose_mb": round(max(size for _seconds, _used, size in runs)),
        "death_to_verdict_seconds": round(latency, 2),
        "gate_cpu_percent": round(percent, 2),
    }
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
