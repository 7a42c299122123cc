# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find the GPUs of a host: ``nvidia-smi``, the PCI bus, and the processes that hold them. It never fails.

``nvidia-smi -q -x`` tells nearly all in one answer; the number of a GPU and its compute capability come from
``--query-gpu``. A GPU that the driver has and that neither names has been lost. After a first question without an
answer in time no other is asked, so a driver that hangs costs the time of one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ansible_collections.llmops.vllm.plugins.module_utils.cgroups import CgroupLayout
from ansible_collections.llmops.vllm.plugins.module_utils.gpu import (
    Gpu,
    GpuHolder,
    GpuProcess,
    GpuReport,
    Matrix,
    MissingGpu,
    Topology,
)
from ansible_collections.llmops.vllm.plugins.module_utils.gpu_text import (
    CAPABILITY,
    FIELDS,
    explain,
    merge,
    parse_lost,
    parse_matrix,
    parse_rows,
)
from ansible_collections.llmops.vllm.plugins.module_utils.gpu_xml import parse_document
from ansible_collections.llmops.vllm.plugins.module_utils.pci import PciGpu, read_pci_gpus
from ansible_collections.llmops.vllm.plugins.module_utils.procfs import ProcFs, Wanted, read_file
from ansible_collections.llmops.vllm.plugins.module_utils.systemd import NO_ANSWER, CompletedRun, Runner
from ansible_collections.llmops.vllm.plugins.module_utils.teardown_host import find_devices
from ansible_collections.llmops.vllm.plugins.module_utils.users import user_name

SMI = "nvidia-smi"
GPU_DEVICES = ("/dev/nvidia[0-9]*",)
UNANSWERED = (127, NO_ANSWER)  # not there, no answer in time
# After these no other question is worth asking: no driver, no library, two versions of them.
HOPELESS = (*UNANSWERED, 9, 12, 18)
KERNEL_DRIVER = "nvidia"
MODULE_VERSION = re.compile(r"NVRM version:.*?(Open Kernel Module|Kernel Module).*?\s(\d+\.\d+(?:\.\d+)?)\s")


@dataclass(frozen=True)
class GpuHost:
    """Where and whom to ask. ``devices`` are the device nodes whose holders to find, device number to path.

    ``run`` has to end on its own after a time (``run_command`` with ``timeout_seconds``).
    """

    run: Runner
    proc: ProcFs
    layout: CgroupLayout
    devices: Mapping[int, str]
    root: str = "/"


def this_host(run: Runner) -> GpuHost:
    """Return the host that this runs on."""
    proc = ProcFs()
    return GpuHost(run, proc, CgroupLayout(proc), find_devices(GPU_DEVICES))


def read_gpus(host: GpuHost, topology: bool = True) -> GpuReport:
    """Return the GPUs of the host; ``present`` is false, with a reason, where none can be used."""
    on_bus = read_pci_gpus(host.root)
    version, kernel_module = _driver(host.proc)
    first = host.run([SMI, "-q", "-x"])
    document = parse_document(first.stdout)
    problems: list[str] = []
    rows = [] if first.returncode in HOPELESS else _rows(host.run, problems)
    gpus = merge(document.gpus if document else (), rows)
    if not gpus:
        reason = f"{explain(first)}{_on_the_bus(on_bus)}"
        return GpuReport(
            present=False,
            answered=first.returncode not in UNANSWERED,
            reason=reason,
            driver_version=version,
            kernel_module=kernel_module,
            missing=tuple(parse_lost(first.stdout + first.stderr)),
            problems=tuple(problems),
        )
    if first.returncode:
        problems.insert(0, explain(first))
    holders, unreadable = _holders(host)
    known = {holder.pid: holder for holder in holders}
    return GpuReport(
        present=True,
        driver_version=(document.driver_version if document else "") or version,
        cuda_version=document.cuda_version if document else "",
        kernel_module=kernel_module,
        gpus=tuple(_with_owners(gpu, host, known, unreadable) for gpu in gpus),
        missing=_missing(gpus, parse_lost(first.stdout + first.stderr), on_bus, host.proc),
        holders=holders,
        topology=_topology(host.run, problems) if topology and len(gpus) > 1 else Topology(),
        problems=tuple(problems),
    )


def _rows(run: Runner, problems: list[str]) -> list[Gpu]:
    for fields in ((*FIELDS, CAPABILITY), FIELDS):
        done = run([SMI, f"--query-gpu={','.join(fields)}", "--format=csv"])
        rows = parse_rows(done.stdout)
        if rows or "not a valid field" not in done.stdout:
            break
    if not rows:
        problems.append(explain(done))
    return rows


def _driver(proc: ProcFs) -> tuple[str, str]:
    """Return version and kind of the kernel module that is loaded; empty when none is."""
    text = os.fsdecode(read_file(f"{proc.root}/driver/nvidia/version"))
    match = MODULE_VERSION.search(text)
    if not match:
        return "", ""
    return match.group(2), "open" if match.group(1).startswith("Open") else "proprietary"


def _on_the_bus(on_bus: Sequence[PciGpu]) -> str:
    if not on_bus:
        return "; no NVIDIA GPU is on the PCI bus"
    drivers = sorted({gpu.driver or "no driver" for gpu in on_bus})
    return f"; on the PCI bus are {len(on_bus)} NVIDIA GPUs, taken by {', '.join(drivers)}"


def _missing(
    gpus: Sequence[Gpu], lost: Sequence[MissingGpu], on_bus: Sequence[PciGpu], proc: ProcFs
) -> tuple[MissingGpu, ...]:
    """Return the GPUs that the driver has or speaks of, and that cannot be asked.

    A container sees every GPU on the bus; those that it was given are also in the driver's own list.
    """
    usable = {gpu.bus_id for gpu in gpus}
    missing = {one.bus_id: one for one in lost}
    for one in on_bus:
        listed = os.path.isdir(f"{proc.root}/driver/nvidia/gpus/{one.bus_id}")
        if one.driver == KERNEL_DRIVER and listed and one.bus_id not in usable:
            missing.setdefault(one.bus_id, MissingGpu(one.bus_id, "the driver has it, and nvidia-smi does not show it"))
    return tuple(sorted(missing.values(), key=lambda one: one.bus_id))


def _topology(run: Runner, problems: list[str]) -> Topology:
    answers: list[tuple[Matrix, Mapping[str, str]]] = []
    for question in (("-m",), ("-p2p", "r")):
        done = run([SMI, "topo", *question]) if not problems or not _hung(problems) else CompletedRun(NO_ANSWER, "", "")
        matrix, numa = parse_matrix(done.stdout)
        if not matrix and done.stderr + done.stdout:
            problems.append(f"topo {question[0]}: {explain(done)}")
        answers.append((matrix, numa))
    return Topology(answers[0][0], answers[1][0], answers[0][1])


def _hung(problems: Sequence[str]) -> bool:
    return any("gave no answer within" in problem for problem in problems)


def _holders(host: GpuHost) -> tuple[tuple[GpuHolder, ...], frozenset[int]]:
    """Return who has a GPU open, and the processes that this user may not look at."""
    if not host.devices:
        return (), frozenset()
    processes = host.proc.processes()
    found = host.proc.holders(Wanted(devices=host.devices), processes)
    holders = tuple(
        GpuHolder(pid, one.command, user_name(one.uid), host.layout.unit_of(one) or "", found.by_pid[pid])
        for pid, one in processes.items()
        if pid in found.by_pid
    )
    return holders, found.unreadable


def _with_owners(gpu: Gpu, host: GpuHost, holders: Mapping[int, GpuHolder], unreadable: frozenset[int]) -> Gpu:
    return replace(gpu, processes=tuple(_owned(one, host, holders, unreadable) for one in gpu.processes))


def _owned(
    process: GpuProcess, host: GpuHost, holders: Mapping[int, GpuHolder], unreadable: frozenset[int]
) -> GpuProcess:
    """Say whose a process is, where it is certain to be the one with this number here.

    In a container the driver may tell the host's numbers, which here are other processes, or none.
    """
    holder = holders.get(process.pid)
    if holder is not None:
        return replace(process, user=holder.user, unit=holder.unit, command=holder.command)
    seen = host.proc.process(process.pid) if process.pid in unreadable else None
    if seen is None:
        return process
    unit = host.layout.unit_of(seen) or ""
    return replace(process, user=user_name(seen.uid), unit=unit, command=seen.command)
