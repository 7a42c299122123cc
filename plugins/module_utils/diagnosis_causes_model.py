# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Failures that lie in the arguments, the checkpoint or its files. The form of an entry is in ``diagnosis_cause``."""

from __future__ import annotations

from ansible_collections.llmops.vllm.plugins.module_utils.diagnosis_cause import Cause, cause

FP8_KV_REMEDY = (
    "add the patch set disable_fp8_kv_cache to vllm_service_patch_sets (removes the FP8 KV-cache settings from "
    "config.json and hf_quant_config.json), or set vllm_service_arguments_extra.kv-cache-dtype: bfloat16"
)
_FP8_KV_CONTEXTS = (r"kv_cache_dtype=fp8", r"Using fp8\w* data type to store kv cache", r"kv_cache_dtype.{0,4}fp8")
_FP8_KV_SOURCE = "https://github.com/vllm-project/vllm/issues/32732"
_WEIGHTS_REMEDY = (
    "let model_shards verify and repair the snapshot (model_store_verify: full); damaged or missing files are "
    "fetched again"
)
_ARGUMENT = "correct the argument in vllm_service_arguments_extra"
_SELECTOR = "ValueError: No valid attention backend found for cuda with AttentionSelectorConfig(head_size=576, "

MODEL_CAUSES: tuple[Cause, ...] = (
    # --- the KV cache's type and the attention backends
    cause(
        "attention_backend_unsupported",
        "the arguments ask for an FP8 KV cache that no attention backend here takes",
        r"expected scalar type \w+ but found Float8_e4m3|expected scalar type Float8_e4m3\w* but found|"
        r"No valid attention backend found.*kv_cache_dtype",
        "remove vllm_service_arguments_extra.kv-cache-dtype or set it to bfloat16; if the checkpoint asks for FP8 "
        "as well, also add the patch set disable_fp8_kv_cache to vllm_service_patch_sets",
        "RuntimeError: expected scalar type BFloat16 but found Float8_e4m3fn",
        contexts=(r"non-default args:.*'kv_cache_dtype': 'fp8",),
        source=_FP8_KV_SOURCE,
    ),
    cause(
        "attention_backend_unsupported",
        "the checkpoint asks for an FP8 KV cache that no attention backend here takes",
        r"expected scalar type \w+ but found Float8_e4m3|expected scalar type Float8_e4m3\w* but found",
        FP8_KV_REMEDY,
        "RuntimeError: expected scalar type BFloat16 but found Float8_e4m3fn",
        contexts=_FP8_KV_CONTEXTS,
        source=_FP8_KV_SOURCE,
    ),
    cause(
        "attention_backend_unsupported",
        "the checkpoint asks for an FP8 KV cache that no attention backend here takes",
        r"No valid attention backend found.*kv_cache_dtype=fp8",
        FP8_KV_REMEDY,
        _SELECTOR + "kv_cache_dtype=fp8, use_mla=True). Reasons: {}.",
        source=_FP8_KV_SOURCE,
        versions="0.14 to 0.17 with MLA on compute capability 12.x",
    ),
    cause(
        "attention_backend_unsupported",
        "the checkpoint asks for an FP8 KV cache that no attention backend here takes",
        r"No valid attention backend found.*kv_cache_dtype not supported",
        FP8_KV_REMEDY,
        _SELECTOR + "use_mla=True). Reasons: {TRITON_MLA: [kv_cache_dtype not supported]}.",
        contexts=_FP8_KV_CONTEXTS,
        source=_FP8_KV_SOURCE,
        versions="0.14 to 0.17 with MLA on compute capability 12.x",
    ),
    cause(
        "attention_backend_unsupported",
        "no attention backend of this vLLM takes the KV cache's type",
        r"No valid attention backend found.*kv_cache_dtype not supported|"
        r"No valid attention backend found.*kv_cache_dtype=",
        "set vllm_service_arguments_extra.kv-cache-dtype to one that a backend named in the line takes, or remove "
        "it; on vLLM 0.14 only auto with the patch set disable_fp8_kv_cache works",
        _SELECTOR + "kv_cache_dtype=bfloat16, use_mla=True). Reasons: {}.",
        source="https://github.com/vllm-project/vllm/issues/42587",
    ),
    cause(
        "attention_backend_unsupported",
        "the CPU's attention does not take a quantised KV cache here",
        r"FP8 KV cache (?:on CPU )?requires",
        "remove vllm_service_arguments_extra.kv-cache-dtype or set it to bfloat16; if the checkpoint asks for FP8 "
        "as well, also add the patch set disable_fp8_kv_cache to vllm_service_patch_sets",
        "NotImplementedError: FP8 KV cache on CPU requires x86 with AVX-512 or AMX.",
        source="vllm/v1/attention/backends/cpu_attn.py, _get_attn_isa",
    ),
    cause(
        "attention_backend_unsupported",
        "no attention backend takes this head size, type or GPU",
        r"No valid (?:MLA |vision )?attention backend|Only SM \d+\.x|only supports? (?:head|SM)|"
        r"FlashAttention (?:only|does not) support|[Hh]ead size \d+ is not supported|Unsupported head size|"
        r"[Aa]ttention backend .* (?:is )?(?:not support|not valid for)|FlashMLA .*(?:not supported|is only supported)|"
        r"Selected backend \S+ is not valid|No (?:usable|suitable) attention backend|DCP requires attention impl",
        "choose another backend with vllm_service_arguments_extra.attention-backend (or mm-encoder-attn-backend "
        "when the vision tower is named; language-model-only leaves it out)",
        "AssertionError: Only SM 10.x and 11.x are supported",
    ),
    cause(
        "config_invalid",
        "the attention backend of that name does not exist",
        r"Unknown attention backend",
        _ARGUMENT + " (attention-backend)",
        "ValueError: Unknown attention backend: 'NOPE'. Valid options are: FLASH_ATTN, TRITON_MLA",
    ),
    # --- arguments and configuration
    cause(
        "config_invalid",
        "vLLM does not know an argument",
        r"error: unrecognized arguments|error: ambiguous option",
        "remove the argument from vllm_service_arguments_extra, or use a vLLM version that has it",
        "vllm: error: unrecognized arguments: --no-such-flag 1",
    ),
    cause(
        "config_invalid",
        "an argument has a value that vLLM refuses",
        r"^(?:vllm(?: serve)?|\S*api_server\.py): error: (?!unrecognized|ambiguous)|error: argument --",
        _ARGUMENT,
        "vllm serve: error: argument --kv-cache-dtype: invalid choice: 'bogus'",
    ),
    cause(
        "config_invalid",
        "the parallel size does not fit the model or the host",
        r"must be divisible by tensor parallel size|% (?:self\.)?(?:tp|ep)_size == 0|"
        r"(?<!min_thread_n = \d\d )\bis not divisible by (?:\d+|tp_size|tensor|the tensor)\b|"
        r"World size \(\d+\) is larger than|must be divisible by (?:tp|ep|dp|world)_size|"
        r"decode_context_parallel|dcp_world_size|data_parallel_size\b.*must",
        "set vllm_service_arguments_extra.tensor-parallel-size to a divisor of the number of attention heads, no "
        "larger than the number of GPUs",
        "  Value error, Total number of attention heads (8) must be divisible by tensor parallel size (3).",
    ),
    cause(
        "config_invalid",
        "the requested context is longer than the model's",
        r"User-specified max_model_len|is greater than the derived max_model_len",
        "lower vllm_service_arguments_extra.max-model-len to the model's own limit",
        "  Value error, User-specified max_model_len (100000) is greater than the derived max_model_len (4096)",
    ),
    cause(
        "config_invalid",
        "the parser of that name does not exist",
        r"invalid (?:tool call|reasoning) parser|Tool (?:call )?parser .* not found|[Rr]easoning parser .* not found",
        _ARGUMENT + " (tool-call-parser, reasoning-parser)",
        "KeyError: 'invalid tool call parser: nope (chose from { kimi_k2 })'",
    ),
    cause(
        "config_invalid",
        "the CPU binding does not fit the number of workers",
        r"Given number of CPU id list|Not enough allowed NUMA nodes",
        "set VLLM_CPU_OMP_THREADS_BIND in vllm_service_environment (one entry per worker, or nobind)",
        "AssertionError: Given number of CPU id list ['0'] doesn't match local world size 2",
    ),
    cause(
        "config_invalid",
        "a limit of the scheduler does not fit another",
        r"max_num_batched_tokens \(\d+\) (?:is smaller|must be)|max_num_batched_tokens .*max_(?:model_len|num_seqs)|"
        r"block_size .*must be|max_num_seqs .*must",
        _ARGUMENT + " (max-num-batched-tokens, max-num-seqs, max-model-len, block-size)",
        "  Value error, max_num_batched_tokens (2048) is smaller than max_model_len (8192).",
    ),
    cause(
        "config_invalid",
        "a variable of the environment has a value that vLLM cannot use",
        r"VLLM_PORT .*(?:URI|int)|appears to be a URI|invalid literal for int\(\) with base 10: '(?:tcp|http)|"
        r"Unknown (?:VLLM )?environment variable",
        "correct it in vllm_service_environment_extra; VLLM_PORT is the engine's internal port, and Kubernetes sets "
        "it for a service that is named vllm",
        "ValueError: VLLM_PORT 'tcp://192.0.2.1:8000' appears to be a URI. This may be caused by a Kubernetes service",
    ),
    cause(
        "model_arch_unsupported",
        "this vLLM does not know the model's architecture",
        r"Model architectures? \[.*\] (?:are|is) not supported|but Transformers does not recognize|"
        r"make_empty_intermediate_tensors|has no vLLM implementation|Cannot find model module|"
        r"Unrecognized model in|does not recognize this architecture|Unknown gguf model_type",
        "use a runtime lock with a vLLM (and transformers) that knows this architecture (vllm_runtime_lock)",
        "  Value error, Model architectures ['FooForCausalLM'] are not supported for now.",
    ),
    cause(
        "tokenizer_or_remote_code",
        "tokenizer files are missing or damaged",
        r"Couldn't instantiate the backend tokenizer|tokenizer\.json|Can't load tokenizer|"
        r"Received a \w*Tokenizer\w* for argument|Tokenizer class \S+ does not exist|Unable to load vocabulary|"
        r"tokenizer_config\.json|Error parsing line .* in .*\.model",
        "let model_shards fetch the tokenizer's files too (model_store_include), or verify them",
        "ValueError: Couldn't instantiate the backend tokenizer from one of:",
    ),
    cause(
        "tokenizer_or_remote_code",
        "the model needs Python code that is not there or not allowed",
        r"does not appear to have a file named \S+\.py|No module named 'transformers_modules|"
        r"trust_remote_code|[Rr]emote code|contains custom code which must be executed|"
        r"No such file or directory: '\S*/blobs/\S*\.py|requires you to execute the (?:configuration|model|tokenizer)",
        "include *.py in the snapshot (model_store_include) and set vllm_service_arguments_extra.trust-remote-code "
        "after reading it",
        "OSError: /srv/llm/m does not appear to have a file named configuration_kimi.py. Checkout the hub",
    ),
    # --- the hub and the files
    cause(
        "hf_auth_or_rate_limit",
        "the hub refused the request",
        r"40[134] Client Error|429 Client Error|GatedRepoError|Too Many Requests|RepositoryNotFoundError|gated repo|"
        r"Access to model \S+ is restricted|Invalid user token|RevisionNotFoundError|"
        r"No supported config format found in",
        "fetch the model with model_shards (token in model_store_token_file) and serve it from the store",
        "requests.exceptions.HTTPError: 401 Client Error: Unauthorized for url: https://hub.example/m/config.json",
    ),
    cause(
        "config_invalid",
        "the model's path is not there, so it was taken for a hub name",
        r"Repo id must (?:be in the form|use alphanumeric)|LocalEntryNotFoundError|"
        r"couldn't connect to 'https://|NameResolutionError|Max retries exceeded with url: /|"
        r"is not a local folder|Invalid repository ID or local directory|"
        r"Can't load the configuration of|Cannot find an appropriate cached snapshot|OfflineModeIsEnabled",
        "check that the release's model directory exists and holds config.json; the service must be given "
        "its absolute path",
        "huggingface_hub.errors.HFValidationError: Repo id must be in the form 'repo_name' or 'namespace/repo_name'",
    ),
    cause(
        "weights_corrupt_or_missing",
        "a shard is missing",
        r"Weight files referenced in index but missing",
        _WEIGHTS_REMEDY,
        "FileNotFoundError: Weight files referenced in index but missing: {'/srv/llm/m/model-00003-of-00119'}",
    ),
    cause(
        "weights_corrupt_or_missing",
        "a shard is truncated, empty, unreadable or a Git LFS pointer",
        r"SafetensorError|[Ee]rror while deserializing header|MetadataIncompleteBuffer|HeaderTooLarge|"
        r"PytorchStreamReader failed|invalid load key|UnpicklingError|Consistency check failed|"
        r"\[Errno 5\] Input/output error|\[Errno 107\] |[Ss]tale file handle|GGUF magic invalid",
        _WEIGHTS_REMEDY,
        "safetensors._safetensors_rust.SafetensorError: Error while deserializing header: header too large",
    ),
    cause(
        "weights_corrupt_or_missing",
        "the weights are missing, or the service's user may not read them",
        r"Cannot find any model weights|Error no file named|Unable to load weights|"
        r"No such file or directory: .*(?:safetensors|\.bin|\.gguf)\b|"
        r"Permission denied: .*(?:safetensors|\.json|\.bin|\.gguf)|"
        r"does not appear to have (?:a file|files) named \S*(?:model|pytorch)\S*\.(?:safetensors|bin)",
        "check that the service's user may read the files (safetensors writes mode 0600 and the loader reports a "
        "refused shard as missing); then " + _WEIGHTS_REMEDY,
        "RuntimeError: Cannot find any model weights with `/srv/llm/m`",
    ),
    cause(
        "weights_corrupt_or_missing",
        "a JSON file of the checkpoint is damaged",
        r"is not a valid JSON file|JSONDecodeError: (?:Unterminated|Expecting property name|Extra data|"
        r"Invalid control)|UnicodeDecodeError: 'utf-8' codec can't decode byte",
        _WEIGHTS_REMEDY,
        "OSError: It looks like the config file at '/srv/llm/m/config.json' is not a valid JSON file.",
    ),
    cause(
        "weights_mismatch",
        "the tensors do not have the names or shapes that config.json promises",
        r"Attempted to load weight \(|Tried to load weights of size|exceeds dimension size|size mismatch for|"
        r"The size of tensor a \(\d+\) must match|"
        r"loaded_weight\.shape|KeyError: '(?:[\w.]*\blayers\.\d|model\.|language_model\.|lm_head\.|vision)|"
        r"no module or parameter named|[Ff]ollowing weights were not initialized|"
        r"shape .* (?:is invalid for input|does not match)|narrow\(\): length must be|param\.(?:size|shape|data)",
        "serve the config.json of the same commit as the weights; review vllm_service_patches and hf-overrides",
        "AssertionError: Attempted to load weight (torch.Size([8])) into parameter (torch.Size([16]))",
    ),
    cause(
        "quant_dtype_mismatch",
        "no kernel for this quantisation or type on this GPU",
        r"Failed to find a kernel that can implement|is not supported for quantization method|"
        r"Unknown quantization method|quantization method .* (?:is )?not supported|"
        r"does not support (?:nvfp4|fp8|fp4|mxfp4)|[Qq]uantization .* does not match|Unsupported quantization|"
        r"[Bb]float16 is only supported on GPUs|fp8e4nv.{0,20}not supported|Minimum capability: \d+|"
        r"not aligned with the quantized weight shape|min_thread_[nk] = |"
        r"No \w+ MoE backend supports|"
        r"(?:MoE|linear) backend \S+ does not support|no (?:NVFP4|MXFP4|FP8) .*backend|"
        r"Cannot find the config file for \w+",
        "choose a checkpoint whose quantisation this GPU generation and vLLM support, or another vLLM "
        "(vllm_runtime_lock)",
        "ValueError: torch.bfloat16 is not supported for quantization method awq. Supported dtypes: [torch.float16]",
    ),
)

MODEL_LAST_CAUSES: tuple[Cause, ...] = (
    cause(
        "output_corruption_nan",
        "the model produces NaN",
        r"Out of range float values are not JSON compliant|probability tensor contains either `?inf|"
        r"(?:logits|hidden states?|outputs?) contains? (?:NaN|nan)",
        "stop serving; try kv-cache-dtype bfloat16, another attention backend or another vLLM version",
        "ValueError: Out of range float values are not JSON compliant: nan",
    ),
    cause(
        "stale_cache",
        "a compile cache does not fit this engine",
        r"hash of the compiled graph|not enough values to unpack \(expected \d+, got \d+\)|FX graph cache|"
        r"AOT compile.*(?:corrupt|mismatch)|No such file or directory: .*(?:torch_compile_cache|torchinductor|"
        r"\.triton/cache)",
        "remove the compile cache of this runtime (VLLM_CACHE_ROOT) and start again",
        "AssertionError: failed to get the hash of the compiled graph",
    ),
    cause(
        "request_triggered_bug",
        "one request crashed the engine",
        r"Attempted to assign .* multimodal tokens to \d+ placeholders|"
        r"Sampled token IDs exceed|grammar.*(?:rejected|crash)|Request \S+ .* caused",
        "use a vLLM version with the fix; limit such requests until then",
        "ValueError: Attempted to assign 5 x 256 = 1280 multimodal tokens to 1024 placeholders",
    ),
    cause(
        "config_invalid",
        "a file of arguments is no valid YAML",
        r"yaml\.\w+\.\w+Error",
        "correct vllm_service_arguments_extra and let the role write the file again; the lines below the evidence name "
        "the place",
        "yaml.scanner.ScannerError: mapping values are not allowed here",
        source="PyYAML",
    ),
    cause(
        "config_invalid",
        "a value of the configuration is refused",
        r"^Value error, (?!Model arch)|object has no attribute 'is_kv_transfer_instance'|rope_(?:type|scaling)|"
        r"original_max_position_embeddings|Unrecognized configuration class|Unknown RoPE scaling|"
        r"(?:is|are) (?:not|only) supported (?:with|when|together)|cannot be used (?:with|together)|"
        r"LoRA rank \d+ is greater than|"
        r"[Pp]ipeline parallel\w* (?:is|are) (?:not|only)|Please (?:set|use|specify|pass|provide) .?--[a-z]",
        _ARGUMENT + ", or the patch of config.json in vllm_service_patches",
        "KeyError: 'original_max_position_embeddings'",
    ),
    cause(
        "config_invalid",
        "the configuration does not validate",
        r"ValidationError: \d+ validation errors? for",
        "correct the field that the lines below the evidence name, in vllm_service_arguments_extra or by "
        "vllm_service_patches",
        "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig",
    ),
)
