# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the kernel said about GPUs and memory since boot: Xid errors, GPUs that did not start, IOMMU faults, OOM kills.

An Xid is the driver's report of an error of one GPU (https://docs.nvidia.com/deploy/xid-errors/). The log tells what
was: a GPU that was reset since is fine, so nothing here by itself speaks against a launch.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from ansible_collections.llmops.vllm.plugins.module_utils.procfs import ProcFs, read_file
from ansible_collections.llmops.vllm.plugins.module_utils.systemd import CompletedRun, Runner

# The last lines of this boot; a machine that logs more has the rest in its journal.
LINES_MAX = 20000
TEXT_MAX = 300
XID = re.compile(
    r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F]+:[0-9a-fA-F]{2}:[0-9a-fA-F]{2})(?:\.\d)?(?: GPU-I:\d+)?\): (\d+),?(.*)"
)
JOURNAL_TIME = re.compile(r"^(\d{9,}\.\d+) ")
BOOTED = re.compile(rb"^btime (\d+)$", re.MULTILINE)
BOOT_TIME = re.compile(r"^\[\s*(\d+\.\d+)\]")
SIGNS = {
    "gpu_init_failed": re.compile(
        r"NVRM: .*(?:RmInitAdapter failed|Cannot initialize GSP firmware|No NVIDIA .* probed)"
    ),
    "driver_conflict": re.compile(r"NVRM: .*(?:nouveau, rivafb|API mismatch)"),
    "iommu_fault": re.compile(r"AMD-Vi: Event logged \[IO_PAGE_FAULT|DMAR: \[DMA (?:Read|Write)"),
    "pcie_fatal": re.compile(r"PCIe Bus Error: severity=Uncorrect|AER: Uncorrect\w+ \(Fatal\)"),
    "oom_kill": re.compile(r"(?:Memory cgroup out of memory|Out of memory): Killed process"),
}
# What an Xid means and how bad it is for who serves from this GPU: "broken" until a reset, "damaged" but working, or
# "application", which the process that ran caused or felt.
XID_MEANINGS: dict[int, tuple[str, str]] = {
    13: ("application", "exception of a kernel on the GPU"),
    31: ("application", "memory page fault on the GPU"),
    43: ("application", "the process's work on the GPU was stopped"),
    45: ("application", "the process's channels were cleaned up"),
    48: ("broken", "uncorrectable double-bit memory error"),
    62: ("broken", "halt of the GPU's internal microcontroller"),
    63: ("damaged", "damaged memory waits for a reset to be replaced"),
    64: ("broken", "damaged memory could not be replaced"),
    74: ("damaged", "NVLink error"),
    79: ("broken", "the GPU has fallen off the bus"),
    92: ("damaged", "high rate of corrected memory errors"),
    94: ("application", "uncorrectable memory error, contained in one process"),
    95: ("broken", "uncorrectable memory error, not contained"),
    119: ("broken", "the GPU's system processor does not answer"),
    120: ("broken", "error of the GPU's system processor"),
    140: ("broken", "uncorrected memory error"),
    **dict.fromkeys(range(144, 151), ("damaged", "NVLink error")),
    154: ("damaged", "the driver asks for a recovery action"),
}


@dataclass(frozen=True)
class Xid:
    """One kind of error of one GPU. Times are seconds since 1970, ``None`` where the log has no time."""

    bus_id: str
    number: int
    severity: str
    meaning: str
    count: int
    last_epoch: float | None
    text: str


@dataclass(frozen=True)
class Sign:
    """A line that matters to a launch, how often it was there, and the last one of them."""

    kind: str
    count: int
    text: str


@dataclass(frozen=True)
class KernelLog:
    """What was found, and where; ``reason`` says why nothing could be read."""

    where: str = ""
    reason: str = ""
    xids: tuple[Xid, ...] = ()
    signs: tuple[Sign, ...] = field(default=())


def read_kernel_log(run: Runner, proc: ProcFs) -> KernelLog:
    """Read this boot's kernel messages from the journal or, where it has none, from the kernel's own buffer."""
    journal = ["journalctl", "--dmesg", "--output=short-unix", "--no-pager", "--quiet", f"--lines={LINES_MAX}"]
    booted = BOOTED.search(read_file(f"{proc.root}/stat"))
    boot_epoch = float(booted.group(1)) if booted else 0.0
    reasons = []
    for argv in (journal, ["dmesg"]):
        done = run(argv)
        # Who may not read the journal gets an empty answer and status 0.
        if done.returncode == 0 and done.stdout.strip():
            return scan(done.stdout.splitlines()[-LINES_MAX:], argv[0], boot_epoch)
        reasons.append(_complaint(argv[0], done))
    return KernelLog(reason="; ".join(reasons))


def _complaint(name: str, done: CompletedRun) -> str:
    lines = done.stderr.strip().splitlines()
    if done.returncode == 0:
        return f"{name} shows nothing to this user"
    return lines[0][:200] if lines else f"{name} ended with status {done.returncode}"


def scan(lines: Iterable[str], where: str, boot_epoch: float) -> KernelLog:
    """Sort the lines of a kernel log into what matters here, in whatever form of time they begin with."""
    xids: dict[tuple[str, int], Xid] = {}
    signs: dict[str, Sign] = {}
    for line in lines:
        match = XID.search(line)
        if match:
            one = _xid(match, line, boot_epoch)
            earlier = xids.get((one.bus_id, one.number))
            xids[one.bus_id, one.number] = replace(one, count=earlier.count + 1) if earlier else one
            continue
        for kind, pattern in SIGNS.items():
            if pattern.search(line):
                signs[kind] = Sign(kind, signs[kind].count + 1 if kind in signs else 1, line.strip()[:TEXT_MAX])
    return KernelLog(where=where, xids=tuple(xids.values()), signs=tuple(signs.values()))


def _xid(match: re.Match[str], line: str, boot_epoch: float) -> Xid:
    number = int(match.group(2))
    severity, meaning = XID_MEANINGS.get(number, ("unknown", "see the driver's list of Xid errors"))
    bus_id = match.group(1).lower()
    return Xid(
        f"{bus_id[-10:]}.0", number, severity, meaning, 1, _epoch(line, boot_epoch), line[match.start() :][:TEXT_MAX]
    )


def _epoch(line: str, boot_epoch: float) -> float | None:
    journal = JOURNAL_TIME.match(line)
    if journal:
        return float(journal.group(1))
    since_boot = BOOT_TIME.match(line)
    return boot_epoch + float(since_boot.group(1)) if since_boot else None
