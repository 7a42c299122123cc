from __future__ import annotations

import pytest
from ansible_collections.llmops.vllm.plugins.module_utils.errors import InvalidInputError, PreconditionError
from ansible_collections.llmops.vllm.plugins.module_utils.haproxy import Backend, ask_socket
from ansible_collections.llmops.vllm.tests.unit.haproxy_stub import HAProxy, HAProxySocket


@pytest.fixture
def stub():
    return HAProxy("gpu-1", "gpu-2")


def only(backend):
    return backend.servers()[0]


@pytest.mark.parametrize(
    ("admin", "state"),
    [(0, "ready"), (1, "maint"), (4, "maint"), (8, "drain"), (9, "maint"), (16, "drain"), (32, "maint")],
)
def test_what_was_decided_about_a_server_is_told_by_haproxys_bits(stub, admin, state):
    stub.servers["gpu-1"]["admin"] = admin
    assert only(Backend(stub.ask, "vllm")).state == state


@pytest.mark.parametrize(
    ("values", "serving"),
    [
        ({}, True),
        ({"op": 1}, True),
        ({"op": 0}, False),
        ({"op": 3}, False),
        ({"admin": 8}, False),
        ({"weight": 0}, False),
    ],
)
def test_a_server_serves_when_it_is_ready_healthy_and_has_a_weight(stub, values, serving):
    stub.servers["gpu-1"].update(values)
    assert only(Backend(stub.ask, "vllm")).serving is serving


def test_requests_and_the_last_check_come_from_the_backends_own_lines(stub):
    stub.servers["gpu-1"].update(scur=3, status="DOWN")
    server = only(Backend(stub.ask, "vllm"))
    assert (server.sessions, server.check, server.address) == (3, "DOWN L7OK all good", "192.0.2.1:8000")


def test_an_unknown_backend_is_a_sentence(stub):
    with pytest.raises(PreconditionError, match="no backend 'other'"):
        Backend(stub.ask, "other").servers()


def test_a_refusal_is_told_in_haproxys_words(stub):
    with pytest.raises(PreconditionError, match=r"vllm/gpu-9 to drain: No such server\."):
        Backend(stub.ask, "vllm").set_state("gpu-9", "drain")


@pytest.mark.parametrize("name", ["", "a b", "a;disable server", "a\nshow env", "a/b"])
def test_a_name_cannot_smuggle_in_a_command(stub, name):
    with pytest.raises(InvalidInputError):
        Backend(stub.ask, name)
    with pytest.raises(InvalidInputError):
        Backend(stub.ask, "vllm").set_state(name, "drain")
    assert stub.commands == []


def test_answers_come_over_the_socket(stub, tmp_path):
    with HAProxySocket(stub, tmp_path / "admin.sock"):
        assert ask_socket(str(tmp_path / "admin.sock"), "show servers state vllm").startswith("1\n# be_id")


def test_a_haproxy_that_is_not_there_is_a_sentence(tmp_path):
    with pytest.raises(PreconditionError, match=r"does not answer at .*systemctl status haproxy"):
        ask_socket(str(tmp_path / "none.sock"), "show stat")
