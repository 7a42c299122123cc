# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Combinations that are known to go wrong, and that neither the engine nor the host can be asked about.

Data only; ``hazards.py`` says what each key means. An entry has a public source, and the version of vLLM from which on
it is no longer told: whoever raises that has looked again whether it still holds. What the installed engine can be
asked does not belong here.
"""

from __future__ import annotations

from typing import Any

DECODE_KERNEL = "vllm/v1/attention/ops/triton_decode_attention.py"
FLASH_ATTENTION = "vllm/v1/attention/backends/flash_attn.py"

KNOWN_HAZARDS: tuple[dict[str, Any], ...] = (
    {
        "id": "triton_mla_shared_memory",
        "severity": "warn",
        "when": {
            "device": "cuda",
            "compute_capability": ["12."],
            "mla": True,
            "sparse_mla": False,
            "packages": {"vllm": ">=0.14"},
            "source_lacks": {"file": DECODE_KERNEL, "pattern": r"BLOCK_DMODEL\s*>=\s*512"},
        },
        "what": (
            "The MLA decode kernel of TRITON_MLA can need more on-chip memory than these GPUs have (102400 > 101376 "
            "bytes) and then fails while graphs are captured, after all weights were loaded."
        ),
        "remedy": (
            "use a build whose decode kernel takes one stage from BLOCK_DMODEL 512 on (vllm_runtime_lock); where this "
            "runtime is known to serve on these GPUs, nothing"
        ),
        "source": "https://github.com/guqiong96/Lvllm/issues/77",
        "expires": "0.36",
    },
    {
        "id": "b12x_cuda",
        "severity": "no_go",
        "when": {
            "device": "cuda",
            "cuda": "<13",
            "argument": {"name": "moe-backend", "in": ["flashinfer_b12x", "b12x"]},
        },
        "what": "The b12x kernels need a runtime that was built with CUDA 13 or newer.",
        "remedy": "set vllm_service_arguments_extra: {moe-backend: marlin}, or vllm_runtime_lock to one for CUDA 13",
        "source": "https://github.com/flashinfer-ai/flashinfer/pull/3051",
        "expires": "0.40",
    },
    {
        "id": "b12x_memory",
        "severity": "info",
        "when": {
            "device": "cuda",
            "packages": {"vllm": ">=0.23"},
            "argument": {"name": "moe-backend", "in": ["flashinfer_b12x"]},
        },
        "what": "The b12x kernels take about twice the memory for activations, which the KV cache then lacks.",
        "remedy": "set vllm_service_arguments_extra: {moe-backend: marlin} when the context does not fit",
        "source": "https://github.com/vllm-project/vllm/issues/49079",
        "expires": "0.36",
    },
    {
        "id": "nan_long_context",
        "severity": "warn",
        "when": {
            "device": "cuda",
            "compute_capability": ["10."],
            "architectures": ["KimiK25ForConditionalGeneration"],
            "packages": {"vllm": ">=0.18.1,<0.21"},
        },
        "what": "Long inputs under load can turn every answer into '!!!!' (NaN) while /health stays 200.",
        "remedy": "use vLLM 0.21 or newer (vllm_runtime_lock)",
        "source": "https://github.com/vllm-project/vllm/issues/42426",
        "expires": "0.21",
    },
    {
        "id": "nonsense_bfloat16_kv_cache",
        "severity": "warn",
        "when": {
            "device": "cuda",
            "sparse_mla": True,
            "kv_cache_dtype": ["bfloat16"],
            "packages": {"vllm": ">=0.22,<0.23"},
        },
        "what": "Sparse MLA with a bfloat16 KV cache answers nonsense in this version.",
        "remedy": "set vllm_service_arguments_extra: {kv-cache-dtype: fp8}, or vllm_runtime_lock to 0.23 or newer",
        "source": "https://github.com/vllm-project/vllm/issues/44550",
        "expires": "0.23",
    },
    {
        "id": "fp8_e5m2_garbled",
        "severity": "warn",
        "when": {
            "device": "cuda",
            "kv_cache_dtype": ["fp8_e5m2"],
            "architectures": ["Qwen2VLForConditionalGeneration", "Qwen2_5_VLForConditionalGeneration"],
        },
        "what": "This model with a KV cache of fp8_e5m2 and default scales answers garbled text without an error.",
        "remedy": "set vllm_service_arguments_extra: {kv-cache-dtype: auto}",
        "price": "half the KV tokens",
        "source": "https://github.com/vllm-project/vllm/issues/41343",
        "expires": "0.36",
    },
    {
        "id": "nvfp4_kv_cache",
        "severity": "warn",
        "when": {"device": "cuda", "compute_capability": ["12."], "kv_cache_dtype": ["nvfp4"]},
        "what": "An nvfp4 KV cache is not wired up for these GPUs; builds that do it can garble text with full graphs.",
        "remedy": "set vllm_service_arguments_extra: {kv-cache-dtype: fp8}",
        "price": "about half the KV tokens",
        "source": "https://github.com/vllm-project/vllm/issues/49011",
        "expires": "0.36",
    },
    {
        "id": "dcp_full_graphs",
        "severity": "warn",
        "when": {
            "device": "cuda",
            "mla": False,
            "full_graphs": True,
            "argument": {"name": "decode-context-parallel-size", "more_than": 1},
            "source_lacks": {"file": FLASH_ATTENTION, "pattern": r"self\._dcp_context_kv_lens"},
        },
        "what": "Decode context parallelism under full CUDA graphs answers wrongly in this version.",
        "remedy": "set vllm_service_arguments_extra: {compilation-config: {cudagraph_mode: PIECEWISE}}",
        "price": "some decoding speed",
        "source": "https://github.com/vllm-project/vllm/pull/36070",
        "expires": "0.36",
    },
    {
        "id": "dcp_full_graphs_sparse_mla",
        "severity": "warn",
        "when": {
            "device": "cuda",
            "compute_capability": ["12."],
            "sparse_mla": True,
            "full_graphs": True,
            "argument": {"name": "decode-context-parallel-size", "more_than": 1},
        },
        "what": "Sparse MLA with decode context parallelism under full CUDA graphs answers garbled text on these GPUs.",
        "remedy": "set vllm_service_arguments_extra: {compilation-config: {cudagraph_mode: PIECEWISE}}",
        "price": "some decoding speed",
        "source": "https://github.com/local-inference-lab/vllm/pull/3",
        "expires": "0.36",
    },
    {
        "id": "linked_code",
        "severity": "no_go",
        "when": {
            "linked_code": True,
            "packages": {"transformers": ">=5.10,<5.13"},
            "argument": {"name": "trust-remote-code", "in": ["true"]},
        },
        "what": "This version of transformers looks for the model's own code where its links lead to, and finds none.",
        "remedy": "serve a view, whose .py files are real ones, or set vllm_runtime_lock to transformers 5.13 or newer",
        "source": "https://github.com/huggingface/transformers/issues/46617",
        "expires": "0.40",
    },
    {
        "id": "vision_tower_kernels",
        "severity": "warn",
        "when": {
            "device": "cuda",
            "compute_capability": ["10.3", "12."],
            "cuda": ">=13",
            "vision": True,
            "packages": {"nvidia-cutlass-dsl": "present", "nvidia-cutlass-dsl-libs-cu13": "absent"},
        },
        "what": (
            "Without the CUDA 13 part of nvidia-cutlass-dsl the vision tower's kernels do not know these GPUs: the "
            "engine dies after loading with 'Only SM 10.x and 11.x are supported'."
        ),
        "remedy": (
            "use a lock with nvidia-cutlass-dsl[cu13] (vllm_runtime_lock), or set vllm_service_arguments_extra: "
            "{mm-encoder-attn-backend: TORCH_SDPA}, or {language-model-only: true}"
        ),
        "source": "https://github.com/vllm-project/vllm/pull/42438",
        "expires": "0.40",
    },
    {
        "id": "fastsafetensors_missing",
        "severity": "no_go",
        "when": {
            "argument": {"name": "load-format", "in": ["fastsafetensors"]},
            "packages": {"fastsafetensors": "absent"},
        },
        "what": "load-format is fastsafetensors, and the runtime does not have that package.",
        "remedy": "set vllm_service_arguments_extra: {load-format: auto}, or vllm_runtime_lock to one that has it",
        "source": "https://docs.vllm.ai/en/latest/models/extensions/fastsafetensor/",
        "expires": "0.40",
    },
    {
        "id": "nccl_p2p_level",
        "severity": "warn",
        "when": {
            "device": "cuda",
            "argument": {"name": "tensor-parallel-size", "more_than": 1},
            "environment": {"name": "NCCL_P2P_LEVEL", "in": ["SYS", "5"]},
        },
        "what": "NCCL_P2P_LEVEL=SYS makes GPUs of different sockets talk directly; where they cannot, the start hangs.",
        "remedy": "leave NCCL_P2P_LEVEL out of vllm_service_environment, or measure with it on this very host",
        "source": "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html",
        "expires": "0.40",
    },
)
