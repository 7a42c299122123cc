from __future__ import annotations

import itertools

import pytest
from ansible_collections.llmops.vllm.plugins.module_utils.bandwidth import Bandwidth
from ansible_collections.llmops.vllm.plugins.module_utils.errors import InvalidInputError, LlmopsError
from ansible_collections.llmops.vllm.plugins.module_utils.http_client import (
    HttpClient,
    RetryPolicy,
    TransferError,
    check_endpoint,
    load_requests,
    origin_of,
    retry_after_seconds,
    without_query,
)
from ansible_collections.llmops.vllm.tests.unit.hub_server import COMMIT, REPO, Hub


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"Retry-After": "12"}, 12.0),
        ({"Retry-After": "Thu, 01 Jan 1970 00:02:00 GMT"}, 20.0),
        ({"Retry-After": "Thu, 01 Jan 1970 00:00:00 GMT"}, 0.0),
        ({"Retry-After": "soon"}, None),
        ({"RateLimit": '"resolvers";r=0;t=55'}, 55.0),
        ({"Retry-After": "3", "RateLimit": '"api";r=0;t=55'}, 3.0),
        ({"RateLimit": '"api";r=0;t=55, "resolvers";r=0;t=70, "pages";r=9;t=290'}, 70.0),
        ({"RateLimit": "limit"}, None),
    ],
)
def test_the_pause_that_a_server_asks_for_is_understood(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after_seconds(headers, now=lambda: 100.0) == seconds


def test_pauses_double_up_to_half_a_minute_and_are_spread() -> None:
    pauses: list[float] = []
    policy = RetryPolicy(7, sleep=pauses.append, jitter=lambda: 0.0)
    for failures in range(1, 8):
        policy.pause(failures, TransferError("it broke"))
    assert pauses == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
    RetryPolicy(1, sleep=pauses.append, jitter=lambda: 1.0).pause(3, TransferError("it broke"))
    assert pauses[-1] == 2.0


def test_a_pause_that_was_asked_for_is_kept_and_spread_by_a_tenth() -> None:
    pauses: list[float] = []
    for jitter in itertools.repeat(0.0), itertools.repeat(1.0):
        policy = RetryPolicy(1, sleep=pauses.append, jitter=jitter.__next__)
        for seconds in (5.0, 200.0, 1e9):
            policy.pause(1, TransferError("later", seconds))
    assert pauses == [5.0, 200.0, 900.0, 6.0, 220.0, 990.0]


def test_what_keeps_failing_is_reported_with_its_last_reason() -> None:
    def fail() -> None:
        raise TransferError("it broke")

    with pytest.raises(LlmopsError, match="Asking failed 3 times, the last time because it broke"):
        RetryPolicy(2, sleep=lambda _s: None, jitter=lambda: 0.0).call(fail, "Asking")


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("https://hub/a", "https://HUB:443/b?c", True),
        ("http://hub", "https://hub", False),
        ("https://hub", "https://hub:444", False),
        ("https://hub", "https://hub.evil", False),
        ("https://user@hub", "https://hub", True),
    ],
)
def test_an_origin_is_scheme_host_and_port(one: str, other: str, same: bool) -> None:
    assert (origin_of(one) == origin_of(other)) == same


def test_a_message_shows_neither_signature_nor_password() -> None:
    assert without_query("https://user:pw@cdn:1/blob?X-Amz-Signature=abc#x") == "https://cdn:1/blob"


@pytest.mark.parametrize("url", ["", "hub", "ftp://hub", "https://", "https://u:p@hub", "https://hub?x=1", "file:///x"])
def test_an_endpoint_is_a_plain_http_url(url: str) -> None:
    with pytest.raises(InvalidInputError, match="endpoint must be"):
        check_endpoint(url)
    assert check_endpoint("https://hub/mirror/") == "https://hub/mirror"


def test_a_redirect_from_https_to_http_is_not_followed() -> None:
    client = HttpClient("https://hub", requests=load_requests())
    with pytest.raises(LlmopsError, match="not as safe"):
        client._redirect_target("https://hub/x", "http://cdn/y")
    assert client._redirect_target("https://hub/x", "/y?z") == "https://hub/y?z"


def test_a_connection_is_used_again_after_a_body_was_read(hub: Hub) -> None:
    client = HttpClient(hub.endpoint, requests=load_requests())
    buffer = memoryview(bytearray(4096))
    for _turn in range(3):
        with client.get(f"{hub.endpoint}/{REPO}/resolve/main/config.json", {}) as response:
            assert response.read_into(buffer) == len(hub.files["config.json"])
    assert hub.api.connections == 1
    client.close()


def test_an_answer_knows_how_long_a_limit_held_it_back(hub: Hub) -> None:
    slept: list[float] = []
    limit = Bandwidth(100_000, monotonic=lambda: sum(slept), sleep=slept.append)
    client = HttpClient(hub.endpoint, requests=load_requests(), bandwidth=limit)
    size = len(hub.files["model-00001-of-00003.safetensors"])
    buffer = memoryview(bytearray(size))
    with client.get(f"{hub.endpoint}/{REPO}/resolve/main/model-00001-of-00003.safetensors", {}) as response:
        assert response.held_back_seconds == 0.0
        while response.read_into(buffer):
            pass
    assert response.held_back_seconds == pytest.approx(sum(slept)) and 2.7 < sum(slept) <= 3.0
    client.close()


def test_a_document_is_read_whole_however_large(hub: Hub) -> None:
    hub.page_size = 10_000
    hub.files.update({f"model-{number:05d}-of-02000.safetensors": b"" for number in range(2000)})
    client = HttpClient(hub.endpoint, requests=load_requests())
    for _turn in range(2):
        with client.get(f"{hub.endpoint}/api/models/{REPO}/tree/{COMMIT}?recursive=true", {}) as response:
            assert int(response.headers["Content-Length"]) > 300_000
            assert len(response.document()) == len(hub.tree_entries())
    client.close()


def test_a_proxy_of_the_environment_is_used_and_no_proxy_respected(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", hub.endpoint)
    client = HttpClient("http://hub.invalid", requests=load_requests())
    with client.get("http://hub.invalid/x/y/resolve/main/z", {}) as response:
        assert response.status == 404
    assert hub.log[-1][1].startswith("http://hub.invalid/")
    monkeypatch.setenv("no_proxy", "hub.invalid")
    with pytest.raises(TransferError, match="cannot be resolved"):
        client.get("http://hub.invalid/x", {})
    client.close()
