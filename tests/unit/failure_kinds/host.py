"""Kinds that lie in the host, its service manager or the container, and launches in which nothing failed."""

from __future__ import annotations

from ansible_collections.llmops.vllm.tests.unit.failure_kinds.form import (
    CHATS,
    START,
    UP,
    Kind,
    kernel,
    loading,
    server,
    silent,
    systemd,
    traceback,
    worker,
)

OF_MEMORY_AND_FILES = (
    Kind(
        "a pod that exceeds its memory",
        START + "Last State:     Terminated\n  Reason:       OOMKilled\n  Exit Code:    137\n",
        "host_oom_kill",
        "OOMKilled",
    ),
    Kind(
        "a kernel's compiler is killed",
        loading("RuntimeError: Ninja build failed. Ninja output:\nFAILED: [code=137] fused_moe.cuda.o\nKilled"),
        "host_oom_kill",
        "137",
    ),
    Kind(
        "the C++ compiler is killed",
        silent(
            "g++: fatal error: Killed signal terminated program cc1plus\ncompilation terminated.\n"
            + worker(traceback("torch._inductor.exc.InductorError: CppCompileError: C++ compile error"))
        ),
        "host_oom_kill",
        "cc1plus",
    ),
    Kind(
        "Ray's node runs out of memory",
        traceback(
            "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.\n"
            "Memory on the node (IP: 10.0.0.2, ID: x) where the task was running was 950GB / 1000GB"
        ),
        "host_oom_kill",
        "low on memory",
    ),
    Kind(
        "shared memory ran out under a process",
        silent(
            "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory "
            "(shm).\n"
        ),
        "shm_exhausted",
        "bus error",
    ),
    Kind(
        "NCCL finds no room in shared memory",
        silent(
            "gpu-1:77:90 [0] misc/shmutils.cc:87 NCCL WARN Error: failed to extend /dev/shm/nccl-abc to 33030528 "
            "bytes, error: No space left on device (28)\n"
            + worker(traceback("RuntimeError: NCCL error: unhandled system error (run with NCCL_DEBUG=INFO)"))
        ),
        "shm_exhausted",
        "extend",
    ),
    Kind(
        "a segment went away",
        loading("FileNotFoundError: [Errno 2] No such file or directory: '/psm_1aa432c1'"),
        "shm_leftover",
        "psm_",
    ),
    Kind("a mapping went away", loading("OSError: [Errno 14] Bad address"), "shm_leftover", "Bad address"),
    Kind(
        "memory may not be locked",
        silent(
            "gpu-1:77:90 [0] ibvwrap.cc:160 NCCL WARN Call to ibv_reg_mr_iova2 failed with error Cannot allocate "
            "memory\n" + worker(traceback("RuntimeError: NCCL error: unhandled system error (NCCL_DEBUG=INFO)"))
        ),
        "memlock_limit",
        "ibv_reg",
    ),
    Kind(
        "a read-only home",
        loading("OSError: [Errno 30] Read-only file system: '/home/vllm/.cache/vllm'"),
        "file_permission",
        "Errno 30",
    ),
    Kind(
        "a cache of another user",
        loading("PermissionError: [Errno 13] Permission denied: '/root/.cache/vllm/torch_compile_cache'"),
        "file_permission",
        "Errno 13",
    ),
    Kind(
        "a full disk under a cache",
        loading("OSError: [Errno 28] No space left on device: '/var/cache/vllm/kimi/torchinductor'"),
        "disk_full",
        "Errno 28",
    ),
    Kind(
        "a GPU falls off the bus",
        silent(
            kernel("NVRM: Xid (PCI:0000:41:00): 79, GPU has fallen off the bus.")
            + worker(traceback("RuntimeError: CUDA error: unspecified launch failure"))
        ),
        "gpu_hardware_fault",
        "Xid",
    ),
)

OF_THE_NETWORK = (
    Kind(
        "the server's port is taken",
        START
        + UP
        + "ERROR:    [Errno 98] error while attempting to bind on address ('0.0.0.0', 8000): address already in use\n"
        + "INFO:     Waiting for application shutdown.\n",
        "port_in_use",
        "Errno 98",
    ),
    Kind(
        "the rendezvous port is taken",
        loading(
            "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. "
            "port: 29500, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use"
        ),
        "port_in_use",
        "EADDRINUSE",
    ),
)

OF_THE_SERVICE_MANAGER = (
    Kind(
        "a unit that starts again and again",
        systemd(
            "Scheduled restart job, restart counter is at 12.",
            "Start request repeated too quickly.",
            "Failed with result 'start-limit-hit'.",
        ),
        "systemd_restart_loop",
        "restart",
    ),
    Kind(
        "a command that is not there",
        systemd("Main process exited, code=exited, status=203/EXEC"),
        "config_invalid",
        "203",
    ),
    Kind(
        "a start that takes longer than it may",
        START + systemd("start operation timed out. Terminating.", "Failed with result 'timeout'."),
        "systemd_timeout",
        "timed out",
    ),
)

NOTHING_FAILED = (
    Kind("a long time of serving", START + UP + CHATS * 9, verdict="healthy"),
    Kind(
        "a stop on request",
        START
        + UP
        + "INFO:     Shutting down\nINFO:     Waiting for application shutdown.\n"
        + "INFO:     Application shutdown complete.\nINFO:     Finished server process [100]\n",
        verdict="healthy",
    ),
    Kind(
        "a request that is refused with a traceback",
        START
        + UP
        + server("Error in preprocessing prompt inputs", "serving_chat.py:200")
        + server(
            traceback("ValueError: The decoder prompt (length 600) is longer than the maximum model length of 512."),
            "serving_chat.py:200",
        )
        + CHATS.replace("200 OK", "400 Bad Request"),
        verdict="healthy",
    ),
    Kind(
        "a stop while it loads",
        START + "(APIServer pid=100) INFO 03-01 10:00:30 [launcher.py:99] Shutting down\n",
    ),
    Kind(
        "processes that wait for one another",
        START + "(EngineCore pid=101) INFO 03-01 10:02:00 [shm_broadcast.py:466] No available shared memory broadcast "
        "block found in 60 seconds.\n" * 4,
        verdict="hang",
    ),
)

KINDS = (*OF_MEMORY_AND_FILES, *OF_THE_NETWORK, *OF_THE_SERVICE_MANAGER, *NOTHING_FAILED)
