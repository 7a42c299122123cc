"""The execution environment's definition is one that ansible-builder takes."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import yaml
from ansible_collections.llmops.vllm.tests.benchmarks._peers import programs_of

ROOT = Path(__file__).parents[2]


def create(context: Path, definition: Path = ROOT / "execution-environment.yml") -> subprocess.CompletedProcess[str]:
    command = [programs_of("ansible-builder") / "ansible-builder", "create", "--file", definition, "--context", context]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> Path:
    context = tmp_path_factory.mktemp("context")
    done = create(context)
    assert done.returncode == 0, done.stdout + done.stderr
    return context


def test_the_build_context_has_what_the_project_needs(context):
    definition = yaml.safe_load((ROOT / "execution-environment.yml").read_text())
    recipe = (context / "Containerfile").read_text()
    assert definition["images"]["base_image"]["name"] in recipe
    assert definition["dependencies"]["ansible_core"]["package_pip"] in recipe
    parts = {path.name: path.read_text() for path in (context / "_build").rglob("*") if path.is_file()}
    for name in ("collections/requirements.yml", "meta/ee-requirements.txt", "meta/ee-bindep.txt"):
        assert (ROOT / name).read_text().strip() in {text.strip() for text in parts.values()}, name


def test_its_ansible_core_is_the_locked_one():
    definition = yaml.safe_load((ROOT / "execution-environment.yml").read_text())
    wanted = definition["dependencies"]["ansible_core"]["package_pip"].partition("~=")[2].rsplit(".", 1)[0]
    assert f"\nansible-core=={wanted}." in (ROOT / "requirements/dev.lock").read_text()


def test_what_the_collection_declares_is_there():
    declared = yaml.safe_load((ROOT / "meta/execution-environment.yml").read_text())
    for path in declared["dependencies"].values():
        assert (ROOT / path).read_text().strip()


def test_a_definition_with_a_flaw_is_refused(tmp_path):
    definition = tmp_path / "execution-environment.yml"
    definition.write_text((ROOT / "execution-environment.yml").read_text().replace("base_image:", "base_picture:"))
    assert create(tmp_path / "context", definition).returncode != 0
