"""A model hub on loopback for tests: API and content network on two origins, with faults on demand."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import socket
import ssl
import struct
import threading
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Union
from urllib.parse import quote, unquote, urlsplit

REPO = "acme/tiny-model"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
TOKEN = "hf_secret"
SIGNATURE = "5ignedBy7he5ignature"


# A name that the handlers know, a status, or a function that answers in their place: it takes the handler and the body.
Kind = Union[str, Callable[[Any, bytes], None]]
ALWAYS = 10**9
_PIECE_BYTES = 128 * 1024


@dataclass
class Fault:
    kind: Kind
    path: str | None
    left: int


@lru_cache(maxsize=64)
def sha256_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@lru_cache(maxsize=64)
def git_sha1(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def flipped(data: bytes) -> bytes:
    position = len(data) // 2
    return data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :]


def make_files(shards: int = 3, shard_bytes: int = 300_000) -> dict[str, bytes]:
    files = {"config.json": b'{"model_type": "tiny"}\n', ".gitattributes": b"*.safetensors filter=lfs\n", "empty": b""}
    for number in range(1, shards + 1):
        seed = hashlib.sha256(str(number).encode()).digest()
        data = (seed * (shard_bytes // len(seed) + 1))[:shard_bytes]
        files[f"model-{number:05d}-of-{shards:05d}.safetensors"] = data
    return files


class Hub:
    """``files`` is what the repository holds; ``fault()`` breaks one answer of info, tree, resolve, cache or cdn."""

    def __init__(self, files: dict[str, bytes], tls: ssl.SSLContext | None = None) -> None:
        self.files = files
        self.tls = tls
        self.names: dict[str, str] = {}  # path -> name that the API tells instead
        self.refs = {"main": COMMIT, "v1.0": COMMIT, COMMIT: COMMIT, "refs/pr/1": COMMIT}
        self.token: str | None = None
        self.gated = False
        self.info_has_digests = True
        self.page_size = 2
        self.chunked = False  # as a mirror does that knows neither ranges nor lengths
        self.log: list[tuple[str, str, dict[str, str]]] = []
        self.faults: dict[str, list[Fault]] = defaultdict(list)
        self.truncate_after = 100_000
        self.sent_bytes = 0  # of file content
        self.gate = Gate()
        self.lock = threading.Lock()
        self.others: list[_Server] = []
        self.api = _Server(self, _Api)
        self.cdn = _Server(self, _Cdn)

    @property
    def endpoint(self) -> str:
        return self.api.url

    def fault(self, where: str, kind: Kind, times: int = 1, path: str | None = None) -> None:
        self.faults[where].append(Fault(kind, path, times))

    def take(self, where: str, path: str | None = None) -> Kind | None:
        with self.lock:
            for fault in self.faults[where]:
                if fault.left and fault.path in (None, path):
                    fault.left -= 1
                    return fault.kind
        return None

    def requests_to(self, where: str) -> list[tuple[str, str, dict[str, str]]]:
        return [entry for entry in self.log if entry[0] == where]

    def is_lfs(self, path: str) -> bool:
        return path.endswith(".safetensors")

    def digest_of(self, path: str) -> str:
        return (sha256_of if self.is_lfs(path) else git_sha1)(self.files[path])

    def named(self, digest: str) -> str | None:
        return next((path for path in self.files if self.digest_of(path) == digest), None)

    def tree_entries(self) -> list[dict[str, Any]]:
        entries: list[dict[str, Any]] = [{"type": "directory", "oid": "0" * 40, "size": 0, "path": "dir"}]
        for path, data in self.files.items():
            entry: dict[str, Any] = {"type": "file", "oid": git_sha1(data), "size": len(data), "path": path}
            if self.is_lfs(path):
                entry["lfs"] = {"oid": sha256_of(data), "size": len(data), "pointerSize": 130}
            entries.append(entry)
        return entries

    def other_origin(self) -> _Server:
        """Serve the content from one more origin."""
        self.others.append(_Server(self, _Cdn))
        return self.others[-1]

    def close(self) -> None:
        self.gate.open(hang_up=True)
        for other in self.others:
            other.stop()
        self.api.stop()
        self.cdn.stop()


class Gate:
    """Lets a number of bytes of content through and holds the rest back until it is opened."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self._opened = threading.Event()
        self._after_bytes = ALWAYS
        self._hang_up = False

    def close_after(self, size: int) -> None:
        self.reached.clear()
        self._opened.clear()
        self._after_bytes = size

    def open(self, hang_up: bool = False) -> None:
        """Let everything through again, but end the connections that are held back if ``hang_up``."""
        self._hang_up = hang_up
        self._after_bytes = ALWAYS
        self._opened.set()

    def pass_through(self, sent_bytes: int) -> None:
        if sent_bytes >= self._after_bytes:
            self.reached.set()
            self._opened.wait()
            if self._hang_up:
                raise ConnectionAbortedError


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, hub: Hub, handler: type[BaseHTTPRequestHandler]) -> None:
        super().__init__(("127.0.0.1", 0), handler)
        self.hub = hub
        self.connections = 0
        self.url = f"{'https' if hub.tls else 'http'}://127.0.0.1:{self.server_address[1]}"
        self.thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self.thread.start()

    def get_request(self) -> Any:
        self.connections += 1
        connection, peer = super().get_request()
        if self.hub.tls:
            connection = self.hub.tls.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
        return connection, peer

    def stop(self) -> None:
        self.shutdown()
        self.thread.join()
        self.server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up is no error here."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server
    where = ""

    def log_message(self, *_args: Any) -> None:
        pass

    @property
    def hub(self) -> Hub:
        return self.server.hub

    def note(self, where: str) -> None:
        self.where = where
        with self.hub.lock:
            self.hub.log.append((where, self.path, dict(self.headers.items())))

    def answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.send_body(body)

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        raise NotImplementedError

    def send_body(self, body: bytes) -> None:
        if self.command == "HEAD":
            return
        for start in range(0, len(body), _PIECE_BYTES):
            piece = body[start : start + _PIECE_BYTES]
            if self.where in ("cache", "cdn"):
                self.hub.gate.pass_through(self.hub.sent_bytes)
            self.wfile.write(piece)
            self.count(len(piece))

    def count(self, size: int) -> None:
        if self.where in ("cache", "cdn"):
            with self.hub.lock:
                self.hub.sent_bytes += size

    def answer_json(self, data: Any, **headers: str) -> None:
        self.answer(200, json.dumps(data).encode(), Content_Type="application/json", **headers)

    def general_fault(self, kind: Kind | None, data: bytes = b"") -> bool:
        if callable(kind):
            kind(self, data)
            return True
        if kind and kind.isdecimal():
            self.answer(int(kind), b"no", **({"Retry_After": "7"} if kind == "429" else {}))
            return True
        if kind == "garbage":
            self.answer(200, b"<html>welcome to the hotel</html>")
            return True
        return False

    def serve_chunked(self, data: bytes, kind: Kind | None) -> None:
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for start in range(0, len(data), 50_000):
            if kind == "truncate" and start >= self.hub.truncate_after:
                self.close_connection = True
                return
            chunk = data[start : start + 50_000]
            self.wfile.write(b"%x\r\n%b\r\n" % (len(chunk), chunk))
            self.count(len(chunk))
        self.wfile.write(b"0\r\n\r\n")

    def serve(self, data: bytes, etag: str, kind: Kind | None = None) -> None:
        if self.hub.chunked:
            self.serve_chunked(data, kind)
            return
        start, end, status = 0, len(data), 200
        match = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if_range = self.headers.get("If-Range")
        if match and kind not in ("ignore_range", "truncate_from_start") and if_range in (None, f'"{etag}"'):
            start, status = int(match.group(1)), 206
            end = min(end, int(match.group(2)) + 1) if match.group(2) else end
        if kind == "wrong_range":
            start = max(0, start - 1)
        if kind == "flip":
            data = flipped(data)
        self.send_response(status)
        self.send_header("ETag", f'"{etag}"')
        if self.where == "cache":
            self.send_header("X-Repo-Commit", COMMIT)
        body = data[start:end]
        if status == 206:
            self.send_header("Content-Range", f"bytes {start}-{end - 1}/{len(data)}")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if kind in ("truncate", "truncate_from_start", "reset", "stall"):
            self.send_body(body[: self.hub.truncate_after])
            self._break(kind)
        else:
            self.send_body(body)

    def _break(self, kind: Kind) -> None:
        if kind == "stall":
            self.connection.settimeout(10.0)
            with contextlib.suppress(OSError):
                self.connection.recv(1)  # comes back when the client hangs up
        if kind == "reset":
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True


class _Api(_Handler):
    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        if self.path.startswith("/api/models/"):
            self.api(path[len("/api/models/") :])
        elif path.startswith("/api/resolve-cache/"):
            self.note("cache")
            name = path[len("/api/resolve-cache/") :]
            data, kind = self.hub.files[name], self.hub.take("cache", name)
            if not self.general_fault(kind, data):
                self.serve(data, git_sha1(data), kind)
        else:
            self.resolve(path)

    def refused(self, repo: str) -> bool:
        authorized = self.headers.get("Authorization") == f"Bearer {self.hub.token}"
        if self.hub.token and not authorized:
            self.answer(401, b"", X_Error_Code="RepoNotFound")
        elif repo != REPO:
            self.answer(404, b"", X_Error_Code="RepoNotFound")
        elif self.hub.gated:
            self.answer(403, b"", X_Error_Code="GatedRepo")
        else:
            return False
        return True

    def api(self, rest: str) -> None:
        repo, _, question = rest.partition("/revision/")
        where = "info"
        if not question:
            repo, _, question = rest.partition("/tree/")
            where = "tree"
        self.note(where)
        if self.general_fault(self.hub.take(where)) or self.refused(repo):
            return
        commit = self.hub.refs.get(question)
        if commit is None:
            self.answer(404, b"", X_Error_Code="RevisionNotFound")
        elif where == "info":
            self.info(commit)
        else:
            self.tree()

    def info(self, commit: str) -> None:
        siblings: list[dict[str, Any]] = []
        for path, data in self.hub.files.items():
            item: dict[str, Any] = {"rfilename": self.hub.names.get(path, path)}
            if self.hub.info_has_digests:
                item.update(size=len(data), blobId=git_sha1(data))
                if self.hub.is_lfs(path):
                    item["lfs"] = {"sha256": sha256_of(data), "size": len(data), "pointerSize": 130}
            siblings.append(item)
        self.answer_json({"id": REPO, "sha": commit, "siblings": siblings})

    def tree(self, entries: list[dict[str, Any]] | None = None) -> None:
        entries = self.hub.tree_entries() if entries is None else entries
        start = int(re.search(r"cursor=(\d+)", self.path).group(1)) if "cursor=" in self.path else 0
        stop = start + self.hub.page_size
        headers = {}
        if stop < len(entries):
            base = self.path.partition("?")[0]
            headers["Link"] = f'<{self.server.url}{base}?recursive=true&cursor={stop}>; rel="next"'
        self.answer_json(entries[start:stop], **headers)

    def resolve(self, path: str) -> None:
        self.note("resolve")
        repo, _, rest = path[1:].partition("/resolve/")
        name = rest.partition("/")[2]
        kind = self.hub.take("resolve", name)
        if self.general_fault(kind) or self.refused(repo):
            return
        if kind == "loop":
            self.answer(302, b"", Location=self.path)
        elif kind == "file_scheme":
            self.answer(302, b"", Location="file:///etc/passwd")
        elif self.hub.is_lfs(name):
            sha256 = sha256_of(self.hub.files[name])
            linked = {"X_Linked_Etag": f'"{sha256}"', "X_Linked_Size": str(len(self.hub.files[name]))}
            location = f"{self.hub.cdn.url}/blobs/{sha256}?X-Amz-Signature={SIGNATURE}"
            self.answer(302, b"", Location=location, X_Repo_Commit=COMMIT, **linked)
        else:
            self.answer(307, b"", Location=f"/api/resolve-cache/{quote(name)}", X_Repo_Commit=COMMIT)


class _Cdn(_Handler):
    def do_GET(self) -> None:
        self.note("cdn")
        if self.headers.get("Authorization"):
            self.answer(400, b"Only one auth mechanism allowed")
            return
        digest = urlsplit(self.path).path.rpartition("/")[2]
        name = self.hub.named(digest)
        if name is None:
            self.answer(404, b"no such blob")
            return
        kind, data = self.hub.take("cdn", name), self.hub.files[name]
        if not self.general_fault(kind, data):
            self.serve(data, digest, kind)
