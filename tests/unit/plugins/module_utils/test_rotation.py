from __future__ import annotations

import threading

import pytest
from ansible_collections.llmops.vllm.plugins.module_utils.errors import InvalidInputError, PreconditionError
from ansible_collections.llmops.vllm.plugins.module_utils.haproxy import Backend
from ansible_collections.llmops.vllm.plugins.module_utils.rotation import Rotation, Wish, one_at_a_time, plan
from ansible_collections.llmops.vllm.tests.unit.haproxy_stub import HAProxy


class Time:
    """A clock that sleeping moves; ``steps`` happen one with each sleep."""

    def __init__(self, *steps):
        self.now = 0.0
        self.steps = list(steps)

    def clock(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds
        if self.steps:
            self.steps.pop(0)()


@pytest.fixture
def stub():
    return HAProxy("gpu-1", "gpu-2", "gpu-3")


@pytest.fixture
def backend(stub):
    return Backend(stub.ask, "vllm")


def decisions(stub):
    return [command for command in stub.commands if command.startswith("set ")]


def test_a_server_that_serves_is_drained(stub, backend, tmp_path):
    found = plan(backend, Wish("gpu-2", "drain", minimum_serving=2))
    assert found.changed and found.serving == ("gpu-1", "gpu-2", "gpu-3")
    state = tmp_path / "state"
    Rotation(backend, Time().clock, Time().sleep, str(state)).apply(found)
    assert decisions(stub) == ["set server vllm/gpu-2 state drain"]
    assert " gpu-2 192.0.2.2 2 8 " in state.read_text() and list(tmp_path.iterdir()) == [state]


def test_what_is_decided_already_is_not_decided_again(stub, backend):
    found = plan(backend, Wish("gpu-2", "ready"))
    Rotation(backend, Time().clock, Time().sleep).apply(found)
    assert not found.changed and decisions(stub) == []


def test_too_few_are_never_left(stub, backend):
    stub.servers["gpu-1"]["op"] = 0
    with pytest.raises(PreconditionError, match=r"Without gpu-2 .* 1 serving \(gpu-3\), and the minimum is 2"):
        plan(backend, Wish("gpu-2", "drain", minimum_serving=2))


def test_what_does_not_serve_takes_nothing_away(stub, backend):
    stub.servers["gpu-2"]["op"] = 0
    assert plan(backend, Wish("gpu-2", "drain", minimum_serving=3)).changed


def test_a_maintenance_of_somebody_else_stays(stub, backend):
    stub.servers["gpu-2"]["admin"] = 1
    for state in ("ready", "drain"):
        found = plan(backend, Wish("gpu-2", state))
        assert (found.changed, found.kept_maintenance, found.state) == (False, True, "maint")
    assert plan(backend, Wish("gpu-2", "ready", end_maintenance=True)).changed


def test_an_unknown_server_is_a_sentence_with_the_known_ones(backend):
    with pytest.raises(PreconditionError, match="no server 'gpu-9'; it has gpu-1, gpu-2, gpu-3"):
        plan(backend, Wish("gpu-9", "drain"))


@pytest.mark.parametrize("values", [{"minimum_serving": -1}, {"timeout_seconds": -1}])
def test_negative_numbers_are_refused(values):
    with pytest.raises(InvalidInputError):
        Wish("gpu-1", "drain", **values)


def test_a_drain_waits_until_the_last_request_is_answered(stub, backend):
    it = stub.servers["gpu-2"]
    it["scur"] = 2
    time = Time(lambda: it.update(scur=1), lambda: it.update(scur=0))
    server, waited = Rotation(backend, time.clock, time.sleep).wait(Wish("gpu-2", "drain", timeout_seconds=60))
    assert server.sessions == 0 and waited == 0.5


def test_a_drain_ends_with_its_time(stub, backend):
    stub.servers["gpu-2"]["scur"] = 2
    time = Time()
    server, waited = Rotation(backend, time.clock, time.sleep).wait(Wish("gpu-2", "drain", timeout_seconds=60))
    assert server.sessions == 2 and waited == 60


def test_what_is_put_back_is_waited_for_until_it_serves(stub, backend):
    it = stub.servers["gpu-2"]
    it["op"] = 0
    time = Time(lambda: None, lambda: it.update(op=2))
    server, waited = Rotation(backend, time.clock, time.sleep).wait(Wish("gpu-2", "ready", timeout_seconds=60))
    assert server.serving and waited == 0.5


def test_two_that_decide_at_once_do_so_one_after_the_other(tmp_path):
    order = []

    def second():
        with one_at_a_time(str(tmp_path)):
            order.append("second")

    with one_at_a_time(str(tmp_path)):
        thread = threading.Thread(target=second)
        thread.start()
        thread.join(0.1)
        order.append("first")
    thread.join()
    assert order == ["first", "second"]


def test_where_haproxy_is_not_there_is_a_sentence(tmp_path):
    with pytest.raises(PreconditionError, match="is HAProxy there"), one_at_a_time(str(tmp_path / "none")):
        pass


def test_a_state_file_that_cannot_be_written_is_a_sentence(backend, tmp_path):
    found = plan(backend, Wish("gpu-2", "drain"))
    with pytest.raises(PreconditionError, match="cannot be kept in"):
        Rotation(backend, Time().clock, Time().sleep, str(tmp_path / "none/state")).apply(found)
