# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The batches of a rollout, none of them larger than what may be out of service at a time."""

from __future__ import annotations

import re
from typing import Union

from ansible_collections.llmops.vllm.plugins.module_utils.errors import InvalidInputError

Batch = Union[int, str]

_PERCENTAGE = re.compile(r"(\d{1,3})%")


def batches(serial: Batch | list[Batch], hosts: int, minimum_serving: int) -> list[Batch]:
    """Return ``serial`` as a list in which no batch takes more of ``hosts`` than leave ``minimum_serving`` of them.

    One host at a time is always possible; whether it may be taken out is decided when it is. Raises InvalidInputError
    for what is no batch.
    """
    most = max(1, hosts - minimum_serving)
    given = serial if isinstance(serial, list) else [serial]
    if not given:
        raise InvalidInputError("The batches of a rollout are an empty list; give for example [1, '25%', '100%'].")
    return [batch if _size(batch, hosts) <= most else most for batch in given]


def _size(batch: Batch, hosts: int) -> int:
    """Return how many of ``hosts`` are in ``batch``, as ansible-core reckons it: rounded down, at least one."""
    text = str(batch).strip()
    percentage = _PERCENTAGE.fullmatch(text)
    if percentage and int(percentage[1]) > 0:
        return max(1, hosts * int(percentage[1]) // 100)
    if text.isascii() and text.isdigit() and int(text) > 0:
        return int(text)
    raise InvalidInputError(
        f"A batch of a rollout is a number of hosts or a percentage such as 25%, and not '{batch}'."
    )
