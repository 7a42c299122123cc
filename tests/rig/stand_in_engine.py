#!/usr/bin/python3
# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A light stand-in for vLLM: it loads nothing, starts in a second and answers as the API does, without a model.

Where many hosts share a small machine and what is tried or measured is everything but the engine. Called as the
launcher calls vLLM: stand_in_engine.py serve --config FILE. STAND_IN_START_SECONDS is how long it takes to start, and
STAND_IN_WAITS_FOR a file without which it does not.
It answers /health, /version, /metrics, /v1/models, completions and chats, whole with log probabilities or streamed.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOKEN_SECONDS = 0.02
METRICS = """\
vllm:num_requests_running{{engine="0"}} {running}
vllm:num_requests_waiting{{engine="0"}} 0
vllm:generation_tokens_total{{engine="0"}} {tokens}
"""


class Handler(BaseHTTPRequestHandler):
    """Answers what the gate, the gateway and clients ask."""

    protocol_version = "HTTP/1.1"
    model = ""
    key = os.environ.get("VLLM_API_KEY", "")
    requests = 0
    tokens = 0
    lock = threading.Lock()

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing for each request."""

    def do_GET(self) -> None:
        """Answer what is asked without a key, and /v1/models."""
        if self.path == "/health":
            self._send(200, b"")
        elif self.path == "/version":
            self._send(200, b'{"version": "stand-in"}')
        elif self.path == "/metrics":
            self._send(200, METRICS.format(running=self.requests, tokens=self.tokens).encode())
        elif self._allowed():
            self._send(200, json.dumps({"object": "list", "data": [{"id": self.model, "object": "model"}]}).encode())

    def do_POST(self) -> None:
        """Answer a completion or a chat, whole or as a stream."""
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if not self._allowed():
            return
        with Handler.lock:
            Handler.requests += 1
        try:
            self._complete(asked)
        finally:
            with Handler.lock:
                Handler.requests -= 1
                Handler.tokens += asked.get("max_tokens", 8)

    def _complete(self, asked: dict[str, Any]) -> None:
        tokens = asked.get("max_tokens", 8)
        usage = {"prompt_tokens": 3, "completion_tokens": tokens, "total_tokens": tokens + 3}
        if asked.get("stream"):
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Connection", "close")
            self.end_headers()
            for _token in range(tokens):
                time.sleep(TOKEN_SECONDS)
                self.wfile.write(b'data: {"choices": [{"text": "a"}]}\n\n')
            self.wfile.write(b"data: " + json.dumps({"choices": [], "usage": usage}).encode() + b"\n\ndata: [DONE]\n\n")
            self.close_connection = True
            return
        time.sleep(TOKEN_SECONDS * tokens)
        words = [f" {number}" for number in range(tokens)]
        odds = {"tokens": words, "token_logprobs": [-1.0] * tokens}
        odds["content"] = [{"token": word, "logprob": -1.0} for word in words]
        choice = {"index": 0, "text": " is here", "finish_reason": "length", "logprobs": odds}
        choice["message"] = {"role": "assistant", "content": "hello there"}
        self._send(200, json.dumps({"id": "1", "model": self.model, "choices": [choice], "usage": usage}).encode())

    def _allowed(self) -> bool:
        if not self.key or self.headers.get("Authorization") == f"Bearer {self.key}":
            return True
        self._send(401, b'{"error": "Unauthorized"}')
        return False

    def _send(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def main() -> None:
    """Start after a while, answer, and end at SIGTERM: what is being answered then is cut off."""
    with open(sys.argv[sys.argv.index("--config") + 1], encoding="utf-8") as stream:
        config = dict(re.findall(r"^([a-z-]+): (.*)$", stream.read(), re.MULTILINE))
    time.sleep(float(os.environ.get("STAND_IN_START_SECONDS", "1")))
    while not os.path.exists(os.environ.get("STAND_IN_WAITS_FOR", "/")):
        time.sleep(0.1)
    Handler.model = config["served-model-name"].strip("'\"")
    server = ThreadingHTTPServer((config["host"], int(config["port"])), Handler)
    server.daemon_threads = True
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print("Application startup complete.", flush=True)
    ended.wait()


if __name__ == "__main__":
    main()
