# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether an engine that serves still makes tokens.

``/health`` only reads a flag and says 200 for an engine that hangs (vLLM #36451, #39863). What the scheduler counts
does not lie: a busy engine moves these numbers at every step, however long its queue is. While they stand still, a
completion of one token is asked for, which an idle engine answers at once. Only an engine that does neither for
``hang_seconds`` hangs; one that is merely busy never does.
"""

from __future__ import annotations

from dataclasses import dataclass

from ansible_collections.llmops.vllm.plugins.module_utils.prometheus import count, read_samples, total

# Numbers that only a step of the engine changes (vllm/v1/metrics/loggers.py, 0.9 to 0.33). The ones of a request's end
# are not among them: the API server counts those by itself when a client goes away.
_TOKENS = "vllm:generation_tokens_total"
_RUNNING, _WAITING = "vllm:num_requests_running", "vllm:num_requests_waiting"
_MOVING = {
    _TOKENS,
    _RUNNING,
    _WAITING,
    "vllm:iteration_tokens_total_count",
    "vllm:prompt_tokens_total",
    "vllm:kv_cache_usage_perc",
    "vllm:gpu_cache_usage_perc",
    "vllm:num_preemptions_total",
    "vllm:prefix_cache_queries_total",
}
_SLEEP = "vllm:engine_sleep_state"
# The watch itself has not run for so many beats, as on a machine that was suspended: it has seen nothing meanwhile.
MISSED_BEATS = 3


@dataclass(frozen=True)
class Look:
    """One look at an engine's metrics.

    ``signature`` holds the numbers that steps change; ``counts`` is false when the engine keeps none
    (``disable-log-stats``).
    """

    signature: tuple[str, ...]
    running: int
    waiting: int
    counts: bool
    asleep: bool


def read_metrics(text: str) -> Look:
    """Read the text of ``GET /metrics`` (Prometheus' format)."""
    samples = read_samples(text)
    return Look(
        signature=tuple(sample.text for sample in samples if sample.name in _MOVING),
        running=count(samples, _RUNNING) or 0,
        waiting=count(samples, _WAITING) or 0,
        counts=total(samples, _TOKENS) is not None,
        asleep=any(s.name == _SLEEP and 'sleep_state="awake"' in s.labels and s.value == 0 for s in samples),
    )


@dataclass(frozen=True)
class Beat:
    """What a look came to: ``text`` for people, ``ask`` to send a completion now, ``hang`` why the engine hangs."""

    text: str
    ask: bool = False
    hang: str = ""


class Pulse:
    """Judges looks at one engine; times are seconds of a clock that never goes back.

    ``look`` is ``None`` when the metrics gave no answer, ``status`` the HTTP status of a completion that has come back
    since (0: it broke off or ran out of time), ``None`` when none has.
    """

    def __init__(self, beat_seconds: float, hang_seconds: float, now: float) -> None:
        self._beat_seconds = beat_seconds
        self._hang_seconds = hang_seconds
        self._alive_at = now
        self._beat_at = now
        self._signature: tuple[str, ...] = ()
        self._asked = False

    def beat(self, now: float, look: Look | None, status: int | None) -> Beat:
        """Take the next look and say what it means."""
        moved = look is not None and look.signature != self._signature
        if look is not None:
            self._signature = look.signature
        if status is not None:
            self._asked = False
        overslept = now - self._beat_at > MISSED_BEATS * self._beat_seconds
        self._beat_at = now
        # An answer that the API server gives by itself, such as 404, says nothing about the engine, for or against it.
        answered = status is not None and 200 <= status < 500
        if moved or answered or overslept or (look is not None and (look.asleep or not look.counts)):
            self._alive_at = now
            return Beat(_living(look))
        return self._still(now - self._alive_at, look, status)

    def _still(self, seconds: float, look: Look | None, status: int | None) -> Beat:
        """Return what a look means that shows no movement; it takes a question without an answer to call it a hang."""
        if self._hang_seconds and seconds >= self._hang_seconds and (self._asked or status is not None):
            return Beat("hangs", hang=_why(seconds, look))
        ask = not self._asked
        self._asked = True
        doing = "waiting for the answer to a completion of one token"
        return Beat(f"{_requests(look)}, no token for {seconds:.0f} s, {doing}", ask=ask)


def _living(look: Look | None) -> str:
    if look is None:
        return "answers"
    if look.asleep:
        return "asleep"
    if not look.counts:
        return "answers; it keeps no statistics (disable-log-stats), so that a hang cannot be told"
    return _requests(look)


def _requests(look: Look | None) -> str:
    if look is None:
        return "no metrics"
    if not look.running and not look.waiting:
        return "idle"
    return f"{look.running} running, {look.waiting} waiting"


def _why(seconds: float, look: Look | None) -> str:
    if look is None:
        return f"no answer to anything for {seconds:.0f} s, while its process is there"
    return (
        f"no token for {seconds:.0f} s and no answer to a completion of one token, while the API server answers "
        f"({_requests(look)})"
    )
