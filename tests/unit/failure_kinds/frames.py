"""Kinds of what other tools make of the engine's lines."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ansible_collections.llmops.vllm.tests.unit.failure_kinds.form import (
    START,
    Kind,
    each_line,
    loading,
    starting,
    traceback,
    worker,
)

SMALL_SHM = loading(
    "RuntimeError: Insufficient space in /dev/shm for shared-memory allocation: 160 MiB required, 64 MiB free."
)
CUT_SHARD = loading(
    "safetensors_rust.SafetensorError: Error while deserializing header: incomplete metadata, file not fully covered"
)
LONE_OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
RAY = "\x1b[36m(RayWorkerWrapper pid=88, ip=10.0.0.2)\x1b[0m "


def as_json(text: str, key: str, more: Mapping[str, Any], separators: tuple[str, str] | None = None) -> str:
    """Each line of ``text`` in an object of its own."""
    return "".join(json.dumps({**more, key: line}, separators=separators) + "\n" for line in text.splitlines())


def in_bytes(text: str, separators: tuple[str, str] | None = None) -> str:
    """As journald writes lines with colours."""
    objects = ({"MESSAGE": list(f"\x1b[31m{line}\x1b[0m".encode()), "_PID": "7"} for line in text.splitlines())
    return "".join(json.dumps(fields, separators=separators) + "\n" for fields in objects)


def exported(text: str) -> str:
    """As ``journalctl --output=export`` writes entries."""
    return "".join(f"__REALTIME_TIMESTAMP=1\n_PID=7\n_COMM=vllm\nMESSAGE={line}\n\n" for line in text.splitlines())


def verbose(text: str) -> str:
    """As ``journalctl --output=verbose`` writes entries."""
    head = "Sun 2026-03-01 10:00:00.123456 UTC [s=0f;i=1;b=2f;m=3;t=4;x=5]\n    _PID=7\n    PRIORITY=6\n"
    return "".join(f"{head}    MESSAGE={line}\n" for line in text.splitlines())


def structured(message: str, exception: str | list[str], level: str = "ERROR") -> str:
    """As a JSON formatter writes what the engine logs with an exception."""
    fields = {"asctime": "2026-03-01 10:00:00,123", "levelname": level, "name": "vllm.v1.engine.core"}
    return json.dumps({**fields, "message": message, "exc_info": exception}) + "\n"


OF_THE_JOURNAL = (
    Kind(
        "journalctl --output=json",
        as_json(SMALL_SHM, "MESSAGE", {"__REALTIME_TIMESTAMP": "1", "_PID": "7", "_COMM": "vllm"}),
        "shm_exhausted",
        "Insufficient",
    ),
    Kind("journalctl --output=json, with colours", in_bytes(SMALL_SHM, (",", ":")), "shm_exhausted", "Insufficient"),
    Kind("the same, written again by another tool", in_bytes(SMALL_SHM), "shm_exhausted", "Insufficient"),
    Kind("journalctl --output=export", exported(starting(LONE_OOM)), "cuda_oom", "Tried to allocate"),
    Kind("journalctl --output=verbose", verbose(starting(LONE_OOM)), "cuda_oom", "Tried to allocate"),
    Kind(
        "journalctl --output=json-pretty",
        "".join(
            json.dumps({"__REALTIME_TIMESTAMP": "1", "_PID": "7", "MESSAGE": line}, indent=8) + "\n"
            for line in starting(LONE_OOM).splitlines()
        ),
        "cuda_oom",
        "Tried to allocate",
    ),
    Kind(
        "journalctl --output=short-unix",
        each_line("1772359260.123456 gpu-1 vllm[4711]: ", starting(LONE_OOM)),
        "cuda_oom",
        "Tried to allocate",
    ),
)

OF_CONTAINERS_AND_LOGGERS = (
    Kind(
        "Docker's json-file",
        as_json(CUT_SHARD, "log", {"stream": "stdout", "time": "2026-03-01T10:00:00Z"}),
        "weights_corrupt_or_missing",
        "deserializing header",
    ),
    Kind(
        "compose, with the prefixes of two processes",
        each_line(
            "vllm-1  | (APIServer pid=1) ",
            worker(
                traceback(
                    "ValueError: Free memory on device cuda:0 (1.93/94.97 GiB) on startup is less than desired GPU "
                    "memory utilization (0.9, 85.47 GiB)."
                ),
                "EngineCore_DP0 pid=68",
                "core.py:866",
            ),
        ),
        "gpu_memory_busy_at_start",
        "Free memory",
    ),
    Kind(
        "a node's container log",
        each_line(
            "2026-03-01T10:00:00.123456789+00:00 stderr F ",
            loading("RuntimeError: CUDA error: no kernel image is available for execution on the device"),
        ),
        "kernel_arch_unsupported",
        "no kernel image",
    ),
    Kind(
        "a worker of Ray",
        START
        + each_line(
            RAY,
            "ERROR 03-01 10:01:00 [worker_base.py:620] Error executing method 'load_model'. This might cause deadlock "
            "in distributed execution.\n"
            + traceback("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."),
        )
        + traceback(
            "ray.exceptions.RayTaskError(OutOfMemoryError): \x1b[36mray::RayWorkerWrapper.execute_method()\x1b[39m "
            "(pid=88, ip=10.0.0.2)"
        ),
        "cuda_oom",
        "Tried to allocate",
    ),
    Kind(
        "loguru",
        "2026-03-01 10:00:00.123 | ERROR    | vllm.worker:run:5 - torch.OutOfMemoryError: CUDA out of memory. Tried "
        "to allocate 2 GiB\n",
        "cuda_oom",
        "Tried",
    ),
    Kind(
        "a JSON formatter with the exception in a field of its own",
        structured("EngineCore failed to start.", traceback(LONE_OOM).rstrip()),
        "cuda_oom",
        "Tried to allocate",
    ),
    Kind(
        "a JSON formatter, and an exception that was survived",
        structured("the fast path is out", traceback("ModuleNotFoundError: No module named 'fast'"), "WARNING")
        + structured("EngineCore failed to start.", traceback(LONE_OOM)),
        "cuda_oom",
        "Tried to allocate",
    ),
    Kind(
        "a JSON formatter with the exception as a list",
        structured("Uncaught exception", traceback(LONE_OOM).splitlines()),
        "cuda_oom",
        "Tried to allocate",
    ),
    Kind(
        "a cloud's log",
        as_json(starting(LONE_OOM), "textPayload", {"insertId": "a1", "severity": "ERROR"}),
        "cuda_oom",
        "Tried to allocate",
    ),
    Kind(
        "a search engine's export",
        "".join(
            json.dumps({"_index": "logs", "_source": {"@timestamp": "2026-03-01T10:00:00Z", "message": line}}) + "\n"
            for line in starting(LONE_OOM).splitlines()
        ),
        "cuda_oom",
        "Tried to allocate",
    ),
    Kind(
        "syslog as of RFC 5424",
        each_line("<30>1 2026-03-01T10:00:00.000Z gpu-1 vllm 4711 - - ", starting(LONE_OOM)),
        "cuda_oom",
        "Tried to allocate",
    ),
    Kind(
        "docker service logs",
        each_line("kimi_vllm.1.x7yq0v8n@gpu-1    | ", starting(LONE_OOM)),
        "cuda_oom",
        "Tried to allocate",
    ),
    Kind("pm2", each_line("0|vllm     | ", starting(LONE_OOM)), "cuda_oom", "Tried to allocate"),
    Kind("srun --label", each_line("0: ", starting(LONE_OOM)), "cuda_oom", "Tried to allocate"),
)

KINDS = (*OF_THE_JOURNAL, *OF_CONTAINERS_AND_LOGGERS)
