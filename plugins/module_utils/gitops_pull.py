# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A host that deploys to itself what a repository holds: one pull, as the timer of the role gitops_pull starts it.

Nothing of a commit is read by Ansible, and nothing of it is checked out, before its signature is believed and every
task file of it can be read. Then ``ansible-pull --verify-commit`` deploys it. A commit that has cost the host a launch
and then failed is not tried a second time.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from typing import Any, Callable, TextIO

from ansible_collections.llmops.vllm.plugins.module_utils import gitops_result
from ansible_collections.llmops.vllm.plugins.module_utils.errors import InvalidInputError, LlmopsError
from ansible_collections.llmops.vllm.plugins.module_utils.gitops_git import (
    PUBLISHED,
    Access,
    Ask,
    Candidate,
    RefusedError,
    Repository,
    UnreachableError,
    ask_command,
)
from ansible_collections.llmops.vllm.plugins.module_utils.gitops_result import Memory, Result

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_BUSY = 75  # EX_TEMPFAIL of sysexits.h
_KEPT_LINES = 2000
_CHECK_TIMEOUT_SECONDS = 300.0
# Whatever lies in one of these is read by Ansible when a task of it is due, which may be after the service was stopped.
_READ_LATE = {"playbooks", "tasks", "handlers", "defaults", "vars", "meta", "group_vars", "host_vars"}
_NOT_OURS = {"tests", "molecule", "extensions", "docs"}
READ_YAML = """
import os
import sys
from ansible.parsing.dataloader import DataLoader
for path in sys.argv[1:]:
    try:
        with open(path, encoding="utf-8") as stream:
            text = stream.read()
        if not text.startswith("$ANSIBLE_VAULT"):
            DataLoader().load(text, file_name=os.path.abspath(path))
    except Exception as error:
        sys.exit(f"{path} cannot be read: {error}")
"""


@dataclass(frozen=True)
class Config:
    """What the role has decided: paths, names, and seconds."""

    url: str
    revision: str
    playbook: str
    inventory: list[str]
    limit: str
    ansible: str
    state: str
    allowed_signers: str
    known_hosts: str = ""
    askpass: str = ""
    textfile: str = ""
    allow_rewind: bool = False
    fetch_timeout_seconds: float = 300.0

    @property
    def checkout(self) -> str:
        """Where ansible-pull works."""
        return os.path.join(self.state, "checkout")

    @property
    def result(self) -> str:
        """The last result, for people and programs."""
        return os.path.join(self.state, "result.json")

    @property
    def retry(self) -> str:
        """A file that somebody makes to have a commit tried again."""
        return os.path.join(self.state, "retry")

    @property
    def memory(self) -> str:
        """What the next pull has to know."""
        return os.path.join(self.state, "memory.json")


def read_config(path: str) -> Config:
    """Read the role's file; raises InvalidInputError when it is not one."""
    try:
        with open(path, encoding="utf-8") as stream:
            values: dict[str, Any] = json.load(stream)
    except (OSError, ValueError) as error:
        raise InvalidInputError(f"{path} cannot be read: {error}; let the role gitops_pull write it again.") from error
    known = {item.name for item in fields(Config)}
    if not isinstance(values, dict) or not set(values) <= known:
        raise InvalidInputError(f"{path} is not of this version; let the role gitops_pull write it again.")
    try:
        return Config(**values)
    except TypeError as error:
        raise InvalidInputError(f"{path} is not complete: {error}; let the role gitops_pull write it again.") from error


Follow = Callable[[Sequence[str], Mapping[str, str], str], "tuple[int, list[str]]"]
Launches = Callable[[], "frozenset[str]"]


def follow_command(argv: Sequence[str], environment: Mapping[str, str], directory: str) -> tuple[int, list[str]]:
    """Run ``argv``, pass on what it says line by line, and return its status with its last lines."""
    kept: deque[str] = deque(maxlen=_KEPT_LINES)
    with subprocess.Popen(  # pylint: disable=ansible-bad-function # this library knows no AnsibleModule
        list(argv),
        env=dict(environment),
        cwd=directory,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as process:
        for line in process.stdout or ():
            text = line.decode("utf-8", "replace").rstrip("\n")
            kept.append(text)
            _say(text)
    return process.returncode, list(kept)


def launches_of_instances() -> frozenset[str]:
    """Return the launches of all instances that systemd knows, to see whether any ended or began."""
    argv = ["systemctl", "show", "vllm@*.service", "--property=Id,InvocationID"]
    answer = ask_command(argv, {"PATH": os.environ.get("PATH", os.defpath)}, "/", 30.0)
    return frozenset(block for block in answer.output.split("\n\n") if block.strip())


class Pull:
    """One pull. Everything that happens outside is an argument."""

    def __init__(
        self,
        config: Config,
        credentials: str = "",
        *,
        ask: Ask = ask_command,
        follow: Follow = follow_command,
        launches: Launches = launches_of_instances,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.config = config
        self._ask = ask
        self._follow = follow
        self._launches = launches
        self._clock = clock
        environment = self._access(credentials).environment(config.state)
        if credentials:
            environment["CREDENTIALS_DIRECTORY"] = credentials
        self._repository = Repository(
            os.path.join(config.state, "repository.git"), config.url, environment, config.fetch_timeout_seconds, ask
        )
        self._environment = {**environment, **self._for_ansible(credentials)}

    def run(self) -> Result:
        """Pull, write down what became of it, and return that."""
        config = self.config
        memory = gitops_result.read_memory(config.memory).about(config.url, config.revision)
        result = Result(socket.gethostname(), config.url, config.revision, self._clock())
        try:
            self._pull(result, memory)
        except RefusedError as error:
            result.outcome, result.reason = "refused", error.message
        except UnreachableError as error:
            result.outcome, result.reason = "unreachable", error.message
        except (LlmopsError, OSError) as error:
            result.outcome, result.reason = "failed", str(error)
        result.finished = self._clock()
        if result.outcome in gitops_result.GOOD:
            memory.deployed_at = result.finished
        result.deployed_commit = memory.commit
        memory.count(result.outcome)
        self._write(result, memory)
        return result

    def _pull(self, result: Result, memory: Memory) -> None:
        candidate = self._repository.fetch(self.config.revision)
        result.commit = candidate.commit
        signature = self._repository.verify(candidate)
        result.signer, result.key = signature.signer, signature.key
        result.subject = self._repository.subject(candidate.commit)
        self._goes_forward(candidate, memory)
        if candidate.commit == memory.held and not self._told_to_retry():
            result.outcome = "held"
            result.reason = (
                "it was tried, a launch ended or began, and it failed, so it is not tried again by itself. "
                f"Repair it with a new commit; or touch {self.config.retry}, and the next pull tries it once more."
            )
            return
        self._repository.publish(candidate)
        broken = self._check_out() or self._unreadable(candidate)
        if broken:
            result.outcome, result.reason = "broken", broken
            return
        self._deploy(result, memory)

    def _goes_forward(self, candidate: Candidate, memory: Memory) -> None:
        if self.config.allow_rewind or not memory.commit:
            return
        if not self._repository.descends(candidate.commit, memory.commit):
            raise RefusedError(
                f"Commit {candidate.commit} does not come after {memory.commit}, which is deployed. An old commit is "
                "signed as well as a new one: going back takes a new commit (git revert) or gitops_pull_allow_rewind."
            )

    def _told_to_retry(self) -> bool:
        with suppress(FileNotFoundError):
            os.unlink(self.config.retry)
            return True
        return False

    def _check_out(self) -> str:
        checkout = self.config.checkout
        shutil.rmtree(checkout, ignore_errors=True)
        source = f"file://{self._repository.path}"
        argv = ["git", "clone", "--quiet", "--depth", "1", "--branch", PUBLISHED, "--", source, checkout]
        answer = self._ask(argv, self._environment, "/", _CHECK_TIMEOUT_SECONDS)
        return "" if answer.status == 0 else f"The commit cannot be checked out: {' '.join(answer.errors.split())}"

    def _unreadable(self, candidate: Candidate) -> str:
        """Say what of the commit Ansible could not read, now or in the midst of a rollout."""
        paths = [path for path in self._repository.files(candidate.commit) if _is_read_late(path)]
        programs = [
            [self._program("python"), "-I", "-c", READ_YAML, *paths],
            [self._program("ansible-playbook"), "--syntax-check", "--limit", self.config.limit, self.config.playbook],
        ]
        for argv in programs:
            answer = self._ask(argv, self._environment, self.config.checkout, _CHECK_TIMEOUT_SECONDS)
            if answer.status != 0:
                return gitops_result.why([*answer.output.splitlines(), *answer.errors.splitlines()])
        return ""

    def _deploy(self, result: Result, memory: Memory) -> None:
        config = self.config
        before = self._launches()
        argv = [
            *(self._program("ansible-pull"), "--url", f"file://{self._repository.path}", "--checkout", PUBLISHED),
            *("--verify-commit", "--clean", "--directory", config.checkout, "--limit", config.limit, config.playbook),
        ]
        result.exit_status, lines = self._follow(argv, self._environment, config.state)
        result.service_touched = self._launches() != before
        if result.exit_status == 0 and not _did_something(lines, config.limit):
            result.reason = (
                f"{config.playbook} did nothing on {config.limit}: is it in a group that the playbook is for?"
            )
        elif result.exit_status == 0:
            result.outcome = "unchanged" if result.commit == memory.commit else "deployed"
            memory.commit, memory.held = result.commit, ""
            return
        else:
            result.reason = gitops_result.why(lines)
        result.outcome = "failed"
        if result.service_touched:
            memory.held = result.commit

    def _program(self, name: str) -> str:
        return os.path.join(self.config.ansible, name)

    def _access(self, credentials: str) -> Access:
        def held(name: str) -> str:
            path = os.path.join(credentials, name)
            return path if credentials and os.path.exists(path) else ""

        return Access(
            self.config.allowed_signers,
            self.config.known_hosts,
            deploy_key=held("deploy_key"),
            askpass=self.config.askpass if held("token") else "",
        )

    def _for_ansible(self, credentials: str) -> dict[str, str]:
        """Return what Ansible is told.

        The inventory is not an argument: ansible-pull would read that of the commit before in order to fetch the next.
        """
        config = self.config
        result = {
            "ANSIBLE_INVENTORY": ",".join(os.path.join(config.checkout, path) for path in config.inventory),
            "ANSIBLE_INVENTORY_UNPARSED_FAILED": "true",
            "ANSIBLE_INVENTORY_ANY_UNPARSED_IS_FAILED": "true",
            "ANSIBLE_HOME": os.path.join(config.state, "ansible"),
            "ANSIBLE_REMOTE_TEMP": os.path.join(config.state, "ansible", "tmp"),
            "ANSIBLE_NOCOLOR": "1",
            "PYTHONUNBUFFERED": "1",
        }
        password = os.path.join(credentials, "vault_password")
        if credentials and os.path.exists(password):
            result["ANSIBLE_VAULT_PASSWORD_FILE"] = password
        return result

    def _write(self, result: Result, memory: Memory) -> None:
        gitops_result.write_json(self.config.memory, memory.__dict__)
        gitops_result.write_json(self.config.result, result.document())
        if self.config.textfile:
            with suppress(FileNotFoundError):  # the exporter's directory went with the exporter
                gitops_result.write_text(self.config.textfile, gitops_result.metrics(result, memory), 0o644)


def _is_read_late(path: str) -> bool:
    *folders, name = path.split("/")
    if not name.endswith((".yml", ".yaml")) or any(folder.startswith(".") for folder in folders):
        return False
    return bool(_READ_LATE & set(folders)) and not _NOT_OURS & set(folders)


def _did_something(lines: Sequence[str], host: str) -> bool:
    recap = re.compile(rf"{re.escape(host)}\s+: ok=[1-9]")
    return any(recap.match(line) for line in lines)


def _say(text: str, stream: TextIO | None = None) -> None:
    stream = stream or sys.stdout
    stream.write(f"{text}\n")
    stream.flush()


def main(argv: Sequence[str] | None = None) -> int:
    """Run one pull with the configuration named on the command line; the result is the exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if len(arguments) != 1:
        _say("usage: gitops_pull CONFIG", sys.stderr)
        return EXIT_USAGE
    try:
        config = read_config(arguments[0])
    except LlmopsError as error:
        _say(error.message, sys.stderr)
        return EXIT_USAGE
    with open(os.path.join(config.state, "lock"), "a+", encoding="utf-8") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            _say(f"Another pull is going on (PID {lock.read().strip() or 'unknown'}); this one ends.", sys.stderr)
            return EXIT_BUSY
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        result = Pull(config, os.environ.get("CREDENTIALS_DIRECTORY", "")).run()
    _say(result.sentence())
    return 0 if result.outcome in gitops_result.GOOD else EXIT_FAILED
