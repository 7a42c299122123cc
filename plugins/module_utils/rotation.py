# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Take one server out of a load balancer's rotation, or put it back, without a request lost and with enough left."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Callable

from ansible_collections.llmops.vllm.plugins.module_utils.difference import DifferenceTracker
from ansible_collections.llmops.vllm.plugins.module_utils.directories import replace_file, sync_directory
from ansible_collections.llmops.vllm.plugins.module_utils.errors import InvalidInputError, PreconditionError
from ansible_collections.llmops.vllm.plugins.module_utils.haproxy import Backend, Server

POLL_SECONDS = 0.25


@dataclass(frozen=True)
class Wish:
    """What shall become of ``server``.

    ``state`` is ``ready``, ``drain`` or ``maint``. Of the others at least ``minimum_serving`` have to serve when a
    server that serves is taken out. ``timeout_seconds`` is how long its requests may take to end, or its checks to find
    it healthy. A server in maintenance stays there unless ``end_maintenance``.
    """

    server: str
    state: str
    minimum_serving: int = 0
    timeout_seconds: float = 0.0
    end_maintenance: bool = False

    def __post_init__(self) -> None:
        """Refuse what cannot be."""
        if self.minimum_serving < 0 or self.timeout_seconds < 0:
            raise InvalidInputError("minimum_serving and timeout_seconds are 0 or more.")


@dataclass(frozen=True)
class Plan:
    """What there is, and what is to be decided. ``state`` is what the server's state will be."""

    before: Server
    state: str
    serving: tuple[str, ...]

    @property
    def changed(self) -> bool:
        """Whether anything has to be decided anew."""
        return self.before.state != self.state

    @property
    def kept_maintenance(self) -> bool:
        """Whether it stays in a maintenance that somebody else began."""
        return self.before.state == "maint" and self.state == "maint"

    def differences(self) -> DifferenceTracker:
        """Return ``changed`` and the diff."""
        tracker = DifferenceTracker()
        tracker.add(self.before.name, self.before.state, self.state)
        return tracker


def plan(backend: Backend, wish: Wish) -> Plan:
    """Look, and decide; PreconditionError when the server is unknown, or too few would be left."""
    servers = backend.servers()
    chosen = [server for server in servers if server.name == wish.server]
    if not chosen:
        known = ", ".join(server.name for server in servers)
        raise PreconditionError(
            f"Backend {backend.name} has no server '{wish.server}'; it has {known}. Bring the gateway up to date first."
        )
    before = chosen[0]
    serving = tuple(server.name for server in servers if server.serving)
    keeps = before.state == "maint" and not wish.end_maintenance
    found = Plan(before, "maint" if keeps else wish.state, serving)
    if found.changed and found.state != "ready":
        _check_capacity(backend.name, before, serving, wish.minimum_serving)
    return found


def _check_capacity(backend: str, server: Server, serving: tuple[str, ...], minimum: int) -> None:
    others = [name for name in serving if name != server.name]
    if server.serving and len(others) < minimum:
        left = ", ".join(others) or "none"
        raise PreconditionError(
            f"Without {server.name} the backend {backend} would have {len(others)} serving ({left}), and the minimum "
            f"is {minimum}; nothing was changed. Bring the others back first, or allow fewer.",
            serving=list(serving),
        )


class Rotation:
    """Carries a plan out. ``clock`` is monotonic; ``state_path`` names HAProxy's server-state-file, or is empty."""

    def __init__(
        self, backend: Backend, clock: Callable[[], float], sleep: Callable[[float], None], state_path: str = ""
    ) -> None:
        self._backend = backend
        self._clock = clock
        self._sleep = sleep
        self._state_path = state_path

    def apply(self, found: Plan) -> None:
        """Decide anew, where that is needed, and keep the decision over a restart of HAProxy."""
        if found.changed:
            self._backend.set_state(found.before.name, found.state)
            if self._state_path:
                _write(self._state_path, self._backend.all_states())

    def wait(self, wish: Wish) -> tuple[Server, float]:
        """Wait until the server has no requests (``drain``, ``maint``) or takes some (``ready``).

        Returns the server as it is then and the seconds waited. The end of the time is no error.
        """
        began = self._clock()
        while True:
            server = next(server for server in self._backend.servers() if server.name == wish.server)
            done = server.serving if wish.state == "ready" else server.sessions == 0
            waited = self._clock() - began
            if done or waited >= wish.timeout_seconds:
                return server, waited
            self._sleep(POLL_SECONDS)


@contextlib.contextmanager
def one_at_a_time(directory: str) -> Iterator[None]:
    """Keep others out who decide by the same admin socket: two that look at once would both find enough left."""
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as exc:
        raise PreconditionError(
            f"The directory {directory} of HAProxy's admin socket cannot be opened: {exc.strerror}; is HAProxy there?"
        ) from exc
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _write(path: str, text: str) -> None:
    try:
        replace_file(path, text.encode("utf-8"))
        sync_directory(os.path.dirname(path) or ".")
    except OSError as exc:
        raise PreconditionError(f"The state of the servers cannot be kept in {path}: {exc.strerror}.") from exc
