#!/usr/bin/env python3
# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Clients that never stop asking: whole answers, short streams and long ones, each checked to its end.

usage: fleet_client.py HOST PORT CA_FILE KEY MODEL TALLY    TALLY is a file, rewritten after each answer:
one JSON object with answered, streamed, failed, failures (what was wrong with the first ones), longest_seconds
"""

from __future__ import annotations

import http.client
import json
import os
import ssl
import sys
import threading
import time
from dataclasses import asdict, dataclass, field
from typing import Any

PAUSE_SECONDS = 0.2
TIMEOUT_SECONDS = 120


@dataclass
class Tally:
    """What became of the requests so far."""

    path: str
    answered: int = 0
    streamed: int = 0
    failed: int = 0
    failures: list[str] = field(default_factory=list)
    longest_seconds: float = 0.0

    def __post_init__(self) -> None:
        """Make the lock that the clients share."""
        self._lock = threading.Lock()

    def count(self, seconds: float, streamed: bool, failure: str) -> None:
        """Count one request and write the file."""
        with self._lock:
            self.answered += not failure
            self.streamed += streamed and not failure
            self.failed += bool(failure)
            self.failures += [failure] if failure and len(self.failures) < 20 else []
            self.longest_seconds = max(self.longest_seconds, round(seconds, 2))
            with open(self.path + ".new", "w", encoding="utf-8") as stream:
                json.dump(asdict(self), stream)
            os.replace(self.path + ".new", self.path)


class Client:
    """One client, with a new connection for each request."""

    def __init__(self, host: str, port: int, tls: ssl.SSLContext | None, key: str, model: str) -> None:
        self.host, self.port, self.tls, self.key, self.model = host, port, tls, key, model

    def ask(self, tokens: int, streamed: bool) -> str:
        """Ask once; return what is wrong with the answer, or an empty text."""
        body: dict[str, Any] = {"model": self.model, "prompt": "Once", "max_tokens": tokens, "ignore_eos": True}
        if streamed:
            body.update(stream=True, stream_options={"include_usage": True})
        connection = (
            http.client.HTTPSConnection(self.host, self.port, timeout=TIMEOUT_SECONDS, context=self.tls)
            if self.tls
            else http.client.HTTPConnection(self.host, self.port, timeout=TIMEOUT_SECONDS)
        )
        try:
            connection.request(
                "POST",
                "/v1/completions",
                json.dumps(body),
                {"Authorization": f"Bearer {self.key}", "Content-Type": "application/json"},
            )
            response = connection.getresponse()
            text = response.read().decode()
        except (OSError, http.client.HTTPException) as exc:
            return f"{type(exc).__name__}: {exc}"
        finally:
            connection.close()
        if response.status != 200:
            return f"HTTP {response.status}: {text[:200]}"
        return self._judge(text, tokens, streamed)

    @staticmethod
    def _judge(text: str, tokens: int, streamed: bool) -> str:
        if not streamed:
            got = json.loads(text)["usage"]["completion_tokens"]
        else:
            events = [line[6:] for line in text.splitlines() if line.startswith("data: ")]
            if not events or events[-1] != "[DONE]":
                return f"a stream of {len(events)} events without an end"
            got = json.loads(events[-2])["usage"]["completion_tokens"]
        return "" if got == tokens else f"{got} tokens in place of {tokens}"


def ask_forever(client: Client, tally: Tally, tokens: int, streamed: bool) -> None:
    """Ask, count, pause, again."""
    while True:
        began = time.monotonic()
        failure = client.ask(tokens, streamed)
        what = f"{time.strftime('%H:%M:%S')} {'stream' if streamed else 'answer'} of {tokens}: {failure}"
        tally.count(time.monotonic() - began, streamed, what if failure else "")
        time.sleep(PAUSE_SECONDS)


def main() -> None:
    """Start the clients."""
    host, port, ca_file, key, model, path = sys.argv[1:]
    client = Client(host, int(port), ssl.create_default_context(cafile=ca_file) if ca_file else None, key, model)
    tally = Tally(path)
    kinds = [(8, False), (16, True), (200, True)]
    threads = [threading.Thread(target=ask_forever, args=(client, tally, *kind), daemon=True) for kind in kinds]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main()
