# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a release takes for granted on its host: libraries, Python modules, an account, directories."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ansible_collections.llmops.vllm.plugins.module_utils.drift import Report
from ansible_collections.llmops.vllm.plugins.module_utils.drift_files import describe
from ansible_collections.llmops.vllm.plugins.module_utils.errors import PreconditionError
from ansible_collections.llmops.vllm.plugins.module_utils.file_tree import KINDS, Entry, plan_tree
from ansible_collections.llmops.vllm.plugins.module_utils.prerequisites import (
    Account,
    missing_libraries,
    missing_modules,
    missing_python3_modules,
)
from ansible_collections.llmops.vllm.plugins.module_utils.systemd import Runner


@dataclass(frozen=True)
class Prerequisites:
    """What the host has to have; the names are those of the options of ``host_info``."""

    libraries: Sequence[str] = ()
    modules: Sequence[str] = ()
    python3_modules: Sequence[str] = ()
    account: Account | None = None


def compare_prerequisites(wanted: Prerequisites, run: Runner, report: Report) -> None:
    """Compare the host with ``wanted``; ``run`` asks the ``python3`` that is on PATH."""
    missing = [
        *missing_libraries(wanted.libraries),
        *missing_modules(wanted.modules),
        *missing_python3_modules(wanted.python3_modules, run),
    ]
    for name in missing:
        report.add("host", name, "is not found")
    for difference in wanted.account.differences() if wanted.account else []:
        report.add("host", "the account", f"is another one: {difference}")


def compare_directories(entries: Sequence[Entry], report: Report) -> None:
    """Compare the directories that all releases share."""
    for entry in entries:
        try:
            steps = plan_tree([entry], predict=True).steps
        except PreconditionError:
            report.add("host", entry.path, f"is not {KINDS[entry.state]}")
            continue
        for step in steps:
            report.add("host", entry.path, describe(step))
