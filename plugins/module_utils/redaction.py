# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What looks like a secret in command lines, logs and messages, and is shown to nobody.

A last net only: what is known to be a secret is not written in the first place.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

MASK = "***"
_CONFIDENTIAL = r"(?:[\w-]*[-_])?(?:(?:api)?key|token|secret|password|passwd|credentials?)(?:[-_][\w-]*)?"
_OPTION = re.compile(rf"(?i)^-{{1,2}}{_CONFIDENTIAL}(=|$)")
_ASSIGNMENT = re.compile(rf"(?i)^({_CONFIDENTIAL})=")
# The hub's tokens and keys of OpenAI's form; a bearer; the user in a URL; the key in vLLM's list of its arguments.
_VALUE = re.compile(
    r"\b(?:hf_|sk-)[A-Za-z0-9_-]{8,}|(?i:\bbearer)\s+[^\s'\"]+|(?<=://)[^/@\s]+(?=@)"
    r"|(?<='api_key': )(?:\[[^\]]*\]|'[^']*')|(?<=--api-key )\S+"
)


def without_secrets(text: str) -> str:
    """Return ``text`` with what looks like a secret hidden."""
    return _VALUE.sub(MASK, text)


def redacted(arguments: Iterable[str]) -> str:
    """Join ``arguments`` with the values of key, token, secret and password options hidden."""
    words: list[str] = []
    hiding = False
    for argument in arguments:
        option = _OPTION.match(argument)
        assignment = _ASSIGNMENT.match(argument)
        if option:
            hiding = option.group(1) != "="
            words.append(argument if hiding else argument.split("=", 1)[0] + f"={MASK}")
        elif assignment:
            words.append(assignment.group(1) + f"={MASK}")
        elif hiding and not argument.startswith("--"):
            words.append(MASK)
        else:
            hiding = False
            words.append(without_secrets(argument))
    return " ".join(words)
