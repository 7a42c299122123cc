# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Regular expressions from the operator that decide what is ended or removed."""

from __future__ import annotations

import re

from ansible_collections.llmops.vllm.plugins.module_utils.errors import InvalidInputError

UNSELECTIVE_PROBES = ("", "\0", "/\0")


def anchored(option: str, pattern: str) -> re.Pattern[str]:
    """Compile a pattern for ``fullmatch``; InvalidInputError if it is wrong or would select everything."""
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise InvalidInputError(f"{option} {pattern!r} is not a regular expression: {error}.") from error
    if any(compiled.fullmatch(probe) for probe in UNSELECTIVE_PROBES):
        raise InvalidInputError(f"{option} {pattern!r} matches anything; make it narrower.")
    return compiled
