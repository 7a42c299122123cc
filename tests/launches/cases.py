"""The launches: what is started, what the preflight has to say of it, and what becomes of it on the real engine.

Each failure that a preflight can know of, and healthy launches beside them. `make launches` tries them all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.llmops.vllm.tests.launches import harms
from ansible_collections.llmops.vllm.tests.launches.harms import Harm, configure, cut, forbid, remove, shard, write

KIMI, LLAMA = "tiny-kimi-k2.5-nvfp4", "tiny-llama"
# How a launch ends: a right completion; dead before it listens; healthy, then dead of the first completion; healthy,
# with answers that are not the model's.
SERVES, DIES, DIES_AT_REQUEST, ANSWERS_WRONGLY = "serves", "dies", "dies at the first request", "answers wrongly"

ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1",
    "TORCHDYNAMO_DISABLE": "1",
}  # fmt: skip
ARGUMENTS = {"max-model-len": 512, "max-num-seqs": 4, "kv-cache-memory-bytes": "64M", "enforce-eager": True}
PATCH = {
    "name": "disable_fp8_kv_cache", "file": "config.json", "reason": "as the role has it",
    "remove_keys": ["kv_cache_scheme", "kv_cache_quant_algo"],
}  # fmt: skip
TWO_RANKS = {"tensor-parallel-size": 2}


@dataclass(frozen=True)
class Host:
    """What is special about the host: size of /dev/shm, the unit's limit of open files, whether the port is taken.

    The limit is the unit's usual one when it is 0.
    """

    shm: str = "2g"
    nofile: int = 0
    port_taken: bool = False


@dataclass(frozen=True)
class Case:
    """A launch. An argument of None is left out of the usual ones.

    ``finding`` is the ``no_go`` that the preflight has to give, ``cause_class`` and ``root`` (a pattern) what the
    diagnosis of the launch's log has to name.
    """

    name: str
    what: str
    ends: str = SERVES
    finding: str = ""
    cause_class: str = ""
    root: str = ""
    model: str = KIMI
    harm: Harm = harms.nothing
    arguments: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    patched: bool = True
    host: Host = field(default_factory=Host)

    @property
    def is_of_files(self) -> bool:
        """Whether it is the model's files that make the case, or nothing at all."""
        return self.harm is not harms.nothing or self.name in ("kimi", "llama")

    def all_arguments(self, **more: Any) -> dict[str, Any]:
        """The arguments of the launch."""
        arguments = {**ARGUMENTS, **more, **self.arguments}
        return {name: value for name, value in arguments.items() if value is not None}

    def whole_environment(self) -> dict[str, str]:
        """The environment of the launch."""
        return {**ENVIRONMENT, **self.environment}


COMPRESSED = {
    "quant_method": "compressed-tensors", "format": "float-quantized", "config_groups": {}, "ignore": [],
    "quantization_status": "compressed",
    "kv_cache_scheme": {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False, "symmetric": True},
}  # fmt: skip
FP8_MET = r"RuntimeError: expected scalar type BFloat16 but found Float8_e4m3fn"
FP8_UNMET = r"NotImplementedError: FP8 KV cache on CPU requires"
ATTENTION, CONFIG, WEIGHTS = "attention_backend_unsupported", "config_invalid", "weights_corrupt_or_missing"
NAMED_FILES = r"FileNotFoundError: Weight files referenced in index but missing"
SPACE = {"kv-cache-memory-bytes": None}


def cache(name: str, what: str, model: str, length: int, size: str, **arguments: Any) -> Case:
    """A healthy launch whose KV cache has another form."""
    given = {"max-model-len": length, "kv-cache-memory-bytes": size}
    given.update({name.replace("_", "-"): value for name, value in arguments.items()})
    return Case(f"cache-{name}", what, model=model, arguments=given)


HEALTHY = (
    Case("kimi", "Kimi, patched"),
    Case("kimi-two-ranks", "Kimi, patched, two ranks", arguments=TWO_RANKS),
    Case("kimi-text", "Kimi, patched, text only", arguments={"language-model-only": True}),
    Case(
        "kimi-cache-argument", "Kimi, unpatched, BF16 cache by argument", arguments={"kv-cache-dtype": "bfloat16"},
        patched=False,
    ),
    Case(
        "kimi-compressed", "Kimi with compressed-tensors' FP8 scheme, which latent attention ignores",
        harm=configure(quantization_config=COMPRESSED), patched=False,
    ),
    Case("llama", "Llama", model=LLAMA),
    Case("config-forbidden", "Llama, its config.json closed to the service's user, of which the view has a copy",
         model=LLAMA, harm=forbid("config.json")),
    Case("llama-two-ranks", "Llama, two ranks", model=LLAMA, arguments=TWO_RANKS),
    cache("kimi-20m", "Kimi, 20 MiB of cache, its dtype named", KIMI, 512, "20M", kv_cache_dtype="bfloat16"),
    cache("kimi-33m", "Kimi, 33 MiB of cache, two ranks, 2048 tokens", KIMI, 2048, "33M", tensor_parallel_size=2),
    cache("kimi-block", "Kimi, 12 MiB of cache in blocks of 32", KIMI, 1000, "12M", block_size=32),
    cache("llama-7m", "Llama, 7 MiB of cache, two ranks", LLAMA, 512, "7M", tensor_parallel_size=2),
    cache("llama-block", "Llama, 9 MiB of cache in blocks of 32", LLAMA, 700, "9M", block_size=32),
    cache("llama-float16", "Llama in float16, 16 MiB of cache", LLAMA, 2048, "16M", dtype="float16"),
    Case(
        "cache-llama-space", "Llama, cache by VLLM_CPU_KVCACHE_SPACE", model=LLAMA, arguments=SPACE,
        environment={"VLLM_CPU_KVCACHE_SPACE": "1"},
    ),
)  # fmt: skip

CACHE_DTYPE = (
    Case(
        "fp8-by-checkpoint", "Kimi as it comes: its config.json asks for an FP8 cache", DIES_AT_REQUEST,
        "kv_cache_dtype", ATTENTION, FP8_MET, patched=False,
    ),
    Case(
        "fp8-by-quant-config", "the same by hf_quant_config.json, which counts when config.json says nothing",
        DIES_AT_REQUEST, "kv_cache_dtype", ATTENTION, FP8_MET, harm=harms.unquantised, patched=False,
    ),
    Case(
        "fp8-by-argument", "FP8 cache by argument", DIES_AT_REQUEST, "kv_cache_dtype", ATTENTION, FP8_MET,
        arguments={"kv-cache-dtype": "fp8"},
    ),
    Case("llama-nvfp4-cache", "NVFP4 cache, which this processor does not take", DIES, "attention_refused", ATTENTION,
         FP8_UNMET, LLAMA, arguments={"kv-cache-dtype": "nvfp4"}),
    Case("llama-int8-cache", "INT8 cache", DIES, "attention_refused", ATTENTION, FP8_UNMET, LLAMA,
         arguments={"kv-cache-dtype": "int8_per_token_head"}),
    Case(
        "nvfp4-weights", "NVFP4 weights, for which this host has no kernel", DIES, "model_refused",
        "quant_dtype_mismatch", r"ValueError: Failed to find a kernel that can implement the NVFP4 linear layer",
        harm=harms.quantised,
    ),
)  # fmt: skip

FILES = (
    Case("shard-missing", "a shard is missing", DIES, "shard_missing", WEIGHTS, NAMED_FILES, harm=remove(shard(3))),
    Case("index-ghost", "the index names a file that is not there", DIES, "shard_missing", WEIGHTS, NAMED_FILES,
         harm=harms.ghost),
    Case("shard-cut", "a shard is cut off", DIES, "shard_damaged", WEIGHTS, r"SafetensorError: .*incomplete metadata",
         harm=cut(shard(2), 100_000)),
    Case("shard-empty", "a shard is empty", DIES, "shard_damaged", WEIGHTS, r"SafetensorError: .*header too small",
         harm=cut(shard(2), 0)),
    Case("shard-pointer", "a shard is a Git LFS pointer", DIES, "shard_damaged", WEIGHTS,
         r"SafetensorError: .*header too large", harm=write(shard(2), harms.POINTER)),
    Case("index-cut", "the index is no JSON", DIES, "index_damaged", WEIGHTS, r"JSONDecodeError: ",
         harm=cut(harms.INDEX, 500)),
    Case("no-weights", "no weights", DIES, "weights_missing", WEIGHTS, r"RuntimeError: Cannot find any model weights",
         LLAMA, remove("model.safetensors")),
    Case("weights-forbidden", "the service's user may not read the weights", DIES, "file_forbidden", WEIGHTS,
         r"FileNotFoundError: No such file or directory: \S*model\.safetensors", LLAMA, forbid("model.safetensors")),
    Case("shape", "a tensor's shape does not fit", DIES, "shape_mismatch", "weights_mismatch",
         r"RuntimeError: start \(0\) \+ length \(512\) exceeds dimension size \(100\)", LLAMA, harms.short_up),
    Case("half-missing", "half of a fused pair is missing", ANSWERS_WRONGLY, "fused_half_missing", model=LLAMA,
         harm=harms.without_up),
    Case("more-experts", "config.json names more experts than there are", DIES, "experts_mismatch", "weights_mismatch",
         r"AssertionError: Tried to load weights of size", harm=configure(n_routed_experts=16)),
    Case("larger-vocabulary", "config.json names a larger vocabulary", DIES, "shape_mismatch", "weights_mismatch",
         r"AssertionError$", harm=configure(vocab_size=400)),
    Case("no-config", "no config.json", DIES, "engine_config", CONFIG,
         r"Invalid repository ID or local directory specified", LLAMA, remove("config.json")),
    Case("config-cut", "config.json is no JSON", DIES, "engine_config", WEIGHTS, r"JSONDecodeError: ", LLAMA,
         cut("config.json", 60)),
    Case("no-tokenizer", "no tokenizer.json", DIES, "engine_config", "tokenizer_or_remote_code",
         r"Couldn't instantiate the backend tokenizer", LLAMA, remove("tokenizer.json")),
    Case("tokenizer-cut", "tokenizer.json is cut off", DIES, "engine_config", "tokenizer_or_remote_code", r"", LLAMA,
         cut("tokenizer.json", 900)),
    Case("rope-misspelt", "config.json names a type of rope that does not exist", DIES, "model_refused", CONFIG,
         r"KeyError: 'original_max_position_embeddings'",
         harm=configure(rope_scaling={"rope_type": "yarm", "factor": 4.0})),
)  # fmt: skip

ARGUMENTS_REFUSED = (
    Case("architecture", "an unknown architecture", DIES, "engine_config", "model_arch_unsupported",
         r"Model architectures \['FooBarForCausalLM'\] are not supported", LLAMA,
         configure(architectures=["FooBarForCausalLM"])),
    Case("model-type", "an unknown type of model", DIES, "engine_config", "model_arch_unsupported",
         r"model type `foobar` but Transformers does not recognize", LLAMA,
         configure(architectures=["FooBarForCausalLM"], model_type="foobar")),
    Case("quantisation", "an unknown quantisation", DIES, "engine_config", "quant_dtype_mismatch",
         r"Unknown quantization method: foo", LLAMA, configure(quantization_config={"quant_method": "foo"})),
    Case("float32", "a dtype that the checkpoint's quantisation does not take", DIES, "engine_config",
         "quant_dtype_mismatch", r"torch\.float32 is not supported for quantization method",
         arguments={"dtype": "float32"}),
    Case("three-ranks", "ranks that do not divide the heads", DIES, "engine_config", CONFIG,
         r"must be divisible by tensor parallel size", LLAMA, arguments={"tensor-parallel-size": 3}),
    Case("odd-width", "ranks that do not divide the width of the feed-forward layers", DIES, "model_refused", CONFIG,
         r"AssertionError$", LLAMA, configure(intermediate_size=511), TWO_RANKS),
    Case("odd-experts", "ranks that do not divide the width of the experts", DIES, "model_refused", CONFIG,
         r"AssertionError$", harm=configure(moe_intermediate_size=33), arguments=TWO_RANKS),
    Case("odd-keys", "heads of keys and values that ranks do not divide", DIES, "model_refused", CONFIG,
         r"AssertionError$", LLAMA, configure(num_key_value_heads=3), TWO_RANKS),
    Case("context-ranks", "context of too few heads spread over ranks", DIES, "engine_config", CONFIG,
         r"Decode context parallelism for GQA/MQA requires", LLAMA,
         arguments={**TWO_RANKS, "decode-context-parallel-size": 2}),
    Case("copies", "copies of experts, and nothing that balances them", DIES, "engine_config", CONFIG,
         r"but EPLB is not enabled",
         arguments={**TWO_RANKS, "enable-expert-parallel": True, "eplb-config": {"num_redundant_experts": 2}}),
    Case("long-context", "a context longer than the model's", DIES, "engine_config", CONFIG,
         r"User-specified max_model_len \(100000\) is greater", LLAMA, arguments={"max-model-len": 100_000}),
    Case("unknown-argument", "an unknown argument", DIES, "serve_arguments", CONFIG, r"unrecognized arguments", LLAMA,
         arguments={"no-such-flag": 1}),
    Case("bad-number", "an argument that is no number", DIES, "serve_arguments", CONFIG,
         r"argument --max-model-len: invalid", LLAMA, arguments={"max-model-len": "abc"}),
    Case("cache-dtype", "an unknown dtype of the cache", DIES, "serve_arguments", CONFIG,
         r"argument --kv-cache-dtype: invalid choice", LLAMA, arguments={"kv-cache-dtype": "fp9"}),
    Case("tool-parser", "an unknown tool parser", DIES, "engine_config", CONFIG, r"invalid tool call parser: nope",
         LLAMA, arguments={"tool-call-parser": "nope", "enable-auto-tool-choice": True}),
    Case("attention-backend", "an unknown attention backend", DIES, "engine_config", CONFIG,
         r"Unknown attention backend: 'NOPE'", LLAMA, arguments={"attention-backend": "NOPE"}),
    Case("not-json", "an argument that is no JSON", DIES, "engine_config", CONFIG, r"", LLAMA,
         arguments={"hf-overrides": "{nonsense"}),
    Case("chat-template", "a chat template with an error: the first chat is refused", DIES_AT_REQUEST, "chat_template",
         "", r"", LLAMA, arguments={"chat-template": "{% for message in messages %}{{ message.content }"}),
)  # fmt: skip

HOST = (
    Case("no-block", "a cache without room for a block", DIES, "context_does_not_fit", "kv_cache_too_small",
         r"ValueError: No available memory for the cache blocks", arguments={"kv-cache-memory-bytes": 4096}),
    Case("cache-900g", "a cache larger than the host", DIES, "kv_cache_too_large", "kv_cache_too_small",
         r"ValueError: Available memory on node 0 .* is less than requested memory for kv",
         arguments={"kv-cache-memory-bytes": "900G"}),
    Case("space-900", "the same by VLLM_CPU_KVCACHE_SPACE", DIES, "kv_cache_too_large", "kv_cache_too_small",
         r"ValueError: Available memory on node 0 .* is less than requested memory for kv", LLAMA, arguments=SPACE,
         environment={"VLLM_CPU_KVCACHE_SPACE": "900"}),
    Case("context-over-cache", "a context larger than the cache", DIES, "context_does_not_fit", "kv_cache_too_small",
         r"ValueError: To serve at least one request", LLAMA, configure(max_position_embeddings=10_000_000),
         {"max-model-len": 5_000_000}),
    Case("shm-one-rank", "/dev/shm of 64 MiB", DIES, "shm_too_small", "shm_exhausted",
         r"RuntimeError: Insufficient space in /dev/shm", LLAMA, host=Host(shm="64m")),
    Case("shm-two-ranks", "/dev/shm of 64 MiB, two ranks", DIES, "shm_too_small", "shm_exhausted",
         r"RuntimeError: Insufficient space in /dev/shm", LLAMA, arguments=TWO_RANKS, host=Host(shm="64m")),
    Case("few-files", "a unit that may open 40 files", DIES, "nofile", "host_limits", r"socket: Too many open files",
         LLAMA, host=Host(nofile=40)),
    Case("port-taken", "the port belongs to somebody else", DIES, "port_in_use", "port_in_use",
         r"OSError: \[Errno 98\] Address already in use", LLAMA, host=Host(port_taken=True)),
    Case("binding", "processors for one rank, and two ranks", DIES, "cpu_binding", CONFIG,
         r"AssertionError: Given number of CPU id list", LLAMA, arguments=TWO_RANKS,
         environment={"VLLM_CPU_OMP_THREADS_BIND": "0"}),
    Case("nodes", "more ranks than the host has NUMA nodes", DIES, "cpu_binding", CONFIG,
         r"AssertionError: Not enough allowed NUMA nodes", LLAMA, arguments={"tensor-parallel-size": 8},
         environment={"VLLM_CPU_OMP_THREADS_BIND": "auto"}),
    Case("variable", "a port of the environment that is a URI", DIES, "environment", CONFIG, r"appears to be a URI",
         LLAMA, environment={"VLLM_PORT": "tcp://192.0.2.1:8000"}),
)  # fmt: skip

SECTIONS = {
    "Healthy launches": HEALTHY,
    "Dtypes": CACHE_DTYPE,
    "The model's files": FILES,
    "Arguments and configuration": ARGUMENTS_REFUSED,
    "The host": HOST,
}
CASES = tuple(case for cases in SECTIONS.values() for case in cases)
