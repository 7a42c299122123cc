# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The list of files that an operator gives in place of a hub's answer, for hosts that reach none.

It is ``{"commit": ..., "files": [{"path": ..., "size": ..., "sha256": ...}]}``, or ``git_sha1`` in place of ``sha256``
as the hub has it for small files. The manifest in a snapshot of another host (``.llmops/manifest.json``) is one too.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping
from typing import Any

from ansible_collections.llmops.vllm.plugins.module_utils.errors import InvalidInputError, LlmopsError
from ansible_collections.llmops.vllm.plugins.module_utils.repo_listing import (
    GIT_SHA1,
    SHA256,
    Listing,
    RepoFile,
    is_commit,
)

_LONGEST_BYTES = 64 * 1024 * 1024
_DIGESTS = {"sha256": SHA256, "git_sha1": GIT_SHA1}


def read_listing(given: Any, repo: str) -> Listing:
    """Return the files of ``repo`` that ``given`` lists: a mapping, its JSON, or the absolute path of a JSON file.

    Raises ``InvalidInputError`` for whatever is not such a list.
    """
    if isinstance(given, str) and given.startswith("/"):
        return _listing(_parsed(_content(given), given), repo, given)
    if isinstance(given, str):
        given = _parsed(given, "manifest")
    return _listing(given, repo, "manifest")


def _content(path: str) -> str:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with open(descriptor, "rb") as stream:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode) or status.st_size > _LONGEST_BYTES:
                raise InvalidInputError(f"manifest {path} must be a file of at most {_LONGEST_BYTES} bytes.")
            return stream.read().decode("utf-8")
    except OSError as error:
        raise InvalidInputError(f"manifest {path} cannot be read on this host: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise InvalidInputError(f"manifest {path} is not UTF-8 text.") from error


def _parsed(text: str, name: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise InvalidInputError(
            f"{name} must be a mapping with commit and files, its JSON, or the absolute path of a file of JSON "
            f"({error})."
        ) from error


def _listing(data: Any, repo: str, name: str) -> Listing:
    if not isinstance(data, Mapping) or not isinstance(data.get("files"), list) or not data["files"]:
        raise InvalidInputError(f"{name} must be a mapping with commit and a list of files.")
    commit = data.get("commit")
    if not isinstance(commit, str) or not is_commit(commit):
        raise InvalidInputError(f"commit in {name} must be 40 hexadecimal digits, not {commit!r}.")
    if data.get("repo", repo) != repo:
        raise InvalidInputError(f"{name} lists the files of {data['repo']}, not of {repo}.")
    # What a snapshot leaves out is in its manifest all the same, so that another selection can be made from it.
    items = [*data["files"], *(data.get("others") or [])]
    try:
        files = [_file(item, name) for item in items]
        return Listing(repo, commit, tuple(sorted(files, key=lambda file: file.path)))
    except InvalidInputError:
        raise
    except LlmopsError as error:
        raise InvalidInputError(f"{name} cannot be used. {error.message}") from error


def _file(item: Any, name: str) -> RepoFile:
    if isinstance(item, Mapping):
        size = item.get("size")
        algorithm, digest = item.get("algorithm"), item.get("digest")
        for key, meaning in _DIGESTS.items():
            if key in item:
                algorithm, digest = meaning, item[key]
        if isinstance(size, int) and isinstance(algorithm, str) and isinstance(digest, str):
            return RepoFile(item.get("path", ""), size, algorithm, digest)
    raise InvalidInputError(
        f"Each of the files in {name} needs path, size and sha256 (or git_sha1), not {str(item)[:200]}."
    )
