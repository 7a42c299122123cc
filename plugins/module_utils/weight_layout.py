# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How many bytes of a checkpoint one GPU holds, from the tensors' names and vLLM's rules of splitting them.

The rules are those of vLLM's model classes: column- and row-parallel linear layers, embeddings and routed experts are
split over the tensor-parallel ranks (experts by number with expert parallelism), all else is on every rank. They are
recognised by name; a name that no rule knows counts as held whole, so that the result errs to the high side.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ansible_collections.llmops.vllm.plugins.module_utils.checkpoint import is_vision, layer_of, text_config
from ansible_collections.llmops.vllm.plugins.module_utils.safetensors_header import Tensor

ASSUMPTION = (
    "linear layers, embeddings and experts are split over the tensor-parallel ranks; norms, routers, down-projections "
    "of latent attention and what no rule knows are held whole"
)

_SPLIT = re.compile(
    r"\.(?:[qo]_proj|qkv_proj|wqkv|q_b_proj|kv_b_proj|gate_proj|up_proj|down_proj|gate_up_proj|w[123]|fc[12]|fc0|"
    r"out_proj|in_proj_qkvz?|embed_tokens|wo)\.|(?:^|\.)lm_head\."
)
_KEYS = re.compile(r"\.[kv]_proj\.")
_EXPERT = re.compile(r"\.experts\.")
_ABSORBED = re.compile(r"\.kv_b_proj\.weight$")
_INDEXER = re.compile(r"\.indexer\.")
_ENDS = re.compile(r"(?:^|\.)(?:embed_tokens|lm_head)\.")


@dataclass(frozen=True)
class Layout:
    """How an engine spreads a model: sizes of its parallel groups, and what it leaves out."""

    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    expert_parallel: bool = False
    vision: bool = True
    vision_whole: bool = False


@dataclass(frozen=True)
class WeightShare:
    """Bytes on the GPU that holds most: ``split_bytes`` are its part of split tensors, ``whole_bytes`` are copies."""

    split_bytes: int
    whole_bytes: int
    left_out_bytes: int

    @property
    def total_bytes(self) -> int:
        """Bytes of weights on that GPU."""
        return self.split_bytes + self.whole_bytes


def weights_per_gpu(tensors: Mapping[str, Tensor], config: Mapping[str, Any], layout: Layout) -> WeightShare:
    """Return what the fullest GPU holds; with pipeline stages, one with the most layers and an end of the model."""
    text = text_config(config)
    layers = text.get("num_hidden_layers") or 0
    heads = text.get("num_key_value_heads") or text.get("num_attention_heads") or layout.tensor
    tied = bool(config.get("tie_word_embeddings", text.get("tie_word_embeddings")))
    split = whole = left_out = 0.0
    for name, tensor in tensors.items():
        number = layer_of(name)
        extra = number is not None and layers and number >= layers  # draft layers are loaded for speculation only
        if extra or (is_vision(name) and not layout.vision) or (tied and "lm_head." in name):
            left_out += tensor.size_bytes
            continue
        size = float(tensor.size_bytes) * _stage_share(name, number, layers, layout.pipeline)
        ranks = _ranks(name, int(heads), layout)
        if ranks > 1:
            split += size / ranks
        else:
            whole += size
        if _ABSORBED.search(name) and text.get("kv_lora_rank"):
            split += size / layout.tensor  # kept for prefill, and absorbed into W_UK and W_UV for decoding
    return WeightShare(int(split), int(whole), int(left_out))


def _stage_share(name: str, number: int | None, layers: int, stages: int) -> float:
    """Return which part of the tensor counts for the fullest pipeline stage."""
    if stages == 1:
        return 1.0
    if number is not None and layers:
        return -(-layers // stages) / layers
    return 0.5 if _ENDS.search(name) else 1.0


def _ranks(name: str, kv_heads: int, layout: Layout) -> int:
    """Return over how many ranks a tensor is split; 1 when each holds it whole."""
    if is_vision(name) and layout.vision_whole:
        return 1
    if _EXPERT.search(name) and "shared_experts" not in name:
        # With expert parallelism the experts spread over the data-parallel ranks as well.
        return layout.tensor * (layout.data if layout.expert_parallel else 1)
    if _INDEXER.search(name):
        return 1
    if _KEYS.search(name):
        return min(layout.tensor, max(1, kv_heads))
    return layout.tensor if _SPLIT.search(name) else 1
