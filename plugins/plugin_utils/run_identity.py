# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who a run of ansible-playbook is: for locks, receipts and the audit record."""

from __future__ import annotations

import getpass
import hashlib
import json
import os
import socket
import subprocess
from typing import Any

from ansible_collections.llmops.vllm.plugins.module_utils.snapshot_lock import identity, process_start

GIT_SECONDS = 10.0


def run_process() -> dict[str, Any]:
    """Return the process of ansible-playbook. Tasks run in its children, so it is the parent of this one."""
    pid = os.getppid()
    return {**identity(), "pid": pid, "start_time": process_start(pid)}


def run_identity(directory: str, process: dict[str, Any]) -> dict[str, str]:
    """Return ``id``, ``holder`` and ``git_commit``; the id is the same for all tasks of one run."""
    text = json.dumps(process, sort_keys=True)
    return {
        "id": hashlib.sha256(text.encode()).hexdigest()[:12],
        "holder": f"{_user()}@{socket.gethostname()}",
        "git_commit": git_commit(directory),
    }


def git_commit(directory: str) -> str:
    """Return the commit that ``directory`` has checked out, ``+changes`` appended when tracked files differ from it."""
    commit = _git(directory, "rev-parse", "HEAD")
    if not commit:
        return ""
    return commit + ("+changes" if _git(directory, "status", "--porcelain", "--untracked-files=no") else "")


def _git(directory: str, *arguments: str) -> str:
    command = ["git", "-C", directory, *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=GIT_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _user() -> str:
    try:
        return os.environ.get("SUDO_USER") or getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())
