"""Proxies and certificates, with real sockets: nothing here may show a password or trust too much."""

from __future__ import annotations

import base64
import gc
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from ansible_collections.llmops.vllm.plugins.module_utils.bandwidth import Bandwidth
from ansible_collections.llmops.vllm.plugins.module_utils.credentials import bearer
from ansible_collections.llmops.vllm.plugins.module_utils.errors import InvalidInputError, LlmopsError
from ansible_collections.llmops.vllm.plugins.module_utils.http_client import HttpClient, TransferError, load_requests
from ansible_collections.llmops.vllm.plugins.module_utils.http_session import Sessions, check_proxy
from ansible_collections.llmops.vllm.tests.unit.hub_server import REPO, Hub, make_files

CONFIG = f"{REPO}/resolve/main/config.json"


class Proxy:
    """Answers every connection with ``status``; a CONNECT with 200 leads to ``target``."""

    def __init__(self, status: int = 200) -> None:
        self.status = status
        self.heads: list[str] = []
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.host = f"127.0.0.1:{self._socket.getsockname()[1]}"
        self.url = f"http://user:geheim@{self.host}"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _peer = self._socket.accept()
            except OSError:
                return
            self._answer(connection)

    def _answer(self, connection: socket.socket) -> None:
        head = b""
        while b"\r\n\r\n" not in head:
            head += connection.recv(4096)
        self.heads.append(head.decode())
        if head.startswith(b"CONNECT") and self.status == 200:
            connection.sendall(b"HTTP/1.1 200 go on\r\n\r\n")
            host, port = head.split()[1].decode().split(":")
            _join(connection, socket.create_connection((host, int(port))))
            return
        connection.sendall(b"HTTP/1.1 %d no\r\nContent-Length: 0\r\nConnection: close\r\n\r\n" % self.status)
        connection.close()

    def close(self) -> None:
        self._socket.close()


def _join(one: socket.socket, other: socket.socket) -> None:
    def pump(source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(65536):
                sink.sendall(data)
        except OSError:
            pass
        finally:
            source.close()
            sink.close()

    for pair in ((one, other), (other, one)):
        threading.Thread(target=pump, args=pair, daemon=True).start()


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    running = Proxy()
    yield running
    running.close()


@pytest.fixture
def tls_hub(hub: Hub, tmp_path: Path) -> Iterator[tuple[Hub, str]]:
    running, certificate = make_tls_hub(tmp_path, "IP:127.0.0.1")
    yield running, certificate
    running.close()


def make_tls_hub(folder: Path, name: str) -> tuple[Hub, str]:
    cert, key = folder / "cert.pem", folder / "key.pem"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 1 -subj /CN=127.0.0.1"
    extension = ["-addext", f"subjectAltName={name}"]
    subprocess.run([*command.split(), *extension, "-keyout", key, "-out", cert], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    return Hub(make_files(), context), str(cert)


def fetched(client: HttpClient, url: str) -> int:
    try:
        with client.get(url, {}) as response:
            response.read_into(memoryview(bytearray(4096)))
            return response.status
    finally:
        client.close()


def test_a_given_proxy_is_asked_with_its_own_credentials(hub: Hub, proxy: Proxy) -> None:
    client = HttpClient("http://hub.invalid", requests=load_requests(), credential=bearer("hf_secret"), proxy=proxy.url)
    assert fetched(client, "http://hub.invalid/x") == 200
    expected = base64.b64encode(b"user:geheim").decode()
    assert f"Proxy-Authorization: Basic {expected}" in proxy.heads[0]


def test_a_given_proxy_is_not_used_for_hosts_in_no_proxy(
    hub: Hub, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    assert (
        fetched(HttpClient(hub.endpoint, requests=load_requests(), proxy=proxy.url), f"{hub.endpoint}/{CONFIG}") == 200
    )
    assert proxy.heads == []


def test_a_given_proxy_comes_before_that_of_the_environment(
    hub: Hub, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    assert (
        fetched(HttpClient("http://hub.invalid", requests=load_requests(), proxy=proxy.url), "http://hub.invalid")
        == 200
    )


def test_tls_goes_through_the_proxy_unseen(tls_hub: tuple[Hub, str], proxy: Proxy) -> None:
    hub, certificate = tls_hub
    client = HttpClient(
        hub.endpoint, requests=load_requests(), credential=bearer("hf_secret"), ca_path=certificate, proxy=proxy.url
    )
    assert fetched(client, f"{hub.endpoint}/{CONFIG}") == 200
    assert proxy.heads[0].startswith("CONNECT 127.0.0.1:") and "hf_secret" not in "".join(proxy.heads)


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize(("scheme", "status"), [("https", 403), ("https", 407), ("http", 407)])
def test_a_proxy_that_refuses_is_named_without_its_password(
    hub: Hub, scheme: str, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy = Proxy(status)
    monkeypatch.setenv(f"{scheme}_proxy", proxy.url)
    client = HttpClient(f"{scheme}://hub.invalid", requests=load_requests())
    with pytest.raises(
        LlmopsError, match=f"The proxy {proxy.host} does not lead to hub.invalid .status {status}"
    ) as caught:
        client.get(f"{scheme}://hub.invalid/x", {})
    assert "geheim" not in caught.value.message
    proxy.close()
    client.close()
    del caught
    gc.collect()  # http.client of Python 3.9 leaves the socket of a refused CONNECT to it


def test_a_proxy_that_fails_may_be_asked_again(hub: Hub) -> None:
    proxy = Proxy(503)
    client = HttpClient("https://hub.invalid", requests=load_requests(), proxy=proxy.url)
    with pytest.raises(TransferError, match="the proxy refused or failed") as caught:
        client.get("https://hub.invalid/x", {})
    assert "geheim" not in caught.value.reason
    proxy.close()
    client.close()


@pytest.mark.parametrize(
    "url",
    ["proxy:3128", "socks5://p:1080", "http://", "http://user:geheim@p:port", "http://user:geheim@p/x", "http://p?x"],
)
def test_a_proxy_that_is_none_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(InvalidInputError, match=r"proxy must be an http\(s\) URL") as caught:
        check_proxy(url)
    assert "geheim" not in caught.value.message


@pytest.mark.parametrize("url", ["http://p:3128", "https://user:geheim@p:1/", "http://[::1]:3128"])
def test_a_proxy_is_an_http_url(url: str) -> None:
    assert check_proxy(url) == url


def test_netrc_is_not_read(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    netrc = tmp_path / ".netrc"
    netrc.write_text("machine 127.0.0.1 login somebody password else\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(netrc))
    hub.token = "hf_secret"
    client = HttpClient(hub.endpoint, requests=load_requests(), credential=bearer("hf_secret"))
    assert fetched(client, f"{hub.endpoint}/{CONFIG}") == 200
    assert hub.log[0][2]["Authorization"] == "Bearer hf_secret"


def test_a_certificate_for_another_name_is_not_accepted(hub: Hub, tmp_path: Path) -> None:
    other, certificate = make_tls_hub(tmp_path, "DNS:hub.example.com")
    client = HttpClient(other.endpoint, requests=load_requests(), ca_path=certificate)
    with pytest.raises((LlmopsError, TransferError), match=r"cannot be verified|TLS connection failed"):
        client.get(f"{other.endpoint}/{CONFIG}", {})
    client.close()
    other.close()


def test_the_ca_of_the_environment_is_used(tls_hub: tuple[Hub, str], monkeypatch: pytest.MonkeyPatch) -> None:
    hub, certificate = tls_hub
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", certificate)
    assert fetched(HttpClient(hub.endpoint, requests=load_requests()), f"{hub.endpoint}/{CONFIG}") == 200


def test_a_given_ca_is_the_only_one_trusted(
    tls_hub: tuple[Hub, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub, certificate = tls_hub
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", certificate)
    (tmp_path / "other").mkdir()
    other, other_certificate = make_tls_hub(tmp_path / "other", "IP:127.0.0.1")
    client = HttpClient(hub.endpoint, requests=load_requests(), ca_path=other_certificate)
    with pytest.raises(LlmopsError, match="cannot be verified"):
        client.get(f"{hub.endpoint}/{CONFIG}", {})
    client.close()
    other.close()


@pytest.mark.parametrize(("content", "reason"), [(None, "does not exist"), ("no certificate", "holds no certificate")])
def test_a_ca_bundle_that_is_none_is_bad_input(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str | None, reason: str
) -> None:
    path = tmp_path / "ca.pem"
    if content:
        path.write_text(content)
    with pytest.raises(InvalidInputError, match=f"{path} {reason}.*correct ca_path"):
        Sessions(load_requests(), ca_path=str(path))
    monkeypatch.setenv("CURL_CA_BUNDLE", str(path))
    with pytest.raises(InvalidInputError, match=f"{path} {reason}.*correct CURL_CA_BUNDLE"):
        Sessions(load_requests())


def test_a_sibling_has_proxy_and_ca_but_no_token(tls_hub: tuple[Hub, str], proxy: Proxy) -> None:
    hub, certificate = tls_hub
    client = HttpClient(
        "https://hub", requests=load_requests(), credential=bearer("t"), ca_path=certificate, proxy=proxy.url
    )
    assert fetched(client.sibling(hub.endpoint), f"{hub.endpoint}/{CONFIG}") == 200
    assert proxy.heads and "Authorization" not in hub.log[0][2]


def test_a_limited_body_comes_in_small_pieces_at_the_rate(hub: Hub) -> None:
    slept: list[float] = []
    bandwidth = Bandwidth(100_000, monotonic=lambda: 0.0, sleep=slept.append)
    client = HttpClient(hub.endpoint, requests=load_requests(), bandwidth=bandwidth)
    buffer, pieces = memoryview(bytearray(1024 * 1024)), []
    shard = next(path for path in hub.files if path.endswith("safetensors"))
    with client.get(f"{hub.endpoint}/{REPO}/resolve/main/{shard}", {}) as response:
        while count := response.read_into(buffer):
            pieces.append(count)
    assert sum(pieces) == len(hub.files[shard]) and max(pieces) == 25_000
    assert max(slept) == pytest.approx(len(hub.files[shard]) / 100_000)
    client.close()
