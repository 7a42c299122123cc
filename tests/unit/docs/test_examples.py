"""Every example in the documentation is one that works: its files, targets, playbooks, options and values exist."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator

ROOT = Path(__file__).parents[3]
PAGES = sorted(
    [
        *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "ARCHITECTURE.md")),
        *(path for path in (ROOT / "docs").rglob("*.md")),
        *(ROOT / "roles").glob("*/README.md"),
    ]
)
MODULES = sorted((ROOT / "plugins/modules").glob("*.py"))
# What a reader makes, or what is a host's: examples may name it.
THEIRS = ("inventories/mine", "inventories/production", "inventories/mine/group_vars/all.yml", ".venv/")
# Paths that the text says are this repository's.
OURS = re.compile(
    r"`((?:docs|extensions|inventories|playbooks|plugins|requirements|roles|tests|changelogs|meta)/[A-Za-z0-9_./-]+)`"
)
LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")
PROMPT = re.compile(
    r"^(?:\$ )?((?:ansible-playbook|ansible-vault|make|molecule|tests/|tools/|source|cp|eval|\.ci/)\b.*)"
)
VARIABLE = re.compile(r"([a-z][a-z0-9_]*)=")
PLAY_KEYS = {"hosts", "ansible.builtin.import_playbook"}
# Variables of playbooks, not of roles.
PLAYBOOK_VARIABLE = re.compile(r"^(deploy|diagnose|rollback|status|unlock|drift)_[a-z_]+$")


class Block(NamedTuple):
    page: Path
    line: int
    language: str
    text: str

    @property
    def place(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(page: Path) -> list[Block]:
    found, start, language, lines = [], 0, "", []
    for number, line in enumerate(page.read_text().splitlines(), 1):
        if line.startswith("```") and not start:
            start, language, lines = number, line[3:].strip(), []
        elif line.startswith("```"):
            found.append(Block(page, start, language, "\n".join(lines)))
            start = 0
        elif start:
            lines.append(line)
    assert not start, f"{page} has a block that does not end"
    return found


BLOCKS = [block for page in PAGES for block in blocks(page)]


def roles() -> dict[str, dict[str, Any]]:
    found = {}
    for path in (ROOT / "roles").glob("*/meta/argument_specs.yml"):
        points = yaml.safe_load(path.read_text())["argument_specs"].values()
        found[path.parents[1].name] = {name: option for point in points for name, option in point["options"].items()}
    return found


def modules() -> dict[str, dict[str, Any]]:
    found = {}
    for path in MODULES:
        text = path.read_text()
        documentation = yaml.safe_load(re.search(r'DOCUMENTATION = r"""(.*?)"""', text, re.DOTALL)[1])
        options = dict(documentation.get("options") or {})
        for fragment in documentation.get("extends_documentation_fragment") or []:
            options.update(fragment_options(fragment))
        found[path.stem] = options
    return found


def fragment_options(name: str) -> dict[str, Any]:
    path = ROOT / "plugins/doc_fragments" / f"{name.split('.')[2]}.py"
    part = [*name.split("."), "documentation"][3].upper()
    match = re.search(rf'{part} = r"""(.*?)"""', path.read_text(), re.DOTALL)
    return (yaml.safe_load(match[1]).get("options") or {}) if match else {}


ROLES = roles()
MODULE_OPTIONS = modules()
ROLE_VARIABLES = {name: option for options in ROLES.values() for name, option in options.items()}
PLAYBOOK_VARIABLES = set(
    re.findall(r"\b[a-z]+_[a-z_]+", " ".join(path.read_text() for path in (ROOT / "playbooks").glob("*.yml")))
)


def module_problems(where: str, name: str, arguments: Any) -> list[str]:
    """What is wrong with a task of this collection."""
    known = MODULE_OPTIONS.get(name)
    if known is None:
        return [f"{where}: there is no module {name}"]
    spec = {key: as_argument(option) for key, option in known.items()}
    if (ROOT / f"plugins/action/{name}.py").exists():  # which may add what the user need not give
        spec = {key: {**option, "required": False} for key, option in spec.items()}
    return [f"{where}: {name}: {error}" for error in validate(spec, arguments or {})]


def as_argument(option: dict[str, Any]) -> dict[str, Any]:
    kept = {key: option[key] for key in ("type", "elements", "choices", "required", "aliases") if key in option}
    nested = option.get("suboptions") or option.get("options")
    if nested:
        kept["options"] = {key: as_argument(value) for key, value in nested.items()}
    return kept


def validate(spec: dict[str, Any], values: dict[str, Any]) -> list[str]:
    """Errors of values as Ansible finds them; what is computed at run time is not judged."""
    plain = {name: value for name, value in values.items() if "{{" not in str(value)}
    late = set(values) - set(plain)
    judged = {
        name: {**option, "required": option.get("required", False) and name not in late}
        for name, option in spec.items()
    }
    unknown = [f"{name} is no option" for name in late - set(spec)]
    return unknown + list(ArgumentSpecValidator(judged).validate(plain).error_messages)


def role_problems(where: str, name: str, values: dict[str, Any]) -> list[str]:
    short = name.rpartition(".")[2]
    if short not in ROLES:
        return [f"{where}: there is no role {name}"]
    return variable_problems(where, values)


def variable_problems(where: str, values: dict[str, Any]) -> list[str]:
    unknown = [name for name in values if name not in ROLE_VARIABLES]
    spec = {name: as_argument(ROLE_VARIABLES[name]) | {"required": False} for name in values if name in ROLE_VARIABLES}
    known = {name: value for name, value in values.items() if name in ROLE_VARIABLES}
    return [f"{where}: no role has the variable {name}" for name in unknown] + [
        f"{where}: {error}" for error in validate(spec, known)
    ]


def yaml_problems(block: Block) -> list[str]:
    value = yaml.safe_load(block.text)
    if isinstance(value, list):
        return [problem for item in value for problem in item_problems(block.place, item)]
    problems = []
    for name in value if isinstance(value, dict) else ():
        if any(name.startswith(f"{role}_") for role in ROLES):
            problems += variable_problems(block.place, {name: value[name]})
    return problems


def item_problems(where: str, item: dict[str, Any]) -> list[str]:
    """A play or a task."""
    if PLAY_KEYS & set(item):
        found = []
        for role in item.get("roles") or []:
            entry = role if isinstance(role, dict) else {"role": role}
            found += role_problems(where, entry["role"], entry.get("vars") or {})
        for task in item.get("tasks") or []:
            found += item_problems(where, task)
        return found
    problems = []
    for key, value in item.items():
        if key.startswith("llmops.vllm."):
            problems += module_problems(where, key.rpartition(".")[2], value)
    return problems


@pytest.mark.parametrize(
    "block", [block for block in BLOCKS if block.language in ("yaml", "yml")], ids=lambda b: b.place
)
def test_a_yaml_example_names_modules_roles_and_values_that_there_are(block):
    assert yaml_problems(block) == []


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_the_examples_of_a_module_are_taken_by_it(path):
    text = re.search(r'EXAMPLES = r"""(.*?)"""', path.read_text(), re.DOTALL)[1]
    assert yaml_problems(Block(path, 0, "yaml", text)) == []


def test_every_play_in_an_example_is_one_that_ansible_takes(tmp_path):
    plays = [block for block in BLOCKS if block.language == "yaml" and re.match(r"- (name: .*\n  )?hosts:", block.text)]
    files = []
    for number, block in enumerate(plays):
        path = tmp_path / f"{number}.yml"
        path.write_text(f"---\n# {block.place}\n{block.text}\n")
        files.append(str(path))
    assert files
    done = subprocess.run(
        [Path(sys.executable).parent / "ansible-playbook", "--syntax-check", "-i", "inventories/example", *files],
        cwd=ROOT,
        env={
            "PATH": "/usr/bin:/bin",
            "HOME": str(tmp_path),
            "LC_ALL": "C.UTF-8",
            "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def commands() -> list[tuple[str, str]]:
    """Every command in a block without a language, with lines that go on joined and remarks left out."""
    found = []
    for block in BLOCKS:
        if block.language in ("", "sh", "shell", "bash", "console"):
            for line in block.text.replace("\\\n", " ").splitlines():
                match = PROMPT.match(line)
                if match:
                    found += [(block.place, part.strip()) for part in match[1].partition("  #")[0].split(" && ")]
    return found


def inline_commands() -> list[tuple[str, str]]:
    """Commands in the midst of the text."""
    pattern = re.compile(r"`((?:ansible-playbook|make|molecule|tests/\S+\.sh|tools/\S+) [^`]+)`")
    return [
        (f"{page.relative_to(ROOT)}", match)
        for page in PAGES
        if "adr" not in page.parts
        for match in pattern.findall(page.read_text())
    ]


def targets() -> set[str]:
    return set(re.findall(r"^([a-z%-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def exists(path: str) -> bool:
    return path.startswith(THEIRS) or (ROOT / path).exists()


def command_problem(command: str) -> str:
    words = shlex.split(command)
    program, rest = words[0], words[1:]
    if program == "make":
        return make_problem(rest)
    if program == "ansible-playbook":
        return playbook_problem(rest)
    if program == "tools/drift":
        return option_problem(rest)
    if program == "molecule":
        scenario = rest[rest.index("-s") + 1] if "-s" in rest else ""
        known = (ROOT / "extensions/molecule" / scenario / "molecule.yml").exists()
        return "" if known or scenario in ("", "NAME", "SCENARIO") else f"there is no scenario {scenario}"
    paths = [word for word in words if "/" in word and re.fullmatch(r"[A-Za-z0-9_./-]+", word) and word[0] != "/"]
    missing = [path for path in paths if not exists(path)]
    return f"{missing} is not there" if missing else ""


def make_problem(rest: list[str]) -> str:
    for word in rest:
        if "=" in word:
            continue
        benchmark = word.removeprefix("bench-")
        known = word in targets() or (ROOT / "tests/benchmarks" / f"{benchmark}.py").exists() or benchmark == "NAME"
        if not known:
            return f"make has no target {word}"
    return ""


def playbook_problem(rest: list[str]) -> str:
    playbooks = [word for word in rest if word.endswith(".yml") and "=" not in word]
    for path in playbooks:
        if not exists(path):
            return f"there is no playbook {path}"
    if not playbooks:
        return "names no playbook"
    return option_problem(rest)


def option_problem(rest: list[str]) -> str:
    """What is wrong with the options of ansible-playbook, which tools/drift hands on."""
    for flag, value in zip(rest, rest[1:]):
        if flag in ("-i", "--inventory") and not exists(value):
            return f"there is no inventory {value}"
        if flag in ("-e", "--extra-vars"):
            names = list(yaml.safe_load(value)) if value.startswith("{") else VARIABLE.findall(value)[:1]
            unknown = [name for name in names if name not in ROLE_VARIABLES and name not in PLAYBOOK_VARIABLES]
            if unknown:
                return f"nothing reads the variable {unknown}"
    return ""


@pytest.mark.parametrize(("place", "command"), sorted(set(commands() + inline_commands())))
def test_a_command_names_what_there_is(place, command):
    assert command_problem(command) == ""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files_and_paths_in_the_text_exist(page):
    text = page.read_text()
    links = [link for link in LINK.findall(text) if not (page.parent / link).exists() and not link.startswith("http")]
    assert links == []
    if "adr" in page.parts:  # a decision is of its time
        return
    named = [path for path in OURS.findall(text) if not exists(path) and "NAME" not in path]
    assert named == []


@pytest.mark.parametrize("command", [
    "make no-such-target",
    "ansible-playbook playbooks/none.yml",
    "ansible-playbook deploy_kimi.yml -i inventories/none",
    "ansible-playbook deploy_kimi.yml -e no_such_variable=1",
    "ansible-playbook deploy_kimi.yml -e '{\"no_such_variable\": 1}'",
    "molecule converge -s none",
    "tools/drift -i inventories/none",
    "tools/drift -e no_such_variable=1",
    "tests/tools/none.sh",
])  # fmt: skip
def test_a_command_that_cannot_work_is_noticed(command):
    assert command_problem(command) != ""


@pytest.mark.parametrize("text", [
    "- llmops.vllm.none:\n    a: 1\n",
    "- llmops.vllm.gpu_info:\n    no_such_option: 1\n",
    "- llmops.vllm.gpu_info:\n    topology: [1]\n",
    "- hosts: vllm\n  roles: [{role: llmops.vllm.none}]\n",
    "- hosts: vllm\n  roles: [{role: llmops.vllm.vllm_rollout, vars: {vllm_rollout_none: 1}}]\n",
    "vllm_service_port: many\n",
    "vllm_service_none: 1\n",
])  # fmt: skip
def test_an_example_that_cannot_work_is_noticed(text):
    assert yaml_problems(Block(ROOT / "README.md", 0, "yaml", text)) != []
