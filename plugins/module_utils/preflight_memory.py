# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Does the model fit, and what is the largest context: the checkpoint, the engine's settings, the memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ansible_collections.llmops.vllm.plugins.module_utils.checkpoint import Checkpoint
from ansible_collections.llmops.vllm.plugins.module_utils.engine_probe import EngineAnswer
from ansible_collections.llmops.vllm.plugins.module_utils.findings import Finding
from ansible_collections.llmops.vllm.plugins.module_utils.memory_model import (
    Capacity,
    Limits,
    NotModelled,
    allowance_bytes,
    capacity,
    largest_num_seqs,
)
from ansible_collections.llmops.vllm.plugins.module_utils.sizes import GIB
from ansible_collections.llmops.vllm.plugins.module_utils.weight_layout import (
    ASSUMPTION,
    Layout,
    WeightShare,
    weights_per_gpu,
)

SOURCE = "vllm/v1/core/kv_cache_utils.py and the sizes in config.json"


@dataclass(frozen=True)
class Fit:
    """What one GPU (or, for an engine on the CPU, one worker) holds; sizes in bytes, 0 where nothing is known.

    ``estimated`` says that the cache is what an estimate leaves, and not a size that was asked for.
    """

    memory_bytes: int
    weights_bytes: int
    allowance_bytes: int
    estimated: bool
    capacity: Capacity
    largest_num_seqs: int
    note: str

    def as_dict(self) -> dict[str, Any]:
        """Return the fit as plain values for a module's result."""
        cache = asdict(self.capacity)
        return {
            "memory_bytes": self.memory_bytes,
            "weights_bytes": self.weights_bytes,
            "allowance_bytes": self.allowance_bytes,
            "kv_cache_bytes": cache["cache_bytes"],
            "kv_token_bytes": cache["token_bytes"],
            "kv_tokens": cache["tokens"],
            "largest_model_len": cache["largest_model_len"],
            "largest_num_seqs": self.largest_num_seqs,
            "estimated": self.estimated,
            "note": self.note,
        }


def limits_of(answer: EngineAnswer) -> Limits:
    """Return the sizes that the engine has resolved. Raises NotModelled when it has not told them."""
    told = answer.config
    try:
        if int(told["max_model_len"]) < 1:
            raise NotModelled("a context length that the engine chooses itself")
        return Limits(
            max_model_len=int(told["max_model_len"]),
            max_num_seqs=int(told["max_num_seqs"]),
            max_num_batched_tokens=int(told["max_num_batched_tokens"]),
            block_size=int(told.get("block_size") or 16),
            tensor=int(told.get("tensor_parallel_size") or 1),
            pipeline=int(told.get("pipeline_parallel_size") or 1),
            context=int(told.get("decode_context_parallel_size") or 1),
            kv_cache_dtype=answer.kv_cache_dtype,
            dtype=str(told.get("dtype") or "bfloat16"),
            graphs=not told.get("enforce_eager"),
        )
    except (KeyError, TypeError) as error:
        raise NotModelled("an engine that does not tell its limits") from error


def layout_of(answer: EngineAnswer) -> Layout:
    """Return how the engine would spread the weights."""
    told = answer.config
    return Layout(
        tensor=int(told.get("tensor_parallel_size") or 1),
        pipeline=int(told.get("pipeline_parallel_size") or 1),
        data=int(told.get("data_parallel_size") or 1),
        expert_parallel=bool(told.get("enable_expert_parallel")),
        vision=not told.get("language_model_only"),
        vision_whole=told.get("mm_encoder_tp_mode") == "data",
    )


def reckon(checkpoint: Checkpoint, config: Mapping[str, Any], answer: EngineAnswer, memory_bytes: int) -> Fit | None:
    """Return what fits into ``memory_bytes`` of each GPU, or None when neither that nor a size of the cache is known.

    Raises NotModelled for a model or an engine that this arithmetic does not know.
    """
    limits = limits_of(answer)
    share = weights_per_gpu(checkpoint.tensors, config, layout_of(answer))
    needed = allowance_bytes(config, limits)
    asked = int(answer.config.get("kv_cache_memory_bytes") or 0)
    part = float(answer.config.get("gpu_memory_utilization") or 0)
    on_gpu = answer.config.get("device") == "cuda"
    if asked:
        size, spare = asked, (memory_bytes - asked - share.total_bytes - needed) if memory_bytes and on_gpu else 0
    elif memory_bytes and part and on_gpu:
        size, spare = int(memory_bytes * part) - share.total_bytes - needed, 0
    else:
        return None
    found = capacity(config, limits, max(0, size))
    if not asked and found.largest_model_len > limits.max_model_len:
        spare = int(size * (1 - limits.max_model_len / found.largest_model_len))
    sequences = largest_num_seqs(config, limits, spare)
    return Fit(memory_bytes, share.total_bytes, needed, not asked, found, sequences, _note(share, not asked))


def _note(share: WeightShare, estimated: bool) -> str:
    text = f"weights: {ASSUMPTION}"
    if share.left_out_bytes:
        text += f"; {share.left_out_bytes / GIB:.2f} GiB of the checkpoint are not loaded"
    return text + ("; the allowance for everything else is an estimate" if estimated else "")


def judge_memory(fit: Fit, config: Mapping[str, Any], answer: EngineAnswer) -> Iterator[Finding]:
    """Turn a fit into findings: what cannot be is a ``no_go``, what an estimate says is a warning."""
    limits = limits_of(answer)
    on_gpu = answer.config.get("device") == "cuda"
    usable = int(fit.memory_bytes * float(answer.config.get("gpu_memory_utilization") or 1))
    evidence = summary(fit)
    if on_gpu and fit.memory_bytes and fit.weights_bytes > (usable if fit.estimated else fit.memory_bytes):
        what = "The weights alone do not fit on the GPUs."
        remedy = "raise tensor-parallel-size or gpu-memory-utilization in vllm_service_arguments_extra"
        yield Finding("weights_do_not_fit", "no_go", what, evidence, remedy, source=SOURCE)
        return
    if not on_gpu and fit.memory_bytes and fit.capacity.cache_bytes > fit.memory_bytes:
        what = "The KV cache is asked to be larger than the memory of the host."
        remedy = "lower kv-cache-memory-bytes in vllm_service_arguments_extra"
        yield Finding("kv_cache_too_large", "no_go", what, evidence, remedy, source=SOURCE)
        return
    if limits.max_model_len <= fit.capacity.largest_model_len:
        return
    # With nothing at all beside weights and cache it would be certain.
    most = fit.capacity
    if fit.estimated:
        most = capacity(config, limits, usable - fit.weights_bytes)
    certain = most.largest_model_len < limits.max_model_len
    what = f"A request of {limits.max_model_len} tokens does not fit into the KV cache."
    remedy = f"set vllm_service_arguments_extra: {{max-model-len: {max(fit.capacity.largest_model_len, 1)}}}"
    if fit.capacity.largest_model_len < limits.block_size:
        remedy = "raise kv-cache-memory-bytes or gpu-memory-utilization in vllm_service_arguments_extra"
    price = "shorter contexts; more GPUs, decode-context-parallel-size or an FP8 KV cache allow longer ones"
    yield Finding("context_does_not_fit", "no_go" if certain else "warn", what, evidence, remedy, "", price, SOURCE)


def summary(fit: Fit) -> str:
    """Return the fit as a sentence for people."""
    cache = fit.capacity
    weights = f"weights {fit.weights_bytes / GIB:.2f} GiB"
    memory = f" of {fit.memory_bytes / GIB:.2f} GiB" if fit.memory_bytes else ""
    allowance = f", {fit.allowance_bytes / GIB:.2f} GiB left for the rest (an estimate)" if fit.estimated else ""
    return (
        f"each worker has {weights}{memory}{allowance}, KV cache {cache.cache_bytes / GIB:.2f} GiB of "
        f"{cache.token_bytes} bytes per token: {cache.tokens} tokens, largest max-model-len {cache.largest_model_len}"
    )
