"""A download as a service of its own: what happens to it when the controller is lost, and when somebody stops it."""

from __future__ import annotations

import json
import re

import pytest

HUB = "http://hub:8080"  # the rig's nginx
KIMI = "rehearsal/tiny-kimi-k2.5-nvfp4"
STORE = "/srv/llm/detached"
TOKEN = "hf_5ecretOfTheDetachedDownload"
UNITS = "'llmops-model-*'"
PLAYBOOK = ("integration/playbooks/model.yml", "-e", json.dumps({"store": STORE, "token": TOKEN}))
# The pattern is on no command line, and so is not found in this script itself.
SEARCH = f"""
{{
  journalctl --no-pager --output=export
  systemctl show {UNITS}
  grep -rs '' /run/llmops-model {STORE}/*/*/.llmops/*.json
  cat /proc/[0-9]*/cmdline /proc/[0-9]*/environ
}} 2>/dev/null | grep -a -c -f <(echo {TOKEN}) || true
"""


def shards(host, **changes):
    return host.module(
        "model_shards",
        **{
            "repo": KIMI, "revision": host.commits[KIMI], "endpoint": HUB, "store": STORE, "reserve_bytes": 0,
            "group": "vllm", "file_mode": "0640", "directory_mode": "0750", "detach": True, **changes,
        },
    )  # fmt: skip


def show(host, name):
    return host.run(f"systemctl show -p {name} --value {UNITS}")


def lose_the_controller(host):
    """Begin a download of some seconds, kill what began it when it is under way, and freeze it to look at it."""
    with host.controller(*PLAYBOOK):
        host.eventually(f"cat {STORE}/*/*/.llmops/status.json | grep -c 'files_done.: [1-9]' || true", "1", 60)
        host.run(f"systemctl kill -s STOP {UNITS}")


@pytest.fixture(autouse=True)
def clean(host):
    """Nothing of it is there, before and after."""
    host.run(f"rm -rf {STORE}")
    yield
    host.run(f"systemctl stop {UNITS}; systemctl reset-failed {UNITS}; rm -rf {STORE}", check=False)


def test_a_download_outlives_its_controller_and_the_next_run_finds_it(host):
    lose_the_controller(host)
    invocation = show(host, "InvocationID")
    assert host.run(f"systemctl is-active {UNITS}") == "active" and invocation
    assert re.search(r'Status: "\d+/126 files, .* of 12 MB, .*/s', host.run(f"systemctl status --no-pager {UNITS}"))
    assert host.run(SEARCH) == "0", "the token is in no log, file, argument or environment"
    inside = f"nsenter --mount --target {show(host, 'MainPID')} sh -c"
    host.run(f"{inside} 'touch {STORE}/x && rm {STORE}/x && ! touch /etc/x && ! touch /var/x'")

    with host.controller(*PLAYBOOK) as attached:
        assert any(re.search(r"integration-1: \d+/126 files, .* of 12 MB", line) for line in attached.stdout)
        host.run(f"systemctl kill -s CONT {UNITS}")
        output, _ = attached.communicate()
    assert attached.returncode == 0 and "changed=1" in output, output
    launches = "journalctl --no-pager --output=export --unit='llmops-model-*' | grep ^INVOCATION_ID= | sort -u"
    assert host.run(launches) == f"INVOCATION_ID={invocation}", "there was one worker"
    checked = shards(host, state="verified")
    assert not checked.get("failed"), checked
    assert host.run("ls /run/llmops-model/*/worker.zip /run/llmops-model/*/job.json", check=False) == ""
    assert host.run(SEARCH) == "0"


def test_a_download_that_is_stopped_resumes(host):
    lose_the_controller(host)
    unit = show(host, "Id")
    host.run(f"systemctl stop {unit}")
    assert host.run(f"systemctl is-failed {unit}", check=False) == "inactive", "stopped is not failed"
    assert "SIGTERM; what arrived is kept" in host.run(f"journalctl --no-pager --unit {unit}")

    resumed = shards(host)
    assert resumed["changed"] and resumed["reused_bytes"] > 0, resumed
    assert resumed["fetched_bytes"] + resumed["reused_bytes"] == resumed["total_bytes"]
    again = shards(host)
    assert not again["changed"] and again["requests"] == 0
