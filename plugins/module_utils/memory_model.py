# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What fits on a GPU beside the weights: bytes of KV cache per token, tokens of KV cache, the largest context.

The cache's part is arithmetic and repeats vLLM's (v1/core/kv_cache_utils.py, v1/kv_cache_interface.py): layers of one
kind share a pool of blocks, a request takes whole blocks, and the capacity that the engine logs is the number of
longest requests times their length. What the engine needs beside weights and cache it finds by running the model; here
it is an allowance, and said to be one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ansible_collections.llmops.vllm.plugins.module_utils.checkpoint import text_config
from ansible_collections.llmops.vllm.plugins.module_utils.sizes import GIB

# Bytes of one cached element. A dtype that is not here cannot be reckoned with.
ELEMENT_BYTES = {
    "bfloat16": 2.0, "float16": 2.0, "half": 2.0, "float32": 4.0, "float": 4.0,
    "fp8": 1.0, "fp8_e4m3": 1.0, "fp8_e5m2": 1.0, "fp8_inc": 1.0,
}  # fmt: skip
# Packed latent state of sparse attention: 512 FP8 values, 16 bytes of scales, 64 BF16 rope values
# (vllm/v1/attention/backends/mla/flashmla_sparse.py), and the indexer's keys: FP8 with one float32 scale each 128
# (vllm/model_executor/layers/sparse_attn_indexer.py).
SPARSE_FP8_BYTES = 656
INDEXER_SCALE_BYTES = 4
INDEXER_QUANT_BLOCK = 128

# The allowance, made to agree with published starts on 8 GPUs: context, cuBLAS and NCCL buffers; CUDA graphs; for each
# token of a prefill chunk, so many hidden states; for each sequence, float32 logits and their sorted copies.
FIXED_BYTES = int(1.5 * GIB)
SINGLE_GPU_FIXED_BYTES = GIB // 4
GRAPH_BYTES = int(2.5 * GIB)
HIDDEN_STATES_PER_TOKEN = 22
LOGIT_COPIES = 3


@dataclass(frozen=True)
class LayerGroup:
    """Layers whose cache is alike: how many, bytes per token of one, and the window they look back (0: all)."""

    layers: int
    token_bytes: int
    window: int = 0


@dataclass(frozen=True)
class Limits:
    """What of an engine's configuration the cache depends on; sizes in tokens unless they say bytes."""

    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    block_size: int
    tensor: int = 1
    pipeline: int = 1
    context: int = 1
    kv_cache_dtype: str = "auto"
    dtype: str = "bfloat16"
    graphs: bool = True


@dataclass(frozen=True)
class Capacity:
    """What a cache of ``cache_bytes`` on each GPU holds."""

    cache_bytes: int
    token_bytes: int
    tokens: int
    largest_model_len: int
    sequences: float


class NotModelled(ValueError):
    """The model's cache is of a form that this arithmetic does not know; the message says which."""


def element_bytes(limits: Limits) -> float:
    """Return the bytes of one cached element. Raises NotModelled."""
    dtype = limits.dtype if limits.kv_cache_dtype == "auto" else limits.kv_cache_dtype
    if dtype not in ELEMENT_BYTES:
        raise NotModelled(f"the KV cache dtype {dtype}")
    return ELEMENT_BYTES[dtype]


def layer_groups(config: Mapping[str, Any], limits: Limits) -> list[LayerGroup]:
    """Return the kinds of cached layers that one GPU has. Raises NotModelled."""
    text = text_config(config)
    layers = text.get("num_hidden_layers")
    if not isinstance(layers, int) or layers < 1:
        raise NotModelled("a model without num_hidden_layers")
    if text.get("compress_ratios") or text.get("model_type") in ("deepseek_v4", "qwen3_next", "mamba", "mamba2"):
        raise NotModelled(f"the compressed or recurrent state of {text.get('model_type')}")
    on_stage = -(-layers // limits.pipeline)
    if text.get("kv_lora_rank"):
        return [LayerGroup(on_stage, _latent_bytes(text, limits))]
    return _attention_groups(text, limits, on_stage)


def _latent_bytes(text: Mapping[str, Any], limits: Limits) -> int:
    """Bytes per token and layer of multi-head latent attention, which every tensor-parallel rank holds whole."""
    latent, rope = int(text["kv_lora_rank"]), int(text.get("qk_rope_head_dim") or 0)
    size = int((latent + rope) * element_bytes(limits))
    if not text.get("index_topk"):
        return size
    keys = int(text.get("index_head_dim") or INDEXER_QUANT_BLOCK)
    indexer = keys + -(-keys // INDEXER_QUANT_BLOCK) * INDEXER_SCALE_BYTES
    return (SPARSE_FP8_BYTES if element_bytes(limits) == 1 else size) + indexer


def _attention_groups(text: Mapping[str, Any], limits: Limits, on_stage: int) -> list[LayerGroup]:
    heads = text.get("num_attention_heads")
    if not isinstance(heads, int) or heads < 1:
        raise NotModelled("a model without num_attention_heads")
    keys = int(text.get("num_key_value_heads") or heads)
    head_size = int(text.get("head_dim") or text["hidden_size"] // heads)
    size = int(2 * -(-keys // limits.tensor) * head_size * element_bytes(limits))
    kinds = text.get("layer_types")
    window = int(text.get("sliding_window") or 0)
    if not isinstance(kinds, list) or not window:
        return [LayerGroup(on_stage, size)]
    unknown = sorted({str(kind) for kind in kinds} - {"full_attention", "sliding_attention"})
    if unknown:
        raise NotModelled(f"layers of {', '.join(unknown)}")
    sliding = sum(kind == "sliding_attention" for kind in kinds)
    counts = ((len(kinds) - sliding, 0), (sliding, window))
    return [LayerGroup(-(-count // limits.pipeline), size, back) for count, back in counts if count]


def _pool(groups: list[LayerGroup], limits: Limits) -> tuple[int, list[LayerGroup]]:
    """Return the bytes of one block of the shared pool, and one entry per table of blocks that a request has."""
    share = min(group.layers for group in groups)
    if max(group.layers for group in groups) < share * 1.25:
        share = max(group.layers for group in groups)  # nearly alike: vLLM pads instead of splitting
    tables = [group for group in groups for _table in range(-(-group.layers // share))]
    return limits.block_size * max(group.token_bytes for group in groups) * share, tables


def _blocks(length: int, tables: list[LayerGroup], limits: Limits) -> int:
    """Blocks that a request of ``length`` tokens takes on one rank."""
    own = -(-length // limits.context)
    total = 0
    for table in tables:
        if table.window:
            reach = min(table.window - 1 + limits.max_num_batched_tokens, own)
            total += -(-reach // limits.block_size) + 1
        else:
            total += -(-own // limits.block_size)
    return total


def capacity(config: Mapping[str, Any], limits: Limits, cache_bytes: int) -> Capacity:
    """Return what ``cache_bytes`` of each GPU hold. Raises NotModelled."""
    groups = layer_groups(config, limits)
    block_bytes, tables = _pool(groups, limits)
    blocks = max(0, cache_bytes) // block_bytes
    sequences = blocks / _blocks(limits.max_model_len, tables, limits)
    token_bytes = sum(group.layers * group.token_bytes for group in groups)
    largest = _largest(blocks, tables, limits)
    return Capacity(cache_bytes, token_bytes, int(sequences * limits.max_model_len), largest, sequences)


def _largest(blocks: int, tables: list[LayerGroup], limits: Limits) -> int:
    """Return the longest request that ``blocks`` hold, by halving."""
    low, high = 0, blocks * limits.block_size * limits.context
    while low < high:
        middle = (low + high + 1) // 2
        if _blocks(middle, tables, limits) <= blocks:
            low = middle
        else:
            high = middle - 1
    return low


def allowance_bytes(config: Mapping[str, Any], limits: Limits) -> int:
    """Return the bytes to leave for everything that is neither weights nor cache: an estimate."""
    text = text_config(config)
    hidden, vocabulary = int(text.get("hidden_size") or 0), int(text.get("vocab_size") or 0)
    prefill = limits.max_num_batched_tokens * hidden * HIDDEN_STATES_PER_TOKEN * 2
    sampler = limits.max_num_seqs * vocabulary * 4 * LOGIT_COPIES
    fixed = FIXED_BYTES if limits.tensor * limits.pipeline > 1 else SINGLE_GPU_FIXED_BYTES
    graphs = GRAPH_BYTES if limits.graphs and fixed == FIXED_BYTES else 0
    return fixed + prefill + sampler + graphs


def largest_num_seqs(config: Mapping[str, Any], limits: Limits, spare_bytes: int) -> int:
    """Return how many sequences the sampler may have at once so that ``spare_bytes`` more are not exceeded."""
    vocabulary = int(text_config(config).get("vocab_size") or 0)
    each = vocabulary * 4 * LOGIT_COPIES
    return max(0, limits.max_num_seqs + spare_bytes // each) if each else limits.max_num_seqs
