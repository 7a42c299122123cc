# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A view: a directory that looks like a model snapshot, with links to its shards and own copies of all else.

``*.safetensors`` files are links (absolute, into the snapshot); every other file is a real copy, because a linked
``.py`` file breaks remote code, and because copies are what patches may change. Directories whose names start with a
dot (the snapshot's own records) are left out. The snapshot itself is only ever read.

``plan_view`` looks at both sides and decides; ``apply_view`` composes the view aside, in the same parent directory, and
renames it into place. The name of an entry always comes from listing the snapshot, never from the operator.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.llmops.vllm.plugins.module_utils.errors import InvalidInputError, PreconditionError

LINKED_SUFFIX = ".safetensors"
DIFF_LIMIT_BYTES = 1024 * 1024

_CHUNK_BYTES = 1024 * 1024


@dataclass(frozen=True)
class Permissions:
    """Modes of files and directories, and numeric owner and group (``None``: as the composing process creates them)."""

    file_mode: int = 0o644
    directory_mode: int = 0o755
    uid: int | None = None
    gid: int | None = None


@dataclass(frozen=True)
class Entry:
    """One name of a tree: ``kind`` is file, link, directory or special.

    ``value`` is the sha256 of a file (64 hex digits), the target of a link, empty for others. ``source`` is where a
    file's content is read, unless ``content`` holds it.
    """

    path: str
    kind: str
    value: str = ""
    mode: int | None = None
    uid: int | None = None
    gid: int | None = None
    source: str = ""
    content: bytes | None = field(default=None, repr=False)

    def describe(self, with_owner: bool) -> str:
        """Return the entry as a line of a listing."""
        words = [self.path, self.kind]
        if self.mode is not None:
            words.append(f"{self.mode:04o}")
        if with_owner:
            words.append(":".join("-" if number is None else str(number) for number in (self.uid, self.gid)))
        words.append({"link": f"-> {self.value}", "file": f"sha256:{self.value}"}.get(self.kind, ""))
        return " ".join(words).rstrip()


@dataclass(frozen=True)
class ViewPlan:
    """What the view shall be (``entries``) and what stands in its place (``present``; ``None``: nothing)."""

    snapshot: str
    view: str
    entries: dict[str, Entry]
    present: dict[str, Entry] | None
    permissions: Permissions
    sources: Mapping[str, str]

    @property
    def digest(self) -> str:
        """Sha256 over the sorted (path, kind, content sha256 or link target) of all entries, as hex digits."""
        total = hashlib.sha256()
        for path in sorted(self.entries):
            entry = self.entries[path]
            total.update(f"{path}\0{entry.kind}\0{entry.value}\n".encode("utf-8", "surrogateescape"))
        return total.hexdigest()

    @property
    def changed(self) -> bool:
        """Whether the view is missing or differs in any name, content, target, mode or (where given) owner."""
        return self.present is None or bool(self.differing())

    def differing(self) -> list[str]:
        """Return the paths that an existing view has otherwise, lacks, or has too many."""
        present = self.present or {}
        paths = sorted({*self.entries, *present})
        return [path for path in paths if not _alike(self.entries.get(path), present.get(path))]


def _alike(wanted: Entry | None, found: Entry | None) -> bool:
    if wanted is None or found is None:
        return False
    if (wanted.kind, wanted.value) != (found.kind, found.value):
        return False
    pairs = ((wanted.mode, found.mode), (wanted.uid, found.uid), (wanted.gid, found.gid))
    return all(want is None or want == have for want, have in pairs)


def hash_file(path: str) -> str:
    """Return the sha256 of a regular file as hex digits. Raises OSError."""
    total = hashlib.sha256()
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as stream:
        for chunk in iter(lambda: stream.read(_CHUNK_BYTES), b""):
            total.update(chunk)
    return total.hexdigest()


def _walk(root: str, below: str = "", *, hidden: bool) -> Iterator[tuple[str, os.stat_result]]:
    """Yield the path relative to ``root`` and the status of everything under it; links are not followed.

    ``hidden`` says whether directories whose names start with a dot are walked.
    """
    with os.scandir(os.path.join(root, below)) as listing:
        found = sorted(listing, key=lambda item: item.name)
    for item in found:
        path = f"{below}/{item.name}" if below else item.name
        status = item.stat(follow_symlinks=False)
        directory = stat.S_ISDIR(status.st_mode)
        if directory and item.name.startswith(".") and not hidden:
            continue
        yield path, status
        if directory:
            yield from _walk(root, path, hidden=hidden)


def snapshot_sources(snapshot: str) -> dict[str, str]:
    """Return, for each path of a view of ``snapshot``, the real file behind it (empty for a directory).

    Raises PreconditionError for a missing snapshot, for links that leave it or lead to no file, and for devices,
    sockets and pipes.
    """
    if not os.path.isdir(snapshot):
        raise PreconditionError(f"The snapshot {snapshot} is not a directory on this host; download the model first.")
    sources: dict[str, str] = {}
    for path, status in _walk(snapshot, hidden=False):
        if stat.S_ISDIR(status.st_mode):
            sources[path] = ""
        elif stat.S_ISREG(status.st_mode):
            sources[path] = os.path.join(snapshot, path)
        elif stat.S_ISLNK(status.st_mode):
            sources[path] = _behind_link(snapshot, path)
        else:
            raise PreconditionError(f"{os.path.join(snapshot, path)} is neither a file, a directory nor a link.")
    return sources


def _behind_link(snapshot: str, path: str) -> str:
    link = os.path.join(snapshot, path)
    real = os.path.realpath(link)
    if not real.startswith(snapshot.rstrip("/") + "/"):
        raise PreconditionError(
            f"{link} is a link that leaves the snapshot (to {real}); a snapshot must hold its files."
        )
    if not os.path.isfile(real):
        raise PreconditionError(f"{link} is a link to {real}, which is not a file.")
    return real


def read_source(sources: Mapping[str, str], path: str) -> bytes | None:
    """Return the content of a copied file of the snapshot; ``None`` when the snapshot has no file of this path.

    Raises InvalidInputError for a shard, which a view only links to.
    """
    source = sources.get(path)
    if not source:
        return None
    if path.endswith(LINKED_SUFFIX):
        raise InvalidInputError("a view links to this file and cannot change it")
    with open(source, "rb") as stream:
        return stream.read()


def scan_view(view: str) -> dict[str, Entry] | None:
    """Return what stands at ``view``, the directory itself under the path '.'; ``None`` when nothing does.

    Raises InvalidInputError when it is no directory of its own.
    """
    try:
        status = os.lstat(view)
    except FileNotFoundError:
        return None
    if not stat.S_ISDIR(status.st_mode):
        raise InvalidInputError(
            f"{view} exists and is not a directory; remove it, or choose another path for the view."
        )
    entries = {".": _present(view, ".", status)}
    entries.update((path, _present(view, path, found)) for path, found in _walk(view, hidden=True))
    return entries


def _present(view: str, path: str, status: os.stat_result) -> Entry:
    full = os.path.join(view, path)
    mode: int | None = stat.S_IMODE(status.st_mode)
    kind, value = "special", ""
    if stat.S_ISDIR(status.st_mode):
        kind = "directory"
    elif stat.S_ISLNK(status.st_mode):
        kind, value, mode = "link", os.readlink(full), None
    elif stat.S_ISREG(status.st_mode):
        # a shard that somebody put here is refused later: hashing hundreds of gigabytes would help nobody
        kind, value = "file", "" if path.endswith(LINKED_SUFFIX) else hash_file(full)
    return Entry(path, kind, value, mode, status.st_uid, status.st_gid, source=full)


def plan_view(
    snapshot: str, view: str, sources: Mapping[str, str], contents: Mapping[str, bytes], permissions: Permissions
) -> ViewPlan:
    """Decide what the view needs; nothing is written.

    ``snapshot`` and ``view`` are absolute, ``sources`` is from ``snapshot_sources``, ``contents`` holds the patched
    files. Raises LlmopsError when the view would lie in the snapshot, or something else stands in its place.
    """
    _check_places(snapshot, view)
    present = scan_view(view)
    entries = {".": Entry(".", "directory", "", permissions.directory_mode, permissions.uid, permissions.gid)}
    for path, source in sources.items():
        entries[path] = _wanted(path, source, contents.get(path), permissions)
    plan = ViewPlan(snapshot, view, entries, present, permissions, sources)
    _check_replaceable(plan)
    return plan


def _wanted(path: str, source: str, content: bytes | None, permissions: Permissions) -> Entry:
    uid, gid = permissions.uid, permissions.gid
    if not source:
        return Entry(path, "directory", "", permissions.directory_mode, uid, gid)
    if path.endswith(LINKED_SUFFIX):
        return Entry(path, "link", source, None, uid, gid)
    value = hash_file(source) if content is None else hashlib.sha256(content).hexdigest()
    return Entry(path, "file", value, permissions.file_mode, uid, gid, source, content)


def _check_places(snapshot: str, view: str) -> None:
    place = os.path.join(os.path.realpath(os.path.dirname(view)), os.path.basename(view))
    if (place + "/").startswith(snapshot.rstrip("/") + "/"):
        raise InvalidInputError(f"The view {view} lies in the snapshot {snapshot}, which is never written.")
    if (snapshot + "/").startswith(place.rstrip("/") + "/"):
        raise InvalidInputError(f"The view {view} would replace the directory that holds the snapshot {snapshot}.")


def _check_replaceable(plan: ViewPlan) -> None:
    """Refuse to replace a directory that is not a view: a wrong path must not cost anybody data."""
    present = {path: entry for path, entry in (plan.present or {}).items() if path != "."}
    for path, entry in present.items():
        if entry.kind == "file" and path.endswith(LINKED_SUFFIX):
            where = os.path.join(plan.view, path)
            raise PreconditionError(f"{where} is a real file, so {plan.view} is not a view; it is left alone.")
    if present and not any(path in plan.entries and path != "." for path in present):
        raise PreconditionError(
            f"{plan.view} holds other things than a view of {plan.snapshot}; it is left alone. "
            "Choose another path for the view, or empty this directory."
        )
    if plan.present is not None and os.path.ismount(plan.view):
        raise PreconditionError(f"{plan.view} is a mount point and cannot be replaced; put the view below it.")


def render_diff(plan: ViewPlan) -> list[dict[str, Any]]:
    """Return what applying the plan changes, as the list form of Ansible's ``diff``.

    Text files are shown as texts, everything else as lines of a listing. A view that does not exist yet is shown as
    its patched files against the snapshot's, and one summary line.
    """
    if not plan.changed:
        return []
    if plan.present is None:
        return [_summary(plan), *(_text_diff(plan, path, None) for path in sorted(_patched(plan)))]
    texts = []
    listed = []
    for path in plan.differing():
        found = plan.present.get(path)
        difference = _text_diff(plan, path, found) if _both_text(plan, path, found) else None
        if difference is not None and difference["before"] != difference["after"]:
            texts.append(difference)
        else:
            listed.append(path)
    return [*([_listing(plan, listed)] if listed else []), *texts]


def _patched(plan: ViewPlan) -> list[str]:
    return [path for path, entry in plan.entries.items() if entry.content is not None]


def _summary(plan: ViewPlan) -> dict[str, Any]:
    kinds = [entry.kind for path, entry in plan.entries.items() if path != "."]
    counted = f"{kinds.count('link')} links, {kinds.count('file')} copies, {len(_patched(plan))} of them patched"
    return {
        "before_header": plan.view,
        "after_header": plan.view,
        "before": "",
        "after": f"view of {plan.snapshot}: {counted}\n",
    }


def _listing(plan: ViewPlan, paths: list[str]) -> dict[str, Any]:
    owned = (plan.permissions.uid, plan.permissions.gid) != (None, None)

    def lines(entries: Mapping[str, Entry]) -> str:
        return "".join(entries[path].describe(owned) + "\n" for path in paths if path in entries)

    header = f"{plan.view} (listing)"
    before, after = lines(plan.present or {}), lines(plan.entries)
    return {"before_header": header, "after_header": header, "before": before, "after": after}


def _both_text(plan: ViewPlan, path: str, found: Entry | None) -> bool:
    wanted = plan.entries.get(path)
    if wanted is None or found is None or wanted.kind != "file" or found.kind != "file":
        return False
    return all(_is_text(entry) for entry in (wanted, found))


def _is_text(entry: Entry) -> bool:
    if entry.content is None and os.path.getsize(entry.source) > DIFF_LIMIT_BYTES:
        return False
    try:
        return "\0" not in _text(entry)
    except UnicodeDecodeError:
        return False


def _text(entry: Entry) -> str:
    if entry.content is not None:
        return entry.content.decode("utf-8")
    with open(entry.source, "rb") as stream:
        return stream.read().decode("utf-8")


def _text_diff(plan: ViewPlan, path: str, found: Entry | None) -> dict[str, Any]:
    before = found or Entry(path, "file", source=plan.sources[path])
    return {
        "before_header": before.source,
        "after_header": os.path.join(plan.view, path),
        "before": _text(before),
        "after": _text(plan.entries[path]),
    }
