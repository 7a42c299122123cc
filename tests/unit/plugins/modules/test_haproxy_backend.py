from __future__ import annotations

import pytest
from ansible_collections.llmops.vllm.plugins.modules import haproxy_backend
from ansible_collections.llmops.vllm.tests.unit.haproxy_stub import HAProxy, HAProxySocket


@pytest.fixture
def stub():
    return HAProxy("gpu-1", "gpu-2")


@pytest.fixture
def socket(stub, tmp_path):
    with HAProxySocket(stub, tmp_path / "admin.sock"):
        yield str(tmp_path / "admin.sock")


def test_a_server_is_drained_once(run_module, stub, socket):
    asked = {"backend": "vllm", "server": "gpu-1", "state": "drain", "minimum_serving": 1, "socket": socket}
    first = run_module(haproxy_backend, **asked)
    assert (first["changed"], first["drained"], first["state_before"]) == (True, True, "ready")
    assert first["server"]["state"] == "drain" and not first["server"]["serving"]
    assert first["diff"] == {"before": {"gpu-1": "ready"}, "after": {"gpu-1": "drain"}}
    assert run_module(haproxy_backend, **asked)["changed"] is False


def test_check_mode_tells_and_decides_nothing(run_module, stub, socket):
    result = run_module(haproxy_backend, check=True, backend="vllm", server="gpu-1", state="drain", socket=socket)
    assert result["changed"] and result["server"]["state"] == "ready"
    assert not [command for command in stub.commands if command.startswith("set")]


def test_what_still_has_requests_when_its_time_is_over_is_no_failure(run_module, stub, socket):
    stub.servers["gpu-1"]["scur"] = 1
    result = run_module(
        haproxy_backend, backend="vllm", server="gpu-1", state="drain", socket=socket, timeout_seconds=0.1
    )
    assert result["changed"] and result["drained"] is False and result["server"]["sessions"] == 1


def test_a_server_that_its_checks_find_ill_is_a_failure(run_module, stub, socket):
    stub.servers["gpu-1"].update(op=0, status="DOWN", admin=8)
    result = run_module(
        haproxy_backend, backend="vllm", server="gpu-1", state="ready", socket=socket, timeout_seconds=0.1
    )
    assert result["failed"] and "gets no requests" in result["msg"] and "DOWN L7OK" in result["msg"]


def test_a_maintenance_is_left_and_not_waited_for(run_module, stub, socket):
    stub.servers["gpu-1"]["admin"] = 1
    result = run_module(haproxy_backend, backend="vllm", server="gpu-1", state="ready", socket=socket)
    assert (result["changed"], result["kept_maintenance"]) == (False, True)


def test_too_few_left_is_a_failure_that_names_them(run_module, stub, socket):
    result = run_module(
        haproxy_backend, backend="vllm", server="gpu-1", state="drain", minimum_serving=2, socket=socket
    )
    assert result["failed"] and result["serving"] == ["gpu-1", "gpu-2"]


def test_a_haproxy_that_is_not_there_is_a_sentence(run_module, tmp_path):
    result = run_module(
        haproxy_backend, backend="vllm", server="gpu-1", state="drain", socket=str(tmp_path / "admin.sock")
    )
    assert result["failed"] and "does not answer" in result["msg"]
