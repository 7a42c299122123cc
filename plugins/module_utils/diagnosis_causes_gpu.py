# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Failures of GPU memory, driver, kernels and of the work between GPUs. The form is in ``diagnosis_cause``."""

from __future__ import annotations

from ansible_collections.llmops.vllm.plugins.module_utils.diagnosis_cause import Cause, cause

_LESS_MEMORY = (
    "lower vllm_service_arguments_extra.max-model-len, max-num-seqs or gpu-memory-utilization, or spread the model "
    "over more GPUs (tensor-parallel-size)"
)
_MORE_KV = "lower vllm_service_arguments_extra.max-model-len or raise gpu-memory-utilization (or kv-cache-memory-bytes)"
_BUSY = "ValueError: Free memory on device cuda:0 (1.93/15.48 GiB) on startup is less than desired GPU memory"

GPU_CAUSES: tuple[Cause, ...] = (
    # --- GPU memory
    cause(
        "orphan_after_kill",
        "processes of an earlier launch still hold the GPU",
        r"Free memory on device .*is less than desired",
        "end them with process_teardown (selector orphans) and start again",
        _BUSY,
        contexts=(r"^[|\s]*(?:\d+\s.*)?\bVLLM::(?:EngineCore|Worker)",),
    ),
    cause(
        "gpu_memory_busy_at_start",
        "something else holds GPU memory",
        r"Free memory on device .*is less than desired|Error in memory profiling\. Initial free memory",
        "find the holder (process_teardown with devices names it), wait for it or lower gpu-memory-utilization",
        _BUSY,
    ),
    cause(
        "gpu_memory_busy_at_start",
        "another process has the GPU for itself",
        r"devices?(?:\(s\))? (?:is/)?are busy or unavailable",
        "find the holder (process_teardown with devices names it) and end it, or set the GPU's compute mode to default "
        "(nvidia-smi -c 0)",
        "torch.AcceleratorError: CUDA error: CUDA-capable device(s) is/are busy or unavailable",
        confidence=0.7,
    ),
    cause(
        "kv_cache_too_small",
        "the KV cache does not fit",
        r"larger than the available KV cache memory|No available memory for the cache blocks|"
        r"larger than the maximum number of tokens that can be stored in KV cache|"
        r"To serve at least one request with the model's max seq len|KV cache.*negative",
        _MORE_KV,
        "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`",
    ),
    cause(
        "kv_cache_too_small",
        "the requested KV cache is larger than the host's free memory",
        r"Available memory on node \d+ .*is less than requested",
        "lower vllm_service_arguments_extra.kv-cache-memory-bytes (or VLLM_CPU_KVCACHE_SPACE)",
        "ValueError: Available memory on node 0 (10.02/23.54 GiB) on kv cache allocation is less than requested",
    ),
    cause(
        "cuda_oom",
        "GPU memory ran out",
        r"(?:CUDA|HIP|NPU|XPU) out of memory|torch\.(?:cuda\.)?OutOfMemoryError|CUDA error: out of memory|"
        r"CUDA Error: out of memory|Failed to CUDA calloc|CUBLAS_STATUS_ALLOC_FAILED|cudaErrorMemoryAllocation|"
        r"Cuda failure (?:2 )?'out of memory'|Triton Error \[CUDA\]: out of memory",
        _LESS_MEMORY,
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of",
    ),
    # --- GPU, driver, kernels
    cause(
        "no_gpu_visible",
        "no GPU is visible to the service",
        r"Failed to infer device type|No CUDA GPUs are available|no CUDA-capable device|NVMLError_LibraryNotFound|"
        r"NVML Shared Library Not Found|Found no NVIDIA driver|libcuda\.so\.1: cannot open|"
        r"invalid device ordinal|No HIP GPUs are available|Device string must not be empty|NVMLError_DriverNotLoaded|"
        r"device < num_gpus|CUDA unknown error - this may be due to|could not select device driver|"
        r"nvidia-container-cli: (?:initialization error|.*driver not loaded)",
        "check the driver (nvidia-smi), the unit's device access and CUDA_VISIBLE_DEVICES",
        "RuntimeError: Failed to infer device type, please set the environment variable `VLLM_LOGGING_LEVEL=DEBUG`",
    ),
    cause(
        "driver_cuda_mismatch",
        "driver and CUDA runtime do not fit",
        r"Error 80[234]\b|driver version is insufficient|unsupported display driver|device kernel image is invalid|"
        r"provided PTX was compiled with an unsupported toolchain|forward compatibility was attempted|"
        r"NVIDIA driver on your system is too old|Driver/library version mismatch|NVRM: API mismatch|"
        r"NVMLError_LibRmVersionMismatch|system not yet initialized|unsatisfied condition: cuda",
        "install a driver of at least the wheels' CUDA version, remove a CUDA compat library from the loader's "
        "path, and start nvidia-fabricmanager where the host has NVSwitch",
        "RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 803: system has unsupported display driver",
    ),
    cause(
        "gpu_hardware_fault",
        "a GPU reports a fault",
        r"\bXid\b(?! \([^)]*\): (?:13|31|43|45)\b)|"
        r"fallen off the bus|NVMLError_\w+: Unknown Error|uncorrectable (?:ECC|NVLink)|uvm_spin_loop|"
        r"NVMLError_GpuIsLost|GPU is lost|[Ee]CC error|hardware error",
        "take the host out of rotation, read the kernel log for Xid, reset or replace the GPU",
        "NVRM: Xid (PCI:0000:01:00): 79, pid=4711, name=VLLM::Worker_TP, GPU has fallen off the bus.",
    ),
    cause(
        "jit_toolchain_version",
        "the CUDA toolchain is too old for this GPU",
        r"ptxas fatal|nvcc fatal|Unsupported gpu architecture|ptxas-?\w* .*is not defined|requires GPUs with sm\d+|"
        r"requires CUDA (?:toolkit )?(?:version )?\d+\.\d+ or (?:newer|higher|later)|"
        r"CUDA version .* (?:mismatches|is too old)",
        "install a CUDA toolkit that knows this GPU (12.9 or newer for compute capability 12.x) and point "
        "CUDA_HOME at it",
        "ptxas fatal   : Value 'sm_121a' is not defined for option 'gpu-name'",
    ),
    cause(
        "jit_toolchain_missing",
        "a compiler for just-in-time kernels is missing",
        r"(?:nvcc|ninja|ptxas|cicc|g\+\+|gcc): (?:command )?not found|Could not find nvcc|Failed to find C compiler|"
        r"No such file or directory: '(?:\S*/)?(?:ninja|nvcc|gcc|g\+\+|cc|ptxas|cuobjdump)'|"
        r"CUDA_HOME environment variable is not set|fatal error: (?:Python|cuda\w*|curand\w*|cublas\w*|nv\w+)\.h|"
        r"Ninja is required to load C\+\+ extensions|cannot find -lcuda|libcuda\.so cannot found",
        "install nvcc, ninja and a C++ compiler and put them on the unit's PATH; CUDA_HOME must be one directory, and "
        "the linker must find the driver's libcuda.so",
        "RuntimeError: Could not find nvcc and default cuda_home='/usr/local/cuda' doesn't exist",
    ),
    cause(
        "triton_kernel_resource",
        "a Triton kernel needs more on-chip resources than this GPU has",
        r"OutOfResources|out of resource: |too many resources requested for launch",
        "choose another attention-backend, or a vLLM version with smaller blocks for this GPU",
        "triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 102400, Limit: 101376",
    ),
    cause(
        "kernel_arch_unsupported",
        "a kernel is not built for this GPU",
        r"no kernel image is available|PassManager::run failed|[Cc]ompute capability .*(?:not supported|"
        r"is required|required)|RuntimeError: Error Internal|"
        r"not (?:supported|compiled|built|implemented) (?:for|on) (?:SM|sm_|this GPU|compute capability|CUDA arch)|"
        r"[Uu]nsupported (?:SM|CUDA arch|compute capability|GPU arch)|Arch conditional MMA instruction|"
        r"No supported CUDA architectures found|Failed to (?:initialize|run) cutlass|No compiled |"
        r"Assertion error \([^)]*\): Unsupported arch|(?:HIP|CUDA) error: invalid device function|"
        r"hipErrorNoBinaryForGpu|LLVM ERROR: Cannot select",
        "use wheels built for this compute capability (vllm_runtime_lock)",
        "RuntimeError: CUDA error: no kernel image is available for execution on the device",
    ),
    cause(
        "cuda_fork_reinit",
        "CUDA was initialised before a fork",
        r"Cannot re-initialize CUDA in forked subprocess",
        "set VLLM_WORKER_MULTIPROC_METHOD=spawn in vllm_service_environment",
        "RuntimeError: Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, use spawn",
    ),
    cause(
        "cuda_graph_capture",
        "CUDA graph capture failed",
        r"operation not permitted when stream is capturing|uncaptured work in another stream|cudaErrorStreamCapture|"
        r"operation failed due to a previous error during capture|while the current stream is capturing|"
        r"during (?:CUDA |cuda)?graph capture|outside graph capture",
        "set vllm_service_arguments_extra.enforce-eager to prove it, then choose another cudagraph mode",
        "RuntimeError: CUDA error: operation not permitted when stream is capturing",
    ),
    cause(
        "cuda_illegal_access",
        "a GPU kernel accessed memory that it must not",
        r"illegal memory access|device-side assert|misaligned address|illegal instruction was encountered|"
        r"unspecified launch failure|CUDA_ERROR_ILLEGAL_ADDRESS|invalid program counter|Memory access fault by GPU|"
        r"thread: \[[\d,]+\] Assertion|Xid \([^)]*\): (?:13|31)\b",
        "repeat with CUDA_LAUNCH_BLOCKING=1 to name the kernel; try another attention or MoE backend",
        "RuntimeError: CUDA error: an illegal memory access was encountered",
    ),
    # --- NCCL and collective work
    cause(
        "nccl_watchdog_timeout",
        "a collective operation between the GPUs hung",
        r"Watchdog caught collective operation timeout",
        "test the peer-to-peer path (IOMMU, ACS, NCCL_P2P_LEVEL); a worker may have died or stalled first",
        "[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1, OpType=ALLREDUCE)",
    ),
    cause(
        "nccl_p2p_failure",
        "peer-to-peer access between GPUs failed",
        r"CUDART error: (?:invalid|peer)|peer access is not supported|custom_all_?reduce.*(?:[Ee]rror|invalid)|"
        r"NCCL WARN (?!NET/).*(?:[Pp]eer|P2P|cudaIpc)|cudaErrorPeerAccess|cuMemImportFromShareableHandle|"
        r"CUDA error: peer mapping",
        "set vllm_service_arguments_extra.disable-custom-all-reduce; check IOMMU and ACS",
        "RuntimeError: CUDART error: peer access is not supported between these two devices",
    ),
    cause(
        "nccl_init_failure",
        "NCCL could not start",
        r"NCCL WARN NET/(?!.*Broken pipe)|"
        r"NCCL WARN (?!Cuda failure|Call to|socketProgress|.*(?:Broken pipe|/dev/shm|shared memory|[Pp]eer|P2P|cudaIpc|"
        r"CUDA calloc))|ibv_reg_dmabuf_mr failed|ncclSystemError|ncclInternalError|ncclUnhandledCudaError|"
        r"ncclInvalidUsage|NCCL error: (?:unhandled system|internal|invalid|remote process)|"
        r"Failed to load NCCL|libnccl\.so\S*: cannot open",
        "read the NCCL WARN line; check NCCL_* variables, /dev/shm and locked memory",
        "gpu-host:417:417 [0] misc/nvmlwrap.cc:183 NCCL WARN nvmlDeviceGetHandleByPciBusId() failed: Not Found",
    ),
    cause(
        "ray_placement",
        "Ray has no GPU for the engine",
        r"Current node has no GPU available|Ray does not allocate any GPUs|placement group .*(?:infeasible|timed out)|"
        r"exceeds the total number of available GPUs|Cannot provide a placement group|"
        r"should have a unique (?:IP|node)|[Nn]o available node types",
        "on one host use the multiprocessing executor (distributed-executor-backend: mp)",
        "ValueError: Current node has no GPU available. current_node_resource={'CPU': 64.0}.",
    ),
    cause(
        "engine_step_timeout",
        "a step of the engine timed out",
        r"RPC call to \w+ timed out|RayChannelTimeoutError|execute_model timed out|RPC call to execute_model|"
        r"Engine iteration timed out|sample_tokens timed out",
        "look for a stalled worker or GPU; raise VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS only if steps are really that long",
        "TimeoutError: RPC call to execute_model timed out.",
    ),
    cause(
        "engine_startup_timeout",
        "the engine's processes did not report ready in time",
        r"Timed out waiting for engine core|Did not receive response from front-end process|"
        r"Timed out (?:after .*)?waiting for (?:workers|clients|engine|HELLO|READY)|"
        r"[Ee]ngine core .*did not (?:start|become ready)|"
        r"(?:RPC [Ss]erver|MQLLMEngine) (?:didn't|did not) reply within",
        "raise VLLM_ENGINE_READY_TIMEOUT_S in vllm_service_environment; a stop while loading looks the same",
        "TimeoutError: Timed out waiting for engine core processes to start.",
    ),
    cause(
        "ray_worker_lost",
        "a Ray worker crashed in native code",
        r"\*\*\* SIG\w+ received",
        "look at that worker's native stack in its log and at the host it ran on",
        "*** SIGSEGV received at time=1741234567 on cpu 12 ***",
        contexts=(r"RayWorkerWrapper|ray::",),
    ),
    cause(
        "ray_worker_lost",
        "a Ray worker or node was lost",
        r"ActorDiedError|ActorUnavailableError|WorkerCrashedError|NodeDiedError|RayActorError|"
        r"Worker exit type: SYSTEM_ERROR|actor died unexpectedly",
        "look at that worker's own log and at the host it ran on; Ray names both",
        "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.",
    ),
    cause(
        "engine_process_died",
        "a process of the engine crashed in native code",
        r"\*\*\* SIG\w+ received|^Fatal Python error:|^terminate called|^!+ Segfault encountered|"
        r"symbol lookup error|^LLVM ERROR",
        "look at the native stack below the line, and at the core dump (coredumpctl info)",
        "Fatal Python error: Segmentation fault",
    ),
)
