# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Canaries: real requests whose answers are checked, as data. What is checked is in ``canary_checks``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from ansible_collections.llmops.vllm.plugins.module_utils.canary_checks import Reply, Wanted, first_problem
from ansible_collections.llmops.vllm.plugins.module_utils.canary_image import COLOURS, data_url
from ansible_collections.llmops.vllm.plugins.module_utils.engine_api import Answer
from ansible_collections.llmops.vllm.plugins.module_utils.errors import InvalidInputError

MAX_RESULT_CHARS = 2000
# Each kind with the length of its answer unless another one is asked for: a thinking model spends tokens unseen.
KINDS = {"chat": 16, "completion": 16, "tool_call": 512, "reasoning": 2048, "image": 64}
TOOL_CHOICES = ("auto", "named", "required")
DEFAULT_TOOL = {
    "name": "get_weather",
    "description": "Tells the present weather in a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string", "description": "Name of the city"}},
        "required": ["city"],
    },
}
# How a server says that its answer would hold NaN (Python's json.dumps with allow_nan=False).
NOT_FINITE = "Out of range float values"


@dataclass(frozen=True)
class Canary:
    """One request and what its answer must be like.

    ``max_tokens`` 0 stands for the kind's own. Limits are in seconds and tokens a second, 0 for none.
    """

    prompt: str
    kind: str = "chat"
    max_tokens: int = 0
    min_chars: int = 1
    contains: str = ""
    matches: str = ""
    logprobs: bool = True
    allow_repetition: bool = False
    ignore_eos: bool = False
    tool: Mapping[str, Any] | None = None
    tool_choice: str = "auto"
    tool_arguments: Mapping[str, Any] | None = None
    image_color: str = "red"
    max_seconds: float = 0.0
    max_first_token_seconds: float = 0.0
    min_tokens_per_second: float = 0.0

    @property
    def path(self) -> str:
        """The HTTP path that takes the request."""
        return "/v1/completions" if self.kind == "completion" else "/v1/chat/completions"

    @property
    def stream(self) -> bool:
        """Whether the answer has to come piece by piece, because its first token is timed."""
        return self.max_first_token_seconds > 0

    @property
    def length(self) -> int:
        """The most tokens that the answer may have."""
        return self.max_tokens or KINDS[self.kind]

    def body(self, model: str) -> dict[str, Any]:
        """Return the request's JSON; sampling is greedy, so that an answer is as reproducible as the engine is."""
        body: dict[str, Any] = {"model": model, "max_tokens": self.length, "temperature": 0, "stream": self.stream}
        if self.stream:
            body["stream_options"] = {"include_usage": True}
        if self.ignore_eos:
            body["ignore_eos"] = True
        if self.kind == "completion":
            body["prompt"] = self.prompt
            body.update({"logprobs": 1} if self.logprobs else {})
            return body
        body["messages"] = [{"role": "user", "content": self._content()}]
        body.update({"logprobs": True, "top_logprobs": 1} if self.logprobs else {})
        if self.kind == "tool_call":
            body.update(self._tools())
        return body

    def _content(self) -> Any:
        if self.kind != "image":
            return self.prompt
        picture = {"type": "image_url", "image_url": {"url": data_url(self.image_color)}}
        return [picture, {"type": "text", "text": self.prompt}]

    def _tools(self) -> dict[str, Any]:
        tool = dict(self.tool or DEFAULT_TOOL)
        named = {"type": "function", "function": {"name": tool["name"]}}
        choice = named if self.tool_choice == "named" else self.tool_choice
        return {"tools": [{"type": "function", "function": tool}], "tool_choice": choice}

    def wanted(self) -> Wanted:
        """Return what is asked of the answer."""
        tool = self.tool or DEFAULT_TOOL
        parameters = tool.get("parameters")
        required = parameters.get("required") if isinstance(parameters, Mapping) else None
        names = {item.name for item in fields(Wanted)} & {item.name for item in fields(self)}
        given = {name: getattr(self, name) for name in names}
        given["max_tokens"] = self.length
        return Wanted(**given, tool_name=str(tool.get("name", "")), tool_required=tuple(map(str, required or ())))


@dataclass(frozen=True)
class CanaryResult:
    """What came back: ``problem`` is empty when every check passed; ``seconds`` is the time of the whole answer.

    ``first_token_seconds`` is None where the answer was not asked for piece by piece.
    """

    kind: str
    prompt: str
    text: str
    tokens: int
    seconds: float
    problem: str
    first_token_seconds: float | None = None
    tokens_per_second: float = 0.0

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as plain values for a module's result."""
        return asdict(self)


def parse_canary(values: Mapping[str, Any], position: int) -> Canary:
    """Return the canary that ``values`` describe; ``position`` counts from 1 and names it in errors."""
    where = f"canary {position}"
    known = {item.name for item in fields(Canary)}
    unknown = sorted(set(values) - known)
    if unknown:
        raise InvalidInputError(f"{where}: {unknown[0]} is no key of a canary; there are {', '.join(sorted(known))}.")
    given = {name: value for name, value in values.items() if value is not None}
    canary = Canary(**{"prompt": "", **given})
    problem = _problem(canary)
    if problem:
        raise InvalidInputError(f"{where}: {problem}.")
    return canary


def _problem(canary: Canary) -> str:
    """Return why the canary cannot be right."""
    for name, choices in (("kind", KINDS), ("tool_choice", TOOL_CHOICES), ("image_color", COLOURS)):
        if getattr(canary, name) not in choices:
            return f"{name} {getattr(canary, name)!r} is not one of {', '.join(sorted(choices))}"
    if not isinstance(canary.prompt, str) or not canary.prompt.strip():
        return "prompt is empty"
    if canary.max_tokens < 0 or canary.min_chars < 0:
        return "max_tokens must be at least 1, or 0 for the kind's own, and min_chars at least 0"
    for name in ("max_seconds", "max_first_token_seconds", "min_tokens_per_second"):
        if getattr(canary, name) < 0:
            return f"{name} must not be negative"
    try:
        re.compile(canary.matches)
    except re.error as exc:
        return f"matches {canary.matches!r} is no regular expression: {exc}"
    return _tool_problem(canary)


def _tool_problem(canary: Canary) -> str:
    if canary.kind != "tool_call":
        given = canary.tool is not None or canary.tool_arguments is not None
        return f"tool and tool_arguments are for kind tool_call, not {canary.kind}" if given else ""
    tool = canary.tool or DEFAULT_TOOL
    if not isinstance(tool, Mapping) or not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", str(tool.get("name", ""))):
        return "tool needs a name of letters, digits, '_' and '-', as an OpenAI function has it"
    parameters = tool.get("parameters", {})
    if not isinstance(parameters, Mapping):
        return "tool.parameters must be a JSON schema"
    properties = parameters.get("properties")
    known = set(properties) if isinstance(properties, Mapping) else set()
    unknown = [name for name in canary.tool_arguments or {} if name not in known]
    return f"tool_arguments names {unknown[0]}, which is no parameter of {tool['name']}" if unknown else ""


def _first_choice(body: Any) -> dict[str, Any]:
    choices = body.get("choices") if isinstance(body, dict) else None
    choice = choices[0] if isinstance(choices, list) and choices else None
    return choice if isinstance(choice, dict) else {}


def _texts(choice: Mapping[str, Any]) -> tuple[str, str]:
    """Return the text of the answer and of the reasoning, whose field has had two names."""
    if isinstance(choice.get("text"), str):
        return choice["text"], ""
    message = choice.get("message")
    if not isinstance(message, dict):
        return "", ""
    found = [message.get(name) for name in ("content", "reasoning", "reasoning_content")]
    content, reasoning, older = [text if isinstance(text, str) else "" for text in found]
    return content, reasoning or older


def _calls(choice: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    message = choice.get("message")
    calls = message.get("tool_calls") if isinstance(message, dict) else None
    functions = [call.get("function") for call in calls or () if isinstance(call, dict)]
    found = [function for function in functions if isinstance(function, dict)]
    return tuple((str(function.get("name", "")), str(function.get("arguments", ""))) for function in found)


def _sampled(choice: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    """Return (token, log probability) of the sampled tokens."""
    logprobs = choice.get("logprobs")
    if not isinstance(logprobs, dict):
        return ()
    if isinstance(logprobs.get("content"), list):
        items = [item for item in logprobs["content"] if isinstance(item, dict)]
        return tuple((str(item.get("token", "")), item.get("logprob")) for item in items)
    return tuple(zip(map(str, logprobs.get("tokens") or []), logprobs.get("token_logprobs") or []))


def read_reply(answer: Answer, seconds: float) -> Reply:
    """Return the parts of an answer of the engine."""
    choice = _first_choice(answer.body)
    text, reasoning = _texts(choice)
    sampled = _sampled(choice)
    usage = answer.body.get("usage") if isinstance(answer.body, dict) else None
    usage = usage if isinstance(usage, dict) else {}
    details = usage.get("completion_tokens_details")
    thought = details.get("reasoning_tokens") if isinstance(details, dict) else None
    tokens = usage.get("completion_tokens")
    return Reply(
        text=text,
        reasoning=reasoning,
        reasoning_tokens=thought if isinstance(thought, int) else 0,
        calls=_calls(choice),
        sampled=sampled,
        tokens=tokens if isinstance(tokens, int) else len(sampled),
        finish_reason=str(choice.get("finish_reason") or ""),
        seconds=seconds,
        first_token_seconds=answer.first_token_seconds,
    )


def judge(canary: Canary, answer: Answer, seconds: float) -> CanaryResult:
    """Return what the answer is worth; the checks go from the transport to the text and stop at the first problem."""
    reply = read_reply(answer, seconds)
    if answer.status != 200:
        problem = f"{'HTTP ' + str(answer.status) + ': ' if answer.status else ''}{answer.problem}"
        if NOT_FINITE in answer.problem:
            problem = f"what the engine computes is NaN or infinite ({problem})"
    elif answer.problem or not _first_choice(answer.body):
        problem = answer.problem or "the answer has no choices"
    else:
        problem = first_problem(canary.wanted(), reply)
    shown = reply.text or reply.reasoning or "".join(f"{name}({arguments})" for name, arguments in reply.calls)
    first = reply.first_token_seconds
    return CanaryResult(
        kind=canary.kind,
        prompt=canary.prompt,
        text=shown[:MAX_RESULT_CHARS],
        tokens=reply.tokens,
        seconds=round(seconds, 3),
        problem=problem,
        first_token_seconds=None if first is None else round(first, 3),
        tokens_per_second=round(reply.tokens_per_second, 1),
    )
