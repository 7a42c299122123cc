# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Names under which a process makes something aside of its place, and what a killed one left under them."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable


def aside(name: str, pid: int, kind: str = "partial") -> str:
    """Return the name, in the directory of ``name``, under which process ``pid`` keeps what is not ``name`` itself."""
    return f".{name}.{kind}-{pid}"


def left_aside(names: Iterable[str], name: str, is_alive: Callable[[int], bool], kinds: str = "partial") -> list[str]:
    """Return those of ``names`` that lie aside of ``name`` by a process that no longer lives.

    ``kinds`` is a regular expression, ``is_alive`` says whether a process id is in use.
    """
    pattern = re.compile(rf"\.{re.escape(name)}\.(?:{kinds})-([1-9][0-9]*)")
    matches = [(item, pattern.fullmatch(item)) for item in names]
    return [item for item, match in matches if match and not is_alive(int(match[1]))]


def process_exists(pid: int) -> bool:
    """Whether a process of this id lives."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True
