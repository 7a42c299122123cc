from __future__ import annotations

import pytest

PORT = 18431
STUBBORN = 'trap "" TERM; sleep 1000 & sleep 1000 & wait; sleep 1000'


@pytest.fixture
def unit(host):
    """A service that forks and that TERM does not end."""
    name = "integration-stubborn.service"
    host.start(name, STUBBORN)
    host.eventually("pgrep -u vllm -c", "3")
    yield name
    host.forget(name)


def test_a_unit_that_ignores_term_is_listed_then_ended_then_nothing_is_left_to_do(host, unit):
    pids = {int(pid) for pid in host.run("pgrep -u vllm").split()}
    wanted = {"unit": unit, "owner": "vllm", "grace_seconds": 1, "kill_seconds": 10}

    listed = host.module("process_teardown", check=True, **wanted)
    assert listed["changed"] and {target["pid"] for target in listed["targets"]} == pids and listed["ended"] == []
    assert {int(pid) for pid in host.run("pgrep -u vllm").split()} == pids
    assert "sleep 1000" in str(listed["diff"])

    ended = host.module("process_teardown", **wanted)
    assert ended["changed"] and ended["survivors"] == []
    assert {one["pid"]: one["signal"] for one in ended["ended"]} == dict.fromkeys(pids, "KILL")
    assert host.run("pgrep -u vllm", check=False) == ""

    again = host.module("process_teardown", **wanted)
    assert (again["changed"], again["targets"], again["ended"]) == (False, [], [])


def test_a_listener_of_somebody_else_is_refused_and_survives(host):
    name = "integration-foreign.service"
    pid = host.start(name, f"exec python3 -m http.server {PORT} --bind 127.0.0.1", "nobody")
    try:
        host.eventually(f"ss -Hltn sport = {PORT} | wc -l", "1")
        result = host.module("process_teardown", port=PORT, owner="vllm", grace_seconds=1)
        assert result["failed"] and str(pid) in result["msg"] and name in result["msg"] and "nobody" in result["msg"]
        assert host.run(f"systemctl show -p MainPID,ActiveState --value {name}").split() == [str(pid), "active"]
    finally:
        host.forget(name)


def test_an_orphaned_engine_is_ended_and_one_of_another_user_is_not(host):
    leftover, decoy = "integration-leftover.service", "integration-decoy.service"
    title = "exec -a VLLM::EngineCore sleep 1000"
    host.start(leftover, f"({title}) & sleep 0.3", "vllm", "-p KillMode=process")
    decoy_pid = host.start(decoy, f"{title} & wait", "nobody", "-p KillMode=process")
    try:
        host.eventually(f"systemctl show -p ActiveState --value {leftover}", "inactive")
        orphan = int(host.run("pgrep -u vllm -f ^VLLM::EngineCore"))
        others = host.run("pgrep -u nobody -f ^VLLM::EngineCore")
        result = host.module("process_teardown", owner="vllm", orphans=True, title="VLLM::.*", grace_seconds=2)
        assert [one["pid"] for one in result["ended"]] == [orphan]
        assert host.run("pgrep -u vllm", check=False) == ""
        assert host.run("pgrep -u nobody -f ^VLLM::EngineCore") == others != ""
        assert host.run(f"systemctl show -p MainPID --value {decoy}") == str(decoy_pid)
    finally:
        host.forget(leftover, decoy)
