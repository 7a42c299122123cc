# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which of an installed vLLM's kernels take a model's experts on a GPU, as its source says.

The way is the engine's own: its configuration of the quantisation is made from the checkpoint's, asked for the method
of a layer of experts, and that method selects its kernels when it is made. No kind of quantisation is known here.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ansible_collections.llmops.vllm.plugins.module_utils.checkpoint import text_config
from ansible_collections.llmops.vllm.plugins.module_utils.engine_operations import text
from ansible_collections.llmops.vllm.plugins.module_utils.engine_reader import Reader
from ansible_collections.llmops.vllm.plugins.module_utils.engine_source import (
    Class,
    Function,
    Member,
    Record,
    Symbol,
    Unknown,
)
from ansible_collections.llmops.vllm.plugins.module_utils.engine_static import CannotTell, StaticEngine
from ansible_collections.llmops.vllm.plugins.module_utils.engine_syntax import Raised
from ansible_collections.llmops.vllm.plugins.module_utils.launch import Launch

QUANTIZATION = "vllm.model_executor.layers.quantization"
EXPERTS = "vllm.model_executor.layers.fused_moe"
LAYERS = (f"{EXPERTS}.RoutedExperts", f"{EXPERTS}.FusedMoE", f"{EXPERTS}.layer.FusedMoE")
UNQUANTIZED = (
    f"{EXPERTS}.UnquantizedFusedMoEMethod", f"{EXPERTS}.unquantized_fused_moe_method.UnquantizedFusedMoEMethod",
    f"{EXPERTS}.layer.UnquantizedFusedMoEMethod",
)  # fmt: skip
AITER = "vllm._aiter_ops.rocm_aiter_ops"
COMPRESSED = "compressed-tensors"
COMPRESSED_METHOD = f"{QUANTIZATION}.compressed_tensors.compressed_tensors_moe"
PLACES = ("compressed_tensors", "compressed_tensors.config", "compressed_tensors.quantization")
SELECTOR = re.compile(r"select_(\w+_)?moe_backend")
COUNTS = ("n_routed_experts", "num_experts", "num_local_experts", "moe_num_experts")
EXCEPTIONS = ("ignore", "exclude_modules", "ignored_layers", "modules_to_not_convert")
REFUSALS = frozenset(("ValueError", "NotImplementedError", "RuntimeError"))
# What a model's class gives its experts, with a bias, and config.json does not tell.
ACTIVATIONS = {"gpt_oss": "swigluoai"}
EXPERTS_PREFIX = "model.layers.1.mlp.experts"
# The words of the format of compressed-tensors, which a package of its own has the names for.
FORMAT = """
class QuantizationStrategy(str, Enum):
    TENSOR = "tensor"
    CHANNEL = "channel"
    GROUP = "group"
    BLOCK = "block"
    TOKEN = "token"
    TENSOR_GROUP = "tensor_group"
    ATTN_HEAD = "attn_head"

class QuantizationType(str, Enum):
    INT = "int"
    FLOAT = "float"

class ActivationOrdering(str, Enum):
    GROUP = "group"
    WEIGHT = "weight"
    DYNAMIC = "dynamic"
    STATIC = "static"

class CompressionFormat(str, Enum):
    dense = "dense"
    pack_quantized = "pack-quantized"
    int_quantized = "int-quantized"
    naive_quantized = "naive-quantized"
    float_quantized = "float-quantized"
    nvfp4_pack_quantized = "nvfp4-pack-quantized"
    mxfp4_pack_quantized = "mxfp4-pack-quantized"
    mxfp8_quantized = "mxfp8-quantized"

class QuantizationArgs:
    pass
"""


def count_of_experts(config: Mapping[str, Any]) -> int:
    """Return how many experts each layer has that has any, 0 for a model without."""
    model = text_config(config)
    return next((int(model[name]) for name in COUNTS if isinstance(model.get(name), int)), 0)


class Selected(Exception):
    """The engine has selected: ``value`` is what its selector returned, or the error that it raised."""

    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = value


class SelectingReader(Reader):
    """Follows the source as far as the engine's selector of kernels for experts."""

    def call(self, function: Any, arguments: Sequence[Any], named: Mapping[str, Any]) -> Any:
        """Return what a call leads to. Raises Selected, for a selector that raises an error too."""
        node = function.node if isinstance(function, Function) else None
        if not isinstance(node, ast.FunctionDef) or not SELECTOR.fullmatch(node.name):
            return super().call(function, arguments, named)
        try:
            found = super().call(function, arguments, named)
        except Raised as error:
            found = error
        raise Selected(found)


def experts(engine: StaticEngine, method: str) -> dict[str, Any]:
    """Return which backends may take the experts: ``possible`` and ``reasons`` against all.

    ``method`` is the quantisation by the engine's name, empty for none. Raises CannotTell.
    """
    reader = SelectingReader(engine.package, {**engine.reader.given, **_given(engine)}, engine.reader.present)
    possible, reasons = [], []
    for answer in reader.outcomes(lambda: _selection(engine, reader, method)):
        chosen = _chosen(answer)
        if isinstance(chosen, Member):
            possible.append(chosen.name)
        elif isinstance(chosen, Raised) and chosen.kind in REFUSALS:
            reasons.append(chosen.message)
        else:
            raise CannotTell(chosen.why if isinstance(chosen, Unknown) else text(chosen))
    return {"possible": list(dict.fromkeys(possible)), "reasons": list(dict.fromkeys(reasons))}


def _chosen(answer: Any) -> Any:
    """Return what the selector returned first, or raised; where it was not reached, Unknown with what came instead.

    An error on the way there is the engine's to tell, or comes of what is not known here.
    """
    if isinstance(answer, Selected):
        return answer.value[0] if isinstance(answer.value, tuple) and answer.value else answer.value
    if isinstance(answer, Record) and answer.kind is not None:
        return Unknown(f"{answer.kind.node.name} of this version selects none")
    return answer if isinstance(answer, Unknown) else Unknown(text(answer))


def _given(engine: StaticEngine) -> dict[str, Any]:
    """Return what stands for other packages: nothing happens in PyTorch's classes, and formats have their words."""
    found: dict[str, Any] = {
        "vllm.model_executor.custom_op.CustomOp.__init__": lambda *_values, **_named: None,
        "copy.deepcopy": lambda value: value,
        # The layer that is asked about is one that is quantised like the others.
        f"{QUANTIZATION}.utils.quant_utils.is_layer_skipped": lambda *_values, **_named: False,
    }
    found.update((name, lambda *_values, **_named: False) for name in _of_other_platforms(engine))
    words = engine.package.read_tree("compressed_tensors", ast.parse(FORMAT), "compressed_tensors")
    for node in words.tree.body:
        if isinstance(node, ast.ClassDef):
            found.update((f"{place}.{node.name}", engine.package.class_of(words, node)) for place in PLACES)
    return found


def _of_other_platforms(engine: StaticEngine) -> Iterator[str]:
    """Return the questions that the engine answers with no on every platform but ROCm."""
    kind = engine.reader.named(AITER)
    for node in kind.node.body if isinstance(kind, Class) else ():
        decorators = node.decorator_list if isinstance(node, ast.FunctionDef) else []
        if isinstance(node, ast.FunctionDef) and any(ast.unparse(one) == "if_aiter_supported" for one in decorators):
            yield f"{AITER}.{node.name}"


def _selection(engine: StaticEngine, reader: Reader, method: str) -> Any:
    """Follow the engine to its selector, and return that it has Selected; else the method that was made without one."""
    layer = layer_of_experts(engine, reader)
    try:
        if not method:
            return reader.call(_first(reader, UNQUANTIZED), (layer.attributes["moe_config"],), {})
        found = _scheme(engine)
        kind = reader.call(reader.named(f"{QUANTIZATION}.get_quantization_config"), (method,), {})
        if method == COMPRESSED:
            return _compressed(reader, kind, found, layer)
        made = reader.call(reader.attribute(kind, "from_config"), (found,), {})
        return reader.call(reader.attribute(made, "get_quant_method"), (layer, EXPERTS_PREFIX), {})
    except Selected as selected:
        return selected


def _scheme(engine: StaticEngine) -> dict[str, Any]:
    """Return the checkpoint's quantisation as the engine words it, of experts that are quantised. Raises CannotTell."""
    found = dict(engine.normalised()[1] or {})
    if not found:
        raise CannotTell("the weights are quantised while they are loaded")
    left_out = [str(one) for name in EXCEPTIONS for one in found.get(name) or ()]
    if found.get("dynamic") or any("experts" in one and "shared_experts" not in one for one in left_out):
        raise CannotTell("the checkpoint leaves some experts out of its quantisation")
    return {name: [] if name in EXCEPTIONS else value for name, value in found.items()}


def _first(reader: Reader, names: tuple[str, ...]) -> Class:
    for name in names:
        found = _class(reader, name)
        if found is not None:
            return found
    raise CannotTell(f"the source has no {names[0].rpartition('.')[2]}")


def layer_of_experts(engine: StaticEngine, reader: Reader) -> Record:
    """Return a layer of experts as far as a method for it looks at one."""
    moe = _experts_config(engine)
    parallel = moe.attributes["moe_parallel_config"].attributes
    given = {
        "moe_config": moe, "hidden_size": moe.attributes["hidden_dim"], "activation": moe.attributes["activation"],
        "intermediate_size_per_partition": moe.attributes["intermediate_size_per_partition"],
        "apply_router_weight_on_input": False, "tp_size": parallel["tp_size"], "use_ep": parallel["use_ep"],
        "ckpt_gate_proj_name": "gate_proj", "ckpt_up_proj_name": "up_proj", "ckpt_down_proj_name": "down_proj",
    }  # fmt: skip
    return Record(given, _first(reader, LAYERS))


def _compressed(reader: Reader, kind: Any, found: Mapping[str, Any], layer: Record) -> Any:
    """Follow the engine for a checkpoint of compressed-tensors with one scheme, which its own package would read."""
    schemes = [one for one in dict(found.get("config_groups") or {}).values() if isinstance(one, Mapping)]
    if len(schemes) != 1 or not isinstance(kind, Class):
        raise CannotTell(f"the checkpoint has {len(schemes)} schemes of quantisation")
    scheme = {
        "format": schemes[0].get("format") or found.get("format"),
        **{name: _arguments(reader, schemes[0].get(name)) for name in ("weights", "input_activations")},
    }
    quantization = Record({"get_scheme_dict": lambda *_values, **_named: scheme, "target_scheme_map": {}}, kind)
    method = reader.named(f"{COMPRESSED_METHOD}.CompressedTensorsMoEMethod")
    return reader.call(reader.attribute(method, "get_moe_method"), (quantization, layer, EXPERTS_PREFIX), {})


def _arguments(reader: Reader, scheme: Any) -> Record | None:
    """Return one part of a scheme of compressed-tensors as the object that its package makes of it."""
    if not isinstance(scheme, Mapping):
        return None
    given = {"actorder": None, "group_size": None, "symmetric": True, "dynamic": False, "type": "int", **scheme}
    for name, kind in (("strategy", "QuantizationStrategy"), ("type", "QuantizationType")):
        words = reader.given[f"{PLACES[0]}.{kind}"]
        if isinstance(given.get(name), str):
            given[name] = reader.attribute(words, given[name].upper())
    return Record(given, reader.given[f"{PLACES[0]}.QuantizationArgs"])


def _experts_config(engine: StaticEngine) -> Record:
    """Return the engine's description of the experts as far as it follows from model and launch."""
    launch, model, reader = engine.subject.launch, text_config(engine.subject.config), engine.reader
    parallel = _ranks(launch)
    named = ACTIVATIONS.get(str(model.get("model_type")))
    activation = named or str(model.get("hidden_act") or "silu")
    activations = reader.named(f"{EXPERTS}.activation.MoEActivation")
    if isinstance(activations, Class):
        activation = reader.attribute(activations, activation.upper())
    width, hidden, count = width_of_experts(model), model.get("hidden_size"), count_of_experts(engine.subject.config)
    share = width // parallel["tp_size"] if width else Unknown("the experts' width")
    return Record(
        {
            "moe_backend": launch.text("moe-backend").replace("-", "_") or "auto", "activation": activation,
            "moe_parallel_config": Record(parallel, _class(reader, f"{EXPERTS}.config.FusedMoEParallelConfig")),
            "is_act_and_mul": True, "swiglu_limit": model.get("swiglu_limit"), "is_lora_enabled": False,
            "has_hash_routing": False, "require_decomposed_backend": False, "has_bias": bool(named),
            "router_logits_dtype": None, "in_dtype": Symbol(f"torch.{engine.subject.dtype}"),
            "hidden_dim": hidden, "hidden_dim_unpadded": hidden, "intermediate_size": width or Unknown("width"),
            "intermediate_size_per_partition": share, "intermediate_size_per_partition_unpadded": share,
            "num_experts": count, "num_logical_experts": count, "num_local_experts": count // parallel["ep_size"],
        },
        _class(reader, f"{EXPERTS}.config.FusedMoEConfig"),
    )  # fmt: skip


def _ranks(launch: Launch) -> dict[str, Any]:
    """Return how the experts are spread: by whole experts, or each over all ranks, by the engine's names."""
    ranks = launch.count("tensor-parallel-size") * launch.count("data-parallel-size")
    together = launch.is_set("enable-expert-parallel")
    return {
        "tp_size": 1 if together else ranks, "ep_size": ranks if together else 1, "use_ep": together,
        "dp_size": launch.count("data-parallel-size"), "pcp_size": 1, "sp_size": 1, "is_sequence_parallel": False,
        "enable_eplb": launch.is_set("enable-eplb"),
        "all2all_backend": launch.text("all2all-backend") or "allgather_reducescatter",
    }  # fmt: skip


def _class(reader: Reader, name: str) -> Class | None:
    found = reader.named(name)
    return found if isinstance(found, Class) else None


def width_of_experts(model: Mapping[str, Any]) -> int:
    """Return the intermediate size of one expert, 0 where config.json does not tell."""
    return int(model.get("moe_intermediate_size") or model.get("intermediate_size") or 0)
