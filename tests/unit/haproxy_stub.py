"""A HAProxy's admin socket, with servers that a test sets up."""

from __future__ import annotations

import socketserver
import threading
from pathlib import Path
from typing import Any

HEADER = (
    "# be_id be_name srv_id srv_name srv_addr srv_op_state srv_admin_state srv_uweight srv_iweight "
    "srv_time_since_last_change srv_port"
)
ADMIN = {"ready": 0, "drain": 8, "maint": 1}


class HAProxy:
    """Answers as HAProxy 2.6 does. ``servers`` maps a name to its values; ``commands`` holds what was asked."""

    def __init__(self, *names: str, backend: str = "vllm") -> None:
        self.backend = backend
        self.commands: list[str] = []
        self.servers: dict[str, dict[str, Any]] = {
            name: {"admin": 0, "op": 2, "scur": 0, "weight": 1, "status": "UP"} for name in names
        }

    def ask(self, command: str) -> str:
        """Return the answer to one command."""
        self.commands.append(command)
        words = command.split()
        if words[:3] == ["show", "servers", "state"]:
            known = words[3:] in ([], [self.backend])
            return self._states() if known else "Can't find backend.\n\n"
        if words[:2] == ["show", "stat"]:
            return self._stat()
        backend, _slash, server = words[2].partition("/")
        if backend != self.backend or server not in self.servers:
            return "No such server.\n\n"
        self.servers[server]["admin"] = ADMIN[words[4]]
        return "\n"

    def _states(self) -> str:
        rows = [
            f"2 {self.backend} {number} {name} 192.0.2.{number} {it['op']} {it['admin']} 1 {it['weight']} 5 8000"
            for number, (name, it) in enumerate(self.servers.items(), 1)
        ]
        return "\n".join(["1", HEADER, *rows, "", ""])

    def _stat(self) -> str:
        rows = [
            f"{self.backend},{name},0,{it['scur']},{it['status']},L7OK,all good" for name, it in self.servers.items()
        ]
        return "\n".join(
            ["# pxname,svname,qcur,scur,status,check_status,last_chk", "other,FRONTEND,,9,OPEN,,", *rows, ""]
        )


class HAProxySocket:
    """The same behind a real Unix socket, at ``path``."""

    def __init__(self, stub: HAProxy, path: Path) -> None:
        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                self.wfile.write(stub.ask(self.rfile.readline().decode().strip()).encode())

        self.server = socketserver.ThreadingUnixStreamServer(str(path), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01})

    def __enter__(self) -> HAProxySocket:
        self.thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()
