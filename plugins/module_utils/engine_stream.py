# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Answers that the engine sends piece by piece (server-sent events), put together to what they are otherwise."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

DONE = "[DONE]"
_TEXTS = ("content", "reasoning", "reasoning_content")


class StreamedAnswer:
    """Collects the events of one request with one choice; ``problem`` is what the engine said of a failure."""

    def __init__(self) -> None:
        self.complete = False
        self.problem = ""
        self.has_tokens = False
        self._seen = False
        self._usage: Any = None
        self._choice: dict[str, Any] = {"finish_reason": None}
        self._message: dict[str, Any] = {}
        self._calls: dict[int, dict[str, str]] = {}
        self._logprobs: dict[str, list[Any]] = {}

    def feed(self, line: bytes) -> None:
        """Take one line of the response."""
        name, separator, value = line.decode("utf-8", "replace").strip().partition(":")
        if not separator or name != "data":
            return
        if value.strip() == DONE:
            self.complete = True
            return
        try:
            event = json.loads(value)
        except ValueError:
            self.problem = self.problem or f"an event of the answer is no JSON: {value.strip()[:200]!r}"
            return
        if isinstance(event, dict):
            self._event(event)

    def _event(self, event: dict[str, Any]) -> None:
        error = event.get("error") or (event if event.get("object") == "error" else None)
        if error is not None:
            message = error.get("message") if isinstance(error, dict) else error
            self.problem = self.problem or str(message)[:500]
        self._usage = event.get("usage") or self._usage
        choices = event.get("choices")
        for choice in choices if isinstance(choices, list) else ():
            if isinstance(choice, dict):
                self._seen = True
                self._take(choice)

    def _take(self, choice: dict[str, Any]) -> None:
        self._choice["finish_reason"] = choice.get("finish_reason") or self._choice["finish_reason"]
        if isinstance(choice.get("text"), str):
            self._choice["text"] = self._choice.get("text", "") + choice["text"]
            self.has_tokens = self.has_tokens or bool(choice["text"])
        delta = choice.get("delta")
        if isinstance(delta, dict):
            self._take_delta(delta)
        logprobs = choice.get("logprobs")
        for key, values in logprobs.items() if isinstance(logprobs, dict) else ():
            if isinstance(values, list):
                self._logprobs.setdefault(key, []).extend(values)

    def _take_delta(self, delta: dict[str, Any]) -> None:
        for name in _TEXTS:
            if isinstance(delta.get(name), str) and delta[name]:
                self._message[name] = self._message.get(name, "") + delta[name]
                self.has_tokens = True
        for call in delta.get("tool_calls") or ():
            if isinstance(call, dict) and isinstance(call.get("function"), dict):
                self.has_tokens = True
                index = call.get("index")
                kept = self._calls.setdefault(index if isinstance(index, int) else 0, {"name": "", "arguments": ""})
                for part in kept:
                    kept[part] += call["function"].get(part) or ""

    def body(self) -> dict[str, Any]:
        """Return the answer in the form that it has without streaming."""
        if not self._seen:
            return {"choices": [], "usage": self._usage}
        choice: dict[str, Any] = {**self._choice, "logprobs": self._logprobs or None}
        if "text" not in choice:
            calls = [{"type": "function", "function": self._calls[index]} for index in sorted(self._calls)]
            choice["message"] = {"role": "assistant", "content": None, **self._message, "tool_calls": calls}
        return {"choices": [choice], "usage": self._usage}


def collect(lines: Iterable[bytes]) -> StreamedAnswer:
    """Return what the lines of a response add up to."""
    answer = StreamedAnswer()
    for line in lines:
        answer.feed(line)
    return answer
