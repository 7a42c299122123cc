"""The pipeline for GitLab, run as it stands: which jobs run when, what stops the rollout, and what is kept of it."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import pytest
import yaml
from ansible_collections.llmops.vllm.tests.pipelines.checkout import HOST, SECRETS, Checkout, write_program

PIPELINE = Path(__file__).parents[2] / "docs/pipelines/gitlab-ci.yml"
CODES = "allow_failure:\n    exit_codes: [3]"
ARGUMENTS = ("PLAYBOOK", "RECEIPT")
RUN = ["make lint unit", "make test", "make env with the vault"]


@dataclass(frozen=True)
class Pipeline:
    """How a pipeline ended, and what was said."""

    passed: bool
    said: str


Run = Callable[..., Pipeline]


@pytest.fixture
def run(checkout: Checkout, node: Path, packages: Path) -> Run:
    """Run the pipeline in the checkout; the button of the rollout is pressed as soon as it is there, or not at all."""
    program = packages / "node_modules/gitlab-ci-local/dist/index.js"
    settings = checkout.path.parent / ".gitlab-ci-local/variables.yml"
    settings.parent.mkdir()
    environment = dict(checkout.environment)
    arguments = {name: environment.pop(name) for name in ARGUMENTS}
    secrets = {name: environment.pop(name) for name in ("VAULT_PASSWORD", "DEPLOY_KEY", "KNOWN_HOSTS")}
    settings.write_text(json.dumps({"global": secrets}))
    write_program(checkout.path / "bin/rsync", "#!/bin/sh\n")  # it copies the checkout for containers: there are none

    def run_pipeline(press: bool = False, source: str = "push", **variables: str) -> Pipeline:
        text = re.sub(r"(?m)^  image: .*\n", "", PIPELINE.read_text())
        assert text.count(CODES) == 1
        if variables.get("DRIFT") == "1":  # with these codes the program would take every failure for an allowed one
            text = text.replace(CODES, "allow_failure: false")
        (checkout.path / ".gitlab-ci.yml").write_text(text)
        given = {**arguments, "CI_PIPELINE_SOURCE": source}
        options = [word for name, value in given.items() for word in ("--variable", f"{name}={value}")]
        options += ["--manual", "rollout"] if press else []
        options += ["--unset-variable", "CI_COMMIT_BRANCH"] if source == "merge_request_event" else []
        done = subprocess.run(
            [node, program, *options],
            cwd=checkout.path,
            env={**environment, **variables},
            capture_output=True,
            text=True,
            check=False,
        )
        return Pipeline(done.returncode == 0, done.stdout + done.stderr)

    return run_pipeline


@pytest.fixture
def stood_in(checkout: Checkout) -> Checkout:
    """Nothing of Ansible's runs: what is called is noted."""
    checkout.use("tools/drift", ".venv/bin/ansible-playbook", ".venv/bin/ansible")
    return checkout


def names(calls: list[str]) -> list[str]:
    return [call.partition(" ")[0] for call in calls]


def test_what_is_merged_goes_to_the_hosts_when_somebody_presses_the_button(checkout, run):
    pipeline = run(press=True)
    assert pipeline.passed, pipeline.said
    assert checkout.calls == [*RUN, RUN[-1]]
    before, after = (json.loads((checkout.path / name).read_text()) for name in ("drift.json", "left.json"))
    assert (before["verdict"], after["verdict"]) == ("drift", "none")
    assert "1 of 1 hosts differ from the repository, 0 could not be compared." in pipeline.said
    kept = json.loads((checkout.path / "run.json").read_text())
    assert {name: host["outcome"] for name, host in kept["hosts"].items()} == {HOST: "changed"}
    assert [suite.get("name") for suite in ElementTree.parse(checkout.path / "run.xml").iter("testsuite")] == [HOST]
    receipt = checkout.path / f"receipts/{HOST}{checkout.environment['RECEIPT']}"
    assert json.loads(receipt.read_text()) == {"release": "0123456789ab"}
    artifacts = yaml.safe_load(PIPELINE.read_text())
    kept_paths = [checkout.path / path for job in ("drift", "rollout") for path in artifacts[job]["artifacts"]["paths"]]
    texts = [file.read_text() for path in kept_paths for file in ([path] if path.is_file() else path.rglob("*.json"))]
    assert len(texts) == len(kept_paths)
    for secret in (*SECRETS.values(), checkout.environment["DEPLOY_KEY"].splitlines()[2]):
        assert [text for text in (pipeline.said, *texts) if secret in text] == []


def test_without_the_button_nothing_is_rolled_out(stood_in, run):
    assert run(DRIFT="3").passed
    assert names(stood_in.calls) == ["make", "make", "make", "drift"]


@pytest.mark.parametrize(
    ("failing", "called"),
    [({"MAKE": "1"}, 1), ({"DRIFT": "1"}, 4)],
    ids=["a failed lint", "hosts that cannot be compared"],
)
def test_the_rollout_does_not_come_after(stood_in, run, failing, called):
    assert not run(press=True, **failing).passed
    assert len(stood_in.calls) == called


def test_a_rollout_that_fails_has_receipts_and_says_what_differs_still(stood_in, run):
    assert not run(press=True, DRIFT="3", ANSIBLE_PLAYBOOK="2").passed
    assert names(stood_in.calls[-4:]) == ["make", "ansible-playbook", "ansible", "drift"]


def test_drift_that_the_rollout_does_not_cure_fails_it(stood_in, run):
    assert not run(press=True, DRIFT="3").passed
    assert run(press=True, DRIFT="0").passed


def test_a_schedule_only_compares(stood_in, run):
    assert run(press=True, source="schedule", DRIFT="3").passed
    assert names(stood_in.calls) == ["make", "drift"]


def test_a_merge_request_is_linted_and_rehearsed_without_a_secret(stood_in, run):
    assert run(press=True, source="merge_request_event").passed
    assert stood_in.calls == RUN[:2]
