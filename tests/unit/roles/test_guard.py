"""What runs before an instance starts: after a rollout that a reboot interrupted, only the proven release may start."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "roles/vllm_service/files/guard.sh"


class Host:
    def __init__(self, folder):
        self.root, self.run, self.units = folder / "llm", folder / "run", folder / "units"
        self.home = self.root / "instances/kimi"
        for path in (self.home, self.run, self.units, folder / "bin"):
            path.mkdir(parents=True)
        for name in ("old", "new"):
            release = self.root / "releases/kimi" / name
            release.mkdir(parents=True)
            (release / "vllm@.service").write_text(f"unit of {name}")
            (release / "instance.conf").write_text(f"settings of {name}")
        self.called = folder / "systemctl.log"
        command = folder / "bin/systemctl"
        command.write_text(f'#!/bin/sh\necho "$@" >> {self.called}\n')
        command.chmod(0o755)
        self.path = f"{folder}/bin:{os.environ['PATH']}"

    def link(self, name, release):
        (self.home / name).symlink_to(self.root / "releases/kimi" / release)

    def install(self, release):
        (self.units / "vllm@kimi.service.d").mkdir(exist_ok=True)
        (self.units / "vllm@.service").write_text(f"unit of {release}")
        (self.units / "vllm@kimi.service.d/release.conf").write_text(f"settings of {release}")

    def interrupt(self):
        (self.home / "intent.json").write_text("{}")

    def start(self):
        command = ["sh", str(SCRIPT), str(self.root), "kimi", str(self.run), str(self.units)]
        return subprocess.run(command, env={"PATH": self.path}, capture_output=True, text=True, check=False)

    def current(self):
        return (self.home / "current").readlink().name

    def audit(self):
        return [json.loads(line) for line in (self.root / "audit.jsonl").read_text().splitlines()]


@pytest.fixture
def host(tmp_path):
    return Host(tmp_path)


def test_without_an_interrupted_rollout_it_does_nothing(host):
    host.link("current", "new")
    host.link("proven", "old")
    done = host.start()
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert host.current() == "new" and not host.called.exists()


def test_a_rollout_of_this_boot_is_left_alone(host):
    host.link("current", "new")
    host.link("proven", "old")
    host.interrupt()
    (host.run / "kimi.rollout").write_text("run1\n")
    assert host.start().returncode == 0
    assert host.current() == "new" and (host.home / "intent.json").exists()


def test_an_unproven_release_gives_way_to_the_proven_one_with_its_unit(host):
    host.link("current", "new")
    host.link("proven", "old")
    host.install("new")
    host.interrupt()
    (host.root / "releases/kimi/old/vllm-beat@.service").write_text("beat")
    done = host.start()
    assert done.returncode == 0 and "proven release old" in done.stdout
    assert (host.units / "vllm-beat@.service").read_text() == "beat"
    assert host.current() == "old" and not (host.home / "intent.json").exists()
    assert (host.units / "vllm@.service").read_text() == "unit of old"
    assert (host.units / "vllm@kimi.service.d/release.conf").read_text() == "settings of old"
    assert host.called.read_text() == "daemon-reload\n"
    assert host.audit()[0]["release"] == "old" and host.audit()[0]["action"] == "recover"
    assert sorted(os.listdir(host.home)) == ["current", "proven"]
    assert not host.start().stdout


def test_files_of_a_unit_that_were_half_installed_are_put_back_as_well(host):
    host.link("current", "old")
    host.link("proven", "old")
    host.install("old")
    (host.units / "vllm@.service").write_text("unit of new")
    host.interrupt()
    assert host.start().returncode == 0
    assert (host.units / "vllm@.service").read_text() == "unit of old" and host.called.exists()


def test_a_rollout_that_had_moved_nothing_reloads_nothing(host):
    host.link("current", "old")
    host.link("proven", "old")
    host.install("old")
    host.interrupt()
    assert host.start().returncode == 0
    assert not host.called.exists() and not (host.home / "intent.json").exists()


@pytest.mark.parametrize("proven", [None, "gone"])
def test_nothing_starts_when_nothing_is_proven(host, proven):
    host.link("current", "new")
    if proven:
        host.link("proven", proven)
    host.interrupt()
    for _ in range(2):
        done = host.start()
        assert done.returncode == 1 and "no release of it is proven" in done.stderr
    assert (host.home / "intent.json").exists() and host.current() == "new"
    assert host.audit()[0]["outcome"] == "nothing proven to start"
