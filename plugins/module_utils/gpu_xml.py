# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read ``nvidia-smi -q -x``, whose elements have changed names from driver to driver.

Read are the documents of the drivers 510 to 610 (nvsmi_device v11 to v13). An element that is absent, or that holds one
of the words for "not known", gives nothing; one that says that the GPU cannot answer makes the GPU's ``fault``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from xml.etree import ElementTree as ET

from ansible_collections.llmops.vllm.plugins.module_utils.gpu import (
    Ecc,
    Fabric,
    Gpu,
    GpuProcess,
    Mig,
    MigDevice,
    PcieLink,
)
from ansible_collections.llmops.vllm.plugins.module_utils.sizes import MIB

UNKNOWN = re.compile(r"(?i)\[?(?:N/A|Not Supported|Unknown|None|Requested functionality has been deprecated)\]?")
FAULT = re.compile(r"(?i)\[?(GPU is lost|GPU requires reset|Unknown Error|ERR!|GPU access blocked)\]?")
# These say that nothing keeps the GPU from being fast.
NO_SLOWDOWN = ("gpu_idle", "applications_clocks_setting", "sync_boost", "display_clocks_setting", "none", "unknown")
DEPRECATED = re.compile(r"\s*\[Deprecated;.*")


@dataclass(frozen=True)
class Document:
    """What one document says."""

    driver_version: str
    cuda_version: str
    gpus: tuple[Gpu, ...]


def parse_document(text: str) -> Document | None:
    """Parse the document in ``text``, which may have complaints around it; None when there is none or it is cut off."""
    start, end = text.find("<nvidia_smi_log"), text.rfind("</nvidia_smi_log>")
    if start < 0 or end < start:
        return None
    try:
        root = ET.fromstring(text[start : end + len("</nvidia_smi_log>")])  # noqa: S314 # the driver's own tool wrote it
    except ET.ParseError:
        return None
    driver = said(root, "driver_version") or said(root, "kmd_version")
    return Document(
        driver_version=DEPRECATED.sub("", driver),
        cuda_version=DEPRECATED.sub("", said(root, "cuda_version") or said(root, "cuda_umd_version")),
        gpus=tuple(_gpu(index, element) for index, element in enumerate(root.findall("gpu"))),
    )


def kernel_bus_id(bus_id: str) -> str:
    """Return a PCI address as the kernel writes it: ``00000000:0A:00.0`` is ``0000:0a:00.0``."""
    short = bus_id.strip().lower()
    domain, colon, rest = short.partition(":")
    if colon and rest.count(":") == 0:  # 0a:00.0, without the domain
        return f"0000:{short}"
    return f"{domain[-4:]}:{rest}"


def said(element: ET.Element, path: str) -> str:
    """Return the text of the first element at ``path``, empty when it is absent or says that nothing is known."""
    text = (element.findtext(path) or "").strip()
    return "" if UNKNOWN.fullmatch(text) or FAULT.fullmatch(text) else text


def number(text: str) -> float | None:
    """Return the number that a text such as ``81559 MiB`` begins with."""
    match = re.match(r"\s*([0-9]+(?:\.[0-9]+)?)", text)
    return float(match.group(1)) if match else None


def mib(text: str) -> int | None:
    """Return bytes for a text such as ``81559 MiB``."""
    found = number(text)
    return None if found is None else int(found) * MIB


def whole(text: str) -> int | None:
    """Return the whole number that a text such as ``16x`` begins with."""
    found = number(text)
    return None if found is None else int(found)


def switch(text: str) -> str:
    """Return ``enabled``, ``disabled`` or nothing."""
    return text.lower() if text in ("Enabled", "Disabled") else ""


def flag(text: str) -> bool | None:
    """Return what ``Yes`` or ``Enabled``, ``No`` or ``Disabled`` mean."""
    return {"Yes": True, "Enabled": True, "No": False, "Disabled": False}.get(text)


def _gpu(index: int, element: ET.Element) -> Gpu:
    power = next((one for one in element if one.tag in ("gpu_power_readings", "power_readings")), element)
    found = Gpu(
        index=index,
        bus_id=kernel_bus_id(element.get("id") or said(element, "pci/pci_bus_id")),
        uuid=said(element, "uuid"),
        minor=whole(said(element, "minor_number")),
        name=said(element, "product_name"),
        architecture=said(element, "product_architecture"),
        memory_total_bytes=mib(said(element, "fb_memory_usage/total")),
        memory_reserved_bytes=mib(said(element, "fb_memory_usage/reserved")),
        memory_used_bytes=mib(said(element, "fb_memory_usage/used")),
        memory_free_bytes=mib(said(element, "fb_memory_usage/free")),
        persistence=flag(said(element, "persistence_mode")),
        compute_mode=said(element, "compute_mode"),
        temperature_celsius=whole(said(element, "temperature/gpu_temp")),
        power_draw_watts=_first_number(power, "power_draw", "instant_power_draw", "average_power_draw"),
        power_limit_watts=_first_number(power, "current_power_limit", "power_limit", "enforced_power_limit"),
        slowdown=_slowdown(element),
        recovery_action=_recovery_action(element),
        fault=_fault(element),
    )
    return replace(
        found,
        ecc=_ecc(element),
        mig=Mig(switch(said(element, "mig_mode/current_mig")), _mig_devices(element)),
        fabric=Fabric(said(element, "fabric/state"), said(element, "fabric/status")),
        pcie=_pcie(element),
        processes=tuple(_processes(element)),
    )


def _first_number(element: ET.Element, *paths: str) -> float | None:
    found = (number(said(element, path)) for path in paths)
    return next((value for value in found if value is not None), None)


def _slowdown(element: ET.Element) -> tuple[str, ...]:
    names = []
    for group in element:
        if group.tag not in ("clocks_event_reasons", "clocks_throttle_reasons"):
            continue
        for one in group:
            name = re.sub(r"^clocks_(?:event|throttle)_reasons?_", "", one.tag)
            if (one.text or "").strip() == "Active" and name not in NO_SLOWDOWN:
                names.append(name)
    return tuple(names)


def _recovery_action(element: ET.Element) -> str:
    told = said(element, "gpu_recovery_action")
    if told:
        return told
    if flag(said(element, "gpu_reset_status/reset_required")):
        return "Reset"
    return "Drain and Reset" if flag(said(element, "gpu_reset_status/drain_and_reset_recommended")) else ""


def _fault(element: ET.Element) -> str:
    for part in ("product_name", "fb_memory_usage", "temperature", "utilization", "performance_state"):
        for group in element.findall(part):
            for one in group.iter():
                match = FAULT.fullmatch((one.text or "").strip())
                if match:
                    return match.group(1)
    return ""


def _ecc(element: ET.Element) -> Ecc:
    retired = said(element, "retired_pages/pending_retirement") or said(element, "retired_pages/pending_blacklist")
    return Ecc(
        mode=switch(said(element, "ecc_mode/current_ecc")),
        pending=switch(said(element, "ecc_mode/pending_ecc")),
        corrected_volatile=_count(element, "ecc_errors/volatile", "correctable", "single_bit"),
        uncorrected_volatile=_count(element, "ecc_errors/volatile", "uncorrectable", "double_bit"),
        uncorrected_aggregate=_count(element, "ecc_errors/aggregate", "uncorrectable", "double_bit"),
        remap_pending=flag(said(element, "remapped_rows/remapped_row_pending") or retired),
        remap_failed=flag(said(element, "remapped_rows/remapped_row_failure")),
    )


def _count(element: ET.Element, path: str, kind: str, old_kind: str) -> int | None:
    """Add up the counters of one kind: ``sram_...`` and ``dram_...``; ``single_bit/total`` and so on before Turing."""
    group = element.find(path)
    if group is None:
        return None
    counts = [
        whole(said(group, one.tag))
        for one in group
        if re.fullmatch(rf"(?:sram|dram)_{kind}(?:_parity|_secded)?", one.tag)
    ]
    counts.append(whole(said(group, f"{old_kind}/total")))
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def _mig_devices(element: ET.Element) -> tuple[MigDevice, ...]:
    return tuple(
        MigDevice(
            index=whole(said(one, "index")) or 0,
            gpu_instance=whole(said(one, "gpu_instance_id")),
            memory_total_bytes=mib(said(one, "fb_memory_usage/total")),
            memory_used_bytes=mib(said(one, "fb_memory_usage/used")),
        )
        for one in element.findall("mig_devices/mig_device")
    )


def _pcie(element: ET.Element) -> PcieLink:
    link = "pci/pci_gpu_link_info"
    return PcieLink(
        generation=whole(said(element, f"{link}/pcie_gen/current_link_gen")),
        generation_max=whole(said(element, f"{link}/pcie_gen/max_link_gen")),
        width=whole(said(element, f"{link}/link_widths/current_link_width")),
        width_max=whole(said(element, f"{link}/link_widths/max_link_width")),
    )


def _processes(element: ET.Element) -> list[GpuProcess]:
    found = []
    for one in element.findall("processes/process_info"):
        pid = whole(said(one, "pid"))
        if pid:
            name = (one.findtext("process_name") or "").strip()
            found.append(GpuProcess(pid, name, said(one, "type"), mib(said(one, "used_memory"))))
    return found
