"""Which processes a teardown selects, over generated and hand-made process tables."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from ansible_collections.llmops.vllm.plugins.module_utils import cgroups, teardown
from ansible_collections.llmops.vllm.plugins.module_utils.cgroups import Cgroup
from ansible_collections.llmops.vllm.plugins.module_utils.procfs import Process
from ansible_collections.llmops.vllm.plugins.module_utils.teardown import (
    PidFile,
    Plan,
    Selector,
    Surroundings,
    plan,
    protected_pids,
    tree,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

SELF = 50
OWNER = 1000
OTHER = 1001
UNIT = "vllm@kimi.service"


def process(
    pid: int, ppid: int = 1, uid: int = OWNER, unit: str = "", title: str = "python x", **other: Any
) -> Process:
    fields: dict[str, Any] = {
        "pgid": pid,
        "sid": pid,
        "start_ticks": pid * 10,
        "comm": "x",
        "state": "S",
        "threads": 1,
        "kernel_thread": False,
        "cgroups": {"": f"/system.slice/{unit}" if unit else "/"},
        "directory": "/nonexistent",
    }
    made = Process(pid=pid, ppid=ppid, **{**fields, **other})
    made.__dict__.update(uids=(uid,) * 4, cmdline=(title,), exe="/usr/bin/python3")
    return made


def table(*processes: Process) -> dict[int, Process]:
    base = (process(1, 0, 0), process(2, 0, 0, kernel_thread=True), process(40, 1, OWNER), process(SELF, 40, OWNER))
    return {one.pid: one for one in (*base, *processes)}


def unit_of(one: Process) -> str | None:
    return one.cgroups[""].rpartition("/")[2] or None


def made(selector: Selector, processes: Mapping[int, Process], known: Any = (), **around: Any) -> Plan:
    return plan(selector, processes, Surroundings(SELF, unit_of=unit_of, **around), known)


def pids(found: Any) -> list[int]:
    return [one.process.pid for one in found]


GROUP = Selector(unit=UNIT, groups=(Cgroup(("",), f"/system.slice/{UNIT}"),))


def test_unit_members_are_selected_main_first_then_by_depth() -> None:
    processes = table(
        process(90, 80, unit=UNIT), process(80, 1, unit=UNIT), process(95, 90, unit=UNIT), process(70, 1, unit=UNIT)
    )
    found = made(replace(GROUP, main_pid=80), processes)
    assert [(one.process.pid, one.main) for one in found.targets] == [(80, True), (70, False), (90, False), (95, False)]


def test_without_a_main_process_the_roots_of_the_selection_are_main() -> None:
    processes = table(process(80, 7, unit=UNIT), process(90, 80, unit=UNIT), process(60, 1, unit=UNIT))
    assert [(one.process.pid, one.main) for one in made(GROUP, processes).targets] == [
        (60, True),
        (80, True),
        (90, False),
    ]


def test_a_unit_whose_name_begins_alike_is_another_unit() -> None:
    processes = table(process(80, unit=UNIT + "x"), process(81, unit="x" + UNIT))
    assert made(GROUP, processes).targets == ()


def test_holder_in_another_living_unit_of_the_same_user_is_foreign() -> None:
    processes = table(process(80, unit="vllm@glm.service"))
    found = made(replace(GROUP, owner_uid=OWNER), processes, holders={80: ("/dev/nvidia0",)})
    assert found.targets == ()
    assert [(one.process.pid, one.unit, one.blocking) for one in found.blocking] == [(80, "vllm@glm.service", True)]


def test_holder_in_a_dead_unit_of_the_same_user_is_ours() -> None:
    processes = table(process(80, unit="vllm@glm.service"))
    found = made(replace(GROUP, owner_uid=OWNER), processes, holders={80: ("port",)}, is_living=lambda unit: False)
    assert pids(found.targets) == [80]


def test_holder_that_borrowed_the_owners_identity_is_foreign() -> None:
    borrowed = process(80)
    borrowed.__dict__["uids"] = (0, OWNER, 0, OWNER)
    found = made(Selector(owner_uid=OWNER), table(borrowed), holders={80: ("port",)})
    assert pids(found.blocking) == [80]


@pytest.mark.parametrize("name", [OTHER, "other.service"])
def test_allowed_user_or_unit_is_ended_and_tolerated_one_left_alone(name: object) -> None:
    processes = table(process(80, uid=OTHER, unit="other.service"))
    selector = Selector(owner_uid=OWNER)
    allowed = made(replace(selector, allowed=frozenset({name})), processes, holders={80: ("port",)})
    assert pids(allowed.targets) == [80]
    tolerated = made(replace(selector, tolerated=frozenset({name})), processes, holders={80: ("port",)})
    assert (tolerated.targets, tolerated.blocking, pids(tolerated.foreign)) == ((), (), [80])


def test_orphans_are_titled_reparented_owned_and_outside_living_units() -> None:
    processes = table(
        process(60, title="VLLM::EngineCore"),
        process(61, 60, title="VLLM::Worker_TP0"),
        process(62, uid=OTHER, title="VLLM::EngineCore"),
        process(63, unit="vllm@glm.service", title="VLLM::EngineCore"),
        process(64, 40, title="VLLM::EngineCore"),
        process(65, title="grep VLLM::EngineCore"),
    )
    found = made(Selector(orphans=True, owner_uid=OWNER), processes)
    assert pids(found.targets) == [60, 61]
    assert [(one.process.pid, one.blocking) for one in found.foreign] == [(62, False), (63, False)]


def test_orphan_adopted_by_a_users_service_manager_is_an_orphan() -> None:
    processes = table(process(60, 1, comm="systemd"), process(70, 60, title="VLLM::EngineCore"))
    assert pids(made(Selector(orphans=True, owner_uid=OWNER), processes).targets) == [70]


def test_group_and_session_are_followed_but_never_those_of_this_module() -> None:
    processes = table(process(60, sid=7, pgid=8), process(61, sid=7), process(62, pgid=8), process(63, sid=50, pgid=50))
    selector = Selector(owner_uid=OWNER, include=frozenset({"group", "session"}))
    assert pids(made(selector, processes, holders={60: ("port",)}).targets) == [60, 61, 62]
    found = made(selector, processes, holders={63: ("port",)})
    assert pids(found.targets) == [63]
    assert found.protected == ()


def test_descendant_of_another_user_is_reported_and_left_alone() -> None:
    processes = table(process(60), process(61, 60, uid=0), process(62, 61))
    selector = Selector(owner_uid=OWNER, include=frozenset({"descendants"}))
    found = made(selector, processes, holders={60: ("port",)})
    assert pids(found.targets) == [60]
    assert [(one.process.pid, one.blocking) for one in found.foreign] == [(61, False)]


def test_exe_and_title_match_as_a_whole_and_only_the_owners() -> None:
    processes = table(process(60, title="server one"), process(61, title="server one more"), process(62, uid=OTHER))
    named = Selector(owner_uid=OWNER, title=re.compile("server one"), exe=re.compile("/usr/bin/python3"))
    assert pids(made(named, processes).targets) == [60]
    by_exe = made(Selector(owner_uid=OWNER, exe=re.compile("/usr/bin/python")), processes)
    assert by_exe == Plan()


@pytest.mark.parametrize(
    ("written", "selected"),
    [
        (PidFile("/run/x", 60, 0, 100.0, 600), True),
        (PidFile("/run/x", 60, OWNER, 100.0, 600), True),
        (PidFile("/run/x", 60, OTHER, 100.0, 600), False),
        (PidFile("/run/x", 60, 0, 98.0, 600), False),
        (PidFile("/run/x", 60, 0, 100.0, 599), False),
        (PidFile("/run/x", SELF, 0, 100.0, SELF * 10), False),
        (PidFile("/run/x", 1, 0, 100.0, 10), False),
    ],
    ids=[
        "root's",
        "its own",
        "a stranger's",
        "older than the process",
        "read when another had the number",
        "names this module",
        "names PID 1",
    ],
)
def test_pid_file_is_believed_by_owner_and_age(written: PidFile, selected: bool) -> None:
    found = made(Selector(pid_file=written), table(process(60)), started_seconds=lambda one: 99.5)
    assert pids(found.targets) == ([60] if selected else [])


def test_known_process_stays_selected_and_its_successor_with_the_same_pid_is_not() -> None:
    before = process(60)
    assert pids(made(Selector(), table(before), known=[before]).targets) == [60]
    assert made(Selector(), table(process(60, start_ticks=601)), known=[before]) == Plan()


@pytest.mark.parametrize("leader_ticks", [600, 601])
def test_session_of_a_known_process_is_followed_after_its_death_unless_it_is_a_new_one(leader_ticks: int) -> None:
    dead = process(61, sid=60, start_ticks=600)
    processes = table(process(60, start_ticks=leader_ticks), process(62, sid=60, start_ticks=700))
    found = made(Selector(owner_uid=OWNER, include=frozenset({"session"})), processes, known=[dead])
    assert pids(found.targets) == ([60, 62] if leader_ticks == 600 else [])


def test_owner_that_a_pid_file_established_outlives_its_process() -> None:
    dead = process(61, sid=60)
    selector = Selector(pid_file=PidFile("/run/x", 61, 0, 9.0, 610), include=frozenset({"session"}))
    found = made(selector, table(process(62, sid=60), process(63, sid=60, uid=OTHER)), known=[dead])
    assert (pids(found.targets), pids(found.foreign)) == ([62], [63])


def test_zombies_are_told_apart_but_one_with_living_threads_is_a_target() -> None:
    processes = table(process(60, unit=UNIT, state="Z"), process(61, unit=UNIT, state="Z", threads=3))
    found = made(GROUP, processes)
    assert pids(found.targets) == [61]
    assert [one.pid for one in found.zombies] == [60]


def test_tree_shows_children_below_their_parents() -> None:
    processes = table(
        process(60, unit=UNIT), process(61, 60, unit=UNIT), process(62, 61, unit=UNIT), process(59, unit=UNIT)
    )
    lines = tree(made(GROUP, processes)).splitlines()
    assert lines == ["59 python x", "60 python x", "  61 python x", "    62 python x"]


@st.composite
def process_tables(draw: st.DrawFn) -> dict[int, Process]:
    """Any shape of tree, with this module anywhere in it, kernel threads, other users, other units."""
    found = {1: process(1, 0, 0)}
    numbers = draw(st.lists(st.integers(2, 49) | st.just(SELF), unique=True, max_size=14))
    for number in sorted({*numbers, SELF}):
        parent = draw(st.sampled_from([0, *found]))
        found[number] = process(
            number,
            parent,
            uid=draw(st.sampled_from([0, OWNER, OTHER])),
            unit=draw(st.sampled_from(["", UNIT, "other.service"])),
            title=draw(st.sampled_from(["VLLM::EngineCore", "python x"])),
            pgid=draw(st.sampled_from([0, number, *found])),
            sid=draw(st.sampled_from([0, number, *found])),
            state=draw(st.sampled_from(["S", "D", "T", "Z"])),
            kernel_thread=draw(st.integers(0, 9)) == 0 and number != SELF,
        )
    return found


@st.composite
def selectors(draw: st.DrawFn) -> Selector:
    base = draw(st.sampled_from([GROUP, Selector()]))
    return replace(
        base,
        owner_uid=draw(st.sampled_from([OWNER, 0, None])),
        main_pid=draw(st.integers(0, SELF)),
        pid_file=draw(
            st.none() | st.builds(lambda pid: PidFile("/run/x", pid, 0, 9.0, pid * 10), st.integers(1, SELF))
        ),
        orphans=draw(st.booleans()),
        title=draw(st.sampled_from([None, re.compile("python x")])),
        include=draw(st.frozensets(st.sampled_from(["descendants", "group", "session"]))),
    )


# A loaded machine is slow at making examples, which says nothing about them.
patiently = settings(suppress_health_check=[HealthCheck.too_slow])
holders = st.dictionaries(st.integers(1, SELF), st.just(("TCP port 8000",)), max_size=5)


@patiently
@given(process_tables(), selectors(), holders)
def test_selection_never_holds_self_ancestors_pid_1_kernel_threads_or_foreigners(
    processes: dict[int, Process], selector: Selector, held: dict[int, tuple[str, ...]]
) -> None:
    selected = pids(made(selector, processes, holders=held).targets)
    assert not set(selected) & protected_pids(processes, SELF)
    ours = selector.owner_uid
    if ours is None and not selector.groups and selector.pid_file and selector.pid_file.pid in processes:
        ours = processes[selector.pid_file.pid].uid
    for pid in selected:
        one = processes[pid]
        assert one.alive and not one.kernel_thread and pid != 1
        in_unit = bool(selector.unit) and unit_of(one) == selector.unit
        assert in_unit or (one.uid == ours and unit_of(one) is None)


@patiently
@given(process_tables(), selectors(), holders, st.randoms())
def test_plan_is_stable_whatever_the_order_in_which_processes_are_read_and_when_it_is_made_again(
    processes: dict[int, Process], selector: Selector, held: dict[int, tuple[str, ...]], random: Any
) -> None:
    first = made(selector, processes, holders=held)
    shuffled = list(processes.items())
    random.shuffle(shuffled)
    again = made(selector, dict(shuffled), holders=dict(sorted(held.items(), reverse=True)))
    assert pids(again.targets) == pids(first.targets)
    assert again == first
    later = made(selector, processes, [target.process for target in first.targets], holders=held)
    assert pids(later.targets) == pids(first.targets)
    assert later.foreign == first.foreign


@patiently
@given(process_tables(), selectors(), holders)
def test_every_blocking_process_is_alive_to_the_operator_and_not_a_target(
    processes: dict[int, Process], selector: Selector, held: dict[int, tuple[str, ...]]
) -> None:
    found = made(selector, processes, holders=held)
    assert not set(pids(found.blocking)) & set(pids(found.targets))
    for pid in held:
        if pid in processes and processes[pid].alive:
            assert pid in pids(found.targets) + pids(found.blocking)


EVERYTHING = Selector(groups=(Cgroup(("",), "/"),), owner_uid=OWNER)
OF_ONE = Selector(owner_uid=OWNER, include=frozenset({"group"}))


def without_unit(planner: Any, one: Process, unit: str | None) -> bool:
    return set(one.uids) <= planner._owner_uids


def without_user(planner: Any, one: Process, unit: str | None) -> bool:
    return unit is None


# What must not be selected, and the guard: an attribute of the library with what it is without the guard.
GUARDS: dict[str, tuple[Selector, dict[int, Process], dict[str, Any], int, tuple[Any, str, Any]]] = {
    "this module": (EVERYTHING, table(), {}, SELF, (teardown, "protected_pids", lambda *_: {0, 1, 2, 40})),
    "its ancestors": (EVERYTHING, table(), {}, 40, (teardown, "protected_pids", lambda *_: {0, 1, 2, SELF})),
    "PID 1": (EVERYTHING, table(), {}, 1, (teardown, "protected_pids", lambda *_: {0, 2, 40, SELF})),
    "kernel threads": (EVERYTHING, table(), {}, 2, (teardown, "protected_pids", lambda *_: {0, 1, 40, SELF})),
    "another user": (
        OF_ONE,
        table(process(60, uid=OTHER)),
        {"holders": {60: ("port",)}},
        60,
        (teardown._Planner, "_is_ours", without_user),
    ),
    "another unit": (
        OF_ONE,
        table(process(60, unit="vllm@glm.service")),
        {"holders": {60: ("port",)}},
        60,
        (teardown._Planner, "_is_ours", without_unit),
    ),
    "a unit whose name begins alike": (
        GROUP,
        table(process(60, unit=UNIT + "x")),
        {},
        60,
        (cgroups, "is_below", lambda path, top: bool(path) and path.startswith(top)),
    ),
    "zombies": (GROUP, table(process(60, unit=UNIT, state="Z")), {}, 60, (Process, "alive", True)),
    "the group of this module": (
        OF_ONE,
        table(process(60, pgid=40), process(61, pgid=40)),
        {"holders": {60: ("port",)}},
        61,
        (teardown, "protected_pids", lambda *_: set()),
    ),
}


@pytest.mark.parametrize("name", GUARDS)
def test_without_its_guard_a_plan_would_select(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    selector, processes, around, spared, guard = GUARDS[name]
    assert spared not in pids(made(selector, processes, **around).targets)
    monkeypatch.setattr(*guard)
    assert spared in pids(made(selector, processes, **around).targets)


def test_without_the_start_time_the_successor_of_a_known_process_would_be_selected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before, successor = process(60), process(60, start_ticks=601)
    assert made(Selector(), table(successor), known=[before]) == Plan()
    monkeypatch.setattr(Process, "identity", property(lambda one: one.pid))
    assert pids(made(Selector(), table(successor), known=[before]).targets) == [60]
