# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is to be started, as far as a host and the known hazards care: arguments, environment, runtime, model."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.llmops.vllm.plugins.module_utils.runtime_facts import Runtime

# The short names that vllm serve takes as well.
ALIASES = {
    "tp": "tensor-parallel-size",
    "pp": "pipeline-parallel-size",
    "dp": "data-parallel-size",
    "dpl": "data-parallel-size-local",
    "dcp": "decode-context-parallel-size",
    "cc": "compilation-config",
    "O": "compilation-config",
}
# What systemd gives a service that sets none (systemd.exec(5)).
UNIT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin"
DEFAULT_UTILISATION = 0.9  # gpu_memory_utilization in vllm/config/cache.py, 0.14 to 0.33


def plain_name(given: Any) -> str:
    """Return the full name of an argument of ``vllm serve``, however it is written."""
    plain = str(given).lstrip("-").replace("_", "-")
    return ALIASES.get(plain, plain)


@dataclass(frozen=True)
class Launch:
    """What is to be started.

    ``arguments`` are those of ``vllm serve``, ``serve.yaml`` read as a mapping. ``model`` is the directory that is
    served, ``cache`` the engine's cache. What ``unit`` or, outside of all units, ``user`` runs is stopped before.
    """

    arguments: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    runtime: Runtime = field(default_factory=Runtime)
    unit: str = ""
    user: str = ""
    model: str = ""
    cache: str = ""
    weight_bytes: int | None = None

    def argument(self, name: str) -> Any:
        """Return the value of an argument, None when it is not given."""
        for given, value in self.arguments.items():
            if plain_name(given) == name:
                return value
        return None

    def mapping(self, name: str) -> Mapping[str, Any]:
        """Return the value of an argument that is a mapping, or JSON of one; empty for anything else."""
        value = self.argument(name)
        if isinstance(value, str) and re.match(r"\s*\{", value):
            try:
                value = json.loads(value)
            except ValueError:
                return {}
        return value if isinstance(value, Mapping) else {}

    def number(self, name: str, default: float) -> float:
        """Return the value of a numeric argument; the engine itself says when it is none."""
        try:
            return float(self.argument(name))
        except (TypeError, ValueError):
            return default

    def count(self, name: str) -> int:
        """Return a size of a parallel dimension, 1 when it is not given."""
        return max(1, int(self.number(name, 1)))

    def text(self, name: str) -> str:
        """Return the value of an argument as text in lower case, empty when it is not given."""
        value = self.argument(name)
        return "" if value is None else str(value).strip().lower()

    def is_set(self, name: str) -> bool:
        """Whether a switch is on."""
        return self.text(name) in ("true", "1", "yes", "on")

    @property
    def redundant_experts(self) -> int:
        """How many copies of experts the engine is to have, by which it balances their load."""
        found = self.mapping("eplb-config").get("num_redundant_experts")
        return found if isinstance(found, int) else 0

    @property
    def gpu_count(self) -> int:
        """How many GPUs of this host the engine uses; 0 when other hosts have a part in it, or none is used."""
        several_hosts = self.text("distributed-executor-backend") == "ray" or self.count("nnodes") > 1
        if several_hosts or self.runtime.device not in ("cuda", ""):
            return 0
        local = "data-parallel-size-local"
        copies = self.count(local) if self.argument(local) is not None else self.count("data-parallel-size")
        return self.count("tensor-parallel-size") * self.count("pipeline-parallel-size") * copies

    @property
    def utilisation(self) -> float:
        """The share of each GPU's memory that the engine takes."""
        return self.number("gpu-memory-utilization", DEFAULT_UTILISATION)

    @property
    def path(self) -> str:
        """Where the engine looks for programs: the launcher puts those of the runtime first."""
        return f"{self.runtime.path}/bin:{self.environment.get('PATH', UNIT_PATH)}"

    @property
    def full_graphs(self) -> bool:
        """Whether the engine captures whole CUDA graphs: it does by default (vllm/config/compilation.py)."""
        if self.is_set("enforce-eager"):
            return False
        mode = str(self.mapping("compilation-config").get("cudagraph_mode") or "FULL_AND_PIECEWISE").upper()
        return "FULL" in mode
