# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A small client of the engine's own HTTP interface, for questions from the host itself.

``http.client`` and not ``urllib``: no proxy variable, no redirect and no cookie can send the question, or the API key,
anywhere else than to the given host and port.
"""

from __future__ import annotations

import http.client
import json
import os
import socket
import stat
import time
from dataclasses import dataclass
from typing import Any, Callable

from ansible_collections.llmops.vllm.plugins.module_utils.engine_stream import StreamedAnswer
from ansible_collections.llmops.vllm.plugins.module_utils.errors import InvalidInputError

MAX_ANSWER_BYTES = 8 * 1024 * 1024
CONNECT_SECONDS = 0.5
MAX_KEY_BYTES = 4096


@dataclass(frozen=True)
class Answer:
    """``status`` is 0 when no HTTP answer came, ``body`` the parsed JSON or None, ``problem`` what is wrong.

    ``first_token_seconds`` is the time from the question to the first token, known of a streamed answer alone.
    """

    status: int
    body: Any
    problem: str
    first_token_seconds: float | None = None


class EngineApi:
    """Asks one engine. ``api_key`` is sent as a bearer token and appears nowhere else."""

    def __init__(self, host: str, port: int, api_key: str = "", clock: Callable[[], float] = time.monotonic) -> None:
        self._host = host
        self._port = port
        self._api_key = api_key
        self._clock = clock

    def refuses(self) -> bool:
        """Whether nobody listens: far cheaper to learn than who does."""
        try:
            socket.create_connection((self._host, self._port), CONNECT_SECONDS).close()
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
        return False

    def get(self, path: str, timeout_seconds: float) -> Answer:
        """GET ``path``; a connection that fails is an answer with status 0, no exception."""
        return self._ask("GET", path, None, timeout_seconds)

    def post(self, path: str, body: dict[str, Any], timeout_seconds: float) -> Answer:
        """POST ``body`` as JSON to ``path``."""
        return self._ask("POST", path, json.dumps(body).encode(), timeout_seconds)

    def stream(self, path: str, body: dict[str, Any], timeout_seconds: float) -> Answer:
        """POST ``body``, which asks for a stream, and return the whole answer with the time of its first token."""
        began = self._clock()
        connection = http.client.HTTPConnection(self._host, self._port, timeout=timeout_seconds)
        try:
            connection.request("POST", path, body=json.dumps(body).encode(), headers=self._headers(with_body=True))
            response = connection.getresponse()
            if response.status != 200:
                return _parse(response.status, response.read(MAX_ANSWER_BYTES + 1))
            return self._read_stream(response, began, timeout_seconds)
        except (OSError, http.client.HTTPException) as exc:
            return Answer(0, None, _describe(exc, timeout_seconds))
        finally:
            connection.close()

    def _read_stream(self, response: http.client.HTTPResponse, began: float, timeout_seconds: float) -> Answer:
        answer, first, size = StreamedAnswer(), None, 0
        while not answer.complete:
            line = response.readline(MAX_ANSWER_BYTES)
            size += len(line)
            if not line or size > MAX_ANSWER_BYTES:
                break
            answer.feed(line)
            if first is None and answer.has_tokens:
                first = self._clock() - began
            # A socket's timeout begins anew with every piece.
            if self._clock() - began > timeout_seconds:
                return Answer(0, answer.body(), f"no complete answer within {timeout_seconds:g} s", first)
        problem = answer.problem or ("" if answer.complete else "the answer broke off")
        return Answer(200, answer.body(), problem, first)

    def _headers(self, with_body: bool) -> dict[str, str]:
        headers = {"Accept": "application/json", "Connection": "close"}
        if with_body:
            headers["Content-Type"] = "application/json"
        if self._api_key:
            headers["Authorization"] = f"Bearer {self._api_key}"
        return headers

    def text(self, path: str, timeout_seconds: float) -> str | None:
        """GET ``path``, which is no JSON; ``None`` for whatever is not a status of 200."""
        try:
            status, content = self._exchange("GET", path, None, timeout_seconds)
        except (OSError, http.client.HTTPException):
            return None
        return content[:MAX_ANSWER_BYTES].decode("utf-8", "replace") if status == 200 else None

    def _ask(self, method: str, path: str, body: bytes | None, timeout_seconds: float) -> Answer:
        try:
            return _parse(*self._exchange(method, path, body, timeout_seconds))
        except (OSError, http.client.HTTPException) as exc:
            return Answer(0, None, _describe(exc, timeout_seconds))

    def _exchange(self, method: str, path: str, body: bytes | None, timeout_seconds: float) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(self._host, self._port, timeout=timeout_seconds)
        try:
            connection.request(method, path, body=body, headers=self._headers(with_body=body is not None))
            response = connection.getresponse()
            return response.status, response.read(MAX_ANSWER_BYTES + 1)
        finally:
            connection.close()


def _describe(exc: Exception, timeout_seconds: float) -> str:
    # Until Python 3.9 a socket's timeout was no TimeoutError.
    if isinstance(exc, TimeoutError) or str(exc) == "timed out":
        return f"no answer within {timeout_seconds:g} s"
    if isinstance(exc, ConnectionRefusedError):
        return "connection refused"
    if isinstance(exc, (ConnectionResetError, http.client.RemoteDisconnected)):
        return "the connection was closed without an answer"
    return str(exc) or type(exc).__name__


def _parse(status: int, content: bytes) -> Answer:
    if len(content) > MAX_ANSWER_BYTES:
        return Answer(status, None, f"the answer is larger than {MAX_ANSWER_BYTES} bytes")
    try:
        # Python reads NaN and Infinity where JSON forbids them: they reach the check that looks for them.
        body = json.loads(content) if content else None
    except ValueError:
        return Answer(status, None, f"the answer is no JSON: {content[:200].decode('utf-8', 'replace')!r}")
    return Answer(status, body, "" if status == 200 else error_message(body) or f"HTTP status {status}")


def error_message(body: Any) -> str:
    """Return the message of an error answer, in either of the two forms that vLLM has used."""
    if not isinstance(body, dict):
        return ""
    error = body.get("error", body)
    message = error.get("message") if isinstance(error, dict) else error
    return message[:500] if isinstance(message, str) else ""


def read_api_key(path: str) -> str:
    """Return the key in the file ``path`` (one line). Raises ``InvalidInputError`` that never quotes the content."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as handle:
            if not stat.S_ISREG(os.fstat(handle.fileno()).st_mode):
                raise InvalidInputError(f"api_key_file {path} is not a regular file.")
            content = handle.read(MAX_KEY_BYTES + 1)
    except OSError as exc:
        raise InvalidInputError(f"api_key_file {path} cannot be read: {exc.strerror}.") from exc
    key = content.decode("ascii", "replace").strip()
    if not key or len(content) > MAX_KEY_BYTES or not key.isprintable() or " " in key or "\ufffd" in key:
        raise InvalidInputError(f"api_key_file {path} does not hold one API key on one line.")
    return key
