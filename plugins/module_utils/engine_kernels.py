# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which of an installed vLLM's kernels take a model on a GPU, beside attention, as its source says.

Quantisation methods, kernels for the experts, for the vision tower, and for the prefill of latent attention.
"""

from __future__ import annotations

from typing import Any

from ansible_collections.llmops.vllm.plugins.module_utils.checkpoint import text_config
from ansible_collections.llmops.vllm.plugins.module_utils.engine_operations import text
from ansible_collections.llmops.vllm.plugins.module_utils.engine_source import (
    Class,
    Function,
    Member,
    Record,
    Symbol,
    Unknown,
)
from ansible_collections.llmops.vllm.plugins.module_utils.engine_static import (
    BACKENDS,
    PLATFORM,
    CannotTell,
    StaticEngine,
    is_latent,
)
from ansible_collections.llmops.vllm.plugins.module_utils.engine_syntax import Raised

QUANTIZATION = "vllm.model_executor.layers.quantization"
EXPERTS = "vllm.model_executor.layers.fused_moe"
NVFP4_EXPERTS = f"{EXPERTS}.oracle.nvfp4.select_nvfp4_moe_backend"
KEYS = "vllm.model_executor.layers.quantization.utils.quant_utils"
PREFILL = "vllm.v1.attention.backends.mla.prefill.selector.get_mla_prefill_backend"
OVERRIDING = ("modelopt", "modelopt_fp4", "modelopt_mxfp8", "modelopt_mixed")


def architecture(engine: StaticEngine) -> dict[str, Any]:
    """Return the model's architectures, and whether one of them is ``known``. Raises CannotTell."""
    names = [str(name) for name in engine.subject.config.get("architectures") or ()]
    table = engine.one(lambda: engine.reader.named("vllm.model_executor.models.registry._VLLM_MODELS"))
    if not isinstance(table, dict):
        raise CannotTell("the source has no table of models")
    return {"names": names, "known": any(name in table for name in names)}


def parallel(engine: StaticEngine) -> str:
    """Return an empty text for sizes of parallel groups that the engine takes. Raises Refused, and CannotTell."""
    reader = engine.reader
    kind = reader.named("vllm.config.model.ModelConfig")
    if not isinstance(kind, Class):
        raise CannotTell("the source has no ModelConfig")
    model, sizes = text_config(engine.subject.config), engine.parallel_sizes()
    heads = model.get("num_attention_heads")
    if not isinstance(heads, int):
        raise CannotTell("config.json does not tell the number of heads")
    kv_heads = model.get("num_key_value_heads") or heads
    described = Record(
        {
            "model_arch_config": Record({"total_num_attention_heads": heads}),
            "use_mla": is_latent(engine.subject.config), "architectures": engine.subject.config.get("architectures"),
            "multimodal_config": None, "get_total_num_kv_heads": lambda *_values: kv_heads,
            "registry": Record({"is_pp_supported_model": lambda *_values: True}),
            "_verify_with_expert_parallelism": lambda *_values: None,
        },
        kind,
    )  # fmt: skip
    method = reader.attribute(described, "verify_with_parallel_config")
    engine.one(lambda: reader.call(method, (Record({**sizes, "enable_hc_sp": False}),), {}))
    return ""


def quantization(engine: StaticEngine) -> dict[str, Any]:
    """Return the quantisation ``method`` (empty without one), whether it is ``known``, and ``min_capability``.

    The last is that of the GPU, such as 75, or None where the source does not tell. Raises CannotTell.
    """
    _described, found = engine.normalised()
    method = str((found or {}).get("quant_method") or "")
    asked = engine.subject.launch.text("quantization")
    if not method and not asked:
        return {"method": "", "known": True, "min_capability": None}
    methods = engine.one(lambda: engine.reader.named(f"{QUANTIZATION}.QUANTIZATION_METHODS"))
    method = asked or _overridden(engine, method, found, methods)
    if method not in methods:
        return {"method": method, "known": False, "min_capability": None}
    try:
        least = engine.one(lambda: _least(engine, method))
    except CannotTell:
        least = None
    return {"method": method, "known": True, "min_capability": least}


def _class_of(engine: StaticEngine, method: str) -> Any:
    reader = engine.reader
    return reader.call(reader.named(f"{QUANTIZATION}.get_quantization_config"), (method,), {})


def _least(engine: StaticEngine, method: str) -> Any:
    return engine.reader.call(engine.reader.attribute(_class_of(engine, method), "get_min_capability"), (), {})


def _overridden(engine: StaticEngine, method: str, found: Any, methods: Any) -> str:
    """Return the method that a checkpoint of ModelOpt, which names no algorithm, has by its content."""
    for name in OVERRIDING if method.startswith("modelopt") else ():
        if name not in methods:
            continue

        def ask(name: str = name) -> Any:
            override = engine.reader.attribute(_class_of(engine, name), "override_quantization_method")
            return engine.reader.call(override, (found, None), {})

        answers = engine.reader.outcomes(ask)
        if all(isinstance(answer, str) for answer in answers):
            return str(answers[0])
    return method


def experts(engine: StaticEngine) -> dict[str, Any]:
    """Return which backends may take NVFP4 experts: ``possible``, the preferred first, and ``reasons`` against all.

    Raises CannotTell.
    """
    reader = engine.reader
    select = reader.named(NVFP4_EXPERTS)
    if not isinstance(select, Function):
        raise CannotTell(f"{NVFP4_EXPERTS} is not in the source")
    keys = [reader.named(f"{KEYS}.{name}") for name in ("kNvfp4Static", "kNvfp4Dynamic")]
    values = (_experts_config(engine), *keys)[: len(select.node.args.args)]
    found = reader.outcomes(lambda: reader.call(select, values, {}))
    possible, reasons = [], []
    for answer in found:
        chosen = answer[0] if isinstance(answer, tuple) and answer else answer
        if isinstance(chosen, Member):
            possible.append(chosen.name)
        elif isinstance(chosen, Raised):
            reasons.append(chosen.message)
        else:
            raise CannotTell(text(chosen) if not isinstance(chosen, Unknown) else chosen.why)
    return {"possible": list(dict.fromkeys(possible)), "reasons": list(dict.fromkeys(reasons))}


def _experts_config(engine: StaticEngine) -> Record:
    """Return the engine's description of the experts as far as it follows from model and launch."""
    launch, model, reader = engine.subject.launch, text_config(engine.subject.config), engine.reader
    ranks, copies = launch.count("tensor-parallel-size"), launch.count("data-parallel-size")
    together = launch.is_set("enable-expert-parallel")
    kind = reader.named(f"{EXPERTS}.config.FusedMoEParallelConfig")
    parallel = {
        "tp_size": 1 if together else ranks, "dp_size": copies, "pcp_size": 1, "sp_size": 1, "use_ep": together,
        "ep_size": ranks * copies if together else 1, "enable_eplb": launch.is_set("enable-eplb"),
        "all2all_backend": launch.text("all2all-backend") or "allgather_reducescatter", "is_sequence_parallel": False,
    }  # fmt: skip
    activation = str(model.get("hidden_act") or "silu")
    activations = reader.named(f"{EXPERTS}.activation.MoEActivation")
    if isinstance(activations, Class):
        activation = reader.attribute(activations, activation.upper())
    return Record(
        {
            "moe_backend": launch.text("moe-backend").replace("-", "_") or "auto", "activation": activation,
            "moe_parallel_config": Record(parallel, kind if isinstance(kind, Class) else None),
            "is_act_and_mul": True, "swiglu_limit": None, "is_lora_enabled": False, "has_hash_routing": False,
            "require_decomposed_backend": False, "hidden_dim": model.get("hidden_size"), "has_bias": False,
            "router_logits_dtype": None, "num_experts": model.get("n_routed_experts"),
        }
    )  # fmt: skip


def vision(engine: StaticEngine) -> str:
    """Return the attention backend of the vision tower; empty for a model without one. Raises CannotTell."""
    described = engine.subject.config.get("vision_config")
    if not isinstance(described, dict) or engine.subject.launch.is_set("language-model-only"):
        return ""
    size = described.get("head_dim")
    if not size and described.get("num_attention_heads") and described.get("hidden_size"):
        size = described["hidden_size"] // described["num_attention_heads"]
    asked = engine.subject.launch.text("mm-encoder-attn-backend")
    reader = engine.reader
    backend = reader.attribute(reader.named(BACKENDS), asked.upper()) if asked else None
    select = reader.attribute(reader.named(PLATFORM), "get_vit_attn_backend")
    dtype = Symbol(f"torch.{engine.subject.dtype}")
    found = engine.one(lambda: reader.call(select, (size or Unknown("head size"), dtype, backend), {}))
    if not isinstance(found, Member):
        raise CannotTell(text(found))
    return found.name


def prefill(engine: StaticEngine) -> str:
    """Return the backend for the prefill of latent attention; empty for other models. Raises CannotTell."""
    if not is_latent(engine.subject.config):
        return ""
    reader = engine.reader
    config = reader.call(reader.given["vllm.config.get_current_vllm_config"], (), {})
    select = reader.named(PREFILL)
    if not isinstance(select, Function):
        raise CannotTell("this version has no selector for it")
    found = engine.one(lambda: reader.call(select, (config,), {}))
    if not isinstance(found, Class):
        raise CannotTell(text(found))
    return str(engine.one(lambda: reader.call(reader.attribute(found, "get_name"), (), {})))
