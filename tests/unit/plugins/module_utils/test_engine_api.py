from __future__ import annotations

import json
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from ansible_collections.llmops.vllm.plugins.module_utils.engine_api import EngineApi, error_message, read_api_key
from ansible_collections.llmops.vllm.plugins.module_utils.errors import InvalidInputError


class Handler(BaseHTTPRequestHandler):
    def answer(self, status, content):
        self.send_response(status)
        if status == 302:
            self.send_header("Location", "http://127.0.0.1:1/elsewhere")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def do_GET(self):
        if self.path == "/hang":
            self.server.release.wait(5)
            return
        pages = {
            "/ok": (200, json.dumps({"auth": self.headers.get("Authorization")}).encode()),
            "/empty": (200, b""),
            "/html": (200, b"<html>"),
            "/error": (500, b'{"error": {"message": "it is dead", "code": 500}}'),
            "/old": (404, b'{"object": "error", "message": "no such model"}'),
            "/move": (302, b"{}"),
            "/nan": (200, b'{"x": NaN}'),
        }
        self.answer(*pages[self.path])

    def do_POST(self):
        if self.path == "/stream":
            self.stream(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            return
        content = self.rfile.read(int(self.headers["Content-Length"]))
        self.answer(200, json.dumps({"got": json.loads(content)}).encode())

    def stream(self, pieces):
        self.send_response(200)
        self.end_headers()
        for piece in pieces:
            if piece == "hang":
                self.wfile.flush()
                self.server.release.wait(5)
                return
            text = piece if piece == "[DONE]" else json.dumps({"choices": [{"text": piece}]})
            self.wfile.write(f"data: {text}\n\n".encode())

    def log_message(self, *arguments):
        pass


@pytest.fixture
def port():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.release = threading.Event()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server.server_address[1]
    server.release.set()
    server.shutdown()
    thread.join()
    server.server_close()


def test_answers_are_parsed(port):
    api = EngineApi("127.0.0.1", port)
    assert (api.get("/ok", 5).status, api.get("/ok", 5).body) == (200, {"auth": None})
    assert api.get("/empty", 5).body is None
    assert "no JSON" in api.get("/html", 5).problem
    assert api.get("/nan", 5).body["x"] != api.get("/nan", 5).body["x"]
    assert api.post("/any", {"a": 1}, 5).body == {"got": {"a": 1}}


def test_a_stream_is_put_together_and_its_first_token_timed(port):
    times = iter([10.0, 10.2, 10.3, 10.3, 10.3, 10.3, 10.3, 10.3])
    answer = EngineApi("127.0.0.1", port, clock=lambda: next(times)).stream("/stream", ["Par", "is", "[DONE]"], 5)
    assert (answer.status, answer.problem, answer.first_token_seconds) == (200, "", pytest.approx(0.2))
    assert answer.body["choices"][0]["text"] == "Paris"


def test_a_stream_that_breaks_off_hangs_or_drips_is_no_answer(port):
    api = EngineApi("127.0.0.1", port)
    assert api.stream("/stream", ["Par"], 5).problem == "the answer broke off"
    assert api.stream("/stream", ["Par", "hang"], 0.1).problem == "no answer within 0.1 s"
    times = iter([10.0, 10.2, 16.0])
    dripping = EngineApi("127.0.0.1", port, clock=lambda: next(times))
    assert dripping.stream("/stream", ["Par", "is", "[DONE]"], 5).problem == "no complete answer within 5 s"


def test_errors_carry_the_engines_message(port):
    api = EngineApi("127.0.0.1", port)
    assert (api.get("/error", 5).status, api.get("/error", 5).problem) == (500, "it is dead")
    assert api.get("/old", 5).problem == "no such model"


def test_the_key_goes_to_the_engine_and_a_redirect_is_not_followed(port):
    api = EngineApi("127.0.0.1", port, "sk-1")
    assert api.get("/ok", 5).body == {"auth": "Bearer sk-1"}
    assert (api.get("/move", 5).status, api.get("/move", 5).problem) == (302, "HTTP status 302")


def test_proxy_variables_are_ignored(port, monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.delenv("no_proxy", raising=False)
    assert EngineApi("127.0.0.1", port).get("/ok", 5).status == 200


def test_no_answer_in_time_is_an_answer(port):
    answer = EngineApi("127.0.0.1", port).get("/hang", 0.1)
    assert (answer.status, answer.problem) == (0, "no answer within 0.1 s")


def test_a_refused_connection_is_an_answer():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        closed = free.getsockname()[1]
    assert EngineApi("127.0.0.1", closed).get("/ok", 5).problem == "connection refused"


def test_a_connection_closed_without_words_is_an_answer():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()

        def close_it():
            connection, _ = listener.accept()
            connection.recv(100)
            connection.close()

        thread = threading.Thread(target=close_it)
        thread.start()
        answer = EngineApi("127.0.0.1", listener.getsockname()[1]).get("/ok", 5)
        thread.join()
    assert (answer.status, answer.problem) == (0, "the connection was closed without an answer")


@pytest.mark.parametrize("body", [None, [], "x", {"error": 5}, {"error": {"message": 5}}])
def test_an_odd_error_has_no_message(body):
    assert error_message(body) == ""


def test_a_key_is_read_from_its_file(tmp_path):
    path = tmp_path / "key"
    path.write_text("sk-abc\n")
    assert read_api_key(str(path)) == "sk-abc"


@pytest.mark.parametrize("content", [b"", b"\n", b"one two", b"a\nb", b"\xff\xfe", b"x" * 5000])
def test_what_is_no_key_is_refused_without_being_quoted(tmp_path, content):
    path = tmp_path / "key"
    path.write_bytes(content)
    with pytest.raises(InvalidInputError, match="one API key") as caught:
        read_api_key(str(path))
    text = content.decode("latin-1").strip()
    assert not text or text not in caught.value.message


def test_a_key_file_that_is_absent_or_no_file_is_refused(tmp_path):
    with pytest.raises(InvalidInputError, match="cannot be read: No such file"):
        read_api_key(str(tmp_path / "absent"))
    with pytest.raises(InvalidInputError, match=r"cannot be read|not a regular file"):
        read_api_key(str(tmp_path))
    with pytest.raises(InvalidInputError, match="not a regular file"):
        read_api_key("/dev/null")


def test_a_port_without_a_listener_refuses_and_one_with_a_listener_does_not():
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        api = EngineApi("127.0.0.1", listening.getsockname()[1])
        assert api.refuses()
        listening.listen()
        assert not api.refuses()


def test_what_is_no_json_is_read_as_text(port):
    api = EngineApi("127.0.0.1", port)
    assert api.text("/html", 5) == "<html>"
    assert api.text("/error", 5) is None
    assert EngineApi("127.0.0.1", 1).text("/html", 5) is None
