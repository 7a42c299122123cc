# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The program that questions an engine from within: a text, because it runs under the engine's Python and not ours.

Reads ``{"serve_yaml", "model", "compute_capability"}`` from its standard input and writes one JSON object to its real
standard output: how far it came (``stage``: import, broken, parse, config, done), what the engine said (``error``), and
what it answered. Answers beyond the stages are each optional: what a version does not tell is left out, never guessed.
"""

from __future__ import annotations

from ansible_collections.llmops.vllm.plugins.module_utils.engine_trials import TRIALS

PROBE = (
    r"""
import gc

gc.disable()  # of what an engine imports all is kept, and looking for what is not takes a fifth of the time
import contextlib, importlib, importlib.abc, importlib.machinery, inspect, io, json, os, sys, tempfile

answer = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
result = {"stage": "import", "error": "", "version": "", "kv_cache_dtype": "", "config": {}, "attention": {}}
# Compiled parts of a CUDA build, for questions about a GPU on a machine without one.
COMPILED = (
    "flashinfer", "tokenspeed_mla", "vllm._C", "vllm._C_stable_libtorch", "vllm._flashmla_C",
    "vllm._flashmla_extension_C", "vllm._moe_C", "vllm._moe_C_stable_libtorch", "vllm.vllm_flash_attn",
)


def told(error):
    errors = getattr(error, "errors", None)
    if callable(errors):
        return "; ".join(str(entry["msg"]).removeprefix("Value error, ") for entry in errors())
    return f"{type(error).__name__}: {error}"


def plain(value):
    return value if isinstance(value, (bool, int, float, str, type(None))) else str(value).rsplit(".", 1)[-1]


def reckoning(config, arguments):
    # What the arithmetic of memory needs, as the engine has resolved it.
    model, cache, parallel = config.model_config, config.cache_config, config.parallel_config
    scheduler, multimodal = config.scheduler_config, getattr(config.model_config, "multimodal_config", None)
    places = {
        "max_model_len": (model, "max_model_len"), "dtype": (model, "dtype"), "quantization": (model, "quantization"),
        "enforce_eager": (model, "enforce_eager"), "architecture": (model, "architecture"),
        "max_num_seqs": (scheduler, "max_num_seqs"), "max_num_batched_tokens": (scheduler, "max_num_batched_tokens"),
        "block_size": (cache, "block_size"), "gpu_memory_utilization": (cache, "gpu_memory_utilization"),
        "kv_cache_memory_bytes": (cache, "kv_cache_memory_bytes"),
        "tensor_parallel_size": (parallel, "tensor_parallel_size"),
        "pipeline_parallel_size": (parallel, "pipeline_parallel_size"),
        "data_parallel_size": (parallel, "data_parallel_size"),
        "decode_context_parallel_size": (parallel, "decode_context_parallel_size"),
        "enable_expert_parallel": (parallel, "enable_expert_parallel"),
        "mm_encoder_tp_mode": (multimodal, "mm_encoder_tp_mode"),
        "language_model_only": (multimodal, "language_model_only"),
    }
    found = {key: plain(getattr(place, name)) for key, (place, name) in places.items() if hasattr(place, name)}
    found["speculative"] = getattr(config, "speculative_config", None) is not None
    found["kv_cache_dtype_asked"] = str(getattr(arguments, "kv_cache_dtype", ""))
    from vllm.platforms import current_platform

    found["device"] = current_platform.device_type
    return found


def check_parsers(arguments):
    for name in ("common.cli_args", "launchers.launcher", "openai.api_server"):
        try:
            check = getattr(importlib.import_module("vllm.entrypoints." + name), "validate_api_server_args", None)
        except ImportError:
            continue
        if check is not None:
            check(arguments)
            return


def load_tokenizer(config):
    try:
        from vllm.tokenizers import cached_tokenizer_from_config
    except ImportError:
        return
    if not getattr(config.model_config, "skip_tokenizer_init", False):
        cached_tokenizer_from_config(config.model_config)


class Stub(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path, target=None):
        if any(name == stub or name.startswith(stub + ".") for stub in COMPILED):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        from unittest.mock import MagicMock

        module = MagicMock(name=spec.name)
        module.__name__, module.__path__, module.__spec__, module.__version__ = spec.name, [], spec, "99.0"
        return module

    def exec_module(self, module):
        pass


def pretend(module, **values):
    try:
        place = importlib.import_module("vllm.v1.attention." + module)
    except Exception:
        return
    vars(place).update(values)


def stubbed_cuda():
    # The real selector of the CUDA platform, over compiled parts that are taken to be there.
    from unittest.mock import MagicMock

    import torch

    sys.meta_path.insert(0, Stub())
    torch.cuda.get_device_properties = lambda *_, **__: MagicMock(multi_processor_count=132)
    pretend("backends.fa_utils", flash_attn_varlen_func=MagicMock(), get_scheduler_metadata=MagicMock())
    empty = torch.empty
    torch.empty = lambda *a, **k: empty(*a, **{**k, **({"device": "cpu"} if "cuda" in str(k.get("device")) else {})})
    pretend("backends.mla.cutlass_mla")
    torch.empty = empty
    pretend("backends.fa_utils", flash_attn_supports_mla=lambda: True)
    pretend("backends.mla.flashattn_mla", flash_attn_supports_mla=lambda: True)
    for module in ("ops.flashmla", "backends.mla.flashmla"):
        pretend(module, is_flashmla_dense_supported=lambda: (True, None))
    from vllm.platforms import cuda

    return getattr(cuda, "NonNvmlCudaPlatform", cuda.CudaPlatform)


def selection(config):
    # The question that each attention layer of the model puts to the selector.
    from vllm.v1.attention import selector

    model, parallel = config.model_config, config.parallel_config
    asked = {
        "head_size": model.get_head_size(), "dtype": model.dtype, "kv_cache_dtype": config.cache_config.cache_dtype,
        "block_size": None, "use_mla": bool(model.use_mla),
        "use_sparse": hasattr(model.hf_text_config, "index_topk"),
        "use_dcp": getattr(parallel, "decode_context_parallel_size", 1) > 1,
        "use_pcp": getattr(parallel, "prefill_context_parallel_size", 1) > 1,
    }
    if getattr(config.cache_config, "user_specified_block_size", False):
        asked["block_size"] = config.cache_config.block_size
    fields = selector.AttentionSelectorConfig._fields
    return selector.AttentionSelectorConfig(**{name: value for name, value in asked.items() if name in fields})


def call(function, *values):
    # Versions differ in how many of these they take: the number of heads came last.
    return function(*values[: len(inspect.signature(function).parameters)])


def quantized(dtype):
    for name in ("v1.kv_cache_interface", "utils.torch_utils", "v1.attention.backend"):
        with contextlib.suppress(ImportError, AttributeError):
            return bool(importlib.import_module("vllm." + name).is_quantized_kv_cache(dtype))
    raise AttributeError("is_quantized_kv_cache")


def objections(backend, asked, capability):
    try:
        return list(backend.validate_configuration(device_capability=capability, **asked._asdict()))
    except (ImportError, OSError) as error:
        return [told(error)]


def ask_attention(config, wanted):
    from vllm.config import set_current_vllm_config
    from vllm.platforms import current_platform
    from vllm.platforms.interface import DeviceCapability

    platform, capability = current_platform, None
    if current_platform.is_cuda():
        capability = current_platform.get_device_capability()
    elif wanted:
        platform, capability = stubbed_cuda(), DeviceCapability(*(int(part) for part in wanted.split(".")))
        platform.get_device_capability = classmethod(lambda cls, device_id=0: capability)
        platform.device_name = "a GPU of compute capability " + wanted
    heads = config.model_config.get_num_attention_heads(config.parallel_config)
    asked, chosen = selection(config), getattr(getattr(config, "attention_config", None), "backend", None)
    found = {
        "device": str(getattr(platform, "device_name", "")), "head_size": asked.head_size, "mla": asked.use_mla,
        "capability": f"{capability.major}.{capability.minor}" if capability else "",
        "quantized": quantized(asked.kv_cache_dtype), "accepting": [], "refusing": {}, "error": "",
    }
    with set_current_vllm_config(config):
        if capability is None:
            # This platform's selector validates nothing; its backend still says what it takes.
            path = call(platform.get_attn_backend_cls, chosen, asked, heads)
            module, _, name = path.rpartition(".")
            backend = getattr(importlib.import_module(module), name)
            reasons = objections(backend, asked, DeviceCapability(0, 0))
            if plain(config.model_config.dtype) == asked.kv_cache_dtype:
                reasons = [reason for reason in reasons if reason != "kv_cache_dtype not supported"]
            found.update(validates=False, selected=backend.get_name(), refusing={backend.get_name(): reasons})
            return found
        valid, invalid = call(platform.get_valid_backends, capability, asked, heads)
        # In older versions a candidate is a pair, and the reasons come without a priority.
        members = [candidate.backend if hasattr(candidate, "backend") else candidate[0] for candidate in valid]
        found["accepting"] = [member.name for member in members]
        found["refusing"] = {
            backend.name: list(entry if isinstance(entry, list) else entry[1]) for backend, entry in invalid.items()
        }
        try:
            path = call(platform.get_attn_backend_cls, chosen, asked, heads)
            found.update(selected=path.rpartition(".")[2], validates=True)
        except ValueError as error:
            found.update(selected="", validates=True, error=str(error))
    return found
"""
    + TRIALS
    + r"""
try:
    import importlib.metadata

    result["version"] = importlib.metadata.version("vllm")
    import yaml
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.entrypoints.cli import serve

    with contextlib.suppress(Exception):
        # The engine looks at a model's class in a process of its own, to keep CUDA out of this one; this one ends.
        from vllm.model_executor.models import registry

        if hasattr(registry, "_run_in_subprocess"):
            registry._run_in_subprocess = lambda function: function()
    request = json.load(sys.stdin)
    parser = serve.FlexibleArgumentParser(prog="vllm")
    serve.ServeSubcommand().subparser_init(parser.add_subparsers(required=True))
    path = os.path.join(tempfile.mkdtemp(), "serve.yaml")
    result["stage"] = "parse"
    wanted = yaml.safe_load(request["serve_yaml"])
    if not isinstance(wanted, dict):
        raise ValueError("serve.yaml holds no mapping of arguments to values")
    with open(path, "w") as file:
        yaml.safe_dump(wanted | {"model": request["model"]}, file, sort_keys=False)
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            arguments = parser.parse_args(["serve", "--config", path])
            serve.ServeSubcommand().validate(arguments)
    except SystemExit:
        lines = [line for line in said.getvalue().splitlines() if line.strip()]
        raise ValueError(lines[-1] if lines else "the parser refused them without a word") from None
    result["stage"] = "config"
    check_parsers(arguments)
    config = AsyncEngineArgs.from_cli_args(arguments).create_engine_config()
    load_tokenizer(config)
    result["kv_cache_dtype"] = str(config.cache_config.cache_dtype)
    result["stage"] = "done"
    with contextlib.suppress(Exception):
        result["config"] = reckoning(config, arguments)
    result["trials"] = trials(config, arguments, request.get("compute_capability") or "")
    try:
        result["attention"] = ask_attention(config, request.get("compute_capability") or "")
    except Exception as error:
        result["attention"] = {"unanswered": told(error)}
except ModuleNotFoundError as error:
    if not str(error.name).startswith("vllm."):
        result["stage"] = "broken"
    result["error"] = told(error)
except Exception as error:
    result["error"] = told(error)
with answer:
    json.dump(result, answer)
sys.stderr.flush()
os._exit(0)  # to take an engine apart again takes seconds, and its threads and objects end with the process
"""
)
