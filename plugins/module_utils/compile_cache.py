# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What an engine has compiled: kept for the runtime and GPUs it was compiled for, dropped when it is not whole.

The caches lie at paths that never change, since vLLM hashes paths into its keys; its own keys tell configurations
apart. What it does not tell apart well enough is on which build and which GPUs: the caches of another runtime, GPU or
driver are put aside, ``<path>/.kept/<key>/``, and come back with them. A cache is trusted as a whole or dropped as a
whole. It is dropped when anything in it belongs to somebody else than its user, can be written by others, is a link
out of it or no file at all, or is an empty file that should hold code, as a power cut leaves them.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ansible_collections.llmops.vllm.plugins.module_utils.difference import DifferenceTracker
from ansible_collections.llmops.vllm.plugins.module_utils.durable import Step, carry_out, found
from ansible_collections.llmops.vllm.plugins.module_utils.errors import InvalidInputError, as_sentence

KEPT = ".kept"
KEY_FILE = ".cache-key"
_CODE = (".so", ".o", ".cubin", ".ptx", ".cpp", ".cu", ".py", ".json", ".bin", ".ttir", ".ttgir", ".llir")
_NAME = re.compile(r"[a-z0-9_]+(/[a-z0-9_]+)?")


@dataclass(frozen=True)
class CachePlan:
    """What becomes of the caches below ``path``: ``dropped`` (name to reason), put aside, brought back."""

    path: str
    key: str
    before: str
    dropped: dict[str, str]
    aside: tuple[str, ...]
    back: tuple[str, ...]
    superfluous: tuple[str, ...]

    @property
    def changed(self) -> bool:
        """Whether anything happens."""
        return bool(self.dropped or self.aside or self.back or self.superfluous or self.before != self.key)

    def differences(self) -> DifferenceTracker:
        """Return what changes."""
        tracker = DifferenceTracker()
        tracker.add("key", self.before or None, self.key)
        for name, why in self.dropped.items():
            tracker.add(name, why, None)
        return tracker

    def apply(self) -> None:
        """Do it. An interruption leaves caches of one key only, or none. Raises PreconditionError."""
        with as_sentence("put the compile caches in order"):
            for name in self.dropped:
                shutil.rmtree(os.path.join(self.path, name))
            if self.before != self.key:
                # From here on nothing in place is anybody's, until the new key is written.
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(os.path.join(self.path, KEY_FILE))
            for name in self.aside:
                _move(os.path.join(self.path, name), os.path.join(self.path, KEPT, self.before, name))
            for name in self.back:
                _move(os.path.join(self.path, KEPT, self.key, name), os.path.join(self.path, name))
            for key in self.superfluous:
                shutil.rmtree(os.path.join(self.path, KEPT, key))
        if self.before != self.key:
            carry_out([Step(os.path.join(self.path, KEY_FILE), content=self.key.encode(), mode=0o644)])


@contextlib.contextmanager
def acting_as(uid: int, gid: int) -> Iterator[None]:
    """Act as the engine's user where this process is root: what that user can lead elsewhere, leads root nowhere."""
    if os.geteuid() != 0:
        yield
        return
    groups = os.getgroups()
    os.setgroups([gid])
    os.setegid(gid)
    os.seteuid(uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(os.getgid())
        os.setgroups(groups)


def cache_key(runtime: str, gpus: Sequence[str], driver: str) -> str:
    """Return the key of what is compiled by the runtime in the directory ``runtime`` for ``gpus`` under ``driver``."""
    text = json.dumps([os.path.realpath(runtime), sorted(gpus), driver])
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def read_gpus(proc: str = "/proc") -> tuple[list[str], str]:
    """Return the models of the GPUs and the driver's line, as the kernel module says; nothing without one."""
    root = os.path.join(proc, "driver/nvidia")
    models = []
    try:
        names = sorted(os.listdir(os.path.join(root, "gpus")))
    except OSError:
        names = []
    for name in names:
        text = _text(os.path.join(root, "gpus", name, "information"))
        models += [line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("Model:")]
    return models, _text(os.path.join(root, "version")).partition("\n")[0]


def plan_caches(path: str, names: Sequence[str], key: str, uid: int, keep: int) -> CachePlan:
    """Plan that the caches ``names`` below ``path`` are those of ``key``, whole, and of user ``uid``.

    ``keep`` sets of caches of other keys stay. Raises LlmopsError.
    """
    for name in names:
        if not _NAME.fullmatch(name):
            raise InvalidInputError(f"{name!r} is not the name of a cache: lower-case letters, digits, '_', one '/'.")
    if not os.path.isdir(path):
        return CachePlan(path, key, key, {}, (), (), ())
    with as_sentence("read the compile caches"):
        before = found(os.path.join(path, KEY_FILE))
    was = before.decode("ascii", "replace") if isinstance(before, bytes) else ""
    was = was if re.fullmatch(r"[0-9a-f]{12}", was) else ""
    there = [name for name in names if os.path.lexists(os.path.join(path, name))]
    dropped = {name: why for name in there if (why := fault(os.path.join(path, name), uid))}
    rest = [name for name in there if name not in dropped]
    if not was:
        dropped.update(dict.fromkeys(rest, "nobody knows what it was compiled for"))
        rest = []
    if was == key:
        return CachePlan(path, key, was, dropped, (), (), ())
    kept = os.path.join(path, KEPT)
    back = [name for name in names if os.path.isdir(os.path.join(kept, key, name))]
    back = [name for name in back if not fault(os.path.join(kept, key, name), uid)]
    others = sorted((one for one in _names(kept) if one not in (key, was)), key=lambda one: _age(kept, one))
    return CachePlan(path, key, was, dropped, tuple(rest), tuple(back), tuple(others[: max(0, len(others) + 1 - keep)]))


def fault(path: str, uid: int) -> str:
    """Return why the cache at ``path`` is not trusted, an empty string when it is."""
    if os.path.islink(path) or not os.path.isdir(path):
        return "it is no directory"
    for directory, folders, files in os.walk(path, followlinks=False):
        for name in ("", *folders, *files):
            entry = os.path.join(directory, name) if name else directory
            why = _fault_of(entry, path, uid)
            if why:
                return f"{os.path.relpath(entry, path)} {why}"
    return ""


def _fault_of(entry: str, root: str, uid: int) -> str:
    try:
        status = os.lstat(entry)
    except FileNotFoundError:
        return ""
    if status.st_uid not in (0, uid):
        return "belongs to somebody else"
    if stat.S_ISLNK(status.st_mode):
        inside = os.path.realpath(entry).startswith(os.path.realpath(root) + os.sep)
        return "" if inside else "leads out of it"
    if status.st_mode & stat.S_IWOTH:
        return "can be written by everybody"
    return "" if stat.S_ISDIR(status.st_mode) else _fault_of_file(entry, status)


def _fault_of_file(entry: str, status: os.stat_result) -> str:
    if not stat.S_ISREG(status.st_mode):
        return "is no file"
    return "is empty" if status.st_size == 0 and entry.endswith(_CODE) and not entry.endswith("__init__.py") else ""


def _move(source: str, target: str) -> None:
    if os.path.lexists(target):
        shutil.rmtree(target)
    os.makedirs(os.path.dirname(target), exist_ok=True)
    os.rename(source, target)


def _age(kept: str, name: str) -> float:
    try:
        return os.lstat(os.path.join(kept, name)).st_mtime
    except OSError:
        return 0.0


def _names(path: str) -> list[str]:
    try:
        return os.listdir(path)
    except OSError:
        return []


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            return stream.read(65536)
    except OSError:
        return ""


def as_result(plan: CachePlan) -> dict[str, Any]:
    """Return the values for a module's result."""
    return {"key": plan.key, "dropped": plan.dropped, "aside": list(plan.aside), "back": list(plan.back)}
