"""What a server, a cache on the way or a network does to an answer. Each function answers in the handler's place."""

from __future__ import annotations

import gzip
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ansible_collections.llmops.vllm.tests.unit.hub_server import flipped, sha256_of

Answer = Callable[[Any, bytes], None]


def status(code: int, **headers: str) -> Answer:
    """Answer with ``code``; an underscore in a header's name stands for a hyphen."""
    return lambda handler, _data: handler.answer(code, b"no", **headers)


def redirect(to: str) -> Answer:
    """Send the client to ``to``; ``{sha256}`` in it is the digest of the file asked for."""

    def answer(handler: Any, _data: bytes) -> None:
        name = handler.path.partition("/resolve/")[2].partition("/")[2]
        handler.answer(302, b"", Location=to.format(sha256=sha256_of(handler.hub.files[name])))

    return answer


def gzipped(handler: Any, data: bytes) -> None:
    """Compress the body although the client asked for it as it is."""
    handler.answer(200, gzip.compress(data, 1), Content_Encoding="gzip")


def gzipped_without_length(handler: Any, data: bytes) -> None:
    """Compress the body on the fly, as a proxy does that knows no length."""
    _chunked(handler, gzip.compress(data, 1), Content_Encoding="gzip")


def ended_properly_but_early(handler: Any, data: bytes) -> None:
    """Send half of the body in chunks, and the chunk that says that this was all."""
    _chunked(handler, data[: len(data) // 2])


def offered(difference: int) -> Answer:
    """Declare and send ``difference`` bytes more (or fewer) than the file has."""

    def answer(handler: Any, data: bytes) -> None:
        handler.answer(200, data[:difference] if difference < 0 else data + bytes(difference))

    return answer


def followed_by_garbage(handler: Any, data: bytes) -> None:
    """Send the right body and then bytes that belong to no answer, on a connection that stays open."""
    handler.serve(data, sha256_of(data))
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil" * 50)


def other_etag(handler: Any, data: bytes) -> None:
    """Serve the file under another ETag, so that If-Range does not hold."""
    handler.serve(data, "another")


def range_not_satisfiable(handler: Any, data: bytes) -> None:
    """Refuse a range and serve the whole."""
    if "Range" in handler.headers:
        handler.answer(416, b"", Content_Range=f"bytes */{len(data)}")
    else:
        handler.serve(data, sha256_of(data))


def dripping(handler: Any, data: bytes) -> None:
    """Send the middle slowly, yet never so slowly that it is a stall."""
    handler.send_response(200)
    handler.send_header("Content-Length", str(len(data)))
    handler.end_headers()
    handler.send_body(data[:1_000_000])
    for start in range(1_000_000, 1_000_500, 100):
        time.sleep(0.25)
        handler.send_body(data[start : start + 100])
    handler.send_body(data[1_000_500:])


def hung_up(handler: Any, _data: bytes) -> None:
    """Close the connection in place of an answer."""
    handler.close_connection = True


def silent(handler: Any, _data: bytes) -> None:
    """Say nothing until the client gives up."""
    handler.connection.settimeout(10.0)
    handler.connection.recv(1)
    handler.close_connection = True


def cut_once_then_500() -> Answer:
    """Serve three quarters of the body once, and nothing after that."""
    asked: list[int] = []

    def answer(handler: Any, data: bytes) -> None:
        asked.append(1)
        if len(asked) == 1:
            handler.serve(data, sha256_of(data), "truncate")
        else:
            handler.answer(500, b"no")

    return answer


def redirect_to_itself(handler: Any, _data: bytes) -> None:
    """Redirect to where the client is."""
    handler.answer(302, b"", Location=handler.path)


def cut_short(place: Path) -> None:
    """Cut a file short."""
    os.truncate(place, 100)


def flip_file(place: Path) -> None:
    """Flip a byte of a file."""
    place.write_bytes(flipped(place.read_bytes()))


def link_away(place: Path) -> None:
    """Put a link in a file's place."""
    place.unlink()
    place.symlink_to("/etc/hostname")


def dripping_for_ever(handler: Any, data: bytes) -> None:
    """Send half at once, and then a byte now and then until the client hangs up."""
    handler.send_response(200)
    handler.send_header("Content-Length", str(len(data)))
    handler.end_headers()
    half = len(data) // 2
    handler.send_body(data[:half])
    for start in range(half, half + 300):
        time.sleep(0.2)
        handler.send_body(data[start : start + 1])
    handler.close_connection = True


def login_page(handler: Any, _data: bytes) -> None:
    """Answer as the portal of a guest network does."""
    handler.answer(200, b"<html>Welcome to the hotel. Please log in.</html>", Content_Type="text/html")


def half_a_document(handler: Any, _data: bytes) -> None:
    """Break off in the middle of the API's answer."""
    handler.send_response(200)
    handler.send_header("Content-Length", "5000")
    handler.end_headers()
    handler.wfile.write(b'{"id": "acme/tiny-model", "sib')
    handler.close_connection = True


def backwards(handler: Any, _data: bytes) -> None:
    """List the files in another order than that of their names."""
    handler.tree(list(reversed(handler.hub.tree_entries())))


def pages_overlap(handler: Any, _data: bytes) -> None:
    """List one file on two pages."""
    entries = handler.hub.tree_entries()
    handler.tree([*entries, entries[1]])


def endless_pages(handler: Any, _data: bytes) -> None:
    """Name the first page as the next one."""
    url = f"{handler.server.url}{handler.path.partition('?')[0]}?recursive=true"
    handler.answer_json(handler.hub.tree_entries()[:2], Link=f'<{url}>; rel="next"')


def page_elsewhere(to: str) -> Answer:
    """Name a page on another host as the next one."""
    return lambda handler, _data: handler.answer_json(handler.hub.tree_entries()[:2], Link=f'<{to}/x>; rel="next"')


def _chunked(handler: Any, body: bytes, **headers: str) -> None:
    handler.send_response(200)
    handler.send_header("Transfer-Encoding", "chunked")
    for name, value in headers.items():
        handler.send_header(name.replace("_", "-"), value)
    handler.end_headers()
    for start in range(0, len(body), 100_000):
        piece = body[start : start + 100_000]
        handler.wfile.write(b"%x\r\n" % len(piece))
        handler.send_body(piece)
        handler.wfile.write(b"\r\n")
    handler.wfile.write(b"0\r\n\r\n")
