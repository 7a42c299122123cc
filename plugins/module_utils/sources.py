# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The places that the files of one commit can come from, in the order in which they are tried.

What a file must be is known before any of them is asked, so none of them has to be trusted.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote

from ansible_collections.llmops.vllm.plugins.module_utils.credentials import (
    Credential,
    ReadSecret,
    read_secret,
    sends_in_clear,
    source_credential,
)
from ansible_collections.llmops.vllm.plugins.module_utils.errors import InvalidInputError, LlmopsError
from ansible_collections.llmops.vllm.plugins.module_utils.file_source import Source, SourceError, Usage
from ansible_collections.llmops.vllm.plugins.module_utils.http_client import (
    Answer,
    HttpClient,
    RetryPolicy,
    check_endpoint,
    without_query,
)
from ansible_collections.llmops.vllm.plugins.module_utils.hub import Connection, Hub
from ansible_collections.llmops.vllm.plugins.module_utils.local_source import COPY, LocalDirectory
from ansible_collections.llmops.vllm.plugins.module_utils.repo_listing import Listing, RepoFile

HUB = "hub"
MIRROR = "mirror"
PEERS = "peers"
DIRECTORY = "directory"
BLOBS = "blobs"
_PLACEHOLDER = re.compile(r"\{([^}]*)\}")
_PEER_RETRIES = 1


@dataclass(frozen=True)
class SourceSpec:
    """One entry of the option ``sources``: its kind, its URLs or its path, and what makes its credential."""

    kind: str = HUB
    places: tuple[str, ...] = ()
    layout: str = "repo"
    link: str = COPY
    credential: Callable[[], Credential | None] = lambda: None


def parse_sources(items: Sequence[Mapping[str, Any]] | None, read: ReadSecret = read_secret) -> tuple[SourceSpec, ...]:
    """Return the sources that the option means; none given means the hub. Raises ``InvalidInputError``.

    Files with credentials are read with ``read``, when the source is needed.
    """
    if items is None:
        return (SourceSpec(),)
    if not items:
        raise InvalidInputError("sources must name at least one source.")
    return tuple(replace(_parsed(item), credential=source_credential(item, read)) for item in items)


def shares_bytes(specs: Sequence[SourceSpec]) -> bool:
    """Whether the first source's files are linked into the store, so that they need no room there."""
    return specs[0].kind == DIRECTORY and specs[0].link != COPY


def _parsed(item: Mapping[str, Any]) -> SourceSpec:
    kind = item["type"]
    if kind == DIRECTORY:
        path = str(item.get("path") or "")
        if not path.startswith("/"):
            raise InvalidInputError(f"The path of a source of type directory must be absolute, not {path!r}.")
        return SourceSpec(kind, (path,), link=item.get("link") or COPY)
    urls = item.get("urls") if kind == PEERS else [item["url"]] if item.get("url") else []
    if not urls and kind != HUB:
        raise InvalidInputError(f"A source of type {kind} needs {'urls' if kind == PEERS else 'url'}.")
    return SourceSpec(kind, tuple(_checked_url(url) for url in urls or ()), layout=item.get("layout") or "repo")


def _checked_url(url: str) -> str:
    unknown = set(_PLACEHOLDER.findall(url)) - {"repo", "commit"}
    try:
        if unknown:
            raise InvalidInputError(f"{{{unknown.pop()}}} in {without_query(url)} is not known")
        return check_endpoint(url)
    except InvalidInputError as error:
        raise InvalidInputError(
            "The URL of a source must be an http(s) URL without user, query and fragment, with no other placeholders "
            f"than {{repo}} and {{commit}}, not {without_query(url)!r}."
        ) from error


class SourceSet:
    """The sources of one run for the files of ``listing``.

    ``connect`` is called only for sources that need HTTP. ``host`` is this host's own name: it makes every host of a
    fleet ask its peers, and begin with the files, in another order, so that each file leaves the hub about once.
    """

    def __init__(
        self,
        specs: Iterable[SourceSpec],
        listing: Listing,
        *,
        connect: Callable[[], Connection],
        host: str,
    ) -> None:
        self._listing = listing
        self._connect = connect
        self._host = host
        self._clients: list[HttpClient] = []
        self._in_clear: list[str] = []
        self._groups = [self._group(spec) for spec in specs]
        self._swarm = any(group[0].kind == PEERS for group in self._groups)

    def of(self, file: RepoFile) -> list[Source]:
        """Return the sources of ``file`` in the order in which they are to be tried."""
        return [source for group in self._groups for source in sorted(group, key=lambda item: self._rank(file, item))]

    def order(self, file: RepoFile) -> tuple[int, str]:
        """Return the sort key of ``file``: large files first, among peers every host in an order of its own."""
        if self._swarm:
            return -file.size.bit_length(), _hash(file.digest, self._host)
        return -file.size, file.path

    @property
    def requests(self) -> int:
        """Number of HTTP requests made to others than the hub's own endpoint."""
        return sum(client.requests_made for client in self._clients)

    def used(self) -> list[dict[str, Any]]:
        """Return type, location, files and bytes of every source that gave something or was given up."""
        return [source.usage.as_result(source.kind, source.location) for source in self._all() if source.usage.noted]

    def warnings(self) -> list[str]:
        """Return a sentence for each source that was given up, and for what is sent without encryption."""
        return self._in_clear + [
            f"{source.location} was skipped for the rest of the run: {source.usage.down}"
            for source in self._all()
            if source.usage.down
        ]

    def close(self) -> None:
        """Close the clients that were made here."""
        for client in self._clients:
            client.close()

    def _all(self) -> list[Source]:
        return [source for group in self._groups for source in group]

    def _rank(self, file: RepoFile, source: Source) -> str:
        return _hash(file.digest, source.location, self._host)

    def _group(self, spec: SourceSpec) -> list[Source]:
        if spec.kind == DIRECTORY:
            return [LocalDirectory(spec.places[0], spec.link).source()]
        connection, credential = self._connect(), spec.credential()
        if credential:
            self._in_clear += [_in_clear(place) for place in spec.places if sends_in_clear(place)][:1]
        if spec.kind == HUB:
            return [self._hub(connection, spec, credential)]
        return [self._web(connection, spec, place, credential) for place in spec.places]

    def _hub(self, connection: Connection, spec: SourceSpec, credential: Credential | None) -> Source:
        client, hub, listing = connection.client, connection.hub, self._listing
        if spec.places:
            client = self._sibling(connection, spec.places[0], credential)
            hub = Hub(client, connection.policy, has_token=credential is not None)

        def ask(file: RepoFile, headers: Mapping[str, str], conditions: Mapping[str, str]) -> Answer:
            return client.get(hub.file_url(listing.repo, listing.commit, file.path), headers, conditions)

        def refusal(answer: Answer) -> LlmopsError:
            return hub.refusal(answer, listing.repo, listing.commit)

        return Source(HUB, client.endpoint, connection.policy, ask, refusal)

    def _web(self, connection: Connection, spec: SourceSpec, place: str, credential: Credential | None) -> Source:
        client, usage = self._sibling(connection, place, credential), Usage()
        by_digest = spec.kind == PEERS or spec.layout == BLOBS

        def ask(file: RepoFile, headers: Mapping[str, str], conditions: Mapping[str, str]) -> Answer:
            rest = f"{BLOBS}/{file.digest}" if by_digest else quote(file.path)
            return client.get(f"{client.endpoint}/{rest}", headers, conditions)

        def refusal(answer: Answer) -> LlmopsError:
            error = _refused(answer, credential is not None)
            if answer.status == 401 and not answer.foreign:
                usage.down = error.message  # it will say so for every file
            return error

        policy = _patience(connection.policy, spec.kind)
        return Source(spec.kind, client.endpoint, policy, ask, refusal, usage=usage)

    def _sibling(self, connection: Connection, place: str, credential: Credential | None) -> HttpClient:
        endpoint = place.replace("{repo}", self._listing.repo).replace("{commit}", self._listing.commit)
        client = connection.client.sibling(endpoint, credential)
        self._clients.append(client)
        return client


def _patience(policy: RetryPolicy, kind: str) -> RetryPolicy:
    """Return how often to try again: another peer is as good, so none is waited for long."""
    if kind != PEERS:
        return policy
    return RetryPolicy(min(policy.retries, _PEER_RETRIES), policy.sleep, policy.jitter)


def _in_clear(place: str) -> str:
    return f"The credentials of the source {place} are sent without encryption; use https."


def _refused(answer: Answer, has_credential: bool) -> LlmopsError:
    where = without_query(answer.url)
    if answer.status in (404, 410):
        return SourceError(f"{where} is not there ({answer.status}).")
    if answer.status in (401, 403) and not answer.foreign:
        hint = "its credentials are wrong or may not read it" if has_credential else "it may want credentials"
        return SourceError(f"{where} does not let this host in ({answer.status}): {hint}.")
    return SourceError(f"{where} answered {answer.status}.")


def _hash(*words: str) -> str:
    return hashlib.sha256("\n".join(words).encode()).hexdigest()
