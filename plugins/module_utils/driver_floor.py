# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which driver a CUDA toolkit needs.

The numbers are from the CUDA Toolkit release notes, tables "CUDA Toolkit and Minimum Required Driver Version for CUDA
Minor Version Compatibility" and "CUDA Toolkit and Corresponding Driver Versions" (Linux x86_64):
https://docs.nvidia.com/cuda/cuda-toolkit-release-notes/. A driver runs every toolkit of the same or an older major
version from the first number on; kernels compiled on the host (PTX) need the driver that the toolkit came with.
"""

from __future__ import annotations

import re

SOURCE = "https://docs.nvidia.com/cuda/cuda-toolkit-release-notes/"
# Major version of the toolkit to the first driver that runs it.
RUNS_FROM = {11: "450.80.02", 12: "525.60.13", 13: "580.65.06"}
# Toolkit to the driver that came with its first release.
CAME_WITH = {
    (12, 4): "550.54.14",
    (12, 5): "555.42.02",
    (12, 6): "560.28.03",
    (12, 8): "570.26",
    (12, 9): "575.51.03",
    (13, 0): "580.65.06",
    (13, 1): "590.44.01",
    (13, 2): "595.45.04",
}


def numbers(version: str) -> tuple[int, ...]:
    """Return the numbers at the beginning of a version, such as (595, 58, 3) for ``595.58.03``."""
    match = re.match(r"\d+(?:\.\d+)*", version.strip())
    return tuple(int(part) for part in match.group().split(".")) if match else ()


def required(cuda: str) -> str:
    """Return the first driver that runs a toolkit, empty where that is not known."""
    parts = numbers(cuda)
    return RUNS_FROM.get(parts[0], "") if parts else ""


def shipped(cuda: str) -> str:
    """Return the driver that came with a toolkit, empty where that is not known."""
    major, minor, *_rest = (*numbers(cuda), 0, 0)
    return CAME_WITH.get((major, minor), "")


def too_old(driver: str, driver_cuda: str, cuda: str) -> bool:
    """Whether a driver cannot run a toolkit at all. ``driver_cuda`` is the newest CUDA that the driver names.

    What is not known speaks against nothing.
    """
    floor = required(cuda)
    if driver and floor:
        return numbers(driver) < numbers(floor)
    return bool(driver_cuda and cuda) and numbers(driver_cuda)[:1] < numbers(cuda)[:1]


def too_old_for_ptx(driver: str, driver_cuda: str, cuda: str) -> bool:
    """Whether a driver may refuse what the toolkit's compiler makes on the host."""
    if driver_cuda and cuda:
        return numbers(driver_cuda)[:2] < numbers(cuda)[:2]
    came_with = shipped(cuda)
    return bool(driver and came_with) and numbers(driver) < numbers(came_with)
