"""What the gateway runs before each reload and stop: it asks HAProxy for the servers' states and keeps them."""

from __future__ import annotations

import ast
import re
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

TEMPLATE = (Path(__file__).parents[3] / "roles/gateway/templates/keep-state.py.j2").read_text()


@pytest.fixture
def keep(tmp_path):
    values = {"_gateway_socket": tmp_path / "admin.sock", "_gateway_state_file": tmp_path / "states"}
    script = re.sub(r"{{ (\w+) }}", lambda found: str(values.get(found[1], "managed")), TEMPLATE)
    ast.parse(script, feature_version=(3, 9))  # as old as a host's Python may be

    def run():
        return subprocess.run([sys.executable, "-I", "-c", script], capture_output=True, text=True, check=False)

    return run


def test_the_states_are_kept_whole(keep, tmp_path):
    asked = []
    (tmp_path / "states").write_text("old")

    def answer(server):
        connection = server.accept()[0]
        with connection:
            asked.append(connection.recv(100))
            connection.sendall(b"1\n" + b"# be_id\n" * 20_000)

    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "admin.sock"))
        server.listen()
        thread = threading.Thread(target=answer, args=(server,))
        thread.start()
        done = keep()
        thread.join()
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert asked == [b"show servers state\n"]
    assert (tmp_path / "states").read_bytes() == b"1\n" + b"# be_id\n" * 20_000
    assert sorted(path.name for path in tmp_path.iterdir()) == ["admin.sock", "states"]


def test_without_haproxy_the_last_states_stay(keep, tmp_path):
    (tmp_path / "states").write_text("old")
    done = keep()
    assert done.returncode == 0 and "those of the last decision" in done.stdout
    assert (tmp_path / "states").read_text() == "old"
