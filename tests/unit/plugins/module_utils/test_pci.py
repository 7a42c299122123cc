from __future__ import annotations

import pytest
from ansible_collections.llmops.vllm.plugins.module_utils.pci import Bridge, acs_control, read_pci_gpus
from ansible_collections.llmops.vllm.tests.unit.nvidia_smi import Card, HostTree, acs_config


def test_a_gpu_is_found_with_its_driver_its_iommu_and_the_bridges_above_it(tmp_path):
    HostTree(tmp_path).gpu_on_bus(Card(), iommu="DMA-FQ", acs=0x1D)
    (gpu,) = read_pci_gpus(str(tmp_path))
    assert (gpu.bus_id, gpu.driver, gpu.iommu, gpu.translated) == ("0000:0a:00.0", "nvidia", "DMA-FQ", True)
    assert gpu.bridges == (Bridge("0000:0a:01.0", True),)


@pytest.mark.parametrize("iommu", ["", "identity"])
def test_an_iommu_that_is_off_or_passes_everything_does_not_translate(tmp_path, iommu):
    HostTree(tmp_path).gpu_on_bus(Card(), driver="", iommu=iommu, acs=0x11)
    (gpu,) = read_pci_gpus(str(tmp_path))
    assert (gpu.driver, gpu.translated, gpu.bridges) == ("", False, (Bridge("0000:0a:01.0", False),))


def test_other_devices_are_no_gpus(tmp_path):
    tree = HostTree(tmp_path)
    tree.write(
        {"sys/bus/pci/devices/0000:01:00.0/vendor": "0x8086\n", "sys/bus/pci/devices/0000:01:00.0/class": "0x030000\n"}
    )
    tree.write(
        {"sys/bus/pci/devices/0000:02:00.0/vendor": "0x10de\n", "sys/bus/pci/devices/0000:02:00.0/class": "0x040300\n"}
    )
    assert read_pci_gpus(str(tmp_path)) == ()


def test_a_host_without_pci_has_no_gpus(tmp_path):
    assert read_pci_gpus(str(tmp_path)) == ()


@pytest.mark.parametrize(
    ("control", "redirects"), [(0x1D, True), (0x04, True), (0x08, True), (0x11, False), (0, False)]
)
def test_the_acs_register_is_found_behind_other_capabilities(control, redirects):
    assert acs_control(acs_config(control)) == control
    assert bool(acs_control(acs_config(control)) & 0x0C) is redirects


def test_a_bridge_without_acs_or_whose_registers_only_root_may_see_has_none():
    assert acs_control(acs_config(None)) is None
    assert acs_control(acs_config(0x1D)[:64]) is None
    assert acs_control(b"") is None


def test_a_chain_of_capabilities_that_goes_round_ends():
    config = bytearray(4096)
    config[0x100:0x104] = (0x0001 | 1 << 16 | 0x100 << 20).to_bytes(4, "little")
    assert acs_control(bytes(config)) is None
