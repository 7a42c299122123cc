"""Every role has the same files and documents exactly the variables that it has defaults for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

ROLES_FOLDER = Path(__file__).parents[3] / "roles"
ROLES = sorted(path for path in ROLES_FOLDER.glob("*") if path.is_dir() and any(path.rglob("*.*")))
FILES = ("README.md", "defaults/main.yml", "meta/argument_specs.yml", "meta/main.yml", "tasks/main.yml")
TYPES = {"bool", "bytes", "dict", "float", "int", "json", "list", "path", "raw", "str"}

each_role = pytest.mark.parametrize("role", ROLES, ids=lambda role: role.name)


def load(path: Path) -> dict[str, Any]:
    return yaml.safe_load(path.read_text()) or {}


def entry_points(role: Path) -> dict[str, Any]:
    return load(role / "meta/argument_specs.yml")["argument_specs"]


def options(role: Path) -> dict[str, Any]:
    """The options of all entry points; the same option in two of them must be the same."""
    merged: dict[str, Any] = {}
    for entry_point in entry_points(role).values():
        for name, option in (entry_point.get("options") or {}).items():
            assert merged.setdefault(name, option) == option, f"{name} is documented in two ways"
    return merged


def incomplete(option: dict[str, Any], path: str) -> list[str]:
    """Paths of the options, also nested ones, without description or a type that Ansible knows."""
    found = [path] if not option.get("description") or option.get("type") not in TYPES else []
    for name, nested in (option.get("options") or {}).items():
        found += incomplete(nested, f"{path}.{name}")
    return found


@each_role
def test_a_role_has_the_common_files(role):
    assert [name for name in FILES if not (role / name).is_file()] == []


@each_role
def test_every_entry_point_is_a_task_file_with_a_description(role):
    points = entry_points(role)
    assert "main" in points
    assert [name for name in points if not (role / "tasks" / f"{name}.yml").is_file()] == []
    assert [name for name, point in points.items() if not (point.get("short_description"))] == []


def is_template(value: Any) -> bool:
    """A default that is computed. The documentation cannot check its type, so the specs may describe it in words."""
    return "{{" in str(value)


@each_role
def test_every_default_is_an_option(role):
    assert sorted(set(load(role / "defaults/main.yml")) - set(options(role))) == []


@each_role
def test_defaults_equal_the_argument_specs(role):
    documented = {name: option["default"] for name, option in options(role).items() if "default" in option}
    defaults = load(role / "defaults/main.yml")
    assert documented == {
        name: value for name, value in defaults.items() if name in documented or not is_template(value)
    }


@each_role
def test_a_default_of_another_variable_is_described_in_words(role):
    """Ansible resolves all defaults of a spec, and fails where one is undefined, even when the option is given."""
    templates = {
        name: option["default"] for name, option in options(role).items() if is_template(option.get("default"))
    }
    assert [name for name, default in templates.items() if default != "{{ inventory_hostname }}"] == []


@each_role
def test_a_required_option_has_no_default(role):
    defaults = load(role / "defaults/main.yml")
    assert [name for name, option in options(role).items() if option.get("required") and name in defaults] == []


@each_role
def test_option_names_start_with_the_name_of_the_role(role):
    assert [name for name in options(role) if not name.startswith(f"{role.name}_")] == []


@each_role
def test_every_option_has_a_description_and_a_type(role):
    assert [path for name, option in options(role).items() for path in incomplete(option, name)] == []


@each_role
def test_the_readme_names_every_variable(role):
    readme = (role / "README.md").read_text()
    assert [name for name in options(role) if f"`{name}`" not in readme] == []


def test_roles_are_found_where_this_test_looks():
    listed = {path.parents[1].name for path in ROLES_FOLDER.glob("*/*/*.yml")}
    assert listed <= {role.name for role in ROLES}
