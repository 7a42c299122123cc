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

OTHER_KILLED = (
    "prometheus invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0",
    "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0-1,oom_memcg=/system.slice/x.service,"
    "task_memcg=/system.slice/x.service,task=prometheus,pid=991,uid=0",
    "Memory cgroup out of memory: Killed process 991 (prometheus) total-vm:9123456kB, anon-rss:1234567kB",
)

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
        "memory of the host ran out, in all the kernel's words",
        silent(
            kernel(
                "prometheus invoked oom-killer: gfp_mask=0x140cca(GFP_HIGHUSER_MOVABLE|__GFP_COMP), order=0",
                "oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0-1,global_oom,"
                "task_memcg=/system.slice/system-vllm.slice/vllm@kimi.service,task=VLLM::Worker_TP,pid=102,uid=990",
                "Out of memory: Killed process 102 (VLLM::Worker_TP) total-vm:912345678kB, anon-rss:123456789kB",
            )
        ),
        "host_oom_kill",
        "task=VLLM|Killed process 102",
    ),
    Kind(
        "memory of another unit ran out beside a service that goes on",
        START + UP + kernel(*OTHER_KILLED) + CHATS * 9,
        verdict="healthy",
    ),
    Kind(
        "memory of another unit ran out before a failure",
        START
        + kernel(*OTHER_KILLED)
        + worker(traceback("ValueError: No available memory for the cache blocks."))
        + gave_up(),
        "kv_cache_too_small",
        "cache blocks",
    ),
    Kind(
        "a segmentation fault that only the kernel saw",
        silent(kernel("VLLM::Worker_TP[102]: segfault at 10 ip 7f29 sp 7ffd error 4 in libnccl.so.2[7f29+100]")),
        "engine_process_died",
        "segfault",
    ),
    Kind(
        "a segmentation fault of something else",
        silent(kernel("nginx[991]: segfault at 10 ip 7f29 sp 7ffd error 4 in libcrypto.so.3[7f29+100]")),
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
        "a container that was to be removed and is not there",
        "Error response from daemon: No such container: vllm\n" + silent(""),
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
        "an index out of bounds in a kernel",
        serving(
            "/pytorch/aten/src/ATen/native/cuda/IndexKernel.cu:93: operator(): block: [0,0,0], thread: [1,0,0] "
            'Assertion `idx >= 0 && idx < size && "index out of bounds"` failed.\n'
            + worker(traceback("torch.AcceleratorError: CUDA error: device-side assert triggered"))
        ),
        "cuda_illegal_access",
        "index out of bounds",
    ),
    Kind(
        "hints of native libraries that do no harm",
        silent(
            "libgomp: Invalid value for environment variable OMP_NUM_THREADS\n"
            "/usr/bin/ld: cannot find -laio: No such file or directory\ncollect2: error: ld returned 1 exit status\n"
        ),
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

KINDS = (
    *OF_THE_KERNEL,
    *OF_THE_UNIT,
    *OF_THE_SCHEDULER,
    *OF_THE_SHELL,
    *OF_THE_CONTAINER,
    *OF_NATIVE_CODE,
)
