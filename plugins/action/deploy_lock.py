# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Says on the host who this run is, looks on the controller whether another one still lives, and waits for it here."""

from __future__ import annotations

import time
from typing import Any

from ansible.plugins.action import ActionBase
from ansible_collections.llmops.vllm.plugins.module_utils.snapshot_lock import is_dead
from ansible_collections.llmops.vllm.plugins.plugin_utils.progress_line import ProgressLine
from ansible_collections.llmops.vllm.plugins.plugin_utils.run_identity import run_identity, run_process

MODULE = "llmops.vllm.deploy_lock"
ASK_SECONDS = 5.0


class ActionModule(ActionBase):
    """Repeats the module while somebody else holds the lock."""

    _requires_connection = True

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the result of the last call, and who this run is."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        del tmp
        task_vars = task_vars or {}
        process = run_process()
        identity = run_identity(str(task_vars.get("playbook_dir", ".")), process)
        arguments = {"run_id": identity["id"], "holder": identity["holder"], "process": process, **self._task.args}
        end = time.monotonic() + float(arguments.get("wait_seconds") or 0)
        line = ProgressLine(str(task_vars.get("inventory_hostname", "host")))
        while True:
            answer: dict[str, Any] = self._execute_module(
                module_name=MODULE, module_args=arguments, task_vars=task_vars
            )
            lock = answer.get("lock") or {}
            if not answer.get("failed") or not lock:
                result.update(answer, run=identity)
                return result
            if lock["run_id"] != arguments.get("dead_run_id") and is_dead(lock["process"]):
                arguments["dead_run_id"] = lock["run_id"]
            elif time.monotonic() < end:
                line.show(f"waiting for {lock['holder']}, {lock['why']}, since {lock['since']}")
                time.sleep(min(ASK_SECONDS, max(0.0, end - time.monotonic())))
            else:
                result.update(answer)
                return result
