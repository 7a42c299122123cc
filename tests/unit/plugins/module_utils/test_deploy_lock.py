from __future__ import annotations

import pytest
from ansible_collections.llmops.vllm.plugins.module_utils.deploy_lock import DeployLock, Lease, Lock, held_by, read_lock
from ansible_collections.llmops.vllm.plugins.module_utils.errors import InvalidInputError, PreconditionError

MINE = Lock("mine", "ops@one", "deploy aaa", "2026-01-01T00:00:00Z")
OTHER = Lock("other", "ci@two", "deploy bbb", "2026-01-01T00:00:05Z")


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def run_path(tmp_path):
    return str(tmp_path / "run")


@pytest.fixture
def lock(clock, run_path):
    return DeployLock("kimi", clock, run_path)


def hold(lock, wanted, lease=60.0, **more):
    plan = lock.plan_held(wanted, lease, **more)
    lock.apply(plan)
    return plan


def test_a_free_lock_is_taken_and_names_its_holder(lock, run_path):
    plan = hold(lock, MINE)
    assert plan.changed and plan.before is None and not plan.note
    assert read_lock("kimi", run_path) == Lock(**{**MINE.as_dict(), "renewed_seconds": 1000.0})
    assert "ops@one since 2026-01-01T00:00:00Z (deploy aaa)" in str(plan.differences().as_diff())


def test_the_same_run_renews_it_which_is_no_change(lock, clock, run_path):
    hold(lock, MINE)
    clock.now += 30
    plan = hold(lock, Lock("mine", "ops@one", "something else", "later"))
    assert not plan.changed and not plan.differences().changed
    held = read_lock("kimi", run_path)
    assert (held.renewed_seconds, held.since, held.why) == (1030.0, MINE.since, MINE.why)


def test_a_second_run_is_told_who_holds_it_since_when_and_how_to_release_it(lock):
    hold(lock, MINE)
    with pytest.raises(PreconditionError, match=r"locked by ops@one since 2026-01-01T00:00:00Z .*unlock") as error:
        lock.plan_held(OTHER, 60)
    assert error.value.details["lock"]["run_id"] == "mine"


def test_a_run_that_its_controller_knows_to_be_dead_is_taken_over(lock, run_path):
    hold(lock, MINE)
    with pytest.raises(PreconditionError):
        lock.plan_held(OTHER, 60, dead_run_id="somebody")
    plan = hold(lock, OTHER, dead_run_id="mine")
    assert plan.changed and "ops@one" in plan.note and "process is gone" in plan.note
    assert read_lock("kimi", run_path).run_id == "other"


def test_a_run_that_was_silent_for_the_lease_is_taken_over_and_must_not_go_on(lock, clock, run_path):
    hold(lock, MINE)
    held_by("mine", "kimi", run_path)
    clock.now += 59.9
    with pytest.raises(PreconditionError):
        lock.plan_held(OTHER, 60)
    clock.now += 0.1
    assert "not shown itself for 60 s" in hold(lock, OTHER).note
    with pytest.raises(PreconditionError, match=r"ci@two .*took it over"):
        held_by("mine", "kimi", run_path)


def test_two_runs_that_planned_at_once_do_not_both_get_it(lock):
    mine, other = lock.plan_held(MINE, 60), lock.plan_held(OTHER, 60)
    lock.apply(mine)
    with pytest.raises(PreconditionError, match="changed hands: ops@one"):
        lock.apply(other)


def test_only_the_holder_or_force_releases_it(lock, run_path):
    assert not lock.plan_free("mine", force=False).changed
    hold(lock, MINE)
    with pytest.raises(PreconditionError, match="another run"):
        lock.plan_free("other", force=False)
    lock.apply(lock.plan_free("other", force=True))
    assert read_lock("kimi", run_path) is None
    hold(lock, MINE)
    plan = lock.plan_free("mine", force=False)
    lock.apply(plan)
    assert plan.changed and read_lock("kimi", run_path) is None
    with pytest.raises(PreconditionError, match="released"):
        held_by("mine", "kimi", run_path)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"surprise": 1}'])
def test_a_lock_that_makes_no_sense_is_held_by_somebody_unknown_until_its_lease_ends(lock, clock, run_path, content):
    hold(lock, MINE)
    with open(f"{run_path}/kimi.lock", "w") as stream:
        stream.write(content)
    clock.now = 30.0  # of this boot: nobody knows when it was renewed
    with pytest.raises(PreconditionError, match="somebody unknown"):
        lock.plan_held(OTHER, 60)
    clock.now = 61.0
    assert hold(lock, OTHER).note


def test_instances_have_locks_of_their_own(lock, clock, run_path):
    hold(lock, MINE)
    hold(DeployLock("llama", clock, run_path), OTHER)
    assert read_lock("kimi", run_path).run_id == "mine"


@pytest.mark.parametrize("instance", ["", "../kimi", "a/b"])
def test_bad_names_are_refused(instance, clock, run_path):
    with pytest.raises(InvalidInputError):
        DeployLock(instance, clock, run_path)


def test_a_run_without_an_identifier_gets_no_lock(lock):
    with pytest.raises(InvalidInputError):
        lock.plan_held(Lock(""), 60)


def test_a_run_that_waits_for_longer_than_the_lease_keeps_its_lock(lock, clock, run_path):
    hold(lock, MINE)
    lease = Lease(lock, "mine", clock)
    for _ in range(300):
        clock.now += 1.0
        lease.keep()
    with pytest.raises(PreconditionError, match=r"locked by ops@one"):
        lock.plan_held(OTHER, 60)
    held = read_lock("kimi", run_path)
    assert (held.holder, held.why, held.since) == (MINE.holder, MINE.why, MINE.since)


def test_a_run_that_waits_does_not_write_all_the_time(lock, clock, run_path):
    hold(lock, MINE)
    lease = Lease(lock, "mine", clock)
    clock.now += 1.0
    lease.keep()
    clock.now += 1.0
    lease.keep()
    assert read_lock("kimi", run_path).renewed_seconds == 1001.0


def test_a_run_that_waits_hears_that_another_one_took_over(lock, clock):
    hold(lock, MINE)
    lease = Lease(lock, "mine", clock)
    clock.now += 60.0
    hold(lock, OTHER)
    with pytest.raises(PreconditionError, match=r"ci@two .*took it over"):
        lease.keep()


def test_a_lock_that_was_released_is_not_taken_again_by_renewing(lock, run_path):
    with pytest.raises(PreconditionError, match="it was released"):
        lock.renew("mine")
    assert read_lock("kimi", run_path) is None
