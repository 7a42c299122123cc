# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read what ``nvidia-smi`` prints besides XML: rows of fields, matrices, and why it failed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from ansible_collections.llmops.vllm.plugins.module_utils.gpu import Gpu, Matrix, Mig, MissingGpu
from ansible_collections.llmops.vllm.plugins.module_utils.gpu_xml import (
    FAULT,
    UNKNOWN,
    flag,
    kernel_bus_id,
    mib,
    switch,
    whole,
)
from ansible_collections.llmops.vllm.plugins.module_utils.systemd import NO_ANSWER, CompletedRun

# Fields that every driver since 450 knows, and the one that came later (unknown to 470): one unknown field and
# nvidia-smi answers nothing at all.
FIELDS = (
    "index",
    "uuid",
    "pci.bus_id",
    "name",
    "memory.total",
    "memory.used",
    "memory.free",
    "persistence_mode",
    "mig.mode.current",
)
CAPABILITY = "compute_cap"
LOST = re.compile(
    r"Unable to determine the device handle for GPU ?(?:(\d+): )?"
    r"([0-9A-Fa-f]+:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.\d)?(?:(\d+))?:? ?(.*)"
)
DOCUMENT = re.compile(r"<\?xml.*?(?:</nvidia_smi_log>|\Z)", re.DOTALL)
ANSI = re.compile(r"\x1b\[[0-9;]*m")
# nvmlReturn_t in nvml.h, which nvidia-smi exits with; 18 is not in its manual.
STATUS = {
    3: "the operation is not supported",
    4: "this user may not ask",
    6: "no GPU was found",
    8: "the power cables of a GPU are not attached",
    9: "the driver is not loaded",
    10: "the kernel detected an interrupt problem with a GPU",
    12: "the NVML library is not installed",
    13: "the NVML library lacks a function",
    14: "the infoROM of a GPU is corrupted",
    15: "a GPU has fallen off the bus",
    18: "the driver's kernel module and its library are of different versions",
}


def parse_rows(text: str) -> list[Gpu]:
    """Return the GPUs of ``--query-gpu=... --format=csv`` with its header, whatever fields there are.

    Complaints around the rows are left out; a field that holds one makes the GPU's ``fault``.
    """
    found: list[Gpu] = []
    header: list[str] = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if not header:
            names = [re.sub(r" \[.*\]$", "", cell) for cell in cells]
            header = names if {"uuid", "index", "name", "pci.bus_id"} & set(names) else []
        elif len(cells) == len(header):
            found.append(_gpu(len(found), dict(zip(header, cells))))
    return found


def _gpu(row_number: int, row: dict[str, str]) -> Gpu:
    faults = [match.group(1) for match in (FAULT.fullmatch(value) for value in row.values()) if match]
    known = {key: value for key, value in row.items() if not UNKNOWN.fullmatch(value) and not FAULT.fullmatch(value)}
    get = known.get
    index = whole(get("index", ""))
    return Gpu(
        index=row_number if index is None else index,
        bus_id=kernel_bus_id(get("pci.bus_id", "")) if get("pci.bus_id") else "",
        uuid=get("uuid", ""),
        name=get("name", ""),
        compute_capability=get(CAPABILITY, ""),
        memory_total_bytes=mib(get("memory.total", "")),
        memory_used_bytes=mib(get("memory.used", "")),
        memory_free_bytes=mib(get("memory.free", "")),
        persistence=flag(get("persistence_mode", "")),
        mig=Mig(switch(get("mig.mode.current", ""))),
        fault=faults[0] if faults else "",
    )


def merge(documented: Sequence[Gpu], rows: Sequence[Gpu]) -> tuple[Gpu, ...]:
    """Return the GPUs of the XML document with their numbers and capabilities from the rows, which XML lacks.

    A GPU that only the rows know is taken from there.
    """
    by_uuid = {(one.bus_id, one.uuid): one for one in rows}
    found = []
    for gpu in documented:
        row = by_uuid.pop((gpu.bus_id, gpu.uuid), None)
        found.append(replace(gpu, index=row.index, compute_capability=row.compute_capability) if row else gpu)
    return tuple(sorted([*found, *by_uuid.values()], key=lambda gpu: gpu.index))


def parse_lost(text: str) -> list[MissingGpu]:
    """Return the GPUs that ``nvidia-smi`` names only to say that it cannot reach them."""
    found = []
    for line in text.splitlines():
        match = LOST.search(line)
        if match:
            bus_id = kernel_bus_id(match.group(2)) if match.group(2) else ""
            number = match.group(1) or match.group(3)
            reason = match.group(4).strip() or "the driver cannot reach it"
            found.append(MissingGpu(bus_id or f"GPU{number or '?'}", reason))
    return found


def explain(done: CompletedRun) -> str:
    """Return in one sentence why ``nvidia-smi`` gave no answer. It prints its complaints to stdout."""
    if done.returncode == 127:
        return "nvidia-smi is not installed"
    if done.returncode == NO_ANSWER:
        return done.stderr
    said = DOCUMENT.sub("", f"{done.stdout}\n{done.stderr}")
    words = next((line.strip()[:200] for line in said.splitlines() if line.strip()), "no words")
    meaning = STATUS.get(done.returncode)
    return f"nvidia-smi ended with status {done.returncode} ({meaning}): {words}" if meaning else f"nvidia-smi: {words}"


def parse_matrix(text: str) -> tuple[Matrix, dict[str, str]]:
    """Return the matrix of ``topo -m`` or ``topo -p2p``, GPUs only, and the NUMA node of each where that is told.

    The header is wrapped in an escape sequence even when it is piped, and columns are separated by tabs, or by blanks
    where somebody pasted it.
    """
    columns: list[str] = []
    cells: dict[str, dict[str, str]] = {}
    numa: dict[str, str] = {}
    for line in ANSI.sub("", text).replace("CPU Affinity", " CPU Affinity").splitlines():
        words = line.split()
        if not columns:
            columns = _columns(words)
        elif words and words[0] in columns and words[0].startswith("GPU"):
            row = dict(zip(columns, words[1:]))
            cells[words[0]] = {name: row[name] for name in row if name.startswith("GPU") and name != words[0]}
            rest = words[1 + len(columns) :]
            if len(rest) > 1 and re.fullmatch(r"[0-9,-]+", rest[1]):
                numa[words[0]] = rest[1]
    return cells, numa


def _columns(words: list[str]) -> list[str]:
    """Return the names of the columns if ``words`` are the header: GPUs and network adapters, up to the affinities."""
    if not words or not re.fullmatch(r"GPU\d+", words[0]) or "X" in words:
        return []
    return words[: words.index("CPU")] if "CPU" in words else words
