"""A fake ``nvidia-smi`` and the files of a host with GPUs.

Elements, fields and sentences are those of the real tool, driver generation by driver generation; every value is made
up. The program answers only questions that it was given an answer to, and fails as the real one does otherwise.
"""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ansible_collections.llmops.vllm.plugins.module_utils.systemd import CompletedRun

DETERMINED = "Unable to determine the device handle for "
NO_DRIVER = (
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest NVIDIA "
    "driver is installed and running.\n\n"
)
MISMATCH = "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 580.126\n"
BAD_FIELD = 'Field "compute_cap" is not a valid field to query.\n\n'
SECOND = 1_000_000


@dataclass(frozen=True)
class Card:
    """One GPU of the fake. ``lost`` is the word that stands in place of every value."""

    index: int = 0
    name: str = "NVIDIA H100 80GB HBM3"
    architecture: str = "Hopper"
    capability: str = "9.0"
    memory: tuple[int, int, int] = (81000, 500, 100)
    ecc: str = "Enabled"
    uncorrectable: int = 0
    remap_pending: str = "No"
    remap_failed: str = "No"
    mig: str = "Disabled"
    mig_devices: Sequence[int] = ()
    persistence: str = "Enabled"
    slow: Sequence[str] = ()
    recovery: str = "None"
    fabric: tuple[str, str] = ("Completed", "Success")
    processes: Sequence[tuple[int, str, str, str]] = ()
    lost: str = ""

    @property
    def uuid(self) -> str:
        return f"GPU-{self.index + 1:08x}-0000-4000-8000-{self.index + 1:012x}"

    @property
    def bus_id(self) -> str:
        return f"00000000:{0x0A + 16 * self.index:02X}:00.0"

    @property
    def kernel_bus_id(self) -> str:
        return self.bus_id.lower()[4:]


def cards(count: int, **settings) -> list[Card]:
    return [Card(index=index, **settings) for index in range(count)]


def document(gpus: Sequence[Card], driver: str = "580.65.06", cuda: str = "13.0") -> str:
    """The document of ``-q -x``, with the element names of the driver's generation."""
    major = int(driver.split(".", maxsplit=1)[0])
    dtd = 11 if major < 525 else 12 if major < 580 else 13
    versions = f"<driver_version>{driver}</driver_version>\n<cuda_version>{cuda}</cuda_version>"
    if major >= 610:
        note = "[Deprecated; will be removed in CUDA 14.0. Use KMD Version instead]"
        versions = f"<driver_version>{driver} {note}</driver_version>\n<kmd_version>{driver}</kmd_version>"
        versions += f"\n<cuda_version>{cuda} [Deprecated; use CUDA UMD Version]</cuda_version>"
    body = "\n".join(_card(one, major) for one in gpus)
    return (
        f'<?xml version="1.0" ?>\n<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v{dtd}.dtd">\n<nvidia_smi_log>\n'
        f"<timestamp>Mon Jun  1 12:00:00 2026</timestamp>\n{versions}\n<attached_gpus>{len(gpus)}</attached_gpus>\n"
        f"{body}\n</nvidia_smi_log>\n"
    )


def _card(card: Card, major: int) -> str:
    def value(text: object) -> str:
        return card.lost or str(text)

    total, reserved, used = card.memory
    reason = "event" if major >= 535 else "throttle"
    power = "gpu_power_readings" if major >= 535 else "power_readings"
    draw = {True: "instant_power_draw", False: "power_draw"}[major >= 550]
    limit = "current_power_limit" if major >= 535 else "power_limit"
    slow = "".join(
        f"<clocks_{reason}_reason_{name}>{'' if name in card.slow else 'Not '}Active</clocks_{reason}_reason_{name}>"
        for name in ("gpu_idle", "sw_power_cap", "hw_slowdown", "hw_thermal_slowdown", "sw_thermal_slowdown")
    )
    parity = (("sram_uncorrectable_parity", 0), ("sram_uncorrectable_secded", 0))
    counts = "".join(
        f"<{kind}>{value(count if card.ecc == 'Enabled' else 'N/A')}</{kind}>"
        for kind, count in (
            ("sram_correctable", 2),
            *((("sram_uncorrectable", 0),) if major < 535 else parity),
            ("dram_correctable", 1),
            ("dram_uncorrectable", card.uncorrectable),
        )
    )
    mig = "".join(
        f"<mig_device><index>{number}</index><gpu_instance_id>{number + 1}</gpu_instance_id><fb_memory_usage>"
        f"<total>{size} MiB</total><reserved>0 MiB</reserved><used>20 MiB</used></fb_memory_usage></mig_device>"
        for number, size in enumerate(card.mig_devices)
    )
    rows = f"<remapped_row_pending>{card.remap_pending}</remapped_row_pending>"
    rows += f"<remapped_row_failure>{card.remap_failed}</remapped_row_failure>"
    recovery = f"<gpu_recovery_action>{card.recovery}</gpu_recovery_action>" if major >= 570 else (
        f"<gpu_reset_status><reset_required>{'Yes' if card.recovery == 'Reset' else 'No'}</reset_required>"
        "<drain_and_reset_recommended>No</drain_and_reset_recommended></gpu_reset_status>"
    )  # fmt: skip
    processes = "".join(
        f"<process_info><gpu_instance_id>N/A</gpu_instance_id><pid>{pid}</pid><type>{kind}</type>"
        f"<process_name>{name}</process_name><used_memory>{used}</used_memory></process_info>"
        for pid, kind, name, used in card.processes
    )
    return f"""
    <gpu id="{card.bus_id}">
      <product_name>{card.name}</product_name><product_architecture>{card.architecture}</product_architecture>
      <display_mode>Requested functionality has been deprecated</display_mode>
      <persistence_mode>{card.persistence}</persistence_mode>
      <mig_mode><current_mig>{card.mig}</current_mig><pending_mig>{card.mig}</pending_mig></mig_mode>
      <mig_devices>{mig or "None"}</mig_devices>
      <uuid>{card.uuid}</uuid><minor_number>{card.index}</minor_number>
      {recovery}
      <pci><pci_bus_id>{card.bus_id}</pci_bus_id><pci_gpu_link_info>
        <pcie_gen><max_link_gen>5</max_link_gen><current_link_gen>1</current_link_gen></pcie_gen>
        <link_widths><max_link_width>16x</max_link_width><current_link_width>8x</current_link_width></link_widths>
      </pci_gpu_link_info></pci>
      <clocks_{reason}_reasons>{slow}</clocks_{reason}_reasons>
      <fb_memory_usage><total>{value(f"{total} MiB")}</total><reserved>{value(f"{reserved} MiB")}</reserved>
        <used>{value(f"{used} MiB")}</used><free>{value(f"{total - reserved - used} MiB")}</free></fb_memory_usage>
      <compute_mode>Default</compute_mode>
      <utilization><gpu_util>{value("0 %")}</gpu_util></utilization>
      <ecc_mode><current_ecc>{card.ecc}</current_ecc><pending_ecc>{card.ecc}</pending_ecc></ecc_mode>
      <ecc_errors><volatile>{counts}</volatile><aggregate>{counts}</aggregate></ecc_errors>
      <remapped_rows>{card.lost or rows}</remapped_rows>
      <temperature><gpu_temp>{value("31 C")}</gpu_temp></temperature>
      <{power}><power_state>P0</power_state><{draw}>{value("70.25 W")}</{draw}><{limit}>700.00 W</{limit}></{power}>
      <fabric><state>{value(card.fabric[0])}</state><status>{value(card.fabric[1])}</status></fabric>
      <processes>{processes}</processes>
    </gpu>"""


def rows(gpus: Sequence[Card], capability: bool = True) -> str:
    """The answer of ``--query-gpu=... --format=csv`` for the fields that are asked."""
    header = "index, uuid, pci.bus_id, name, memory.total [MiB], memory.used [MiB], memory.free [MiB], persistence_mode"
    lines = [header + ", mig.mode.current" + (", compute_cap" if capability else "")]
    for one in gpus:
        total, reserved, used = one.memory
        sizes = ", ".join(
            f"[{one.lost}]" if one.lost else f"{size} MiB" for size in (total, used, total - reserved - used)
        )
        mig = "[N/A]" if one.mig == "N/A" else one.mig
        line = f"{one.index}, {one.uuid}, {one.bus_id}, {one.name}, {sizes}, {one.persistence}, {mig}"
        lines.append(line + (f", {one.capability}" if capability else ""))
    return "\n".join(lines) + "\n"


def matrix(cell, count: int = 8, affinity: bool = True) -> str:
    """The answer of ``topo``: ``cell`` tells what is between two GPUs. The header is underlined, even in a pipe."""
    names = [f"GPU{number}" for number in range(count)]
    tail = "\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID" if affinity else ""
    lines = ["\t\x1b[4m" + "\t".join(names) + tail + "\x1b[0m"]
    for a, name in enumerate(names):
        cells = [" X " if a == b else cell(a, b) for b in range(count)]
        lines.append(f"{name}\t" + "\t".join(cells) + (f"\t0-31\t{2 * a // count}\t\tN/A" if affinity else ""))
    legend = "\nLegend:\n\n  X    = Self\n  SYS  = Connection traversing PCIe as well as the SMP interconnect\n"
    return "\n".join(lines) + "\n" + legend


@dataclass
class Smi:
    """What the fake answers, by the first words of the question, and what it was asked."""

    answers: dict[str, CompletedRun] = field(default_factory=dict)
    asked: list[Sequence[str]] = field(default_factory=list)

    @classmethod
    def of(
        cls, gpus: Sequence[Card], driver: str = "580.65.06", cuda: str = "13.0", link: str = "NV18", p2p: str = "OK"
    ):
        count = len(gpus)
        return cls({
            "-q -x": CompletedRun(0, document(gpus, driver, cuda), ""),
            "--query-gpu": CompletedRun(0, rows(gpus), ""),
            "topo -m": CompletedRun(0, matrix(lambda _a, _b: link, count), ""),
            "topo -p2p": CompletedRun(0, matrix(lambda _a, _b: p2p, count, affinity=False), ""),
        })  # fmt: skip

    def __call__(self, argv: Sequence[str]) -> CompletedRun:
        self.asked.append(argv)
        if argv[0] != "nvidia-smi":
            return self.answers.get(argv[0], CompletedRun(127, "", f"{argv[0]}: No such file or directory"))
        words = " ".join(argv[1:])
        for question, answer in self.answers.items():
            if words.startswith(question):
                return answer
        return CompletedRun(127, "", "nvidia-smi: No such file or directory")

    def install(self, directory: Path, hang: bool = False) -> Path:
        """Write a program that answers the same way, and return it."""
        answers = {key: [one.returncode, one.stdout, one.stderr] for key, one in self.answers.items()}
        (directory / "answers.json").write_text(json.dumps(answers))
        program = directory / "nvidia-smi"
        program.write_text(
            f"#!{sys.executable} -S\nimport json, sys, time\n{'time.sleep(60)' if hang else ''}\n"
            f"answers = json.load(open({str(directory / 'answers.json')!r}))\nwords = ' '.join(sys.argv[1:])\n"
            "for question, (status, out, err) in answers.items():\n"
            "    if words.startswith(question):\n"
            "        sys.stdout.write(out)\n        sys.stderr.write(err)\n        sys.exit(status)\n"
            "print('Invalid combination of input arguments.')\nsys.exit(2)\n"
        )
        program.chmod(0o755)
        return program


def acs_config(control: int | None) -> bytes:
    """A PCI configuration space of 4096 bytes whose second extended capability is ACS, or which has none."""
    config = bytearray(4096)
    struct.pack_into("<I", config, 0x100, 0x0001 | 1 << 16 | (0x140 << 20 if control is not None else 0))
    if control is not None:
        struct.pack_into("<IHH", config, 0x140, 0x000D | 1 << 16, 0x5F, control)
    return bytes(config)


class HostTree:
    """The files of a host below ``root``: ``/sys``, ``/proc`` and what else a test writes."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.proc = root / "proc"
        (self.proc / "driver/nvidia").mkdir(parents=True)
        (root / "sys/bus/pci/devices").mkdir(parents=True)

    def write(self, files: Mapping[str, str | bytes]) -> HostTree:
        for name, content in files.items():
            path = self.root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return self

    def driver(self, version: str = "580.65.06", kind: str = "Open Kernel Module") -> HostTree:
        text = f"NVRM version: NVIDIA UNIX {kind} for x86_64  {version}  Release Build\nGCC version: gcc 13\n"
        return self.write({"proc/driver/nvidia/version": text})

    def gpu_on_bus(
        self, card: Card, driver: str = "nvidia", iommu: str = "", acs: int | None = None, listed: bool = True
    ) -> HostTree:
        """Put a GPU below a root port of its own."""
        port = f"0000:{0x0A + 16 * card.index:02x}:01.0"
        place = f"sys/devices/pci0000:{card.index:02x}/{port}/{card.kernel_bus_id}"
        self.write({f"{place}/vendor": "0x10de\n", f"{place}/class": "0x030200\n"})
        self.write(
            {f"{place}/../config": acs_config(acs), f"{place}/../vendor": "0x1022\n", f"{place}/../class": "0x060400\n"}
        )
        if iommu:
            self.write({f"{place}/iommu_group/type": iommu + "\n"})
        if driver:
            (self.root / f"sys/bus/pci/drivers/{driver}").mkdir(parents=True, exist_ok=True)
            (self.root / place / "driver").symlink_to(self.root / f"sys/bus/pci/drivers/{driver}")
        if listed:
            (self.proc / f"driver/nvidia/gpus/{card.kernel_bus_id}").mkdir(parents=True)
        devices = self.root / "sys/bus/pci/devices"
        (devices / card.kernel_bus_id).symlink_to(self.root / place)
        (devices / port).symlink_to((self.root / place).parent)
        return self
