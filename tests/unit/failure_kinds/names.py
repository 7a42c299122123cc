"""Kinds of exceptions whose names, places or frames are unusual."""

from __future__ import annotations

from ansible_collections.llmops.vllm.tests.unit.failure_kinds.form import (
    CHATS,
    START,
    UP,
    Kind,
    each_line,
    gave_up,
    kernel,
    loading,
    silent,
    starting,
    systemd,
    traceback,
    worker,
)

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."

OF_NAMES = (
    Kind(
        "a class whose name begins in lower case",
        loading("nixl._bindings.nixlBackendError: NIXL_ERR_BACKEND"),
        "unclassified",
        "NIXL_ERR_BACKEND",
    ),
    Kind(
        "a class of errors that is not called one",
        loading("torch._dynamo.exc.Unsupported: Unsupported function call"),
        "unclassified",
        "Unsupported",
    ),
    Kind("an error of C's own", loading("struct.error: unpack requires a buffer of 8 bytes"), "unclassified", "unpack"),
    Kind(
        "a command that took too long",
        loading("subprocess.TimeoutExpired: Command '['ninja']' timed out after 600 seconds"),
        "unclassified",
        "TimeoutExpired",
    ),
    Kind("a wait that was given up", loading("queue.Empty")),
    Kind(
        "a process that tells of another's exception",
        START
        + traceback("torch.multiprocessing.spawn.ProcessRaisedException: ")
        + "\n-- Process 0 terminated with the following error:\n"
        + traceback(OOM),
        "cuda_oom",
        "Tried to allocate",
    ),
    Kind(
        "a launcher that tells of its child",
        START
        + "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n"
        + "============================================================\nserve.py FAILED\n"
        + "  exitcode  : -9 (pid: 4711)\n  traceback : Signal 9 (SIGKILL) received by PID 4711\n",
        "external_kill",
        "-9|Signal 9",
    ),
    Kind(
        "an exception with a note",
        loading("ValueError: Free memory on device cuda:0 (1.9/95 GiB) on startup is less than desired\nwhile loading"),
        "gpu_memory_busy_at_start",
        "Free memory",
    ),
    Kind(
        "exceptions in a group",
        START
        + "  + Exception Group Traceback (most recent call last):\n"
        + '  |   File "/srv/x.py", line 5, in load\n'
        + "  | ExceptionGroup: unhandled errors in a TaskGroup (1 sub-exception)\n"
        + "  +-+---------------- 1 ----------------\n"
        + "    | Traceback (most recent call last):\n"
        + '    |   File "/srv/x.py", line 5, in load\n'
        + f"    | {OOM}\n"
        + "    +------------------------------------\n",
        "cuda_oom",
        "Tried to allocate",
    ),
    Kind(
        "a traceback in a box",
        START
        + "╭───────────────────── Traceback (most recent call last) ──────────────────────╮\n"
        + "│ /srv/x.py:5 in load                                                          │\n"
        + "│ ❱ 5     raise it                                                             │\n"
        + "╰──────────────────────────────────────────────────────────────────────────────╯\n"
        + "OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n",
        "cuda_oom",
        "Tried to allocate",
    ),
)

OF_FRAMES = (
    Kind(
        "levels without a time",
        START + each_line("(Worker_TP0_EP0 pid=102) ERROR [multiproc_executor.py:932] ", traceback(OOM)) + gave_up(),
        "cuda_oom",
        "Tried to allocate",
    ),
    Kind(
        "a trainer's worker",
        START + each_line("(WorkerDict pid=60951, ip=172.17.207.216) ", worker(traceback(OOM))) + gave_up(),
        "cuda_oom",
        "Tried to allocate",
    ),
    Kind(
        "an executor in the engine's prefix",
        START + each_line("(EngineCore_DP0 pid=26353) (Worker_TP7 pid=26373) ", traceback(OOM)) + gave_up(),
        "cuda_oom",
        "Tried to allocate",
    ),
    Kind(
        "a warning of the compiler before the failure",
        START
        + each_line("[rank0]:W0225 03:39:37.849000 1394121 torch/_dynamo/convert_frame.py:1125] ", traceback("X: y"))
        + worker(traceback(OOM))
        + gave_up(),
        "cuda_oom",
        "Tried to allocate",
    ),
    Kind("quoted in a mail", each_line("> ", loading(OOM)), "cuda_oom", "Tried to allocate"),
    Kind("lines that end as in Windows", loading(OOM).replace("\n", "\r\n"), "cuda_oom", "Tried to allocate"),
    Kind(
        "a terminal's recording",
        "Script started on 2026-03-01\n"
        + loading(OOM).replace("ERROR", "\x1b[1;31mERROR\x1b[0m")
        + "\x1b]0;~\x07$ exit\n",
        "cuda_oom",
        "Tried to allocate",
    ),
    Kind("the log of a CI", each_line("2026-03-01T10:00:00.1234567Z ##[error]", starting(OOM)), "cuda_oom", "Tried"),
    Kind("indented in a report", each_line("    ", loading(OOM)), "cuda_oom", "Tried to allocate"),
)

OF_SENTENCES = (
    Kind(
        "experts that cannot be divided",
        loading("AssertionError: n_physical_experts=256 must be divisible by ep_size=3. Adjust num_redundant_experts."),
        "config_invalid",
        "ep_size",
    ),
    Kind(
        "GPUs that talk to no multicast",
        loading("RuntimeError: [SymmDeviceMemory] Device does not support multicasting."),
        "unclassified",
        "multicasting",
    ),
    Kind(
        "a library of communication that gives up",
        silent("/nvshmem/src/init.cu:nvshmemi_check_state_and_init:1080: nvshmem initialization failed, exiting\n"),
        "unclassified",
        "nvshmem",
    ),
    Kind(
        "an instruction that this processor does not have",
        silent(
            kernel("traps: VLLM::EngineCor[101] trap invalid opcode ip:7f29 sp:7ffd error:0 in libtorch_cpu.so"),
            "{'EngineCore': -4}",
        ),
        "engine_process_died",
        "invalid opcode|-4",
    ),
    Kind(
        "a kill without a reason",
        START + UP + CHATS + systemd("Main process exited, code=killed, status=9/KILL", "Failed with result 'signal'."),
        "external_kill",
        "status=9",
    ),
    Kind(
        "a drain that takes longer than it may",
        START
        + UP
        + CHATS
        + systemd("State 'stop-sigterm' timed out. Killing.", "Killing process 100 (vllm) with signal SIGKILL."),
        "systemd_timeout",
        "timed out",
    ),
)

KINDS = (*OF_NAMES, *OF_FRAMES, *OF_SENTENCES)
