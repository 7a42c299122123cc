#!/usr/bin/env python3
# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Measure `model_shards` against the limits of this machine and against other downloaders, in one run.

usage: make bench-download    the last line is one JSON object

nginx serves a generated model from memory over loopback; every client fetches all of it, to the disk (synced) and to
memory, plain and over TLS. The clients take turns, and a figure is the median of its rounds. `foreign` is the share of
all cores that other programs used meanwhile: where it is not small, times say little, and CPU seconds still something.

BENCH_BYTES     size of one of the 16 shards (default 96 MiB)    BENCH_ROUNDS  rounds (default 3)
BENCH_QUICK=1   one round                                         BENCH_ONLY    words; only clients with one of them
BENCH_DISK      a folder on the disk to measure (default /var/tmp)
BENCH_WAIT_SECONDS  how long to wait for a quiet machine before each run (default 5)
BENCH_PRIORITY  autogroup's nice value of clients and server (root; -12 outweighs what else runs)
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from _download_clients import Client, Command, Job, all_clients, module_command
from _download_server import Repository, Server
from _measure import CORES, Sample, run, start, wait_for_quiet

SHARDS, MANY_SHARDS, MANY_BYTES = 16, 119, 4 * 1024 * 1024 + 4096
SHARD_BYTES = int(os.environ.get("BENCH_BYTES", "0")) or 96 * 1024 * 1024
ROUNDS = 1 if os.environ.get("BENCH_QUICK") else int(os.environ.get("BENCH_ROUNDS", "3"))
ONLY = os.environ.get("BENCH_ONLY", "").split()
DISK = os.environ.get("BENCH_DISK", "/var/tmp")
MEMORY = "/dev/shm"
WAIT_SECONDS = float(os.environ.get("BENCH_WAIT_SECONDS", "5"))
LIMITS = str(Path(__file__).parent / "_limits.py")
OURS = "model_shards"
PLACES = (("disk", False), ("memory", False), ("memory", True), ("disk", True))
GIB = 1024**3


@dataclass
class Run:
    """One finished run of a client."""

    sample: Sample
    megabytes_per_second: float
    cpu_seconds_per_gib: float
    inside_seconds: float | None


@dataclass
class Bench:
    """The server, the folders, and what was measured so far."""

    server: Server
    folders: dict[str, Path]
    model: Repository
    many: Repository
    clients: list[Client]
    runs: dict[tuple[str, str, bool], list[Run]] = field(default_factory=lambda: defaultdict(list))
    foreign: list[float] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def job(self, place: str = "disk", tls: bool = False, repository: Repository | None = None) -> Job:
        """A job with an empty destination."""
        folder = self.folders[place]
        clear(folder)
        (folder / "scratch").mkdir()
        return Job(self.server, repository or self.model, tls, folder / "model", folder / "scratch")

    def execute(self, command: Command, job: Job, **options: Any) -> Sample:
        """Run one command when the machine is quiet, or no longer to be waited for."""
        wait_for_quiet(WAIT_SECONDS)
        sample = run(command[0], environment=command[1], folder=job.scratch, server=self.server.processes(), **options)
        self.foreign.append(sample.foreign)
        return sample


def clear(folder: Path) -> None:
    """Empty `folder` and let the disk settle."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    if not str(folder).startswith(MEMORY):
        subprocess.run(["sync", "-f", str(folder)], check=True)


def synced(command: Command, place: str, folder: Path) -> Command:
    """The command; on the disk, what it wrote is on the disk when it ends."""
    if place == "memory":
        return command
    return [
        "sh",
        "-c",
        'sync_folder=$1; shift; "$@" && sync -f "$sync_folder"',
        "sh",
        str(folder),
        *command[0],
    ], command[1]


def complete(job: Job) -> bool:
    """Whether every shard is there with its size, wherever below the destination."""
    found = {path.name: path.stat().st_size for path in job.destination.rglob("*.safetensors")}
    return found == {name: size for name, (size, _digest) in job.repository.shards.items()}


def result_of(sample: Sample) -> dict[str, Any]:
    """What our module answered; the line with `requests` belongs to this benchmark."""
    for line in sample.output.splitlines():
        if line.startswith("{"):
            return {"imported": "imported requests: True" in sample.output, **json.loads(line)}
    raise RuntimeError(f"model_shards did not answer: {sample.output[-1000:]}")


def limit(*arguments: str) -> float:
    """A rate of this machine in bytes per second."""
    wait_for_quiet(WAIT_SECONDS)
    process = start([sys.executable, LIMITS, *arguments], stdout=subprocess.PIPE)
    return float(process.communicate()[0])


def measure_client(bench: Bench, client: Client, place: str, tls: bool) -> None:
    """One cold run of one client."""
    job = bench.job(place, tls)
    command = synced(client.command(job), place, bench.folders[place])
    sample = bench.execute(command, job)
    name = f"{client.name}, {place}{', TLS' if tls else ''}"
    if sample.status or not complete(job):
        bench.problems.append(f"{name}: failed with {sample.status}: {sample.output.strip()[-300:]}")
        print(f"{bench.problems[-1]}", flush=True)
        return
    done = Run(
        sample,
        job.repository.total_bytes / sample.seconds / 1e6,
        sample.cpu_seconds / job.repository.total_bytes * GIB,
        result_of(sample)["elapsed_seconds"] if client.name == OURS else None,
    )
    bench.runs[client.name, place, tls].append(done)
    print(
        f"{name:32} {done.megabytes_per_second:6.0f} MB/s {done.cpu_seconds_per_gib:6.2f} CPU s/GiB "
        f"{sample.rss_bytes / 1e6:5.0f} MB   foreign {sample.foreign:.2f}",
        flush=True,
    )


def measure_downloads(bench: Bench) -> list[float]:
    """All clients in turn, as often as asked for; return what the disk took meanwhile, in bytes per second."""
    disk_rates = []
    for number in range(1, ROUNDS + 1):
        print(f"round {number} of {ROUNDS}", flush=True)
        for place, tls in PLACES:
            for client in bench.clients:
                if not client.absent:
                    measure_client(bench, client, place, tls)
                if place == "disk" and client.name == OURS:
                    clear(bench.folders["disk"])
                    target = str(bench.folders["disk"] / "limit")
                    disk_rates.append(limit("write", target, str(SHARDS), str(SHARD_BYTES)))
                    print(f"{'the disk itself, O_DIRECT':32} {disk_rates[-1] / 1e6:6.0f} MB/s", flush=True)
    return disk_rates


def measure_second_run(bench: Bench) -> dict[str, Any]:
    """Many shards, pinned, all there: what does it cost to find that out?"""
    job = bench.job(repository=bench.many)
    first = bench.execute(module_command(job, bench.many.commit), job)
    if result_of(first).get("failed"):
        raise RuntimeError(first.output)
    before, milliseconds, imported = bench.server.log()[0], [], False
    for _turn in range(5):
        result = result_of(bench.execute(module_command(job, bench.many.commit), job))
        if result["changed"]:
            raise RuntimeError(f"a second run changed something: {result}")
        milliseconds.append(1000 * result["elapsed_seconds"])
        imported |= result["imported"]
    return {
        "noop_ms": round(statistics.median(milliseconds), 1),
        "noop_requests": bench.server.log()[0] - before,
        "noop_imports_requests": imported,
        "rss_mb_119_shards": round(first.rss_bytes / 1e6),
    }


def arrived_bytes(folder: Path) -> int:
    """Bytes of the shards on the disk, finished or not."""
    total = 0
    for path in folder.rglob("*"):
        if path.suffix in (".part", ".safetensors"):
            try:
                total += path.stat().st_size
            except FileNotFoundError:
                continue
    return total


def measure_kill(bench: Bench) -> dict[str, Any]:
    """Kill at half way, run again: what is fetched twice, what stays behind?"""
    job = bench.job()
    size = job.repository.total_bytes
    served = bench.server.log()[1]
    killed = bench.execute(module_command(job), job, kill_when=lambda: arrived_bytes(job.destination) >= size / 2)
    if killed.status != -9:
        raise RuntimeError(f"it ended before it was killed: {killed.output[-1000:]}")
    kept = arrived_bytes(job.destination)
    subprocess.run(["sleep", "0.3"], check=True)  # nginx notices and logs what it had sent
    served_before = bench.server.log()[1] - served
    second = bench.execute(module_command(job), job)
    result = result_of(second)
    if result.get("failed") or not complete(job):
        raise RuntimeError(f"the second run failed: {second.output[-1000:]}")
    served_again = bench.server.log()[1] - served - served_before
    leftover = [
        path for path in job.destination.rglob("*") if path.suffix in (".part", ".new") or "partial" in path.name
    ]
    late = max(0.0, 100 * kept / size - 50)  # it dies a little later than at half; that must not look like a merit
    return {
        "refetch_percent": round(100 * served_again / size + late, 1),
        "killed_at_percent": round(100 * kept / size, 1),
        "served_percent": round(100 * (served_before + served_again) / size, 1),
        "orphans": len(leftover),
    }


def measure_verify(bench: Bench) -> dict[str, Any]:
    """Read everything again."""
    job = bench.job()
    bench.execute(module_command(job), job)
    shards = next(job.destination.rglob("*.safetensors")).parent
    rates, limits = [], []
    for _round in range(ROUNDS):
        sha256, disk = limit("sha256"), limit("read", str(shards))
        limits.append(min(CORES * sha256, disk))
        result = result_of(bench.execute(module_command(job, job.repository.commit, state="verified"), job))
        if result.get("failed") or result["changed"]:
            raise RuntimeError(f"a right snapshot was not accepted: {result}")
        rates.append(job.repository.total_bytes / result["elapsed_seconds"])
        print(
            f"full verify {rates[-1] / 1e6:6.0f} MB/s   SHA-256 {sha256 / 1e6:.0f} MB/s on each of {CORES} cores, "
            f"the disk reads {disk / 1e6:.0f} MB/s",
            flush=True,
        )
    return {
        "verify_vs_limit": ratio(statistics.median(rates), statistics.median(limits)),
        "verify_mbps": round(statistics.median(rates) / 1e6),
    }


def ratio(one: float | None, other: float | None) -> float | None:
    """One over the other, where there are both."""
    return round(one / other, 2) if one and other else None


def median_rate(bench: Bench, name: str, place: str, tls: bool) -> float | None:
    """The median of a client's rates in MB/s."""
    rates = [done.megabytes_per_second for done in bench.runs[name, place, tls]]
    return statistics.median(rates) if rates else None


def fastest_unverified(bench: Bench, place: str, tls: bool) -> float | None:
    """The rate of the fastest client that takes whatever arrives."""
    names = [client.name for client in bench.clients if not client.verifies]
    return max(filter(None, (median_rate(bench, name, place, tls) for name in names)), default=None)


def summary(bench: Bench, disk_rates: list[float]) -> dict[str, Any]:
    """What the cold runs say."""
    ours = bench.runs[OURS, "disk", False]
    rate = median_rate(bench, OURS, "disk", False)
    inside = [bench.model.total_bytes / done.inside_seconds / 1e6 for done in ours if done.inside_seconds]
    disk = statistics.median(disk_rates) / 1e6 if disk_rates else None
    every = [done for (name, _place, _tls), runs in bench.runs.items() if name == OURS for done in runs]
    rates: dict[str, dict[str, int]] = defaultdict(dict)
    for name, place, tls in bench.runs:
        rates[f"{place}{'_tls' if tls else ''}"][name] = round(median_rate(bench, name, place, tls) or 0)
    return {
        # Both without the start of an interpreter, which is a second of the hour that a large model takes.
        "disk_vs_limit": ratio(statistics.median(inside), disk) if inside else None,
        "disk_vs_limit_with_start": ratio(rate, disk),
        "disk_vs_fastest_unverified": ratio(rate, fastest_unverified(bench, "disk", False)),
        "disk_vs_hf": ratio(rate, median_rate(bench, "hf current", "disk", False)),
        "tls_vs_fastest_unverified": ratio(
            median_rate(bench, OURS, "memory", True), fastest_unverified(bench, "memory", True)
        ),
        "cpu_s_per_gib": round(statistics.median(done.cpu_seconds_per_gib for done in ours), 2) if ours else None,
        "rss_mb": round(max(done.sample.rss_bytes for done in every) / 1e6) if every else None,
        "disk_mbps": round(disk) if disk else None,
        "rates_mbps": dict(rates),
    }


@contextmanager
def prepared() -> Iterator[Bench]:
    """Make server, models and folders; remove them at the end."""
    nginx = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin") or ""
    with ExitStack() as stack:
        memory = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=MEMORY, prefix="llmops-bench-")))
        disk = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=DISK, prefix="llmops-bench-")))
        (memory / "server").mkdir()
        server = Server(memory / "server", nginx, CORES)
        model = server.add("large", SHARDS, SHARD_BYTES)
        many = server.add("many", MANY_SHARDS, MANY_BYTES)
        stack.enter_context(server)
        clients = [client for client in all_clients() if not ONLY or any(word in client.name for word in ONLY)]
        for client in clients:
            if client.absent:
                print(f"{client.name}: absent, {client.absent}")
        yield Bench(server, {"memory": memory / "d", "disk": disk / "d"}, model, many, clients)


def install_tools() -> str:
    """Install what Debian has; return why the benchmark cannot run, or nothing."""
    needed = {"nginx": "nginx-light", "openssl": "openssl", "curl": "curl", "aria2c": "aria2", "rclone": "rclone"}
    path = f"{os.environ['PATH']}:/usr/sbin"
    missing = [package for program, package in needed.items() if not shutil.which(program, path=path)]
    if missing and os.geteuid() == 0 and shutil.which("apt-get"):
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        install = ["apt-get", "install", "--yes", "--quiet=2", "--no-install-recommends", *missing]
        for command in (["apt-get", "update", "--quiet=2"], install):
            subprocess.run(command, env=environment, capture_output=True, check=False)
    lacking = [program for program in ("nginx", "openssl") if not shutil.which(program, path=path)]
    return f"It needs {' and '.join(lacking)}; install the package(s), or run it as root on Debian." if lacking else ""


def main() -> int:
    """Run the benchmark."""
    if trouble := install_tools():
        print(trouble, file=sys.stderr)
        return 2
    with prepared() as bench:
        job = bench.job("memory", repository=bench.many)
        first = bench.execute(module_command(job), job)  # peers are installed and compiled; after this so are we
        if result_of(first).get("failed"):
            raise RuntimeError(first.output)
        disk_rates = measure_downloads(bench)
        result = summary(bench, disk_rates)
        result |= measure_second_run(bench)
        result |= measure_kill(bench)
        result |= measure_verify(bench)
        result |= {
            "foreign_median": round(statistics.median(bench.foreign), 2),
            "foreign_max": round(max(bench.foreign), 2),
            "absent": [client.name for client in bench.clients if client.absent],
            "problems": bench.problems,
            "simulated": f"{SHARDS} shards of {SHARD_BYTES} bytes; {MANY_SHARDS} of {MANY_BYTES}",
        }
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
