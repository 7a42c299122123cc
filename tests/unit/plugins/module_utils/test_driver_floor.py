from __future__ import annotations

import pytest
from ansible_collections.llmops.vllm.plugins.module_utils.driver_floor import (
    CAME_WITH,
    RUNS_FROM,
    numbers,
    too_old,
    too_old_for_ptx,
)


@pytest.mark.parametrize(
    ("driver", "names", "cuda", "refused", "ptx"),
    [
        ("595.58.03", "13.2", "12.8", False, False),  # newer runs older
        ("580.65.06", "13.0", "13.0", False, False),
        ("570.211.01", "12.8", "13.0", True, True),  # another major version
        ("570.211.01", "12.8", "12.9", False, True),  # another minor version: PTX only
        ("535.161.08", "12.2", "12.8", False, True),
        ("525.60.12", "12.0", "12.1", True, True),
        ("525.60.13", "12.0", "12.0", False, False),
        ("580.95.05", "", "13.1", False, True),  # nvidia-smi does not say: the table does
        ("", "12.8", "13.0", True, True),  # the module's version is not known: what nvidia-smi names does
        ("", "", "13.0", False, False),  # nothing known speaks against nothing
        ("999.1", "", "99.0", False, False),
        ("570.26", "12.8", "", False, False),
    ],
)
def test_a_driver_is_held_against_the_toolkit(driver, names, cuda, refused, ptx):
    assert (too_old(driver, names, cuda), too_old_for_ptx(driver, names, cuda)) == (refused, ptx)


def test_a_toolkit_runs_on_the_driver_it_came_with():
    for (major, minor), driver in CAME_WITH.items():
        assert not too_old(driver, "", f"{major}.{minor}")
        assert not too_old_for_ptx(driver, "", f"{major}.{minor}")
        assert numbers(driver) >= numbers(RUNS_FROM[major])
