from __future__ import annotations

import json
import time

UNIT = "integration-launch.service"


def launch(host, line):
    """Let a service print a line and fail; return its invocation."""
    host.run(f"systemctl reset-failed {UNIT}", check=False)
    host.start(UNIT, f'echo "{line}"; exit 1')
    host.eventually(f"systemctl show -p ActiveState --value {UNIT}", "failed")
    return host.run(f"systemctl show -p InvocationID --value {UNIT}")


def test_a_host_with_nothing_on_it_says_so(host):
    result = host.module("vllm_instance_info", instance="integration-none")
    assert (result["changed"], result["exists"], result["proven"], result["current"]) == (False, False, False, None)
    assert (result["unit"]["systemd"], result["unit"]["load_state"]) == (True, "not-found")


def test_a_launch_that_dies_at_once_fails_in_seconds_with_its_own_evidence(host):
    try:
        earlier = launch(host, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB")
        invocation = launch(host, "RuntimeError: expected scalar type BFloat16 but found Float8_e4m3fn")
        assert earlier != invocation
        start = time.monotonic()
        result = host.module(
            "launch_gate", unit=UNIT, port=18432, served_model="kimi", canaries=[{"prompt": "Say hello."}]
        )
        assert time.monotonic() - start < 20
        assert result["failed"] and result["verdict"] == "failed" and result["invocation_id"] == invocation
        assert "Float8_e4m3fn" in result["msg"] and invocation in result["msg"], result["msg"]
        assert "Float8_e4m3fn" in result["diagnosis"]["evidence"][0]["text"]
        assert "OutOfMemory" not in json.dumps(result)
    finally:
        host.forget(UNIT)


def test_the_last_words_that_journald_read_too_late_to_know_their_launch_are_found(host):
    line = "RuntimeError: expected scalar type BFloat16 but found Float8_e4m3fn"
    try:
        earlier = launch(host, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB")
        # journald looks up the launch of a line when it reads it; this one it reads when the unit has failed.
        host.run(
            f"systemctl reset-failed {UNIT}\n"
            "journald=$(systemctl show -p MainPID --value systemd-journald.service)\n"
            "trap 'kill -CONT $journald' EXIT\n"
            "kill -STOP $journald\n"
            f"systemd-run --quiet --unit={UNIT} --uid=vllm bash -c 'echo \"{line}\"; exit 1'\n"
            f"for _ in $(seq 100); do systemctl is-failed --quiet {UNIT} && break; sleep 0.1; done\n"
        )
        host.run("journalctl --sync")
        invocation = host.run(f"systemctl show -p InvocationID --value {UNIT}")
        assert invocation != earlier
        assert line not in host.run(f"journalctl --no-pager -o cat _SYSTEMD_INVOCATION_ID={invocation}", check=False)
        result = host.module(
            "launch_gate", unit=UNIT, port=18432, served_model="kimi", canaries=[{"prompt": "Say hello."}]
        )
        assert result["failed"] and result["invocation_id"] == invocation
        assert result["diagnosis"]["evidence"][0]["text"] == line
        assert "OutOfMemory" not in json.dumps(result)
    finally:
        host.forget(UNIT)


def test_a_diagnosis_reads_the_last_launch_of_a_unit_and_no_other(host):
    try:
        earlier = launch(host, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB")
        invocation = launch(host, "RuntimeError: Resource temporarily unavailable")
        result = host.module("launch_diagnosis", unit=UNIT)
        assert (result["cause_class"], result["invocation_id"], result["changed"]) == ("host_limits", invocation, False)
        assert "OutOfMemory" not in json.dumps(result)
        assert host.module("launch_diagnosis", unit=UNIT, invocation_id=earlier)["invocation_id"] == earlier
    finally:
        host.forget(UNIT)
    # systemd knows nothing of the unit any more, the journal does.
    assert host.module("launch_diagnosis", unit=UNIT)["invocation_id"] == invocation
