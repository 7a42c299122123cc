# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What of a host matters to a launch. Everything is only looked at, and what cannot be seen is not known."""

from __future__ import annotations

import glob
import os
import re
import shutil
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Callable

from ansible_collections.llmops.vllm.plugins.module_utils import shm
from ansible_collections.llmops.vllm.plugins.module_utils.gpu import GpuReport
from ansible_collections.llmops.vllm.plugins.module_utils.gpu_query import GpuHost, read_gpus
from ansible_collections.llmops.vllm.plugins.module_utils.kernel_log import KernelLog, read_kernel_log
from ansible_collections.llmops.vllm.plugins.module_utils.launch import Launch
from ansible_collections.llmops.vllm.plugins.module_utils.pci import PciGpu, read_pci_gpus
from ansible_collections.llmops.vllm.plugins.module_utils.procfs import ProcFs, read_file
from ansible_collections.llmops.vllm.plugins.module_utils.shm_run import ShmRequest, ShmRun
from ansible_collections.llmops.vllm.plugins.module_utils.systemd import Runner
from ansible_collections.llmops.vllm.plugins.module_utils.users import user_name

SHM = "/dev/shm"  # noqa: S108 # where POSIX shared memory lies on Linux
NCCL_PLUGIN = re.compile(r"^\s*(libnccl-(?:net|tuner|profiler)\S*\.so\S*) .*=> (\S+)", re.MULTILINE)
NVCC_RELEASE = re.compile(r"release (\d+\.\d+)")
UNLIMITED = -1


@dataclass(frozen=True)
class Space:
    """A file system as seen from ``path``: what a process without privileges may still write."""

    path: str
    total_bytes: int
    free_bytes: int
    read_only: bool = False
    no_exec: bool = False


@dataclass(frozen=True)
class Limits:
    """Limits of the unit; -1 is none, ``None`` not known."""

    memlock_bytes: int | None = None
    nofile: int | None = None


@dataclass(frozen=True)
class Tools:
    """Programs that compile kernels on the host; empty where there is none. ``nvcc_version`` is 12.9 or the like.

    ``cuda_in_runtime`` is a directory of the runtime's own packages with a compiler, which nobody finds by itself.
    """

    nvcc: str = ""
    nvcc_version: str = ""
    ninja: str = ""
    cuda_in_runtime: str = ""


@dataclass(frozen=True)
class Orphan:
    """A process of an engine that belongs to no unit and no container."""

    pid: int
    user: str
    command: str


@dataclass(frozen=True)
class Leftovers:
    """What engines left behind that nobody manages: processes, and shared memory that nobody uses."""

    processes: tuple[Orphan, ...] = ()
    shm_count: int = 0
    shm_bytes: int = 0


@dataclass(frozen=True)
class HostFacts:
    """One look at the host."""

    gpus: GpuReport
    pci: tuple[PciGpu, ...] = ()
    log: KernelLog = field(default_factory=KernelLog)
    shm: Space | None = None
    cache: Space | None = None
    memory_total_bytes: int | None = None
    memory_available_bytes: int | None = None
    cpu_count: int = 1
    limits: Limits = field(default_factory=Limits)
    infiniband: bool = False
    clock_synchronised: bool | None = None
    nccl_plugins: Mapping[str, str] = field(default_factory=dict)
    tools: Tools = field(default_factory=Tools)
    leftovers: Leftovers = field(default_factory=Leftovers)


def collect(host: GpuHost, launch: Launch, statvfs: Callable[[str], os.statvfs_result] = os.statvfs) -> HostFacts:
    """Look at ``host``. GPUs and what serves them are looked at only for a runtime that uses them.

    What other programs are asked for is asked at the same time.
    """
    with_gpus = launch.runtime.device in ("cuda", "")
    memory = read_memory(host.proc)
    leftovers = read_leftovers(host)  # first: of very many processes it forks, which wants no threads
    with ThreadPoolExecutor() as pool:
        gpus = pool.submit(read_gpus, host) if with_gpus else None
        plugins = pool.submit(read_nccl_plugins, host.run) if with_gpus else None
        tools = pool.submit(read_tools, host, launch) if with_gpus else None
        log = pool.submit(read_kernel_log, host.run, host.proc)
        limits = pool.submit(read_limits, host.run, launch.unit)
        clock = pool.submit(read_clock, host.run)
        return HostFacts(
            pci=read_pci_gpus(host.root) if with_gpus else (),
            shm=read_space(host.root, SHM, statvfs),
            cache=read_space(host.root, launch.cache, statvfs) if launch.cache else None,
            memory_total_bytes=memory.get("MemTotal"),
            memory_available_bytes=memory.get("MemAvailable"),
            cpu_count=os.cpu_count() or 1,
            infiniband=bool(_listed(os.path.join(host.root, "sys/class/infiniband"))),
            leftovers=leftovers,
            gpus=gpus.result() if gpus else GpuReport(False, reason="the runtime does not use GPUs"),
            log=log.result(),
            limits=limits.result(),
            clock_synchronised=clock.result(),
            nccl_plugins=plugins.result() if plugins else {},
            tools=tools.result() if tools else Tools(),
        )


def read_memory(proc: ProcFs) -> dict[str, int]:
    """Return the fields of ``/proc/meminfo`` in bytes."""
    lines = (line.split() for line in os.fsdecode(read_file(f"{proc.root}/meminfo")).splitlines())
    return {words[0].rstrip(":"): int(words[1]) * 1024 for words in lines if len(words) == 3 and words[1].isdigit()}


def read_space(root: str, path: str, statvfs: Callable[[str], os.statvfs_result] = os.statvfs) -> Space | None:
    """Return the file system that ``path`` is or will be on; None when it cannot be asked."""
    place = os.path.join(root, path.lstrip("/"))
    while not os.path.isdir(place) and place not in ("/", root):
        place = os.path.dirname(place)
    try:
        status = statvfs(place)
    except OSError:
        return None
    return Space(
        path=path,
        total_bytes=status.f_blocks * status.f_frsize,
        free_bytes=status.f_bavail * status.f_frsize,
        read_only=bool(status.f_flag & os.ST_RDONLY),
        no_exec=bool(status.f_flag & os.ST_NOEXEC),
    )


def read_limits(run: Runner, unit: str) -> Limits:
    """Return the limits of a unit that systemd knows."""
    if not unit:
        return Limits()
    properties = "LoadState,LimitMEMLOCK,LimitNOFILE"
    done = run(["systemctl", "show", "--no-pager", "--property", properties, "--", unit])
    values = dict(line.partition("=")[::2] for line in done.stdout.splitlines())
    if done.returncode or values.get("LoadState") != "loaded":
        return Limits()
    return Limits(_limit(values.get("LimitMEMLOCK", "")), _limit(values.get("LimitNOFILE", "")))


def _limit(text: str) -> int | None:
    if text == "infinity":
        return UNLIMITED
    return int(text) if text.isdigit() else None


def read_clock(run: Runner) -> bool | None:
    """Return whether the clock follows a time server; None where systemd does not know."""
    done = run(["timedatectl", "show", "--property=NTPSynchronized", "--value"])
    return {"yes": True, "no": False}.get(done.stdout.strip()) if done.returncode == 0 else None


def read_nccl_plugins(run: Runner) -> dict[str, str]:
    """Return the NCCL plugins that the dynamic loader finds for every program, name to path."""
    done = run(["ldconfig", "-p"])
    if done.returncode == 127:  # not on the PATH of users
        done = run(["/sbin/ldconfig", "-p"])
    return dict(NCCL_PLUGIN.findall(done.stdout))


def read_tools(host: GpuHost, launch: Launch) -> Tools:
    """Return the compiler that FlashInfer would run, found as it finds it (flashinfer/jit/cpp_ext.py), and ninja."""
    path = ":".join(os.path.join(host.root, part.lstrip("/")) for part in launch.path.split(":") if part)
    home = launch.environment.get("CUDA_HOME") or launch.environment.get("CUDA_PATH")
    found = None if home else shutil.which("nvcc", path=path)
    nvcc = found or shutil.which(os.path.join(host.root, (home or "/usr/local/cuda").lstrip("/"), "bin/nvcc")) or ""
    release = NVCC_RELEASE.search(host.run([nvcc, "--version"]).stdout) if nvcc else None
    packages = launch.runtime.site_packages
    own = sorted(glob.glob(f"{glob.escape(packages)}/nvidia/*/bin/nvcc")) if packages else []
    return Tools(
        nvcc=nvcc,
        nvcc_version=release.group(1) if release else "",
        ninja=shutil.which("ninja", path=path) or "",
        cuda_in_runtime=os.path.dirname(os.path.dirname(own[-1])) if own else "",
    )


def read_leftovers(host: GpuHost) -> Leftovers:
    """Return engine processes that no unit and no session holds, and shared memory of engines that nobody uses."""
    processes = tuple(
        Orphan(process.pid, user_name(process.uid), process.command)
        for process in host.proc.processes().values()
        if process.comm.startswith("VLLM::") and process.alive and host.layout.unit_of(process) is None
    )
    found = ShmRun(ShmRequest(shm_path=os.path.join(host.root, SHM.lstrip("/"))), host.proc, host.run)
    unused = [one for one in found.result(shm.UNUSED)["objects"] if one["verdict"] == shm.UNUSED]
    return Leftovers(processes, len(unused), sum(one["allocated_bytes"] for one in unused))


def _listed(path: str) -> list[str]:
    try:
        return os.listdir(path)
    except OSError:
        return []
