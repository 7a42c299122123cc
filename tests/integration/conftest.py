"""One real host with systemd, and the modules run on it over ssh and sudo, as a playbook runs them."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pytest_ansible.host_manager.utils import get_host_manager
from pytest_ansible.module_dispatcher.v213 import ModuleDispatcherV213

ROOT = Path(__file__).parents[2]
NAME = os.environ.get("MOLECULE_SCENARIO_NAME", "integration")  # two sessions at a time need two
DIRECTORY = ROOT / ".cache/rig" / NAME
INVENTORY = ROOT / "tests/integration/inventory"
HOST = "integration-1"
SETTINGS = {"RIG_DIRECTORY": str(DIRECTORY), "MOLECULE_SCENARIO_NAME": NAME}


class Dispatcher(ModuleDispatcherV213):
    """pytest-ansible's, which knows neither check mode nor diffs, and writes a task in a way that core deprecates."""

    def _build_play_ds(self, complex_args: dict[str, Any]) -> dict[str, Any]:
        play = super()._build_play_ds(complex_args)
        return {**play, "check_mode": self.options["check"], "diff": True, "tasks": [self._task(complex_args)]}

    def _task(self, complex_args: dict[str, Any]) -> dict[str, Any]:
        return {self.options["module_name"]: complex_args}


class Played:
    """One run of ansible-playbook: its exit status, its output, and the recap of the host."""

    def __init__(self, completed: subprocess.CompletedProcess[str]) -> None:
        self.status = completed.returncode
        self.output = completed.stdout + completed.stderr
        recap = re.search(rf"^{HOST}\s+: (.*)$", self.output, re.MULTILINE)
        self.recap = {key: int(value) for key, value in re.findall(r"(\w+)=(\d+)", recap[1])} if recap else {}


def command(playbook: str, *arguments: str) -> list[str]:
    """The command line for a playbook of tests/ on the rig's inventory."""
    program = Path(sys.executable).parent / "ansible-playbook"
    return [str(program), "-i", str(INVENTORY), str(ROOT / "tests" / playbook), *arguments]


def environment() -> dict[str, str]:
    """The environment in which its output can be read."""
    return {**os.environ, "ANSIBLE_NOCOLOR": "1", "ANSIBLE_FORCE_COLOR": "0"}


def play(playbook: str, *arguments: str) -> Played:
    """Run a playbook of tests/ on the rig's inventory."""
    completed = subprocess.run(
        command(playbook, *arguments),
        cwd=ROOT,
        env=environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    return Played(completed)


@contextlib.contextmanager
def controller(playbook: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """ansible-playbook in a session of its own, all killed at the end, as if its machine was lost."""
    process = subprocess.Popen(
        command(playbook, *arguments),
        cwd=ROOT,
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    with process:
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


class Host:
    """The host: `run` is a root shell on it, `module` runs one module, `play` a playbook."""

    play = staticmethod(play)
    controller = staticmethod(controller)

    def __init__(self) -> None:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Host management is deprecated", DeprecationWarning)
            self._manager = get_host_manager(inventory=str(INVENTORY))
        self.commits: dict[str, str] = json.loads((Path(os.environ["RIG_HUB"]) / "commits.json").read_text())

    def run(self, script: str, check: bool = True) -> str:
        """Run a shell script as root; return its output, or raise with all of it."""
        completed = subprocess.run(
            ["ssh", "-F", DIRECTORY / "ssh_config", HOST, "sudo", "bash", "-eu"],
            input=script,
            capture_output=True,
            text=True,
            check=False,
        )
        if check and completed.returncode:
            raise AssertionError(f"{script!r} ended with {completed.returncode}: {completed.stdout}{completed.stderr}")
        return completed.stdout.strip()

    def module(self, name: str, check: bool = False, **parameters: Any) -> dict[str, Any]:
        """Run a module of the collection and return its result."""
        dispatcher = Dispatcher(**{**self._manager.options, "host_pattern": HOST, "check": check})
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "AnsibleCollectionFinder has already been configured", UserWarning)
            warnings.filterwarnings("ignore", "unclosed file", ResourceWarning)
            result: dict[str, Any] = getattr(dispatcher, f"llmops.vllm.{name}")(**parameters).contacted[HOST]
            gc.collect()  # ansible-core leaves its lock file to the garbage collector, which then complains
        return result

    def start(self, unit: str, command: str, user: str = "vllm", *options: str) -> int:
        """Start a transient service that runs a line of bash; return its main process, or 0 when it has ended."""
        flags = " ".join(["--quiet", f"--unit={unit}", f"--uid={user}", *options])
        self.run(f"systemd-run {flags} bash -c '{command}'")
        return int(self.run(f"systemctl show -p MainPID --value {unit}"))

    def forget(self, *units: str) -> None:
        """End units and everything in them."""
        names = " ".join(units)
        self.run(f"systemctl kill -s KILL {names}; systemctl stop {names}; systemctl reset-failed {names}; true", False)

    def eventually(self, script: str, expected: str, timeout_seconds: float = 10) -> None:
        """Wait until a script prints what is expected."""
        deadline = time.monotonic() + timeout_seconds
        while (found := self.run(script, check=False)) != expected:
            assert time.monotonic() < deadline, f"{script!r} still prints {found!r}, not {expected!r}"
            time.sleep(0.2)


def rig_variables() -> dict[str, str]:
    """Return what prepare.sh sets, prepared now where it is not in the environment yet."""
    if os.environ.get("RIG_HUB"):
        return {}
    checked = subprocess.run([ROOT / "tests/rig/prepare.sh", "check"], capture_output=True, text=True, check=False)
    if checked.returncode:
        pytest.skip(checked.stdout.strip() or checked.stderr.strip())
    script = f'settings=$({ROOT}/tests/rig/prepare.sh env) && eval "$settings" && env -0'
    prepared = subprocess.run(["bash", "-c", script], stdout=subprocess.PIPE, text=True, check=True).stdout
    pairs = dict(entry.split("=", 1) for entry in prepared.split("\0") if "=" in entry)
    return {name: value for name, value in pairs.items() if name.startswith("RIG_") or name == "CONTAINERS_CONF"}


@pytest.fixture(scope="session")
def fresh_host() -> Iterator[Host]:
    """The host as it has just booted."""
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory(prefix="llmops-") as sockets:
        for name, value in {**rig_variables(), **SETTINGS, "ANSIBLE_SSH_CONTROL_PATH_DIR": sockets}.items():
            patch.setenv(name, value)
        play("rig/playbooks/down.yml")  # of a session that was killed
        try:
            up = play("rig/playbooks/up.yml")
            assert up.status == 0, up.output
            yield Host()
        finally:
            leave_connections(Path(sockets))
            down = play("rig/playbooks/down.yml")
            assert down.status == 0, down.output


def leave_connections(sockets: Path) -> None:
    """End the shared ssh connections; a later session's host has the same name, and may have the same address."""
    commands = [["ssh", "-F", DIRECTORY / "ssh_config", "-O", "exit", HOST]]
    commands += [["ssh", "-o", f"ControlPath={path}", "-O", "exit", HOST] for path in sockets.iterdir()]
    for command in commands:
        with contextlib.suppress(OSError):
            subprocess.run(command, capture_output=True, check=False)


@pytest.fixture(scope="session")
def host_prereq(fresh_host: Host) -> dict[str, Any]:
    """What the role did on the fresh host: in check mode, then for the first time, then once more."""
    found: dict[str, Any] = {"checked": play("integration/playbooks/host_prereq.yml", "--check", "--diff")}
    found["user after check"] = fresh_host.run("getent passwd vllm; ls -d /srv/llm", check=False)
    found["first"] = play("integration/playbooks/host_prereq.yml")
    found["second"] = play("integration/playbooks/host_prereq.yml")
    return found


@pytest.fixture(scope="session")
def host(fresh_host: Host, host_prereq: dict[str, Any]) -> Host:
    """The host with the service's user and directories."""
    assert host_prereq["first"].status == 0, host_prereq["first"].output
    return fresh_host
