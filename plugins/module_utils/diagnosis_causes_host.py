# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Failures that lie in the packages, the host or its service manager. The form is in ``diagnosis_cause``."""

from __future__ import annotations

from ansible_collections.llmops.vllm.plugins.module_utils.diagnosis_cause import Cause, cause

_PACKAGES = (
    "use a runtime lock whose packages were resolved together (vllm_runtime_lock); do not upgrade single packages in it"
)
_SYSTEMD_SERVICE = "man systemd.service"
_KERNEL = "kernel log"
_MORE_MEMORY = (
    "give the host or the unit more memory (MemoryMax in vllm_service_unit_settings), lower kv-cache-memory-bytes, or "
    "limit parallel compilers with MAX_JOBS; memory.events of the unit counts the kills"
)

HOST_CAUSES: tuple[Cause, ...] = (
    cause(
        "dependency_mismatch",
        "the system library libnuma is missing",
        r"Failed to import from vllm\._C.*libnuma",
        "install libnuma1 (role host_prereq does)",
        "Failed to import from vllm._C: ImportError('libnuma.so.1: cannot open shared object file')",
        at_warning=True,
    ),
    cause(
        "stale_cache",
        "a kernel in a cache was built for other packages than these",
        r"\.cache/\S*\.so: (?:undefined symbol|cannot open)|ninja: error: loading 'build\.ninja'",
        "remove the cache that the line names and start again; caches belong to one runtime each",
        "ImportError: /srv/llm/.cache/flashinfer/0.6.6/120a/cached_ops/norm/norm.so: undefined symbol: _ZN3c104",
    ),
    cause(
        "dependency_mismatch",
        "vLLM's compiled extension could not be loaded",
        r"'_OpNamespace' '\w+' object has no attribute|^(?!.*\.cache/).*undefined symbol",
        "install the missing system library (libnuma1 on CPUs), or use wheels built for this torch (vllm_runtime_lock)",
        "AttributeError: '_OpNamespace' '_C' object has no attribute 'init_cpu_memory_env'",
    ),
    cause(
        "host_limits",
        "the service may not create more processes or threads",
        r"Resource temporarily unavailable|can't start new thread|pthread_create",
        "raise TasksMax of the unit (vllm_service_unit_settings) and the container's pids limit",
        "RuntimeError: can't start new thread",
    ),
    cause(
        "host_limits",
        "the service may not open more files",
        r"Too many open files",
        "raise LimitNOFILE of the unit to 65535 or more",
        "OSError: [Errno 24] Too many open files: '/srv/llm/m/config.json'",
    ),
    cause(
        "shm_exhausted",
        "/dev/shm is too small or full",  # noqa: S108 - a title
        r"Insufficient space in /dev/shm|failed to extend /dev/shm|No space left on device.*/dev/shm|"
        r"/dev/shm.*No space left|Error while creating shared memory segment|out of shared memory\b(?!, )|"
        r"unable to (?:write to file|open shared memory object) </torch_\S+: No space left|"
        r"insufficient shared memory \(shm\)",
        "enlarge /dev/shm (10 GiB and more for 8 GPUs) and run shm_cleanup",
        "RuntimeError: Insufficient space in /dev/shm for shared-memory allocation: 160 MiB required, 64 MiB free.",
    ),
    cause(
        "shm_leftover",
        "a shared-memory segment disappeared or belongs to another launch",
        r"[Ee]rror while attaching to shared memory|FileNotFoundError: .*/psm_|FileExistsError: .*/(?:psm_|vllm)|"
        r"vllm_offload\S*.*Bad address|\[Errno 14\] Bad address",
        "clean only with shm_cleanup, which leaves segments in use alone",
        "FileNotFoundError: [Errno 2] No such file or directory: '/psm_1aa432c1'",
    ),
    cause(
        "port_in_use",
        "the port is taken",
        r"[Aa]ddress already in use|EADDRINUSE|"
        r"(?<!\[Errno 99\] )(?<!\[Errno 13\] )error while attempting to bind on address|"
        r"[Pp]ort \d+ is (?:already )?in use|port is already allocated",
        "end or move the process that listens there (process_teardown names it), or choose another vllm_service_port",
        "OSError: [Errno 98] Address already in use",
    ),
    cause(
        "config_invalid",
        "the service may not listen on that address or port",
        r"\[Errno 99\] |[Cc]annot assign requested address|\[Errno 13\] error while attempting to bind",
        "set vllm_service_host to an address of this host, and vllm_service_port to one that needs no privilege (above "
        "1023)",
        "OSError: [Errno 99] Cannot assign requested address",
    ),
    cause(
        "config_invalid",
        "the network interface of that name is not there",
        r"Unable to find (?:address|interface) for: ",
        "correct GLOO_SOCKET_IFNAME (and NCCL_SOCKET_IFNAME, VLLM_HOST_IP) in vllm_service_environment_extra",
        "RuntimeError: [enforce fail at tcp/device.cc:84] ifa != nullptr. Unable to find address for: eth9",
    ),
    cause(
        "config_invalid",
        "systemd did not hand the API key over",
        r"API key of instance \S+ was not handed over",
        "set vllm_service_api_key and let the role write the unit again; LoadCredential of the unit names the file",
        "The API key of instance kimi was not handed over by systemd (LoadCredential=api_key); not starting",
        source="serve.sh of the role vllm_service",
    ),
    cause(
        "config_invalid",
        "the engine's command is not there",
        r"\bvllm\"?: (?:command not found|not found|executable file not found)|command not found: vllm",
        "check the runtime that the unit names (vllm_runtime_lock) and its PATH",
        "bash: line 1: vllm: command not found",
        source="bash, dash, zsh, Docker",
    ),
    cause(
        "memlock_limit",
        "the limit of locked memory is too low",
        r"ibv_reg_mr\w* .*Cannot allocate memory|RLIMIT_MEMLOCK|memlock|ibv_create_cq .*Cannot allocate memory|"
        r"max locked memory",
        "set LimitMEMLOCK=infinity in the unit",
        "gpu-host:417:512 [0] NCCL WARN Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory",
    ),
    cause(
        "host_oom_kill",
        "the host or the unit ran out of memory",
        r"oom-kill|[Oo]ut of memory: Killed process|killed by the OOM killer|OOMKilled|"
        r"FAILED: \[code=137\]|DefaultCPUAllocator: can't allocate memory|Killed signal terminated program|"
        r"node running low on memory|^MemoryError\b|\[Errno 12\] Cannot allocate memory|^oom_kill [1-9]|"
        r"Task was killed due to|died due to signal 9\b|internal compiler error: Killed|Detected \d+ oom[-_]kill event",
        _MORE_MEMORY,
        "Out of memory: Killed process 4711 (VLLM::EngineCor) total-vm:912345678kB, anon-rss:123456789kB",
        source=_KERNEL,
    ),
    cause(
        "disk_full",
        "a disk is full, or its quota is used up",
        r"\[Errno 28\] No space left on device(?!.*/dev/shm)|\[Errno 122\] Disk quota exceeded|"
        r"No space left on device \(os error 28\)|"
        r"(?:error writing to \S+|[Ww]rite (?:error|failed)|link failed): No space left on device",
        "free or enlarge the disk that holds the caches and releases; model_shards prunes what no release uses",
        "OSError: [Errno 28] No space left on device: '/srv/llm/cache/vllm/torch_compile_cache'",
    ),
    cause(
        "file_permission",
        "the service's user may not read or write a file",
        r"PermissionError: \[Errno 13\](?!.*(?:safetensors|\.json|\.bin|\.gguf))|Read-only file system: |"
        r"PermissionError: \[Errno 1\]",
        "give the unit's user the file, or point the cache that is named at a directory of its own "
        "(vllm_service_environment_extra); the unit's sandbox settings can be the reason too",
        "PermissionError: [Errno 13] Permission denied: '/root/.cache/vllm'",
    ),
)

PACKAGE_CAUSES: tuple[Cause, ...] = (
    cause(
        "dependency_mismatch",
        "Python packages or system libraries of the runtime do not fit each other",
        r"ModuleNotFoundError|ImportError: (?!.*(?:libcuda\.so\.1|libnuma|undefined symbol))|"
        r"operator torchvision::nms does not exist|PackageNotFoundError|"
        r"AttributeError: (?:partially initialized )?module '\S+' has no attribute|"
        r"got an unexpected keyword argument|numpy\.dtype size changed|version `GLIBC\w*_[\d.]+' not found|"
        r"version .* does not match .*version|VersionConflict|requires the following packages|"
        r"missing \d+ required positional argument|cannot import name|: No module named vllm$|"
        r"OSError: lib\S+: cannot open shared object file|compiled with different CUDA (?:major )?versions|"
        r"AttributeError: '?\w*Tokenizer\w*'? (?:object )?has no attribute|Version mismatch: The cluster was started",
        _PACKAGES,
        "ModuleNotFoundError: No module named 'triton.compiler'",
    ),
)

# What the service manager, the kernel or the container's runtime say. What ends a launch is a cause when it came
# before every root in the engine's own lines; the others are asked only when no line of the engine explains the end.
OUTSIDE_CAUSES: tuple[Cause, ...] = (
    cause(
        "engine_hang",
        "the engine stood still, and the watch of its unit ended it",
        r"^killed this launch: no (?:progress|token|answer)",
        "look at the GPUs (Xid in the kernel log) and at what the engine did last; if it needs longer, raise "
        "vllm_service_stall_timeout_seconds (while it starts) or vllm_service_hang_seconds (while it serves)",
        "killed this launch: no token for 120 s and no answer to a completion of one token",
        source="the watch of the unit",
        acts=True,
        confidence=0.9,
    ),
    cause(
        "port_in_use",
        "another process answers on the port, and the watch of the unit ended the launch",
        r"^killed this launch: port \d+ is answered by a foreign process",
        "stop the process that the line names, or choose another vllm_service_port",
        "killed this launch: port 8000 is answered by a foreign process: 99 (nc -l 8000) of user joe in /user.slice",
        source="the watch of the unit",
        acts=True,
        confidence=0.9,
    ),
    cause(
        "host_oom_kill",
        "the kernel's OOM killer ended a process of the unit",
        r"killed by the OOM killer|Failed with result 'oom-kill'|^oom_kill [1-9]|systemd-oomd killed [1-9]|"
        r"^Killed /\S*vllm\S* due to memory pressure",
        _MORE_MEMORY,
        "vllm@kimi.service: A process of this unit has been killed by the OOM killer.",
        source=_SYSTEMD_SERVICE,
        confidence=0.8,
    ),
    cause(
        "systemd_timeout",
        "systemd ended the unit because a start or stop took too long",
        r"(?:[Ss]tart|[Ss]top)\S* (?:operation )?timed out|Failed with result 'timeout'|State '[\w-]+' timed out|"
        r"Watchdog timeout \(limit",
        "raise the unit's timeout (vllm_service_unit_settings), or find out why the engine did not follow the signal "
        "(SIGTERM while loading is ignored)",
        "vllm@kimi.service: start operation timed out. Terminating.",
        source=_SYSTEMD_SERVICE,
        acts=True,
        confidence=0.8,
    ),
    cause(
        "config_invalid",
        "systemd could not execute the service's command",
        r"status=2[0-4]\d/[A-Z]|Failed at step \w+ spawning|Failed to (?:load environment files|set up credentials)",
        "check the unit's user, working directory, executable (runtime path), environment files and credentials, and "
        "its sandbox settings",
        "vllm@kimi.service: Failed at step EXEC spawning /srv/llm/bin/vllm: No such file or directory",
        source="man systemd.exec",
        confidence=0.8,
    ),
    cause(
        "external_kill",
        "somebody or something outside ended the main process with SIGKILL",
        r"Main process exited, code=(?:killed, status=9/KILL|exited, status=137/)",
        "look for who did it: kernel log (OOM), other automation, an operator's kill",
        "vllm@kimi.service: Main process exited, code=killed, status=9/KILL",
        source=_SYSTEMD_SERVICE,
        confidence=0.6,
    ),
    cause(
        "engine_process_died",
        "a process crashed in native code",
        r"Main process exited, code=dumped|Main process exited, code=killed, status=(?:6/ABRT|7/BUS|8/FPE|11/SEGV)|"
        r"^(?:traps: )?(?:VLLM|vllm|python|pt_main|ray)[^\[]*\[\d+\]:? (?:segfault at|general protection|trap )",
        "look at the core dump (coredumpctl info) for the library that crashed",
        "vllm@kimi.service: Main process exited, code=dumped, status=11/SEGV",
        source=_SYSTEMD_SERVICE,
        confidence=0.6,
    ),
    cause(
        "engine_process_died",
        "the C library found damaged memory and ended a process",
        r"^double free or corruption|^(?:free|malloc|realloc|munmap_chunk)\(\): |^corrupted size vs\. prev_size|"
        r"stack smashing detected",
        "look at the core dump (coredumpctl info) for the library that damaged it; do not mix packages "
        "(vllm_runtime_lock)",
        "double free or corruption (!prev)",
        source="messages of glibc",
        anybody=True,
        confidence=0.6,
    ),
    cause(
        "external_kill",
        "a process of the engine was ended from outside by a signal",
        r"Failed core proc\(s\): \{[^}]*: -(?:9|15)\b|died, exit code: -(?:9|15)\b|exitcode *: -(?:9|15)\b|"
        r"Signal (?:9|15) \(SIG(?:KILL|TERM)\) received by PID",
        "look for who did it: kernel log (OOM killer), other automation, an operator's kill",
        "RuntimeError: Engine core initialization failed. Failed core proc(s): {'EngineCore': -9}",
        source="https://docs.python.org/3/library/multiprocessing.html (exitcode)",
        anybody=True,
        confidence=0.6,
    ),
    cause(
        "engine_process_died",
        "a process of the engine crashed in native code",
        r"Failed core proc\(s\): \{[^}]*: -(?:4|6|7|8|11)\b|died, exit code: -(?:4|6|7|8|11)\b|"
        r"exitcode *: -(?:4|6|7|8|11)\b|Signal (?:4|6|7|8|11) \(SIG\w+\) received by PID",
        "look at the native stack above the line, and at the core dump (coredumpctl info) for the library that crashed",
        "RuntimeError: Engine core initialization failed. Failed core proc(s): {'EngineCore': -11}",
        source="https://docs.python.org/3/library/multiprocessing.html (exitcode)",
        anybody=True,
        confidence=0.6,
    ),
    cause(
        "engine_process_died",
        "the main process crashed in native code",
        r"(?:Segmentation fault|Illegal instruction|Bus error|Aborted) +\(core dumped\)",
        "look at the core dump (coredumpctl info) for the library that crashed",
        "serve.sh: line 12: 4711 Segmentation fault (core dumped) vllm serve",
        source="man bash",
        anybody=True,
        confidence=0.6,
    ),
    cause(
        "external_kill",
        "the scheduler of the cluster ended the job",
        r"^slurmstepd: error: \*\*\* .* DUE TO ",
        "give the job the time that it needs, or a partition that does not preempt it",
        "slurmstepd: error: *** JOB 4711 ON gpu-1 CANCELLED AT 2026-03-01T10:00:00 DUE TO TIME LIMIT ***",
        source="https://slurm.schedmd.com/scancel.html",
        acts=True,
        anybody=True,
        confidence=0.8,
    ),
    cause(
        "external_kill",
        "the container was ended from outside, because a probe failed",
        r"failed (?:liveness|startup) probe, will be restarted",
        "allow the probe more time than the slowest load takes, or let it follow the progress",
        "Container vllm failed startup probe, will be restarted",
        source="https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle",
        acts=True,
        anybody=True,
        confidence=0.8,
    ),
    cause(
        "systemd_restart_loop",
        "systemd gave up, or goes on, restarting the unit",
        r"Start request repeated too quickly|Failed with result 'start-limit-hit'|"
        r"Scheduled restart job, restart counter is at (?:[5-9]|\d{2,})\b",
        "read the first of these launches: its own cause is the one to repair; keep StartLimitBurst and a RestartSec "
        "of half a minute in the unit",
        "vllm@kimi.service: Scheduled restart job, restart counter is at 877.",
        source=_SYSTEMD_SERVICE,
        confidence=0.6,
    ),
    cause(
        "external_kill",
        "somebody or something outside asked the server to end while it started",
        r"^KeyboardInterrupt: terminated$",
        "look for who did it: a probe, a timeout of the service manager, other automation, an operator",
        "KeyboardInterrupt: terminated",
        versions="0.6 to 0.10",
        anybody=True,
        confidence=0.6,
    ),
)
