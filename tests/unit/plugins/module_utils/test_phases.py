from __future__ import annotations

import pytest
from ansible_collections.llmops.vllm.plugins.module_utils.journal import Entry
from ansible_collections.llmops.vllm.plugins.module_utils.phases import PHASES, PhaseTracker

LAUNCH = [
    (0, "Starting vLLM...", True),
    (2, "(APIServer pid=10) INFO 03-01 10:00:02 [api.py:286] non-default args: {'model': '/srv/m'}", False),
    (
        8,
        "(EngineCore pid=11) INFO 03-01 10:00:08 [core.py:133] Initializing a V1 LLM engine (v0.32.0) with config: x",
        False,
    ),
    (12, "(Worker_TP0 pid=12) INFO 03-01 10:00:12 [runner.py:68] Starting to load model /srv/m...", False),
    (13, "Loading safetensors checkpoint shards:   0% Completed | 0/12 [00:00<?, ?it/s]", False),
    (20, "Loading safetensors checkpoint shards:  25% Completed | 3/12 [00:07<00:21,  2.33s/it]", False),
]
LATER = [
    (40, "(Worker_TP0 pid=12) INFO 03-01 10:00:40 [loader.py:501] Loading weights took 27.00 seconds", False),
    (50, "(Worker_TP0 pid=12) INFO 03-01 10:00:50 [monitor.py:34] torch.compile takes 9.50 s in total", False),
    (52, "(EngineCore pid=11) INFO 03-01 10:00:52 [kv_cache_utils.py:2327] GPU KV cache size: 310,688 tokens", False),
    (55, "Capturing CUDA graphs (mixed prefill-decode, PIECEWISE):  50%|#####     | 34/67 [00:03<00:03]", False),
    (
        60,
        "(EngineCore pid=11) INFO 03-01 10:01:00 [core.py:402] init engine (profile, create kv cache) took 20 s",
        False,
    ),
    (61, "INFO:     Application startup complete.", False),
]


def entries(rows):
    return [Entry(int(when * 1_000_000), 10, text, "stdout", manager) for when, text, manager in rows]


def test_the_counter_of_the_shards_is_shown():
    tracker = PhaseTracker()
    tracker.feed(entries(LAUNCH))
    assert tracker.progress.phase == "weights"
    assert tracker.progress.text == "loading weights 3/12"
    assert tracker.progress.last_seconds == 20


@pytest.mark.parametrize(
    ("row", "text"),
    [(0, "loading weights 3/12"), (1, "compiling"), (2, "allocating the KV cache"), (3, "capturing CUDA graphs 34/67"),
     (4, "warming up"), (5, "listening")],
)  # fmt: skip
def test_later_phases_are_recognised(row, text):
    tracker = PhaseTracker()
    tracker.feed(entries(LAUNCH + LATER[: row + 1]))
    assert tracker.progress.text == text


def test_feeding_in_parts_is_the_same_as_feeding_at_once():
    one, parts = PhaseTracker(), PhaseTracker()
    one.feed(entries(LAUNCH + LATER))
    for entry in entries(LAUNCH + LATER):
        parts.feed([entry])
    assert one.timeline() == parts.timeline() and one.progress == parts.progress


def test_the_timeline_has_durations_and_only_what_was_passed():
    tracker = PhaseTracker()
    tracker.feed(entries(LAUNCH + LATER))
    assert tracker.timeline() == [
        {"phase": "starting", "seconds": 2.0},
        {"phase": "config", "seconds": 6.0},
        {"phase": "engine", "seconds": 4.0},
        {"phase": "weights", "seconds": 38.0},
        {"phase": "compile", "seconds": 2.0},
        {"phase": "kv_cache", "seconds": 3.0},
        {"phase": "graph_capture", "seconds": 5.0},
        {"phase": "warmup", "seconds": 1.0},
        {"phase": "listening", "seconds": 0.0},
    ]


def test_a_late_line_of_one_worker_does_not_go_back():
    tracker = PhaseTracker()
    tracker.feed(
        entries([*LAUNCH, *LATER, (62, "Loading safetensors checkpoint shards:  33% Completed | 4/12 [1]", False)])
    )
    assert tracker.progress.text == "listening"


def test_a_line_that_only_says_that_something_waits_is_no_progress():
    tracker = PhaseTracker()
    waiting = "(EngineCore pid=1) INFO 03-01 10:01:00 [shm.py:1] No available shared memory broadcast block found"
    asked = 'INFO:     192.0.2.1:4000 - "GET /health HTTP/1.1" 503 Service Unavailable'
    tracker.feed(entries([(5, "loading", False), (65, waiting, False), (70, asked, False)]))
    at_five = tracker.progress.last_seconds
    tracker.feed(entries([(80, "loaded", False)]))
    assert tracker.progress.last_seconds - at_five == 75


def test_what_systemd_says_is_no_phase():
    tracker = PhaseTracker()
    tracker.feed(entries([(0, "Application startup complete.", True)]))
    assert tracker.progress.phase == PHASES[0]


def test_nothing_said_is_starting_without_a_time():
    tracker = PhaseTracker()
    assert (tracker.progress.phase, tracker.progress.last_seconds, tracker.timeline()) == ("starting", 0.0, [])
