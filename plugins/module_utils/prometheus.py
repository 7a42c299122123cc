# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The numbers of an engine's ``GET /metrics``, which are text in Prometheus' exposition format."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import NamedTuple

# vLLM's own names; prometheus_client writes no timestamps.
_SAMPLE = re.compile(r"^(vllm:[a-z_]+)(?:\{(.*)\})? (\S+)$", re.M)


class Sample(NamedTuple):
    """One line: ``labels`` as they stand between the braces, ``text`` the line itself, ``value`` a float, NaN too."""

    name: str
    labels: str
    value: float
    text: str


def read_samples(text: str) -> list[Sample]:
    """Return vLLM's samples in their order; a line that holds no number is left out."""
    found = []
    for match in _SAMPLE.finditer(text):
        try:
            found.append(Sample(match[1], match[2] or "", float(match[3]), match[0]))
        except ValueError:
            continue
    return found


def values_of(samples: Iterable[Sample], name: str) -> list[float]:
    """Return the values of ``name``, one for each engine of the server."""
    return [sample.value for sample in samples if sample.name == name]


def total(samples: Iterable[Sample], name: str) -> float | None:
    """Return the sum of ``name`` over all engines, None where the server does not count it."""
    values = values_of(samples, name)
    return sum(values) if values else None


def count(samples: Iterable[Sample], name: str) -> int | None:
    """Return the sum of ``name`` as a whole number, None where the server does not count it, or gives no number."""
    found = total(samples, name)
    return int(found) if found is not None and math.isfinite(found) else None
