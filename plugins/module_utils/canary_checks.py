# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What an answer to a canary can fail: one small function for each check, from the numbers to the text.

A status of 200 proves little: an engine whose numbers have become NaN answers "!!!!" with 200 and stays healthy by
its own account (vLLM #42426). So the log probabilities of the sampled tokens are asked for and must be finite.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Callable

# vLLM writes -inf as this number, because JSON has no infinity.
LOWEST_LOGPROB = -9999.0
# An answer that ends in so many repetitions of so few tokens (or characters) has degenerated; a single run of the same
# token is that wherever it stands, lines drawn with one character excepted.
REPETITIONS = 8
CYCLE_TOKENS = 4
RUN_TOKENS = 32
_TEXT_CYCLE = re.compile(r"(.{1,8}?)\1{15,}\Z", re.S)
_DRAWN = re.compile(r"[\s=_.*#|-]*\Z")
_CALL_AS_TEXT = re.compile(r"<\|?tool_call|\[TOOL_CALLS\]|<function=|<\|python_tag\|>")
_THOUGHT_AS_TEXT = re.compile(r"</?think(?:ing)?>")


@dataclass(frozen=True)
class Reply:
    """One answer: ``sampled`` holds (token, log probability), ``calls`` (name, arguments as JSON text).

    ``seconds`` is the time of the whole answer, ``first_token_seconds`` that of its first token, None when the answer
    came in one piece.
    """

    text: str = ""
    reasoning: str = ""
    reasoning_tokens: int = 0
    calls: tuple[tuple[str, str], ...] = ()
    sampled: tuple[tuple[str, Any], ...] = ()
    tokens: int = 0
    finish_reason: str = ""
    seconds: float = 0.0
    first_token_seconds: float | None = None

    @property
    def tokens_per_second(self) -> float:
        """The speed of decoding; the time to the first token does not count where it is known."""
        first = self.first_token_seconds
        tokens, seconds = (self.tokens, self.seconds) if first is None else (self.tokens - 1, self.seconds - first)
        return tokens / seconds if tokens > 0 and seconds > 0 else 0.0


@dataclass(frozen=True)
class Wanted:
    """What is asked of an answer; empty and 0 ask nothing. Times in seconds."""

    kind: str = "chat"
    max_tokens: int = 16
    min_chars: int = 1
    contains: str = ""
    matches: str = ""
    logprobs: bool = True
    allow_repetition: bool = False
    tool_name: str = ""
    tool_required: tuple[str, ...] = ()
    tool_arguments: Mapping[str, Any] | None = None
    max_seconds: float = 0.0
    max_first_token_seconds: float = 0.0
    min_tokens_per_second: float = 0.0


def finite_logprobs(wanted: Wanted, reply: Reply) -> str:
    """Every sampled token has a finite log probability."""
    if not wanted.logprobs:
        return ""
    if not reply.sampled:
        return "the answer carries no log probabilities although they were asked for"
    for position, (_token, value) in enumerate(reply.sampled, start=1):
        finite = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
        if not finite or value <= LOWEST_LOGPROB:
            return f"the log probability of token {position} is {value}: the model computes NaN or infinity"
    return ""


def no_degenerate_repetition(wanted: Wanted, reply: Reply) -> str:
    """The answer does not go round in circles."""
    if wanted.allow_repetition:
        return ""
    stripped = (reply.text or reply.reasoning).strip()
    if len(stripped) >= 3 and set(stripped) == {"!"}:
        return 'the answer is nothing but "!", which is what an engine with broken numbers writes'
    tokens = [token for token, _logprob in reply.sampled]
    unit, times = _cycle(tokens)
    if times:
        what = f"one token ({unit[0]!r})" if len(unit) == 1 else f"the same {len(unit)} tokens ({''.join(unit)!r})"
        return f"the answer ends in repeating {what} {times} times"
    token, length = _longest_run(tokens)
    if length >= RUN_TOKENS and not _DRAWN.match(token):
        return f"the answer repeats one token ({token!r}) {length} times"
    match = None if tokens else _TEXT_CYCLE.search(stripped)
    if match:
        return f"the answer ends in repeating {match[1]!r} {len(match[0]) // len(match[1])} times"
    return ""


def _cycle(tokens: Sequence[str]) -> tuple[Sequence[str], int]:
    """Return the shortest unit that the end of ``tokens`` repeats often enough, and how often; 0 when none."""
    for length in range(1, CYCLE_TOKENS + 1):
        unit = tokens[len(tokens) - length :]
        starts = range(len(tokens) - length, -1, -length)
        times = next((n for n, start in enumerate(starts) if tokens[start : start + length] != unit), len(starts))
        if times >= REPETITIONS:
            return unit, times
    return (), 0


def _longest_run(tokens: Sequence[str]) -> tuple[str, int]:
    best, length, longest = "", 0, 0
    for position, token in enumerate(tokens):
        length = length + 1 if position and token == tokens[position - 1] else 1
        if length > longest:
            best, longest = token, length
    return best, longest


def tool_called(wanted: Wanted, reply: Reply) -> str:
    """The engine has parsed the call of the tool, with arguments that are JSON and as they must be."""
    if wanted.kind != "tool_call":
        return ""
    if not reply.calls:
        hint = " although its text holds one" if _CALL_AS_TEXT.search(reply.text) else _cut_off(wanted, reply)
        return f"the answer holds no tool call{hint} (check tool-call-parser and enable-auto-tool-choice)"
    names = [name for name, _arguments in reply.calls]
    if wanted.tool_name not in names:
        return f"the answer calls {', '.join(names)} instead of {wanted.tool_name}"
    return _arguments_problem(wanted, reply.calls[names.index(wanted.tool_name)][1])


def _arguments_problem(wanted: Wanted, text: str) -> str:
    try:
        arguments = json.loads(text)
    except ValueError:
        return f"the arguments of the tool call are no JSON: {text[:200]!r}"
    if not isinstance(arguments, dict):
        return f"the arguments of the tool call are no object: {text[:200]!r}"
    missing = [name for name in wanted.tool_required if name not in arguments]
    if missing:
        return f"the tool call lacks the argument {missing[0]}"
    for name, value in (wanted.tool_arguments or {}).items():
        if arguments.get(name) != value:
            return f"the tool call's argument {name} is {arguments.get(name)!r}, not {value!r}"
    return ""


def thought_and_answered(wanted: Wanted, reply: Reply) -> str:
    """A reasoning model has thought where it should, and got to an answer."""
    if wanted.kind != "reasoning":
        return ""
    if _THOUGHT_AS_TEXT.search(reply.text):
        return "the answer holds the model's thoughts as text (check reasoning-parser)"
    if not reply.text and (reply.reasoning or reply.reasoning_tokens or reply.finish_reason == "length"):
        return f"the model thought for {reply.tokens} tokens and gave no answer; raise max_tokens"
    if not reply.reasoning and not reply.reasoning_tokens:
        return "the answer comes without reasoning (check reasoning-parser, or use kind chat)"
    return ""


def text_as_wanted(wanted: Wanted, reply: Reply) -> str:
    """The text is long enough and says what it must."""
    # Thinking models leave the answer empty while they think; a plain chat takes the thoughts for the text.
    text = reply.text or (reply.reasoning if wanted.kind != "reasoning" else "")
    hint = _cut_off(wanted, reply)
    if wanted.kind != "tool_call" and len(text) < wanted.min_chars:
        return f"the answer has {len(text)} characters, at least {wanted.min_chars} are asked for{hint}"
    if wanted.contains and wanted.contains not in text:
        return f"the answer does not contain {wanted.contains!r}{hint}"
    if wanted.matches and not re.search(wanted.matches, text):
        return f"the answer does not match {wanted.matches!r}{hint}"
    return ""


def _cut_off(wanted: Wanted, reply: Reply) -> str:
    if reply.finish_reason != "length":
        return ""
    still = "the model was still thinking" if reply.reasoning and not reply.text else "it was cut off"
    return f"; {still} at max_tokens {wanted.max_tokens}"


def fast_enough(wanted: Wanted, reply: Reply) -> str:
    """The answer came within its limits of time, at its least speed."""
    first = reply.first_token_seconds
    if wanted.max_first_token_seconds and (first is None or first > wanted.max_first_token_seconds):
        told = "never came" if first is None else f"took {first:.2f} s"
        return f"the first token {told}, at most {wanted.max_first_token_seconds:g} s are allowed"
    if wanted.max_seconds and reply.seconds > wanted.max_seconds:
        return f"the answer took {reply.seconds:.2f} s, at most {wanted.max_seconds:g} s are allowed"
    if wanted.min_tokens_per_second and reply.tokens_per_second < wanted.min_tokens_per_second:
        speed = f"{reply.tokens_per_second:.1f} tokens/s"
        return f"the answer came at {speed}, at least {wanted.min_tokens_per_second:g} are asked for"
    return ""


Check = Callable[[Wanted, Reply], str]
CHECKS: tuple[Check, ...] = (
    finite_logprobs,
    no_degenerate_repetition,
    tool_called,
    thought_and_answered,
    text_as_wanted,
    fast_enough,
)


def first_problem(wanted: Wanted, reply: Reply, checks: Sequence[Check] = CHECKS) -> str:
    """Return what is wrong with the answer, an empty string when nothing is."""
    return next((problem for problem in (check(wanted, reply) for check in checks) if problem), "")
