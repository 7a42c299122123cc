#!/usr/bin/env python3
# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Interrupt rollouts at seeded points, and see that each ends in a release that has proved itself.

usage: interruptions.py --host NAME --container NAME --instance NAME [--count N] [--seed N] [--kind kill|restart]
                        -- COMMAND...

A point is a task, a moment after it began, and what happens then: the run is killed, or the host is restarted. The
command deploys to the host, one of two releases by ``--extra-vars interruption_seqs=N``. After the interruption the
next run, which wants the same release or the one before, has to end with that one proven and serving; a host that was
restarted has to be at the proven release before that. The last line is one JSON object. Exit status 1 when any point
ended elsewhere.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

# Of the play that touches the service: every task that leaves something behind, in order.
TASKS = (
    "Lock the instance",
    "Write down what is intended",
    "Stop the instance",
    "Install the launcher",
    "Make the release the current one",
    "Start the instance",
    "Wait until this launch has proven itself",
    "Keep the receipt",
    "Let other runs in again",
)
KINDS = ("kill", "restart")
SEQS = (4, 5)
LOOK = """
import json, os, subprocess, sys
instance = sys.argv[1]
home = f"/srv/llm/instances/{instance}"
def link(name):
    path = os.path.join(home, name)
    return os.path.basename(os.readlink(path)) if os.path.islink(path) else None
def receipt(release):
    try:
        return json.load(open(f"/srv/llm/releases/{instance}/{release}/release.json"))
    except OSError:
        return {}
shown = subprocess.run(["systemctl", "show", f"vllm@{instance}", "--property=ActiveState,InvocationID,ExecMainStatus"],
                       capture_output=True, text=True).stdout
unit = dict(line.split("=", 1) for line in shown.splitlines())
intent = os.path.join(home, "intent.json")
print(json.dumps({
    "current": link("current"), "proven": link("proven"), "outcome": receipt(link("current")).get("outcome"),
    "intent": json.load(open(intent)) if os.path.exists(intent) else None,
    "locked": os.path.exists(f"/run/llmops-vllm/{instance}.lock"), "unit": unit["ActiveState"],
    "same_unit": open("/etc/systemd/system/vllm@.service").read()
                 == open(f"{home}/current/vllm@.service").read(),
}))
"""


@dataclass(frozen=True)
class Point:
    """After ``task`` began, and ``delay_seconds`` more: ``kind`` kill or restart; then the next run wants ``then``."""

    task: str
    delay_seconds: float
    kind: str
    then: str


class Rig:
    """One host and the command that deploys to it."""

    def __init__(self, host: str, container: str, instance: str, command: list[str]) -> None:
        self._host = host
        self._container = container
        self._instance = instance
        self._command = command
        self._engine = os.environ["RIG_ENGINE"]

    def start(self, seqs: int) -> subprocess.Popen[str]:
        """Start a deployment of the release with ``seqs``."""
        command = [*self._command, "--limit", self._host, "--extra-vars", f"interruption_seqs={seqs}"]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def deploy(self, seqs: int) -> str:
        """Deploy to the end; return what was printed, and raise RuntimeError with it on failure."""
        run = self.start(seqs)
        output, _ = run.communicate()
        if run.returncode != 0:
            raise RuntimeError(output)
        return output

    def interrupt(self, point: Point, seqs: int) -> bool:
        """Begin a deployment and interrupt it; return whether the point was reached."""
        run = self.start(seqs)
        if run.stdout is None:
            return False
        rollout = False
        for line in run.stdout:
            rollout = rollout or line.startswith("PLAY [Roll the release out")
            if rollout and line.startswith("TASK [") and point.task in line:
                time.sleep(point.delay_seconds)
                if point.kind == "restart":
                    self.engine("kill", "--signal", "KILL", self._container)
                run.kill()
                break
        reached = run.poll() is None or run.wait() == -signal.SIGKILL
        run.stdout.close()
        run.wait()
        if point.kind == "restart" and reached:
            self.boot()
        return reached

    def boot(self) -> None:
        """Bring the host back, as after a power cut."""
        self.engine("start", self._container)
        for _ in range(120):
            if self.engine("exec", self._container, "systemctl", "is-system-running") in ("running", "degraded"):
                break
            time.sleep(0.5)
        root = os.path.dirname(os.path.abspath(__file__))
        inventory = [argument for argument in self._command if argument.startswith("--inventory=")]
        subprocess.run(
            ["ansible-playbook", *inventory, f"{root}/playbooks/up.yml"], stdout=subprocess.DEVNULL, check=True
        )

    def engine(self, *arguments: str) -> str:
        """Run the container engine; return what it printed."""
        done = subprocess.run([self._engine, *arguments], capture_output=True, text=True, check=False)
        return done.stdout.strip()

    def look(self) -> dict[str, object]:
        """Return what the instance is."""
        answer: dict[str, object] = json.loads(
            self.engine("exec", self._container, "python3", "-c", LOOK, self._instance)
        )
        return answer


def points(count: int, seed: int, wanted: Sequence[str] = KINDS) -> list[Point]:
    """Choose ``count`` points by ``seed``: every task once before one comes a second time, and each kind in turn."""
    chance = random.Random(seed)  # reproducible, and no secret
    tasks: list[str] = []
    while len(tasks) < count:
        tasks += chance.sample(TASKS, len(TASKS))
    kinds = [wanted[number % len(wanted)] for number in range(count)]
    chance.shuffle(kinds)
    return [
        Point(task, round(chance.uniform(0, 1.5), 2), kind, chance.choice(("same", "old")))
        for task, kind in zip(tasks, kinds)
    ]


def problems_after(point: Point, state: dict[str, object]) -> list[str]:
    """Return what is wrong with a host that was restarted, before any run has come."""
    if point.kind != "restart":
        return []
    found = []
    if state["current"] != state["proven"] or state["outcome"] != "proven":
        found.append(f"booted into {state['current']} ({state['outcome']}), proven is {state['proven']}")
    if state["intent"] is not None or not state["same_unit"] or state["locked"]:
        found.append("the interrupted rollout was not put away at boot")
    if state["unit"] not in ("active", "activating"):
        found.append(f"the unit is {state['unit']} after the boot")
    return found


def problems_at_end(state: dict[str, object]) -> list[str]:
    """Return what is wrong with a host after the next run."""
    wanted = {"outcome": "proven", "intent": None, "locked": False, "unit": "active", "same_unit": True}
    found = [f"{name} is {state[name]}" for name, value in wanted.items() if state[name] != value]
    return found + (["current is not proven"] if state["current"] != state["proven"] else [])


def judge(rig: Rig, point: Point, now: int, releases: dict[int, object]) -> tuple[int, list[str], str]:
    """Interrupt at ``point`` and let the next run come; return the release wanted then, what is wrong, and a note."""
    other = next(seqs for seqs in SEQS if seqs != now)
    wrong = problems_after(point, rig.look()) if rig.interrupt(point, other) else ["the point was not reached"]
    wanted = other if point.then == "same" else now
    output = ""
    try:
        output = rig.deploy(wanted)
    except RuntimeError as error:
        wrong.append(f"the next run failed:\n{error}")
    state = rig.look()
    wrong += problems_at_end(state)
    if releases.setdefault(wanted, state["current"]) != state["current"]:
        wrong.append(f"the release is {state['current']}, not {releases[wanted]}")
    notes = [
        word for word in ("Took over the lock", "after an interrupted rollout") if word in " ".join(output.split())
    ]
    return wanted, wrong, ", ".join(notes).lower()


def main() -> int:
    """Interrupt, and say how each ended."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--host", required=True)
    parser.add_argument("--container", required=True)
    parser.add_argument("--instance", required=True)
    parser.add_argument("--count", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kind", choices=KINDS)
    parser.add_argument("command", nargs="+")
    given = parser.parse_args()
    rig = Rig(given.host, given.container, given.instance, given.command)
    now, failed = SEQS[0], 0
    rig.deploy(now)
    releases = {now: rig.look()["current"]}
    for number, point in enumerate(points(given.count, given.seed, [given.kind] if given.kind else KINDS), 1):
        began = time.monotonic()
        now, wrong, note = judge(rig, point, now, releases)
        failed += bool(wrong)
        where = f"{point.kind} {point.delay_seconds:.2f} s after '{point.task}', then the {point.then} release"
        end = f"FAILED: {'; '.join(wrong)}" if wrong else "proven"
        print(f"{number:2} {where}: {end} ({time.monotonic() - began:.0f} s; {note})", flush=True)
    print(json.dumps({"points": given.count, "seed": given.seed, "failed": failed}))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
