# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Waits for a launch in short calls, so that a person sees its progress and no connection has to stay open for long."""

from __future__ import annotations

import time
from typing import Any

from ansible.plugins.action import ActionBase
from ansible_collections.llmops.vllm.plugins.module_utils.transfer_progress import duration
from ansible_collections.llmops.vllm.plugins.plugin_utils.progress_line import ProgressLine

MODULE = "llmops.vllm.launch_gate"
SLICE_SECONDS = 10


class ActionModule(ActionBase):
    """Repeats the module until its verdict is final."""

    _requires_connection = True

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the result of the last call, which holds what all of them waited."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        del tmp
        task_vars = task_vars or {}
        arguments = dict(self._task.args)
        arguments["slice_seconds"] = arguments.get("slice_seconds") or SLICE_SECONDS
        start = time.monotonic() - float(arguments.get("waited_seconds") or 0)
        line = ProgressLine(str(task_vars.get("inventory_hostname", "host")))
        while True:
            answer: dict[str, Any] = self._execute_module(
                module_name=MODULE, module_args=arguments, task_vars=task_vars
            )
            if answer.get("verdict") != "waiting" or answer.get("failed"):
                result.update(answer)
                return result
            # The launch of the first slice is the one that all the others follow; the way to the target counts too.
            arguments["invocation_id"] = answer["invocation_id"]
            arguments["waited_seconds"] = round(time.monotonic() - start, 3)
            line.show(answer["progress"], f", {duration(arguments['waited_seconds'])}")
