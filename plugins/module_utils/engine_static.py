# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the source of an installed vLLM says to a launch, for an engine that cannot be asked, or not about this GPU.

The functions that the engine would call are followed through its own text, so that this collection holds none of its
rules. What they do not tell is said to be undecided.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.llmops.vllm.plugins.module_utils.checkpoint import text_config
from ansible_collections.llmops.vllm.plugins.module_utils.engine_operations import known, text
from ansible_collections.llmops.vllm.plugins.module_utils.engine_reader import Reader
from ansible_collections.llmops.vllm.plugins.module_utils.engine_source import (
    Capability,
    Class,
    Function,
    Member,
    Package,
    Record,
    Symbol,
    Unknown,
)
from ansible_collections.llmops.vllm.plugins.module_utils.engine_syntax import Raised
from ansible_collections.llmops.vllm.plugins.module_utils.launch import Launch

PRIORITIES = "vllm.platforms.cuda._get_backend_priorities"
PLATFORM = "vllm.platforms.cuda.CudaPlatformBase"
BACKENDS = "vllm.v1.attention.backends.registry.AttentionBackendEnum"
CONVERTOR = "vllm.transformers_utils.model_arch_config_convertor.ModelArchConfigConvertorBase"
LACKING = ("ImportError", "ModuleNotFoundError", "OSError")
CURRENT_CONFIG = (
    "vllm.config.get_current_vllm_config", "vllm.config.get_current_vllm_config_or_none",
    "vllm.config.vllm.get_current_vllm_config", "vllm.config.vllm.get_current_vllm_config_or_none",
)  # fmt: skip


class CannotTell(Exception):
    """The source does not answer this question; the text says what stood in the way."""


class Refused(CannotTell):
    """The source raises an error for this question, whatever way it goes; the text is the error's."""


@dataclass(frozen=True)
class Subject:
    """What is asked about: a launch, its model by ``config.json`` (after all patches), and a GPU.

    ``quantization`` is what ``hf_quant_config.json`` holds, which counts where ``config.json`` says nothing. ``dtype``
    and ``kv_cache_dtype`` are as the engine resolves them. ``whole`` takes the compiled parts of the engine and its
    optional packages to be there, because the question is about a machine that has them.
    """

    capability: Capability
    config: Mapping[str, Any]
    launch: Launch = field(default_factory=Launch)
    quantization: Mapping[str, Any] | None = None
    dtype: str = "bfloat16"
    kv_cache_dtype: str = "auto"
    whole: bool = False


def is_latent(config: Mapping[str, Any]) -> bool:
    """Whether the model has multi-head latent attention."""
    return bool(text_config(config).get("kv_lora_rank"))


def head_size(config: Mapping[str, Any]) -> int | Unknown:
    """Return the size of what a backend caches for each head: for latent attention, of the latent vector."""
    model = text_config(config)
    try:
        if is_latent(config):
            return int(model["kv_lora_rank"]) + int(model["qk_rope_head_dim"])
        if model.get("head_dim"):
            return int(model["head_dim"])
        return int(model["hidden_size"]) // int(model["num_attention_heads"])
    except (KeyError, TypeError, ValueError, ZeroDivisionError):
        return Unknown("head size")


class StaticEngine:
    """An installed vLLM whose source is read: the package ``vllm``, and one subject."""

    def __init__(self, package: Package, subject: Subject) -> None:
        self.package = package
        self.subject = subject
        self.reader = Reader(self.package, self._given(), self._present)
        self.reader.given["vllm.platforms.current_platform"] = self.reader.named(PLATFORM)

    def _present(self, name: str) -> bool:
        return self.subject.whole or self.package.holds(name)

    def _given(self) -> dict[str, Any]:
        subject = self.subject
        config, environment = self._engine_config(), dict(subject.launch.environment)
        given: dict[str, Any] = {
            f"{PLATFORM}.get_device_capability": lambda *_values, **_named: subject.capability,
            "torch.cuda.get_device_capability": lambda *_values, **_named: subject.capability,
            "torch.version.cuda": subject.launch.runtime.cuda or Unknown("torch.version.cuda"),
            "typing.get_args": lambda value: value if isinstance(value, tuple) else Unknown("get_args()"),
            "typing.TYPE_CHECKING": False,
            "os.environ": environment,
            "os.getenv": environment.get,
            "importlib.util.find_spec": lambda name, *_values: True if self._present(name) else None,
            **{name: lambda *_values: config for name in CURRENT_CONFIG},
        }
        for module in ("vllm.utils.import_utils", "vllm.utils"):
            given[f"{module}.resolve_obj_by_qualname"] = self._resolved
        extras = self.package.module("vllm.utils.flashinfer") if subject.whole else None
        for name in extras.bindings if extras else ():
            if name.startswith("has_flashinfer"):
                given[f"vllm.utils.flashinfer.{name}"] = lambda *_values, **_named: True
        return given

    def _resolved(self, path: str) -> Any:
        return self.reader.named(path)

    def _engine_config(self) -> Record:
        """Return as much of the engine's own configuration as is known before it makes one."""
        subject = self.subject
        model, launch = text_config(subject.config), subject.launch
        ranks = launch.count("tensor-parallel-size")
        heads, kv_heads = (int(model.get(name) or 0) for name in ("num_attention_heads", "num_key_value_heads"))
        counts = {
            "get_num_attention_heads": lambda *_values: heads // ranks or Unknown("heads"),
            "get_num_kv_heads": lambda *_values: max(1, kv_heads // ranks) if kv_heads else Unknown("heads"),
            "get_head_size": lambda *_values: head_size(subject.config),
        }
        given = launch.argument("quantization-config")
        described = {
            "hf_text_config": Record(dict(model), open=False), "hf_config": self.described(),
            "quantization_config": None if given is None else Unknown("quantization-config"),
        }  # fmt: skip
        return Record(
            {
                "model_config": Record(
                    {**described, **counts, "dtype": _dtype(subject.dtype), "use_mla": is_latent(subject.config)}
                ),
                "parallel_config": Record(self.parallel_sizes()),
                "cache_config": Record({"cache_dtype": subject.kv_cache_dtype}),
                "attention_config": Record(
                    {"flash_attn_version": None, "backend": None, "mla_prefill_backend": None, "use_non_causal": False}
                ),
                "speculative_config": Unknown("speculative_config"),
                # Of a model that has no layers yet.
                "compilation_config": Record({"static_forward_context": ()}),
            }
        )

    def parallel_sizes(self) -> dict[str, Any]:
        """Return the sizes of the parallel groups, by the engine's names."""
        launch = self.subject.launch
        return {
            "tensor_parallel_size": launch.count("tensor-parallel-size"),
            "pipeline_parallel_size": launch.count("pipeline-parallel-size"),
            "data_parallel_size": launch.count("data-parallel-size"),
            "decode_context_parallel_size": launch.count("decode-context-parallel-size"),
            "prefill_context_parallel_size": launch.count("prefill-context-parallel-size"),
            "enable_expert_parallel": launch.is_set("enable-expert-parallel"),
            "enable_eplb": launch.is_set("enable-eplb"),
            "eplb_config": Record({"num_redundant_experts": launch.redundant_experts}),
        }

    def described(self) -> Record:
        """Return the model's configuration as the engine's object of it.

        Its quantisation is that of ``config.json``, else of ``hf_quant_config.json`` (get_config of
        vllm/transformers_utils/config.py), else of the language model where the engine's own class copies that.
        """
        found = copy.deepcopy(dict(self.subject.config))
        inner = found.get("text_config")
        if isinstance(inner, Mapping):
            found["text_config"] = Record(dict(inner), open=False)
        if found.get("quantization_config") is None:
            found.pop("quantization_config", None)
            if self.subject.quantization is not None:
                found["quantization_config"] = copy.deepcopy(dict(self.subject.quantization))
            elif isinstance(inner, Mapping) and inner.get("quantization_config") and self._copies_quantization():
                found["quantization_config"] = inner["quantization_config"]
        return Record(found, open=False)

    def _copies_quantization(self) -> bool:
        """Whether the engine has a class for this configuration that takes over the language model's quantisation."""
        kind = str(self.subject.config.get("model_type") or "").replace("-", "_").replace(".", "_")
        module = self.package.module(f"vllm.transformers_utils.configs.{kind}")
        return module is not None and any(
            isinstance(node, ast.Attribute) and node.attr == "quantization_config" and isinstance(node.ctx, ast.Store)
            for node in ast.walk(module.tree)
        )

    def kv_cache_dtype(self) -> str:
        """Return the dtype of the KV cache that the engine would resolve. Raises CannotTell."""
        asked = self.subject.launch.text("kv-cache-dtype") or "auto"
        described = self.normalised()[0]
        function = self.reader.named("vllm.utils.torch_utils.resolve_kv_cache_dtype_string")
        model = Record({"hf_config": described})
        return str(self.one(lambda: self.reader.call(function, (asked, model), {})))

    def normalised(self) -> tuple[Record, Any]:
        """Return the model's configuration, and its quantisation as the engine words it; None without one."""
        kind = self.reader.named(CONVERTOR)
        if not isinstance(kind, Class):
            raise CannotTell(f"{CONVERTOR} is not in the source")
        described = self.described()  # the engine words it in place
        method = self.reader.attribute(Record({"hf_config": described}, kind), "get_quantization_config")
        return described, self.one(lambda: self.reader.call(method, (), {}))

    # Attention

    def attention(self) -> dict[str, Any]:
        """Return which attention backends take the model, in the shape of the engine's own answer.

        ``undecided`` has those that may. Raises CannotTell.
        """
        subject, asked = self.subject, self._asked()
        found: dict[str, Any] = {
            "device": f"a GPU of compute capability {subject.capability.as_version_str()}", "read": "source",
            "head_size": asked["head_size"], "mla": asked["use_mla"], "error": "", "validates": True,
            "capability": subject.capability.as_version_str(), "quantized": self._quantized(),
            "accepting": [], "refusing": {}, "undecided": {}, "selected": "",
        }  # fmt: skip
        if isinstance(asked["head_size"], Unknown):
            raise CannotTell("config.json does not tell the head size")
        for member in self._candidates(asked):
            verdict, reasons = self._verdict(member, asked)
            if verdict == "accepting":
                found["accepting"].append(member.name)
                found["selected"] = found["selected"] or ("" if found["undecided"] else member.name)
            else:
                found[verdict][member.name] = reasons
        return found

    def _asked(self) -> dict[str, Any]:
        subject = self.subject
        model = text_config(subject.config)
        heads = int(model.get("num_attention_heads") or 0) // subject.launch.count("tensor-parallel-size")
        return {
            "head_size": head_size(subject.config),
            "dtype": _dtype(subject.dtype),
            "kv_cache_dtype": subject.kv_cache_dtype,
            "block_size": None,
            "use_mla": is_latent(subject.config),
            "use_sparse": is_latent(subject.config) and "index_topk" in model,
            "use_dcp": subject.launch.count("decode-context-parallel-size") > 1,
            "use_pcp": subject.launch.count("prefill-context-parallel-size") > 1,
            "has_sink": model.get("model_type") == "gpt_oss",
            "attn_type": "decoder",
            **dict.fromkeys(
                ("use_mm_prefix", "use_per_head_quant_scales", "has_sliding_window", "use_non_causal",
                 "use_batch_invariant", "use_kv_connector", "use_adaptive_verification", "use_rswa"),
                False,
            ),
            "num_heads": heads or None,
            "device_capability": subject.capability,
        }  # fmt: skip

    def _quantized(self) -> bool:
        return self.subject.kv_cache_dtype not in ("auto", "float16", "bfloat16", "float32")

    def _candidates(self, asked: Mapping[str, Any]) -> list[Member]:
        """Return the backends that the selector would try, the preferred first."""
        chosen = self.subject.launch.text("attention-backend")
        if chosen:
            member = self.one(lambda: self.reader.attribute(self.reader.named(BACKENDS), chosen.upper()))
            found = [member]
        else:
            found = self.one(lambda: self._call(self.reader.named(PRIORITIES), asked))
        if not isinstance(found, list) or not found or not all(isinstance(one, Member) for one in found):
            raise CannotTell(f"the source has no list of attention backends ({text(found)[:200]})")
        return found

    def _call(self, function: Any, asked: Mapping[str, Any]) -> Any:
        """Call a function of the source with those of the values that it has parameters for."""
        if not isinstance(function, Function):
            raise CannotTell(f"the source has no such function ({_told(function)})")
        wanted = function.node.args
        names = {one.arg for one in (*wanted.posonlyargs, *wanted.args, *wanted.kwonlyargs)}
        return self.reader.call(function, (), {name: value for name, value in asked.items() if name in names})

    def _verdict(self, member: Member, asked: Mapping[str, Any]) -> tuple[str, list[str]]:
        backend = self.reader.named(str(member.value))
        if not isinstance(backend, Class):
            return "undecided", [f"its source was not found ({member.value})"]
        found = self.reader.outcomes(
            lambda: self._call(self.reader.attribute(backend, "validate_configuration"), asked)
        )
        found = [[text(one)] if isinstance(one, Raised) and one.kind in LACKING else one for one in found]
        if not all(isinstance(one, list) for one in found):
            reason = next(one for one in found if not isinstance(one, list))
            return "undecided", [_told(reason)]
        reasons = list(dict.fromkeys(text(reason) for one in found for reason in one))
        if all(found):
            return "refusing", reasons
        return ("undecided", reasons) if any(found) else ("accepting", [])

    def one(self, ask: Any) -> Any:
        """Return the one value that a question leads to.

        Raises Refused where it leads to an error, and CannotTell where it leads to several values, or to none.
        """
        found = self.reader.outcomes(ask)
        first = found[0]
        if all(isinstance(one, Raised) and one.kind not in LACKING for one in found):
            raise Refused(str(first.message or first.kind))
        if isinstance(first, (Unknown, Raised)) or not known(first) or any(text(one) != text(first) for one in found):
            raise CannotTell("; ".join(dict.fromkeys(_told(one) for one in found))[:300])
        return first


def _told(outcome: Any) -> str:
    return f"not told: {outcome.why}" if isinstance(outcome, Unknown) else text(outcome)


def _dtype(name: str) -> Symbol:
    return Symbol(f"torch.{name}")
