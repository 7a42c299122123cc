# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The directory in which a worker that outlives its module and the modules that watch it meet.

It belongs to the user that runs the module and lets nobody else in, because code that is to run lies in it for a
moment. A lock that the worker holds, and that the kernel releases whatever ends it, says whether it is there.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import stat
import time
from collections.abc import Iterator
from typing import Any

from ansible_collections.llmops.vllm.plugins.module_utils.errors import PreconditionError

ALIVE = "alive"
CODE = "worker.zip"
FACTS = "worker.json"
JOB = "job.json"
LOG = "worker.log"
RESULT = "result.json"
_START_LOCK = "start.lock"
_FORGET_SECONDS = 24 * 3600.0


def default_root(uid: int) -> str:
    """Return the directory of all workplaces of user ``uid``."""
    return "/run/llmops-model" if uid == 0 else f"/var/tmp/llmops-model-{uid}"  # noqa: S108 - owner and mode are checked


class Workplace:
    """The place of the work called ``name`` under ``root``."""

    def __init__(self, root: str, name: str) -> None:
        self.root = root
        self.name = name
        self.directory = os.path.join(root, name)

    def path(self, name: str) -> str:
        """Return the path of one of the files."""
        return os.path.join(self.directory, name)

    @contextlib.contextmanager
    def reserved(self) -> Iterator[None]:
        """Make the directory and keep others from starting a worker in it meanwhile."""
        for path in (self.root, self.directory):
            _private_directory(path)
        with _opened(self.path(_START_LOCK), os.O_RDWR | os.O_CREAT) as descriptor:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield

    def is_alive(self) -> bool:
        """Whether a worker is at work."""
        try:
            with _opened(self.path(ALIVE), os.O_RDWR) as descriptor:
                fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except BlockingIOError:
            return True
        return False

    def write(self, name: str, content: bytes) -> None:
        """Replace a file atomically; only its owner can read it. Nothing here outlives the host's next start."""
        temporary = self.path(f"{name}.new")
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        with (
            _opened(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL) as descriptor,
            open(descriptor, "wb", closefd=False) as stream,
        ):
            stream.write(content)
        os.replace(temporary, self.path(name))

    def write_json(self, name: str, value: dict[str, Any]) -> None:
        """Replace a file by ``value``."""
        self.write(name, json.dumps(value).encode())

    def read_json(self, name: str) -> dict[str, Any]:
        """Return what is in a file; nothing when it is not there."""
        return read_json(self.path(name))

    def remove(self, *names: str) -> None:
        """Remove files that may be gone already."""
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.path(name))

    def forget_others(self) -> None:
        """Remove the places of workers that ended more than a day ago."""
        for name in os.listdir(self.root):
            other = Workplace(self.root, name)
            with contextlib.suppress(OSError):
                if name != self.name and _age_seconds(other.directory) > _FORGET_SECONDS and not other.is_alive():
                    shutil.rmtree(other.directory)


def hold(path: str) -> int:
    """Take the lock of a worker for the rest of this process; it is free but for somebody who looks at it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    return descriptor


def read_json(path: str) -> dict[str, Any]:
    """Return the object in the file at ``path``; an empty one when there is no such file or object."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        with open(descriptor, encoding="utf-8") as stream:
            value = json.load(stream)
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


@contextlib.contextmanager
def _opened(path: str, flags: int) -> Iterator[int]:
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _age_seconds(path: str) -> float:
    return time.time() - os.lstat(path).st_mtime


def _private_directory(path: str) -> None:
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, 0o700)
    status = os.lstat(path)
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077:
        raise PreconditionError(
            f"{path} must be a directory of this user with mode 0700, because workers are started from it; remove it."
        )
