# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Sessions of ``requests``: one per thread, one TLS context for all of them, proxies by parameter or environment.

Left to itself, the library under ``requests`` parses the whole CA bundle again for every connection, which costs 20 to
30 milliseconds and most of a megabyte each.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import ssl
import threading
from typing import Any
from urllib.parse import urlsplit

from ansible_collections.llmops.vllm.plugins.module_utils.errors import InvalidInputError
from ansible_collections.llmops.vllm.plugins.module_utils.tls_socket import read_ahead

_POOLS = 64  # origins whose connections a thread keeps open; peers are many
_CA_VARIABLES = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
_DEFAULT_CA = "the CA bundle of the Python package requests"


class Sessions:
    """``requests`` sessions that trust nothing of the environment but proxies and the CA bundle.

    ``proxy`` (an http(s) URL) is used for everything but the hosts in ``NO_PROXY``; without it the environment decides.
    Raises ``InvalidInputError`` when the CA bundle or the proxy cannot be used.
    """

    def __init__(self, requests: Any, *, ca_path: str | None = None, proxy: str | None = None) -> None:
        self._requests = requests
        self._proxy = check_proxy(proxy) if proxy else None
        self._ca = _ca_bundle(ca_path)
        self._context = _tls_context(*self._ca) if self._ca else None
        self._local = threading.local()
        self._lock = threading.Lock()
        self._sessions: list[Any] = []

    def get(self, url: str) -> Any:
        """Return the session of this thread, fit for ``url``."""
        session = getattr(self._local, "session", None)
        if session is None:
            session = self._local.session = self._requests.Session()
            session.trust_env = False
            session.mount("http://", self._requests.adapters.HTTPAdapter(pool_connections=_POOLS))
            session.adapters.pop("https://")
            with self._lock:
                self._sessions.append(session)
        if "https://" not in session.adapters and url.lower().startswith("https:"):
            session.mount("https://", _tls_adapter(self._requests, self._shared_context()))
        return session

    def _shared_context(self) -> ssl.SSLContext:
        with self._lock:
            if self._context is None:
                self._context = _tls_context(self._requests.certs.where(), _DEFAULT_CA)
            return self._context

    def proxies(self, url: str) -> dict[str, str]:
        """Return the proxies for ``url`` as ``requests`` takes them."""
        if self._proxy is None:
            found: dict[str, str] = self._requests.utils.get_environ_proxies(url)
            return found
        if self._requests.utils.should_bypass_proxies(url, no_proxy=None):
            return {}
        return {"http": self._proxy, "https": self._proxy}

    def proxy_host(self, url: str) -> str | None:
        """Return ``host:port`` of the proxy for ``url``, fit for a message, None when there is none."""
        proxy = self._requests.utils.select_proxy(url, self.proxies(url))
        if not proxy:
            return None
        return urlsplit(proxy if "//" in proxy else f"//{proxy}").netloc.rpartition("@")[2]

    def close(self) -> None:
        """Close all connections."""
        with self._lock:
            for session in self._sessions:
                session.close()


def check_proxy(proxy: str) -> str:
    """Return ``proxy`` when it is an http(s) URL, else raise ``InvalidInputError`` without a password in it."""
    with contextlib.suppress(ValueError):
        parts = urlsplit(proxy)
        place = (parts.hostname, parts.port or True)
        if parts.scheme in ("http", "https") and all(place) and not (parts.path.strip("/") or parts.query):
            return proxy
    raise InvalidInputError("proxy must be an http(s) URL of a host and a port, as in http://proxy.example.com:3128.")


def _ca_bundle(ca_path: str | None) -> tuple[str, str] | None:
    """Return the path of the CA bundle that somebody chose, and where; None when nobody did."""
    name = next((variable for variable in _CA_VARIABLES if os.environ.get(variable)), "")
    path = ca_path or os.environ.get(name)
    return (path, "ca_path" if ca_path else name) if path else None


def _tls_context(path: str, source: str) -> ssl.SSLContext:
    """Return a context as urllib3 makes it, so that the check of host names is the one of its version."""
    context: ssl.SSLContext = importlib.import_module("urllib3.util.ssl_").create_urllib3_context()
    if not os.path.exists(path):
        raise InvalidInputError(f"The CA bundle {path} does not exist on this host; correct {source}.")
    try:
        context.load_verify_locations(**{"capath" if os.path.isdir(path) else "cafile": path})
    except OSError as error:  # ssl.SSLError is one
        reason = "holds no certificate" if isinstance(error, ssl.SSLError) else "cannot be read by this user"
        raise InvalidInputError(f"The CA bundle {path} {reason}; correct {source}.") from error
    return read_ahead(context)


def _tls_adapter(requests: Any, context: ssl.SSLContext) -> Any:
    class Adapter(requests.adapters.HTTPAdapter):  # type: ignore[misc]
        def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
            super().init_poolmanager(*args, ssl_context=context, **kwargs)

        def proxy_manager_for(self, proxy: str, **kwargs: Any) -> Any:
            return super().proxy_manager_for(proxy, ssl_context=context, **kwargs)

        def cert_verify(self, conn: Any, url: str, verify: Any, cert: Any) -> None:
            """Demand a certificate; what is trusted is in the context already."""
            del url, verify, cert
            conn.cert_reqs = "CERT_REQUIRED"

    return Adapter(pool_connections=_POOLS)
