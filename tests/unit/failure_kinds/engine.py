"""Kinds that the engine itself tells of."""

from __future__ import annotations

from ansible_collections.llmops.vllm.tests.unit.failure_kinds.form import (
    START,
    UP,
    Kind,
    core,
    gave_up,
    loading,
    server,
    serving,
    starting,
    traceback,
    worker,
)

OF_THE_GPU = (
    Kind(
        "weights do not fit",
        loading(
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.31 GiB. GPU 3 has a total capacity of "
            "94.97 GiB of which 512.00 MiB is free."
        ),
        "cuda_oom",
        "Tried to allocate",
    ),
    Kind(
        "the sampler's warm-up does not fit",
        loading(
            "RuntimeError: CUDA out of memory occurred when warming up sampler with 1024 dummy requests. Please try "
            "lowering `max_num_seqs` or `gpu_memory_utilization` when initializing the engine."
        ),
        "cuda_oom",
        "warming up sampler",
    ),
    Kind(
        "no memory is left for the KV cache",
        loading(
            "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when "
            "initializing the engine."
        ),
        "kv_cache_too_small",
        "cache blocks",
    ),
    Kind(
        "a Triton kernel wants more shared memory than there is",
        loading(
            "triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 102400, "
            "Hardware limit: 101376. Reducing block sizes or `num_stages` may help."
        ),
        "triton_kernel_resource",
        "102400",
    ),
    Kind(
        "the vision tower's attention is of another GPU generation",
        loading("AssertionError: Only SM 10.x and 11.x are supported"),
        "attention_backend_unsupported",
        "Only SM",
    ),
    Kind(
        "FlashInfer refuses the GPU",
        loading("RuntimeError: FlashInfer requires GPUs with sm75 or higher"),
        "jit_toolchain_version",
        "sm75",
    ),
    Kind(
        "CUDA_HOME holds two directories",
        loading("FileNotFoundError: [Errno 2] No such file or directory: ':/usr/local/cuda-12.8/bin/nvcc'"),
        "jit_toolchain_missing",
        "nvcc",
    ),
    Kind(
        "DeepGEMM refuses the GPU",
        loading(
            "RuntimeError: Assertion error (/workspace/deep_gemm/csrc/apis/../jit_kernels/impls/sm90.hpp:11): "
            "Unsupported architecture"
        ),
        "kernel_arch_unsupported",
        "Unsupported arch",
    ),
    Kind(
        "no MoE backend for this GPU",
        loading(
            "ValueError: NvFp4 MoE backend FLASHINFER_B12X does not support the deployment configuration since "
            "kernel does not support current device."
        ),
        "quant_dtype_mismatch",
        "MoE",
    ),
    Kind(
        "the quantisation needs a newer GPU",
        loading(
            "ValueError: The quantization method modelopt_fp4 is not supported for the current GPU. "
            "Minimum capability: 89. Current capability: 80."
        ),
        "quant_dtype_mismatch",
        "Minimum capability",
    ),
    Kind(
        "bfloat16 on an old GPU",
        loading(
            "ValueError: Bfloat16 is only supported on GPUs with compute capability of at least 8.0. Your Tesla T4 "
            "GPU has compute capability 7.5."
        ),
        "quant_dtype_mismatch",
        "Bfloat16",
    ),
    Kind(
        "the driver is older than the wheels' CUDA",
        loading(
            "RuntimeError: The NVIDIA driver on your system is too old (found version 12080). Please update your "
            "GPU driver"
        ),
        "driver_cuda_mismatch",
        "too old",
    ),
    Kind(
        "PTX of a newer toolchain than the driver's",
        loading("RuntimeError: CUDA error: the provided PTX was compiled with an unsupported toolchain."),
        "driver_cuda_mismatch",
        "PTX",
    ),
    Kind(
        "the fabric manager does not run",
        loading(
            "RuntimeError: CUDA error: system not yet initialized\nCUDA kernel errors might be asynchronously reported"
        ),
        "driver_cuda_mismatch",
        "not yet initialized",
    ),
    Kind(
        "NVML and the kernel module differ",
        "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 580.95\n"
        + starting("RuntimeError: Failed to infer device type"),
        "no_gpu_visible",
        "Failed to infer",
    ),
    Kind(
        "an earlier error shows in graph capture",
        loading("RuntimeError: CUDA error: operation failed due to a previous error during capture"),
        "cuda_graph_capture",
        "during capture",
    ),
    Kind(
        "CUDA is initialised before a fork",
        loading(
            "RuntimeError: Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you "
            "must use the 'spawn' start method"
        ),
        "cuda_fork_reinit",
        "forked",
    ),
    Kind(
        "an illegal access while serving",
        serving(worker(traceback("torch.AcceleratorError: CUDA error: an illegal memory access was encountered"))),
        "cuda_illegal_access",
        "illegal",
    ),
    Kind(
        "custom all-reduce without peer access",
        loading("RuntimeError: Failed: Cuda error /workspace/csrc/custom_all_reduce.cuh:455 'invalid argument'"),
        "nccl_p2p_failure",
        "custom_all_reduce",
    ),
    Kind(
        "a cloud's NCCL plugin in a host of its own",
        START
        + "gpu-1:77:77 [0] NCCL INFO NET/Plugin: Loaded net plugin AWS Libfabric\n"
        + "gpu-1:77:77 [0] transport/net_ib.cc:600 NCCL WARN NET/IB : Got completion from peer 10.0.0.1, error 12\n"
        + worker(
            traceback(
                "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:3356, remote process exited "
                "or there was a network error, NCCL version 2.27.3"
            )
        )
        + gave_up(),
        "nccl_init_failure",
        "NCCL WARN|remote process",
    ),
    Kind(
        "a collective operation hangs",
        START
        + UP
        + "[rank3]:[E301 10:00:00.123 ProcessGroupNCCL.cpp:688] [Rank 3] Watchdog caught collective operation "
        + "timeout: WorkNCCL(SeqNum=1129, OpType=ALLREDUCE, NumelIn=7168, Timeout(ms)=600000) ran for 600009 "
        + "milliseconds before timing out.\n"
        + "terminate called after throwing an instance of 'c10::DistBackendError'\n",
        "nccl_watchdog_timeout",
        "Watchdog",
    ),
    Kind(
        "a step times out",
        serving(core(traceback("TimeoutError: RPC call to sample_tokens timed out."))),
        "engine_step_timeout",
        "timed out",
    ),
    Kind(
        "the processes are not ready in time",
        starting(
            "TimeoutError: Timed out waiting for engine core processes to start. This is often caused by slow weight "
            "loading for large models."
        ),
        "engine_startup_timeout",
        "Timed out",
    ),
    Kind(
        "NaN reaches an answer",
        START
        + UP
        + server("ValueError: Out of range float values are not JSON compliant: nan", "serving.py:9")
        + server("EngineDeadError: EngineCore encountered an issue."),
        "output_corruption_nan",
        "Out of range",
    ),
)

OF_THE_MODEL = (
    Kind(
        "a tensor without a module",
        loading("ValueError: There is no module or parameter named 'lm_head.input_scale' in DeepseekV3ForCausalLM"),
        "weights_mismatch",
        "lm_head",
    ),
    Kind(
        "remote code under the name of a blob",
        starting(
            "FileNotFoundError: [Errno 2] No such file or directory: "
            "'/root/.cache/huggingface/hub/models--nvidia--x/blobs/configuration_deepseek.py'"
        ),
        "tokenizer_or_remote_code",
        "blobs",
    ),
    Kind(
        "remote code that nobody allowed",
        starting(
            "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig\n"
            "  Value error, The repository /srv/llm/m contains custom code which must be executed to correctly load "
            "the model. You can inspect the repository content at /srv/llm/m .\n"
            " Please pass the argument `trust_remote_code=True` to allow custom code to be run."
        ),
        "tokenizer_or_remote_code",
        "custom code",
    ),
    Kind(
        "remote code needs a package",
        starting(
            "ImportError: This modeling file requires the following packages that were not found in your environment: "
            "tiktoken. Run `pip install tiktoken`"
        ),
        "dependency_mismatch",
        "tiktoken",
    ),
    Kind(
        "a loader's package is not there",
        loading("ModuleNotFoundError: No module named 'fastsafetensors'"),
        "dependency_mismatch",
        "fastsafetensors",
    ),
    Kind(
        "a loader asks for its package",
        loading("ImportError: Please install fastsafetensors via `pip install fastsafetensors`"),
        "dependency_mismatch",
        "fastsafetensors",
    ),
    Kind(
        "transformers does not know the architecture",
        starting(
            "ValueError: The checkpoint you are trying to load has model type `kimi_k3` but Transformers does not "
            "recognize this architecture."
        ),
        "model_arch_unsupported",
        "kimi_k3",
    ),
    Kind(
        "a gated model",
        starting(
            "huggingface_hub.errors.GatedRepoError: 401 Client Error. (Request ID: Root=1-x)\n\n"
            "Cannot access gated repo for url https://huggingface.co/meta/x/resolve/main/config.json.\n"
            "Access to model meta/x is restricted."
        ),
        "hf_auth_or_rate_limit",
        "GatedRepoError",
    ),
    Kind(
        "too many requests to the hub",
        starting(
            "huggingface_hub.errors.HfHubHTTPError: 429 Client Error: Too Many Requests for url: "
            "https://huggingface.co/api/models/x"
        ),
        "hf_auth_or_rate_limit",
        "429",
    ),
    Kind(
        "the hub's name cannot be resolved",
        starting(
            "requests.exceptions.ConnectionError: (MaxRetryError('HTTPSConnectionPool(host=\\'huggingface.co\\', "
            'port=443): Max retries exceeded with url: /x (Caused by NameResolutionError("Failed to resolve '
            "huggingface.co\"))'), '(Request ID: 1)')"
        ),
        "config_invalid",
        "NameResolution|MaxRetry",
    ),
    Kind(
        "a number with a comment in an environment file",
        starting("ValueError: invalid literal for int() with base 10: '8000 # the port'"),
        "unclassified",
        "literal",
    ),
)

OF_ITS_PROCESSES = (
    Kind("killed while it loads", START + gave_up("{'EngineCore': -9}"), "external_kill", "-9"),
    Kind("crashed while it loads", START + gave_up("{'EngineCore_DP0': -11}"), "engine_process_died", "-11"),
    Kind("ended without a word", START + gave_up("{'EngineCore': 1}")),
    Kind(
        "a worker dies while serving",
        START
        + UP
        + worker(
            "Worker proc VllmWorker-3 died unexpectedly, shutting down executor.",
            "EngineCore pid=101",
            "multiproc_executor.py:273",
        )
        + server("EngineDeadError: EngineCore encountered an issue. See stack trace (above) for the root cause."),
    ),
    Kind(
        "the engine dies while serving",
        START
        + UP
        + server("Engine core proc EngineCore died unexpectedly, shutting down client.", "core_client.py:600"),
    ),
    Kind(
        "a worker dies while it loads",
        START
        + worker(
            "Worker proc VllmWorker-3 died unexpectedly, shutting down executor.",
            "EngineCore pid=101",
            "multiproc_executor.py:273",
        )
        + gave_up(),
    ),
    Kind(
        "a segmentation fault with its stack",
        START
        + "!!!!!!! Segfault encountered !!!!!!!\n"
        + '  File "./nptl/pthread_kill.c", line 44, in __pthread_kill_implementation\n'
        + '  File "<unknown>", line 0, in cudaGraphLaunch\n'
        + gave_up("{'EngineCore': -11}"),
        "engine_process_died",
        "Segfault|-11",
    ),
    Kind(
        "a cause below another exception",
        START
        + worker(
            traceback("KeyError: 'model.layers.61.mlp.experts.w13_weight'")
            + "\nThe above exception was the direct cause of the following exception:\n\n"
            + traceback("RuntimeError: Failed to load model weights")
        )
        + gave_up(),
        "weights_mismatch",
        "KeyError",
    ),
    Kind(
        "an exception during the handling of another",
        START
        + worker(
            traceback("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.")
            + "\nDuring handling of the above exception, another exception occurred:\n\n"
            + traceback("RuntimeError: CUDA error: initialization error")
        )
        + gave_up(),
        "cuda_oom",
        "Tried to allocate",
    ),
    Kind(
        "two attempts that fail in different ways",
        loading("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1 GiB")
        + loading(
            "ValueError: Free memory on device cuda:0 (1.93/94.97 GiB) on startup is less than desired GPU memory "
            "utilization"
        ),
        "gpu_memory_busy_at_start",
        "Free memory",
    ),
    Kind(
        "a failed attempt, then one that comes up",
        loading("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1 GiB") + START + UP,
        "cuda_oom",
        "Tried to allocate",
    ),
    Kind(
        "the engine of former versions",
        "".join(
            "(VllmWorkerProcess pid=321) ERROR 02-01 10:00:00 multiproc_worker_utils.py:242] " + line + "\n"
            for line in (
                "Exception in worker VllmWorkerProcess while processing method load_model.",
                "Traceback (most recent call last):",
                "ValueError: No such file or directory: /models/model-00001-of-00004.safetensors",
            )
        )
        + "ERROR 02-01 10:00:01 engine.py:400] RuntimeError: Engine process failed to start. See stack trace for the "
        + "root cause.\n",
        "weights_corrupt_or_missing",
        "No such file",
    ),
    Kind(
        "metrics that are registered twice",
        loading("ValueError: Duplicated timeseries in CollectorRegistry: {'http_requests_total'}"),
        "unclassified",
        "Duplicated",
    ),
    Kind(
        "kernels that cannot be fetched",
        loading("RuntimeError: Failed to get cubin file from https://edge.example/artifactory/x"),
        "unclassified",
        "cubin",
    ),
    Kind("unheard of", loading("FrobnicationError: cannot frobnicate"), "unclassified", "Frobnic"),
)

KINDS = (*OF_THE_GPU, *OF_THE_MODEL, *OF_ITS_PROCESSES)
