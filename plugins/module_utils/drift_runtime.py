# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A runtime that was tampered with: its files against the records that came with their packages.

Every installed package has a RECORD (https://packaging.python.org/en/latest/specifications/recording-installed-packages/)
with the size and digest of each of its files. Compiled bytecode is not in it and is not compared.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import json
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from glob import escape, glob
from typing import Any

from ansible_collections.llmops.vllm.plugins.module_utils.drift import Expected, Report

LEVELS = ("none", "receipt", "stat", "full")
_CHUNK_BYTES = 1024 * 1024
# What Python would load or run by itself, if somebody put it there.
_LOADED = (".py", ".pth", ".so", ".pyc")
# Files of the virtual environment itself, which belong to no package.
_OF_THE_ENVIRONMENT = frozenset({"_virtualenv.py", "_virtualenv.pth"})


@dataclass(frozen=True)
class Recorded:
    """One line of a RECORD; ``size_bytes`` is None and ``digest`` empty where it says nothing about them."""

    size_bytes: int | None
    algorithm: str
    digest: str


def compare_runtime(expected: Expected, content: Mapping[str, Any], level: str, report: Report) -> None:
    """Compare the release's runtime with its records: sizes at level ``stat``, every byte at ``full``.

    At ``receipt`` it is enough that its installation came to its end.
    """
    if level == "none":
        return
    runtime = os.path.join(expected.runtimes, content["runtime"])
    if _installed_id(runtime) != content["runtime"]:
        report.add("runtime", runtime, "has no receipt of an installation that came to its end")
        return
    if level == "receipt":
        return
    found: list[tuple[str, str]] = []
    for packages in glob(os.path.join(escape(runtime), "lib", "python3*", "site-packages")):
        records = read_records(runtime, packages)
        found += _differing(records, full=level == "full")
        found += [(path, "belongs to no package") for path in _unknown(packages, records)]
        if not glob(os.path.join(escape(packages), "vllm-*.dist-info", "RECORD")):
            found.append((packages, "holds no installed vLLM"))
    report.add_some("runtime", sorted(found), runtime)


def _installed_id(runtime: str) -> str:
    try:
        with open(os.path.join(runtime, "runtime.json"), encoding="utf-8") as stream:
            receipt = json.load(stream)
    except (OSError, ValueError):
        return ""
    return str(receipt.get("id", "")) if isinstance(receipt, dict) else ""


def read_records(runtime: str, packages: str) -> dict[str, list[Recorded]]:
    """Return what the packages in ``packages`` say about their files, by absolute path; several can claim one.

    Lines that lead out of ``runtime`` are left out.
    """
    records: dict[str, list[Recorded]] = {}
    for path in sorted(glob(os.path.join(escape(packages), "*.dist-info", "RECORD"))):
        with open(path, encoding="utf-8", errors="surrogateescape", newline="") as stream:
            for row in csv.reader(stream):
                target = os.path.normpath(os.path.join(packages, row[0])) if row else ""
                if target.startswith(runtime + "/"):
                    records.setdefault(target, []).append(_recorded([*row, "", ""]))
    return records


def _recorded(row: list[str]) -> Recorded:
    algorithm, _equals, digest = row[1].partition("=")
    return Recorded(int(row[2]) if row[2].isdigit() else None, algorithm, digest)


def _differing(records: Mapping[str, list[Recorded]], full: bool) -> Iterator[tuple[str, str]]:
    for path, claims in records.items():
        if path.endswith(".pyc"):
            continue
        problem = _problem(path, claims, full)
        if problem:
            yield path, problem


def _problem(path: str, claims: list[Recorded], full: bool) -> str:
    try:
        status = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return "is missing"
    if not stat.S_ISREG(status.st_mode):
        return "is no regular file"
    if status.st_mode & stat.S_IWOTH:
        return "can be written by everybody"
    right = [claim for claim in claims if claim.size_bytes in (None, status.st_size)]
    if not right:
        return f"has {status.st_size} bytes, not {claims[-1].size_bytes}"
    # A record without a digest, such as that of RECORD itself, has nothing to compare.
    if full and all(claim.digest for claim in right) and not _has_one_of(path, right):
        return "has another content"
    return ""


def _has_one_of(path: str, claims: list[Recorded]) -> bool:
    return any(digest_of(path, algorithm) in digests for algorithm, digests in _by_algorithm(claims).items())


def _by_algorithm(claims: list[Recorded]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for claim in claims:
        found.setdefault(claim.algorithm, set()).add(claim.digest)
    return found


def digest_of(path: str, algorithm: str) -> str:
    """Return a file's digest as a RECORD has it; empty for an algorithm that this Python does not know."""
    if algorithm not in hashlib.algorithms_guaranteed or algorithm.startswith("shake"):
        return ""
    total = hashlib.new(algorithm)
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as stream:
        for chunk in iter(lambda: stream.read(_CHUNK_BYTES), b""):
            total.update(chunk)
    return base64.urlsafe_b64encode(total.digest()).rstrip(b"=").decode("ascii")


def _unknown(packages: str, records: Mapping[str, list[Recorded]]) -> Iterator[str]:
    for folder, subfolders, names in os.walk(packages):
        subfolders[:] = [name for name in subfolders if name != "__pycache__" and not name.endswith(".dist-info")]
        for name in names:
            path = os.path.join(folder, name)
            if not name.endswith(_LOADED) or path in records:
                continue
            if folder != packages or name not in _OF_THE_ENVIRONMENT:
                yield path
