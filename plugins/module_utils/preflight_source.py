# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the source of the installed engine adds to its own answer, and what speaks against a launch in it.

The engine is asked first. Its source is read for what it did not answer: how its selector of attention backends takes
the model, when it could not be put that question; and which kernels it has for the model on these GPUs, which it says
only while it loads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ansible_collections.llmops.vllm.plugins.module_utils.checkpoint import text_config
from ansible_collections.llmops.vllm.plugins.module_utils.engine_experts import count_of_experts, experts
from ansible_collections.llmops.vllm.plugins.module_utils.engine_kernels import (
    architecture,
    parallel,
    prefill,
    quantization,
    vision,
)
from ansible_collections.llmops.vllm.plugins.module_utils.engine_layers import layers
from ansible_collections.llmops.vllm.plugins.module_utils.engine_probe import EngineAnswer
from ansible_collections.llmops.vllm.plugins.module_utils.engine_source import Capability, Package
from ansible_collections.llmops.vllm.plugins.module_utils.engine_static import (
    CannotTell,
    Refused,
    StaticEngine,
    Subject,
)
from ansible_collections.llmops.vllm.plugins.module_utils.findings import Finding
from ansible_collections.llmops.vllm.plugins.module_utils.launch import Launch

UNASKED = frozenset(("import", "broken", "silent"))  # stages at which an engine has said nothing of model or arguments
MODEL_TRIAL = "model"  # in which the engine itself has made the layers
SIZES_REMEDY = (
    "set other sizes in vllm_service_arguments_extra (tensor-parallel-size, decode-context-parallel-size; "
    "enable-expert-parallel leaves experts whole)"
)
_EVIDENCE_LENGTH = 600
KERNELS = {
    "experts": ("moe_backend", "moe-backend", "kernels for its experts"),
    "vision": ("vision_backend", "mm-encoder-attn-backend", "attention for its vision tower"),
    "prefill": ("prefill_backend", "attention-config", "attention for the prefill"),
}


@dataclass(frozen=True)
class Reading:
    """What the source tells.

    ``kernels`` has ``architecture`` (of an engine that was not asked), ``quantization``, ``experts``, ``vision`` and
    ``prefill``, as far as they concern the model, and ``layers``, objections to spreading them over the ranks;
    ``refused`` the engine's reasons against one of them, and ``untold`` why one could not be read. All are plain.
    """

    attention: Mapping[str, Any] = field(default_factory=dict)
    kv_cache_dtype: str = ""
    kernels: Mapping[str, Any] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)
    untold: Mapping[str, str] = field(default_factory=dict)


def capability_of(text: str) -> Capability | None:
    """Return a compute capability such as 12.0, None for a text that is none."""
    major, _dot, minor = text.partition(".")
    return Capability(int(major), int(minor)) if major.isdigit() and minor.isdigit() else None


def consult_source(
    answer: EngineAnswer,
    launch: Launch,
    config: Mapping[str, Any],
    quantized: Mapping[str, Any] | None,
    capability: str,
) -> Reading:
    """Read the runtime's source for what ``answer`` leaves open; ``quantized`` is ``hf_quant_config.json``.

    Nothing is read for an engine that has refused the launch, without a GPU to ask about, or without a model.
    """
    gpu = capability_of(capability)
    if gpu is None or not config or not launch.runtime.site_packages or answer.stage in ("parse", "config"):
        return Reading()
    subject = Subject(
        capability=gpu,
        config=config,
        launch=launch,
        quantization=quantized,
        dtype=str(answer.config.get("dtype") or _dtype_of(launch, config)),
        kv_cache_dtype=answer.kv_cache_dtype,
        whole=launch.runtime.device != "cuda",
    )
    package = Package(launch.runtime.site_packages)
    found = _Found(package, subject)
    if not answer.kv_cache_dtype:
        found.ask("kv_cache_dtype", StaticEngine.kv_cache_dtype)
        found.subject = replace(subject, kv_cache_dtype=str(found.told.get("kv_cache_dtype", "")))
    if (not answer.attention or "unanswered" in answer.attention) and found.subject.kv_cache_dtype:
        found.ask("attention", StaticEngine.attention)
    if answer.stage in UNASKED:
        found.ask("architecture", architecture)
        found.ask("parallel", parallel)
    found.ask("quantization", quantization)
    method = dict(found.told.get("quantization") or {})
    if method.get("known") and count_of_experts(config):
        found.ask("experts", lambda engine: experts(engine, str(method["method"])))
    if answer.trials.get(MODEL_TRIAL) != "":
        found.ask("layers", lambda engine: layers(engine, str(method["method"]) if method.get("known") else ""))
    found.ask("vision", vision)
    found.ask("prefill", prefill)
    attention, dtype = found.told.pop("attention", {}), str(found.told.pop("kv_cache_dtype", ""))
    return Reading(attention, dtype, {name: value for name, value in found.told.items() if value}, *found.rest)


class _Found:
    """Collects answers of the source to questions."""

    def __init__(self, package: Package, subject: Subject) -> None:
        self.package = package
        self.subject = subject
        self.told: dict[str, Any] = {}
        self.rest: tuple[dict[str, str], dict[str, str]] = ({}, {})

    def ask(self, name: str, question: Callable[[StaticEngine], Any]) -> None:
        """Put a question, and note its answer or what came instead of it."""
        refused, untold = self.rest
        try:
            self.told[name] = question(StaticEngine(self.package, self.subject))
        except Refused as error:
            refused[name] = str(error)
        except CannotTell as error:
            untold[name] = str(error)


def _dtype_of(launch: Launch, config: Mapping[str, Any]) -> str:
    """Return the model's dtype where the engine has not told it."""
    asked = launch.text("dtype")
    if asked not in ("", "auto"):
        return {"half": "float16", "float": "float32"}.get(asked, asked)
    model = text_config(config)
    return str(model.get("dtype") or model.get("torch_dtype") or config.get("dtype") or config.get("torch_dtype"))


def with_reading(answer: EngineAnswer, reading: Reading, launch: Launch) -> EngineAnswer:
    """Return the answer with what the runtime's source adds to it."""
    reasons = [str(answer.attention.get("unanswered") or ""), reading.untold.get("attention", "")]
    unanswered = {"unanswered": "; its source: ".join(reasons)} if all(reasons) else answer.attention
    asked = {"kv_cache_dtype_asked": launch.text("kv-cache-dtype"), **answer.config}
    return replace(
        answer,
        version=answer.version or launch.runtime.version("vllm"),
        config=asked if reading.attention else answer.config,
        kv_cache_dtype=answer.kv_cache_dtype or reading.kv_cache_dtype,
        attention=reading.attention or unanswered,
    )


def judge_reading(reading: Reading, answer: EngineAnswer, capability: str, directory: str) -> Iterator[Finding]:
    """Turn what the source says of quantisation and kernels into findings."""
    engine, where = f"vLLM {answer.version}", f"its source in {directory}, read without running it"
    yield from _judge_model(reading, answer, engine, where)
    method = dict(reading.kernels.get("quantization") or {})
    gpu = capability_of(capability)
    least = method.get("min_capability")
    if gpu is not None and least is not None and gpu.to_int() < least:
        what = f"{engine} does not serve this quantisation on these GPUs."
        evidence = f"{method['method']} needs compute capability {least / 10:.1f}, and they have {capability}"
        yield Finding("quantization_capability", "no_go", what, evidence, "choose another model, or other GPUs", where)
    for name, (kind, argument, thing) in KERNELS.items():
        if name in reading.refused:
            yield _refusal(kind, argument, f"{engine} has no {thing} on these GPUs", reading.refused[name], where)
    lacking = dict(reading.kernels.get("experts") or {})
    if lacking and not lacking["possible"]:
        kind, argument, thing = KERNELS["experts"]
        yield _refusal(kind, argument, f"{engine} has no {thing} on these GPUs", "; ".join(lacking["reasons"]), where)
    untold = {name: why for name, why in reading.untold.items() if name != "attention"}
    if untold and answer.stage in UNASKED:
        what = f"The source of {engine} does not tell all that was asked of it."
        evidence = "; ".join(f"{name}: {why}" for name, why in untold.items())
        yield Finding("source_not_told", "info", what, evidence, "look at the launch's first lines", where)


def _judge_model(reading: Reading, answer: EngineAnswer, engine: str, where: str) -> Iterator[Finding]:
    """Judge what an engine itself says of a model, when it is asked."""
    remedy = "choose another model or runtime (vllm_runtime_lock)"
    method = dict(reading.kernels.get("quantization") or {})
    if answer.stage in UNASKED and method and not method["known"]:
        what = f"{engine} does not know the quantisation of this model."
        yield Finding("quantization_unknown", "no_go", what, f"quant_method {method['method']}", remedy, where)
    refused = [reading.refused["parallel"]] if "parallel" in reading.refused else []
    refused += [f"{kind}: {why}" for kind, why in dict(reading.kernels.get("layers") or {}).items()]
    if refused:
        what = f"{engine} does not spread this model over as many ranks."
        evidence = "; ".join(refused)[:_EVIDENCE_LENGTH]
        yield Finding("parallel_sizes", "no_go", what, evidence, SIZES_REMEDY, where)
    model = dict(reading.kernels.get("architecture") or {})
    if model and not model["known"]:
        # It may still be served by a plugin, or by what transformers knows of it.
        what = f"{engine} has no class for this model."
        evidence = f"architectures {', '.join(model['names']) or 'none'}"
        yield Finding("architecture_unknown", "warn", what, evidence, remedy, where)


def _refusal(kind: str, argument: str, what: str, evidence: str, where: str) -> Finding:
    remedy = f"set vllm_service_arguments_extra: {{{argument}: another}}, or leave it out"
    return Finding(kind, "no_go", f"{what}.", evidence[:_EVIDENCE_LENGTH], remedy, where)
