"""The first look of a deployment: that it compares what the roles see to, and whom it lets the run leave out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar, trust_as_template
from ansible_collections.llmops.vllm.plugins.module_utils.drift_files import DIRECTORY_MODE, FILE_MODE

ROLES = Path(__file__).parents[3] / "roles"


def load(path: str) -> Any:
    return DataLoader().load_from_file(str(ROLES / path), trusted_as_template=True)


def arguments(path: str, module: str) -> dict[str, Any]:
    """The arguments of the first task in ``path`` that calls ``module``."""
    return next(task[f"llmops.vllm.{module}"] for task in load(path) if f"llmops.vllm.{module}" in task)


def value(name: str, role: str, **given: Any) -> Any:
    """The value of a variable of ``role``, of which ``given`` are others."""
    variables = {**load(f"{role}/vars/main.yml"), **given}
    return Templar(loader=DataLoader(), variables=variables).template(trust_as_template(f"{{{{ {name} }}}}"))


LOOK = arguments("vllm_service/tasks/look.yml", "drift_info")


def test_it_asks_the_host_for_what_its_role_asks():
    assert LOOK["host"] == arguments("host_prereq/tasks/preflight.yml", "host_info")


def test_it_compares_the_directories_that_the_roles_make():
    made = arguments("host_prereq/tasks/configure.yml", "file_tree")
    assert LOOK["owner"] == made["owner"] == arguments("vllm_service/tasks/configure.yml", "file_tree")["owner"]
    assert LOOK["directories"] == "{{ _host_prereq_directories + _vllm_service_directories }}"
    assert made["entries"] == "{{ _host_prereq_directories }}"
    own = load("vllm_service/vars/main.yml")["_vllm_service_directories"]
    entries = arguments("vllm_service/tasks/configure.yml", "file_tree")["entries"]
    assert entries[: len(own)] == [f"{{{{ _vllm_service_directories[{number}] }}}}" for number in range(len(own))]


def test_it_compares_the_weights_that_the_role_fetches_with_the_modes_that_it_gives():
    fetched = arguments("model_store/tasks/install.yml", "model_shards")
    assert LOOK["weights"] == {name: fetched[name] for name in ("include", "exclude", "publish_blobs")}
    assert LOOK["store"] == fetched["store"]
    assert (fetched["file_mode"], fetched["directory_mode"]) == (f"{FILE_MODE:04o}", f"{DIRECTORY_MODE:04o}")


def test_a_task_file_for_variables_alone_holds_no_task():
    assert load("host_prereq/tasks/variables.yml") == load("model_store/tasks/variables.yml") == []


SIMPLE = {
    "model_store_revision": "0123456789abcdef0123456789abcdef01234567",
    "model_store_verify": "stat",
    "model_store_prune": {},
    "host_prereq_packages_extra": [],
    "vllm_service_preflight_always": False,
    "_vllm_service_declared_patches": [{"name": "p"}, {"name": "q", "when": {"architecture": "x"}}],
    "vllm_service_patch_sets": ["disable_fp8_kv_cache"],
    "vllm_service_patches": [{"name": "q"}],
    "vllm_service_arguments": {"seed": 1},
    "vllm_service_arguments_extra": {},
    "vllm_service_environment": {},
    "vllm_service_environment_extra": {},
    "vllm_service_unit_settings": {},
    "vllm_service_canary": {"kind": "chat"},
}


def test_it_looks_where_a_look_can_tell():
    assert value("_vllm_service_lookable", "vllm_service", **SIMPLE) is True


@pytest.mark.parametrize(
    "changes",
    [
        {"model_store_revision": "main"},
        {"model_store_verify": "sample"},
        {"model_store_verify": "full"},
        {"model_store_prune": {"keep": 2}},
        {"host_prereq_packages_extra": ["jq"]},
        {"vllm_service_preflight_always": True},
        {"_vllm_service_declared_patches": [{"name": "p", "when": {"compute_capability": ["12.0"]}}]},
    ],
    ids=lambda changes: "-".join(map(str, *changes.items())),
)
def test_it_does_not_look_where_more_has_to_be_asked_read_or_removed(changes):
    assert value("_vllm_service_lookable", "vllm_service", **{**SIMPLE, **changes}) is False


@pytest.mark.parametrize(
    "changes",
    [
        {"vllm_service_patch_sets": ["disable_everything"]},
        {"vllm_service_patches": ["q"]},
        {"vllm_service_patches": "q"},
        {"vllm_service_arguments": ["--seed", "1"]},
        {"vllm_service_arguments_extra": "--seed 1"},
        {"vllm_service_environment": ["A=1"]},
        {"vllm_service_environment_extra": "A=1"},
        {"vllm_service_unit_settings": ["Nice=1"]},
        {"vllm_service_canary": "hello"},
    ],
    ids=lambda changes: "-".join(map(str, *changes.items())),
)
def test_it_does_not_look_with_settings_of_which_the_roles_say_what_is_wrong_with_them(changes):
    assert value("_vllm_service_lookable", "vllm_service", **{**SIMPLE, **changes}) is False


HOSTS = ["a", "b", "c"]


def in_rotation(*serving: list[str] | None, balanced: bool = True, names: dict[str, str] | None = None) -> list[str]:
    """The hosts that get requests where each gateway answers one of ``serving``; None stands for no answer."""
    results = [{"unreachable": True} if servers is None else {"serving": servers} for servers in serving]
    servers = {name: {"vllm_rollout_gateway_server": server} for name, server in (names or {}).items()}
    given = {
        "ansible_play_hosts": HOSTS,
        "hostvars": {name: {"inventory_hostname": name, **servers.get(name, {})} for name in HOSTS},
        "__vllm_rollout_gateways": {"results": results},
        "_vllm_rollout_balanced": balanced,
    }
    return list(value("_vllm_rollout_in_rotation", "vllm_rollout", **given))


def test_without_a_balancer_every_host_gets_requests():
    assert in_rotation(balanced=False) == HOSTS


def test_a_host_gets_requests_when_every_gateway_sends_it_some():
    assert in_rotation(HOSTS) == HOSTS
    assert in_rotation(["a", "b"], ["b", "c"]) == ["b"]
    assert in_rotation([], HOSTS) == in_rotation(HOSTS, []) == []


def test_a_gateway_that_does_not_answer_leaves_every_host_in_doubt():
    assert in_rotation(HOSTS, None) == in_rotation(None, HOSTS) == in_rotation() == []


def test_a_host_is_known_by_the_name_that_it_has_at_the_gateway():
    assert in_rotation(["server-a", "b"], names={"a": "server-a", "b": "server-b"}) == ["a"]


@pytest.mark.parametrize("look", [{"skipped": True}, {"msg": "systemd does not answer"}, {"settled": False}])
def test_a_host_of_which_the_look_says_nothing_is_not_settled(look):
    looks = {"a": {"settled": True}, "b": look}
    given = {
        "ansible_play_hosts": list(looks),
        "hostvars": {name: {"inventory_hostname": name, "vllm_service_look": one} for name, one in looks.items()},
    }
    assert value("_vllm_rollout_looked_settled", "vllm_rollout", **given) == ["a"]
