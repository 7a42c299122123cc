# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The API of a model hub: what a revision is, what it holds, and what its refusals mean.

Sources of the rules: the hub's public API documentation and the answers its own client expects (``X-Error-Code``).
Digests are taken from the API only. An ``ETag`` is whatever a cache on the way makes of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from ansible_collections.llmops.vllm.plugins.module_utils.errors import InvalidInputError, LlmopsError
from ansible_collections.llmops.vllm.plugins.module_utils.http_client import (
    Answer,
    HttpClient,
    RetryPolicy,
    TransferError,
    origin_of,
    transient,
    without_query,
)
from ansible_collections.llmops.vllm.plugins.module_utils.repo_listing import (
    GIT_SHA1,
    SHA256,
    Listing,
    RepoFile,
    is_commit,
)

_MAX_PAGES = 10_000


class Hub:
    """Questions to the hub at ``client.endpoint``."""

    def __init__(self, client: HttpClient, policy: RetryPolicy, *, has_token: bool) -> None:
        self._client = client
        self._policy = policy
        self._has_token = has_token

    def listing(self, repo: str, revision: str) -> Listing:
        """Return the commit that ``revision`` means now and all its files with sizes and digests.

        Two requests at most unless the tree has more pages: the info, and the tree where the info has no digests (a
        mirror may leave them out). Raises ``LlmopsError`` with one sentence for each way the hub can refuse.
        """
        info = self._document(self._api(repo, f"revision/{quote(revision, safe='')}?blobs=true"), repo, revision)[0]
        commit = info.get("sha") if isinstance(info, dict) else None
        siblings = info.get("siblings") if isinstance(info, dict) else None
        if not isinstance(commit, str) or not is_commit(commit):
            raise LlmopsError(f"{self._client.endpoint} names no commit for {repo} at {revision}; is it a model hub?")
        if is_commit(revision) and commit != revision:
            raise LlmopsError(f"{self._client.endpoint} answered with commit {commit} when asked for {revision}.")
        files = [_from_info(item) for item in siblings] if isinstance(siblings, list) else [None]
        complete = [file for file in files if file is not None]
        if len(complete) < len(files):
            complete = self._tree(repo, commit)
        if not complete:
            raise LlmopsError(f"{repo} at {commit} on {self._client.endpoint} holds no files.")
        return Listing(repo, commit, tuple(sorted(complete, key=lambda file: file.path)))

    def file_url(self, repo: str, commit: str, path: str) -> str:
        """Return the URL at which the hub serves ``path`` (it redirects to the content)."""
        return f"{self._client.endpoint}/{repo}/resolve/{commit}/{quote(path)}"

    def refusal(self, response: Answer, repo: str, revision: str) -> LlmopsError:
        """Say in one sentence what a status of 400 and above means and what the operator can do."""
        code = response.headers.get("X-Error-Code", "")
        where = f"{repo} at {self._client.endpoint}"
        if response.foreign:
            return LlmopsError(f"{without_query(response.url)} answered {response.status} for a file of {where}.")
        if response.status == 401:
            hint = "the token given is wrong or may not read it" if self._has_token else "give a token if it is private"
            return LlmopsError(f"The hub does not show {where}: it does not exist or it is private; {hint}.")
        if response.status == 403:
            return LlmopsError(_forbidden(where, code, self._has_token))
        if response.status == 404 and code == "RevisionNotFound":
            return InvalidInputError(f"{where} has no branch, tag or commit {revision!r}; correct revision.")
        if response.status == 404 and code != "EntryNotFound":
            return InvalidInputError(f"There is no repository {where}; correct repo (org/name) or endpoint.")
        return LlmopsError(f"{without_query(response.url)} answered {response.status}{f' ({code})' if code else ''}.")

    def _api(self, repo: str, rest: str) -> str:
        return f"{self._client.endpoint}/api/models/{repo}/{rest}"

    def _document(self, url: str, repo: str, revision: str) -> tuple[Any, str | None]:
        def ask() -> tuple[Any, str | None]:
            with self._client.get(url, {"Accept": "application/json"}) as response:
                later = transient(response)
                if later:
                    raise later
                if response.status != 200:
                    raise self.refusal(response, repo, revision)
                return response.document(), response.next_page()

        return self._policy.call(ask, f"Asking {self._client.endpoint} for {repo} at {revision}")

    def _tree(self, repo: str, commit: str) -> list[RepoFile]:
        url: str | None = self._api(repo, f"tree/{commit}?recursive=true&expand=false")
        seen: set[str] = set()
        files: list[RepoFile] = []
        while url:
            if url in seen or len(seen) >= _MAX_PAGES or origin_of(url) != origin_of(self._client.endpoint):
                raise LlmopsError(f"The file list of {repo} at {commit} does not end properly at {without_query(url)}.")
            seen.add(url)
            page, url = self._document(url, repo, commit)
            if not isinstance(page, list):
                raise LlmopsError(f"{self._client.endpoint} gave no file list for {repo} at {commit}.")
            files += [_from_tree(item, repo) for item in page if not _is_directory(item)]
        return files


@dataclass(frozen=True)
class Connection:
    """A hub that can be asked, and how."""

    client: HttpClient
    hub: Hub
    policy: RetryPolicy


def expired_link(response: Answer) -> TransferError | None:
    """Return the error to retry on when a signed link is no longer accepted: the next attempt asks for a new one."""
    if response.foreign and response.status in (401, 403, 410):
        return TransferError(f"{without_query(response.url)} no longer accepts its signed link ({response.status})")
    return None


def _forbidden(where: str, code: str, has_token: bool) -> str:
    if code == "GatedRepo":
        action = "with the account of the token" if has_token else "and give a token of that account"
        return f"{where} is gated: accept its licence on the hub {action}."
    return f"The hub forbids access to {where}: give a token whose scope includes reading it."


def _is_directory(item: Any) -> bool:
    return isinstance(item, dict) and item.get("type") == "directory"


def _from_info(item: Any) -> RepoFile | None:
    """Return the file of one ``siblings`` entry, or None when its digest or size is not there."""
    if not isinstance(item, dict):
        return None
    lfs = item.get("lfs")
    if isinstance(lfs, dict):
        return _file(item.get("rfilename"), lfs.get("size", item.get("size")), SHA256, lfs.get("sha256"))
    return _file(item.get("rfilename"), item.get("size"), GIT_SHA1, item.get("blobId"))


def _from_tree(item: Any, repo: str) -> RepoFile:
    file = None
    if isinstance(item, dict):
        lfs = item.get("lfs")
        if isinstance(lfs, dict):
            file = _file(item.get("path"), lfs.get("size", item.get("size")), SHA256, lfs.get("oid"))
        else:
            file = _file(item.get("path"), item.get("size"), GIT_SHA1, item.get("oid"))
    if file is None:
        raise LlmopsError(f"The hub lists a file of {repo} without size or digest: {str(item)[:200]!r}.")
    return file


def _file(path: Any, size: Any, algorithm: str, digest: Any) -> RepoFile | None:
    if not isinstance(size, int) or not isinstance(digest, str):
        return None
    return RepoFile(path, size, algorithm, digest.partition("sha256:")[2] or digest)
