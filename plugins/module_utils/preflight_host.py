# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the host has against a launch, and which of the known hazards the launch meets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ansible_collections.llmops.vllm.plugins.module_utils.driver_floor import numbers
from ansible_collections.llmops.vllm.plugins.module_utils.findings import Finding
from ansible_collections.llmops.vllm.plugins.module_utils.gpu import Gpu
from ansible_collections.llmops.vllm.plugins.module_utils.gpu_findings import used_gpus
from ansible_collections.llmops.vllm.plugins.module_utils.gpu_query import GpuHost
from ansible_collections.llmops.vllm.plugins.module_utils.hazards import Traits, hazard_findings, model_of
from ansible_collections.llmops.vllm.plugins.module_utils.host_facts import HostFacts, collect
from ansible_collections.llmops.vllm.plugins.module_utils.host_findings import host_findings
from ansible_collections.llmops.vllm.plugins.module_utils.launch import Launch


@dataclass(frozen=True)
class HostLook:
    """One look at the host: findings, bytes of its memory and of the smallest GPU in use (0: not known)."""

    findings: tuple[Finding, ...]
    memory_bytes: int = 0
    gpu_bytes: int = 0


@dataclass(frozen=True)
class Seen:
    """A host before it is judged: its facts, and what the GPUs of the launch can, of each."""

    facts: HostFacts
    gpus: tuple[Gpu, ...]
    capabilities: tuple[str, ...]

    @property
    def capability(self) -> str:
        """The least that one of the GPUs can, empty when none is known."""
        return min(self.capabilities, key=numbers, default="")


def see(host: GpuHost, launch: Launch, capability: str = "") -> Seen:
    """Collect the facts of ``host``; ``capability`` is what the GPUs of the launch can, where they are others."""
    facts = collect(host, launch)
    gpus = tuple(used_gpus(facts.gpus.gpus, launch))
    own = tuple(gpu.compute_capability for gpu in gpus if gpu.compute_capability)
    return Seen(facts, gpus, (capability,) if capability else own)


def look_at_host(seen: Seen, launch: Launch, config: Mapping[str, Any], kv_cache_dtype: str) -> HostLook:
    """Judge a host for ``launch``; ``config`` is the model's after its patches, empty when there is none yet.

    Raises LlmopsError.
    """
    # A release's view has copies of all code, whatever the snapshot has.
    model = replace(model_of(config, launch.model), linked_code=False)
    traits = Traits(launch, model, seen.capabilities or None, kv_cache_dtype)
    sizes = [gpu.usable_bytes for gpu in seen.gpus if gpu.usable_bytes]
    return HostLook(
        (*host_findings(seen.facts, launch), *hazard_findings(traits)),
        seen.facts.memory_total_bytes or 0,
        min(sizes, default=0),
    )
