"""Checkpoints for tests: real headers over data that is a hole in the file, so that size costs nothing."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansible_collections.llmops.vllm.plugins.module_utils.safetensors_header import DTYPE_BITS

Shapes = Mapping[str, tuple[str, tuple[int, ...]]]  # name to dtype and shape

LLAMA = {
    "architectures": ["LlamaForCausalLM"], "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2,
    "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 32, "vocab_size": 320,
}  # fmt: skip
LATENT = {
    "num_hidden_layers": 3, "num_attention_heads": 8, "hidden_size": 256, "vocab_size": 320, "q_lora_rank": 64,
    "kv_lora_rank": 512, "qk_rope_head_dim": 64, "n_routed_experts": 4,
}  # fmt: skip


def bf16(*shape: int) -> tuple[str, tuple[int, ...]]:
    return "BF16", shape


def mlp(at: str, hidden: int = 256, inner: int = 512) -> Shapes:
    return {
        f"{at}gate_proj.weight": bf16(inner, hidden),
        f"{at}up_proj.weight": bf16(inner, hidden),
        f"{at}down_proj.weight": bf16(hidden, inner),
    }


def llama(config: Mapping[str, Any] = LLAMA) -> dict[str, tuple[str, tuple[int, ...]]]:
    hidden, keys = config["hidden_size"], config["num_key_value_heads"] * config["head_dim"]
    tensors = {
        "model.embed_tokens.weight": bf16(config["vocab_size"], hidden),
        "model.norm.weight": bf16(hidden),
        "lm_head.weight": bf16(config["vocab_size"], hidden),
    }
    for number in range(config["num_hidden_layers"]):
        at = f"model.layers.{number}."
        tensors |= {
            f"{at}self_attn.q_proj.weight": bf16(hidden, hidden),
            f"{at}self_attn.k_proj.weight": bf16(keys, hidden),
            f"{at}self_attn.v_proj.weight": bf16(keys, hidden),
            f"{at}self_attn.o_proj.weight": bf16(hidden, hidden),
            f"{at}input_layernorm.weight": bf16(hidden),
            **mlp(f"{at}mlp."),
        }
    return tensors


def latent(config: Mapping[str, Any] = LATENT, prefix: str = "language_model.") -> dict[str, Any]:
    hidden = config["hidden_size"]
    tensors = {
        f"{prefix}model.embed_tokens.weight": bf16(config["vocab_size"], hidden),
        f"{prefix}lm_head.weight": bf16(config["vocab_size"], hidden),
        "vision_tower.encoder.layers.0.wqkv.weight": bf16(192, 64),
    }
    for number in range(config["num_hidden_layers"]):
        at = f"{prefix}model.layers.{number}."
        tensors |= {
            f"{at}self_attn.q_a_proj.weight": bf16(64, hidden),
            f"{at}self_attn.kv_a_proj_with_mqa.weight": bf16(576, hidden),
            f"{at}self_attn.q_b_proj.weight": bf16(1536, 64),
            f"{at}self_attn.kv_b_proj.weight": bf16(2048, 512),
            f"{at}self_attn.o_proj.weight": bf16(hidden, 1024),
            f"{at}self_attn.kv_a_layernorm.weight": bf16(512),
        }
        if number == 0:
            tensors |= mlp(f"{at}mlp.")
            continue
        tensors[f"{at}mlp.gate.weight"] = bf16(config["n_routed_experts"], hidden)
        for expert in range(config["n_routed_experts"]):
            tensors |= mlp(f"{at}mlp.experts.{expert}.", inner=64)
    return tensors


def write_shard(path: Path, tensors: Shapes) -> None:
    header, position = {}, 0
    for name, (dtype, shape) in tensors.items():
        count = 1
        for length in shape:
            count *= length
        size = count * DTYPE_BITS[dtype] // 8
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [position, position + size]}
        position += size
    text = json.dumps(header).encode()
    with path.open("wb") as stream:
        stream.write(struct.pack("<Q", len(text)) + text)
        stream.truncate(8 + len(text) + position)


def write_checkpoint(folder: Path, tensors: Shapes, shards: int = 1) -> dict[str, str]:
    """Write the tensors, over several shards with an index; return which file each is in."""
    folder.mkdir(exist_ok=True)
    if shards == 1:
        write_shard(folder / "model.safetensors", tensors)
        return dict.fromkeys(tensors, "model.safetensors")
    names, weight_map = list(tensors), {}
    for shard in range(shards):
        part = names[shard * len(names) // shards : (shard + 1) * len(names) // shards]
        file_name = f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
        write_shard(folder / file_name, {name: tensors[name] for name in part})
        weight_map |= dict.fromkeys(part, file_name)
    write_index(folder, weight_map)
    return weight_map


def write_index(folder: Path, weight_map: Mapping[str, str]) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
