# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is known about failing launches, as data: how the root line looks, what it means, what to do.

``CAUSES`` is ordered: the first entry whose ``root`` matches a line wins for that line, so the narrow ones come first.
An entry with ``contexts`` holds only if another line of the same launch matches one of them; these become evidence.
An entry ``at_warning`` counts in a line of level WARNING as well, where others are taken for noise.
The wording comes from the engine's sources and logs, 0.6 to 0.33, and from reports that ``source`` names.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from re import Pattern


@dataclass(frozen=True)
class Cause:
    """One kind of failure; ``remedy`` names this collection's variables where one exists."""

    cause_class: str
    title: str
    root: Pattern[str]
    remedy: str
    source: str
    contexts: tuple[Pattern[str], ...] = ()
    at_warning: bool = False


def _cause(
    cause_class: str,
    title: str,
    root: str,
    remedy: str,
    *,
    contexts: tuple[str, ...] = (),
    source: str = "vLLM log",
    at_warning: bool = False,
) -> Cause:
    patterns = tuple(re.compile(context) for context in contexts)
    return Cause(cause_class, title, re.compile(root), remedy, source, patterns, at_warning)


FP8_KV_REMEDY = (
    "add the patch set disable_fp8_kv_cache to vllm_service_patch_sets (removes the FP8 KV-cache settings "
    "from config.json "
    "and hf_quant_config.json), or set vllm_service_arguments_extra.kv-cache-dtype: bfloat16"
)
_FP8_KV_CONTEXTS = (r"kv_cache_dtype=fp8", r"Using fp8\w* data type to store kv cache", r"kv_cache_dtype.{0,4}fp8")
_WEIGHTS_REMEDY = (
    "let model_shards verify and repair the snapshot (model_store_verify: full); damaged or missing "
    "files are fetched again"
)
_LESS_MEMORY = (
    "lower vllm_service_arguments_extra.max-model-len, max-num-seqs or gpu-memory-utilization, or spread the "
    "model over more GPUs "
    "(tensor-parallel-size)"
)
_MORE_KV = "lower vllm_service_arguments_extra.max-model-len or raise gpu-memory-utilization (or kv-cache-memory-bytes)"
_PACKAGES = (
    "use a runtime lock whose packages were resolved together (vllm_runtime_lock); do not upgrade single packages in it"
)
_ARGUMENT = "correct the argument in vllm_service_arguments_extra"

CAUSES: tuple[Cause, ...] = (
    # --- the KV cache's type and the attention backends
    _cause(
        "attention_backend_unsupported",
        "the arguments ask for an FP8 KV cache that no attention backend here takes",
        r"expected scalar type \w+ but found Float8_e4m3|expected scalar type Float8_e4m3\w* but found|"
        r"No valid attention backend found.*kv_cache_dtype",
        "remove vllm_service_arguments_extra.kv-cache-dtype or set it to bfloat16; if the checkpoint asks for FP8 "
        "as well, also add "
        "the patch set disable_fp8_kv_cache to vllm_service_patch_sets",
        contexts=(r"non-default args:.*'kv_cache_dtype': 'fp8",),
        source="https://github.com/vllm-project/vllm/issues/32732",
    ),
    _cause(
        "attention_backend_unsupported",
        "the checkpoint asks for an FP8 KV cache that no attention backend here takes",
        r"expected scalar type \w+ but found Float8_e4m3|expected scalar type Float8_e4m3\w* but found",
        FP8_KV_REMEDY,
        contexts=_FP8_KV_CONTEXTS,
        source="https://github.com/vllm-project/vllm/issues/32732",
    ),
    _cause(
        "attention_backend_unsupported",
        "the checkpoint asks for an FP8 KV cache that no attention backend here takes",
        r"No valid attention backend found.*kv_cache_dtype=fp8",
        FP8_KV_REMEDY,
        source="https://github.com/vllm-project/vllm/issues/32732",
    ),
    _cause(
        "attention_backend_unsupported",
        "the checkpoint asks for an FP8 KV cache that no attention backend here takes",
        r"No valid attention backend found.*kv_cache_dtype not supported",
        FP8_KV_REMEDY,
        contexts=_FP8_KV_CONTEXTS,
        source="https://github.com/vllm-project/vllm/issues/32732",
    ),
    _cause(
        "attention_backend_unsupported",
        "no attention backend of this vLLM takes the KV cache's type",
        r"No valid attention backend found.*kv_cache_dtype not supported|"
        r"No valid attention backend found.*kv_cache_dtype=",
        "set vllm_service_arguments_extra.kv-cache-dtype to one that a backend named in the line takes, or remove "
        "it; on vLLM 0.14 "
        "only auto with the patch set disable_fp8_kv_cache works",
        source="https://github.com/vllm-project/vllm/issues/42587",
    ),
    _cause(
        "attention_backend_unsupported",
        "no attention backend takes this head size, type or GPU",
        r"No valid (?:MLA |vision )?attention backend|Only SM \d+\.x|only supports? (?:head|SM)|"
        r"FlashAttention (?:only|does not) "
        r"support|Head size \d+ is not supported|[Aa]ttention backend .* (?:is )?not support",
        "choose another backend with vllm_service_arguments_extra.attention-backend (or mm-encoder-attn-backend "
        "when the vision "
        "tower is named; language-model-only leaves it out)",
    ),
    _cause(
        "config_invalid",
        "the attention backend of that name does not exist",
        r"Unknown attention backend",
        _ARGUMENT + " (attention-backend)",
    ),
    # --- arguments and configuration
    _cause(
        "config_invalid",
        "vLLM does not know an argument",
        r"error: unrecognized arguments|error: ambiguous option",
        "remove the argument from vllm_service_arguments_extra, or use a vLLM version that has it",
    ),
    _cause(
        "config_invalid",
        "an argument has a value that vLLM refuses",
        r"^(?:vllm(?: serve)?|api_server\.py): error: |error: argument --",
        _ARGUMENT,
    ),
    _cause(
        "config_invalid",
        "the parallel size does not divide the model",
        r"must be divisible by tensor parallel size|is not divisible by|World size \(\d+\) is larger than",
        "set vllm_service_arguments_extra.tensor-parallel-size to a divisor of the number of attention heads",
    ),
    _cause(
        "config_invalid",
        "the requested context is longer than the model's",
        r"User-specified max_model_len|is greater than the derived max_model_len",
        "lower vllm_service_arguments_extra.max-model-len to the model's own limit",
    ),
    _cause(
        "config_invalid",
        "the parser of that name does not exist",
        r"invalid (?:tool call|reasoning) parser|Tool (?:call )?parser .* not found|reasoning parser .* not found",
        _ARGUMENT + " (tool-call-parser, reasoning-parser)",
    ),
    _cause(
        "config_invalid",
        "the CPU binding does not fit the number of workers",
        r"Given number of CPU id list|Not enough allowed NUMA nodes",
        "set VLLM_CPU_OMP_THREADS_BIND in vllm_service_environment (one entry per worker, or nobind)",
    ),
    _cause(
        "model_arch_unsupported",
        "this vLLM does not know the model's architecture",
        r"Model architectures? \[.*\] (?:are|is) not supported|but Transformers does not recognize|"
        r"make_empty_intermediate_tensors",
        "use a runtime lock with a vLLM (and transformers) that knows this architecture (vllm_runtime_lock)",
    ),
    _cause(
        "tokenizer_or_remote_code",
        "tokenizer files are missing or damaged",
        r"Couldn't instantiate the backend tokenizer|tokenizer\.json|Can't load tokenizer|"
        r"Received a \w*Tokenizer\w* for argument",
        "let model_shards fetch the tokenizer's files too (model_store_include), or verify them",
    ),
    _cause(
        "tokenizer_or_remote_code",
        "the model needs Python code that is not there or not allowed",
        r"does not appear to have a file named \S+\.py|trust_remote_code|[Rr]emote code",
        "include *.py in the snapshot (model_store_include) and set vllm_service_arguments_extra.trust-remote-code "
        "after reading it",
    ),
    # --- the hub and the files
    _cause(
        "hf_auth_or_rate_limit",
        "the hub refused the request",
        r"401 Client Error|403 Client Error|429 Client Error|GatedRepoError|Too Many Requests|"
        r"RepositoryNotFoundError|"
        r"No supported config format found in",
        "fetch the model with model_shards (token in model_store_token_file) and serve it from the store",
    ),
    _cause(
        "config_invalid",
        "the model's path is not there, so it was taken for a hub name",
        r"Repo id must be in the form|LocalEntryNotFoundError|couldn't connect to 'https://huggingface|"
        r"is not a local folder|"
        r"Invalid repository ID or local directory|Can't load the configuration of|"
        r"Cannot find an appropriate cached snapshot",
        "check that the release's model directory exists and holds config.json; the service must be given "
        "its absolute path",
    ),
    _cause(
        "weights_corrupt_or_missing",
        "a shard is missing",
        r"Weight files referenced in index but missing",
        _WEIGHTS_REMEDY,
    ),
    _cause(
        "weights_corrupt_or_missing",
        "a shard is truncated, empty or a Git LFS pointer",
        r"SafetensorError|[Ee]rror while deserializing header|MetadataIncompleteBuffer|HeaderTooLarge",
        _WEIGHTS_REMEDY,
    ),
    _cause(
        "weights_corrupt_or_missing",
        "the weights are missing, or the service's user may not read them",
        r"Cannot find any model weights|No such file or directory: .*(?:safetensors|\.bin|\.gguf)\b|"
        r"Permission denied: .*(?:safetensors|\.json|\.bin|\.gguf)",
        "check that the service's user may read the files (safetensors writes mode 0600 and the loader "
        "reports a refused "
        "shard as missing); then " + _WEIGHTS_REMEDY,
    ),
    _cause(
        "weights_corrupt_or_missing",
        "a JSON file of the checkpoint is damaged",
        r"is not a valid JSON file|JSONDecodeError: (?:Unterminated|Expecting property name|Extra data|"
        r"Invalid control)|"
        r"UnicodeDecodeError: 'utf-8' codec can't decode byte",
        _WEIGHTS_REMEDY,
    ),
    _cause(
        "weights_mismatch",
        "the tensors do not have the shapes that config.json promises",
        r"Attempted to load weight \(|exceeds dimension size|size mismatch for|"
        r"The size of tensor a \(\d+\) must match|"
        r"loaded_weight\.shape|KeyError: '(?:model\.|layers\.|language_model\.)|no module or parameter named|"
        r"[Ff]ollowing weights were not initialized",
        "serve the config.json of the same commit as the weights; review vllm_service_patches and hf-overrides",
    ),
    _cause(
        "quant_dtype_mismatch",
        "no kernel for this quantisation on this GPU",
        r"Failed to find a kernel that can implement|is not supported for quantization method|"
        r"Unknown quantization method|"
        r"quantization method .* (?:is )?not supported|does not support (?:nvfp4|fp8|fp4|mxfp4)|"
        r"[Qq]uantization .* does not match|Unsupported quantization",
        "choose a checkpoint whose quantisation this GPU generation and vLLM support, or another vLLM "
        "(vllm_runtime_lock)",
    ),
    # --- host: memory, limits, ports
    _cause(
        "dependency_mismatch",
        "the system library libnuma is missing",
        r"Failed to import from vllm\._C.*libnuma",
        "install libnuma1 (role host_prereq does)",
        at_warning=True,
    ),
    _cause(
        "dependency_mismatch",
        "vLLM's compiled extension could not be loaded",
        r"'_OpNamespace' '\w+' object has no attribute|undefined symbol",
        "install the missing system library (libnuma1 on CPUs), or use wheels built for this torch (vllm_runtime_lock)",
    ),
    _cause(
        "host_limits",
        "the service may not create more processes or threads",
        r"Resource temporarily unavailable|can't start new thread|pthread_create",
        "raise TasksMax of the unit (vllm_service_unit_settings) and the container's pids limit",
    ),
    _cause(
        "host_limits",
        "the service may not open more files",
        r"Too many open files",
        "raise LimitNOFILE of the unit to 65535 or more",
    ),
    _cause(
        "shm_exhausted",
        "/dev/shm is too small or full",  # noqa: S108 - a title
        r"Insufficient space in /dev/shm|failed to extend /dev/shm|No space left on device.*/dev/shm|"
        r"/dev/shm.*No space left",
        "enlarge /dev/shm (10 GiB and more for 8 GPUs) and run shm_cleanup",
    ),
    _cause(
        "shm_leftover",
        "a shared-memory segment disappeared or belongs to another launch",
        r"[Ee]rror while attaching to shared memory|FileNotFoundError: .*/psm_|vllm_offload\S*.*Bad address",
        "clean only with shm_cleanup, which leaves segments in use alone",
    ),
    _cause(
        "port_in_use",
        "the port is taken",
        r"Address already in use|EADDRINUSE|error while attempting to bind on address",
        "end or move the process that listens there (process_teardown names it), or choose another vllm_service_port",
    ),
    _cause(
        "host_oom_kill",
        "the host or the unit ran out of memory",
        r"oom-kill|Out of memory: Killed process|A process of this unit has been killed by the OOM killer|"
        r"FAILED: \[code=137\]|DefaultCPUAllocator: can't allocate memory",
        "give the host or the unit more memory, lower kv-cache-memory-bytes, or limit parallel compilers with MAX_JOBS",
    ),
    _cause(
        "memlock_limit",
        "the limit of locked memory is too low",
        r"ibv_reg_mr\w* .*Cannot allocate memory|memlock",
        "set LimitMEMLOCK=infinity in the unit",
    ),
    # --- GPU memory
    _cause(
        "orphan_after_kill",
        "processes of an earlier launch still hold the GPU",
        r"Free memory on device .* is less than desired",
        "end them with process_teardown (selector orphans) and start again",
        contexts=(r"VLLM::(?:EngineCore|Worker)",),
    ),
    _cause(
        "gpu_memory_busy_at_start",
        "something else holds GPU memory",
        r"Free memory on device .* is less than desired",
        "find the holder (process_teardown with devices names it), wait for it or lower gpu-memory-utilization",
    ),
    _cause(
        "kv_cache_too_small",
        "the KV cache does not fit",
        r"larger than the available KV cache memory|max seq len \(\d+\), \(?[\d.]+ GiB KV cach|"
        r"No available memory for the cache blocks|"
        r"larger than the maximum number of tokens that can be stored in KV cache",
        _MORE_KV,
    ),
    _cause(
        "kv_cache_too_small",
        "the requested KV cache is larger than the host's free memory",
        r"Available memory on node \d+ .*is less than requested",
        "lower vllm_service_arguments_extra.kv-cache-memory-bytes (or VLLM_CPU_KVCACHE_SPACE)",
    ),
    _cause(
        "cuda_oom",
        "GPU memory ran out",
        r"CUDA out of memory|torch\.(?:cuda\.)?OutOfMemoryError|Failed to CUDA calloc|CUBLAS_STATUS_ALLOC_FAILED",
        _LESS_MEMORY,
    ),
    # --- GPU, driver, kernels
    _cause(
        "no_gpu_visible",
        "no GPU is visible to the service",
        r"Failed to infer device type|No CUDA GPUs are available|no CUDA-capable device",
        "check the driver (nvidia-smi), the unit's device access and CUDA_VISIBLE_DEVICES",
    ),
    _cause(
        "driver_cuda_mismatch",
        "driver and CUDA runtime do not fit",
        r"Error 803|driver version is insufficient|unsupported display driver|device kernel image is invalid|"
        r"provided PTX was compiled with an unsupported toolchain|forward compatibility was attempted",
        "install a driver of at least the wheels' CUDA version, and remove a CUDA compat library from the "
        "loader's path",
    ),
    _cause(
        "gpu_hardware_fault",
        "a GPU reports a fault",
        r"\bXid\b|fallen off the bus|NVMLError_\w+: Unknown Error|uncorrectable ECC|uvm_spin_loop|"
        r"NVMLError_GpuIsLost",
        "take the host out of rotation, read the kernel log for Xid, reset or replace the GPU",
    ),
    _cause(
        "jit_toolchain_version",
        "the CUDA toolchain is too old for this GPU",
        r"ptxas fatal|nvcc fatal|Unsupported gpu architecture|ptxas-?\w* .*is not defined",
        "install a CUDA toolkit that knows this GPU (12.9 or newer for compute capability 12.x) and point "
        "CUDA_HOME at it",
    ),
    _cause(
        "jit_toolchain_missing",
        "a compiler for just-in-time kernels is missing",
        r"nvcc: not found|Could not find nvcc|Failed to find C compiler|ninja: not found|No such file or directory: "
        r"'(?:\S*/)?(?:ninja|nvcc|gcc|g\+\+|cc)'|CUDA_HOME environment variable is not set|fatal error: Python\.h",
        "install nvcc, ninja and a C++ compiler and put them on the unit's PATH; CUDA_HOME must be one directory",
    ),
    _cause(
        "triton_kernel_resource",
        "a Triton kernel needs more on-chip memory than this GPU has",
        r"OutOfResources|out of resource: shared memory",
        "choose another attention-backend, or a vLLM version with smaller blocks for this GPU",
    ),
    _cause(
        "kernel_arch_unsupported",
        "a kernel is not built for this GPU",
        r"no kernel image is available|PassManager::run failed|[Cc]ompute capability .*not supported|"
        r"RuntimeError: Error Internal",
        "use wheels built for this compute capability (vllm_runtime_lock)",
    ),
    _cause(
        "cuda_fork_reinit",
        "CUDA was initialised before a fork",
        r"Cannot re-initialize CUDA in forked subprocess",
        "set VLLM_WORKER_MULTIPROC_METHOD=spawn in vllm_service_environment",
    ),
    _cause(
        "cuda_graph_capture",
        "CUDA graph capture failed",
        r"operation not permitted when stream is capturing|uncaptured work in another stream|cudaErrorStreamCapture",
        "set vllm_service_arguments_extra.enforce-eager to prove it, then choose another cudagraph mode",
    ),
    _cause(
        "cuda_illegal_access",
        "a GPU kernel accessed memory that it must not",
        r"illegal memory access|device-side assert|misaligned address|illegal instruction was encountered",
        "repeat with CUDA_LAUNCH_BLOCKING=1 to name the kernel; try another attention or MoE backend",
    ),
    # --- NCCL and collective work
    _cause(
        "nccl_watchdog_timeout",
        "a collective operation between the GPUs hung",
        r"Watchdog caught collective operation timeout",
        "test the peer-to-peer path (IOMMU, ACS, NCCL_P2P_LEVEL); a worker may have died or stalled first",
    ),
    _cause(
        "nccl_init_failure",
        "NCCL could not start",
        r"NCCL WARN (?!Cuda failure|Call to|socketProgress|.*Broken pipe)|ibv_reg_dmabuf_mr failed|ncclSystemError|"
        r"ncclInternalError|ncclUnhandledCudaError",
        "read the NCCL WARN line; check NCCL_* variables, /dev/shm and locked memory",
    ),
    _cause(
        "nccl_p2p_failure",
        "peer-to-peer access between GPUs failed",
        r"CUDART error: invalid argument|peer access is not supported|custom_all_?reduce.*(?:Error|invalid)",
        "set vllm_service_arguments_extra.disable-custom-all-reduce; check IOMMU and ACS",
    ),
    _cause(
        "ray_placement",
        "Ray has no GPU for the engine",
        r"Current node has no GPU available|Ray does not allocate any GPUs|placement group .*(?:infeasible|"
        r"timed out)",
        "on one host use the multiprocessing executor (distributed-executor-backend: mp)",
    ),
    _cause(
        "engine_step_timeout",
        "a step of the engine timed out",
        r"RPC call to \w+ timed out|RayChannelTimeoutError|execute_model timed out|RPC call to execute_model",
        "look for a stalled worker or GPU; raise VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS only if steps are really that long",
    ),
    _cause(
        "engine_startup_timeout",
        "the engine's processes did not report ready in time",
        r"Timed out waiting for engine core processes|Did not receive response from front-end process",
        "raise VLLM_ENGINE_READY_TIMEOUT_S in vllm_service_environment; a stop while loading looks the same",
    ),
    # --- the rest
    _cause(
        "output_corruption_nan",
        "the model produces NaN",
        r"Out of range float values are not JSON compliant|probability tensor contains either `?inf",
        "stop serving; try kv-cache-dtype bfloat16, another attention backend or another vLLM version",
    ),
    _cause(
        "stale_cache",
        "a compile cache does not fit this engine",
        r"hash of the compiled graph|not enough values to unpack \(expected \d+, got \d+\)|FX graph cache|"
        r"AOT compile.*(?:corrupt|mismatch)",
        "remove the compile cache of this runtime (VLLM_CACHE_ROOT) and start again",
    ),
    _cause(
        "ray_worker_lost",
        "a Ray worker crashed in native code",
        r"\*\*\* SIG\w+ received",
        "look at that worker's native stack in its log and at the host it ran on",
        contexts=(r"RayWorkerWrapper|ray::",),
    ),
    _cause(
        "engine_process_died",
        "a process of the engine crashed in native code",
        r"\*\*\* SIG\w+ received|^Fatal Python error:|^terminate called",
        "look at the native stack below the line, and at the core dump (coredumpctl info)",
    ),
    _cause(
        "config_invalid",
        "a value of the configuration is refused",
        r"^Value error, |object has no attribute 'is_kv_transfer_instance'|rope_(?:type|scaling)|"
        r"original_max_position_embeddings",
        _ARGUMENT + ", or the patch of config.json in vllm_service_patches",
    ),
    _cause(
        "dependency_mismatch",
        "Python packages of the runtime do not fit each other",
        r"ModuleNotFoundError|ImportError: cannot import name|operator torchvision::nms does not exist|"
        r"PackageNotFoundError",
        _PACKAGES,
    ),
    _cause(
        "request_triggered_bug",
        "one request crashed the engine",
        r"Attempted to assign .* multimodal tokens to \d+ placeholders",
        "use a vLLM version with the fix; limit such requests until then",
    ),
    _cause(
        "config_invalid",
        "the configuration does not validate",
        r"ValidationError: \d+ validation errors? for",
        "correct the field that the lines below the evidence name, in vllm_service_arguments_extra or by "
        "vllm_service_patches",
    ),
)

# Lines that only report that something failed elsewhere: never a root cause.
WRAPPERS: tuple[Pattern[str], ...] = tuple(
    re.compile(text)
    for text in (
        r"Engine core initialization failed",
        r"WorkerProc initialization failed",
        r"Engine process failed to start",
        r"EngineDeadError|EngineCore encountered|EngineGenerateError|AsyncEngineDeadError|MQEngineDeadError",
        r"See (?:root cause|stack trace)(?: \(?above\)?)?|check the stack trace above",
        r"Worker failed with error|Exception in worker \S+ while processing method|RayTaskError\(",
        r"^\w+: Traceback \(most recent call last\)",
        r"Failed core proc\(s\)",
        r"RPCServer process died|Task finished unexpectedly|ChildProcessError",
        r"cancelled|CancelledError|BrokenPipeError|EOFError|KeyboardInterrupt|SystemExit|GeneratorExit",
        r"Model architectures? \[.*\] failed to be inspected",
        r"torch\._dynamo\.exc\.BackendCompilerFailed|InductorError: (?:LoweringException|\w+Failed)",
        r"subprocess\.CalledProcessError",
        r"pydantic_core\._pydantic_core\.ValidationError|^\w*ValidationError: \d+ validation error",
        r"'\w+' object has no attribute 'llm_engine'|ZMQError|NCCL error: unhandled|DistBackendError",
    )
)

# Lines that look like failures in launches that work.
NOISE: tuple[Pattern[str], ...] = tuple(
    re.compile(text)
    for text in (
        r"Found ulimit of \d+ and failed to automatically increase",
        r"leaked (?:shared_memory|semaphore) objects|resource_tracker",
        r"destroy_process_group\(\) was not called|process group has NOT been destroyed",
        r"Broken pipe|failed to recv, got 0 bytes|Failed to check the \"should dump\" flag",
        r"No available shared memory broadcast block",
        r"Dumping (?:input data|scheduler)|dump_input\.py",
        r"Triton not available|Triton is not installed",
        r"Producer process has been terminated before all shared CUDA tensors",
        r"Connection reset by peer|asyncio\.exceptions",
    )
)

# What systemd itself says about the launch; asked only when no line of the service explains its end.
MANAGER_CAUSES: tuple[Cause, ...] = (
    _cause(
        "host_oom_kill",
        "the kernel's OOM killer ended a process of the unit",
        r"killed by the OOM killer|Failed with result 'oom-kill'",
        "give the unit more memory (MemoryMax in vllm_service_unit_settings) or lower kv-cache-memory-bytes; see "
        "memory.events of the unit",
        source="man systemd.service",
    ),
    _cause(
        "systemd_timeout",
        "systemd ended the unit because a start or stop took too long",
        r"(?:start|stop)\S* (?:operation )?timed out|Failed with result 'timeout'|State '[\w-]+' timed out",
        "raise the unit's timeout, or find out why the engine did not follow the signal (SIGTERM while "
        "loading is ignored)",
        source="man systemd.service",
    ),
    _cause(
        "config_invalid",
        "systemd could not execute the service's command",
        r"status=(?:200/CHDIR|203/EXEC|216/GROUP|217/USER|226/NAMESPACE|209/STDOUT)|Failed at step \w+ spawning",
        "check the unit's user, working directory and executable (runtime path), and its sandbox settings",
        source="man systemd.exec",
    ),
    _cause(
        "external_kill",
        "somebody or something outside ended the main process with SIGKILL",
        r"Main process exited, code=killed, status=9/KILL",
        "look for who did it: kernel log (OOM), other automation, an operator's kill",
        source="man systemd.service",
    ),
    _cause(
        "engine_process_died",
        "the main process crashed in native code",
        r"Main process exited, code=dumped|Main process exited, code=killed, status=(?:6/ABRT|7/BUS|8/FPE|11/SEGV)",
        "look at the core dump (coredumpctl info) for the library that crashed",
        source="man systemd.service",
    ),
)
