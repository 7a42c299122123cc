# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The one source of ``changed`` and ``diff``, so that the two can never disagree."""

from __future__ import annotations

from typing import Any


class DifferenceTracker:
    """Collects what is, and what shall be, thing by thing.

    ``add`` ignores a thing that does not differ; ``changed`` is true when one remained.
    """

    def __init__(self) -> None:
        self._before: dict[str, Any] = {}
        self._after: dict[str, Any] = {}

    def add(self, name: str, before: Any, after: Any) -> None:
        """Record ``name`` when ``before`` and ``after`` differ; ``None`` stands for absent."""
        if before != after:
            self._before[name] = before
            self._after[name] = after

    @property
    def changed(self) -> bool:
        """Whether anything differs."""
        return bool(self._after)

    def as_diff(self) -> dict[str, Any]:
        """Return Ansible's ``diff`` value: ``{"before": {...}, "after": {...}}`` without the absent things."""
        return {
            "before": {name: value for name, value in self._before.items() if value is not None},
            "after": {name: value for name, value in self._after.items() if value is not None},
        }
