# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What several libraries do with a directory as such, and with a name in it."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator


def sync_directory(path: str) -> None:
    """Make the names in ``path`` durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_file(path: str, content: bytes, mode: int = 0o600) -> None:
    """Put ``content`` at ``path``, whole or not at all. Raises OSError.

    ``sync_directory`` then makes the name durable too.
    """
    descriptor, aside = tempfile.mkstemp(dir=os.path.dirname(path) or ".", prefix=f".{os.path.basename(path)}-")
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(content)
            os.fchmod(stream.fileno(), mode)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(aside, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(aside)
        raise


def subdirectories(path: str) -> list[str]:
    """Return the sorted names of the directories in ``path``, links left out; none when it does not exist.

    Raises OSError when it cannot be read.
    """
    try:
        with os.scandir(path) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
    except FileNotFoundError:
        return []


@contextlib.contextmanager
def opened_parent_below(root: str, relative: str) -> Iterator[tuple[int, str]]:
    """Give the directory of ``relative``, a path below ``root``, open, and the name in it.

    ``root`` may be reached through links. Every step below it is taken without following one, so that whoever owns what
    lies there cannot lead a run of root elsewhere between a check and the use of a name.
    """
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    descriptor = os.open(root, flags)
    try:
        *parents, name = relative.split(os.sep)
        for parent in parents:
            child = os.open(parent, flags | os.O_NOFOLLOW, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = child
        yield descriptor, name
    finally:
        os.close(descriptor)
