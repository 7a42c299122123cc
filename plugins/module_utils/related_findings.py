# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which findings of the preflight have to do with how a launch failed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.llmops.vllm.plugins.module_utils.errors import InvalidInputError
from ansible_collections.llmops.vllm.plugins.module_utils.findings import SEVERITIES
from ansible_collections.llmops.vllm.plugins.module_utils.instance import read_instance

_GPU_FAULT = ("gpu_hardware_fault", "cuda_illegal_access", "nccl_watchdog_timeout", "nccl_init_failure", "hang")
_PEERS = ("nccl_p2p_failure", "nccl_p2p_hang", "nccl_watchdog_timeout", "nccl_init_failure", "hang")
_GPU_MEMORY = ("cuda_oom", "kv_cache_too_small", "gpu_memory_busy_at_start", "orphan_after_kill")
_JIT = ("jit_toolchain_missing", "jit_toolchain_version", "kernel_arch_unsupported", "stale_cache")
_SHM = ("shm_exhausted", "shm_leftover", "nccl_init_failure")
_GARBAGE = ("output_corruption_nan",)
_WEIGHTS = ("weights_corrupt_or_missing", "weights_mismatch")
_HOST_MEMORY = ("host_oom_kill", "external_kill", "engine_process_died")
_CONFIG = ("config_invalid", "model_arch_unsupported", "quant_dtype_mismatch", "tokenizer_or_remote_code")

# Classes of causes that each finding can be behind; ``hang`` stands for the verdict, ``*`` for every class.
RELATED: dict[str, tuple[str, ...]] = {
    "acs_redirects": _PEERS,
    "architecture_unknown": ("model_arch_unsupported",),
    "attention_backend": ("attention_backend_unsupported",),
    "attention_not_asked": ("attention_backend_unsupported",),
    "attention_refused": ("attention_backend_unsupported",),
    "attention_undecided": ("attention_backend_unsupported",),
    "b12x_cuda": ("kernel_arch_unsupported", "driver_cuda_mismatch", "jit_toolchain_version"),
    "b12x_memory": _GPU_MEMORY,
    "cache_disk_full": ("disk_full", "stale_cache"),
    "cache_no_exec": ("file_permission", "stale_cache", "dependency_mismatch"),
    "cache_read_only": ("file_permission", "stale_cache", "disk_full"),
    "chat_template": ("config_invalid", "tokenizer_or_remote_code"),
    "clock": ("hf_auth_or_rate_limit",),
    "context_does_not_fit": _GPU_MEMORY,
    "cpu_binding": ("config_invalid",),
    "dcp_full_graphs": _GARBAGE,
    "dcp_full_graphs_sparse_mla": _GARBAGE,
    "driver_older_than_cuda": ("driver_cuda_mismatch", "jit_toolchain_version", "kernel_arch_unsupported"),
    "driver_too_old": ("driver_cuda_mismatch", "no_gpu_visible"),
    "engine_config": _CONFIG,
    "engine_not_asked": ("*",),
    "environment": ("config_invalid",),
    "experts_mismatch": _WEIGHTS,
    "fabric_not_ready": ("driver_cuda_mismatch", "no_gpu_visible", *_PEERS),
    "fastsafetensors_missing": ("dependency_mismatch",),
    "file_forbidden": ("file_permission",),
    "fp8_e5m2_garbled": _GARBAGE,
    "fused_half_missing": (*_WEIGHTS, *_GARBAGE),
    "gpu_absent": ("no_gpu_visible", "driver_cuda_mismatch"),
    "gpu_count": ("no_gpu_visible", "config_invalid", "ray_placement"),
    "gpu_divided": ("no_gpu_visible", *_GPU_MEMORY, *_PEERS),
    "gpu_ecc_errors": _GPU_FAULT,
    "gpu_fault": _GPU_FAULT,
    "gpu_memory_damaged": _GPU_FAULT,
    "gpu_memory_taken": _GPU_MEMORY,
    "gpu_missing": (*_GPU_FAULT, "no_gpu_visible"),
    "gpu_mixed": ("kernel_arch_unsupported", *_GPU_MEMORY),
    "gpu_persistence": ("driver_cuda_mismatch",),
    "gpu_prohibited": ("no_gpu_visible",),
    "gpu_recovery": _GPU_FAULT,
    "gpu_remap_pending": _GPU_FAULT,
    "gpu_shared": _GPU_MEMORY,
    "gpu_slowed_down": ("engine_startup_timeout", "engine_step_timeout", "hang"),
    "hazards_unchecked": ("*",),
    "index_damaged": _WEIGHTS,
    "iommu_translates": _PEERS,
    "jit_memory": _HOST_MEMORY,
    "jit_tools_missing": _JIT,
    "kv_cache_dtype": ("attention_backend_unsupported",),
    "kv_cache_too_large": (*_GPU_MEMORY, *_HOST_MEMORY),
    "layers_missing": _WEIGHTS,
    "linked_code": ("tokenizer_or_remote_code",),
    "memlock": ("memlock_limit", "nccl_init_failure"),
    "model_refused": _CONFIG,
    "moe_backend": ("kernel_arch_unsupported", "quant_dtype_mismatch"),
    "nan_long_context": _GARBAGE,
    "nccl_p2p_level": _PEERS,
    "nccl_plugin": ("nccl_init_failure",),
    "nofile": ("host_limits",),
    "nonsense_bfloat16_kv_cache": _GARBAGE,
    "nvcc_too_old": _JIT,
    "nvfp4_kv_cache": _GARBAGE,
    "nvlink_degraded": _PEERS,
    "orphans": (*_GPU_MEMORY, "port_in_use", "shm_exhausted"),
    "p2p_unavailable": _PEERS,
    "page_cache": ("engine_startup_timeout", "systemd_timeout"),
    "parallel_sizes": ("config_invalid",),
    "port_in_use": ("port_in_use",),
    "prefill_backend": ("attention_backend_unsupported", "kernel_arch_unsupported"),
    "quantization_capability": ("quant_dtype_mismatch", "kernel_arch_unsupported"),
    "quantization_unknown": ("quant_dtype_mismatch", "config_invalid"),
    "runtime_incomplete": ("dependency_mismatch",),
    "serve_arguments": ("config_invalid",),
    "shape_mismatch": _WEIGHTS,
    "shard_damaged": _WEIGHTS,
    "shard_missing": _WEIGHTS,
    "shm_leftovers": _SHM,
    "shm_small": _SHM,
    "shm_too_small": _SHM,
    "source_not_told": ("*",),
    "tensor_duplicate": _WEIGHTS,
    "tensor_missing": (*_WEIGHTS, *_GARBAGE),
    "tensor_odd": _WEIGHTS,
    "triton_mla_shared_memory": ("triton_kernel_resource", "cuda_graph_capture"),
    "vision_backend": ("attention_backend_unsupported", "kernel_arch_unsupported"),
    "vision_tower_kernels": ("attention_backend_unsupported", "kernel_arch_unsupported"),
    "weights_do_not_fit": _GPU_MEMORY,
    "weights_missing": _WEIGHTS,
}


def related(findings: Sequence[Mapping[str, Any]], verdict: str, cause_class: str) -> list[dict[str, Any]]:
    """Return those of the preflight's findings that can be behind a failure, the worst first.

    Where no cause is known they are all told, none of them as the cause. A launch that is fine has none.
    """
    if verdict == "healthy":
        return []
    ranked = sorted(findings, key=_severity)
    if verdict == "insufficient_evidence" or cause_class == "unclassified":
        return [dict(finding) for finding in ranked]
    wanted = {cause_class or verdict, "*"}
    return [dict(finding) for finding in ranked if wanted & set(_classes(str(finding.get("id", ""))))]


def _severity(finding: Mapping[str, Any]) -> int:
    severity = finding.get("severity")
    return SEVERITIES.index(severity) if severity in SEVERITIES else len(SEVERITIES)


def _classes(finding_id: str) -> tuple[str, ...]:
    return _GPU_FAULT if finding_id.startswith("gpu_xid_") else RELATED.get(finding_id, ())


def check_findings(findings: Any) -> list[dict[str, Any]]:
    """Return ``findings`` if each has an id and says what was found; otherwise raise ``InvalidInputError``."""
    for number, finding in enumerate(findings, start=1):
        if not isinstance(finding, Mapping) or not finding.get("id") or not finding.get("what"):
            raise InvalidInputError(
                f"finding {number} has no id or does not say what was found; give what launch_preflight returned."
            )
    return [dict(finding) for finding in findings]


def stored_findings(root: str, instance: str, invocation_id: str) -> list[dict[str, Any]]:
    """Return what the preflight found for the release of a launch, as the receipt of that launch holds it.

    Where no receipt names the launch, nothing is known of it.
    """
    for release in read_instance(root, instance).releases:
        receipt: Mapping[str, Any] = release.receipt or {}
        if invocation_id and receipt.get("invocation_id") == invocation_id:
            return _findings_of(receipt)
    return []


def _findings_of(receipt: Mapping[str, Any]) -> list[dict[str, Any]]:
    found: Any = receipt
    for name in ("evidence", "preflight", "findings"):
        found = found.get(name) if isinstance(found, Mapping) else None
    known = [item for item in found if isinstance(item, dict)] if isinstance(found, list) else []
    return [item for item in known if item.get("id") and item.get("what")]
