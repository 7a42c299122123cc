#!/usr/bin/env python3
# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Many light processes that wait. Every one of them ends by itself when the standard input that they share ends.

usage: _crowd.py COUNT FILES [--cgroup PATH] [--ignore-term] [--hold]
Prints one line when all are there: with --hold the TCP port on which they listen, otherwise 0.
"""

from __future__ import annotations

import argparse
import gc
import os
import signal
import socket
from pathlib import Path


def open_files(count: int) -> None:
    """Open `count` descriptors of the kinds that a server has."""
    ends: list[int] = []
    while len(ends) < count:
        ends += [os.open(__file__, os.O_RDONLY) for _ in range(3)]
        ends += os.pipe()
        ends += [end.detach() for end in socket.socketpair()]
        ends.append(os.open("/dev/null", os.O_RDWR))
    for surplus in ends[count:]:
        os.close(surplus)


def hold() -> tuple[int, list[int]]:
    """Listen on a port of loopback and open a device; return the port and the descriptors."""
    server = socket.create_server(("127.0.0.1", 0))
    port = server.getsockname()[1]
    return port, [server.detach(), os.open("/dev/full", os.O_RDWR)]


def wait() -> None:
    """Stay until the standard input ends."""
    while os.read(0, 1):
        pass
    os._exit(0)


def join(group: Path) -> None:
    """Move this process into a control group."""
    (group / "cgroup.procs").write_text(str(os.getpid()), encoding="ascii")


def home_of(group: Path) -> Path:
    """The group of the same hierarchy in which this process is."""
    lines = Path("/proc/self/cgroup").read_text(encoding="ascii").splitlines()
    own = next(line[3:] for line in lines if line.startswith("0::"))
    mount = next(path for path in group.parents if os.path.ismount(path))
    return mount / own.lstrip("/")


def main() -> None:
    """Fork and wait."""
    parser = argparse.ArgumentParser()
    parser.add_argument("count", type=int)
    parser.add_argument("files", type=int)
    parser.add_argument("--cgroup", type=Path)
    parser.add_argument("--ignore-term", action="store_true")
    parser.add_argument("--hold", action="store_true")
    arguments = parser.parse_args()

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody stays a zombie
    if arguments.ignore_term:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    port, held = hold() if arguments.hold else (0, [])
    open_files(arguments.files - 3 - len(held))
    home = home_of(arguments.cgroup) if arguments.cgroup else None
    if home:
        join(arguments.cgroup)
    gc.freeze()
    for _number in range(arguments.count):
        if os.fork() == 0:
            wait()
    if home:
        join(home)
    for descriptor in held:
        os.close(descriptor)
    print(port, flush=True)
    wait()


if __name__ == "__main__":
    main()
