from __future__ import annotations

import pytest
from ansible_collections.llmops.vllm.plugins.module_utils.heartbeat import Look, Pulse, read_metrics

METRICS = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="kimi {k2}"} 3.0
vllm:num_requests_waiting{engine="0",model_name="kimi {k2}"} 14.0
vllm:engine_sleep_state{engine="0",model_name="kimi",sleep_state="awake"} 1.0
vllm:kv_cache_usage_perc{engine="0",model_name="kimi"} 0.25
vllm:prompt_tokens_total{engine="0",model_name="kimi"} 1200.0
vllm:generation_tokens_total{engine="0",model_name="kimi"} 340.0
vllm:generation_tokens_created{engine="0",model_name="kimi"} 1.7e+09
vllm:request_success_total{engine="0",finished_reason="abort",model_name="kimi"} 7.0
vllm:iteration_tokens_total_count{engine="0",model_name="kimi"} 99.0
http_requests_total{handler="/metrics"} 5.0
"""
MOVES = 10.0
HANG = 60.0


def look(number=1, running=0, waiting=0, counts=True, asleep=False):
    return Look((f"tokens {number}",), running, waiting, counts, asleep)


class Engine:
    """Beats of one engine, on a clock that only the test moves."""

    def __init__(self):
        self.now = 1000.0
        self.pulse = Pulse(MOVES, HANG, self.now)

    def beats(self, seen, status=None, count=1):
        for _number in range(count):
            self.now += MOVES
            beat = self.pulse.beat(self.now, seen, status)
        return beat


@pytest.fixture
def engine():
    made = Engine()
    made.beats(look())
    return made


def test_metrics_show_requests_and_the_numbers_that_a_step_moves():
    seen = read_metrics(METRICS)
    assert (seen.running, seen.waiting, seen.counts, seen.asleep) == (3, 14, True, False)
    assert any("340.0" in line for line in seen.signature) and any("99.0" in line for line in seen.signature)


@pytest.mark.parametrize(
    ("before", "after", "moves"),
    [
        (" 340.0", " 341.0", True),
        (" 0.25", " 0.26", True),
        ("} 99.0", "} 100.0", True),
        # A client that goes away and a look at the metrics are no work of the engine.
        ("} 7.0", "} 8.0", False),
        ("} 5.0", "} 6.0", False),
    ],
)
def test_only_what_the_engine_does_counts_as_movement(before, after, moves):
    assert before in METRICS
    assert (read_metrics(METRICS).signature != read_metrics(METRICS.replace(before, after)).signature) is moves


def test_an_engine_without_statistics_or_asleep_is_seen_as_such():
    assert not read_metrics("http_requests_total 1\n").counts
    assert read_metrics(METRICS.replace('"awake"} 1.0', '"awake"} 0.0')).asleep


def test_a_busy_engine_is_never_asked_and_never_hangs(engine):
    for number in range(2, 200):
        beat = engine.beats(look(number, running=4, waiting=5000))
        assert (beat.ask, beat.hang) == (False, "")
    assert beat.text == "4 running, 5000 waiting"


def test_a_busy_engine_does_not_hang_however_long_it_leaves_a_question_unanswered(engine):
    assert engine.beats(look()).ask
    for number in range(2, 100):
        beat = engine.beats(look(number, running=4, waiting=5000))
        assert (beat.ask, beat.hang) == (False, "")


def test_an_idle_engine_is_asked_and_lives_by_its_answers(engine):
    for _number in range(50):
        assert engine.beats(look()).ask
        beat = engine.beats(look(), status=200)
        assert (beat.text, beat.ask, beat.hang) == ("idle", False, "")


def test_an_engine_that_neither_moves_nor_answers_hangs_and_not_before_its_time(engine):
    assert engine.beats(look(running=2)).ask
    beat = engine.beats(look(running=2), count=4)
    assert (beat.ask, beat.hang) == (False, "") and "no token for 50 s" in beat.text
    hang = engine.beats(look(running=2)).hang
    assert "no token for 60 s" in hang and "2 running" in hang and "while the API server answers" in hang


def test_one_token_in_time_is_a_life(engine):
    engine.beats(look(running=2), count=5)
    assert engine.beats(look(2, running=2)).hang == ""
    assert engine.beats(look(2, running=2), count=5).hang == ""
    assert engine.beats(look(2, running=2)).hang != ""


def test_an_api_server_that_gives_no_answer_at_all_hangs(engine):
    assert engine.beats(None).ask
    assert engine.beats(None, count=4).hang == ""
    assert "no answer to anything for 60 s" in engine.beats(None).hang


def test_a_question_that_failed_is_asked_again_until_the_time_is_over(engine):
    assert engine.beats(None).ask
    assert engine.beats(None, status=0).ask
    assert engine.beats(None, status=500, count=3).hang == ""
    assert engine.beats(None, status=500).hang != ""


def test_a_refusal_by_the_api_server_says_nothing_about_the_engine(engine):
    assert engine.beats(look()).ask
    assert engine.beats(look(), status=404, count=20).hang == ""


@pytest.mark.parametrize(("seen", "text"), [(look(counts=False), "keeps no statistics"), (look(asleep=True), "asleep")])
def test_what_cannot_be_judged_does_not_hang(engine, seen, text):
    beat = engine.beats(seen, count=50)
    assert beat.hang == "" and not beat.ask and text in beat.text


def test_a_watch_that_was_not_there_itself_starts_anew(engine):
    engine.beats(look(), count=5)
    engine.now += 3600.0
    assert engine.beats(look()).hang == ""


def test_no_hang_is_judged_when_the_time_is_zero():
    pulse = Pulse(MOVES, 0.0, 0.0)
    assert [pulse.beat(MOVES * number, look(), None).hang for number in range(1, 100)] == [""] * 99
