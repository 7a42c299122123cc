from __future__ import annotations

import json
import os

import pytest
from ansible_collections.llmops.vllm.plugins.module_utils import durable
from ansible_collections.llmops.vllm.plugins.module_utils.errors import InvalidInputError, PreconditionError
from ansible_collections.llmops.vllm.plugins.module_utils.instance import Intent, read_instance
from ansible_collections.llmops.vllm.plugins.module_utils.release_switch import Place, plan_switch


class Host:
    """An instance with releases ``old`` (proven, current) and ``new``."""

    def __init__(self, tmp_path):
        self.root = tmp_path / "llm"
        self.place = Place("kimi", str(self.root), str(tmp_path / "run"), str(tmp_path / "units"))
        self.units = tmp_path / "units"
        self.times = 0
        for name in ("old", "new", "newer"):
            folder = self.root / "releases/kimi" / name
            folder.mkdir(parents=True)
            (folder / "vllm@.service").write_text(f"unit of {name}")
            (folder / "instance.conf").write_text(f"settings of {name}")
        (self.root / "instances/kimi").mkdir(parents=True)

    def prove(self, name, outcome="proven"):
        (self.root / "releases/kimi" / name / "release.json").write_text(json.dumps({"outcome": outcome}))

    def plan(self, state, target="new", run="run1"):
        self.times += 1
        intent = Intent(run, "ops@one", "deploy", "", target, "", f"time {self.times}")
        return plan_switch(self.place, self.read(), state, intent)

    def step(self, state, target="new", run="run1"):
        plan = self.plan(state, target, run)
        plan.apply()
        return plan

    def deploy(self, name):
        for state in ("intended", "switched"):
            self.step(state, name)
        self.prove(name)
        self.step("proven", name)

    def read(self):
        return read_instance(str(self.root), "kimi")

    def link(self, name):
        path = self.root / "instances/kimi" / name
        return os.path.basename(os.readlink(path)) if path.is_symlink() else None

    def links(self):
        return tuple(self.link(name) for name in ("current", "proven", "previous"))


@pytest.fixture
def host(tmp_path):
    return Host(tmp_path)


def test_a_first_release_has_nothing_to_go_back_to_until_it_is_proven(host):
    host.step("intended")
    assert host.links() == (None, None, None) and host.read().intent.source == ""
    host.step("switched")
    assert host.links() == ("new", None, None) and host.read().last_proven is None
    host.prove("new")
    host.step("proven")
    assert host.links() == ("new", "new", None)
    assert host.read().intent is None and not os.path.exists(host.place.mark)


def test_the_way_from_one_release_to_the_next(host):
    host.deploy("old")
    host.step("intended")
    assert host.links() == ("old", "old", None)
    assert (host.read().intent.source, host.read().intent.target) == ("old", "new")
    assert os.path.exists(host.place.mark)
    host.step("switched")
    assert host.links() == ("new", "old", None) and host.read().intent.step == "switched"
    assert (host.units / "vllm@.service").read_text() == "unit of new"
    assert (host.units / "vllm@kimi.service.d/release.conf").read_text() == "settings of new"
    assert host.read().last_proven.release_id == "old"
    host.prove("new")
    host.step("proven")
    assert host.links() == ("new", "new", "old") and host.read().intent is None


def test_going_back_leaves_what_was_before_the_proven_release(host):
    host.deploy("old")
    host.deploy("new")
    for state, target in (("intended", "newer"), ("switched", "newer"), ("switched", "new"), ("proven", "new")):
        host.step(state, target)
    assert host.links() == ("new", "new", "old")
    assert (host.units / "vllm@.service").read_text() == "unit of new"


def test_a_rollout_after_an_interrupted_one_still_goes_back_to_the_proven_release(host):
    host.deploy("old")
    host.step("intended")
    host.step("switched")
    host.step("intended", "newer", run="run2")
    assert host.read().intent.source == "old" and host.link("proven") == "old"


def test_a_release_that_failed_since_is_not_gone_back_to(host):
    host.deploy("old")
    host.prove("old", "failed")
    host.step("intended")
    assert host.links() == ("old", None, None) and host.read().intent.source == ""


@pytest.mark.parametrize("state", ["intended", "switched", "proven", "settled"])
def test_a_second_time_changes_nothing(host, state):
    host.deploy("old")
    if state != "intended":
        host.step("intended")
    assert host.step(state).changed
    assert not host.step(state).changed


def test_what_was_intended_once_keeps_its_time(host):
    host.step("intended")
    assert not host.plan("intended").changed
    assert host.plan("intended", run="run2").changed


def test_the_plan_is_the_difference_and_planning_changes_nothing(host):
    host.deploy("old")
    plan = host.plan("switched")
    diff = plan.differences().as_diff()
    current = host.place.link("current")
    assert (diff["before"][current], diff["after"][current]) == (
        host.place.release("old"),
        host.place.release("new"),
    )
    assert host.links() == ("old", "old", None)


@pytest.mark.parametrize("state", ["intended", "switched", "proven"])
def test_every_cut_leaves_links_that_lead_to_whole_releases_and_a_way_back(host, state, monkeypatch):
    host.deploy("old")
    for before in ("intended", "switched", "proven"):
        if before == state:
            break
        host.step(before)
    if state == "proven":
        host.prove("new")
    count = len(host.plan(state).steps)
    assert count >= 2
    for cut in range(count):
        plan = host.plan(state)
        done = []

        def stop(path, done=done, limit=cut):
            done.append(path)
            if len(done) > limit:
                raise OSError(5, "power cut", path)

        with monkeypatch.context() as patch:
            patch.setattr(durable, "sync_directory", stop)
            if cut < len(plan.steps):
                with pytest.raises(PreconditionError, match="power cut"):
                    plan.apply()
        now = host.read()
        assert now.current.release_id in ("old", "new") and not now.warnings
        assert now.last_proven.release_id in (("old", "new") if state == "proven" else ("old",))
        assert now.intent is not None or now.current.release_id == now.last_proven.release_id
    host.step(state)
    assert not host.plan(state).changed


def test_further_units_of_a_release_are_installed_as_well(host):
    (host.root / "releases/kimi/new/vllm-beat@.service").write_text("beat")
    host.step("intended")
    host.step("switched")
    assert (host.units / "vllm-beat@.service").read_text() == "beat"


def test_nothing_is_left_aside(host):
    host.deploy("old")
    host.deploy("new")
    assert sorted(os.listdir(host.root / "instances/kimi")) == ["current", "previous", "proven"]


@pytest.mark.parametrize("target", ["", "..", ".", "a/b", "../old"])
def test_what_is_no_release_is_refused(host, target):
    with pytest.raises(InvalidInputError):
        host.plan("switched", target)


def test_a_release_that_is_not_there_is_refused(host):
    with pytest.raises(PreconditionError, match="compose it first"):
        host.plan("intended", "missing")


def test_a_release_without_its_unit_is_refused_before_anything_moved(host):
    host.deploy("old")
    (host.root / "releases/kimi/new/instance.conf").unlink()
    with pytest.raises(PreconditionError, match=r"instance\.conf"):
        host.plan("switched")
    assert host.links() == ("old", "old", None)


def test_a_directory_in_the_way_is_named(host):
    (host.root / "instances/kimi/current").mkdir()
    with pytest.raises(PreconditionError, match="current"):
        host.plan("switched")


def test_an_intent_that_makes_no_sense_is_said_and_replaced(host):
    host.deploy("old")
    (host.root / "instances/kimi/intent.json").write_text("{")
    assert "no intent" in host.read().warnings[0] and host.read().intent is not None
    host.step("intended")
    assert host.read().intent.source == "old"
