# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a service tells systemd about itself, without systemd's library."""

from __future__ import annotations

import contextlib
import os
import socket


def notify(text: str) -> None:
    """Tell systemd about this service (sd_notify(3)); without systemd nothing happens."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if address:
        name = f"\0{address[1:]}" if address.startswith("@") else address
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.sendto(text.encode(), name)
