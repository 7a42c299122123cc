# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run a command and say what it cost: time, CPU, memory, and how busy the machine was with something else."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TICKS = os.sysconf("SC_CLK_TCK")
CORES = len(os.sched_getaffinity(0))
POLL_SECONDS = 0.02
TIMEOUT_SECONDS = 300.0
PRIORITY = os.environ.get("BENCH_PRIORITY", "")


@dataclass(frozen=True)
class Sample:
    """One run. CPU seconds include ended children; ``foreign`` is the share of all cores that others used."""

    status: int
    seconds: float
    cpu_seconds: float
    rss_bytes: int
    foreign: float
    output: str


def busy_seconds() -> float:
    """CPU seconds of the whole machine since it started, idle time and waiting left out."""
    fields = [int(field) for field in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return (sum(fields) - fields[3] - fields[4]) / TICKS


def cpu_seconds(pids: Iterable[int]) -> float:
    """CPU seconds of these processes so far."""
    total = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        total += int(fields[11]) + int(fields[12])
    return total / TICKS


def family(pid: int) -> list[int]:
    """The process `pid` and its descendants, as far as they are there now."""
    try:
        # each thread has the children that it started
        children = [
            child for path in Path(f"/proc/{pid}/task").glob("*/children") for child in path.read_text().split()
        ]
    except OSError:
        return [pid]
    return [pid, *(member for child in children for member in family(int(child)))]


def peak_bytes(pids: Iterable[int]) -> int:
    """The largest memory these processes have had, added up."""
    total = 0
    for pid in pids:
        try:
            status = Path(f"/proc/{pid}/status").read_text()
        except OSError:
            continue
        total += sum(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM:"))
    return total


def foreign_share(seconds: float = 0.3) -> float:
    """The share of all cores that is in use now, while we do nothing."""
    before = busy_seconds()
    time.sleep(seconds)
    return (busy_seconds() - before) / seconds / CORES


def wait_for_quiet(longest_seconds: float) -> None:
    """Wait until at most a tenth of the machine is in use, no longer than `longest_seconds`."""
    until = time.monotonic() + longest_seconds
    while foreign_share() > 0.1 and time.monotonic() < until:
        time.sleep(0.2)


def start(command: list[str], **options: Any) -> subprocess.Popen[bytes]:
    """Start `command` in a session of its own, which the scheduler weighs as a whole."""
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True, **options)
    if PRIORITY:
        Path(f"/proc/{process.pid}/autogroup").write_text(PRIORITY)
    return process


def run(
    command: list[str],
    *,
    environment: dict[str, str],
    folder: Path,
    server: list[int],
    kill_when: Callable[[], bool] = lambda: False,
) -> Sample:
    """Run `command` in `folder`, a session of its own, which gets SIGKILL when `kill_when` says so."""
    busy, serving, own = busy_seconds(), cpu_seconds(server), time.process_time()
    began = time.monotonic()
    log = folder / ".output"
    with log.open("wb") as output:
        process = start(command, cwd=folder, env={**os.environ, **environment}, stdout=output, stderr=output)
    peak, polls = 0, 0
    while True:
        pid, status, usage = os.wait4(process.pid, os.WNOHANG)
        if pid:
            break
        if polls % 5 == 0:
            peak = max(peak, peak_bytes(family(process.pid)))
        polls += 1
        if kill_when() or time.monotonic() - began > TIMEOUT_SECONDS:
            os.killpg(process.pid, 9)
        time.sleep(POLL_SECONDS)
    seconds = time.monotonic() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    used = usage.ru_utime + usage.ru_stime
    ours = used + cpu_seconds(server) - serving + time.process_time() - own
    foreign = max(0.0, busy_seconds() - busy - ours) / seconds / CORES
    text = log.read_text(errors="replace")
    log.unlink()
    return Sample(process.returncode, seconds, used, peak, foreign, text)
