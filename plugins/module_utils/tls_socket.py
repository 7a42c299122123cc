# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""TLS connections that take from the network as much as there is.

``ssl.SSLSocket`` returns one record of 16 KiB for each read, and a thread that has caught up with its server waits for
each of them. Here a large read waits until much has arrived and returns all of it. Every record still lets go of the
interpreter and takes it back, so no more threads than there are cores decrypt at once; the others would only fight for
it. All else is left as ``ssl`` has it.
"""

from __future__ import annotations

import os
import select
import socket
import ssl
import threading
from typing import Any, cast

_MUCH_BYTES = 256 * 1024
_MOMENT_MILLISECONDS = 20
_TURNS = threading.BoundedSemaphore(os.cpu_count() or 1)


def read_ahead(context: ssl.SSLContext) -> ssl.SSLContext:
    """Make ``context`` wrap sockets in a ``TlsSocket``, and return it."""
    context.sslsocket_class = TlsSocket
    return context


class TlsSocket(ssl.SSLSocket):
    """An ``ssl.SSLSocket`` that fills large buffers. One thread at a time."""

    _failure: OSError | None = None

    def recv_into(self, buffer: Any, nbytes: int | None = None, flags: int = 0) -> int:
        """Fill ``buffer`` with what has arrived, waiting for the first of it; return 0 at the end of the stream."""
        view = memoryview(buffer).cast("B")
        view = view[:nbytes] if nbytes else view
        if self._failure:
            raise self._failure
        if len(view) < _MUCH_BYTES:
            return super().recv_into(view, None, flags)
        if not self.pending():
            self._wait_for_much()
        first = super().recv_into(view, None, flags)
        if not first:
            return 0
        with _TURNS:
            return self._fill(view, first)

    def _wait_for_much(self) -> None:
        """Wait until the kernel has much, but not for long: whether anything comes at all is for the read to see."""
        self.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, _MUCH_BYTES)
        try:
            waiting = select.poll()
            waiting.register(self, select.POLLIN)
            waiting.poll(_MOMENT_MILLISECONDS)
        finally:
            self.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)

    def _fill(self, view: memoryview, done: int) -> int:
        """Take what is there already into the rest of ``view``; return how much of it is full then."""
        timeout = self.gettimeout()
        self.setblocking(False)
        try:
            while done < len(view):
                count = cast(int, self.read(len(view) - done, view[done:]))
                if not count:
                    break
                done += count
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            pass
        except OSError as error:
            self._failure = error  # after what came before it
        finally:
            self.settimeout(timeout)
        return done
