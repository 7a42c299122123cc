"""The workflow for GitHub: what GitHub's own checker says of it, and what its jobs do on which event."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.llmops.vllm.tests.pipelines.checkout import Checkout, write_program

WORKFLOW = Path(__file__).parents[2] / "docs/pipelines/github-actions.yml"
STATUS = re.compile(r"\b(always|success|failure|cancelled)\(\)")
Check = Callable[[Path], list[str]]
Evaluate = Callable[[str, dict[str, Any], dict[str, bool]], Any]


@pytest.fixture(scope="session")
def check(node: Path, packages: Path) -> Check:
    """Ask GitHub's checker about a workflow."""

    def ask(path: Path) -> list[str]:
        command = [node, packages / "workflow.mjs", "check", path]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return [finding["message"] for finding in json.loads(done.stdout)]

    return ask


@pytest.fixture(scope="session")
def evaluate(node: Path, packages: Path) -> Iterator[Evaluate]:
    """Evaluate an expression as GitHub does."""
    command = [node, packages / "workflow.mjs", "evaluate"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1) as process:

        def ask(expression: str, contexts: dict[str, Any], functions: dict[str, bool]) -> Any:
            question = {"expression": expression, "contexts": contexts, "functions": functions}
            process.stdin.write(json.dumps(question) + "\n")
            return json.loads(process.stdout.readline())

        yield ask
        process.stdin.close()


@dataclass
class Runner:
    """Runs the workflow's jobs one after the other, each script with the shell that GitHub takes.

    A job of an environment waits for its approval. ``variables`` tell the stand-ins how to end.
    """

    checkout: Checkout
    evaluate: Evaluate
    event: str
    approved: bool
    variables: dict[str, str]
    results: dict[str, str] = field(default_factory=dict)
    outputs: dict[str, dict[str, str]] = field(default_factory=dict)
    uploaded: dict[str, list[str]] = field(default_factory=dict)

    def run(self) -> None:
        """Run every job that the event asks for."""
        workflow = yaml.safe_load(WORKFLOW.read_text())
        jobs, env = workflow["jobs"], workflow["env"]
        for name, job in jobs.items():
            before = [self.results[one] for one in ancestors(jobs, name)]
            needed = {one: {"result": self.results[one], "outputs": self.outputs.get(one, {})} for one in self.results}
            if not self.holds(job.get("if"), {"needs": needed}, before):
                self.results[name] = "skipped"
            elif "environment" in job and not self.approved:
                self.results[name] = "waiting"
            else:
                self.results[name] = self.run_job(name, job, env)

    def run_job(self, name: str, job: dict[str, Any], env: dict[str, str]) -> str:
        """Run one job's steps, and keep its outputs."""
        env = {**env, **{key: self.filled(value, {}) for key, value in job.get("env", {}).items()}}
        steps: dict[str, Any] = {}
        results: list[str] = []
        for step in job["steps"]:
            if self.holds(step.get("if"), {"steps": steps}, results):
                outputs, status = self.run_step(step, env)
                steps[step.get("id", "")] = {"outputs": outputs}
                results.append("failure" if status else "success")
        self.outputs[name] = {key: self.filled(text, {"steps": steps}) for key, text in job.get("outputs", {}).items()}
        return "failure" if "failure" in results else "success"

    def run_step(self, step: dict[str, Any], env: dict[str, str]) -> tuple[dict[str, str], int]:
        """Return the outputs and the status of a step; of the actions, only the upload does something here."""
        if step.get("uses", "").startswith("actions/upload-artifact@"):
            paths = step["with"]["path"].split()
            self.uploaded[step["with"]["name"]] = [path for path in paths if (self.checkout.path / path).exists()]
        if "run" not in step:
            return {}, 0
        script, output = (self.checkout.path.parent / name for name in ("step.sh", "output"))
        script.write_text(step["run"])
        output.write_text("")
        machine = {name: self.checkout.environment[name] for name in ("PATH", "HOME", "LC_ALL", "CALLS")}
        variables = {**machine, **env, "GITHUB_OUTPUT": str(output), **self.variables}
        done = subprocess.run(["bash", "-e", script], cwd=self.checkout.path, env=variables, check=False)
        return dict(line.split("=", 1) for line in output.read_text().splitlines()), done.returncode

    def holds(self, condition: str | None, contexts: dict[str, Any], results: list[str]) -> bool:
        """Whether a job or step runs after these; a condition that names no status holds only after success."""
        condition = condition or "success()"
        if not STATUS.search(condition):
            condition = f"success() && ({condition})"
        passed = all(result == "success" for result in results)
        functions = {"always": True, "success": passed, "failure": "failure" in results, "cancelled": False}
        return self.value(condition, contexts, functions) is True

    def filled(self, text: str, contexts: dict[str, Any]) -> str:
        """Return a text with the values of its expressions."""
        return re.sub(r"\$\{\{(.*?)\}\}", lambda found: self.value(found[1].strip(), contexts, {}) or "", text)

    def value(self, expression: str, contexts: dict[str, Any], functions: dict[str, bool]) -> Any:
        """Return the value of an expression, with what every job and step knows."""
        settings = {name: self.checkout.environment[name] for name in ("VAULT_PASSWORD", "DEPLOY_KEY", "KNOWN_HOSTS")}
        known = {"github": {"event_name": self.event}, "secrets": settings, "vars": settings, **contexts}
        return self.evaluate(expression, known, functions)


def ancestors(jobs: dict[str, Any], name: str) -> list[str]:
    """Return the jobs that one waits for, directly or not."""
    needed = jobs[name].get("needs")
    return [needed, *ancestors(jobs, needed)] if needed else []


@pytest.fixture
def run(checkout: Checkout, evaluate: Evaluate) -> Callable[..., Runner]:
    """Run the workflow in the checkout; what Ansible would do is noted."""
    checkout.use("tools/drift", ".venv/bin/ansible-playbook", ".venv/bin/ansible")
    write_program(checkout.path / "bin/sudo", '#!/bin/sh\nexec "$@"\n')

    def run_workflow(event: str, approved: bool = True, **variables: str) -> Runner:
        runner = Runner(checkout, evaluate, event, approved, variables)
        runner.run()
        return runner

    return run_workflow


def called(runner: Runner) -> list[str]:
    return [" ".join(call.split()[: 2 if call.startswith("make") else 1]) for call in runner.checkout.calls]


HOSTS = ["make env", "drift"]
REHEARSED = ["make lint", "make test"]
ROLLED_OUT = ["make env", "ansible-playbook", "ansible", "drift"]


def test_github_takes_the_workflow(check):
    assert check(WORKFLOW) == []


@pytest.mark.parametrize(
    ("right", "wrong", "finding"),
    [
        ("needs: lint", "needs: lnt", "unknown job 'lnt'"),
        ("cancel-in-progress", "cancel-on-progress", "Unexpected value 'cancel-on-progress'"),
        ("secrets.DEPLOY_KEY", "secret.DEPLOY_KEY", "Unrecognized named-value: 'secret'"),
        ("needs.drift.outputs.drift", "needs.drift.outputs.drfit", "drfit"),
    ],
)
def test_a_flaw_of_the_workflow_is_found(check, tmp_path, right, wrong, finding):
    path = tmp_path / "deploy.yml"
    path.write_text(WORKFLOW.read_text().replace(right, wrong))
    assert any(finding in message for message in check(path))


def test_what_is_merged_and_approved_is_rolled_out_and_its_receipts_are_kept(run):
    runner = run("push", DRIFT="3")
    assert called(runner) == [*REHEARSED, *HOSTS, *ROLLED_OUT]
    assert runner.results["rollout"] == "failure"  # the hosts still differ
    assert runner.uploaded == {"drift": ["drift.json"], "receipts": ["left.json"]}  # the stand-ins write no more
    assert all("with the vault" in call for call in runner.checkout.calls[2:])


def test_what_is_not_approved_is_not_rolled_out(run):
    runner = run("push", approved=False, DRIFT="3")
    assert called(runner) == [*REHEARSED, *HOSTS]
    assert runner.results["rollout"] == "waiting"


def test_where_no_host_differs_there_is_nothing_to_approve(run):
    runner = run("push", DRIFT="0")
    assert called(runner) == [*REHEARSED, *HOSTS]
    assert runner.results == {"lint": "success", "molecule": "success", "drift": "success", "rollout": "skipped"}


@pytest.mark.parametrize(
    ("failing", "wanted"),
    [({"MAKE": "1"}, ["make lint"]), ({"DRIFT": "1"}, [*REHEARSED, *HOSTS])],
    ids=["a failed lint", "hosts that cannot be compared"],
)
def test_the_rollout_does_not_come_after(run, failing, wanted):
    runner = run("push", **failing)
    assert called(runner) == wanted
    assert runner.results["rollout"] == "skipped" and "failure" in runner.results.values()


def test_a_rollout_that_fails_has_receipts_and_says_what_differs_still(run):
    runner = run("push", DRIFT="3", ANSIBLE_PLAYBOOK="2")
    assert called(runner)[-3:] == ["ansible-playbook", "ansible", "drift"]
    assert runner.results["rollout"] == "failure"


@pytest.mark.parametrize(("drift", "result"), [("0", "success"), ("3", "failure")])
def test_the_night_only_compares_and_fails_when_a_host_differs(run, drift, result):
    runner = run("schedule", DRIFT=drift)
    assert called(runner) == HOSTS
    assert runner.results["drift"] == result and runner.results["rollout"] == "skipped"


def test_a_pull_request_is_linted_and_rehearsed_without_a_secret(run):
    runner = run("pull_request")
    assert runner.checkout.calls == ["make lint unit", "make test"]
