#!/usr/bin/env python3
# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Time process_teardown and shm_cleanup on a host with 5,000 other processes of 50 open files each.

usage: make bench-teardown    the last line is one JSON object. Each time is the median of three runs:
    plan_seconds       plan by control group          plan_fd_seconds   plan by TCP port and device
    plan_mb            peak memory of either plan     end_seconds       end 1,000 processes, beyond their grace
    shm_seconds        judge 2,000 objects and remove them, but 20 that a process maps, or has open (the longest counts)
    slope              plan_fd_seconds over the same with 500 other processes
    vs_fuser, vs_lsof, vs_psutil                      their time for the same port and device (psutil: port) over ours
    peers              the peers' times; those that are not installed are left out
    cpu_seconds        the CPU time of our jobs, which tells more than the clock where others load the machine
    load               the load average without the other processes of this benchmark

Runs as root, as it needs a control group of its own. All processes end with this one, however it ends.
"""

from __future__ import annotations

import json
import mmap
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Callable

from _peers import MissingPeerError, programs_of

HERE = Path(__file__).parent
RUNS, OTHERS, FEW, FILES = 3, 5000, 500, 50
TO_END, HOLDERS, OBJECTS, USED = 1000, 8, 2000, 20
OWNER = str(os.getuid())


class Crowd:
    """Light processes that end with this benchmark; see `_crowd.py`."""

    def __init__(self, count: int, *options: str, files: int = FILES) -> None:
        command = [sys.executable, "-I", "-S", str(HERE / "_crowd.py"), str(count), str(files), *options]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        assert self.process.stdin and self.process.stdout
        self.input, self.output = self.process.stdin, self.process.stdout
        self.port = int(self.output.readline())

    def __enter__(self) -> Crowd:
        return self

    def __exit__(self, *error: object) -> None:
        self.input.close()
        self.process.wait()
        self.output.close()
        while True:
            try:
                os.killpg(self.process.pid, 0)
            except ProcessLookupError:
                return
            time.sleep(0.02)


@contextmanager
def control_group(name: str) -> Iterator[Path]:
    """An own group of the unified hierarchy, removed at the end."""
    mounts = [line.split() for line in Path("/proc/mounts").read_text(encoding="utf-8").splitlines()]
    group = Path(next(fields[1] for fields in mounts if fields[2] == "cgroup2")) / f"llmops-bench-{os.getpid()}-{name}"
    group.mkdir()
    try:
        yield group
    finally:
        while True:
            try:
                group.rmdir()
                break
            except OSError:
                time.sleep(0.02)


@contextmanager
def segments(used: int, mapped: bool = True) -> Iterator[Path]:
    """A directory on the tmpfs of shared memory with 2,000 objects, some of them mapped, or open, in this process."""
    directory = Path(tempfile.mkdtemp(dir="/dev/shm", prefix="llmops-bench-teardown-"))
    try:
        with ExitStack() as stack:
            for number in range(OBJECTS):
                with open(directory / f"psm_{number:08x}", "w+b") as stream:
                    stream.truncate(mmap.PAGESIZE)
                    if number < used:
                        stack.enter_context(
                            mmap.mmap(stream.fileno(), mmap.PAGESIZE) if mapped else open(stream.name, "rb")  # noqa: SIM115 - closed by the stack
                        )
            yield directory
    finally:
        shutil.rmtree(directory)


def job(*arguments: str, python: str = sys.executable) -> dict[str, Any]:
    """Do one job in a fresh interpreter; `seconds` are its own, without start and imports."""
    began = time.perf_counter()
    done = subprocess.run(
        [python, str(HERE / "_teardown_job.py"), *arguments], stdout=subprocess.PIPE, text=True, check=True
    )
    found: dict[str, Any] = json.loads(done.stdout)
    found["start_seconds"] = time.perf_counter() - began - found["seconds"]
    return found


def ours(name: str, how: str, **parameters: Any) -> dict[str, Any]:
    """Do one job of ours."""
    return job(name, how, json.dumps(parameters))


def command_seconds(*command: str) -> float:
    """How long a command takes; its exit status tells only whether it found anything."""
    began = time.perf_counter()
    subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    return time.perf_counter() - began


def repeated(title: str, one: Callable[[], dict[str, Any]], runs: int = RUNS) -> dict[str, Any]:
    """Run a job some times, print what it took, return its medians."""
    found = [one() for _run in range(runs)]
    result = {
        name: statistics.median(each[name] for each in found)
        for name, value in found[0].items()
        if isinstance(value, (int, float))
    }
    best = min(each["seconds"] for each in found)
    counts = {name: value for name, value in found[-1].items() if isinstance(value, int)}
    print(
        f"{title:<46} {result['seconds']:7.3f} s (best {best:.3f}, CPU {result.get('cpu_seconds', 0):.3f})"
        f" {' '.join(f'{name}={value}' for name, value in counts.items())}",
        flush=True,
    )
    return result


def as_job(command: Sequence[str]) -> Callable[[], dict[str, Any]]:
    """A peer's command as a job."""
    return lambda: {"seconds": command_seconds(*command)}


def end(group: Path, *options: str, grace: float = 30.0, **parameters: Any) -> dict[str, Any]:
    """End a crowd of its own by its control group; the seconds are those beyond the grace that it used up."""
    with Crowd(TO_END, "--cgroup", str(group), *options, files=4):
        done = ours("teardown", "apply", cgroup=str(group), grace_seconds=grace, **parameters)
    assert (done["ended"], done["survivors"]) == (TO_END, 0), done
    return {**done, "seconds": done["seconds"] - (grace if options else 0)}


def clean_up(used: int, mapped: bool = True) -> dict[str, Any]:
    """Judge and remove 2,000 objects."""
    with segments(used, mapped) as directory:
        done = ours("shm", "apply", owner=OWNER, shm_path=str(directory))
    assert (done["removed"], done["kept"]) == (OBJECTS - used, used), done
    return done


def peer_clean_up(command: Callable[[Path], Sequence[str]]) -> dict[str, Any]:
    """Ask a peer who uses 2,000 objects; it removes none."""
    with segments(USED) as directory:
        return {"seconds": command_seconds(*command(directory))}


def plan_with_files(group: Path, port: int) -> dict[str, Any]:
    """Plan by what needs all open files; the group makes the holders ours."""
    return ours("teardown", "plan", cgroup=str(group), port=port, devices=["/dev/full"], owner=OWNER)


def prepare() -> tuple[bool, bool, str]:
    """Install the peers where that can be done; return whether there is fuser, lsof, and an interpreter with psutil."""
    for program, package in (("fuser", "psmisc"), ("lsof", "lsof")):
        if not shutil.which(program) and os.getuid() == 0 and shutil.which("apt-get"):
            subprocess.run(["apt-get", "install", "--yes", "--quiet=2", package], stdout=sys.stderr, check=False)
    python = ""
    with suppress(MissingPeerError):
        python = str(programs_of("psutil") / "python")
    return bool(shutil.which("fuser")), bool(shutil.which("lsof")), python


def peers(holders: Crowd) -> dict[str, dict[str, float]]:
    """The peers' times for the same jobs."""
    fuser, lsof, python = prepare()
    found: dict[str, dict[str, float]] = {}
    if fuser:
        command = ["fuser", f"{holders.port}/tcp", "/dev/full"]
        found["fuser"] = {
            "plan_fd_seconds": repeated("fuser, port and device", as_job(command))["seconds"],
            "shm_seconds": repeated(
                "fuser, 2,000 objects (removes none)",
                lambda: peer_clean_up(lambda path: ["fuser", *(str(one) for one in path.iterdir())]),
                1,
            )["seconds"],
        }
    if lsof:
        command = ["lsof", "-nPwt", f"-iTCP:{holders.port}", "-sTCP:LISTEN", "/dev/full"]
        found["lsof"] = {
            "plan_fd_seconds": repeated("lsof, port and device", as_job(command))["seconds"],
            "shm_seconds": repeated(
                "lsof, 2,000 objects (removes none)",
                lambda: peer_clean_up(lambda path: ["lsof", "-nPwt", "+d", str(path)]),
                1,
            )["seconds"],
        }
    if python:
        found["psutil"] = psutil_times(holders, python)
    return found


def psutil_times(holders: Crowd, python: str) -> dict[str, float]:
    """What a program with psutil takes."""

    def remove() -> dict[str, Any]:
        with segments(USED) as directory:
            return job("psutil-maps", str(directory), python=python)

    def finish() -> dict[str, Any]:
        with Crowd(TO_END, files=4) as crowd:
            return job("psutil-end", str(crowd.process.pid), python=python)

    port = str(holders.port)
    return {
        "plan_fd_seconds": repeated("psutil, port only", lambda: job("psutil-port", port, python=python))["seconds"],
        "end_seconds": repeated("psutil, end 1,000 children", finish)["seconds"],
        "shm_seconds": repeated("psutil, 2,000 objects by name", remove, 1)["seconds"],
    }


def measure(group: Path, holders: Crowd, few: dict[str, Any]) -> dict[str, Any]:
    """Everything that is done beside all the others."""
    plan = repeated("plan by control group", lambda: ours("teardown", "plan", cgroup=str(group)))
    with_files = repeated("plan by port and device", lambda: plan_with_files(group, holders.port))
    with control_group("end") as doomed:
        obedient = repeated("end 1,000 by TERM", lambda: end(doomed))
        stubborn = repeated("end 1,000 by KILL, beyond the grace", lambda: end(doomed, "--ignore-term", grace=1.0))
        repeated(
            "the same with a port to look for",
            lambda: end(
                doomed, "--ignore-term", grace=1.0, port=holders.port, tolerate_foreign=["root"], expect_port_free=False
            ),
        )
    objects = [
        repeated("remove 2,000 unused objects", lambda: clean_up(0)),
        repeated("remove 1,980 objects, keep 20 mapped ones", lambda: clean_up(USED)),
        repeated("remove 1,980 objects, keep 20 open ones", lambda: clean_up(USED, mapped=False)),
    ]
    shm, end_of_all = max(objects, key=seconds), max(obedient, stubborn, key=seconds)
    others = peers(holders)
    return {
        "plan_seconds": plan["seconds"],
        "plan_fd_seconds": with_files["seconds"],
        "plan_mb": max(plan["peak_mb"], with_files["peak_mb"]),
        "end_seconds": end_of_all["seconds"],
        "shm_seconds": shm["seconds"],
        "slope": with_files["seconds"] / few["seconds"],
        **{
            f"vs_{name}": others[name]["plan_fd_seconds"] / with_files["seconds"] if name in others else None
            for name in ("fuser", "lsof", "psutil")
        },
        "start_seconds": plan["start_seconds"],
        "cpu_seconds": {
            "plan": plan["cpu_seconds"],
            "plan_fd": with_files["cpu_seconds"],
            "plan_fd_few": few["cpu_seconds"],
            "end": end_of_all["cpu_seconds"],
            "shm": shm["cpu_seconds"],
        },
        "peers": others,
    }


def seconds(found: dict[str, Any]) -> float:
    """The time that a job took."""
    return float(found["seconds"])


def main() -> int:
    """Run the benchmark."""
    if os.getuid() != 0:
        print("A control group of its own is needed: run this as root.", file=sys.stderr)
        return 2
    load = os.getloadavg()[0]
    print(f"load average {load:.1f} on {os.cpu_count()} CPUs")
    with ExitStack() as stack:
        group = stack.enter_context(control_group("plan"))
        holders = stack.enter_context(Crowd(HOLDERS, "--hold", "--cgroup", str(group)))
        with Crowd(FEW):
            few = repeated(f"plan by port and device, {FEW} others", lambda: plan_with_files(group, holders.port))
        stack.enter_context(Crowd(OTHERS))
        result = measure(group, holders, few)
    print(json.dumps(rounded({**result, "load": load})))
    return 0


def rounded(value: Any) -> Any:
    """Numbers as they are read."""
    if isinstance(value, dict):
        return {name: rounded(one) for name, one in value.items()}
    return round(value, 3) if isinstance(value, float) else value


if __name__ == "__main__":
    raise SystemExit(main())
