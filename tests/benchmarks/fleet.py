#!/usr/bin/env python3
# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Time a fleet: runs with nothing to do, rollouts, and the way back of one that fails, while clients ask all the time.

usage: make bench-fleet    the last line is one JSON object:
    noop_N_seconds               `playbooks/deploy.yml` for N hosts that have the release already; the median
    noop_ratio                   the one of the most hosts, measured in hosts' numbers of the one of one host
    rollout_N_seconds            the same with a new release, where weights and runtime are there
    rollback_seconds             from the verdict on a release until the one before it is proven and gets requests again
    rollback_overhead_seconds    of that, what is neither the engine's own start, by systemd's times, nor the soak
    controller_mb                the most memory that ansible-playbook and its workers had, added up
    controller_cpu_N_seconds     processor time of the controller for a run with nothing to do
    answered, failed_requests    what became of the clients' requests

FLEET_HOSTS=4 takes no more hosts than that, each of them a container with systemd (default 16); FLEET_RUNS is how many
runs a median is taken of (default 3). systemd, HAProxy, ssh and the clients' requests are real. The engine is a
stand-in, tests/rig/stand_in_engine.py, that loads nothing and starts in a second, and all hosts share this machine's
cores. The model's revision is pinned, as it is for a release that is meant to last.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from _measure import CORES, Sample, run

ROOT = Path(__file__).parents[2]
NAME = "bench-fleet"
MODEL_FILE = ROOT / "extensions/molecule/replace/tiny_llama.yml"
STORE = "/srv/llm/store/rehearsal--tiny-llama"
COUNTS = (1, 2, 4, 8, 16)
ROLLOUTS = (1, 4)
HOSTS = int(os.environ.get("FLEET_HOSTS", "16"))
RUNS = int(os.environ.get("FLEET_RUNS", "3"))
TALLY = "/run/fleet-client.json"
CLIENT = [
    "systemd-run", "--collect", "--unit=fleet-client", "python3", "/usr/local/lib/fleet_client.py", "gateway-1", "8443",
    "/etc/haproxy/llmops/own.crt", "sk-client-of-the-rig", "tiny-llama", TALLY,
]  # fmt: skip
ASKING = ["timeout", "60", "sh", "-c", f"until test -s {TALLY}; do sleep 0.2; done"]
VERDICT_TASK = "Keep the verdict"
BACK_TASK = "Fail with the verdict"


@dataclass(frozen=True)
class Fleet:
    """The hosts of the benchmark, and how they are reached."""

    folder: Path
    environment: dict[str, str]
    pinned: dict[str, str] = field(default_factory=dict)

    def playbook(self, name: str, *arguments: str) -> list[str]:
        """Return the command that runs a playbook of this checkout."""
        inventories = ["-i", "inventories/rehearsal", "-i", str(self.folder / "inventory")]
        return [str(ROOT / ".venv/bin/ansible-playbook"), name, *inventories, *arguments]

    def must(self, command: list[str]) -> str:
        """Run a command that prepares something, and return its output."""
        done = subprocess.run(command, cwd=ROOT, env=self.environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{shlex.join(command)}\n{done.stdout[-20000:]}{done.stderr[-2000:]}")
        return done.stdout

    def on(self, host: str, *command: str) -> str:
        """Run a command in a host's container."""
        return self.must([self.environment["RIG_ENGINE"], "exec", f"llmops-{NAME}-{host}", *command])

    def deploy(self, count: int, settings: dict[str, Any]) -> list[str]:
        """Return the user's command for the first ``count`` hosts."""
        limit = ",".join(f"rehearsal-{number}" for number in range(1, count + 1))
        model = {"deploy_model_file": str(MODEL_FILE), **self.pinned}
        return self.playbook(
            "playbooks/deploy.yml", "--limit", limit, "--extra-vars", json.dumps({**model, **settings})
        )

    def measured(self, count: int, settings: dict[str, Any]) -> Sample:
        """Deploy to the first ``count`` hosts, and measure the controller."""
        sample = run(self.deploy(count, settings), environment=self.environment, folder=ROOT, server=[])
        if sample.status:
            raise SystemExit(sample.output[-4000:])
        return sample


def inventory(folder: Path, hosts: int) -> None:
    """Write the inventory: the scenario's, with so many hosts."""
    names: dict[str, Any] = {f"rehearsal-{number}": {} for number in range(1, hosts + 1)}
    (folder / "inventory").mkdir()
    (folder / "inventory/hosts.yml").write_text(
        json.dumps({"vllm": {"hosts": names}, "gateway": {"hosts": {"gateway-1": {}}}})
    )
    (folder / "inventory/group_vars").symlink_to(ROOT / "extensions/molecule/fleet/inventory/group_vars")


def environment_of(folder: Path) -> dict[str, str]:
    """Return the variables that the rig and the inventory read."""
    printed = subprocess.run(["tests/rig/prepare.sh", "env"], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    words = [word for word in shlex.split(printed.stdout) if "=" in word]
    return {
        **os.environ,
        **dict(word.split("=", 1) for word in words),
        "PATH": f"{ROOT}/.venv/bin:{os.environ['PATH']}",
        "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
        "ANSIBLE_NOCOLOR": "1",
        "RIG_DIRECTORY": str(folder / "rig"),
        "MOLECULE_SCENARIO_NAME": NAME,
        "MOLECULE_PROJECT_DIRECTORY": str(ROOT),
    }


@contextmanager
def fleet_of(hosts: int) -> Iterator[Fleet]:
    """Bring up hosts with the stand-in behind a gateway, and deploy to them; remove them afterwards."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        fleet = Fleet(Path(name), environment_of(Path(name)))
        inventory(fleet.folder, hosts)
        try:
            fleet.must(fleet.playbook("tests/rig/playbooks/up.yml"))
            fleet.must(fleet.playbook("extensions/molecule/fleet/prepare.yml"))
            fleet.must(fleet.playbook("playbooks/gateway.yml", "--extra-vars", f"deploy_model_file={MODEL_FILE}"))
            fleet.must(fleet.deploy(hosts, {"deploy_serial": "100%"}))
            fleet.pinned["model_store_revision"] = fleet.on("rehearsal-1", "ls", STORE).strip()
            yield fleet
        finally:
            fleet.must(fleet.playbook("tests/rig/playbooks/down.yml"))


def start_clients(fleet: Fleet) -> None:
    """Let clients ask through the gateway from now on, and see that they do."""
    source = str(ROOT / "tests/rig/fleet_client.py")
    target = f"llmops-{NAME}-gateway-1:/usr/local/lib/fleet_client.py"
    fleet.must([fleet.environment["RIG_ENGINE"], "cp", source, target])
    fleet.on("gateway-1", *CLIENT)
    fleet.on("gateway-1", *ASKING)


def way_back(fleet: Fleet, release: int) -> tuple[float, float, float]:
    """Roll out a release that fails its canary on one host; return the way back's seconds, the engine's, the soak's."""
    canary = {"kind": "completion", "prompt": "Once", "allow_repetition": True, "contains": "what no model says"}
    command = fleet.deploy(1, {**new_release(release), "vllm_rollout_canaries": [canary]})
    seen: dict[str, float] = {}
    with subprocess.Popen(
        command, cwd=ROOT, env={**fleet.environment, "PYTHONUNBUFFERED": "1"}, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout
        for line in process.stdout:
            found = re.match(r"TASK \[(?:\S+ : )?(.*)\] \*", line)
            if found:
                seen.setdefault(found[1], time.monotonic())
    if process.returncode != 2 or VERDICT_TASK not in seen:
        raise SystemExit(f"The release did not fail as it should: status {process.returncode}, {list(seen)[-3:]}.")
    current = fleet.on("rehearsal-1", "cat", "/srv/llm/instances/llm/current/release.json")
    soak = sum(step["seconds"] for step in json.loads(current)["timeline"] if step["phase"] == "soak")
    return seen[BACK_TASK] - seen[VERDICT_TASK], start_seconds(fleet), soak


def start_seconds(fleet: Fleet) -> float:
    """Return how long the first host's present launch took from the start of its process until its unit was active."""
    names = ("ExecMainStartTimestampMonotonic", "ActiveEnterTimestampMonotonic")
    shown = fleet.on("rehearsal-1", "systemctl", "show", "vllm@llm.service", f"--property={','.join(names)}")
    values = dict(line.split("=", 1) for line in shown.split())
    began, active = (int(values[name]) for name in names)
    return (active - began) / 1e6


def new_release(number: int) -> dict[str, Any]:
    """Return settings that make a release of their own."""
    return {
        "vllm_service_unit_settings": {"Environment": f"RELEASE={number}"},
        "vllm_rollout_first_host_soak_seconds": 0,
    }


def measure_noops(fleet: Fleet, hosts: int) -> dict[str, Any]:
    """Time runs with nothing to do."""
    result: dict[str, Any] = {}
    memory = 0
    for count in [count for count in COUNTS if count <= hosts]:
        samples = [fleet.measured(count, {}) for _run in range(RUNS)]
        memory = max(memory, *(sample.rss_bytes for sample in samples))
        changed = sum(int(number) for sample in samples for number in re.findall(r"changed=(\d+)", sample.output))
        if changed:
            raise SystemExit(f"Something changed in a run with nothing to do:\n{samples[-1].output[-3000:]}")
        seconds = statistics.median(sample.seconds for sample in samples)
        used = statistics.median(sample.cpu_seconds for sample in samples)
        shares = ", ".join(f"{sample.seconds:.1f} s" for sample in samples)
        print(f"nothing to do, {count:2} hosts: {shares}; {used:.1f} CPU s of the controller", flush=True)
        result[f"noop_{count}_seconds"] = round(seconds, 2)
        result[f"controller_cpu_{count}_seconds"] = round(used, 2)
        result["noop_ratio"] = round(seconds / result["noop_1_seconds"], 2)
    return {**result, "controller_mb": round(memory / 1e6)}


def measure_rollouts(fleet: Fleet, hosts: int) -> dict[str, Any]:
    """Time rollouts, and the way back of one that fails."""
    result: dict[str, Any] = {}
    for release, count in enumerate([count for count in ROLLOUTS if count <= hosts], 2):
        seconds = fleet.measured(count, new_release(release)).seconds
        print(f"rollout, {count:2} hosts: {seconds:.1f} s", flush=True)
        result[f"rollout_{count}_seconds"] = round(seconds, 2)
    whole, engine, soak = way_back(fleet, 9)
    print(f"way back: {whole:.1f} s, of which the engine's own start {engine:.1f} s, the soak {soak:.1f} s", flush=True)
    return {
        **result,
        "rollback_seconds": round(whole, 2),
        "rollback_overhead_seconds": round(whole - engine - soak, 2),
    }


def main() -> None:
    """Run the benchmark."""
    hosts = max(3, HOSTS)  # a rollout leaves two of them serving
    print(
        f"Stand-in for the engine: tests/rig/stand_in_engine.py. {hosts} hosts are containers that share {CORES} cores."
    )
    with fleet_of(hosts) as fleet:
        result: dict[str, Any] = {"hosts": hosts, **measure_noops(fleet, hosts)}
        start_clients(fleet)
        result.update(measure_rollouts(fleet, hosts))
        tally = json.loads(fleet.on("gateway-1", "cat", TALLY))
        result.update(answered=tally["answered"], failed_requests=tally["failed"])
        for failure in tally["failures"]:
            print(f"a request failed: {failure}")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
