# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a release takes for granted on its host: libraries, Python modules, an account, directories."""

from __future__ import annotations

from collections.abc import Sequence

from ansible_collections.llmops.vllm.plugins.module_utils.drift import Report
from ansible_collections.llmops.vllm.plugins.module_utils.drift_files import compare_entries
from ansible_collections.llmops.vllm.plugins.module_utils.file_tree import Entry
from ansible_collections.llmops.vllm.plugins.module_utils.prerequisites import Prerequisites
from ansible_collections.llmops.vllm.plugins.module_utils.systemd import Runner

KIND = "host"


def compare_prerequisites(wanted: Prerequisites, run: Runner, report: Report) -> None:
    """Compare the host with ``wanted``; ``run`` asks the ``python3`` that is on PATH."""
    for name in wanted.missing(run):
        report.add(KIND, name, "is not found")
    for difference in wanted.account_differences():
        report.add(KIND, "the account", f"is another one: {difference}")


def compare_directories(entries: Sequence[Entry], report: Report) -> None:
    """Compare the directories that all releases share."""
    compare_entries(KIND, entries, report)
