# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What HAProxy says about the servers of a backend, over its admin socket.

Commands and formats: the management guide of HAProxy 2.x, "Unix Socket commands" (``show servers state`` version 1,
``show stat``, ``set server``).
"""

from __future__ import annotations

import csv
import re
import socket
from dataclasses import asdict, dataclass
from typing import Any, Callable

from ansible_collections.llmops.vllm.plugins.module_utils.errors import InvalidInputError, PreconditionError

ANSWER_TIMEOUT_SECONDS = 10.0
_LARGEST_ANSWER_BYTES = 16 * 1024 * 1024
_NAME = re.compile(r"[A-Za-z0-9_.:-]{1,200}")
# srv_admin_state: what an administrator or the configuration has decided; a tracked server inherits (0x02, 0x10).
_MAINTENANCE = 0x01 | 0x02 | 0x04 | 0x20
_DRAIN = 0x08 | 0x10
_RUNNING = (1, 2)  # srv_op_state: starting (slow start) and running

Ask = Callable[[str], str]


@dataclass(frozen=True)
class Server:
    """One server of a backend.

    ``state`` is what was decided about it (``ready``, ``drain``, ``maint``), ``healthy`` what its checks say,
    ``sessions`` the requests that it is answering or that wait for it alone, ``check`` the last check in HAProxy's
    words.
    """

    name: str
    address: str
    state: str
    healthy: bool
    weight: int
    sessions: int
    check: str

    @property
    def serving(self) -> bool:
        """Whether new requests are sent to it."""
        return self.state == "ready" and self.healthy and self.weight > 0

    def as_dict(self) -> dict[str, Any]:
        """Return it for a module's result."""
        return {**asdict(self), "serving": self.serving}


def ask_socket(path: str, command: str) -> str:
    """Return HAProxy's answer to ``command`` on the admin socket at ``path``; PreconditionError when there is none."""
    answer = b""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(ANSWER_TIMEOUT_SECONDS)
            connection.connect(path)
            connection.sendall(command.encode("ascii") + b"\n")
            while len(answer) < _LARGEST_ANSWER_BYTES:
                part = connection.recv(65536)
                if not part:
                    break
                answer += part
    except OSError as exc:
        raise PreconditionError(
            f"HAProxy does not answer at {path}: {exc.strerror or exc}; see `systemctl status haproxy`, and its "
            "`stats socket`."
        ) from exc
    return answer.decode("utf-8", "replace")


class Backend:
    """The backend ``name`` of the HAProxy that ``ask`` talks to."""

    def __init__(self, ask: Ask, name: str) -> None:
        self.name = _checked("backend", name)
        self._ask = ask

    def servers(self) -> list[Server]:
        """Return the backend's servers in the configuration's order; PreconditionError for an unknown backend."""
        states = _table(self._ask(f"show servers state {self.name}"))
        if not states:
            raise PreconditionError(
                f"HAProxy knows no backend '{self.name}', or it has no servers; is its configuration the present one?"
            )
        usage = self._usage()
        return [_server(row, usage.get(row["srv_name"], {})) for row in states]

    def _usage(self) -> dict[str, dict[str, str]]:
        lines = self._ask("show stat").lstrip("# ").splitlines()
        return {row["svname"]: row for row in csv.DictReader(lines) if row.get("pxname") == self.name}

    def set_state(self, server: str, state: str) -> None:
        """Decide about ``server``: ``ready``, ``drain`` or ``maint``."""
        said = self._ask(f"set server {self.name}/{_checked('server', server)} state {state}").strip()
        if said:
            raise PreconditionError(f"HAProxy refused to set {self.name}/{server} to {state}: {said}")

    def all_states(self) -> str:
        """Return the state of all servers of all backends, as a server-state-file holds it."""
        return self._ask("show servers state")


def _checked(parameter: str, name: str) -> str:
    """Return ``name`` when it cannot end a command and begin another one."""
    if not _NAME.fullmatch(name):
        raise InvalidInputError(
            f"{parameter} is '{name}'; a name of HAProxy is letters, digits and '_', '.', ':', '-'."
        )
    return name


def _table(answer: str) -> list[dict[str, str]]:
    """Return the rows of ``show servers state``; none when the answer is a message."""
    lines = answer.splitlines()
    if len(lines) < 2 or lines[0].strip() != "1" or not lines[1].startswith("# "):
        return []
    names = lines[1][2:].split()
    return [dict(zip(names, line.split(" "))) for line in lines[2:] if line.strip()]


def _server(row: dict[str, str], usage: dict[str, str]) -> Server:
    admin = int(row["srv_admin_state"])
    decided = "maint" if admin & _MAINTENANCE else "drain" if admin & _DRAIN else "ready"
    said = [usage.get(key, "") for key in ("status", "check_status", "last_chk")]
    return Server(
        name=row["srv_name"],
        address=f"{row['srv_addr']}:{row.get('srv_port', '')}",
        state=decided,
        healthy=int(row["srv_op_state"]) in _RUNNING,
        weight=int(row["srv_iweight"]),
        sessions=sum(int(usage.get(key) or 0) for key in ("scur", "qcur")),
        check=" ".join(part for part in said if part),
    )
