"""The pipelines in docs/pipelines: what they name is there."""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs/pipelines"
SHELL_WORDS = {"source", "export", "eval", "echo", "exit", "case", "esac", "trap", "printf", "for", "done", "if", "fi"}
PLAY_VARIABLES = {"deploy_model", "deploy_model_file", "deploy_hosts", "deploy_serial"}


def load(name: str) -> Any:
    return yaml.safe_load((FOLDER / name).read_text())


def github_scripts() -> Iterator[tuple[str, str, dict[str, str]]]:
    workflow = load("github-actions.yml")
    for name, job in workflow["jobs"].items():
        for step in job["steps"]:
            if "run" in step:
                yield f"github {name}", step["run"], workflow["env"]


def gitlab_scripts() -> Iterator[tuple[str, str, dict[str, str]]]:
    pipeline = load("gitlab-ci.yml")
    for name, job in pipeline.items():
        if isinstance(job, dict) and ("script" in job or "before_script" in job):
            lines = [*job.get("before_script", []), *job.get("script", [])]
            yield f"gitlab {name}", "\n".join(lines), pipeline["variables"]


SCRIPTS = [*github_scripts(), *gitlab_scripts()]
each_script = pytest.mark.parametrize(("script", "variables"), [s[1:] for s in SCRIPTS], ids=[s[0] for s in SCRIPTS])


def with_values(script: str, variables: dict[str, str]) -> str:
    return re.sub(r'"?\$(\w+)"?', lambda found: variables.get(found[1], found[0]), script)


def commands(script: str) -> Iterator[list[str]]:
    """The words of each command, without assignments before it and what is done with its output."""
    for line in script.splitlines():
        words = line.strip().split()
        while words and (re.match(r"^\w+=", words[0]) or words[0] == "sudo" or words[0].endswith(")")):
            words.pop(0)
        if words and words[0] not in SHELL_WORDS | {"*)"}:
            yield words


def role_options() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for spec in ROOT.glob("roles/*/meta/argument_specs.yml"):
        for entry_point in yaml.safe_load(spec.read_text())["argument_specs"].values():
            found.update(entry_point.get("options") or {})
    return found


def check_variable(name: str, value: str) -> None:
    assert name in PLAY_VARIABLES | set(role_options()), f"{name} is no variable of a role or playbook"
    if name == "deploy_model":
        assert (ROOT / f"playbooks/models/{value}.yml").is_file()


@each_script
def test_scripts_are_bash_without_a_flaw(script, variables):
    text = "set -e\n" + re.sub(r"\$\{\{.*?\}\}", "x", script)
    assert subprocess.run(["bash", "-n"], input=text, text=True, check=False).returncode == 0


@each_script
def test_every_command_is_there(script, variables):
    targets = set(re.findall(r"^([a-z%-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for words in commands(with_values(script, variables)):
        if words[0] == "make":
            assert words[1:] and set(words[1:]) <= targets, words
        elif "/" in words[0]:
            assert (ROOT / words[0]).stat().st_mode & 0o111, words
        else:
            assert words[0] in ("ansible", "ansible-playbook"), words


@each_script
def test_every_file_playbook_variable_and_model_is_there(script, variables):
    script = with_values(script, variables)
    for path in re.findall(r"(?:tools|docs|playbooks|\.ci)/[\w./-]+|\b\w+\.yml\b", script):
        assert (ROOT / path).is_file(), path
    for name, value in re.findall(r"-e (\w+)=(\S+)", script):
        check_variable(name, value)


def test_there_is_something_to_check():
    assert len(SCRIPTS) >= 9
    assert sum(len(list(commands(with_values(script, variables)))) for _name, script, variables in SCRIPTS) >= 10


def test_a_command_variable_or_model_that_is_not_there_is_noticed():
    for script in ("make no-such-target", "tools/no-such-file -i x", "no-such-command"):
        with pytest.raises((AssertionError, FileNotFoundError)):
            test_every_command_is_there(script, {})
    for script in ("ansible-playbook none.yml", "x -e no_such_variable=1", "x -e deploy_model=none"):
        with pytest.raises(AssertionError):
            test_every_file_playbook_variable_and_model_is_there(script, {})


@pytest.mark.parametrize("name", ["github-actions.yml", "gitlab-ci.yml"])
def test_the_stages_come_in_this_order_and_the_rollout_waits_for_a_person(name):
    pipeline = load(name)
    if name.startswith("github"):
        jobs = pipeline["jobs"]
        assert [jobs[job].get("needs") for job in jobs] == [None, "lint", "molecule", "drift"]
        assert list(jobs) == ["lint", "molecule", "drift", "rollout"]
        assert jobs["rollout"]["environment"] == "production"
    else:
        assert pipeline["stages"] == ["lint", "molecule", "drift", "rollout"]
        assert pipeline["rollout"]["rules"][-1]["when"] == "manual"
        assert pipeline["drift"]["allow_failure"] == {"exit_codes": [3]}


def test_no_secret_is_in_a_command():
    for _name, script, _variables in SCRIPTS:
        assert not re.search(r"secrets\.|VAULT_PASSWORD|DEPLOY_KEY", script)


def test_awx_names_playbooks_variables_and_choices_that_are_there():
    awx, options = load("awx.yml"), role_options()
    for template in awx["controller_templates"]:
        assert (ROOT / template["playbook"]).is_file()
        for name, value in template.get("extra_vars", {}).items():
            check_variable(name, value)
        for question in template.get("survey_spec", {}).get("spec", []):
            check_variable(question["variable"], question["default"])
            known = options.get(question["variable"], {}).get("choices")
            assert not known or question["choices"] == known
    jobs = {template["name"] for template in awx["controller_templates"]}
    for workflow in awx["controller_workflows"]:
        nodes = {node["identifier"]: node for node in workflow["simplified_workflow_nodes"]}
        for node in nodes.values():
            assert node.get("unified_job_template") in jobs or node["approval_node"]["name"]
            assert {*node.get("success_nodes", []), *node.get("always_nodes", [])} <= nodes.keys()
    assert {schedule["unified_job_template"] for schedule in awx["controller_schedules"]} <= jobs


def test_the_password_script_prints_the_password_or_fails(monkeypatch):
    def run():
        script = FOLDER / "vault-password.sh"
        return subprocess.run([script], capture_output=True, text=True, check=False)

    monkeypatch.setenv("VAULT_PASSWORD", "it's $HOME")
    assert run().stdout == "it's $HOME\n"
    monkeypatch.delenv("VAULT_PASSWORD")
    assert run().returncode != 0


@pytest.mark.skipif(not shutil.which("ssh-agent"), reason="no ssh-agent here")
def test_a_step_reaches_hosts_with_its_key_and_leaves_no_agent(tmp_path):
    key = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    known = 'cat "${ANSIBLE_SSH_COMMON_ARGS#*=}"'
    script = f'set -eu; source {FOLDER}/reach-hosts.sh; ssh-add -l; echo "$SSH_AGENT_PID"; {known}'
    environment = {"PATH": "/usr/bin:/bin", "DEPLOY_KEY": key.read_text(), "KNOWN_HOSTS": "gpu-1 ssh-ed25519 AAAA"}
    environment["TMPDIR"] = str(tmp_path)
    done = subprocess.run(["bash", "-c", script], env=environment, capture_output=True, text=True, check=False)
    listed, pid, known_hosts = done.stdout.splitlines()
    assert done.returncode == 0 and "ED25519" in listed
    assert known_hosts == "gpu-1 ssh-ed25519 AAAA"
    deadline = time.monotonic() + 5
    while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not Path(f"/proc/{pid}").exists()
    assert [path.name for path in tmp_path.iterdir() if not path.name.startswith("key")] == []
