# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What one entry of the knowledge about failing launches looks like."""

from __future__ import annotations

import re
from dataclasses import dataclass
from re import Pattern

ENGINE_LOG = "messages of the engine"


@dataclass(frozen=True)
class Cause:
    """One kind of failure.

    ``root`` matches the line at which it begins, without prefixes, and ``example`` is such a line. It holds only if
    another line of the launch matches one of ``contexts``, where there are any; that line becomes evidence.
    ``remedy`` names this collection's variables where one exists, ``source`` where the knowledge comes from and
    ``versions`` those of vLLM that are known to say so (empty: not tied to some). A cause ``at_warning`` counts in a
    line of level WARNING too, where others are noise. ``acts`` marks what ends a launch rather than reporting its end,
    ``anybody`` what is believed from outside the service manager and the kernel. ``confidence`` is from 0 to 1.
    """

    cause_class: str
    title: str
    root: Pattern[str]
    remedy: str
    example: str
    source: str = ENGINE_LOG
    versions: str = ""
    contexts: tuple[Pattern[str], ...] = ()
    at_warning: bool = False
    acts: bool = False
    anybody: bool = False
    confidence: float = 0.85

    def matches(self, text: str, level: str = "") -> bool:
        """Whether a line of that level can be where this failure begins."""
        return (level != "WARNING" or self.at_warning) and self.root.search(text) is not None


def cause(
    cause_class: str,
    title: str,
    root: str,
    remedy: str,
    example: str,
    *,
    source: str = ENGINE_LOG,
    versions: str = "",
    contexts: tuple[str, ...] = (),
    at_warning: bool = False,
    acts: bool = False,
    anybody: bool = False,
    confidence: float = 0.85,
) -> Cause:
    """Return an entry of the tables; patterns are Python's regular expressions, searched for anywhere in the line."""
    patterns = tuple(re.compile(context) for context in contexts)
    return Cause(
        cause_class,
        title,
        re.compile(root),
        remedy,
        example,
        source,
        versions,
        patterns,
        at_warning,
        acts,
        anybody,
        confidence,
    )
