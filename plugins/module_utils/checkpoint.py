# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A model's weights as its files describe them: every tensor of every shard, and what is wrong with the set.

Read from headers and index alone, so a checkpoint of half a terabyte takes a second. What is looked for is what an
engine finds late, words badly, or does not notice: a tensor that no shard holds, one half of a pair that the engine
fuses (it then serves uninitialised memory), fewer layers or experts than the configuration names.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.llmops.vllm.plugins.module_utils.safetensors_header import Tensor, read_shard

INDEX = "model.safetensors.index.json"
OTHER_FORMATS = (".bin", ".pt", ".pth", ".gguf", ".tensors")
SHOWN = 3  # of many like findings, so many are told in full

# What vLLM fuses into one parameter when it loads (packed_modules_mapping of its model classes). A part that is not
# there leaves its rows of the fused parameter as they were allocated.
FUSED = (
    ("q_proj", "k_proj", "v_proj"),
    ("gate_proj", "up_proj"),
    ("w1", "w3"),
    ("q_a_proj", "kv_a_proj_with_mqa"),
)
FUSED_SUFFIXES = (
    "weight", "qweight", "weight_packed", "weight_scale", "weight_scale_2", "weight_scale_inv", "scales", "qzeros",
)  # fmt: skip

_PART_OF = {part: group for group in FUSED for part in group}
_VISION = ("vision_tower.", "vision_model.", "visual.", "vit.", "mm_projector.", "multi_modal_projector.")
_UNPACKED = {"BF16", "F16", "F32"}


@dataclass(frozen=True)
class Problem:
    """Something wrong with the files: ``kind`` is a stable name, ``fatal`` whether no engine can serve it rightly."""

    kind: str
    fatal: bool
    what: str
    evidence: str


@dataclass(frozen=True)
class Checkpoint:
    """All tensors by name, the files they are in, and the problems found."""

    tensors: Mapping[str, Tensor]
    shards: tuple[str, ...]
    problems: tuple[Problem, ...] = field(default_factory=tuple)

    @property
    def total_bytes(self) -> int:
        """Bytes of all tensors' data."""
        return sum(tensor.size_bytes for tensor in self.tensors.values())


def text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the part of a model's configuration that describes its language model."""
    nested = config.get("text_config")
    return nested if isinstance(nested, Mapping) else config


def layer_of(name: str) -> int | None:
    """Return the number of the decoder layer that a tensor's name places it in; None for all others."""
    before, found, after = name.partition("layers.")
    number = after.partition(".")[0]
    return int(number) if found and number.isdigit() and not is_vision(before) else None


def is_vision(name: str) -> bool:
    """Whether the tensor belongs to a vision tower or its projector, by its name."""
    return any(part in name for part in _VISION)


def read_checkpoint(directory: str, config: Mapping[str, Any]) -> Checkpoint:
    """Read all headers in ``directory`` and hold them against index and configuration. Raises OSError.

    A checkpoint in another format than safetensors is returned empty and without problems: it is the engine's.
    """
    everything = sorted(os.listdir(directory))
    names = [name for name in everything if name.endswith(".safetensors")]
    weight_map, problems = _read_index(os.path.join(directory, INDEX))
    if not names and weight_map is None and not problems:
        if any(name.endswith(OTHER_FORMATS) for name in everything):
            return Checkpoint({}, ())
        what = "There are no weights."
        evidence = f"no file that ends in .safetensors or {', '.join(OTHER_FORMATS)}"
        return Checkpoint({}, (), (Problem("weights_missing", True, what, evidence),))
    if weight_map is not None:
        # What the index does not name is not loaded (vLLM: filter_duplicate_safetensors_files).
        loaded = set(weight_map.values())
        names = [name for name in names if name in loaded]
    shards = [read_shard(os.path.join(directory, name)) for name in names]
    for shard in shards:
        if shard.problem:
            what = f"The weights in {shard.name} cannot be loaded."
            problems.append(Problem("shard_damaged", True, what, f"{shard.name}: {shard.problem}"))
    found: dict[str, Tensor] = {}
    copies: dict[str, list[str]] = defaultdict(list)
    for shard in shards:
        for tensor in shard.tensors:
            copies[tensor.name].append(shard.name)
            found.setdefault(tensor.name, tensor)
    damaged = {shard.name for shard in shards if shard.problem}
    problems += _held_against_index(weight_map, copies, set(names), damaged)
    if not damaged and not any(problem.fatal for problem in problems):
        problems += [*missing_halves(found, config), *held_against_config(found, config)]
    return Checkpoint(found, tuple(names), tuple(problems))


def _read_index(path: str) -> tuple[dict[str, str] | None, list[Problem]]:
    """Return the index's map of tensor to file, or None where there is none (or no readable one, with the problem)."""
    try:
        with open(path, encoding="utf-8") as stream:
            weight_map = json.load(stream)["weight_map"]
        if isinstance(weight_map, dict) and all(isinstance(name, str) for name in weight_map.values()):
            return weight_map, []
        reason = "weight_map is no map of tensor names to file names"
    except FileNotFoundError:
        return None, []
    except OSError as error:
        reason = error.strerror or str(error)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        reason = f"{type(error).__name__}: {error}"
    what = f"The index of the weights, {INDEX}, cannot be read."
    return None, [Problem("index_damaged", True, what, f"{INDEX}: {reason}")]


def some(items: Sequence[str]) -> str:
    """Return a few of many items as text, and how many there are besides."""
    rest = len(items) - SHOWN
    return ", ".join(items[:SHOWN]) + (f" and {rest} more" if rest > 0 else "")


def _held_against_index(
    weight_map: Mapping[str, str] | None, copies: Mapping[str, list[str]], present: set[str], damaged: set[str]
) -> Iterator[Problem]:
    """Find files that are not there, tensors that are in no file or another one, and tensors that are in several."""
    wanted = weight_map or {}
    absent = sorted(set(wanted.values()) - present)
    if absent:
        what = "The index of the weights names files that are not there."
        yield Problem("shard_missing", True, what, f"{INDEX} names {some(absent)}")
    unreadable = {*absent, *damaged}
    lost = sorted(
        f"{name} ({shard})"
        for name, shard in wanted.items()
        if shard not in unreadable and shard not in copies.get(name, ())
    )
    if lost:
        what = "The index of the weights names tensors that are not in the file that it names."
        yield Problem("tensor_missing", True, what, some(lost))
    several = sorted(f"{name} ({', '.join(shards)})" for name, shards in copies.items() if len(shards) > 1)
    if several:
        what = "The weights hold tensors more than once; which copy is served depends on the order of loading."
        yield Problem("tensor_duplicate", False, what, some(several))


def missing_halves(tensors: Mapping[str, Tensor], config: Mapping[str, Any]) -> Iterator[Problem]:
    """Find tensors that lack a partner that the engine fuses them with."""
    lost = sorted(_lost_partners(tensors, text_config(config)))
    if lost:
        what = "Parts of fused weights are not in the checkpoint; the engine would serve uninitialised memory for them."
        yield Problem("fused_half_missing", True, what, some(lost))


def _lost_partners(tensors: Mapping[str, Tensor], text: Mapping[str, Any]) -> Iterator[str]:
    unfused = {
        "q_a_proj": not text.get("q_lora_rank"),
        "q_proj": bool(text.get("kv_lora_rank")) or _shares_keys(text),
    }
    for name in tensors:
        base, _dot, suffix = name.rpartition(".")
        parent, _dot, part = base.rpartition(".")
        group = _PART_OF.get(part, ())
        if not group or suffix not in FUSED_SUFFIXES or unfused.get(group[0]):
            continue
        for other in group:
            partner = f"{parent}.{other}.{suffix}"
            # A partner that is there in another form (not quantised, say) is the engine's to judge.
            if partner not in tensors and not any(f"{parent}.{other}.{form}" in tensors for form in FUSED_SUFFIXES):
                yield f"{partner} (its partner {name} is there)"


def _shares_keys(text: Mapping[str, Any]) -> bool:
    """Whether layers of the model take keys or values from elsewhere (Gemma 3n, Gemma 4) and need none of their own."""
    return bool(text.get("num_kv_shared_layers") or text.get("attention_k_eq_v"))


def held_against_config(tensors: Mapping[str, Tensor], config: Mapping[str, Any]) -> Iterator[Problem]:
    """Find layers, experts and shapes that the configuration names and the checkpoint does not have."""
    text = text_config(config)
    yield from _layers(tensors, text)
    yield from _experts(tensors, text)
    yield from _shapes(tensors, text)
    yield from _odd_layers(tensors)


def _layers(tensors: Mapping[str, Tensor], text: Mapping[str, Any]) -> Iterator[Problem]:
    wanted = text.get("num_hidden_layers")
    found = {number for number in map(layer_of, tensors) if number is not None}
    if not isinstance(wanted, int) or not found:
        return
    lost = [str(number) for number in range(wanted) if number not in found]
    if lost:
        what = "The checkpoint does not have all layers of its configuration."
        evidence = f"config.json: num_hidden_layers {wanted}; no tensor of layers {some(lost)}"
        yield Problem("layers_missing", True, what, evidence)


def _experts(tensors: Mapping[str, Tensor], text: Mapping[str, Any]) -> Iterator[Problem]:
    keys = ("n_routed_experts", "num_local_experts", "num_experts")
    key = next((key for key in keys if isinstance(text.get(key), int)), None)
    experts: dict[str, set[int]] = defaultdict(set)
    for name in tensors:
        place, found, after = name.partition(".experts.")
        number = after.partition(".")[0]
        if found and number.isdigit():
            experts[place].add(int(number))
    if key is None:
        return
    wanted = set(range(text[key]))
    wrong = sorted(place for place, held in experts.items() if layer_of(f"{place}.") is not None and held != wanted)
    if wrong:
        what = "The checkpoint has another number of experts than its configuration."
        counted = f"{len(experts[wrong[0]])} in {wrong[0]}"
        yield Problem("experts_mismatch", True, what, f"config.json: {key} {text[key]}; {counted}, {some(wrong)}")


def _shapes(tensors: Mapping[str, Tensor], text: Mapping[str, Any]) -> Iterator[Problem]:
    """Hold the shapes that every loader insists on against the configuration, and fused halves against each other."""
    vocabulary = (text.get("vocab_size"), text.get("hidden_size"))
    experts = (text.get("n_routed_experts"), text.get("hidden_size"))
    wrong = []
    for name, tensor in tensors.items():
        wanted: tuple[Any, ...] = ()
        if name.endswith(("model.embed_tokens.weight", "lm_head.weight")):
            wanted = vocabulary
        elif name.endswith(".mlp.gate.weight"):
            wanted = experts
        elif name.endswith(".gate_proj.weight"):
            partner = tensors.get(name.replace(".gate_proj.", ".up_proj."))
            wanted = partner.shape if partner and partner.dtype == tensor.dtype else ()
        if tensor.dtype not in _UNPACKED or not wanted or not all(isinstance(number, int) for number in wanted):
            continue
        if tensor.shape != tuple(wanted):
            wrong.append(f"{name} is {list(tensor.shape)}, wanted is {list(wanted)}")
    if wrong:
        what = "Weights have shapes that do not fit the configuration or one another."
        yield Problem("shape_mismatch", True, what, some(wrong))


def _odd_layers(tensors: Mapping[str, Tensor]) -> Iterator[Problem]:
    """Find a layer that alone lacks a weight of attention or norm that all others have."""
    holders: dict[str, set[int]] = defaultdict(set)
    layers: set[int] = set()
    for name in tensors:
        number = None if ".experts." in name else layer_of(name)
        if number is None:
            continue
        layers.add(number)
        tail = name.split(f"layers.{number}.", 1)[1]
        if tail.endswith(".weight") and (tail.startswith("self_attn.") or "norm" in tail):
            holders[tail].add(number)
    odd = [
        f"layer {min(layers - numbers)} has no {tail}"
        for tail, numbers in sorted(holders.items())
        if len(layers) > 3 and len(layers - numbers) == 1
    ]
    if odd:
        what = "A layer lacks weights that all other layers have."
        yield Problem("tensor_odd", False, what, some(odd))
