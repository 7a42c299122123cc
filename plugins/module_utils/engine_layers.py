# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether the layers of an installed vLLM can be spread over the ranks of a launch, as its source says.

Layers with a model's sizes are made as the engine makes them, up to their first tensor: on the way they divide
vocabulary, heads and widths by the ranks, and blocks of quantised weights by what is left of those.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ansible_collections.llmops.vllm.plugins.module_utils.checkpoint import text_config
from ansible_collections.llmops.vllm.plugins.module_utils.engine_experts import (
    EXCEPTIONS,
    EXPERTS_PREFIX,
    QUANTIZATION,
    count_of_experts,
    layer_of_experts,
    width_of_experts,
)
from ansible_collections.llmops.vllm.plugins.module_utils.engine_reader import Reader
from ansible_collections.llmops.vllm.plugins.module_utils.engine_source import Class, Function, Symbol, Unknown
from ansible_collections.llmops.vllm.plugins.module_utils.engine_static import StaticEngine, head_size, is_latent
from ansible_collections.llmops.vllm.plugins.module_utils.engine_syntax import Raised, Unreadable
from ansible_collections.llmops.vllm.plugins.module_utils.launch import plain_name

LAYERS = "vllm.model_executor.layers"
EMBEDDING = f"{LAYERS}.vocab_parallel_embedding.VocabParallelEmbedding"
HEADS = f"{LAYERS}.linear.QKVParallelLinear"
COLUMNS = f"{LAYERS}.linear.MergedColumnParallelLinear"
ROWS = f"{LAYERS}.linear.RowParallelLinear"
EXPERTS = (f"{LAYERS}.fused_moe.layer.FusedMoEFactory", f"{LAYERS}.fused_moe.layer.FusedMoE")
ACTIVATIONS = f"{LAYERS}.fused_moe.activation.MoEActivation"
FP8_SELECTOR = f"{LAYERS}.fused_moe.oracle.fp8.select_fp8_moe_backend"
STAGES = "vllm.distributed.utils.get_pp_indices"
GROUPS = ("vllm.distributed", "vllm.distributed.parallel_state")
OBJECTIONS = frozenset(("AssertionError", "ValueError"))
# Where the sizes of a layer have been taken: its weights come next.
TAKEN = (Symbol("torch.empty"), Symbol("torch.zeros"), Symbol("torch.nn.Parameter"))
WEIGHTS, EXPERTS_CONFIG = "create_weights", "FusedMoEConfig"
# What spreads a model over ranks.
SPREADING = frozenset(
    ("tensor-parallel-size", "pipeline-parallel-size", "data-parallel-size", "decode-context-parallel-size",
     "enable-expert-parallel", "enable-eplb", "eplb-config")
)  # fmt: skip


class Made(Exception):
    """A layer has come to its weights."""


class MakingReader(Reader):
    """Follows the making of a layer as far as its first weights; ``stops`` are functions that end it before."""

    stops: Sequence[str] = (WEIGHTS,)

    def call(self, function: Any, arguments: Sequence[Any], named: Mapping[str, Any]) -> Any:
        """Return what a call leads to. Raises Made."""
        if function in TAKEN or (isinstance(function, Function) and getattr(function.node, "name", "") in self.stops):
            raise Made
        found = super().call(function, arguments, named)
        if isinstance(function, Class) and function.node.name == EXPERTS_CONFIG:
            check = self.attribute(found, "__post_init__")
            if isinstance(check, Function):
                super().call(check, (), {})
            raise Made
        return found


Question = Callable[[MakingReader], Any]


def layers(engine: StaticEngine, method: str) -> dict[str, str]:
    """Return what the engine says against spreading a kind of layer over the ranks, by the kind.

    ``method`` is the quantisation by the engine's name, empty for none. An objection that one rank would meet as well
    is none: then something stood in the way that this reading does not know of.
    """
    launch = engine.subject.launch
    alone = {name: value for name, value in launch.arguments.items() if plain_name(name) not in SPREADING}
    single = StaticEngine(engine.package, replace(engine.subject, launch=replace(launch, arguments=alone)))
    found, without = {}, _questions(single, method)
    for kind, question in _questions(engine, method).items():
        objection = _objection(engine, question)
        if objection is not None and (kind not in without or _objection(single, without[kind]) is None):
            found[kind] = objection or f"not divisible by {launch.count('tensor-parallel-size')} ranks"
    return found


def _objection(engine: StaticEngine, question: Question) -> str | None:
    """Return the engine's objection, when it has one whatever way it goes; else None."""
    reader = MakingReader(engine.package, dict(engine.reader.given), engine.reader.present)
    reader.given.update(_given(engine, reader))

    def ask() -> Any:
        try:
            return question(reader)
        except Made:
            return None

    answers = reader.outcomes(ask)
    # Other errors are met where the way forked at something that is not known here.
    objections = [one.message for one in answers if isinstance(one, Raised) and one.kind in OBJECTIONS]
    if not objections or not all(isinstance(answer, Raised) for answer in answers):
        return None
    return "; ".join(dict.fromkeys(message for message in objections if message not in ("", "?")))


def _given(engine: StaticEngine, reader: Reader) -> dict[str, Any]:
    ranks = engine.subject.launch.count("tensor-parallel-size")

    def nothing(*_values: Any, **_named: Any) -> None:
        return None

    return {
        "vllm.model_executor.custom_op.CustomOp.__init__": nothing,
        "vllm.model_executor.custom_op.PluggableLayer.__init__": nothing,
        f"{QUANTIZATION}.utils.quant_utils.is_layer_skipped": lambda *_values, **_named: False,
        f"{QUANTIZATION}.base_config.method_has_implemented_embedding": lambda *_values: True,
        f"{ACTIVATIONS}.from_str": lambda name: reader.attribute(reader.named(ACTIVATIONS), name.upper()),
        "vllm.distributed.divide": reader.named("vllm.distributed.utils.divide"),
        "torch.get_default_dtype": lambda: Symbol(f"torch.{engine.subject.dtype}"),
        **{f"{group}.get_tensor_model_parallel_world_size": lambda: ranks for group in GROUPS},
        **{f"{group}.get_tensor_model_parallel_rank": lambda: 0 for group in GROUPS},
    }


def _questions(engine: StaticEngine, method: str) -> dict[str, Question]:
    """Return which layers the model has, in words with their sizes, each with how it is made."""
    model, config = text_config(engine.subject.config), engine.subject.config
    hidden, heads, vocabulary = (_size(model, one) for one in ("hidden_size", "num_attention_heads", "vocab_size"))
    found: dict[str, Question] = {}
    if vocabulary:
        found[f"vocabulary of {vocabulary}"] = _making(EMBEDDING, (vocabulary, hidden))
    size = head_size(config)
    if heads and isinstance(size, int) and not is_latent(config):
        kv_heads = _size(model, "num_key_value_heads") or heads
        found[f"{heads} heads, {kv_heads} of keys and values"] = _making(HEADS, (hidden, size, heads, kv_heads))
    for kind, width in _widths(engine):
        quantised = _quantised(engine, method)
        found[f"{kind} of {width} as output"] = _making(COLUMNS, (hidden, [width, width]), quantised)
        found[f"{kind} of {width} as input"] = _making(ROWS, (width, hidden), quantised)
    count, width = count_of_experts(config), width_of_experts(model)
    if count and width:
        found[f"{count} experts of width {width}"] = _making_experts(engine, count, width)
        quantised = _quantised(engine, method)
        if quantised:
            found[f"blocks of experts of width {width}"] = _making_blocks(engine, quantised)
    stages, depth = engine.subject.launch.count("pipeline-parallel-size"), _size(model, "num_hidden_layers")
    if stages > 1 and depth:
        found[f"{depth} layers over {stages} stages"] = lambda reader: reader.call(
            reader.named(STAGES), (depth, 0, stages), {}
        )
    return found


def _widths(engine: StaticEngine) -> Iterator[tuple[str, int]]:
    """Return the widths of feed-forward layers that all ranks share, with what they are."""
    model, experts = text_config(engine.subject.config), count_of_experts(engine.subject.config)
    width, shared = _size(model, "intermediate_size"), _size(model, "n_shared_experts")
    if width and (not experts or _size(model, "first_k_dense_replace")):
        yield "feed-forward width", width
    # Where experts are spread as wholes, each rank may have all of those that all tokens share.
    if experts and shared and not engine.subject.launch.is_set("enable-expert-parallel"):
        yield "shared experts' width", shared * width_of_experts(model)


def _size(model: Mapping[str, Any], name: str) -> int:
    value = model.get(name)
    return value if isinstance(value, int) else 0


def _making(path: str, sizes: Sequence[Any], quantised: Question | None = None) -> Question:
    def make(reader: MakingReader) -> Any:
        config = quantised(reader) if quantised else None
        # Only a quantisation has something to say of the weights' shapes.
        reader.stops = () if quantised else (WEIGHTS,)
        return reader.call(reader.named(path), sizes, {"quant_config": config, "prefix": "model.layers.0.mlp"})

    return make


def _quantised(engine: StaticEngine, method: str) -> Question | None:
    """Return how the engine makes its configuration of the quantisation, where that is one of all linear layers."""
    scheme = dict(engine.normalised()[1] or {}) if method else {}
    if not scheme.get("weight_block_size") or any("proj" in str(scheme.get(name)) for name in EXCEPTIONS):
        return None

    def make(reader: MakingReader) -> Any:
        kind = reader.call(reader.named(f"{QUANTIZATION}.get_quantization_config"), (method,), {})
        return reader.call(reader.attribute(kind, "from_config"), (dict(scheme),), {})

    return make


def _making_experts(engine: StaticEngine, count: int, width: int) -> Question:
    launch, model = engine.subject.launch, text_config(engine.subject.config)
    sizes = {
        "num_experts": count, "top_k": _size(model, "num_experts_per_tok") or 1,
        "hidden_size": _size(model, "hidden_size"), "intermediate_size": width,
        "tp_size": launch.count("tensor-parallel-size"), "dp_size": launch.count("data-parallel-size"), "pcp_size": 1,
        "enable_eplb": launch.is_set("enable-eplb"),
        "num_redundant_experts": launch.redundant_experts, "prefix": EXPERTS_PREFIX,
    }  # fmt: skip

    def make(reader: MakingReader) -> Any:
        for path in EXPERTS:
            kind = reader.named(path)
            if isinstance(kind, (Class, Function)):
                return reader.call(kind, (), sizes)
        raise Unreadable("the source has no layer of experts")

    return make


def _making_blocks(engine: StaticEngine, quantised: Question) -> Question:
    """Return how the weights of experts are made whose quantisation has its kernels chosen already."""

    def make(reader: MakingReader) -> Any:
        reader.stops = ()
        reader.given[FP8_SELECTOR] = lambda *_values, **_named: (Unknown("kernels"), Unknown("kernels"))
        layer = layer_of_experts(engine, reader)
        moe = layer.attributes["moe_config"].attributes
        method = reader.call(reader.attribute(quantised(reader), "get_quant_method"), (layer, EXPERTS_PREFIX), {})
        share = moe["intermediate_size_per_partition"]
        sizes = (layer, moe["num_local_experts"], moe["hidden_dim"], share, Symbol(f"torch.{engine.subject.dtype}"))
        return reader.call(reader.attribute(method, WEIGHTS), sizes, {})

    return make
