from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from ansible_collections.llmops.vllm.plugins.modules import vllm_status


class Engine(BaseHTTPRequestHandler):
    def do_GET(self):
        body = b"vllm:generation_tokens_total 10\n" if self.path == "/metrics" else b""
        self.send_response(200 if body else 404)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_args):
        pass


@pytest.fixture
def engine():
    server = HTTPServer(("127.0.0.1", 0), Engine)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server.server_address
    server.shutdown()
    thread.join()
    server.server_close()


def test_metrics_are_text_without_a_key(engine):
    assert vllm_status.metrics(*engine).startswith("vllm:generation_tokens_total")


def test_an_engine_that_is_not_there_has_none(engine):
    assert vllm_status.metrics("127.0.0.1", 1) is None


@pytest.mark.parametrize("check", [False, True])
def test_a_host_is_described_without_a_change(run_module, tmp_path, check):
    (tmp_path / "instances/kimi").mkdir(parents=True)
    result = run_module(vllm_status, check=check, root=str(tmp_path), run_path=str(tmp_path / "run"))
    assert result["changed"] is False
    (one,) = result["instances"]
    assert (one["instance"], one["release"], one["lock"], one["tokens_per_second"]) == ("kimi", "", None, None)


def test_bad_names_are_one_sentence(run_module, tmp_path):
    assert run_module(vllm_status, root=str(tmp_path), instances=["../x"])["failed"] is True
