# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is known about failing launches, as data: how the root line looks, what it means, what to do.

``CAUSES`` is ordered: the first entry whose ``root`` matches a line wins for that line, so the narrow ones come first.
A new one goes into the table of its subject, with a line that shows it; nothing else has to change. The wording comes
from the engine's sources and logs, 0.6 to 0.33, and from reports that ``source`` names.
"""

from __future__ import annotations

import re
from re import Pattern

from ansible_collections.llmops.vllm.plugins.module_utils.diagnosis_cause import Cause
from ansible_collections.llmops.vllm.plugins.module_utils.diagnosis_causes_gpu import GPU_CAUSES
from ansible_collections.llmops.vllm.plugins.module_utils.diagnosis_causes_host import (
    HOST_CAUSES,
    OUTSIDE_CAUSES,
    PACKAGE_CAUSES,
)
from ansible_collections.llmops.vllm.plugins.module_utils.diagnosis_causes_model import MODEL_CAUSES, MODEL_LAST_CAUSES

__all__ = ["CAUSES", "NOISE", "OUTSIDE_CAUSES", "WRAPPERS", "Cause"]

CAUSES: tuple[Cause, ...] = (*MODEL_CAUSES, *HOST_CAUSES, *GPU_CAUSES, *MODEL_LAST_CAUSES, *PACKAGE_CAUSES)

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
        r"RPCServer process died|Task finished unexpectedly|ChildProcessError|ChildFailedError",
        r"cancelled|CancelledError|BrokenPipeError|EOFError|KeyboardInterrupt|SystemExit|GeneratorExit",
        r"ConnectionResetError|ConnectionRefusedError|ConnectionAbortedError|IncompleteReadError|ClientDisconnect",
        r"Model architectures? \[.*\] failed to be inspected",
        r"torch\._dynamo\.exc\.BackendCompilerFailed|InductorError: (?:LoweringException|\w+Failed)",
        r"subprocess\.CalledProcessError|Error building extension|Ninja build failed",
        r"pydantic_core\._pydantic_core\.ValidationError|^\w*ValidationError: \d+ validation error",
        r"'\w+' object has no attribute 'llm_engine'|ZMQError|NCCL error: unhandled|DistBackendError",
        r"NCCL error: (?:internal|invalid|remote process)|ActorDiedError|RayActorError|actor died unexpectedly",
        r"^terminate called|Process(?:Exited|Raised)Exception",
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
        r"HTTP/1\.[01]\" \d{3}",
        r"Exception ignored in|Error in atexit",
        r"\"OOMKilled\": ?false",
        # The kernel ended a process that is neither the engine's nor a compiler of its kernels.
        r"invoked oom-killer|(?:Killed process \d+ \(|oom-kill:.*\btask=)"
        r"(?!VLLM|vllm|python|pt_main|ray|serve|sh\b|bash|cc1|g\+\+|ld\b|cicc|ptxas|nvcc|cudafe|ninja)",
        # A channel is torn down because of a kill or of an error that has an Xid of its own.
        r"Xid \([^)]*\): (?:43|45)\b(?!.*previous Xid)",
    )
)
