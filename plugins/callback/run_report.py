# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: run_report
type: notification
short_description: Write what a run did, host by host, as one JSON document and as JUnit XML
version_added: 0.1.0
description:
  - Writes, when the run ends, what became of each host. That is its outcome, the release before and after, the launch
    with its timeline and verdict, the drift that was found, and the messages of what failed.
  - Does and prints nothing unless one of the two files is named.
  - Arguments of tasks are never written, and what a task hides with C(no_log) is not known here. What looks like a
    token in a message is replaced.
  - The form of the JSON document is C(llmops.vllm/run) of version C(1). The version is raised when a key goes or
    changes its meaning, not when one is added.
requirements:
  - Enable it in C(ansible.cfg) with C(callbacks_enabled = llmops.vllm.run_report).
options:
  json_file:
    description: Path of the JSON document.
    type: path
    env:
      - name: LLMOPS_REPORT_JSON
    ini:
      - section: callback_run_report
        key: json_file
  junit_file:
    description: Path of the JUnit XML.
    type: path
    env:
      - name: LLMOPS_REPORT_JUNIT
    ini:
      - section: callback_run_report
        key: junit_file
author:
  - llmops.vllm maintainers (@llmops)
"""

import json
import os
import time
from datetime import datetime, timezone
from typing import Any

from ansible import context
from ansible.plugins.callback import CallbackBase
from ansible_collections.llmops.vllm.plugins.callback.progress import host_of, values_of
from ansible_collections.llmops.vllm.plugins.plugin_utils.run_report import RunReport, TaskEnd, write_atomically


def task_of(result: Any) -> Any:
    """Return the task that a result belongs to; newer ansible-core has renamed the attribute."""
    return getattr(result, "task", None) or getattr(result, "_task", None)


def rendered(seconds: float) -> str:
    """Return seconds since the epoch as a time of ISO 8601."""
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


class CallbackModule(CallbackBase):
    """Hands the ends of tasks to a report, and writes it."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "notification"
    CALLBACK_NAME = "llmops.vllm.run_report"
    CALLBACK_NEEDS_ENABLED = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._report = RunReport("", False, time.time())
        self._begun: dict[tuple[str, str], float] = {}

    def v2_playbook_on_start(self, playbook: Any) -> None:
        """Begin the report of this run."""
        check_mode = bool(context.CLIARGS.get("check"))
        name = os.path.basename(str(getattr(playbook, "_file_name", "")))
        self._report = RunReport(name, check_mode, time.time())

    def v2_runner_on_start(self, host: Any, task: Any) -> None:
        """Remember when a task began."""
        self._begun[str(host), str(task._uuid)] = time.time()

    def v2_runner_on_ok(self, result: Any) -> None:
        """Take in a task that did its work."""
        self._end(result, "changed" if values_of(result).get("changed") else "ok")

    def v2_runner_on_failed(self, result: Any, ignore_errors: bool = False) -> None:
        """Take in a task that failed."""
        self._end(result, "ignored" if ignore_errors else "failed")

    def v2_runner_on_skipped(self, result: Any) -> None:
        """Take in a task that was not needed."""
        self._end(result, "skipped")

    def v2_runner_on_unreachable(self, result: Any) -> None:
        """Take in a host that did not answer."""
        self._end(result, "unreachable")

    def _end(self, result: Any, status: str) -> None:
        task, host, now = task_of(result), host_of(result), time.time()
        started = self._begun.pop((host, str(getattr(task, "_uuid", ""))), now)
        name = str(task.get_name()) if task is not None else ""
        action = str(getattr(task, "action", ""))
        self._report.add(TaskEnd(host, name, action, status, started, now, values_of(result)))

    def v2_playbook_on_stats(self, stats: Any) -> None:
        """Write the files that were asked for; one that cannot be written is a warning, the run has done its work."""
        now = time.time()
        summaries = {host: stats.summarize(host) for host in stats.processed}
        document = self._report.document(now, summaries, rendered)
        self._write("json_file", json.dumps(document, indent=2) + "\n")
        self._write("junit_file", self._report.junit(now, summaries, rendered))

    def _write(self, option: str, text: str) -> None:
        path = self.get_option(option)
        if not path:
            return
        try:
            write_atomically(path, text.encode("utf-8"))
        except OSError as error:
            self._display.warning(f"The report {path} cannot be written: {error.strerror}.")
