from __future__ import annotations

import dataclasses

import pytest
from ansible_collections.llmops.vllm.plugins.module_utils.canary_checks import (
    CHECKS,
    Reply,
    Wanted,
    fast_enough,
    finite_logprobs,
    first_problem,
    no_degenerate_repetition,
    text_as_wanted,
    thought_and_answered,
    tool_called,
)

WORDS = ["The", "capital", "of", "France", "is", "Paris", ",", "which", "lies", "on", "the", "Seine", "."]
GOOD = Reply(
    text=" ".join(WORDS), sampled=tuple((word, -0.5) for word in WORDS), tokens=13, seconds=1.3, finish_reason="stop"
)
NAN = float("nan")


def reply(**changes):
    return dataclasses.replace(GOOD, **changes)


def sampled(tokens, value=-0.1):
    return tuple((token, value) for token in tokens)


TOOL = Wanted(kind="tool_call", tool_name="f", tool_required=("city",), tool_arguments={"city": "Paris"})
THINK = Wanted(kind="reasoning", max_tokens=99)

# For each check: what it must catch, and the words that name it. Nothing else may catch it.
CAUGHT = [
    (finite_logprobs, Wanted(), reply(sampled=sampled(WORDS, NAN)), "token 1 is nan"),
    (finite_logprobs, Wanted(), reply(sampled=sampled(WORDS, float("inf"))), "token 1 is inf"),
    (finite_logprobs, Wanted(), reply(sampled=sampled(WORDS, None)), "token 1 is None"),
    (finite_logprobs, Wanted(), reply(sampled=sampled(WORDS, -9999.0)), "NaN or infinity"),
    (finite_logprobs, Wanted(), reply(sampled=()), "carries no log probabilities"),
    (no_degenerate_repetition, Wanted(), reply(text="!!!!", sampled=sampled("!!!!")), 'nothing but "!"'),
    (no_degenerate_repetition, Wanted(), reply(sampled=sampled(["a"] * 8)), "one token ('a') 8 times"),
    (no_degenerate_repetition, Wanted(), reply(sampled=sampled(WORDS + ["a", "b"] * 8)), "same 2 tokens ('ab') 8"),
    (no_degenerate_repetition, Wanted(), reply(sampled=sampled(["x"] + ["!"] * 40 + WORDS)), "('!') 40 times"),
    (no_degenerate_repetition, Wanted(logprobs=False), reply(text="so " + "ab" * 16, sampled=()), "'ab' 16 times"),
    (tool_called, TOOL, reply(), "holds no tool call"),
    (tool_called, TOOL, reply(text="<|tool_call_begin|>f:0"), "although its text holds one"),
    (tool_called, TOOL, reply(finish_reason="length"), "cut off at max_tokens 16"),
    (tool_called, TOOL, reply(calls=(("g", "{}"),)), "calls g instead of f"),
    (tool_called, TOOL, reply(calls=(("f", '{"city": "Par'),)), "are no JSON"),
    (tool_called, TOOL, reply(calls=(("f", "[1]"),)), "are no object"),
    (tool_called, TOOL, reply(calls=(("f", "{}"),)), "lacks the argument city"),
    (tool_called, TOOL, reply(calls=(("f", '{"city": "Rome"}'),)), "city is 'Rome', not 'Paris'"),
    (thought_and_answered, THINK, reply(), "without reasoning"),
    (thought_and_answered, THINK, reply(text="<think>hm</think> 42", reasoning="hm"), "check reasoning-parser"),
    (thought_and_answered, dataclasses.replace(THINK, min_chars=0), reply(text="", reasoning="hm", tokens=99),
     "thought for 99 tokens and gave no answer; raise max_tokens"),
    (text_as_wanted, Wanted(), reply(text=""), "has 0 characters, at least 1"),
    (text_as_wanted, Wanted(contains="Rome"), reply(), "does not contain 'Rome'"),
    (text_as_wanted, Wanted(matches=r"\d"), reply(), "does not match"),
    (text_as_wanted, Wanted(contains="42"), reply(text="", reasoning="hm", finish_reason="length"),
     "the model was still thinking at max_tokens 16"),
    (fast_enough, Wanted(max_seconds=1), reply(), "took 1.30 s, at most 1 s"),
    (fast_enough, Wanted(max_first_token_seconds=1), reply(first_token_seconds=1.25), "first token took 1.25 s"),
    (fast_enough, Wanted(max_first_token_seconds=1), reply(), "first token never came"),
    (fast_enough, Wanted(min_tokens_per_second=20), reply(), "at 10.0 tokens/s, at least 20"),
]  # fmt: skip


@pytest.mark.parametrize(("check", "wanted", "bad", "words"), CAUGHT)
def test_each_check_catches_what_it_is_for_and_nothing_is_caught_without_it(check, wanted, bad, words):
    assert words in first_problem(wanted, bad)
    assert first_problem(wanted, bad, [other for other in CHECKS if other is not check]) == ""


def test_every_check_has_a_negative_control():
    assert {check for check, *_rest in CAUGHT} == set(CHECKS)


@pytest.mark.parametrize(
    ("wanted", "good"),
    [
        (Wanted(contains="Paris", matches=r"France\b"), reply()),
        (Wanted(logprobs=False), reply(sampled=())),
        (Wanted(), reply(text="", reasoning="let me see")),
        (TOOL, reply(text="", calls=(("f", '{"city": "Paris", "unit": "C"}'),))),
        (THINK, reply(reasoning="17 and 25 is 42")),
        (THINK, reply(reasoning_tokens=12)),
        (Wanted(max_seconds=2, max_first_token_seconds=1, min_tokens_per_second=9), reply(first_token_seconds=0.3)),
        (Wanted(allow_repetition=True), reply(sampled=sampled(["a"] * 40))),
        (Wanted(), reply(sampled=sampled(["ha"] * 7))),
        (Wanted(), reply(sampled=sampled(["|", "-"] * 3 + [" "] * 40 + WORDS))),
    ],
)
def test_a_good_answer_passes_every_check(wanted, good):
    assert first_problem(wanted, good) == ""


def test_the_speed_counts_from_the_first_token_where_that_is_known():
    assert reply().tokens_per_second == pytest.approx(10)
    assert reply(first_token_seconds=0.1).tokens_per_second == pytest.approx(10)
    assert reply(first_token_seconds=1.0).tokens_per_second == pytest.approx(40)
    assert reply(tokens=0).tokens_per_second == reply(tokens=1, first_token_seconds=1.3).tokens_per_second == 0
