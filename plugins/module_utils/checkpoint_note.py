# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A note of a checkpoint in which nothing was found wrong, so that its headers need not be read again.

The note belongs to the files (name, size, time of change), to the configuration and to the rules of this collection.
Experts of a layer are noted as one, because they are alike in all that anybody asks a note about.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from typing import Any

from ansible_collections.llmops.vllm.plugins.module_utils.checkpoint import INDEX, Checkpoint, read_checkpoint
from ansible_collections.llmops.vllm.plugins.module_utils.engine_answers import keep_document, recall_document
from ansible_collections.llmops.vllm.plugins.module_utils.safetensors_header import Tensor

RULES = 1  # goes up with every change of what is looked for in a checkpoint

_EXPERT = re.compile(r"(\.experts\.)\d+(?=\.)")


def weights_key(directory: str, config: Mapping[str, Any]) -> str:
    """Return the name of a checkpoint's note. Raises OSError for a directory that is not there."""
    files = []
    for name in sorted(os.listdir(directory)):
        if name.endswith(".safetensors") or name == INDEX:
            status = os.stat(os.path.join(directory, name))
            files.append((name, status.st_size, status.st_mtime_ns, status.st_ino))
    whole = [RULES, os.path.realpath(directory), files, config]
    return "weights-" + hashlib.sha256(json.dumps(whole, sort_keys=True, default=str).encode()).hexdigest()


def merged(checkpoint: Checkpoint) -> Checkpoint:
    """Return the checkpoint with the experts of each layer as one tensor; shapes are no longer told."""
    sizes: dict[str, int] = {}
    for name, tensor in checkpoint.tensors.items():
        one = _EXPERT.sub(r"\g<1>0", name) if ".experts." in name else name
        sizes[one] = sizes.get(one, 0) + tensor.size_bytes
    return Checkpoint(_tensors(sizes), checkpoint.shards, checkpoint.problems)


def checkpoint_of(directory: str, config: Mapping[str, Any], notes: str, write: bool) -> Checkpoint:
    """Return the checkpoint in ``directory``, from its note in ``notes`` where there is one.

    With empty ``notes`` none is had; one is written when ``write`` says so and nothing was wrong. Raises OSError for
    the directory of the checkpoint.
    """
    if not notes:
        return merged(read_checkpoint(directory, config))
    key = weights_key(directory, config)
    note = recall_document(notes, key)
    if note is not None and isinstance(note.get("sizes"), dict):
        return Checkpoint(_tensors(note["sizes"]), tuple(note.get("shards") or ()))
    found = merged(read_checkpoint(directory, config))
    if write and found.tensors and not found.problems:
        sizes = {name: tensor.size_bytes for name, tensor in found.tensors.items()}
        keep_document(notes, key, {"sizes": sizes, "shards": found.shards})
    return found


def _tensors(sizes: Mapping[str, int]) -> dict[str, Tensor]:
    return {name: Tensor(name, "", (), size, "") for name, size in sizes.items()}
