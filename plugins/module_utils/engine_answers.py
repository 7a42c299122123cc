# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Answers of engines, kept so that the same question need not be put twice.

An answer belongs to everything that it depends on: the runtime, the question, the environment, the model's small files.
Only answers without an objection are kept, because an objection may have a passing cause. The directory belongs to the
asking user alone, as an answer that somebody else could write would be a verdict that somebody else could write.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import json
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from ansible_collections.llmops.vllm.plugins.module_utils.directories import replace_file
from ansible_collections.llmops.vllm.plugins.module_utils.engine_probe import EngineAnswer, read_answer
from ansible_collections.llmops.vllm.plugins.module_utils.engine_script import PROBE

KEPT = 50  # answers in the directory; the oldest go first
LIMIT_BYTES = 8 * 1024 * 1024


def question_key(
    python: str, model: str, contents: Mapping[str, bytes], question: Mapping[str, Any], environment: Mapping[str, str]
) -> str:
    """Return the name of an answer: a hash of all that it depends on. Raises OSError for a model that is not there.

    Files of the model count by name, size and time of change, those that patches change by their content, weights by
    who may read them. The runtime counts by its real path and the time at which a package was last put into it.
    """
    real = os.path.dirname(os.path.dirname(os.path.abspath(python)))
    packages = sorted(glob.glob(os.path.join(glob.escape(real), "lib", "python*", "site-packages")))
    runtime = [os.path.realpath(real), *(str(os.stat(path).st_mtime_ns) for path in packages)]
    patched = {path: hashlib.sha256(content).hexdigest() for path, content in contents.items()}
    whole = [PROBE, runtime, sorted(_files(model)), patched, question, environment]
    return hashlib.sha256(json.dumps(whole, sort_keys=True, default=str).encode()).hexdigest()


def _files(model: str) -> Iterator[tuple[str, int, int]]:
    for directory, folders, names in os.walk(model):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            path = os.path.join(directory, name)
            found = os.stat(path)
            if name.endswith(".safetensors"):
                yield os.path.relpath(path, model), found.st_mode, found.st_uid
            else:
                yield os.path.relpath(path, model), found.st_size, found.st_mtime_ns


def recall(directory: str, key: str) -> EngineAnswer | None:
    """Return the answer kept under ``key``, or None: there is none, or none that is the asking user's own."""
    document = recall_document(directory, key)
    answer = read_answer(json.dumps(document), "") if document else None
    return answer if answer is not None and answer.stage == "done" else None


def recall_document(directory: str, key: str) -> dict[str, Any] | None:
    """Return the document kept under ``key``, or None: there is none, or none that is the asking user's own."""
    path = os.path.join(directory, f"{key}.json")
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), encoding="utf-8") as stream:
            status = os.fstat(stream.fileno())
            if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or not _private(directory):
                return None
            document = json.loads(stream.read(LIMIT_BYTES))
    except (OSError, ValueError):
        return None
    return document if isinstance(document, dict) else None


def keep(directory: str, key: str, answer: EngineAnswer) -> None:
    """Keep an answer without an objection."""
    if answer.stage == "done" and not any(answer.trials.values()):
        keep_document(directory, key, asdict(answer))


def keep_document(directory: str, key: str, document: Mapping[str, Any]) -> None:
    """Keep a document; a directory that cannot be used costs the next asker time, and nothing else."""
    with contextlib.suppress(OSError):
        os.makedirs(directory, mode=0o700, exist_ok=True)
        if not _private(directory):
            return
        replace_file(os.path.join(directory, f"{key}.json"), json.dumps(document).encode("utf-8"))
        _forget_oldest(directory)


def _private(directory: str) -> bool:
    """Whether nobody but the asking user can write there."""
    status = os.lstat(directory)
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o022


def _forget_oldest(directory: str) -> None:
    kept = [os.path.join(directory, name) for name in os.listdir(directory) if name.endswith(".json")]
    kept.sort(key=os.path.getmtime)
    for path in kept[:-KEPT]:
        os.unlink(path)
