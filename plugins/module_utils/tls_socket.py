# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""TLS connections that take from the network as much as there is.

``ssl.SSLSocket`` makes two system calls and a handful of Python calls for every record of 16 KiB. Here what has arrived
comes in one system call, and one call decrypts all of it. Every record still lets go of the interpreter and takes it
back, so no more threads than there are cores decrypt at once; the others would only fight for it. Protocol,
certificates and host names stay with ``ssl``.
"""

from __future__ import annotations

import contextlib
import functools
import io
import itertools
import os
import socket
import ssl
import threading
from collections.abc import Callable
from typing import Any, TypeVar, cast

_HANDSHAKE_BYTES = 16 * 1024
_ARRIVED_BYTES = 512 * 1024
_TURNS = [threading.Lock() for _core in range(os.cpu_count() or 1)]
_NUMBERS = itertools.count()

T = TypeVar("T")


def read_ahead(context: ssl.SSLContext) -> ssl.SSLContext:
    """Make ``context`` wrap client sockets in a ``TlsSocket``, and return it."""

    def wrap_socket(sock: socket.socket, server_hostname: str | None = None, **_options: Any) -> TlsSocket:
        return TlsSocket(sock, context, server_hostname)

    context.wrap_socket = wrap_socket  # type: ignore[method-assign,assignment]
    return context


class TlsSocket:
    """The client's end of a TLS connection over ``sock``, as far as HTTP needs a socket.

    The handshake is done in the constructor. Raises what ``ssl.SSLSocket`` raises. One thread at a time.
    """

    def __init__(self, sock: socket.socket, context: ssl.SSLContext, server_hostname: str | None) -> None:
        self._socket = sock
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=server_hostname)
        self._turn = _TURNS[next(_NUMBERS) % len(_TURNS)]
        self._files = 0
        self._closed = False
        try:
            self._complete(self._tls.do_handshake)
        except BaseException:
            sock.close()
            raise

    def recv_into(self, buffer: Any, nbytes: int = 0, flags: int = 0) -> int:
        """Fill ``buffer`` with what has arrived, waiting for the first of it; return 0 at the end of the stream."""
        del flags
        view = memoryview(buffer).cast("B")
        view = view[:nbytes] if nbytes else view
        while True:
            with self._turn:
                done, ended = self._decrypt(view)
            if not ended:
                self._send_pending()
            if done or ended or not view:
                return done
            self._receive(view)  # what is encrypted may lie there until it is not

    def _decrypt(self, view: memoryview) -> tuple[int, bool]:
        """Fill ``view`` from what was received; return the number of bytes, and whether the stream has ended."""
        done = 0
        with contextlib.suppress(ssl.SSLWantReadError):
            while done < len(view):
                try:
                    count = cast(int, self._tls.read(len(view) - done, cast(Any, view[done:])))
                except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
                    return done, True
                if not count:
                    return done, True
                done += count
        return done, False

    def recv(self, count: int, flags: int = 0) -> bytes:
        """Return at most ``count`` bytes."""
        buffer = bytearray(count)
        return bytes(buffer[: self.recv_into(buffer, flags=flags)])

    def sendall(self, data: Any, flags: int = 0) -> None:
        """Send all of ``data``."""
        del flags
        view = memoryview(data).cast("B")
        while view:
            view = view[self._complete(functools.partial(self._tls.write, view)) :]

    def makefile(self, mode: str = "rb", buffering: int | None = None) -> io.BufferedReader:
        """Return a buffered reader, which keeps the connection open until it is closed too."""
        if mode != "rb":
            raise ValueError(f"a TLS socket is read as rb, not {mode}")
        self._files += 1
        return io.BufferedReader(socket.SocketIO(cast(Any, self), "r"), buffering or io.DEFAULT_BUFFER_SIZE)

    def close(self) -> None:
        """Close the connection when the last file made of it is closed."""
        self._closed = True
        if self._files <= 0:
            self._socket.close()

    def _decref_socketios(self) -> None:
        """Take note, as ``socket.SocketIO`` expects, that a file was closed."""
        self._files -= 1
        if self._closed:
            self.close()

    def shutdown(self, how: int) -> None:
        """End the connection below TLS."""
        self._socket.shutdown(how)

    def fileno(self) -> int:
        """Return the descriptor to wait on."""
        return self._socket.fileno()

    def settimeout(self, seconds: float | None) -> None:
        """Limit the time without a byte."""
        self._socket.settimeout(seconds)

    def gettimeout(self) -> float | None:
        """Return that limit."""
        return self._socket.gettimeout()

    def setsockopt(self, *option: Any) -> None:
        """Set an option of the socket."""
        self._socket.setsockopt(*option)

    def getpeercert(self, binary_form: bool = False) -> Any:
        """Return the certificate of the server."""
        return self._tls.getpeercert(binary_form)

    def version(self) -> str | None:
        """Return the version of the protocol."""
        return self._tls.version()

    def cipher(self) -> Any:
        """Return the cipher in use."""
        return self._tls.cipher()

    def selected_alpn_protocol(self) -> str | None:
        """Return the protocol that was agreed on."""
        return self._tls.selected_alpn_protocol()

    def _complete(self, operation: Callable[[], T]) -> T:
        while True:
            try:
                result = operation()
            except ssl.SSLWantReadError:
                self._send_pending()
                self._receive(memoryview(bytearray(_HANDSHAKE_BYTES)))
            except ssl.SSLError:
                with contextlib.suppress(OSError):
                    self._send_pending()  # the alert that tells the server why
                raise
            else:
                self._send_pending()
                return result

    def _send_pending(self) -> None:
        if self._outgoing.pending > 0:
            self._socket.sendall(self._outgoing.read())

    def _receive(self, scratch: memoryview) -> None:
        count = self._socket.recv_into(scratch[:_ARRIVED_BYTES])
        if count:
            self._incoming.write(scratch[:count])
        else:
            self._incoming.write_eof()
