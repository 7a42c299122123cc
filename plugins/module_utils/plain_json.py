# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Plain JSON values out of what a template engine hands over."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.llmops.vllm.plugins.module_utils.errors import InvalidInputError
from ansible_collections.llmops.vllm.plugins.module_utils.json_patch import build_pointer


def plain_json(value: Any) -> Any:
    """Return ``value`` rebuilt of exact dict, list, str, int, float, bool and None.

    Containers of a template engine may compute their items on access, and its strings may carry marks; serialisers in C
    look past both. Raises InvalidInputError, naming the place, for a key that is no string and for what is not JSON.
    """
    return _plain(value, ())


def _plain(value: Any, at: tuple[str, ...]) -> Any:
    if isinstance(value, Mapping):
        return {_key(key, at): _plain(member, (*at, str(key))) for key, member in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes, bytearray)):
        return [_plain(element, (*at, str(index))) for index, element in enumerate(value)]
    return _scalar(value, at)


def _key(key: Any, at: tuple[str, ...]) -> str:
    if not isinstance(key, str):
        raise InvalidInputError(
            f"The key {key!r} (in '{build_pointer(at) or '/'}') must be a string; put it in quotes."
        )
    return str.__str__(key)


def _scalar(value: Any, at: tuple[str, ...]) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float) and math.isfinite(value):
        return float(value)
    shown = value if isinstance(value, float) else f"of type {type(value).__name__}"
    raise InvalidInputError(f"The value {shown} (at '{build_pointer(at) or '/'}') is not JSON.")
