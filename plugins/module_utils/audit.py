# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The record of what was done to a host: one JSON object a line, and lines are only ever appended."""

from __future__ import annotations

import json
import os
from typing import Any

from ansible_collections.llmops.vllm.plugins.module_utils.durable import found
from ansible_collections.llmops.vllm.plugins.module_utils.errors import as_sentence

FILE_NAME = "audit.jsonl"


def append_record(path: str, record: dict[str, Any]) -> None:
    """Append ``record`` to the file ``path`` (0640, made if need be), durably. Raises PreconditionError.

    A line that a power cut has torn is ended first, so that it spoils no other.
    """
    line = json.dumps(record, sort_keys=True).encode() + b"\n"
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    with as_sentence("append to the record of what was done to this host"):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        descriptor = os.open(path, flags, 0o640)
        try:
            size = os.fstat(descriptor).st_size
            torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
            os.write(descriptor, b"\n" + line if torn else line)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def read_records(path: str) -> list[dict[str, Any]]:
    """Return the records, oldest first, torn lines left out; none when there is no file. Raises PreconditionError."""
    with as_sentence("read the record of what was done to this host"):
        content = found(path)
    lines = content.decode("utf-8", "replace").splitlines() if isinstance(content, bytes) else []
    records = []
    for line in lines:
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict):
            records.append(record)
    return records
