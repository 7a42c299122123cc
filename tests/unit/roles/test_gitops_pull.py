"""What the role gitops_pull puts on a host, beyond what every role is asked."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from ansible_collections.llmops.vllm.plugins.module_utils import gitops_pull

ROOT = Path(__file__).parents[3]
ROLE = ROOT / "roles/gitops_pull"
LIBRARIES = ROOT / "plugins/module_utils"
PREFIX = "ansible_collections.llmops.vllm.plugins.module_utils"


def imported(path):
    """The collection's libraries that a file imports."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(PREFIX):
            below = (node.module or "")[len(PREFIX) + 1 :]
            found |= {below} if below else {name.name for name in node.names}
    return found


def shipped():
    return set(yaml.safe_load((ROLE / "vars/main.yml").read_text())["_gitops_pull_libraries"])


def test_every_library_that_the_program_needs_is_shipped_and_no_other():
    needed, ahead = set(), imported(ROLE / "files/main.py")
    while ahead:
        name = ahead.pop()
        needed.add(name)
        ahead |= imported(LIBRARIES / f"{name}.py") - needed
    assert needed == shipped()


def test_the_program_runs_as_a_directory_without_anything_of_this_environment(tmp_path):
    package = tmp_path / "program" / PREFIX.replace(".", "/")
    package.mkdir(parents=True)
    for name in shipped():
        (package / f"{name}.py").write_text((LIBRARIES / f"{name}.py").read_text())
    (tmp_path / "program/__main__.py").write_text((ROLE / "files/main.py").read_text())
    done = subprocess.run(
        [sys.executable, "-I", "-B", tmp_path / "program", tmp_path / "none.json"],
        cwd="/",
        env={},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "none.json cannot be read" in done.stderr


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("- name: fine\n", 0),
        ("a: !vault |\n  $ANSIBLE_VAULT;1.1;AES256\n  6162\n", 0),
        ("$ANSIBLE_VAULT;1.1;AES256\n6162\n", 0),
        ("a: !unsafe '{{ x }}'\n", 0),
        ("- name: {\n", 1),
        ("a: b: c\n", 1),
    ],
)
def test_ansible_reads_each_file_as_it_will_and_names_the_one_that_it_cannot(tmp_path, text, status):
    path = tmp_path / "late.yml"
    path.write_text(text)
    done = subprocess.run(
        [sys.executable, "-I", "-c", gitops_pull.READ_YAML, "late.yml"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == status, done.stderr
    assert ("late.yml cannot be read" in done.stderr) == bool(status)


@pytest.mark.parametrize(
    ("prompt", "answer"),
    [("Username for 'https://git.example.com': ", "git\n"), ("Password for 'https://x': ", "t0ken")],
)
def test_git_is_told_the_token_from_the_credential(tmp_path, prompt, answer):
    (tmp_path / "token").write_text("t0ken")
    done = subprocess.run(
        ["sh", ROLE / "files/askpass.sh", prompt],
        env={"CREDENTIALS_DIRECTORY": str(tmp_path), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == answer
