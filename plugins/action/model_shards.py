# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Waits for a detached download in short calls, so that a person sees its progress and may leave it alone."""

from __future__ import annotations

import time
from typing import Any

from ansible.plugins.action import ActionBase
from ansible_collections.llmops.vllm.plugins.plugin_utils.progress_line import ProgressLine

MODULE = "llmops.vllm.model_shards"
SHORTEST_SLICE_SECONDS = 10
LONGEST_SLICE_SECONDS = 60


def slice_after(waited_seconds: float) -> int:
    """Return how long the next call waits: a download of hours needs a line a minute, one of a minute needs six."""
    return int(min(max(waited_seconds / 6, SHORTEST_SLICE_SECONDS), LONGEST_SLICE_SECONDS))


class ActionModule(ActionBase):
    """Repeats the module until the worker has ended. What is not detached is one call, as for any module."""

    _requires_connection = True
    _supports_async = True

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the result of the last call."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        del tmp
        task_vars = task_vars or {}
        arguments = dict(self._task.args)
        # An asynchronous task has a process of its own to wait in, and nobody to show anything to.
        sliced = not self._task.async_val
        given = arguments.get("slice_seconds")
        start, told = time.monotonic(), False
        line = ProgressLine(str(task_vars.get("inventory_hostname", "host")))
        while True:
            if sliced:
                arguments["slice_seconds"] = given or slice_after(time.monotonic() - start)
            answer: dict[str, Any] = self._execute_module(
                module_name=MODULE, module_args=arguments, task_vars=task_vars, wrap_async=self._task.async_val
            )
            if not answer.get("follow"):
                result.update(answer)
                return result
            if answer["stop_command"] and not told:
                told = True
                line.show(f"the download goes on if this run ends; to stop it: {answer['stop_command']}")
            # The commit of the first slice is the one that all the others mean, whatever a branch points at by then.
            arguments["follow"], arguments["revision"] = answer["follow"], answer["commit"]
            line.show(answer["progress"])
