# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Pulls from real repositories with real ssh signatures; Ansible is scripts that note what they are told."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from ansible_collections.llmops.vllm.plugins.module_utils import gitops_git, gitops_pull
from ansible_collections.llmops.vllm.plugins.module_utils.gitops_pull import Config, Pull

PLAYS = "- hosts: vllm\n"
ALL_WELL = 'echo "gpu-1   : ok=3    changed=1"'


class Origin:
    """A repository that people push to, and their keys."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.path = root / "origin"
        self.signers = root / "allowed_signers"

    def make(self) -> None:
        root = self.root
        for name in ("alice", "mallory"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", root / name], check=True)
        self.signers.write_text(f'alice@example.com namespaces="git" {(root / "alice.pub").read_text()}')
        self.git("init", "--quiet", "--initial-branch=main", str(self.path), where=root)
        self.commit("site.yml", PLAYS, "first")

    def git(self, *arguments: str, key: str = "alice", where: Path | None = None) -> str:
        settings = {"gpg.format": "ssh", "user.signingKey": str(self.root / key), "user.name": key, "user.email": "a@b"}
        words = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        environment = {"PATH": os.environ["PATH"], "HOME": str(self.root), "GIT_CONFIG_NOSYSTEM": "1"}
        done = subprocess.run(
            ["git", *words, *arguments],
            cwd=where or self.path,
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout.strip()

    def commit(self, name: str, text: str, message: str = "next", sign: bool = True, key: str = "alice") -> str:
        (self.path / name).parent.mkdir(parents=True, exist_ok=True)
        (self.path / name).write_text(text)
        self.git("add", "--all")
        self.git("commit", "--quiet", "--gpg-sign" if sign else "--no-gpg-sign", "--message", message, key=key)
        return self.git("rev-parse", "HEAD")


class Host:
    """A host that pulls. ``say`` is what ansible-pull does, as shell; ``launch`` what systemd shows of instances."""

    def __init__(self, root: Path, origin: Origin) -> None:
        self.root = root
        self.origin = origin
        self.bin = root / "bin"
        self.state = root / "state"
        self.bin.mkdir()
        self.state.mkdir()
        self.launch = "Id=vllm@kimi.service\nInvocationID=1"
        for name in ("python", "ansible-playbook"):
            self.program(name, "true")
        self.say(ALL_WELL)
        self.now = 1000.0

    def program(self, name: str, body: str) -> None:
        script = f'#!/bin/sh\necho "{name} $*" >> {self.root}/told\nenv > {self.root}/environment\n{body}\n'
        (self.bin / name).write_text(script)
        (self.bin / name).chmod(0o755)

    def say(self, body: str) -> None:
        self.program("ansible-pull", body)

    def told(self) -> str:
        path = self.root / "told"
        return path.read_text() if path.exists() else ""

    def config(self, **other: object) -> Config:
        values = {
            "url": f"file://{self.origin.path}",
            "revision": "main",
            "playbook": "site.yml",
            "inventory": ["inventories/prod"],
            "limit": "gpu-1",
            "ansible": str(self.bin),
            "state": str(self.state),
            "allowed_signers": str(self.origin.signers),
            "textfile": str(self.root / "llmops_gitops.prom"),
        }
        return Config(**{**values, **other})

    def pull(self, credentials: str = "", **other: object) -> gitops_pull.Result:
        (self.root / "told").unlink(missing_ok=True)
        self.now += 60
        return Pull(
            self.config(**other), credentials, launches=lambda: frozenset([self.look()]), clock=lambda: self.now
        ).run()

    def look(self) -> str:
        moved = self.root / "launch"
        return moved.read_text() if moved.exists() else self.launch


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    root = tmp_path_factory.mktemp("template")
    Origin(root).make()
    return root


@pytest.fixture
def origin(tmp_path, template):
    shutil.copytree(template, tmp_path, dirs_exist_ok=True)
    return Origin(tmp_path)


@pytest.fixture
def host(tmp_path, origin):
    return Host(tmp_path, origin)


def test_a_signed_commit_is_deployed_by_ansible_pull_which_verifies_it_again(host, origin):
    result = host.pull()
    commit = origin.git("rev-parse", "HEAD")
    assert (result.outcome, result.commit, result.deployed_commit) == ("deployed", commit, commit)
    assert (result.signer, result.subject) == ("alice@example.com", "first")
    assert "--verify-commit" in host.told()
    assert "--limit gpu-1 site.yml" in host.told()
    assert (host.state / "checkout/site.yml").read_text() == PLAYS


def test_the_same_commit_is_deployed_again_and_counts_as_unchanged(host):
    host.pull()
    assert host.pull().outcome == "unchanged"


@pytest.mark.parametrize(("sign", "key"), [(False, "alice"), (True, "mallory")], ids=["unsigned", "another key"])
def test_a_commit_that_nobody_signed_who_may_is_refused_before_ansible_sees_it(host, origin, sign, key):
    good = host.pull().commit
    bad = origin.commit("site.yml", "- hosts: all\n", sign=sign, key=key)
    result = host.pull()
    assert (result.outcome, result.commit, result.deployed_commit) == ("refused", bad, good)
    assert "not signed by anybody who may deploy here" in result.reason
    assert result.subject == ""
    assert host.told() == ""
    assert (host.state / "checkout/site.yml").read_text() == PLAYS


def write_commit(origin, text):
    """Make ``text`` the commit that the branch leads to."""
    name = subprocess.run(
        ["git", "hash-object", "-t", "commit", "-w", "--stdin"],
        cwd=origin.path,
        env={"PATH": os.environ["PATH"]},
        input=text + "\n",
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    origin.git("update-ref", "refs/heads/main", name)


def test_an_openpgp_signature_is_refused_whatever_the_keyrings_of_root_say(host, origin):
    write_commit(origin, origin.git("cat-file", "commit", "HEAD").replace(" SSH SIGNATURE-----", " PGP SIGNATURE-----"))
    assert host.pull().outcome == "refused"


def test_a_signature_over_another_tree_is_refused(host, origin):
    signed = origin.git("cat-file", "commit", "HEAD")
    origin.commit("site.yml", "- hosts: all\n", sign=False)
    tree = origin.git("rev-parse", "HEAD^{tree}")
    write_commit(origin, f"tree {tree}\n{signed.partition(chr(10))[2]}")
    assert host.pull().outcome == "refused"


def test_going_back_to_an_older_signed_commit_is_refused_unless_allowed(host, origin):
    old = host.pull().commit
    new = origin.commit("site.yml", "- hosts: gpu\n")
    assert host.pull().deployed_commit == new
    origin.git("reset", "--quiet", "--hard", old)
    result = host.pull()
    assert (result.outcome, result.deployed_commit) == ("refused", new)
    assert "does not come after" in result.reason
    assert host.pull(allow_rewind=True).deployed_commit == old


def test_a_name_that_is_a_branch_and_a_tag_is_refused(host, origin):
    host.pull()
    origin.git("tag", "--sign", "--message", "v1", "main")
    origin.commit("site.yml", "- hosts: all\n", sign=False)
    result = host.pull()
    assert result.outcome == "refused"
    assert "a branch and a tag called 'main'" in result.reason


def test_a_signed_tag_is_followed_also_to_a_commit_that_is_not_signed(host, origin):
    commit = origin.commit("site.yml", "- hosts: tagged\n", sign=False)
    origin.git("tag", "--sign", "--message", "v1", "v1")
    result = host.pull(revision="v1")
    assert (result.outcome, result.commit) == ("deployed", commit)
    assert (host.state / "checkout/site.yml").read_text() == "- hosts: tagged\n"


def test_a_tag_that_was_signed_under_another_name_is_refused(host, origin):
    origin.git("tag", "--sign", "--message", "v1", "v1")
    origin.git("update-ref", "refs/tags/production", origin.git("rev-parse", "v1"))
    result = host.pull(revision="production")
    assert result.outcome == "refused"
    assert "signed under another name: 'v1'" in result.reason


def test_a_tag_of_somebody_else_is_refused(host, origin):
    origin.git("tag", "--sign", "--message", "v1", "v1", key="mallory")
    assert host.pull(revision="v1").outcome == "refused"


def test_a_repository_that_cannot_be_reached_changes_nothing(host, origin):
    good = host.pull().commit
    origin.path.rename(origin.root / "away")
    result = host.pull()
    assert (result.outcome, result.commit, result.deployed_commit) == ("unreachable", "", good)
    assert host.told() == ""


@pytest.mark.parametrize("revision", ["nothing-like-it", "--upload-pack=touch /tmp/x", "a..b", ""])
def test_a_revision_that_is_not_there_or_no_name_is_not_followed(host, revision):
    assert host.pull(revision=revision).outcome in ("refused", "unreachable")


def test_a_commit_that_ansible_cannot_read_is_broken_and_not_deployed(host, origin):
    good = host.pull().commit
    origin.commit("site.yml", ": {")
    host.program("ansible-playbook", 'echo "ERROR! Syntax Error while loading YAML." >&2; exit 4')
    result = host.pull()
    assert (result.outcome, result.deployed_commit) == ("broken", good)
    assert result.reason == "ERROR! Syntax Error while loading YAML."
    assert "ansible-pull" not in host.told()


def test_every_file_that_ansible_reads_late_is_read_before(host, origin):
    for path in ("roles/a/tasks/rescue.yml", "group_vars/all.yaml", "tests/tasks/fixture.yml", ".x/tasks/main.yml"):
        origin.commit(path, "- {}\n")
    host.pull()
    told = host.told()
    assert told.startswith("python -I -c")
    assert "group_vars/all.yaml roles/a/tasks/rescue.yml\n" in told
    assert "fixture.yml" not in told
    assert ".x/" not in told


def test_a_failure_that_cost_no_launch_is_tried_again(host, origin):
    good = host.pull().commit
    origin.commit("site.yml", "- hosts: gpu\n")
    host.say('echo "[ERROR]: Task failed: NO-GO: no attention backend takes this model."; exit 2')
    result = host.pull()
    assert (result.outcome, result.service_touched, result.deployed_commit) == ("failed", False, good)
    assert "NO-GO: no attention backend" in result.reason
    host.say(ALL_WELL)
    assert host.pull().outcome == "deployed"


def test_a_failure_that_cost_a_launch_is_held_until_somebody_says_so(host, origin):
    host.pull()
    origin.commit("site.yml", "- hosts: gpu\n")
    host.say(f"echo moved >> {host.root}/launch; exit 2")
    first = host.pull()
    assert (first.outcome, first.service_touched) == ("failed", True)
    second = host.pull()
    assert (second.outcome, second.service_touched) == ("held", False)
    assert host.told() == ""
    (host.state / "retry").touch()
    assert host.pull().outcome == "failed"
    assert host.pull().outcome == "held"
    origin.commit("site.yml", "- hosts: repaired\n")
    host.say(ALL_WELL)
    assert host.pull().outcome == "deployed"


def test_a_playbook_that_is_not_for_this_host_has_failed(host):
    host.say('echo "skipping: no hosts matched"')
    result = host.pull()
    assert result.outcome == "failed"
    assert "did nothing on gpu-1" in result.reason


def test_no_inventory_is_an_argument_and_no_setting_of_git_comes_from_the_host(host, tmp_path, monkeypatch):
    monkeypatch.setenv("LLMOPS_TEST_SECRET", "1")
    host.pull()
    environment = dict(
        line.split("=", 1) for line in (tmp_path / "environment").read_text().splitlines() if "=" in line
    )
    assert environment["ANSIBLE_INVENTORY"] == f"{host.state}/checkout/inventories/prod"
    assert "inventories" not in host.told()
    assert environment["GIT_CONFIG_GLOBAL"] == "/dev/null"
    assert "LLMOPS_TEST_SECRET" not in environment


def test_credentials_are_named_by_their_files_only(host, tmp_path):
    credentials = tmp_path / "credentials"
    credentials.mkdir()
    for name in ("deploy_key", "token", "vault_password"):
        (credentials / name).write_text("s3cret")
    host.pull(credentials=str(credentials), askpass="/usr/lib/askpass", known_hosts="/etc/known")
    text = (tmp_path / "environment").read_text()
    assert f"-i {credentials}/deploy_key" in text
    assert "UserKnownHostsFile=/etc/known" in text
    assert "GIT_ASKPASS=/usr/lib/askpass" in text
    assert f"ANSIBLE_VAULT_PASSWORD_FILE={credentials}/vault_password" in text
    assert "s3cret" not in text + host.told() + (host.state / "result.json").read_text()


def test_the_result_and_the_numbers_are_on_the_disk(host, tmp_path):
    result = host.pull()
    document = json.loads((host.state / "result.json").read_text())
    assert document["schema"] == 1
    assert (document["outcome"], document["commit"]) == ("deployed", result.commit)
    assert document["started"] == "1970-01-01T00:17:40Z"
    assert (host.state / "result.json").stat().st_mode & 0o777 == 0o640
    numbers = (tmp_path / "llmops_gitops.prom").read_text()
    assert 'llmops_gitops_outcome{outcome="deployed"} 1' in numbers
    assert (tmp_path / "llmops_gitops.prom").stat().st_mode & 0o777 == 0o644


def test_another_repository_or_revision_starts_afresh(host, origin):
    host.pull()
    origin.git("checkout", "--quiet", "--orphan", "other")
    commit = origin.commit("site.yml", "- hosts: other\n")
    assert host.pull(revision="other").deployed_commit == commit


def test_main_reports_by_its_exit_status(host, tmp_path, monkeypatch, capsys, origin):
    path = tmp_path / "pull.json"
    path.write_text(json.dumps(host.config().__dict__))
    monkeypatch.setattr(gitops_pull, "launches_of_instances", frozenset)
    assert gitops_pull.main([str(path)]) == 0
    assert "deployed: main" in capsys.readouterr().out
    origin.commit("site.yml", "x", sign=False)
    assert gitops_pull.main([str(path)]) == 1


def test_a_second_pull_at_the_same_time_ends(host, tmp_path, capsys):
    path = tmp_path / "pull.json"
    path.write_text(json.dumps(host.config().__dict__))
    with (host.state / "lock").open("w") as lock:
        lock.write("4711")
        lock.flush()
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert gitops_pull.main([str(path)]) == 75
    assert "PID 4711" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "cannot be read"),
        ('{"urls": 1}', "not of this version"),
        ('{"url": "x"}', "not complete"),
        ("[]", "not of this version"),
    ],
)
def test_a_configuration_that_is_none_is_refused_in_a_sentence(tmp_path, capsys, text, says):
    path = tmp_path / "pull.json"
    path.write_text(text)
    assert gitops_pull.main([str(path)]) == 2
    assert says in capsys.readouterr().err


def test_main_without_a_configuration_says_how_it_is_called(capsys):
    assert gitops_pull.main([]) == 2
    assert "usage" in capsys.readouterr().err


def test_a_command_that_is_absent_or_hangs_is_a_status():
    assert gitops_git.ask_command(["/no/such"], {}, "/", 1.0).status == 127
    assert gitops_git.ask_command(["sleep", "9"], {"PATH": os.environ["PATH"]}, "/", 0.05).status == 124
