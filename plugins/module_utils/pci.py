# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""GPUs on the PCI bus as sysfs tells them: who drives them, and what lies between them.

Bridges that redirect requests (Access Control Services) and an IOMMU that translates addresses send the traffic between
two GPUs the long way, or nowhere. See PCI Express 6.0, 7.7.11, for the registers read here.
"""

from __future__ import annotations

import os
import re
import struct
from dataclasses import dataclass

NVIDIA = "0x10de"
DISPLAY_CLASSES = ("0x0300", "0x0302")  # VGA and 3D controllers, without the class's last byte
BUS_ID = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
EXTENDED_START = 0x100
ACS_CAPABILITY = 0x000D
ACS_CONTROL_OFFSET = 6
REDIRECTS = 0x04 | 0x08  # P2P Request Redirect, P2P Completion Redirect


@dataclass(frozen=True)
class Bridge:
    """A bridge above a GPU; ``redirects`` is None where the register cannot be read (not root, or none there)."""

    bus_id: str
    redirects: bool | None


@dataclass(frozen=True)
class PciGpu:
    """One GPU on the bus. ``driver`` is empty when none took it.

    ``iommu`` is the kind of its IOMMU domain (``DMA``, ``DMA-FQ``: addresses are translated; ``identity``), empty
    without an IOMMU. ``bridges`` begins at the root port.
    """

    bus_id: str
    driver: str = ""
    iommu: str = ""
    bridges: tuple[Bridge, ...] = ()

    @property
    def translated(self) -> bool:
        """Whether the IOMMU translates what the GPU sends."""
        return self.iommu.startswith("DMA")


def read_pci_gpus(root: str = "/") -> tuple[PciGpu, ...]:
    """Return every NVIDIA GPU on the bus of the host whose file system begins at ``root``."""
    directory = os.path.join(root, "sys/bus/pci/devices")
    try:
        names = sorted(os.listdir(directory))
    except OSError:
        return ()
    return tuple(_pci_gpu(directory, name) for name in names if _is_gpu(os.path.join(directory, name)))


def _is_gpu(path: str) -> bool:
    return _read(f"{path}/vendor") == NVIDIA and _read(f"{path}/class")[:6] in DISPLAY_CLASSES


def _pci_gpu(directory: str, name: str) -> PciGpu:
    path = os.path.join(directory, name)
    above = [part for part in os.path.realpath(path).split("/")[:-1] if BUS_ID.fullmatch(part)]
    return PciGpu(
        bus_id=name,
        driver=os.path.basename(os.path.realpath(f"{path}/driver")) if os.path.islink(f"{path}/driver") else "",
        iommu=_read(f"{path}/iommu_group/type"),
        bridges=tuple(Bridge(one, _redirects(os.path.join(directory, one, "config"))) for one in above),
    )


def _redirects(path: str) -> bool | None:
    try:
        with open(path, "rb") as stream:
            control = acs_control(stream.read(4096))
    except OSError:
        return None
    return None if control is None else bool(control & REDIRECTS)


def acs_control(config: bytes) -> int | None:
    """Return the ACS control register in a configuration space, None when there is none or only root may see it."""
    offset = EXTENDED_START
    for _step in range(64):  # a broken chain must not be followed for ever
        if offset < EXTENDED_START or offset + 8 > len(config):
            return None
        (header,) = struct.unpack_from("<I", config, offset)
        if header & 0xFFFF == ACS_CAPABILITY:
            (control,) = struct.unpack_from("<H", config, offset + ACS_CONTROL_OFFSET)
            return int(control)
        offset = header >> 20
    return None


def _read(path: str) -> str:
    try:
        with open(path, encoding="ascii", errors="replace") as stream:
            return stream.read(256).strip()
    except OSError:
        return ""
