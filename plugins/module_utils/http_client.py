# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""HTTP GET for a model hub and the content networks behind it.

Redirects are followed here and not by ``requests``, because a credential may only go to the endpoint's own origin:
signed URLs answer 400 to a second one, and whoever receives a token can use it. A netrc entry would replace it and is
never read.
"""

from __future__ import annotations

import contextlib
import email.utils
import http.client
import importlib
import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar
from urllib.parse import urljoin, urlsplit

from ansible_collections.llmops.vllm.plugins.module_utils.bandwidth import Bandwidth, ReadSize, TimedReads
from ansible_collections.llmops.vllm.plugins.module_utils.credentials import Credential
from ansible_collections.llmops.vllm.plugins.module_utils.errors import (
    InvalidInputError,
    LlmopsError,
    PreconditionError,
)
from ansible_collections.llmops.vllm.plugins.module_utils.http_errors import (
    CONNECT_TIMEOUT_SECONDS,
    certificate_problem,
    transport_reason,
    tunnel_status,
)
from ansible_collections.llmops.vllm.plugins.module_utils.http_session import Sessions

MAX_REDIRECTS = 5
MAX_DOCUMENT_BYTES = 64 * 1024 * 1024
_REDIRECTS = (301, 302, 303, 307, 308)
_RETRYABLE = (408, 425, 429, 500, 502, 503, 504)
_DRAIN_BYTES = 64 * 1024
_DEFAULT_PORTS = {"http": 80, "https": 443}
_LONGEST_PAUSE_SECONDS = 900.0
_PROXY_REFUSALS = ("403", "407")

T = TypeVar("T")


class TransferError(Exception):
    """A failure that may pass; ``retry_after_seconds`` is the pause the server asked for, if any."""

    def __init__(self, reason: str, retry_after_seconds: float | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.retry_after_seconds = retry_after_seconds


class MissingPackageError(PreconditionError):
    """The Python package ``requests`` cannot be imported on this host."""


@dataclass(frozen=True)
class RetryPolicy:
    """How often a failed request is made again, and how long to wait before it.

    ``sleep`` takes seconds; ``jitter`` returns 0..1 and spreads the hosts of a fleet that failed together.
    """

    retries: int
    sleep: Callable[[float], object]
    jitter: Callable[[], float]

    def pause(self, failures: int, error: TransferError) -> None:
        """Wait as long as the server asked for and some more, else 1, 2, 4 ... 30 seconds less up to one half."""
        if error.retry_after_seconds is not None:
            seconds = min(error.retry_after_seconds, _LONGEST_PAUSE_SECONDS)
            self.sleep(seconds + self.jitter() * max(1.0, seconds / 10.0))
            return
        self.sleep(min(30.0, 2.0 ** (failures - 1)) * (1.0 - self.jitter() / 2.0))

    def call(self, operation: Callable[[], T], subject: str) -> T:
        """Return what ``operation`` returns; raise ``LlmopsError`` about ``subject`` when it keeps failing."""
        failures = 0
        while True:
            try:
                return operation()
            except TransferError as error:
                failures += 1
                if failures > self.retries:
                    raise LlmopsError(
                        f"{subject} failed {failures} times, the last time because {error.reason}."
                    ) from error
                self.pause(failures, error)


def load_requests() -> Any:
    """Import ``requests`` (which costs most of a second on a busy host, hence late) or say how to get it."""
    try:
        return importlib.import_module("requests")
    except ImportError as error:
        raise MissingPackageError(
            "The Python package requests is needed on this host to download from a model hub and cannot be imported: "
            "install python3-requests (or pip install requests) for the Python that Ansible uses there."
        ) from error


def origin_of(url: str) -> str:
    """Return ``scheme://host:port`` of ``url``, the unit to which a credential belongs (RFC 6454)."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{(parts.hostname or '').lower()}:{parts.port or _DEFAULT_PORTS.get(parts.scheme)}"


def without_query(url: str) -> str:
    """Return ``url`` fit for a message: a query may hold a signature, a user part a password."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def check_endpoint(endpoint: str) -> str:
    """Return ``endpoint`` without its last slash when it is a plain http(s) URL, else raise ``InvalidInputError``."""
    parts = urlsplit(endpoint)
    if parts.scheme not in _DEFAULT_PORTS or not parts.hostname or "@" in parts.netloc or parts.query or parts.fragment:
        raise InvalidInputError(
            f"endpoint must be an http(s) URL without user, query and fragment, not {without_query(endpoint)!r}."
        )
    return endpoint.rstrip("/")


class Answer(Protocol):
    """What a source answers: a status, headers, and a body that is read with ``read_into``."""

    @property
    def url(self) -> str:
        """Where it came from."""

    @property
    def foreign(self) -> bool:
        """Whether that is outside the origin that was asked."""

    @property
    def status(self) -> int:
        """The status as in HTTP."""

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers."""

    @property
    def held_back_seconds(self) -> float:
        """For how long a limit on the bandwidth has held reads back, which says nothing about the source."""

    def __enter__(self) -> Answer:
        """Return itself."""

    def __exit__(self, *_exc: object) -> None:
        """Close."""

    def read_into(self, view: memoryview) -> int:
        """Fill ``view`` from the body and return the number of bytes, 0 at its end; raises ``TransferError``."""


class Response:
    """An answer whose body has not been read yet. ``foreign`` says that it came from outside the endpoint's origin."""

    def __init__(
        self,
        answer: Any,
        url: str,
        *,
        foreign: bool,
        stall_seconds: float,
        errors: tuple[Any, ...],
        bandwidth: Bandwidth | None,
        read_size: ReadSize,
    ) -> None:
        self._answer = answer
        self._stall_seconds = stall_seconds
        self._errors = errors
        self._bandwidth = bandwidth
        self._read_size = read_size
        self.url = url
        self.foreign = foreign
        self.status: int = answer.status_code
        self.headers: Mapping[str, str] = answer.headers
        self.held_back_seconds = 0.0
        inner = getattr(answer.raw, "_fp", None)
        # Reading into our own memory saves a copy and an allocation per read, an eighth of the CPU time of a download;
        # where urllib3 has no such inner response, its public method does the same.
        self._inner = inner if isinstance(inner, http.client.HTTPResponse) else None
        raw = getattr(getattr(inner, "fp", None), "raw", None)
        # A chunked body is read in pieces anyway, and http.client takes a short one for its end.
        whole = raw is not None and not getattr(inner, "chunked", True)
        self._timed = TimedReads(raw, read_size.monotonic) if whole else None

    def __enter__(self) -> Response:
        """Return itself."""
        return self

    def __exit__(self, *_exc: object) -> None:
        """Close."""
        self.close()

    def read_into(self, view: memoryview) -> int:
        """Fill ``view`` from the body and return the number of bytes, 0 at its end; raises ``TransferError``.

        A slow connection fills less. Under a limit on the bandwidth it returns when the next bytes may come.
        """
        if self._bandwidth:
            view = view[: self._bandwidth.read_bytes]
        if self._timed:
            self._timed.begin()
        try:
            count = self._read_size.read((self._inner or self._answer.raw).readinto, view)
        except self._errors as error:
            raise TransferError(transport_reason(error, self._stall_seconds)) from error
        if self._bandwidth:
            self.held_back_seconds += self._bandwidth.take(count)
        return count

    def document(self) -> Any:
        """Return the body as JSON; raises ``TransferError`` when it breaks off or is something else."""
        try:
            body = self._answer.raw.read(MAX_DOCUMENT_BYTES + 1, decode_content=True)
        except self._errors as error:
            raise TransferError(transport_reason(error, self._stall_seconds)) from error
        if len(body) > MAX_DOCUMENT_BYTES:
            raise LlmopsError(f"{without_query(self.url)} answered with more than {MAX_DOCUMENT_BYTES} bytes of JSON.")
        try:
            return json.loads(body)
        except ValueError as error:
            raise TransferError(f"{without_query(self.url)} answered with something that is not JSON") from error

    def next_page(self) -> str | None:
        """Return the URL of ``Link: <...>; rel="next"`` (RFC 8288), if there is one."""
        url = self._answer.links.get("next", {}).get("url")
        return urljoin(self.url, url) if url else None

    def close(self) -> None:
        """Give the connection back; one with an unread body is closed."""
        if self._inner is not None and self._inner.isclosed():
            self._answer.raw.release_conn()
        self._answer.close()

    def drain(self) -> None:
        """Read a short rest of the body, so that the connection can be used again, and close."""
        try:
            self._answer.raw.read(_DRAIN_BYTES)
        except self._errors:
            pass
        finally:
            self.close()


class HttpClient:
    """Requests for one endpoint. ``requests_made`` counts every hop.

    ``credential`` is sent to the endpoint's origin only, ``proxy`` (an http(s) URL) takes the place of the proxies in
    the environment, and ``bandwidth`` limits the bodies that are read with ``read_into``.
    """

    def __init__(
        self,
        endpoint: str,
        *,
        requests: Any,
        credential: Credential | None = None,
        ca_path: str | None = None,
        stall_seconds: float = 30.0,
        proxy: str | None = None,
        bandwidth: Bandwidth | None = None,
        sessions: Sessions | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.endpoint = check_endpoint(endpoint)
        self.requests_made = 0
        self._origin = origin_of(endpoint)
        self._requests = requests
        self._credential = credential
        self._sessions = sessions or Sessions(requests, ca_path=ca_path, proxy=proxy)
        self._stall_seconds = stall_seconds
        self._bandwidth = bandwidth
        self._monotonic = monotonic
        self._local = threading.local()
        self._errors = (importlib.import_module("urllib3").exceptions.HTTPError, http.client.HTTPException, OSError)
        self._lock = threading.Lock()

    def sibling(self, endpoint: str, credential: Credential | None = None) -> HttpClient:
        """Return a client with the same settings and limits for another endpoint, with a credential of its own."""
        return HttpClient(
            endpoint,
            requests=self._requests,
            credential=credential,
            stall_seconds=self._stall_seconds,
            bandwidth=self._bandwidth,
            sessions=self._sessions,
        )

    def get(self, url: str, headers: Mapping[str, str], conditions: Mapping[str, str] | None = None) -> Response:
        """Follow ``url`` to its answer, whatever the status.

        ``conditions`` maps an origin to the ``If-Range`` value that is valid there. Raises ``TransferError`` when the
        network fails in a way that may pass, ``LlmopsError`` when it will not.
        """
        for _hop in range(MAX_REDIRECTS + 1):
            response = self._send(url, self._headers_for(origin_of(url), headers, conditions or {}))
            if response.status == 407:
                response.close()
                raise self._refused_by_proxy(url, "407")
            location = response.headers.get("Location") if response.status in _REDIRECTS else None
            if location is None:
                return response
            response.drain()
            url = self._redirect_target(url, location)
        raise LlmopsError(f"{without_query(url)} redirects more than {MAX_REDIRECTS} times; check the endpoint.")

    def close(self) -> None:
        """Close all connections, those of its siblings too."""
        self._sessions.close()

    def _headers_for(self, origin: str, headers: Mapping[str, str], conditions: Mapping[str, str]) -> dict[str, str]:
        result = {"Accept-Encoding": "identity", "User-Agent": "llmops.vllm", **headers}
        if origin in conditions:
            result["If-Range"] = conditions[origin]
        if self._credential and origin == self._origin:
            result[self._credential.header] = self._credential.value
        return result

    def _send(self, url: str, headers: dict[str, str]) -> Response:
        with self._lock:
            self.requests_made += 1
        try:
            answer = self._sessions.get(url).get(
                url,
                headers=headers,
                stream=True,
                allow_redirects=False,
                timeout=(CONNECT_TIMEOUT_SECONDS, self._stall_seconds),
                proxies=self._sessions.proxies(url),
            )
        except (self._requests.exceptions.RequestException, *self._errors) as error:
            raise self._explained(url, error) from error
        return Response(
            answer,
            url,
            foreign=origin_of(url) != self._origin,
            stall_seconds=self._stall_seconds,
            errors=self._errors,
            bandwidth=self._bandwidth,
            read_size=self._read_size(),
        )

    def _read_size(self) -> ReadSize:
        """Return what this thread has found out; all its connections take the same way."""
        size: ReadSize | None = getattr(self._local, "read_size", None)
        if size is None:
            size = self._local.read_size = ReadSize(self._monotonic)
        return size

    def _explained(self, url: str, error: BaseException) -> Exception:
        exceptions = self._requests.exceptions
        host = urlsplit(url).netloc.rpartition("@")[2]
        untrusted = certificate_problem(error)
        if untrusted:
            return LlmopsError(
                f"The TLS certificate of {host} cannot be verified ({untrusted}); give the CA with ca_path, "
                "or correct the endpoint."
            )
        if isinstance(error, (exceptions.InvalidURL, exceptions.InvalidSchema, exceptions.InvalidHeader)):
            return LlmopsError(f"{without_query(url)} cannot be requested: it is not a usable URL.")
        tunnel = tunnel_status(error)
        if tunnel in _PROXY_REFUSALS:
            return self._refused_by_proxy(url, tunnel)
        return TransferError(f"{host}: {transport_reason(error, self._stall_seconds)}")

    def _refused_by_proxy(self, url: str, status: str) -> LlmopsError:
        host = urlsplit(url).netloc.rpartition("@")[2]
        return LlmopsError(
            f"The proxy {self._sessions.proxy_host(url)} does not lead to {host} (status {status}); correct user and "
            "password in its URL, its rules, or NO_PROXY."
        )

    def _redirect_target(self, url: str, location: str) -> str:
        target = urljoin(url, location)
        scheme = urlsplit(target).scheme
        if scheme not in _DEFAULT_PORTS or (urlsplit(url).scheme == "https" and scheme != "https"):
            raise LlmopsError(
                f"{without_query(url)} redirects to {without_query(target)}, which is not as safe; it is not followed."
            )
        return target


def transient(response: Answer) -> TransferError | None:
    """Return the error to retry on when the status says "later", with the pause that the server asks for."""
    if response.status not in _RETRYABLE:
        return None
    code = response.headers.get("X-Error-Code")
    reason = f"{without_query(response.url)} answered {response.status}{f' ({code})' if code else ''}"
    return TransferError(reason, retry_after_seconds(response.headers))


def retry_after_seconds(headers: Mapping[str, str], now: Callable[[], float] = time.time) -> float | None:
    """Return the pause in seconds from ``Retry-After`` (RFC 9110, 10.2.3) or the hub's ``RateLimit: ...;t=seconds``."""
    value = headers.get("Retry-After", "").strip()
    if value.isdecimal():
        return float(value)
    if value:
        with contextlib.suppress(ValueError, TypeError):
            return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - now())
    return _rate_limit_seconds(headers.get("RateLimit", ""))


def _rate_limit_seconds(value: str) -> float | None:
    """Return when the last of the used up windows in ``"name";r=left;t=seconds, ...`` ends."""
    pauses = []
    for window in value.split(","):
        parameters = dict(item.strip().partition("=")[::2] for item in window.split(";"))
        if parameters.get("t", "").isdecimal() and parameters.get("r", "0") == "0":
            pauses.append(float(parameters["t"]))
    return max(pauses, default=None)
