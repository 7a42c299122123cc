from __future__ import annotations

import socket

from ansible_collections.llmops.vllm.plugins.module_utils.sd_notify import notify


def test_systemd_is_told_over_its_socket(tmp_path, monkeypatch):
    path = tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(path))
        monkeypatch.setenv("NOTIFY_SOCKET", str(path))
        notify("READY=1\nSTATUS=37/119 files")
        assert receiver.recv(1000) == b"READY=1\nSTATUS=37/119 files"
    notify("STATUS=nobody listens any more")
    monkeypatch.delenv("NOTIFY_SOCKET")
    notify("STATUS=there is no systemd")
