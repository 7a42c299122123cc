# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Files and links that are at every moment what they were or what they shall be, also after a power cut.

A list of ``Step`` is a plan: what already is as it shall be drops out of it, and the rest is done in order.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass

from ansible_collections.llmops.vllm.plugins.module_utils.difference import DifferenceTracker
from ansible_collections.llmops.vllm.plugins.module_utils.directories import replace_file, sync_directory
from ansible_collections.llmops.vllm.plugins.module_utils.errors import as_sentence


@dataclass(frozen=True)
class Step:
    """``link`` (a path), ``content`` (bytes) or neither (the path shall not be there); ``mode`` counts for a file."""

    path: str
    link: str | None = None
    content: bytes | None = None
    mode: int = 0o644


def found(path: str) -> str | bytes | None:
    """Return a link's target as text, a file's content as bytes, None when nothing is there. Raises OSError."""
    try:
        if os.path.islink(path):
            return os.readlink(path)
        with open(path, "rb") as stream:
            return stream.read()
    except FileNotFoundError:
        return None


def needed(steps: Sequence[Step]) -> list[Step]:
    """Return the steps whose path is not yet what it shall be."""
    with as_sentence("compare what is there with what shall be"):
        return [step for step in steps if found(step.path) != (step.content if step.link is None else step.link)]


def record(steps: Sequence[Step], tracker: DifferenceTracker) -> None:
    """Add to ``tracker`` what ``steps`` would change."""
    for step in steps:
        shall = step.content if step.link is None else step.link
        tracker.add(step.path, _shown(found(step.path)), _shown(shall))


def carry_out(steps: Sequence[Step]) -> None:
    """Do the steps in order, each durable before the next. Raises PreconditionError."""
    for step in steps:
        with as_sentence(f"bring {step.path} into place"):
            directory = os.path.dirname(step.path)
            if step.link is not None:
                os.makedirs(directory, exist_ok=True)
                _put_link(step, directory)
            elif step.content is not None:
                os.makedirs(directory, exist_ok=True)
                replace_file(step.path, step.content, step.mode)
            else:
                os.unlink(step.path)
            sync_directory(directory)


def _put_link(step: Step, directory: str) -> None:
    aside = tempfile.mkdtemp(dir=directory, prefix=".link-")
    try:
        made = os.path.join(aside, "link")
        os.symlink(step.link or "", made)
        os.replace(made, step.path)
    finally:
        with contextlib.suppress(OSError):
            os.unlink(os.path.join(aside, "link"))
        os.rmdir(aside)


def _shown(value: str | bytes | None) -> str | None:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
