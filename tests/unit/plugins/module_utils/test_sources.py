from __future__ import annotations

import hashlib
from collections import Counter
from typing import Any

from ansible_collections.llmops.vllm.plugins.module_utils.credentials import basic, bearer
from ansible_collections.llmops.vllm.plugins.module_utils.http_client import RetryPolicy
from ansible_collections.llmops.vllm.plugins.module_utils.hub import Connection
from ansible_collections.llmops.vllm.plugins.module_utils.repo_listing import Listing, RepoFile
from ansible_collections.llmops.vllm.plugins.module_utils.sources import SourceSet, parse_sources

FILES = tuple(
    RepoFile(f"model-{i:05d}.safetensors", 10**9, "sha256", hashlib.sha256(bytes([i])).hexdigest()) for i in range(119)
)
LISTING = Listing("acme/m", "0" * 40, FILES)
PEERS = [f"http://gpu-{number}:8088" for number in range(8)]


class Client:
    """As much of a client as the choice of sources needs."""

    requests_made = 0

    def __init__(self, endpoint: str = "http://hub", given: dict[str, Any] | None = None) -> None:
        self.endpoint = endpoint
        self.given = {} if given is None else given

    def sibling(self, endpoint: str, credential: Any) -> Client:
        self.given[endpoint] = credential
        return Client(endpoint)

    def close(self) -> None:
        pass


def sources(host: str, items: list[dict[str, Any]], given: dict[str, Any] | None = None) -> SourceSet:
    policy = RetryPolicy(5, sleep=lambda _seconds: None, jitter=lambda: 0.0)
    client: Any = Client(given=given)
    connection = Connection(client, client, policy)
    return SourceSet(parse_sources(items), LISTING, connect=lambda: connection, host=host)


def test_groups_are_tried_in_order_and_peers_by_turns() -> None:
    found = sources(
        "me", [{"type": "peers", "urls": PEERS}, {"type": "mirror", "url": "http://m/{repo}"}, {"type": "hub"}]
    )
    first: Counter[str] = Counter()
    for file in FILES:
        order = [source.location for source in found.of(file)]
        assert sorted(order[:8]) == PEERS and order[8:] == ["http://m/acme/m", "http://hub"]
        assert order == [source.location for source in found.of(file)]
        first[order[0]] += 1
    assert len(first) == 8 and max(first.values()) < 40


def test_hosts_of_a_fleet_begin_with_other_files() -> None:
    swarm = [{"type": "peers", "urls": PEERS}, {"type": "hub"}]
    begins = {min(FILES, key=sources(f"host-{number}", swarm).order).path for number in range(16)}
    assert len(begins) > 8
    assert min(FILES, key=sources("x", [{"type": "hub"}]).order).path == FILES[0].path


def test_another_peer_is_not_waited_for_long_but_a_mirror_is() -> None:
    found = sources("me", [{"type": "peers", "urls": PEERS[:1]}, {"type": "mirror", "url": "http://m"}])
    assert [source.policy.retries for source in found.of(FILES[0])] == [1, 5]


def test_credentials_belong_to_one_source_and_a_warning_names_what_is_sent_in_clear() -> None:
    given: dict[str, Any] = {}
    found = sources(
        "me",
        [
            {"type": "peers", "urls": ["https://gpu-1", "http://gpu-2:1", "http://gpu-3:1"], "token": "s3cret"},
            {"type": "mirror", "url": "https://m", "username": "u", "password": "s3cret"},
            {"type": "mirror", "url": "http://open"},
            {"type": "hub"},
        ],
        given,
    )
    assert found.warnings() == ["The credentials of the source http://gpu-2:1 are sent without encryption; use https."]
    assert given["https://gpu-1"] == given["http://gpu-3:1"] == bearer("s3cret")
    assert given["https://m"] == basic("u", "s3cret") and given["http://open"] is None
