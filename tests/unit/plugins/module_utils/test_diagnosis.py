from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest
from ansible_collections.llmops.vllm.plugins.module_utils.diagnosis import diagnose, main
from ansible_collections.llmops.vllm.plugins.module_utils.diagnosis_causes import CAUSES, OUTSIDE_CAUSES
from ansible_collections.llmops.vllm.plugins.module_utils.diagnosis_lines import (
    CONTEXTS,
    WORTH,
    lines_of_entries,
    lines_of_text,
)
from ansible_collections.llmops.vllm.plugins.module_utils.diagnosis_prefixes import parse_line
from ansible_collections.llmops.vllm.plugins.module_utils.diagnosis_roots import classify
from ansible_collections.llmops.vllm.plugins.module_utils.journal import Entry

HEAD = """\
(APIServer pid=100) INFO 03-01 10:00:00 [api_utils.py:286] non-default args: {'model': '/srv/llm/m', 'port': 8000}
(APIServer pid=100) WARNING 03-01 10:00:00 [system_utils.py:255] Found ulimit of 1024 and failed to automatically \
increase with error x. This can cause fd limit errors like `OSError: [Errno 24] Too many open files`.
"""
FP8 = """\
(APIServer pid=100) INFO 03-01 10:00:05 [cache.py:361] Using fp8_e4m3 data type to store kv cache.
(EngineCore pid=101) INFO 03-01 10:00:09 [core.py:133] Initializing a V1 LLM engine with config: dtype=torch.bfloat16, \
kv_cache_dtype=fp8_e4m3, device_config=cpu
"""
UP = "INFO:     Application startup complete.\n"
WORKER_END = """\
(EngineCore pid=101) ERROR 03-01 10:01:02 [core.py:1510] EngineCore failed to start.
(EngineCore pid=101) ERROR 03-01 10:01:02 [core.py:1510] Exception: WorkerProc initialization failed due to an \
exception in a background process. See stack trace for root cause.
Process EngineCore:
Traceback (most recent call last):
RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}
"""


def worker(message):
    start = "(Worker_TP0 pid=102) ERROR 03-01 10:01:00 [multiproc_executor.py:953] "
    return "".join(
        f"{start}{line}\n"
        for line in (
            "Traceback (most recent call last):",
            '  File "/srv/x.py", line 5, in load',
            "    raise it",
            message,
        )
    )


def crash(message):
    return f"""{worker(message)}\
(EngineCore pid=101) ERROR 03-01 10:01:01 [core.py:1512] EngineCore encountered a fatal error.
(EngineCore pid=101) ERROR 03-01 10:01:01 [core.py:1512] RuntimeError: Worker failed with error 'x', please check the \
stack trace above for the root cause
(APIServer pid=100) ERROR 03-01 10:01:01 [async_llm.py:906] vllm.v1.engine.exceptions.EngineDeadError: EngineCore \
encountered an issue. See stack trace (above) for the root cause.
INFO:     127.0.0.1:1 - "POST /v1/completions HTTP/1.1" 500 Internal Server Error
/usr/lib/python3.11/resource_tracker.py:254: UserWarning: resource_tracker: There appear to be 2 leaked \
shared_memory objects to clean up at shutdown
"""


def of(text):
    return diagnose(lines_of_text(text))


def test_the_founding_case_is_named_with_the_line_of_this_launch_that_asked_for_fp8():
    found = of(HEAD + FP8 + UP + crash("RuntimeError: expected scalar type BFloat16 but found Float8_e4m3fn"))
    assert (found.verdict, found.cause_class) == ("cause", "attention_backend_unsupported")
    assert found.title == "the checkpoint asks for an FP8 KV cache that no attention backend here takes"
    assert found.evidence[0].text.endswith("RuntimeError: expected scalar type BFloat16 but found Float8_e4m3fn")
    assert found.evidence[0].process == "Worker_TP0 pid=102"
    assert any("kv_cache_dtype=fp8_e4m3" in evidence.text for evidence in found.evidence[1:])
    assert "leaked shared_memory" in found.misleading_last_line
    assert "disable_fp8_kv_cache" in found.remedy and "vllm_service_patch_sets" in found.remedy
    assert "vllm_service_arguments_extra.kv-cache-dtype: bfloat16" in found.remedy


def test_the_founding_case_as_the_selector_words_it():
    message = (
        "ValueError: No valid attention backend found for cuda with AttentionSelectorConfig(head_size=576, "
        "dtype=torch.bfloat16, use_mla=True). Reasons: {TRITON_MLA: [kv_cache_dtype not supported]}."
    )
    found = of(HEAD + FP8 + worker(message) + WORKER_END)
    assert "disable_fp8_kv_cache" in found.remedy
    assert found.misleading_last_line.startswith("RuntimeError: Engine core initialization failed")


def test_an_fp8_cache_asked_for_by_an_argument_is_told_from_one_of_the_checkpoint():
    head = HEAD.replace("'port': 8000", "'port': 8000, 'kv_cache_dtype': 'fp8'")
    found = of(head + FP8 + UP + crash("RuntimeError: expected scalar type BFloat16 but found Float8_e4m3fn"))
    assert found.title.startswith("the arguments ask for an FP8 KV cache")
    assert found.remedy.startswith("remove vllm_service_arguments_extra.kv-cache-dtype")


def test_the_same_mismatch_without_an_fp8_cache_is_located_and_not_explained():
    found = of(HEAD + UP + crash("RuntimeError: expected scalar type BFloat16 but found Float8_e4m3fn"))
    assert (found.cause_class, found.confidence) == ("unclassified", 0.4)


KNOWN = [
    ("FileNotFoundError: Weight files referenced in index but missing: {'/m/a'}", "weights_corrupt_or_missing"),
    ("safetensors._safetensors_rust.SafetensorError: Error while deserializing header: header too large",
     "weights_corrupt_or_missing"),
    ("FileNotFoundError: No such file or directory: /m/model-00001.safetensors", "weights_corrupt_or_missing"),
    ("AssertionError: Attempted to load weight (torch.Size([8])) into parameter", "weights_mismatch"),
    ("ValueError: Failed to find a kernel that can implement the NVFP4 linear layer. Reasons:", "quant_dtype_mismatch"),
    ("RuntimeError: Insufficient space in /dev/shm for shared-memory allocation: 160 MiB required", "shm_exhausted"),
    ("ValueError: No available memory for the cache blocks. Try increasing it", "kv_cache_too_small"),
    ("RuntimeError: Resource temporarily unavailable", "host_limits"),
    ("RuntimeError: [enforce fail at socket.cc:24] rv != -1. -1 vs -1. socket: Too many open files", "host_limits"),
    ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", "cuda_oom"),
    ("ValueError: Free memory on device cuda:0 (1/95 GiB) on startup is less than desired", "gpu_memory_busy_at_start"),
    ("RuntimeError: CUDA error: no kernel image is available for execution on the device", "kernel_arch_unsupported"),
    ("KeyError: 'original_max_position_embeddings'", "config_invalid"),
]  # fmt: skip


@pytest.mark.parametrize(("message", "cause_class"), KNOWN)
def test_known_failures_of_a_worker_are_classified(message, cause_class):
    found = of(HEAD + worker(message) + WORKER_END)
    assert (found.verdict, found.cause_class) == ("cause", cause_class)
    assert found.evidence[0].text.endswith(message)
    assert found.remedy


@pytest.mark.parametrize(
    ("tail", "cause_class"),
    [
        ("vllm: error: unrecognized arguments: --no-such-flag 1\n", "config_invalid"),
        ("OSError: [Errno 98] Address already in use\n", "port_in_use"),
        (
            "  Value error, Total number of attention heads (8) must be divisible by tensor parallel size (3).\n",
            "config_invalid",
        ),
        (
            "  Value error, Model architectures ['FooForCausalLM'] are not supported for now.\n",
            "model_arch_unsupported",
        ),
        ("RuntimeError: Failed to infer device type, please set it\n", "no_gpu_visible"),
    ],
)
def test_known_failures_before_the_engine_starts_are_classified(tail, cause_class):
    assert of(HEAD + "Traceback (most recent call last):\n" + tail).cause_class == cause_class


def test_a_missing_system_library_is_found_in_the_warning_that_names_it():
    warning = (
        "(Worker pid=102) WARNING 03-01 10:00:10 [import_utils.py:30] Failed to import from vllm._C: ImportError("
        "'libnuma.so.1: cannot open shared object file')\n"
    )
    later = worker("AttributeError: '_OpNamespace' '_C' object has no attribute 'init_cpu_memory_env'")
    found = of(HEAD + warning + later + WORKER_END)
    assert found.evidence[0].text == warning.strip() and "libnuma1" in found.remedy


def test_a_bare_assertion_is_explained_by_its_source_line():
    start = "(Worker_TP0 pid=102) ERROR 03-01 10:01:00 [multiproc_executor.py:953] "
    source = f"{start}    assert loaded_weight.shape[output_dim] == self.org_vocab_size\n{start}           ^^^^\n"
    found = of(HEAD + source + f"{start}AssertionError\n" + WORKER_END)
    assert found.cause_class == "weights_mismatch"
    assert of(HEAD + f"{start}AssertionError\n" + WORKER_END).cause_class == "unclassified"


def test_an_unknown_exception_is_located_and_called_unclassified():
    found = of(HEAD + worker("FrobError: the frob is bent") + WORKER_END)
    assert (found.verdict, found.cause_class) == ("cause", "unclassified")
    assert found.evidence[0].text.endswith("FrobError: the frob is bent")


def test_wrappers_alone_are_no_cause():
    found = of(HEAD + WORKER_END)
    assert found.verdict == "insufficient_evidence" and not found.evidence and found.remedy


def test_an_empty_launch_is_no_cause():
    assert of("").verdict == "insufficient_evidence"


def test_the_usual_noise_is_no_cause():
    noise = (
        "[rank0]:[W301 ProcessGroupNCCL.cpp:1496] Warning: WARNING: destroy_process_group() was not called\n"
        "(EngineCore pid=101) INFO 03-01 10:00:30 [shm_broadcast.py:1] No available shared memory broadcast block\n"
        "NCCL WARN socketProgress: Connection closed, Broken pipe\n"
    )
    assert of(HEAD + noise).verdict == "insufficient_evidence"
    assert of(HEAD + noise + UP).verdict == "healthy"


def test_what_a_launch_survived_is_no_cause():
    failed_request = worker("json.decoder.JSONDecodeError: Expecting value: line 2 column 9 (char 9)")
    assert of(HEAD + worker("ImportError: optional thing") + UP + failed_request).verdict == "healthy"


def test_a_stop_on_request_is_no_failure():
    stop = (
        "(APIServer pid=100) INFO 03-01 11:00:00 [launcher.py:254] [shutdown] API server: shutdown triggered\n"
        "(APIServer pid=100) ERROR 03-01 11:00:01 [async_llm.py:906] EngineDeadError: EngineCore encountered it.\n"
    )
    assert of(HEAD + UP + stop).verdict == "healthy"


def test_the_first_of_several_known_failures_is_the_root():
    text = worker("torch.OutOfMemoryError: CUDA out of memory.") + worker(
        "RuntimeError: Resource temporarily unavailable"
    )
    assert of(HEAD + text + WORKER_END).cause_class == "cuda_oom"


def entry(message, *, pid=102, usec=1_772_359_260_000_000, manager=False):
    return Entry(usec, pid, message, "stdout", manager)


def test_journal_evidence_has_a_process_and_a_time_even_without_a_prefix():
    entries = [
        entry("(EngineCore pid=102) INFO 03-01 10:00:00 [core.py:1] hello"),
        entry("RuntimeError: Insufficient space in /dev/shm for it: 160 MiB required"),
    ]
    evidence = diagnose(lines_of_entries(entries)).evidence[0]
    assert evidence.process == "EngineCore pid=102"
    assert re.fullmatch(r"2026-\d\d-\d\dT\d\d:\d\d:\d\dZ", evidence.time)


@pytest.mark.parametrize(
    ("message", "cause_class"),
    [
        ("vllm@kimi.service: Main process exited, code=killed, status=9/KILL", "external_kill"),
        ("vllm@kimi.service: Failed with result 'oom-kill'.", "host_oom_kill"),
        ("vllm@kimi.service: Failed at step EXEC spawning /srv/x: No such file or directory", "config_invalid"),
        ("vllm@kimi.service: start operation timed out. Terminating.", "systemd_timeout"),
    ],
)
def test_systemd_explains_an_end_without_words(message, cause_class):
    found = diagnose(lines_of_entries([entry("hello"), entry(message, pid=1, manager=True)]))
    assert (found.verdict, found.cause_class, found.evidence[0].process) == ("cause", cause_class, "systemd")


def test_the_engines_own_words_go_before_those_of_systemd():
    entries = [
        entry("torch.OutOfMemoryError: CUDA out of memory."),
        entry("vllm@kimi.service: Main process exited, code=exited, status=1/FAILURE", pid=1, manager=True),
        entry("vllm@kimi.service: Failed with result 'exit-code'.", pid=1, manager=True),
    ]
    assert diagnose(lines_of_entries(entries)).cause_class == "cuda_oom"


def test_an_end_that_the_units_watch_made_is_no_kill_from_outside():
    killed = entry("vllm@kimi.service: Main process exited, code=killed, status=9/KILL", pid=1, manager=True)

    def found(reason):
        watch = entry(f"killed this launch: {reason}", pid=9, manager=True)
        return diagnose(lines_of_entries([entry("hello"), watch, killed]))

    assert diagnose(lines_of_entries([entry("hello"), killed])).cause_class == "external_kill"
    assert found("canary 1 (completion) failed: the log probability of token 1 is nan").verdict != "cause"
    assert found("port 8000 is answered by a foreign process: 99 (nc) of user joe").cause_class == "port_in_use"


@pytest.mark.parametrize(
    ("text", "process", "body"),
    [
        (
            "(APIServer pid=1) (EngineCore_DP0 pid=68) ERROR 01-02 03:04:05 [core.py:9] X: y",
            "EngineCore_DP0 pid=68",
            "X: y",
        ),
        ("(VllmWorker rank=3 pid=8) ERROR 01-02 03:04:05 [w.py:1] X: y", "VllmWorker rank=3 pid=8", "X: y"),
        ("(RayWorkerWrapper pid=5, ip=192.0.2.9) X: y", "RayWorkerWrapper pid=5", "X: y"),
        ("vllm-1  | X: y", "", "X: y"),
        ("[rank0]: X: y", "", "X: y"),
        ("[2026-03-01T10:00:00Z] X: y", "", "X: y"),
        ("Mar 01 10:00:00 host python3[7]: (Worker pid=9) X: y", "Worker pid=9", "X: y"),
    ],
)
def test_prefixes_of_all_generations_are_taken_off(text, process, body):
    line = parse_line(1, text)
    assert (line.process, line.body) == (process, body)


@pytest.mark.parametrize("cause", [*CAUSES, *OUTSIDE_CAUSES], ids=lambda cause: cause.title[:40])
def test_every_cause_says_what_to_do_and_matches_its_own_example(cause):
    assert cause.title and cause.remedy and cause.source and cause.example
    assert not cause.remedy.endswith(".") and re.fullmatch(r"[a-z0-9_]+", cause.cause_class)
    assert not cause.root.search("") and cause.root.search(cause.example)
    assert WORTH.search(cause.example), "the reader of long logs would pass over it"


ALONE = [cause for cause in CAUSES if not cause.contexts]


@pytest.mark.parametrize("cause", ALONE, ids=lambda cause: cause.title[:40])
def test_every_cause_is_found_in_a_launch_that_ends_with_its_example(cause):
    start = "(Worker pid=102) WARNING 03-01 10:00:10 [x.py:1] " if cause.at_warning else ""
    found = of(f"{HEAD}Traceback (most recent call last):\n{start}{cause.example}\n{WORKER_END}")
    assert (found.verdict, found.cause_class) == ("cause", cause.cause_class)


@pytest.mark.parametrize("cause", CAUSES, ids=lambda cause: cause.title[:40])
def test_no_other_class_claims_the_example_of_a_cause(cause):
    claimed = classify(cause.example, "WARNING" if cause.at_warning else "ERROR").causes
    assert cause in claimed
    # One class by its text, or two of which the other lines of the launch decide.
    assert {other.cause_class for other in claimed if not (other.contexts or cause.contexts)} <= {cause.cause_class}


def test_lines_of_level_info_that_support_a_cause_are_not_passed_over():
    patterns = {pattern.pattern for cause in CAUSES for pattern in cause.contexts}
    for pattern in patterns:
        assert any(literal.decode() in pattern for literal in (*CONTEXTS, b"non-default args")), pattern


def test_remedies_name_only_variables_that_the_roles_have():
    roles = Path(__file__).resolve().parents[4] / "roles"
    defaults = "\n".join(path.read_text() for path in roles.glob("*/defaults/main.yml"))
    known = set(re.findall(r"^(\w+):", defaults, re.M))
    remedies = " ".join(cause.remedy for cause in (*CAUSES, *OUTSIDE_CAUSES))
    assert set(re.findall(r"\b(?:vllm_(?:service|runtime)|model_store|host_prereq)_\w+", remedies)) <= known


def test_a_port_that_is_taken_is_found_after_the_application_has_started():
    found = of(HEAD + UP + "ERROR:    [Errno 98] error while attempting to bind on address ('0.0.0.0', 8000)\n")
    assert found.cause_class == "port_in_use"


def test_what_a_service_survived_for_long_is_not_what_ended_it():
    idle = '(APIServer pid=100) INFO:     192.0.2.1:4000 - "GET /metrics HTTP/1.1" 200 OK\n' * 500
    survived = worker("ModuleNotFoundError: No module named 'optional_thing'")
    found = of(
        HEAD + UP + survived + idle + crash("RuntimeError: CUDA error: an illegal memory access was encountered")
    )
    assert found.cause_class == "cuda_illegal_access"


def test_a_traceback_below_a_warning_was_survived():
    warned = (
        "(Worker pid=102) WARNING 03-01 10:00:10 [x.py:1] the fast path is out\nTraceback (most recent call last):\n"
        "  File \"/srv/x.py\", line 5, in load\nModuleNotFoundError: No module named 'fast'\n"
    )
    tail = "Traceback (most recent call last):\ntorch.OutOfMemoryError: CUDA out of memory.\n"
    assert of(HEAD + warned + "hello\n" + tail).cause_class == "cuda_oom"
    assert of(HEAD + warned).cause_class == "dependency_mismatch"


def test_of_an_exception_raised_again_the_one_that_says_more_is_shown():
    chain = (
        "ray.exceptions.RayChannelTimeoutError: System error: Timed out\n\nThe above exception was the direct cause of "
        "the following exception:\n\nTraceback (most recent call last):\n"
    )
    more = "ray.exceptions.RayChannelTimeoutError: System error: increase RAY_CGRAPH_get_timeout\n"
    assert "increase" in of(HEAD + chain + more).evidence[0].text
    repeated = "ray.exceptions.RayChannelTimeoutError: in worker 3: System error: Timed out\n"
    assert "in worker" not in of(HEAD + chain + repeated).evidence[0].text


def test_a_message_that_a_terminal_broke_is_joined():
    message = "ValueError: To serve at least one request with the model's max seq len (100000), (4.26 GiB KV cach"
    found = of(
        f"{HEAD}(EngineCore pid=101) {message}\ne is needed, which is larger than the avai\nlable KV cache memory\n"
    )
    assert found.cause_class == "kv_cache_too_small" and not found.misleading_last_line
    assert found.evidence[0].text.endswith("KV cache is needed, which is larger than the available KV cache memory")


def test_a_message_on_several_lines_is_known_by_the_later_ones():
    found = of(
        "Traceback (most recent call last):\nOSError: You may not read this.\n401 Client Error. (Request ID: x)\n"
    )
    assert found.cause_class == "hf_auth_or_rate_limit"
    assert found.evidence[0].text == "OSError: You may not read this."


def test_of_several_launches_the_last_that_failed_counts():
    first = HEAD + worker("torch.OutOfMemoryError: CUDA out of memory.") + WORKER_END
    second = HEAD + worker("RuntimeError: can't start new thread") + WORKER_END
    assert of(first + second).cause_class == "host_limits"
    assert of(first + HEAD + UP).cause_class == "cuda_oom"
    assert of(HEAD + worker("RuntimeError: can't start new thread") + HEAD + UP).cause_class == "host_limits"


WAITING = (
    "(EngineCore pid=101) INFO 03-01 10:00:30 [shm_broadcast.py:1] No available shared memory broadcast block found\n"
)
STUCK = (
    "(APIServer pid=100) INFO 03-01 10:00:30 [loggers.py:1] Engine 000: Avg prompt throughput: 0.0 tokens/s, Avg "
    "generation throughput: {rate} tokens/s, Running: {running} reqs, Waiting: 0 reqs, GPU KV cache usage: 0.1%\n"
)


@pytest.mark.parametrize(
    ("tail", "verdict"),
    [
        (WAITING * 3, "hang"),
        (WAITING * 2, "insufficient_evidence"),
        (WAITING * 3 + UP, "healthy"),
        (WAITING * 3 + "(Worker pid=102) INFO 03-01 10:00:40 [x.py:1] loaded\n" * 3, "insufficient_evidence"),
        (UP + STUCK.format(rate="0.0", running=2) * 3, "hang"),
        (UP + STUCK.format(rate="0.0", running=0) * 3, "healthy"),
        (UP + STUCK.format(rate="3.5", running=2) * 3, "healthy"),
        ("(Worker pid=102) INFO 03-01 10:00:40 [pynccl.py:1] vLLM is using nccl==2.26.2\n", "hang"),
    ],
)
def test_a_log_that_ends_in_waiting_is_a_hang_and_no_cause(tail, verdict):
    found = of(HEAD + tail)
    assert (found.verdict, found.cause_class) == (verdict, "")


def syslog(*messages, speaker="systemd[1]"):
    return "".join(f"Mar  1 10:00:00 gpu-01 {speaker}: {message}\n" for message in messages)


def test_systemds_own_timeout_goes_before_what_the_engine_says_of_its_end():
    timeout = syslog("vllm@kimi.service: start operation timed out. Terminating.")
    after = worker("RuntimeError: can't start new thread") + WORKER_END
    assert of(HEAD + timeout + after).cause_class == "systemd_timeout"
    assert of(HEAD + after + timeout).cause_class == "host_limits"


def test_the_kernel_is_believed_and_a_process_that_speaks_like_systemd_is_not():
    words = "Out of memory: Killed process 4711 (VLLM::EngineCor) total-vm:9kB"
    assert of(HEAD + syslog(words, speaker="kernel") + WORKER_END).cause_class == "host_oom_kill"
    assert of(HEAD + f"[12345.678901] {words}\n" + WORKER_END).cause_class == "host_oom_kill"
    assert of(HEAD + "the unit's Main process exited, code=killed, status=9/KILL\n").verdict != "cause"


def test_errors_of_a_stop_while_loading_are_no_cause():
    stop = "(APIServer pid=100) INFO 03-01 10:00:20 [launcher.py:254] [shutdown] API server: shutdown triggered\n"
    assert of(HEAD + stop + worker("RuntimeError: the queue is gone") + WORKER_END).verdict == "insufficient_evidence"


def test_a_log_that_was_cut_before_its_cause_has_none():
    whole = HEAD + FP8 + worker("torch.OutOfMemoryError: CUDA out of memory.") + WORKER_END
    root = whole.index("torch.OutOfMemoryError")
    assert of(whole[:root]).verdict == "insufficient_evidence"
    assert of(whole[root + 60 :]).verdict == "insufficient_evidence"


@pytest.mark.parametrize(
    "line",
    [
        "(Worker pid=102) WARNING 03-01 10:00:10 [x.py:1] ValueError: no tuned kernel, using the default",
        "(APIServer pid=100) ERROR 03-01 10:00:10 [hf.py:486] Error when compiling Jinja template",
        '(APIServer pid=100) INFO:     192.0.2.1:4000 - "POST /v1/completions HTTP/1.1" 500 Internal Server Error',
        "/srv/x.py:5: FutureWarning: error_code is deprecated, raise RuntimeError instead",
        "Killed",
        "(APIServer pid=100) INFO 03-01 10:00:10 [x.py:1] torch.OutOfMemoryError: CUDA out of memory. is explained",
    ],
)
def test_lines_that_merely_sound_like_failures_are_no_cause(line):
    assert of(HEAD + line + "\n").verdict == "insufficient_evidence"
    assert of(HEAD + line + "\n" + UP).verdict == "healthy"


def test_a_long_line_is_shown_around_what_matters():
    long = f"(EngineCore pid=101) INFO 03-01 10:00:09 [c.py:1] A {'x' * 5000}, kv_cache_dtype=fp8_e4m3, {'y' * 5000}\n"
    found = of(HEAD + long + UP + crash("RuntimeError: expected scalar type BFloat16 but found Float8_e4m3fn"))
    context = found.evidence[1].text
    assert "kv_cache_dtype=fp8_e4m3" in context and len(context) < 500


def test_the_command_line_prints_one_object_a_file_or_a_page(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    path = Path("launch.log")  # its name is on the page, whose lines are counted
    path.write_text(HEAD + worker("torch.OutOfMemoryError: CUDA out of memory.") + WORKER_END)
    assert main(["--json", str(path), str(path)]) == 0
    answers = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [answer["cause_class"] for answer in answers] == ["cuda_oom", "cuda_oom"]
    assert path.read_text().splitlines()[answers[0]["line"] - 1] == answers[0]["evidence"]
    assert main([str(path)]) == 0
    page = capsys.readouterr().out
    assert "Do " in page and "gpu-memory-utilization" in page and max(map(len, page.splitlines())) <= 100
    assert main([]) == 2 and main(["--jso", str(path)]) == 2
    assert main([str(tmp_path / "none")]) == 1
    assert "cannot be read: No such file" in capsys.readouterr().err


def test_a_large_log_is_read_in_little_time():
    filler = (
        "(Worker_TP0 pid=102) INFO 03-01 10:00:00 [loggers.py:1] Engine 000: Running: 1 reqs, usage: 0.1%\n" * 100_000
    )
    start = time.process_time()
    assert (
        of(HEAD + filler + worker("torch.OutOfMemoryError: CUDA out of memory.") + WORKER_END).cause_class == "cuda_oom"
    )
    assert time.process_time() - start < 5


@pytest.mark.parametrize(
    ("message", "cause_class"),
    [
        ("ValueError: NvFp4 MoE backend FLASHINFER_B12X does not support the deployment", "quant_dtype_mismatch"),
        ("    assert self.total_num_kv_heads % tp_size == 0\nAssertionError", "config_invalid"),
        ("NotImplementedError: No WNA16 MoE backend supports the deployment configuration.", "quant_dtype_mismatch"),
        ("AssertionError: Tried to load weights of size torch.Size([8])to a parameter of size", "weights_mismatch"),
        ("RuntimeError: Assertion error (/w/sm90.hpp:11): Unsupported architecture", "kernel_arch_unsupported"),
        ("ConnectionError: (Caused by NameResolutionError('Failed to resolve hub.example'))", "config_invalid"),
        ("ValueError: The repository m contains custom code which must be executed", "tokenizer_or_remote_code"),
        ("ERROR: Unexpected bus error encountered in worker. insufficient shared memory (shm).", "shm_exhausted"),
        ("!!!!!!! Segfault encountered !!!!!!!", "engine_process_died"),
        ("gpu-1:7:7 [0] net_ib.cc:6 NCCL WARN NET/IB : Got completion from peer x with error", "nccl_init_failure"),
    ],
)
def test_further_kinds_of_failures_are_classified(message, cause_class):
    assert of(HEAD + "Traceback (most recent call last):\n" + message + "\n" + WORKER_END).cause_class == cause_class


@pytest.mark.parametrize(
    ("code", "verdict", "cause_class"),
    [
        (-9, "cause", "external_kill"),
        (-11, "cause", "engine_process_died"),
        (1, "insufficient_evidence", ""),
    ],
)
def test_the_exit_code_of_a_silent_process_tells_a_signal(code, verdict, cause_class):
    found = of(
        HEAD + f"RuntimeError: Engine core initialization failed. Failed core proc(s): {{'EngineCore': {code}}}\n"
    )
    assert (found.verdict, found.cause_class) == (verdict, cause_class)


def test_a_process_that_dies_without_a_word_is_told_and_no_cause_is_invented():
    died = "(EngineCore pid=101) ERROR 03-01 10:05:00 [m.py:1] Worker proc VllmWorker-3 died unexpectedly, ending it.\n"
    found = of(HEAD + died + WORKER_END)
    assert (found.verdict, found.cause_class) == ("insufficient_evidence", "")
    assert "VllmWorker-3 died" in found.evidence[0].text
