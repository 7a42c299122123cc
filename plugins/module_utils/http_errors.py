# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What an exception of ``requests``, urllib3 or the socket means.

Their own texts may hold a signed URL or a proxy's password and are not shown.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterator
from typing import Any

CONNECT_TIMEOUT_SECONDS = 10.0
_TUNNEL_STATUS = re.compile(r"Tunnel connection failed: (\d+)")


def causes(error: BaseException) -> Iterator[BaseException]:
    """Yield ``error`` and everything that led to it, however it is attached."""
    seen: set[int] = set()
    pending: list[Any] = [error]
    while pending:
        current = pending.pop()
        if isinstance(current, BaseException) and id(current) not in seen:
            seen.add(id(current))
            yield current
            pending += [current.__cause__, current.__context__, getattr(current, "reason", None), *current.args]


def certificate_problem(error: BaseException) -> str | None:
    """Return why the certificate was not accepted, None when something else went wrong."""
    for cause in causes(error):
        if isinstance(cause, ssl.SSLCertVerificationError):
            return str(cause.verify_message)
    return None


def tunnel_status(error: BaseException) -> str | None:
    """Return the status with which a proxy refused a CONNECT, None when it did not."""
    found = (_TUNNEL_STATUS.search(str(cause)) for cause in causes(error))
    return next((match[1] for match in found if match), None)


def transport_reason(error: BaseException, stall_seconds: float) -> str:
    """Say what happened; ``stall_seconds`` is how long a connection may be silent."""
    names = {type(cause).__name__ for cause in causes(error)}
    reasons = (
        ({"ProxyError"}, "the proxy refused or failed"),
        ({"NameResolutionError", "gaierror"}, "the name cannot be resolved (DNS)"),
        ({"ConnectionRefusedError"}, "the connection was refused"),
        ({"ConnectTimeoutError", "ConnectTimeout"}, f"no connection within {CONNECT_TIMEOUT_SECONDS:g} seconds"),
        ({"ReadTimeoutError", "TimeoutError", "timeout"}, f"no byte arrived for {stall_seconds:g} seconds"),
        ({"SSLError", "SSLEOFError", "SSLZeroReturnError"}, "the TLS connection failed"),
    )
    for known, reason in reasons:
        if names & known:
            return reason
    return f"the connection broke ({type(error).__name__})"
