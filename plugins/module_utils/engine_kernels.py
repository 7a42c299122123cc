# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which of an installed vLLM's kernels take a model on a GPU, beside attention and experts, as its source says.

Quantisation methods, kernels for the vision tower, and for the prefill of latent attention.
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
    Refused,
    StaticEngine,
    is_latent,
)

QUANTIZATION = "vllm.model_executor.layers.quantization"
PREFILL = "vllm.v1.attention.backends.mla.prefill.selector.get_mla_prefill_backend"
# Methods that may claim a checkpoint of another name, by the beginning of that name.
OVERRIDING = {
    "modelopt": ("modelopt", "modelopt_fp4", "modelopt_mxfp8", "modelopt_mixed"),
    "mxfp4": ("gpt_oss_mxfp4",), "gptq": ("auto_gptq", "gptq_marlin"), "awq": ("auto_awq", "awq_marlin"),
}  # fmt: skip


def architecture(engine: StaticEngine) -> dict[str, Any]:
    """Return the model's architectures, and whether one of them is ``known``. Raises CannotTell."""
    names = [str(name) for name in engine.subject.config.get("architectures") or ()]
    table = engine.one(lambda: engine.reader.named("vllm.model_executor.models.registry._VLLM_MODELS"))
    if not isinstance(table, dict):
        raise CannotTell("the source has no table of models")
    return {"names": names, "known": any(name in table for name in names)}


def parallel(engine: StaticEngine) -> str:
    """Return an empty text for sizes of parallel groups that the engine takes. Raises Refused, and CannotTell."""
    _check_groups(engine)
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


def _check_groups(engine: StaticEngine) -> None:
    """Let the engine hold the sizes of the groups against each other, as far as the source tells. Raises Refused."""
    reader = engine.reader
    given = {
        **engine.parallel_sizes(), "_api_process_rank": 0, "_api_process_count": 1, "data_parallel_external_lb": False,
        "data_parallel_size_local": 1, "numa_bind": False, "numa_bind_nodes": None, "numa_bind_cpus": None,
        "all2all_backend": engine.subject.launch.text("all2all-backend") or "allgather_reducescatter",
    }  # fmt: skip
    kind = reader.named("vllm.config.parallel.ParallelConfig")
    if isinstance(kind, Class):
        check = reader.attribute(Record(given, kind), "_validate_parallel_config")
        try:
            engine.one(lambda: reader.call(check, (), {}))
        except Refused:
            raise
        except CannotTell:
            return  # its other checks are of hosts and processes


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
    """Return the method that claims a checkpoint by its content, as one of ModelOpt, which names no algorithm."""
    names = next((claiming for start, claiming in OVERRIDING.items() if method.startswith(start)), ())
    for name in names:
        if name not in methods:
            continue

        def ask(name: str = name) -> Any:
            override = engine.reader.attribute(_class_of(engine, name), "override_quantization_method")
            values = (found, None, engine.described())
            wanted = override.node.args.args if isinstance(override, Function) else ()
            return engine.reader.call(override, values[: len(wanted) - 1], {})

        answers = engine.reader.outcomes(ask)
        if all(isinstance(answer, str) for answer in answers):
            return str(answers[0])
    return method


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
