# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: progress
type: notification
short_description: Print the progress of tasks that are retried
version_added: 0.1.0
description:
  - Prints the value C(progress) of a task's result, host by host, each time the task is retried.
  - Without it a task with C(until) shows only how many retries are left.
requirements:
  - Enable it in C(ansible.cfg) with C(callbacks_enabled = llmops.vllm.progress).
author:
  - llmops.vllm maintainers (@llmops)
"""

from collections.abc import Mapping
from typing import Any

from ansible.plugins.callback import CallbackBase


def values_of(result: Any) -> Mapping[str, Any]:
    """Return a task result's values; newer ansible-core has renamed the attribute and deprecates the old name."""
    values = getattr(result, "result", None)
    if not isinstance(values, Mapping):
        values = getattr(result, "_result", None)
    return values if isinstance(values, Mapping) else {}


def host_of(result: Any) -> str:
    """Return the name of the host that a result belongs to."""
    host = getattr(result, "host", None) or getattr(result, "_host", None)
    return str(host.get_name()) if host is not None else "host"


class CallbackModule(CallbackBase):
    """One line per retry and host."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "notification"
    CALLBACK_NAME = "llmops.vllm.progress"
    CALLBACK_NEEDS_ENABLED = True

    def v2_runner_retry(self, result: Any) -> None:
        """Print the progress of one host."""
        progress = values_of(result).get("progress")
        if progress and isinstance(progress, str):
            self._display.display(f"    {host_of(result)}: {progress}")
