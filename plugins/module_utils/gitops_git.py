# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One branch or tag of a repository, fetched without a checkout and believed only with a signature that is allowed.

``git`` does the work. Only ssh signatures count (``man ssh-keygen``, ALLOWED SIGNERS): whatever lies in a keyring of
OpenPGP or X.509 on the host signs nothing here.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Callable

from ansible_collections.llmops.vllm.plugins.module_utils.errors import LlmopsError

PUBLISHED = "deploy"
_CANDIDATE = "refs/gitops/candidate"
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./+-]{0,200}")
_GOOD = re.compile(r'^Good "git" signature for (?P<signer>.+) with \S+ key (?P<key>SHA256:\S+)$', re.MULTILINE)


class UnreachableError(LlmopsError):
    """The repository could not be asked; nothing is known about what it holds now."""


class RefusedError(LlmopsError):
    """What the repository holds is not to be believed."""


@dataclass(frozen=True)
class Answer:
    """Exit status and both outputs of one command."""

    status: int
    output: str
    errors: str


Ask = Callable[[Sequence[str], Mapping[str, str], str, float], Answer]


def ask_command(argv: Sequence[str], environment: Mapping[str, str], directory: str, timeout_seconds: float) -> Answer:
    """Run ``argv`` in ``directory`` with exactly this environment and no input; one that hangs is a status (124)."""
    try:
        done = subprocess.run(  # pylint: disable=ansible-bad-function # this library knows no AnsibleModule
            list(argv),
            env=dict(environment),
            cwd=directory,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout_seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Answer(124, "", f"no answer within {timeout_seconds:g} s")
    except OSError as error:
        return Answer(127, "", f"{argv[0]}: {error.strerror}")
    return Answer(done.returncode, done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace"))


@dataclass(frozen=True)
class Access:
    """How the repository is reached: files that hold secrets, never the secrets. Empty where not needed."""

    allowed_signers: str
    known_hosts: str = ""
    deploy_key: str = ""
    askpass: str = ""

    def environment(self, home: str) -> dict[str, str]:
        """Return git's whole environment, so that no setting of the host or of its root takes part."""
        settings = {
            "gpg.ssh.allowedSignersFile": self.allowed_signers,
            "gpg.openpgp.program": "/bin/false",
            "gpg.x509.program": "/bin/false",
            "transfer.fsckObjects": "true",
            "http.followRedirects": "false",
            "core.hooksPath": "/dev/null",
            "core.fsmonitor": "false",
            "advice.detachedHead": "false",
            "gc.auto": "0",
        }
        result = {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": home,
            "LC_ALL": "C.UTF-8",
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": "/dev/null",
            "GIT_ALLOW_PROTOCOL": "file:https:ssh",
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_SSH_COMMAND": self._ssh(),
            "GIT_CONFIG_COUNT": str(len(settings)),
        }
        for number, (key, value) in enumerate(settings.items()):
            result[f"GIT_CONFIG_KEY_{number}"] = key
            result[f"GIT_CONFIG_VALUE_{number}"] = value
        if self.askpass:
            result["GIT_ASKPASS"] = self.askpass
        return result

    def _ssh(self) -> str:
        words = ["ssh", "-F", "/dev/null", "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=yes"]
        words += ["-o", f"UserKnownHostsFile={self.known_hosts or '/dev/null'}", "-o", "GlobalKnownHostsFile=/dev/null"]
        if self.deploy_key:
            words += ["-o", "IdentitiesOnly=yes", "-i", self.deploy_key]
        return " ".join(words)


@dataclass(frozen=True)
class Candidate:
    """What the repository offers: ``name`` is a commit, or the signed tag that leads to ``commit``."""

    ref: str
    name: str
    commit: str
    is_tag: bool


@dataclass(frozen=True)
class Signature:
    """Who signed, as the file of allowed signers names them, and the fingerprint of the key."""

    signer: str
    key: str


class Repository:
    """A bare repository at ``path`` that follows one at ``url`` and hands out nothing but what has been verified."""

    def __init__(
        self, path: str, url: str, environment: Mapping[str, str], timeout_seconds: float, ask: Ask = ask_command
    ) -> None:
        self.path = path
        self.url = url
        self.environment = environment
        self._timeout_seconds = timeout_seconds
        self._ask = ask

    def fetch(self, revision: str) -> Candidate:
        """Fetch the branch or tag ``revision`` with its history and say what it is now.

        Raises UnreachableError, and RefusedError for a name that is a branch and a tag: the signature of the one passes
        for that of the other (``ansible.builtin.git`` checks the tag, and has the branch in its checkout).
        """
        if not _NAME.fullmatch(revision) or ".." in revision:
            raise RefusedError(f"The revision '{revision}' is not the name of a branch or a tag.")
        self._make()
        ref = self._find(revision)
        self._git("fetch", "--quiet", "--no-tags", "--force", "--refmap=", "--", self.url, f"{ref}:{_CANDIDATE}")
        name = self._line("rev-parse", "--verify", _CANDIDATE)
        return Candidate(
            ref=ref,
            name=name,
            commit=self._line("rev-parse", "--verify", f"{_CANDIDATE}^{{commit}}"),
            is_tag=self._line("cat-file", "-t", name) == "tag",
        )

    def verify(self, candidate: Candidate) -> Signature:
        """Return who signed it; raises RefusedError when nobody did who may."""
        if candidate.is_tag:
            header = self._git("cat-file", "tag", candidate.name).output.partition("\n\n")[0].splitlines()
            if f"tag {candidate.ref.rpartition('refs/tags/')[2]}" not in header:
                raise RefusedError(f"The tag behind {candidate.ref} was signed under another name: {_named(header)}.")
        answer = self._run("verify-tag" if candidate.is_tag else "verify-commit", candidate.name)
        good = _GOOD.search(answer.errors)
        if answer.status != 0 or good is None:
            said = " ".join(answer.errors.split()) or "it carries no signature"
            raise RefusedError(
                f"{'Tag' if candidate.is_tag else 'Commit'} {candidate.name} of {candidate.ref} is not signed by "
                f"anybody who may deploy here: {said}."
            )
        return Signature(good["signer"], good["key"])

    def descends(self, commit: str, ancestor: str) -> bool:
        """Whether ``commit`` came after ``ancestor``, or is it."""
        return self._run("merge-base", "--is-ancestor", ancestor, commit).status == 0

    def publish(self, candidate: Candidate) -> None:
        """Let the name PUBLISHED mean the candidate, and nothing else: a tag, where that is what is signed."""
        kind, other = ("tags", "heads") if candidate.is_tag else ("heads", "tags")
        self._git("update-ref", "-d", f"refs/{other}/{PUBLISHED}")
        self._git("update-ref", f"refs/{kind}/{PUBLISHED}", candidate.name)
        self._git("symbolic-ref", "HEAD", f"refs/heads/{PUBLISHED}")

    def files(self, commit: str) -> list[str]:
        """Return the paths of all files of a commit."""
        return [path for path in self._git("ls-tree", "-r", "-z", "--name-only", commit).output.split("\0") if path]

    def subject(self, commit: str) -> str:
        """Return the first line of a commit's message."""
        return self._line("log", "-1", "--format=%s", commit)

    def _make(self) -> None:
        if not os.path.isdir(os.path.join(self.path, "objects")):
            self._git("init", "--quiet", "--bare", "--initial-branch", PUBLISHED, self.path)

    def _find(self, revision: str) -> str:
        wanted = [f"refs/heads/{revision}", f"refs/tags/{revision}"]
        answer = self._git("ls-remote", "--quiet", "--", self.url, *wanted)
        found = {line.partition("\t")[2] for line in answer.output.splitlines()} & set(wanted)
        if not found:
            raise UnreachableError(f"{self.url} has neither a branch nor a tag '{revision}'.")
        if len(found) > 1:
            raise RefusedError(
                f"{self.url} has a branch and a tag called '{revision}', and the one could pass for the other: "
                "remove one of them."
            )
        return found.pop()

    def _line(self, *arguments: str) -> str:
        return self._git(*arguments).output.strip()

    def _git(self, *arguments: str) -> Answer:
        answer = self._run(*arguments)
        if answer.status != 0:
            said = " ".join(answer.errors.split()) or f"status {answer.status}"
            raise UnreachableError(f"git {arguments[0]} of {self.url} failed: {said}.")
        return answer

    def _run(self, *arguments: str) -> Answer:
        directory = () if arguments[0] == "init" else (f"--git-dir={self.path}",)
        return self._ask(["git", *directory, *arguments], self.environment, "/", self._timeout_seconds)


def _named(header: Sequence[str]) -> str:
    return next((f"'{line[4:]}'" for line in header if line.startswith("tag ")), "none")
