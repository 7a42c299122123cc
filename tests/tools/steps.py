"""The steps of `make test`, cheapest first."""

from __future__ import annotations

import subprocess
from functools import lru_cache
from pathlib import Path

from runner import Obstacle, Step

LINK = "collections/ansible_collections/llmops/vllm"
PYTEST_TALLY = ((r"\b(\d+) passed", "tests"), (r"\b(\d+) skipped", "skipped"))
PYTEST_PROOF = (r"\b[1-9]\d* passed",)
NIGHTLY = ("gate", "interruption")  # a quarter of an hour and more on two cores: make night
INVENTORIES = ("inventories/example", "inventories/rehearsal")
# An inventory that cannot be read is otherwise a warning, and a playbook without hosts is fine.
STRICT = {
    "ANSIBLE_CONFIG": "ansible.cfg",
    "ANSIBLE_INVENTORY_ANY_UNPARSED_IS_FAILED": "true",
    "ANSIBLE_INVENTORY_UNPARSED_FAILED": "true",
}


class Steps:
    """Finds in the checkout `root` what there is to test."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def all(self) -> list[Step]:
        """Return every step, in order."""
        return [
            *self.static(),
            *self.unit(),
            *self.download(),
            *self.pipelines(),
            *self.versions(),
            *self.ansible(),
            *self.collection(),
            *self.on_hosts(),
        ]

    def static(self) -> list[Step]:
        """Return what needs no Ansible."""
        plugins = sorted((self.root / LINK / "plugins").rglob("*.py"))
        sources = tuple(str(path.relative_to(self.root)) for path in plugins)
        return [
            Step("ruff", "ruff: lint", (("ruff", "check"),), disproof=("No Python files found",)),
            Step(
                "format",
                "ruff: format",
                (("ruff", "format", "--check"),),
                proof=(r"^[1-9]\d* files? already formatted",),
                tally=((r"^(\d+) files? already formatted", "files"),),
            ),
            Step(
                "shellcheck",
                "shellcheck: every shell script",
                (("tests/tools/shellcheck.sh",),),
                proof=("^[1-9][0-9]* scripts checked$",),
                tally=(("^([0-9]+) scripts checked$", "scripts"),),
            ),
            Step(
                "yamllint",
                "yamllint",
                (("yamllint", "--list-files", "."), ("yamllint", "--strict", ".")),
                proof=(r"^\./galaxy\.yml$", r"^\./playbooks/", r"^\./roles/"),
                tally=((r"^\./.*$", "files"),),
            ),
            # Under the link's path, so that every file is part of its package; `mypy plugins` would check half of it.
            Step(
                "mypy",
                "mypy: libraries, modules and plugins",
                (("mypy", *sources),),
                proof=(rf"no issues found in {len(sources)} source files?",),
                tally=((r"no issues found in (\d+)", "files"),),
            ),
        ]

    def unit(self) -> list[Step]:
        """Return the unit tests, once for each Python and ansible-core that the project supports."""
        libraries = "tests/unit/plugins/module_utils"
        return [
            self._unit("unit", "unit tests, newest ansible-core", ".venv", ("tests/unit",), self._no_newest_core),
            self._unit("unit-2.19", "unit tests, ansible-core 2.19", ".venv-2.19", ("tests/unit",)),
            # conftest.py of tests/unit imports ansible, which is not there: on a target host nothing else is either.
            self._unit(
                "unit-3.9", "libraries on Python 3.9", ".venv-3.9", ("--confcutdir=tests/unit/plugins", libraries)
            ),
        ]

    def _unit(
        self, name: str, title: str, environment: str, arguments: tuple[str, ...], obstacle: Obstacle | None = None
    ) -> Step:
        return Step(
            name,
            f"pytest: {title}",
            (("pytest", "--quiet", *arguments),),
            environment=environment,
            proof=PYTEST_PROOF,
            tally=PYTEST_TALLY,
            obstacle=obstacle or self._missing(environment),
        )

    def download(self) -> list[Step]:
        """Return the download against a hub that misbehaves, and beside the hub's own clients."""
        return [
            Step(
                "download",
                "pytest: downloads with faults, docs/download-faults.md",
                (("pytest", "--quiet", "tests/download"),),
                proof=PYTEST_PROOF,
                tally=PYTEST_TALLY,
            )
        ]

    def pipelines(self) -> list[Step]:
        """Return the ready pipelines of docs/pipelines, and the execution environment."""
        return [
            Step(
                "pipelines",
                "pytest: pipelines and execution environment",
                (("pytest", "--quiet", "tests/pipelines"),),
                proof=PYTEST_PROOF,
                tally=PYTEST_TALLY,
            )
        ]

    def versions(self) -> list[Step]:
        """Return what the preflight reads in the sources of published versions of the engine."""
        return [
            Step(
                "versions",
                "pytest: sources of published versions of vLLM",
                (("tests/versions/sources.py",), ("pytest", "--quiet", "tests/versions")),
                proof=PYTEST_PROOF,
                tally=PYTEST_TALLY,
                obstacle=self._no_sources,
            )
        ]

    def ansible(self) -> list[Step]:
        """Return the checks of the runnable project, for both cores."""
        config = ("ansible-config", "validate", "-t", "all")  # without -t all it knows no plugin's keys
        steps = []
        for suffix, environment in (("", ".venv"), ("-2.19", ".venv-2.19")):
            core = "ansible-core 2.19" if suffix else "newest ansible-core"
            obstacle = self._missing(environment) if suffix else self._no_newest_core
            steps += [
                Step(
                    f"config{suffix}",
                    f"ansible-config: ansible.cfg, {core}",
                    (config,),
                    environment=environment,
                    variables=STRICT,
                    proof=("All configurations seem valid",),
                    obstacle=obstacle,
                ),
                self._syntax(f"syntax{suffix}", core, environment, obstacle),
            ]
        return steps

    def _syntax(self, name: str, core: str, environment: str, obstacle: Obstacle) -> Step:
        playbooks = self.playbooks()
        return Step(
            name,
            f"ansible-playbook: syntax of every playbook, {core}",
            tuple(("ansible-playbook", "--syntax-check", "-i", inventory, *playbooks) for inventory in INVENTORIES),
            environment=environment,
            variables=STRICT,
            proof=(*(rf"^playbook: {playbook}$" for playbook in playbooks), "^playbook: "),
            tally=(("^playbook: .*$", "playbook readings"),),
            obstacle=obstacle,
        )

    def playbooks(self) -> list[str]:
        """Return the playbooks at the root and in playbooks/: YAML files that hold a list of plays."""
        candidates = [*sorted(self.root.glob("*.yml")), *sorted((self.root / "playbooks").glob("*.yml"))]
        return [str(path.relative_to(self.root)) for path in candidates if _is_list(path)]

    def collection(self) -> list[Step]:
        """Return the gates of the collection as something to publish."""
        oldest = self.root / ".venv-3.9/bin/python"
        on_target = ('sanity test "compile" on Python 3.9', 'sanity test "import" on Python 3.9')
        return [
            Step("changelog", "antsibull-changelog: fragments", (("antsibull-changelog", "lint"),)),
            Step(
                "docs",
                "antsibull-docs: plugin and role documentation, reference",
                (("tests/tools/docs.sh",),),
                proof=(r"^pages in the reference: [1-9]",),
                tally=((r"^pages in the reference: (\d+)", "pages"),),
            ),
            Step(
                "ansible-lint",
                "ansible-lint: profile production",
                (("ansible-lint", "--offline", "--strict", "--profile", "production"),),
                proof=(r"in [1-9]\d* files processed",),
                tally=((r"in (\d+) files processed", "files"),),
            ),
            Step(
                "artefact",
                "ansible-galaxy: build, install, read the documentation",
                (("tests/tools/artefact.sh",),),
                proof=(r"modules documented from the artefact: [1-9]",),
                tally=((r"modules documented from the artefact: (\d+)", "modules"),),
            ),
            Step(
                "sanity",
                "ansible-test: sanity",
                (("tests/tools/ansible_test.sh", "sanity", "--color", "no"),),
                proof=('sanity test "validate-modules"', *(on_target if oldest.exists() else ())),
                tally=((r"^Running sanity test ", "tests"),),
            ),
        ]

    def on_hosts(self) -> list[Step]:
        """Return what needs test hosts with systemd: the hosts, every scenario, the integration tests."""
        prepare = Step(
            "hosts",
            "test hosts: engine, image, wheels, models",
            (("tests/rig/prepare.sh", "all"),),
            obstacle=self._no_hosts,
        )
        scenarios = sorted(path.parent.name for path in (self.root / "extensions/molecule").glob("*/molecule.yml"))
        steps = [
            prepare,
            *(self._scenario(name) for name in scenarios if not name.startswith("_") and name not in NIGHTLY),
        ]
        if any((self.root / "tests/integration").rglob("test_*.py")):
            steps.append(
                Step(
                    "integration",
                    "pytest: integration tests",
                    (("tests/rig/prepare.sh", "run", "pytest", "--quiet", "tests/integration"),),
                    proof=PYTEST_PROOF,
                    tally=PYTEST_TALLY,
                    obstacle=self._no_hosts,
                    after="hosts",
                    beside=True,
                )
            )
        return steps

    def _scenario(self, name: str) -> Step:
        oldest = name == "replace" and (self.root / ".venv-2.19/bin/molecule").exists()
        return Step(
            f"molecule-{name}",
            f"molecule: {name}{', ansible-core 2.19' if oldest else ''}",
            (("tests/rig/prepare.sh", "run", "molecule", "test", "-s", name),),
            environment=".venv-2.19" if oldest else ".venv",
            # Green all the same: a scenario that finds no inventory skips every play, one without verify.yml warns. A
            # deployment with nothing to do skips two.
            proof=(
                r"^\S+\s+: ok=[1-9]",
                *(rf"> {action}\S* \S*Executed: \S*Successful" for action in ("converge", "verify")),
            ),
            disproof=(
                r"PLAY \[(?!Bring everything|Roll the release)[^\]]*\](.*\n){1,2}.*skipping: no hosts matched",
                "Could not match supplied host pattern",
                r"> (create|prepare|converge|idempotence|side_effect|verify)\S* .*Missing playbook",
            ),
            tally=((r"^\S+\s+: ok=(\d+)", "tasks"),),
            obstacle=self._no_hosts,
            after="hosts",
            timeout_seconds=3600,
            beside=True,
        )

    def _missing(self, environment: str) -> Obstacle:
        def obstacle() -> str | None:
            if (self.root / environment / "bin/python").exists():
                return None
            version = {".venv-2.19": "3.11", ".venv-3.9": "3.9"}[environment]
            return f"{environment} was not made, because no Python {version} was found here."

        return obstacle

    def _no_newest_core(self) -> str | None:
        if any((self.root / ".venv/lib").glob("python3.11")):
            return "no Python 3.12 or newer was found here, so .venv holds ansible-core 2.19."
        return None

    def _no_hosts(self) -> str | None:
        return _obstacle(self.root, "tests/rig/prepare.sh")

    def _no_sources(self) -> str | None:
        return _obstacle(self.root, "tests/versions/sources.py")


@lru_cache(maxsize=2)
def _obstacle(root: Path, name: str) -> str | None:
    script = root / name
    if not script.exists():
        return f"{name} is not in this checkout."
    check = subprocess.run([script, "check"], cwd=root, capture_output=True, text=True, check=False)
    if check.returncode == 0:
        return None
    lines = (check.stdout or check.stderr).strip().splitlines()
    return lines[-1] if lines else f"{name} check ended with status {check.returncode}."


def _is_list(path: Path) -> bool:
    for line in path.read_text().splitlines():
        if line.strip() and not line.startswith(("#", "---")):
            return line.startswith("- ")
    return False
