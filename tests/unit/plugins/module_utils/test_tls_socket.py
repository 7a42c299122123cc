"""Against a real server of ``ssl``: the same bytes, the same refusals."""

from __future__ import annotations

import os
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from ansible_collections.llmops.vllm.plugins.module_utils import tls_socket
from ansible_collections.llmops.vllm.plugins.module_utils.tls_socket import TlsSocket, read_ahead

MUCH = tls_socket._MUCH_BYTES
Handler = Callable[[ssl.SSLSocket], None]


class Server:
    def __init__(self, folder: Path) -> None:
        cert, key = folder / "cert.pem", folder / "key.pem"
        command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 1 -subj /CN=a"
        name = ["-addext", "subjectAltName=DNS:hub.example.com,IP:127.0.0.1"]
        subprocess.run([*command.split(), *name, "-keyout", key, "-out", cert], check=True, capture_output=True)
        self.certificate = str(cert)
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(cert, key)
        self.errors: list[BaseException] = []
        self._threads: list[threading.Thread] = []

    def serve(self, handler: Handler) -> socket.socket:
        """Let one connection be handled; return the client's end of it."""
        with socket.create_server(("127.0.0.1", 0)) as listening:
            ours = socket.create_connection(listening.getsockname())
            theirs, _address = listening.accept()

        def run() -> None:
            with theirs:
                try:
                    with self._context.wrap_socket(theirs, server_side=True, suppress_ragged_eofs=False) as connection:
                        handler(connection)
                except (OSError, ssl.SSLError) as error:
                    self.errors.append(error)

        self._threads.append(threading.Thread(target=run, daemon=True))
        self._threads[-1].start()
        ours.settimeout(5.0)
        return ours

    def connect(self, handler: Handler, name: str = "hub.example.com", trust: bool = True) -> TlsSocket:
        context = ssl.create_default_context(cafile=self.certificate if trust else None)
        connection: TlsSocket = read_ahead(context).wrap_socket(self.serve(handler), server_hostname=name)  # type: ignore
        return connection

    def close(self) -> None:
        for thread in self._threads:
            thread.join(5.0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tls")


@pytest.fixture
def server(folder: Path) -> Iterator[Server]:
    running = Server(folder)
    yield running
    running.close()


def read_all(connection: TlsSocket, step: int) -> bytes:
    buffer, result = bytearray(step), b""
    while count := connection.recv_into(buffer):
        result += bytes(buffer[:count])
    connection.close()
    return result


@pytest.mark.parametrize("step", [1000, 16_384, 1_000_000])
@pytest.mark.parametrize("piece", [1, 5_000, 300_000])
def test_what_the_server_sent_is_what_arrives(server: Server, step: int, piece: int) -> None:
    data = os.urandom(piece * (3 if piece > 1 else 50))

    def handler(connection: ssl.SSLSocket) -> None:
        for start in range(0, len(data), piece):
            connection.sendall(data[start : start + piece])
        connection.unwrap()

    assert read_all(server.connect(handler), step) == data


def test_one_call_returns_all_records_that_have_arrived(server: Server) -> None:
    data, arrived = os.urandom(60_000), threading.Event()

    def handler(connection: ssl.SSLSocket) -> None:
        connection.sendall(b"x")
        connection.sendall(data)
        arrived.set()

    connection = server.connect(handler)
    buffer = bytearray(MUCH)
    assert arrived.wait(5.0)
    assert connection.recv_into(buffer) == 60_001 and buffer[:60_001] == b"x" + data
    assert connection.gettimeout() == 5.0
    connection.close()


def test_a_large_read_waits_until_much_has_arrived(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls_socket, "_MOMENT_MILLISECONDS", 5_000)

    def handler(connection: ssl.SSLSocket) -> None:
        connection.sendall(b"x" * 1000)
        time.sleep(0.1)
        connection.sendall(b"y" * MUCH)

    connection = server.connect(handler)
    buffer = bytearray(4 * MUCH)
    assert connection.recv_into(buffer) > 1000
    connection.close()


def test_a_large_read_does_not_wait_for_what_does_not_come(server: Server) -> None:
    release = threading.Event()

    def handler(connection: ssl.SSLSocket) -> None:
        connection.sendall(b"x" * 1000)
        release.wait(5.0)

    connection = server.connect(handler)
    began = time.monotonic()
    assert connection.recv_into(bytearray(4 * MUCH)) == 1000
    assert time.monotonic() - began < 2.0
    release.set()
    connection.close()


def test_what_is_sent_is_what_the_server_gets(server: Server) -> None:
    data, got = os.urandom(500_000), bytearray()

    def handler(connection: ssl.SSLSocket) -> None:
        while len(got) < len(data):
            got.extend(connection.recv(65_536))
        connection.sendall(b"thanks")

    connection = server.connect(handler)
    connection.sendall(data)
    with connection.makefile("rb") as stream:
        assert stream.read(6) == b"thanks"
    assert got == data
    connection.close()


def test_a_stream_that_is_cut_off_ends_as_one_of_ssl_does(server: Server) -> None:
    def handler(connection: ssl.SSLSocket) -> None:
        connection.sendall(b"begin")
        connection.shutdown(socket.SHUT_RDWR)

    assert read_all(server.connect(handler), 100) == b"begin"


def test_silence_is_a_timeout(server: Server) -> None:
    release = threading.Event()
    connection = server.connect(lambda _connection: release.wait(5.0) and None)
    connection.settimeout(0.05)
    assert connection.gettimeout() == 0.05
    with pytest.raises(OSError, match="timed out"):
        connection.recv(1)
    release.set()
    connection.close()


def test_a_broken_record_is_an_error(server: Server) -> None:
    ready = threading.Event()

    def handler(connection: ssl.SSLSocket) -> None:
        connection.sendall(b"fine")
        ready.wait(5.0)
        os.write(connection.fileno(), b"\x17\x03\x03\x00\x20" + os.urandom(32))

    connection = server.connect(handler)
    assert connection.recv(4) == b"fine"
    ready.set()
    with pytest.raises(ssl.SSLError):
        while connection.recv(100):
            pass
    connection.close()


def test_what_came_before_a_broken_record_is_not_lost(server: Server) -> None:
    def handler(connection: ssl.SSLSocket) -> None:
        connection.sendall(b"f" * 1000)
        os.write(connection.fileno(), b"\x17\x03\x03\x00\x20" + os.urandom(32))

    connection = server.connect(handler)
    buffer, got = bytearray(MUCH), 0
    with pytest.raises(ssl.SSLError, match=r"(?i)mac|decrypt"):
        while count := connection.recv_into(buffer):
            got += count
    assert got == 1000
    connection.close()


@pytest.mark.parametrize(("name", "trust"), [("hub.example.com", False), ("other.example.com", True)])
def test_a_certificate_that_does_not_fit_ends_the_handshake_and_the_server_hears_why(
    server: Server, name: str, trust: bool
) -> None:
    with pytest.raises(ssl.SSLCertVerificationError):
        server.connect(lambda connection: connection.recv(1) and None, name, trust)
    server.close()
    assert any("ALERT" in str(error).upper() for error in server.errors)


def test_the_certificate_of_the_server_is_known(server: Server) -> None:
    connection = server.connect(lambda connection: connection.recv(1) and None)
    assert ("DNS", "hub.example.com") in connection.getpeercert()["subjectAltName"]
    assert connection.getpeercert(True) and connection.version() in ("TLSv1.2", "TLSv1.3") and connection.cipher()
    connection.close()


def test_a_file_keeps_the_connection_open_until_it_is_closed_too(server: Server) -> None:
    def handler(connection: ssl.SSLSocket) -> None:
        connection.sendall(b"late")

    connection = server.connect(handler)
    stream = connection.makefile("rb")
    connection.close()
    assert stream.read(4) == b"late"
    descriptor = connection.fileno()
    stream.close()
    assert descriptor >= 0 and connection.fileno() == -1
