from __future__ import annotations

import io
import json

import pytest
from ansible_collections.llmops.vllm.plugins.module_utils.diagnosis import diagnose
from ansible_collections.llmops.vllm.plugins.module_utils.diagnosis_lines import (
    BLOCK_BYTES,
    REPEATS,
    TAIL_LINES,
    lines_of_log,
    lines_of_text,
)
from ansible_collections.llmops.vllm.plugins.module_utils.diagnosis_prefixes import LineParser, parse_line

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
LAUNCH = f"""\
(APIServer pid=100) INFO 03-01 10:00:00 [api_utils.py:286] non-default args: {{'model': '/srv/llm/m'}}
(Worker_TP0 pid=102) ERROR 03-01 10:01:00 [multiproc_executor.py:953] Traceback (most recent call last):
(Worker_TP0 pid=102) ERROR 03-01 10:01:00 [multiproc_executor.py:953]     raise it
(Worker_TP0 pid=102) ERROR 03-01 10:01:00 [multiproc_executor.py:953] {OOM}
(APIServer pid=100) RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {{}}
"""
IDLE = '(APIServer pid=100) INFO:     192.0.2.1:4000 - "GET /metrics HTTP/1.1" 200 OK\n'


def framed(frame, text=LAUNCH):
    return "".join(f"{frame}{line}\n" for line in text.splitlines())


FRAMES = {
    "kubectl logs --timestamps": "2026-03-01T10:00:00.123456789Z ",
    "a node's own container log": "2026-03-01T10:00:00.123456789+00:00 stderr F ",
    "kubectl logs --prefix": "[pod/vllm-0/vllm] ",
    "compose": "vllm-1  | ",
    "compose with times": "vllm-1  | 2026-03-01T10:00:00.1Z ",
    "a desktop's compose": "2026-03-01 10:00:00 vllm-1  | ",
    "syslog": "Mar  1 10:00:00 gpu-01 vllm[4711]: ",
    "journalctl -o short-iso": "2026-03-01T10:00:00+0000 gpu-01 python3[4711]: ",
    "journalctl -o short-full": "Sun 2026-03-01 10:00:00 UTC gpu-01 vllm[4711]: ",
    "journalctl -o short-monotonic": "[10003.000003] gpu-01 vllm[4711]: ",
    "a CI": "[2026-03-01T10:00:00Z] ",
    "Ray": "(ServeReplica:app:LLM pid=77, ip=192.0.2.9) ",
    "a tool that nobody knows": "<17> node7/engine#3 :: ",
    "columns": "gpu-01\tvllm\t2026-03-01T10:00:00Z\t",
    "a tool with levels": "2026-03-01T10:00:00,123 [INFO ] W-9000-m_1.0-stdout MODEL_LOG - ",
}


@pytest.mark.parametrize("frame", FRAMES.values(), ids=FRAMES)
def test_what_other_tools_put_around_a_line_is_taken_off(frame):
    evidence = diagnose(lines_of_text(framed(frame))).evidence[0]
    assert (evidence.process, evidence.line) == ("Worker_TP0 pid=102", 4)
    assert evidence.text.endswith(OOM) and evidence.time


@pytest.mark.parametrize("frame", FRAMES.values(), ids=FRAMES)
def test_tracebacks_without_a_prefix_of_the_engine_are_found_inside_a_frame(frame):
    text = f'Traceback (most recent call last):\n  File "/srv/x.py", line 5, in load\n    raise it\n{OOM}\n'
    assert diagnose(lines_of_text(framed(frame, text))).cause_class == "cuda_oom"


def test_a_frame_that_shows_only_further_down_is_taken_off_the_first_lines_too():
    text = f"{OOM}\n(EngineCore pid=8) ERROR 03-01 10:00:00 [core.py:9] EngineCore failed to start.\n"
    evidence = diagnose(lines_of_text(framed("<17> node7/engine#3 :: ", text))).evidence[0]
    assert evidence.line == 1


def test_a_frame_is_not_learned_from_a_message_that_quotes_a_traceback():
    parser = LineParser()
    quoting = parser.parse(parse_line(1, "the worker said 'Traceback (most recent call last):"))
    assert quoting.body.startswith("the worker said")


def test_two_processes_that_write_at_once_are_told_apart():
    line = "(Worker pid=7) Loading weights, half a (EngineCore pid=8) ERROR 03-01 10:00:00 [core.py:9] " + OOM
    parsed = parse_line(1, line)
    assert (parsed.process, parsed.level, parsed.body) == ("EngineCore pid=8", "ERROR", OOM)


@pytest.mark.parametrize(
    ("text", "level", "body"),
    [
        ("ERROR:    [Errno 98] error while", "ERROR", "[Errno 98] error while"),
        ("ERROR:vllm.core:it failed", "ERROR", "it failed"),
        ("2026-03-01 10:00:00,123 - vllm - ERROR - it failed", "ERROR", "it failed"),
        ("2026-03-01 10:00:00,123\tERROR worker.py:123 -- it failed", "ERROR", "it failed"),
        ("2026-03-01 10:00:00.123 | ERROR    | a.b:run:5 - it failed", "ERROR", "it failed"),
        ("[2026-03-01 10:00:00,123 E 12 34] gcs.cc:12: it failed", "ERROR", "it failed"),
        ("[rank0]:[W301 10:00:00.123456789 ProcessGroupNCCL.cpp:1496] it failed", "WARNING", "it failed"),
        ("E0301 10:00:00.000000 123 file.cc:12] it failed", "ERROR", "it failed"),
        ("ERROR 03-01 10:00:00 core.py:12] it failed", "ERROR", "it failed"),
        ("[Error] (Engine) it failed", "ERROR", "it failed"),
        ("it failed [repeated 4x across cluster] (see docs)", "", "it failed"),
    ],
)
def test_levels_of_other_loggers_are_understood(text, level, body):
    parsed = parse_line(1, text)
    assert (parsed.level, parsed.body) == (level, body)


@pytest.mark.parametrize("speaker", ["systemd[1]", "systemd[1669]", "kernel"])
def test_the_service_manager_and_the_kernel_are_known_by_their_names(speaker):
    assert parse_line(1, f"Mar  1 10:00:00 gpu-01 {speaker}: hello").from_manager
    assert parse_line(1, f"2026-03-01T10:00:00+0000 gpu-01 {speaker}: hello").from_manager
    assert not parse_line(1, f"Mar  1 10:00:00 gpu-01 my{speaker}: hello").from_manager


WRITTEN = {
    "Docker": lambda line: json.dumps({"log": f"{line}\n", "stream": "stderr", "time": "2026-03-01T10:00:00Z"}),
    "journalctl": lambda line: json.dumps({"__REALTIME_TIMESTAMP": "1", "MESSAGE": line, "_PID": "7"}),
    "Windows": lambda line: line + "\r",
    "a terminal": lambda line: f"\x1b[0;36m{line}\x1b[0m",
    "a copy of a terminal": lambda line: f"^[[32m{line}^[[0m^M",
    "rsyslog": lambda line: f"#033[1;36m{line}#033[0m",
    "a broken pipe": lambda line: f"{line}\n\x00\x01\x7f",
}


@pytest.mark.parametrize("written", WRITTEN.values(), ids=WRITTEN)
def test_logs_are_read_as_other_tools_write_them(written):
    text = "\n".join(written(line) for line in LAUNCH.splitlines())
    evidence = diagnose(lines_of_text(text)).evidence[0]
    assert (evidence.text.endswith(OOM), evidence.process) == (True, "Worker_TP0 pid=102")


def test_a_whole_traceback_in_one_json_object_is_read_line_by_line():
    found = diagnose(lines_of_text(json.dumps({"level": "error", "message": LAUNCH})))
    assert (found.cause_class, found.evidence[0].line) == ("cuda_oom", 1)
    assert diagnose(lines_of_text('{"message": "torn\n' + LAUNCH)).cause_class == "cuda_oom"


@pytest.mark.parametrize("before", [0, 1, 137])
def test_lines_keep_their_numbers_over_the_edges_of_blocks(before):
    idle = BLOCK_BYTES // len(IDLE) + before
    data = (IDLE * idle + LAUNCH + IDLE * idle).encode()
    evidence = diagnose(lines_of_log(io.BytesIO(data))).evidence[0]
    assert evidence.line == idle + 4


def test_a_log_that_comes_in_small_pieces_is_read_the_same():
    class Slow(io.BytesIO):
        def read(self, size=-1):
            return super().read(min(size, 777))

    assert diagnose(lines_of_log(Slow((IDLE * 300 + LAUNCH).encode()))).evidence[0].line == 304


@pytest.mark.parametrize("size", [70_000, 3 * BLOCK_BYTES])
def test_a_line_without_an_end_is_cut_and_the_next_ones_are_read(size):
    found = diagnose(lines_of_log(io.BytesIO(b"x" * size + b"\n" + LAUNCH.encode())))
    assert (found.cause_class, found.evidence[0].line) == ("cuda_oom", 5)


def test_bytes_that_are_no_text_are_passed_over():
    data = bytes(range(256)) * 2000 + b"\n" + LAUNCH.encode() + bytes(range(256)) * 20
    assert diagnose(lines_of_log(io.BytesIO(data))).cause_class == "cuda_oom"


def test_what_is_repeated_very_often_is_looked_at_only_so_often():
    storm = "".join(
        f"(APIServer pid=1) ERROR 03-01 10:00:00 [serving.py:1] ValueError: request {number:x} is bad\n"
        for number in range(REPEATS * 10)
    )
    looked_at = [line for line in lines_of_text(storm) if not line.in_tail]
    assert len(looked_at) < REPEATS * 3
    assert diagnose(lines_of_text(LAUNCH + storm)).cause_class == "cuda_oom"


def test_the_last_lines_come_as_they_are():
    lines = [line for line in lines_of_text(LAUNCH + IDLE * 500) if line.in_tail]
    assert len(lines) == TAIL_LINES and lines[-1].number == 505 and lines[-1].text == IDLE.strip()
    assert [line.number for line in lines_of_text("one\n\ntwo") if line.in_tail] == [1, 3]
    assert list(lines_of_text("")) == []
