# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Canaries: real requests whose answers are checked, as data.

A status of 200 proves little: an engine whose numbers have become NaN answers "!!!!" with 200 and stays healthy by
its own account (vLLM #42426). So the log probabilities of the sampled tokens are asked for and must be finite.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ansible_collections.llmops.vllm.plugins.module_utils.engine_api import Answer
from ansible_collections.llmops.vllm.plugins.module_utils.errors import InvalidInputError

# vLLM writes -inf as this number, because JSON has no infinity.
LOWEST_LOGPROB = -9999.0
REPETITION_TOKENS = 8
MAX_RESULT_CHARS = 2000
_PATHS = {"chat": "/v1/chat/completions", "completion": "/v1/completions"}


@dataclass(frozen=True)
class Canary:
    """One request and what its answer must be like; ``max_tokens`` and ``min_chars`` count tokens and characters."""

    prompt: str
    kind: str = "chat"
    max_tokens: int = 16
    min_chars: int = 1
    contains: str = ""
    matches: str = ""
    logprobs: bool = True
    allow_repetition: bool = False
    ignore_eos: bool = False

    @property
    def path(self) -> str:
        """The HTTP path that takes the request."""
        return _PATHS[self.kind]

    def body(self, model: str) -> dict[str, Any]:
        """Return the request's JSON; sampling is greedy, so that an answer is as reproducible as the engine is."""
        body: dict[str, Any] = {"model": model, "max_tokens": self.max_tokens, "temperature": 0, "stream": False}
        if self.ignore_eos:
            body["ignore_eos"] = True
        if self.kind == "chat":
            body["messages"] = [{"role": "user", "content": self.prompt}]
            body.update({"logprobs": True, "top_logprobs": 1} if self.logprobs else {})
        else:
            body["prompt"] = self.prompt
            body.update({"logprobs": 1} if self.logprobs else {})
        return body


@dataclass(frozen=True)
class CanaryResult:
    """What came back: ``problem`` is empty when every check passed; ``seconds`` is the time of the whole answer."""

    kind: str
    prompt: str
    text: str
    tokens: int
    seconds: float
    problem: str

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as plain values for a module's result."""
        return asdict(self)


def parse_canary(values: Mapping[str, Any], position: int) -> Canary:
    """Return the canary that ``values`` describe; ``position`` counts from 1 and names it in errors."""
    canary = Canary(**{name: value for name, value in values.items() if value is not None})
    where = f"canary {position}"
    if canary.kind not in _PATHS:
        raise InvalidInputError(f"{where}: kind {canary.kind!r} is not one of {', '.join(sorted(_PATHS))}.")
    if not canary.prompt:
        raise InvalidInputError(f"{where}: prompt is empty.")
    if canary.max_tokens < 1 or canary.min_chars < 0:
        raise InvalidInputError(f"{where}: max_tokens must be at least 1 and min_chars at least 0.")
    try:
        re.compile(canary.matches)
    except re.error as exc:
        raise InvalidInputError(f"{where}: matches {canary.matches!r} is no regular expression: {exc}.") from exc
    return canary


def _first_choice(body: Any) -> dict[str, Any]:
    choices = body.get("choices") if isinstance(body, dict) else None
    choice = choices[0] if isinstance(choices, list) and choices else None
    return choice if isinstance(choice, dict) else {}


def _text(kind: str, choice: Mapping[str, Any]) -> str:
    if kind == "completion":
        text = choice.get("text")
        return text if isinstance(text, str) else ""
    message = choice.get("message")
    if not isinstance(message, dict):
        return ""
    # Thinking models leave content empty while they reason; the field of the reasoning has had two names.
    candidates = [message.get(name) for name in ("content", "reasoning", "reasoning_content")]
    return next((text for text in candidates if isinstance(text, str) and text), "")


def _sampled(kind: str, choice: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return (token, log probability) of the sampled tokens."""
    logprobs = choice.get("logprobs")
    if not isinstance(logprobs, dict):
        return []
    if kind == "chat":
        items = [item for item in logprobs.get("content") or [] if isinstance(item, dict)]
        return [(str(item.get("token", "")), item.get("logprob")) for item in items]
    return list(zip(map(str, logprobs.get("tokens") or []), logprobs.get("token_logprobs") or []))


def _logprob_problem(sampled: list[tuple[str, Any]]) -> str:
    if not sampled:
        return "the answer carries no log probabilities although they were asked for"
    for position, (_token, value) in enumerate(sampled, start=1):
        finite = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
        if not finite or value <= LOWEST_LOGPROB:
            return f"the log probability of token {position} is {value}: the model computes NaN or infinity"
    return ""


def _repetition_problem(text: str, sampled: list[tuple[str, Any]]) -> str:
    stripped = text.strip()
    if len(stripped) >= 3 and set(stripped) == {"!"}:
        return 'the answer is nothing but "!", which is what an engine with broken numbers writes'
    tokens = [token for token, _logprob in sampled]
    if len(tokens) >= REPETITION_TOKENS and len(set(tokens)) == 1:
        return f"the answer repeats one token {len(tokens)} times ({tokens[0]!r})"
    return ""


def _text_problem(canary: Canary, text: str) -> str:
    if len(text) < canary.min_chars:
        return f"the answer has {len(text)} characters, at least {canary.min_chars} are asked for"
    if canary.contains and canary.contains not in text:
        return f"the answer does not contain {canary.contains!r}"
    if canary.matches and not re.search(canary.matches, text):
        return f"the answer does not match {canary.matches!r}"
    return ""


def judge(canary: Canary, answer: Answer, seconds: float) -> CanaryResult:
    """Return what the answer is worth; the checks go from the transport to the text and stop at the first problem."""
    choice = _first_choice(answer.body)
    text = _text(canary.kind, choice)
    sampled = _sampled(canary.kind, choice)
    usage = answer.body.get("usage") if isinstance(answer.body, dict) else None
    tokens = usage.get("completion_tokens") if isinstance(usage, dict) else None
    problem = ""
    if answer.status != 200:
        problem = f"{'HTTP ' + str(answer.status) + ': ' if answer.status else ''}{answer.problem}"
    elif not choice:
        problem = answer.problem or "the answer has no choices"
    problem = (
        problem
        or (_logprob_problem(sampled) if canary.logprobs else "")
        or ("" if canary.allow_repetition else _repetition_problem(text, sampled))
        or _text_problem(canary, text)
    )
    return CanaryResult(
        kind=canary.kind,
        prompt=canary.prompt,
        text=text[:MAX_RESULT_CHARS],
        tokens=tokens if isinstance(tokens, int) else len(sampled),
        seconds=round(seconds, 3),
        problem=problem,
    )
