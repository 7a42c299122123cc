"""A forward proxy on loopback that notes what went through it."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit


class Proxy(ThreadingHTTPServer):
    """Passes on requests (http) and tunnels (https), or refuses all with ``status``."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, status: int = 0) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.status = status
        self.seen: list[str] = []
        self.thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self.thread.start()

    @property
    def authority(self) -> str:
        """Return host and port."""
        return f"127.0.0.1:{self.server_address[1]}"

    def close(self) -> None:
        """Stop serving."""
        self.shutdown()
        self.thread.join()
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    server: Proxy

    def log_message(self, *_arguments: object) -> None:
        """Say nothing."""

    def do_CONNECT(self) -> None:
        if self._refused():
            return
        host, _, port = self.path.partition(":")
        with socket.create_connection((host, int(port))) as upstream:
            self.send_response(200)
            self.end_headers()
            self._tunnel(upstream)

    def do_GET(self) -> None:
        if self._refused():
            return
        url = urlsplit(self.path)
        with socket.create_connection((url.hostname, url.port)) as upstream:
            headers = "".join(f"{k}: {v}\r\n" for k, v in self.headers.items() if k.lower() != "connection")
            query = f"?{url.query}" if url.query else ""
            request = f"GET {url.path}{query} HTTP/1.1\r\n{headers}Connection: close\r\n\r\n"
            upstream.sendall(request.encode())
            # The client would otherwise use the connection again, at times just before it sees that it is closed.
            status = _until_line_end(upstream)
            self.connection.sendall(status + b"Connection: close\r\n")
            _copy(upstream, self.connection)
        self.close_connection = True

    def _refused(self) -> bool:
        self.server.seen.append(self.path)
        if self.server.status:
            self.send_response(self.server.status)
            self.send_header("Content-Length", "0")
            self.end_headers()
        return bool(self.server.status)

    def _tunnel(self, upstream: socket.socket) -> None:
        back = threading.Thread(target=_copy, args=(upstream, self.connection), daemon=True)
        back.start()
        _copy(self.connection, upstream)
        back.join()
        self.close_connection = True


def _until_line_end(source: socket.socket) -> bytes:
    line = b""
    while not line.endswith(b"\n") and (byte := source.recv(1)):
        line += byte
    return line


def _copy(source: socket.socket, destination: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(256 * 1024):
            destination.sendall(data)
    with suppress(OSError):
        destination.shutdown(socket.SHUT_WR)
