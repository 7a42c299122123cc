"""Kinds that no exception of Python tells of, or only later: native code, compilers, containers, schedulers."""

from __future__ import annotations

import json

from ansible_collections.llmops.vllm.tests.unit.failure_kinds.form import (
    CHATS,
    START,
    UP,
    Kind,
    gave_up,
    kernel,
    loading,
    server,
    serving,
    silent,
    starting,
    systemd,
    traceback,
    worker,
)

ILLEGAL = "CUDA error: an illegal memory access was encountered"

OF_THE_KERNEL = (
    Kind(
        "an illegal access that the kernel saw first",
        serving(
            kernel(
                "NVRM: Xid (PCI:0000:41:00): 31, pid=102, name=VLLM::Worker_TP, Ch 00000010, intr 00000000. MMU Fault: "
                "ENGINE GRAPHICS GPC1 GPCCLIENT_T1_9 faulted @ 0x7f29_5b8c9000. Fault is of type FAULT_PDE "
                "ACCESS_TYPE_VIRT_READ"
            )
            + worker(traceback(f"torch.AcceleratorError: {ILLEGAL}"))
        ),
        "cuda_illegal_access",
        "Xid|illegal",
    ),
    Kind(
        "channels that the kernel cleans up after a kill",
        silent(
            kernel(
                "NVRM: Xid (PCI:0000:41:00): 45, pid=101, name=VLLM::EngineCor, Ch 00000008",
                "NVRM: Xid (PCI:0000:41:00): 43, pid=101, name=VLLM::EngineCor, Ch 00000009",
            ),
            "{'EngineCore': -9}",
        ),
        "external_kill",
        "-9",
    ),
    Kind(
        "an illegal access of a process beside a service that goes on",
        START
        + UP
        + kernel("NVRM: Xid (PCI:0000:41:00): 31, pid=4711, name=cuda_test, Ch 00000010, intr 00000000. MMU Fault")
        + CHATS * 9,
        verdict="healthy",
    ),
    Kind(
        "a host that has just booted",
        kernel(
            "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.95.05",
            "NVRM: GPU at PCI:0000:41:00: GPU-760d0170-b7c5-6817-9414-6cc7112645de",
        )
        + silent(""),
    ),
    Kind(
        "a segmentation fault that only the kernel saw",
        silent(kernel("VLLM::Worker_TP[102]: segfault at 10 ip 7f29 sp 7ffd error 4 in libnccl.so.2[7f29+100]")),
        "engine_process_died",
        "segfault",
    ),
    Kind(
        "memory pressure",
        START
        + systemd(
            "systemd-oomd killed 9 process(es) in this unit.",
            "Main process exited, code=killed, status=9/KILL",
            "Failed with result 'oom-kill'.",
        ),
        "host_oom_kill",
        "oom",
    ),
    Kind(
        "memory pressure, in the words of the daemon",
        silent(
            "Mar 01 10:00:30 gpu-1 systemd-oomd[890]: Killed /system.slice/system-vllm.slice/vllm@kimi.service due to "
            "memory pressure for /system.slice being 73.35% > 60.00% for > 20s with reclaim activity\n"
        ),
        "host_oom_kill",
        "memory pressure",
    ),
)

OF_THE_UNIT = (
    Kind(
        "a credential that is not there",
        systemd(
            "Failed to set up credentials: No such file or directory",
            "Failed at step CREDENTIALS spawning /srv/llm/bin/serve.sh: No such file or directory",
            "Main process exited, code=exited, status=243/CREDENTIALS",
            "Failed with result 'exit-code'.",
        ),
        "config_invalid",
        "CREDENTIALS|credentials",
    ),
    Kind(
        "the exit status of a step alone",
        systemd("Main process exited, code=exited, status=243/CREDENTIALS"),
        "config_invalid",
        "CREDENTIALS",
    ),
    Kind(
        "an environment file that is not there",
        systemd(
            "Failed to load environment files: No such file or directory",
            "Failed to run 'start' task: No such file or directory",
            "Failed with result 'resources'.",
        ),
        "config_invalid",
        "environment files",
    ),
    Kind(
        "an API key that systemd did not hand over",
        "cat: /run/credentials/vllm@kimi.service/api_key: No such file or directory\n"
        "The API key of instance kimi was not handed over by systemd (LoadCredential=api_key); not starting without "
        "it.\n",
        "config_invalid",
        "API key",
    ),
    Kind(
        "a container that was killed below its unit",
        START + UP + systemd("Main process exited, code=exited, status=137/n/a", "Failed with result 'exit-code'."),
        "external_kill",
        "137",
    ),
    Kind(
        "a stop by systemd, with an engine that complains",
        START
        + UP
        + "Mar 01 10:01:30 gpu-1 systemd[1]: Stopping vllm@kimi.service - vLLM instance kimi...\n"
        + server("EngineDeadError: EngineCore encountered an issue. See stack trace (above) for the root cause."),
        verdict="healthy",
    ),
    Kind(
        "somebody ends a launch by hand",
        START
        + "(EngineCore pid=101) INFO 03-01 10:00:20 [core.py:9] loading\n"
        + traceback("KeyboardInterrupt")
        + gave_up(),
    ),
)

OF_THE_SCHEDULER = (
    Kind(
        "a job that exceeds its memory",
        silent(
            "slurmstepd: error: Detected 1 oom_kill event in StepId=440575.0. Some of the step tasks have been OOM "
            "Killed.\nsrun: error: gpu-1: task 0: Out Of Memory\n"
        ),
        "host_oom_kill",
        "oom_kill|Out Of Memory",
    ),
    Kind(
        "a job that exceeds its time",
        START
        + UP
        + CHATS
        + "slurmstepd: error: *** JOB 440575 ON gpu-1 CANCELLED AT 2026-03-01T10:00:00 DUE TO TIME LIMIT ***\n",
        "external_kill",
        "TIME LIMIT",
    ),
    Kind(
        "another Ray than the cluster's",
        starting(
            "RuntimeError: Version mismatch: The cluster was started with:\n    Ray: 2.40.0\n    Python: 3.10.12\n"
            "This process on node 10.0.0.1 was started with:\n    Ray: 2.46.0\n    Python: 3.12.3"
        ),
        "dependency_mismatch",
        "Version mismatch",
    ),
)

OF_THE_SHELL = (
    Kind("a command that the shell does not find", "bash: line 1: vllm: command not found\n", "config_invalid", "vllm"),
    Kind("a Python without the engine", "/usr/bin/python3: No module named vllm\n", "dependency_mismatch", "vllm"),
    Kind(
        "a crash that the shell tells of",
        START + "/srv/serve.sh: line 12:  4711 Segmentation fault      (core dumped) vllm serve /srv/llm/m\n",
        "engine_process_died",
        "Segmentation fault",
    ),
)

OF_THE_CONTAINER = (
    Kind(
        "docker inspect, of a container that nobody killed",
        START
        + json.dumps([{"State": {"Status": "exited", "OOMKilled": False, "Dead": False, "ExitCode": 1}}], indent=4)
        + "\n",
    ),
    Kind(
        "docker inspect, of one that ran out of memory",
        START
        + json.dumps([{"State": {"Status": "exited", "OOMKilled": True, "Dead": False, "ExitCode": 137}}], indent=4)
        + "\n",
        "host_oom_kill",
        "OOMKilled",
    ),
    Kind(
        "an image that wants a newer driver",
        "docker: Error response from daemon: failed to create task for container: failed to create shim task: OCI "
        "runtime create failed: runc create failed: unable to start container process: error during container init: "
        "error running prestart hook #0: exit status 1, stdout: , stderr: Auto-detected mode as 'legacy'\n"
        "nvidia-container-cli: requirement error: unsatisfied condition: cuda>=12.9, please update your driver to a "
        "newer version, or use an earlier cuda container: unknown\n",
        "driver_cuda_mismatch",
        "unsatisfied condition",
    ),
    Kind(
        "a container runtime without GPUs",
        'docker: Error response from daemon: could not select device driver "" with capabilities: [[gpu]].\n',
        "no_gpu_visible",
        "device driver",
    ),
    Kind(
        "a container that wants a port of another",
        "docker: Error response from daemon: driver failed programming external connectivity on endpoint vllm: Bind "
        "for 0.0.0.0:8000 failed: port is already allocated.\n",
        "port_in_use",
        "already allocated",
    ),
)

OF_NATIVE_CODE = (
    Kind(
        "a C++ exception that nobody catches",
        silent(f"terminate called after throwing an instance of 'c10::AcceleratorError'\n  what():  {ILLEGAL}\n"),
        "cuda_illegal_access",
        "terminate|illegal",
    ),
    Kind(
        "a heap that was damaged",
        silent("double free or corruption (!prev)\n", "{'EngineCore': -6}"),
        "engine_process_died",
        "double free",
    ),
    Kind(
        "a compiler that cannot translate for this GPU",
        silent("LLVM ERROR: Cannot select: intrinsic %llvm.nvvm.shfl.sync.bfly.i32\n", "{'EngineCore': -6}"),
        "kernel_arch_unsupported",
        "Cannot select",
    ),
    Kind(
        "an illegal access on a GPU of AMD",
        silent(
            "Memory access fault by GPU node-3 (Agent handle: 0x13e8) on address 0x77d445e00000. Reason: Unknown.\n",
            "{'EngineCore': -6}",
        ),
        "cuda_illegal_access",
        "Memory access fault",
    ),
    Kind(
        "a kernel for another GPU of AMD",
        loading("torch.AcceleratorError: HIP error: invalid device function"),
        "kernel_arch_unsupported",
        "invalid device function",
    ),
    Kind(
        "no more threads for OpenBLAS",
        silent(
            "OpenBLAS blas_thread_init: pthread_create failed for thread 17 of 64: Resource temporarily unavailable\n"
            "OpenBLAS blas_thread_init: RLIMIT_NPROC 512 current, 512 max\n",
            "{'EngineCore': 1}",
        ),
        "host_limits",
        "pthread_create",
    ),
    Kind(
        "no more threads for the tokenizer",
        START
        + "thread '<unnamed>' panicked at rayon-core-1.12.1/src/registry.rs:168:10:\n"
        + "The global thread pool has not been initialized.: ThreadPoolBuildError { kind: IOError(Os { code: 11, kind: "
        + 'WouldBlock, message: "Resource temporarily unavailable" }) }\n'
        + traceback(
            "pyo3_runtime.PanicException: The global thread pool has not been initialized.: ThreadPoolBuildError "
            '{ kind: IOError(Os { code: 11, kind: WouldBlock, message: "Resource temporarily unavailable" }) }'
        ),
        "host_limits",
        "thread pool",
    ),
    Kind(
        "a full disk under a download",
        starting(
            "RuntimeError: Data processing error: File reconstruction error: IO Error: No space left on device "
            "(os error 28)"
        ),
        "disk_full",
        "os error 28",
    ),
    Kind(
        "a full disk under the C++ compiler",
        silent(
            "fatal error: error writing to /tmp/ccX1.s: No space left on device\ncompilation terminated.\n"
            + worker(traceback("torch._inductor.exc.InductorError: CppCompileError: C++ compile error"))
        ),
        "disk_full",
        "No space left",
    ),
    Kind(
        "the CUDA compiler is killed",
        loading(
            "RuntimeError: Ninja build failed. Ninja output:\n"
            "nvcc error   : 'cicc' died due to signal 9 (Kill signal)\nninja: build stopped: subcommand failed."
        ),
        "host_oom_kill",
        "cicc",
    ),
    Kind(
        "a linker that does not find the driver's library",
        loading(
            "RuntimeError: Ninja build failed. Ninja output:\n"
            "/usr/bin/ld: cannot find -lcuda: No such file or directory\ncollect2: error: ld returned 1 exit status"
        ),
        "jit_toolchain_missing",
        "lcuda",
    ),
)

OF_ARGUMENTS_AND_PACKAGES = (
    Kind(
        "an address that is not the host's",
        START
        + UP
        + "ERROR:    [Errno 99] error while attempting to bind on address ('10.9.9.9', 8000): cannot assign requested "
        + "address\n",
        "config_invalid",
        "Errno 99",
    ),
    Kind(
        "an address that is not the host's, before the engine starts",
        starting("OSError: [Errno 99] Cannot assign requested address"),
        "config_invalid",
        "Errno 99",
    ),
    Kind(
        "a port that only root may use",
        START
        + UP
        + "ERROR:    [Errno 13] error while attempting to bind on address ('0.0.0.0', 443): permission denied\n",
        "config_invalid",
        "Errno 13",
    ),
    Kind(
        "a host name that nobody knows",
        loading("socket.gaierror: [Errno -2] Name or service not known"),
        "unclassified",
        "gaierror",
    ),
    Kind(
        "a network interface that is not there",
        loading(
            "RuntimeError: [enforce fail at ../third_party/gloo/gloo/transport/tcp/device.cc:84] ifa != nullptr. "
            "Unable to find address for: eth9"
        ),
        "config_invalid",
        "eth9",
    ),
    Kind(
        "a file of arguments that is no YAML",
        starting("yaml.scanner.ScannerError: mapping values are not allowed here"),
        "config_invalid",
        "Scanner",
    ),
    Kind(
        "an adapter of a higher rank than allowed",
        loading("ValueError: LoRA rank 64 is greater than max_lora_rank 16."),
        "config_invalid",
        "rank",
    ),
    Kind(
        "a GPU that another process has for itself",
        loading("torch.AcceleratorError: CUDA error: CUDA-capable device(s) is/are busy or unavailable"),
        "gpu_memory_busy_at_start",
        "busy",
    ),
    Kind(
        "memory of an accelerator of another maker",
        loading("RuntimeError: NPU out of memory. Tried to allocate 2.00 GiB (NPU 0; 60.96 GiB total capacity)"),
        "cuda_oom",
        "NPU",
    ),
    Kind(
        "torch and torchvision for different CUDAs",
        starting(
            "RuntimeError: Detected that PyTorch and torchvision were compiled with different CUDA major versions. "
            "PyTorch has CUDA Version=13.0 and torchvision has CUDA Version=12.8."
        ),
        "dependency_mismatch",
        "torchvision",
    ),
    Kind(
        "a tokenizer of another transformers",
        starting("AttributeError: Qwen2Tokenizer has no attribute all_special_tokens_extended. Did you mean: 'x'?"),
        "dependency_mismatch",
        "Tokenizer",
    ),
    Kind(
        "a library of another CUDA",
        starting("OSError: libcudart.so.13: cannot open shared object file: No such file or directory"),
        "dependency_mismatch",
        "libcudart",
    ),
    Kind(
        "weights on a mount that went away",
        loading("OSError: [Errno 107] Transport endpoint is not connected: '/mnt/m/model-00001-of-00119.safetensors'"),
        "weights_corrupt_or_missing",
        "Errno 107",
    ),
    Kind(
        "an architecture that the GGUF loader does not know",
        loading("RuntimeError: Unknown gguf model_type: kimi_k2"),
        "model_arch_unsupported",
        "gguf",
    ),
    Kind(
        "a question about failures",
        START
        + UP
        + "(APIServer pid=100) INFO 03-01 10:05:00 [logger.py:42] Received request cmpl-1: prompt: 'I see "
        + "Segmentation fault (core dumped), slurmstepd: error: *** JOB 1 CANCELLED DUE TO TIME LIMIT ***, exitcode: "
        + "-9 and torch.OutOfMemoryError: CUDA out of memory. Why?', params: SamplingParams(n=1)\n"
        + CHATS,
        verdict="healthy",
    ),
    Kind(
        "failures around a service that goes on",
        START
        + "gpu-1:77:77 [0] misc/socket.cc:50 NCCL WARN socketStartConnect: Connect to 10.0.0.9<41> failed\n"
        + UP
        + server(traceback("ValueError: the request is too large")),
        verdict="healthy",
    ),
)

KINDS = (
    *OF_THE_KERNEL,
    *OF_THE_UNIT,
    *OF_THE_SCHEDULER,
    *OF_THE_SHELL,
    *OF_THE_CONTAINER,
    *OF_NATIVE_CODE,
    *OF_ARGUMENTS_AND_PACKAGES,
)
