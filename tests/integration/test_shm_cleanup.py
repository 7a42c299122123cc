from __future__ import annotations

HOLDER = "integration-holder.service"


def test_what_nobody_uses_goes_and_what_a_process_holds_open_stays(host):
    host.run(
        "cd /dev/shm && head -c 65536 /dev/zero | tee psm_11111111 psm_22222222 psm_33333333 notes.txt > nccl-AbCdEf\n"
        "chown vllm psm_1* psm_2* nccl-AbCdEf notes.txt"
    )
    holder = host.start(HOLDER, "exec 9</dev/shm/psm_22222222 sleep 1000")
    try:
        host.eventually(f"readlink /proc/{holder}/fd/9", "/dev/shm/psm_22222222")
        checked = host.module("shm_cleanup", check=True, owner="vllm")
        assert checked["changed"] and host.run("ls /dev/shm | grep -c 'psm_\\|nccl'") == "4"

        first = host.module("shm_cleanup", owner="vllm")
        assert {one["name"]: (one["verdict"], one["reason"]) for one in first["objects"]} == {
            "nccl-AbCdEf": ("removed", "unused"),
            "psm_11111111": ("removed", "unused"),
            "psm_22222222": ("kept", "in_use"),
            "psm_33333333": ("kept", "other_owner"),
        }
        assert first["changed"] and first["freed_bytes"] == 2 * 65536
        assert host.run("cd /dev/shm && ls notes.txt nccl* psm*", check=False).split() == [
            "notes.txt", "psm_22222222", "psm_33333333",
        ]  # fmt: skip

        second = host.module("shm_cleanup", owner="vllm")
        assert not second["changed"] and second["freed_bytes"] == 0
    finally:
        host.forget(HOLDER)
        host.run("cd /dev/shm && rm -f psm_11111111 psm_22222222 psm_33333333 nccl-AbCdEf notes.txt")
