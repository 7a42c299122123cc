# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is shown to a hub or a mirror to prove who asks, from parameters or from files that nobody else can read.

A credential belongs to one origin. Who sends it elsewhere, or writes it down, has to do so on purpose: it is a value of
its own and in no URL, and its text is left out when the object is printed.
"""

from __future__ import annotations

import base64
import os
import re
import stat
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from ansible_collections.llmops.vllm.plugins.module_utils.errors import InvalidInputError

SOURCE_OPTIONS = ("token", "token_file", "header", "username", "password", "password_file")
_TOKEN = re.compile(r"[\x21-\x7e]+")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # a token of RFC 9110, 5.6.2
_OWN_HEADERS = (
    "accept",
    "accept-encoding",
    "connection",
    "content-length",
    "host",
    "if-range",
    "proxy-authorization",
    "range",
    "te",
    "transfer-encoding",
    "upgrade",
    "user-agent",
)
_LONGEST_BYTES = 4096

ReadSecret = Callable[[str, str], str]


@dataclass(frozen=True)
class Credential:
    """The header of a request that proves who asks."""

    header: str
    value: str = field(repr=False)


def bearer(token: str) -> Credential:
    """Return the credential for a token (RFC 6750)."""
    return Credential("Authorization", f"Bearer {token}")


def basic(username: str, password: str) -> Credential:
    """Return the credential for a user and a password (RFC 7617)."""
    pair = f"{username}:{password}".encode()
    return Credential("Authorization", f"Basic {base64.b64encode(pair).decode()}")


def check_token(token: str, source: str) -> str:
    """Return ``token`` when it can be sent in a header, else raise ``InvalidInputError`` about ``source``."""
    if not _TOKEN.fullmatch(token):
        raise InvalidInputError(f"{source} must hold one token of printable ASCII characters without blanks.")
    return token


def read_secret(path: str, option: str) -> str:
    """Return the text of the file at ``path``, without the end of its line, for the option of that name.

    It must be a regular file of root or of this user with no access for others, else ``InvalidInputError`` is raised.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise InvalidInputError(f"{option} {path} cannot be read: {error.strerror}.") from error
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_uid not in (0, os.geteuid()):
            raise InvalidInputError(f"{option} {path} must be a regular file that belongs to root or to this user.")
        mode = stat.S_IMODE(status.st_mode)
        if mode & 0o077:
            raise InvalidInputError(f"{option} {path} has mode {mode:04o}, so others can read it; give it mode 0600.")
        content = os.read(descriptor, _LONGEST_BYTES)
    finally:
        os.close(descriptor)
    return content.decode("utf-8", "replace").rstrip("\r\n")


def sends_in_clear(url: str) -> bool:
    """Whether a credential for ``url`` would cross a network without encryption."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    return parts.scheme == "http" and not (host in ("localhost", "::1") or host.startswith("127."))


def source_credential(item: Mapping[str, Any], read: ReadSecret) -> Callable[[], Credential | None]:
    """Return what makes the credential of one entry of ``sources``, when it is needed, with ``read`` for its files.

    Raises ``InvalidInputError`` at once when the options cannot be meant together, and later about the files.
    """
    given = [name for name in SOURCE_OPTIONS if item.get(name)]
    if not given:
        return lambda: None
    _check_together(item, given)
    return lambda: _credential(with_secrets([item], read)[0])


def with_secrets(items: Sequence[Mapping[str, Any]] | None, read: ReadSecret) -> list[dict[str, Any]]:
    """Return entries of ``sources`` with the content of their files in place of the files."""
    result = [dict(item) for item in items or ()]
    for item in result:
        for name in ("token", "password"):
            path = item.pop(f"{name}_file", None)
            if path:
                item[name] = read(path, f"{name}_file")
    return result


def without_secrets(items: Sequence[Mapping[str, Any]] | None) -> list[dict[str, Any]] | None:
    """Return entries of ``sources`` without anything that says who asks."""
    if items is None:
        return None
    return [{name: value for name, value in item.items() if name not in SOURCE_OPTIONS} for item in items]


def _check_together(item: Mapping[str, Any], given: Sequence[str]) -> None:
    where = f"A source of type {item['type']}"
    if item["type"] == "directory":
        raise InvalidInputError(f"{where} is read on the host itself and takes no {given[0]}.")
    if item["type"] == "hub" and not item.get("url"):
        raise InvalidInputError(f"{where} without url is the endpoint: give the module's token or token_file instead.")
    for secret in ("token", "password"):
        if item.get(secret) and item.get(f"{secret}_file"):
            raise InvalidInputError(f"{where} takes {secret} or {secret}_file, not both.")
    token, password = (item.get(name) or item.get(f"{name}_file") for name in ("token", "password"))
    if bool(item.get("username")) != bool(password) or bool(token) == bool(password):
        raise InvalidInputError(f"{where} takes either a token or a username with a password, from options or files.")
    if item.get("header") and not token:
        raise InvalidInputError(f"{where} takes header only with a token.")


def _credential(item: Mapping[str, Any]) -> Credential:
    if not item.get("token"):
        return _basic_checked(item["username"], item.get("password") or "")
    token = check_token(item["token"].strip(), "The token of a source")
    header = item.get("header")
    if not header:
        return bearer(token)
    if not _HEADER.fullmatch(header) or header.lower() in _OWN_HEADERS:
        raise InvalidInputError(f"header {header!r} of a source is no header that can carry a token.")
    return Credential(header, token)


def _basic_checked(username: str, password: str) -> Credential:
    if ":" in username or _CONTROL.search(username) or not password or _CONTROL.search(password):
        raise InvalidInputError(
            "username and password of a source must not hold control characters, and no username a colon."
        )
    return basic(username, password)
