# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where a launch is, read from its own lines.

The markers are the engine's log lines of 0.6 to 0.33; a launch only moves forward, so that one worker's late line
cannot put it back. A version that words a marker differently merely shows a coarser phase.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from re import Pattern
from typing import Any

from ansible_collections.llmops.vllm.plugins.module_utils.journal import Entry

# In the order in which a launch passes them; each may be left out.
PHASES = ("starting", "config", "engine", "weights", "compile", "kv_cache", "graph_capture", "warmup", "listening")

_TEXT = {
    "starting": "starting",
    "config": "reading the configuration",
    "engine": "starting the engine processes",
    "weights": "loading weights",
    "compile": "compiling",
    "kv_cache": "allocating the KV cache",
    "graph_capture": "capturing CUDA graphs",
    "warmup": "warming up",
    "listening": "listening",
}

_MARKERS: tuple[tuple[str, Pattern[str]], ...] = (
    ("config", re.compile(r"non-default args:|vLLM API server version|Resolved architecture:|Using max model len ")),
    ("engine", re.compile(r"Initializing an? (?:V\d )?LLM engine|Waiting for init message|rank \d+ in world size ")),
    (
        "weights",
        re.compile(
            r"Starting to load model |Loading \w+ checkpoint shards|Loading weights took |Loading safetensors using "
        ),
    ),
    (
        "compile",
        re.compile(
            r"torch\.compile takes|Dynamo bytecode transform|Compiling a graph|Cache the graph|load the compiled graph"
        ),
    ),
    (
        "kv_cache",
        re.compile(
            r"KV cache size: |Available KV cache memory|Initial free memory|GPU blocks: |Using \w+ KV cache layout"
        ),
    ),
    ("graph_capture", re.compile(r"Capturing CUDA graphs|Capturing cudagraphs|Graph capturing finished")),
    ("warmup", re.compile(r"init engine \(profile|Supported tasks: |Warming up ")),
    ("listening", re.compile(r"Application startup complete\.")),
)
_COUNTED = re.compile(r"(?P<what>Loading|Capturing)[^|]*?\d+%[^|]*\|(?:[^|]*\|)?\s*(?P<done>\d+)/(?P<total>\d+)\s*\[")
# Lines of a launch that stands still; a process that waits for another one says so again and again.
WAITING = re.compile(
    r"No available shared memory broadcast block|Waiting for (?:\d+ local|output from|core engine|engine)"
    r"|still waiting for|Did not receive .* retrying"
)
_ASKED = re.compile(r'" \d{3}(?: [A-Z][\w ]*)?$|GET /(?:health|metrics|v1/models)\b')


@dataclass(frozen=True)
class Progress:
    """A phase, its text with the counter if the engine prints one, and the time of the last line that says more than
    that something waits (epoch seconds).
    """

    phase: str
    text: str
    last_seconds: float


def _marker(line: str) -> str | None:
    for phase, pattern in reversed(_MARKERS):
        if pattern.search(line):
            return phase
    return None


def _counter(line: str) -> tuple[str, str] | None:
    """Return (phase, "done/total") of a progress bar's line."""
    match = _COUNTED.search(line)
    if not match:
        return None
    return ("weights" if match["what"] == "Loading" else "graph_capture"), f"{match['done']}/{match['total']}"


def stands_still(line: str) -> bool:
    """Whether a line is no sign of progress: it says that something waits, or that somebody asked for something."""
    return WAITING.search(line) is not None or _ASKED.search(line) is not None


class PhaseTracker:
    """Follows one launch: feed it entries, ask it where the launch is."""

    def __init__(self) -> None:
        self._index = 0
        self._counter = ""
        self._last_seconds = 0.0
        self._entered: dict[str, float] = {}

    def feed(self, entries: Iterable[Entry]) -> None:
        """Take further entries of the same launch, in their order."""
        for entry in entries:
            when = entry.realtime_seconds
            if not self._entered:
                self._entered[PHASES[0]] = when
            if not self._last_seconds or not all(map(stands_still, entry.lines)):
                self._last_seconds = max(self._last_seconds, when)
            if not entry.from_manager:
                for line in entry.lines:
                    self._read(line, when)

    def _read(self, line: str, when: float) -> None:
        phase = _marker(line)
        counted = _counter(line)
        if phase is None and counted is not None:
            phase = counted[0]
        if phase is None:
            return
        index = PHASES.index(phase)
        if index > self._index:
            self._index, self._counter = index, ""
            self._entered[phase] = when
        if counted is not None and PHASES.index(counted[0]) == self._index:
            self._counter = counted[1]

    @property
    def progress(self) -> Progress:
        """Where the launch is now."""
        phase = PHASES[self._index]
        text = f"{_TEXT[phase]} {self._counter}".rstrip()
        return Progress(phase, text, self._last_seconds)

    def timeline(self) -> list[dict[str, Any]]:
        """Return ``[{"phase", "seconds"}]`` in order; the last one but listening lasts until the latest line."""
        steps = sorted(self._entered.items(), key=lambda item: PHASES.index(item[0]))
        # Lines of the service that has come up, such as its access log, are no part of the launch.
        last = self._entered.get(PHASES[-1], self._last_seconds)
        ends = [when for _phase, when in steps[1:]] + [last]
        return [
            {"phase": phase, "seconds": round(max(0.0, end - start), 3)} for (phase, start), end in zip(steps, ends)
        ]
