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
