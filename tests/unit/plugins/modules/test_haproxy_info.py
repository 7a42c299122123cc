from __future__ import annotations

import pytest
from ansible_collections.llmops.vllm.plugins.modules import haproxy_info
from ansible_collections.llmops.vllm.tests.unit.haproxy_stub import HAProxy, HAProxySocket


@pytest.fixture
def stub():
    return HAProxy("gpu-1", "gpu-2", "gpu-3", "gpu-4")


@pytest.fixture
def look(run_module, stub, tmp_path):
    socket = tmp_path / "admin.sock"

    def call(check=False, **params):
        return run_module(haproxy_info, check=check, **{"backend": "vllm", "socket": str(socket), **params})

    with HAProxySocket(stub, socket):
        yield call


@pytest.mark.parametrize("check", [False, True])
def test_who_gets_requests_is_told_and_nothing_decided(look, stub, check):
    result = look(check)
    assert (result["changed"], result["serving"]) == (False, ["gpu-1", "gpu-2", "gpu-3", "gpu-4"])
    assert not [command for command in stub.commands if command.startswith("set")]


def test_drained_ill_weightless_and_kept_servers_get_none(look, stub):
    stub.servers["gpu-1"]["admin"] = 8
    stub.servers["gpu-2"].update(op=0, status="DOWN")
    stub.servers["gpu-3"]["weight"] = 0
    result = look()
    assert result["serving"] == ["gpu-4"]
    stub.servers["gpu-4"]["admin"] = 1
    assert look()["serving"] == []


def test_each_server_is_described(look, stub):
    stub.servers["gpu-2"].update(admin=8, scur=3)
    first, second, *_others = look()["servers"]
    assert first["name"] == "gpu-1" and first["serving"] is True
    assert second == {
        "name": "gpu-2",
        "address": "192.0.2.2:8000",
        "state": "drain",
        "healthy": True,
        "serving": False,
        "weight": 1,
        "sessions": 3,
        "check": "UP L7OK all good",
    }


@pytest.mark.parametrize(
    ("params", "sentence"),
    [
        ({"backend": "other"}, "knows no backend 'other'"),
        ({"backend": "vllm\nset server"}, "a name of HAProxy is"),
        ({"socket": "/nonexistent/admin.sock"}, "does not answer at /nonexistent/admin.sock"),
    ],
)
def test_bad_input_and_a_haproxy_that_is_not_there_fail_with_one_sentence(look, params, sentence):
    result = look(**params)
    assert result["failed"] is True and sentence in result["msg"]
