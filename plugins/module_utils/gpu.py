# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""GPUs as values: what a host has, in the units of this collection.

``None`` and the empty string stand for what the driver does not tell. Numbers of bytes come from whole MiB, as
``nvidia-smi`` prints them. A PCI address is written as the kernel does, ``0000:0a:00.0``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

# GPU to GPU to how they are connected, both as GPU0, GPU1 and so on.
Matrix = Mapping[str, Mapping[str, str]]


@dataclass(frozen=True)
class GpuProcess:
    """A process that holds memory of a GPU; ``kind`` is C, G, C+G or M+C as nvidia-smi(1) tells.

    ``user``, ``unit`` and ``command`` are empty where the process cannot be seen, as in a container.
    """

    pid: int
    name: str
    kind: str = ""
    used_bytes: int | None = None
    user: str = ""
    unit: str = ""
    command: str = ""


@dataclass(frozen=True)
class Ecc:
    """Error correction: ``mode`` and ``pending`` are enabled, disabled or empty; counts are since boot and in all.

    ``remap_pending`` is true when damaged memory waits for a reset to be replaced, ``remap_failed`` when none is left.
    """

    mode: str = ""
    pending: str = ""
    corrected_volatile: int | None = None
    uncorrected_volatile: int | None = None
    uncorrected_aggregate: int | None = None
    remap_pending: bool | None = None
    remap_failed: bool | None = None


@dataclass(frozen=True)
class MigDevice:
    """One part of a GPU that is divided (multi-instance GPU)."""

    index: int
    gpu_instance: int | None = None
    memory_total_bytes: int | None = None
    memory_used_bytes: int | None = None


@dataclass(frozen=True)
class Mig:
    """``mode`` is enabled, disabled or empty (the GPU cannot be divided)."""

    mode: str = ""
    devices: tuple[MigDevice, ...] = ()


@dataclass(frozen=True)
class Fabric:
    """The NVLink fabric behind an NVSwitch; empty without one. Healthy are ``Completed`` and ``Success``."""

    state: str = ""
    status: str = ""


@dataclass(frozen=True)
class PcieLink:
    """The PCIe link now and at best; an idle GPU may lower the generation."""

    generation: int | None = None
    generation_max: int | None = None
    width: int | None = None
    width_max: int | None = None


@dataclass(frozen=True)
class Gpu:
    """One GPU.

    ``index`` is the number that ``nvidia-smi`` gives it; a lost GPU keeps its number, so numbers may have gaps.
    ``minor`` is N of ``/dev/nvidiaN``. ``fault`` is what the driver says instead of values, such as ``GPU is lost``.
    ``slowdown`` names why its clocks are lower than they could be, ``recovery_action`` what the driver asks for.
    """

    index: int
    bus_id: str
    uuid: str = ""
    minor: int | None = None
    name: str = ""
    architecture: str = ""
    compute_capability: str = ""
    memory_total_bytes: int | None = None
    memory_reserved_bytes: int | None = None
    memory_used_bytes: int | None = None
    memory_free_bytes: int | None = None
    persistence: bool | None = None
    compute_mode: str = ""
    temperature_celsius: int | None = None
    power_draw_watts: float | None = None
    power_limit_watts: float | None = None
    slowdown: tuple[str, ...] = ()
    recovery_action: str = ""
    fault: str = ""
    ecc: Ecc = field(default_factory=Ecc)
    mig: Mig = field(default_factory=Mig)
    fabric: Fabric = field(default_factory=Fabric)
    pcie: PcieLink = field(default_factory=PcieLink)
    processes: tuple[GpuProcess, ...] = ()

    @property
    def usable_bytes(self) -> int | None:
        """The memory that a process can have at most: all but what the driver reserves."""
        if self.memory_total_bytes is None:
            return None
        return self.memory_total_bytes - (self.memory_reserved_bytes or 0)


@dataclass(frozen=True)
class MissingGpu:
    """A GPU that is on the PCI bus, or that the driver speaks of, and that cannot be used."""

    bus_id: str
    reason: str


@dataclass(frozen=True)
class GpuHolder:
    """A process that has a GPU's device node open, with or without memory of it."""

    pid: int
    command: str
    user: str
    unit: str
    devices: tuple[str, ...]


@dataclass(frozen=True)
class Topology:
    """How the GPUs are connected.

    ``links`` are those of ``topo -m`` (NV18, PIX, SYS and so on), ``p2p`` those of ``topo -p2p r`` (OK, CNS and so on).
    """

    links: Matrix = field(default_factory=dict)
    p2p: Matrix = field(default_factory=dict)
    numa_nodes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class GpuReport:
    """What a host has. ``reason`` says why there is nothing when ``present`` is false.

    ``answered`` is false when that is because nobody could be asked: no ``nvidia-smi``, or none that answers in time.
    ``kernel_module`` is open, proprietary or empty; ``problems`` are questions that got no answer.
    """

    present: bool
    answered: bool = True
    reason: str = ""
    driver_version: str = ""
    cuda_version: str = ""
    kernel_module: str = ""
    gpus: tuple[Gpu, ...] = ()
    missing: tuple[MissingGpu, ...] = ()
    holders: tuple[GpuHolder, ...] = ()
    topology: Topology = field(default_factory=Topology)
    problems: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return the report as plain values for a module's result."""
        return asdict(self)
