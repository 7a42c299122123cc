#!/usr/bin/env python3
# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write small models with random weights that the real vLLM serves: same architecture, same files, no knowledge.

usage: tiny_models.py DESTINATION

Needs nothing but the standard library, so that a rehearsal need not install PyTorch on the controller. Makes
  tiny-kimi-k2.5-nvfp4   KimiK25ForConditionalGeneration (MLA, MoE, vision tower), 8 attention heads, and 119 shards as
                         the real one has; its config.json and hf_quant_config.json ask for an FP8 KV cache, as NVIDIA's
                         checkpoints do
  tiny-llama             LlamaForCausalLM, 8 attention heads, 1 shard
  tiny-llama-nan         the same, with a last norm that is NaN: it loads, and computes nothing but NaN
The output is the same, byte for byte, every time.
"""

from __future__ import annotations

import array
import json
import random
import struct
import sys
from pathlib import Path
from typing import Any

SPECIAL_TOKENS = [
    "[BOS]", "[EOS]", "[PAD]", "<|im_user|>", "<|im_assistant|>", "<|im_system|>", "<|im_middle|>", "<|im_end|>",
    "<|media_begin|>", "<|media_content|>", "<|media_pad|>", "<|media_end|>", "<|kimi_k25_video_placeholder|>",
    "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>", "<|tool_call_argument_begin|>",
    "<|tool_call_end|>", "<think>", "</think>",
]  # fmt: skip
BIGRAMS = (
    "th he in er an re on at en nd ti es or te of ed is it al ar st to nt ng se ha as ou io le ve co me de hi ri ro ic"
)
CHAT_TEMPLATE = (
    "{%- for message in messages -%}<|im_{{ message.role }}|>{{ message.role }}<|im_middle|>"
    "{%- if message.content is string -%}{{ message.content }}{%- else -%}{%- for part in message.content -%}"
    "{%- if part.type == 'text' -%}{{ part.text }}"
    "{%- else -%}<|media_begin|>image<|media_content|><|media_pad|><|media_end|>{%- endif -%}"
    "{%- endfor -%}{%- endif -%}<|im_end|>{%- endfor -%}"
    "{%- if add_generation_prompt -%}<|im_assistant|>assistant<|im_middle|>{%- endif -%}"
)
VOCABULARY_SIZE = 320
Tensor = tuple[str, tuple[int, ...], bytes]  # dtype, shape, little-endian data


class Weights:
    """Makes tensors from one seeded stream of random numbers."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        gauss = self._random.gauss
        self._pool = array.array("f", (gauss(0.0, 1.0) for _ in range(1 << 16)))

    def normal(self, *shape: int, deviation: float = 0.02) -> Tensor:
        """A bfloat16 tensor: the upper half of each float32 of a shuffled pool of normal deviates."""
        count = 1
        for length in shape:
            count *= length
        pool, start = self._pool, self._random.randrange(len(self._pool))
        scaled = array.array("f", (deviation * value for value in pool[start:] + pool[:start])).tobytes()
        half = bytearray(len(scaled) // 2)
        half[0::2], half[1::2] = scaled[2::4], scaled[3::4]
        return "BF16", shape, bytes((half * (2 * count // len(half) + 1))[: 2 * count])

    @staticmethod
    def ones(length: int) -> Tensor:
        """A bfloat16 vector of ones."""
        return "BF16", (length,), b"\x80\x3f" * length

    @staticmethod
    def not_a_number(length: int) -> Tensor:
        """A bfloat16 vector of NaN."""
        return "BF16", (length,), b"\xc0\x7f" * length

    @staticmethod
    def zeros(length: int, dtype: str = "BF16") -> Tensor:
        """A vector of zeros."""
        return dtype, (length,), bytes(length * (4 if dtype == "F32" else 2))


def write_json(path: Path, content: Any) -> None:
    """Write ``content`` in the layout that hub repositories use."""
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def byte_alphabet() -> list[str]:
    """The 256 printable stand-ins of byte-level BPE (the table of GPT-2's encoder.py), in byte order."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    shifted = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(shifted)) for byte in range(256)]


def write_tokenizer(folder: Path) -> None:
    """Write a byte-level BPE tokenizer with the special tokens of Kimi K2.5 and a chat template."""
    tokens = [*SPECIAL_TOKENS, *byte_alphabet(), *BIGRAMS.split()]
    tokens += [f"<|reserved_{index}|>" for index in range(VOCABULARY_SIZE - len(tokens))]
    added = [(i, t) for i, t in enumerate(tokens) if t in SPECIAL_TOKENS or t.startswith("<|reserved_")]
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    model = {
        "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
        "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
        "vocab": {token: index for index, token in enumerate(tokens)},
        "merges": [list(pair) for pair in BIGRAMS.split()],
    }  # fmt: skip
    write_json(folder / "tokenizer.json", {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [{"id": i, "content": t, "special": "think" not in t} | flags for i, t in added],
        "normalizer": None, "pre_tokenizer": level, "post_processor": None, "decoder": level, "model": model,
    })  # fmt: skip
    write_json(folder / "tokenizer_config.json", {
        "tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 4096, "bos_token": "[BOS]",
        "eos_token": "[EOS]", "pad_token": "[PAD]", "chat_template": CHAT_TEMPLATE,
    })  # fmt: skip
    write_json(folder / "generation_config.json", {"bos_token_id": 0, "eos_token_id": [1, 7], "pad_token_id": 2})


def write_safetensors(path: Path, tensors: dict[str, Tensor]) -> int:
    """Write one file in the safetensors format (8-byte header length, JSON header, data); return the data's size."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, _, data in tensors.values():
            file.write(data)
    return offset


def write_shards(folder: Path, tensors: dict[str, Tensor], count: int) -> None:
    """Spread the tensors over ``count`` shards and write their index."""
    if count == 1:
        write_safetensors(folder / "model.safetensors", tensors)
        return
    names, weight_map, total = list(tensors), {}, 0
    for shard in range(count):
        file_name = f"model-{shard + 1:05d}-of-{count:05d}.safetensors"
        part = names[shard * len(names) // count : (shard + 1) * len(names) // count]
        total += write_safetensors(folder / file_name, {name: tensors[name] for name in part})
        weight_map |= dict.fromkeys(part, file_name)
    write_json(folder / "model.safetensors.index.json", {"metadata": {"total_size": total}, "weight_map": weight_map})


def llama_config() -> dict[str, Any]:
    """A Llama with 2 layers and 8 heads; head_dim 32 is the least that vLLM's CPU attention takes."""
    return {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 256, "intermediate_size": 512,
        "num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 32,
        "vocab_size": VOCABULARY_SIZE, "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
        "hidden_act": "silu", "tie_word_embeddings": False, "bos_token_id": 0, "eos_token_id": 1, "dtype": "bfloat16",
    }  # fmt: skip


def llama_tensors(config: dict[str, Any], weights: Weights) -> dict[str, Tensor]:
    """All tensors of ``llama_config``."""
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    keys = config["num_key_value_heads"] * config["head_dim"]
    tensors = embedding_tensors("", hidden, weights)
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}."
        tensors |= {
            f"{at}self_attn.q_proj.weight": weights.normal(hidden, hidden),
            f"{at}self_attn.k_proj.weight": weights.normal(keys, hidden),
            f"{at}self_attn.v_proj.weight": weights.normal(keys, hidden),
            f"{at}self_attn.o_proj.weight": weights.normal(hidden, hidden),
            f"{at}input_layernorm.weight": weights.ones(hidden),
            f"{at}post_attention_layernorm.weight": weights.ones(hidden),
        }
        tensors |= mlp_tensors(f"{at}mlp.", hidden, inner, weights)
    return tensors


def embedding_tensors(prefix: str, hidden: int, weights: Weights) -> dict[str, Tensor]:
    """Input embedding, last norm and output head."""
    return {
        f"{prefix}model.embed_tokens.weight": weights.normal(VOCABULARY_SIZE, hidden, deviation=1.0),
        f"{prefix}model.norm.weight": weights.ones(hidden),
        f"{prefix}lm_head.weight": weights.normal(VOCABULARY_SIZE, hidden),
    }


def mlp_tensors(at: str, hidden: int, inner: int, weights: Weights) -> dict[str, Tensor]:
    """A gated feed-forward block."""
    return {
        f"{at}gate_proj.weight": weights.normal(inner, hidden),
        f"{at}up_proj.weight": weights.normal(inner, hidden),
        f"{at}down_proj.weight": weights.normal(hidden, inner),
    }


def kimi_text_config() -> dict[str, Any]:
    """DeepSeek-V3's text model, small; kv_lora_rank 512 + rope 64 is what vLLM's MLA kernels insist on."""
    return {
        "model_type": "kimi_k2", "hidden_size": 256, "intermediate_size": 256, "moe_intermediate_size": 64,
        "num_hidden_layers": 3, "first_k_dense_replace": 1, "moe_layer_freq": 1, "num_attention_heads": 8,
        "num_key_value_heads": 8, "q_lora_rank": 64, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64, "v_head_dim": 128, "n_routed_experts": 8, "n_shared_experts": 1,
        "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1, "norm_topk_prob": True, "routed_scaling_factor": 2.5,
        "scoring_func": "sigmoid", "topk_method": "noaux_tc", "num_nextn_predict_layers": 0, "hidden_act": "silu",
        "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "max_position_embeddings": 2048, "vocab_size": VOCABULARY_SIZE,
        "tie_word_embeddings": False, "attention_bias": False, "bos_token_id": 0, "eos_token_id": 1,
        "dtype": "bfloat16",
    }  # fmt: skip


def kimi_config() -> dict[str, Any]:
    """Kimi K2.5 with the quantization block of NVIDIA's NVFP4 checkpoint, every module ignored: weights stay BF16."""
    return {
        "architectures": ["KimiK25ForConditionalGeneration"], "model_type": "kimi_k25",
        "text_config": kimi_text_config(),
        "vision_config": {
            "model_type": "kimi_k25_vision", "patch_size": 14, "pos_emb_height": 16, "pos_emb_width": 16,
            "pos_emb_time": 4, "num_attention_heads": 2, "num_hidden_layers": 2, "hidden_size": 64,
            "intermediate_size": 128, "merge_kernel_size": [2, 2],
        },
        "projection_hidden_size": 64, "image_token_id": 10, "media_placeholder_token_id": 10, "video_token_id": 12,
        "vision_start_token_id": 8, "vision_end_token_id": 11, "tie_word_embeddings": False,
        "use_unified_vision_chunk": True, "dtype": "bfloat16", "bos_token_id": 0, "eos_token_id": 1,
        "quantization_config": {
            "quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16, "ignore": ["*"],
            "exclude_modules": ["*"], "kv_cache_scheme": {"dynamic": False, "num_bits": 8, "type": "float"},
            "kv_cache_quant_algo": "FP8", "producer": {"name": "modelopt", "version": "0.41.0"},
        },
    }  # fmt: skip


def kimi_tensors(config: dict[str, Any], weights: Weights) -> dict[str, Tensor]:
    """All tensors of ``kimi_config``: text model, vision tower, projector."""
    text, vision = config["text_config"], config["vision_config"]
    tensors = embedding_tensors("language_model.", text["hidden_size"], weights)
    for layer in range(text["num_hidden_layers"]):
        tensors |= kimi_layer(f"language_model.model.layers.{layer}.", layer, text, weights)
    return tensors | vision_tensors(vision, text["hidden_size"], weights)


def kimi_layer(at: str, layer: int, text: dict[str, Any], weights: Weights) -> dict[str, Tensor]:
    """Multi-head latent attention, then a dense block or routed experts."""
    hidden, heads, latent = text["hidden_size"], text["num_attention_heads"], text["kv_lora_rank"]
    nope, rope, value, query = (
        text["qk_nope_head_dim"],
        text["qk_rope_head_dim"],
        text["v_head_dim"],
        text["q_lora_rank"],
    )
    tensors = {
        f"{at}self_attn.q_a_proj.weight": weights.normal(query, hidden),
        f"{at}self_attn.q_a_layernorm.weight": weights.ones(query),
        f"{at}self_attn.q_b_proj.weight": weights.normal(heads * (nope + rope), query),
        f"{at}self_attn.kv_a_proj_with_mqa.weight": weights.normal(latent + rope, hidden),
        f"{at}self_attn.kv_a_layernorm.weight": weights.ones(latent),
        f"{at}self_attn.kv_b_proj.weight": weights.normal(heads * (nope + value), latent),
        f"{at}self_attn.o_proj.weight": weights.normal(hidden, heads * value),
        f"{at}input_layernorm.weight": weights.ones(hidden),
        f"{at}post_attention_layernorm.weight": weights.ones(hidden),
    }
    if layer < text["first_k_dense_replace"]:
        return tensors | mlp_tensors(f"{at}mlp.", hidden, text["intermediate_size"], weights)
    inner, experts = text["moe_intermediate_size"], text["n_routed_experts"]
    tensors[f"{at}mlp.gate.weight"] = weights.normal(experts, hidden)
    tensors[f"{at}mlp.gate.e_score_correction_bias"] = weights.zeros(experts, "F32")
    tensors |= mlp_tensors(f"{at}mlp.shared_experts.", hidden, inner * text["n_shared_experts"], weights)
    for expert in range(experts):
        tensors |= mlp_tensors(f"{at}mlp.experts.{expert}.", hidden, inner, weights)
    return tensors


def vision_tensors(vision: dict[str, Any], text_hidden: int, weights: Weights) -> dict[str, Tensor]:
    """MoonViT3d and the projector into the text model."""
    hidden, inner, patch = vision["hidden_size"], vision["intermediate_size"], vision["patch_size"]

    def norm(name: str, length: int) -> dict[str, Tensor]:
        return {f"{name}.weight": weights.ones(length), f"{name}.bias": weights.zeros(length)}

    def linear(name: str, rows: int, columns: int) -> dict[str, Tensor]:
        return {f"{name}.weight": weights.normal(rows, columns), f"{name}.bias": weights.zeros(rows)}

    tensors = {
        "vision_tower.patch_embed.proj.weight": weights.normal(hidden, 3, patch, patch),
        "vision_tower.patch_embed.proj.bias": weights.zeros(hidden),
        "vision_tower.patch_embed.pos_emb.weight": weights.normal(
            vision["pos_emb_height"], vision["pos_emb_width"], hidden
        ),
    }
    for block in range(vision["num_hidden_layers"]):
        at = f"vision_tower.encoder.blocks.{block}."
        tensors |= norm(f"{at}norm0", hidden) | norm(f"{at}norm1", hidden)
        tensors |= linear(f"{at}mlp.fc0", inner, hidden) | linear(f"{at}mlp.fc1", hidden, inner)
        tensors |= linear(f"{at}wqkv", 3 * hidden, hidden) | linear(f"{at}wo", hidden, hidden)
    tensors |= norm("vision_tower.encoder.final_layernorm", hidden) | norm("mm_projector.pre_norm", hidden)
    merged = 4 * hidden
    return tensors | linear("mm_projector.proj.0", merged, merged) | linear("mm_projector.proj.2", text_hidden, merged)


def write_kimi(folder: Path) -> None:
    """Write the Kimi-shaped model."""
    folder.mkdir(parents=True)
    write_tokenizer(folder)
    config = kimi_config()
    write_json(folder / "config.json", config)
    write_json(folder / "hf_quant_config.json", {
        "producer": {"name": "modelopt", "version": "0.41.0"},
        "quantization": {
            "quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8", "group_size": 16, "exclude_modules": ["*"],
        },
    })  # fmt: skip
    write_json(folder / "preprocessor_config.json", {"media_proc_cfg": {
        "in_patch_limit": 64, "patch_size": 14, "image_mean": [0.5] * 3, "image_std": [0.5] * 3,
        "merge_kernel_size": 2, "fixed_output_tokens": None, "patch_limit_on_one_side": 16,
        "in_patch_limit_each_frame": 64, "in_patch_limit_video": None, "sample_fps": 2.0,
        "max_num_frames_each_video": None, "temporal_merge_kernel_size": 4, "timestamp_mode": "hh:mm:ss.fff",
    }})  # fmt: skip
    write_shards(folder, kimi_tensors(config, Weights(seed=25)), 119)


def write_llama(folder: Path, broken: bool = False) -> None:
    """Write the Llama-shaped model, or one that computes nothing but NaN."""
    folder.mkdir(parents=True)
    write_tokenizer(folder)
    config = llama_config()
    write_json(folder / "config.json", config)
    tensors = llama_tensors(config, Weights(seed=1))
    if broken:
        tensors["model.norm.weight"] = Weights.not_a_number(config["hidden_size"])
    write_shards(folder, tensors, 1)


def main() -> None:
    """Write the models below the folder given."""
    destination = Path(sys.argv[1])
    write_kimi(destination / "tiny-kimi-k2.5-nvfp4")
    write_llama(destination / "tiny-llama")
    write_llama(destination / "tiny-llama-nan", broken=True)


if __name__ == "__main__":
    main()
