"""A fleet's checkout for a pipeline to run in: a host, a vault, and what stands in for the rest."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from ansible.constants import DEFAULT_VAULT_ID_MATCH
from ansible.parsing.vault import VaultLib, VaultSecret

ROOT = Path(__file__).parents[2]
SECRETS = {"VAULT_PASSWORD": "planted-password", "VAULTED": "planted-key"}
HOST = "gpu-1"
HOSTS_YML = """\
vllm:
  hosts:
    gpu-1:
  vars:
    ansible_connection: local
    ansible_python_interpreter: "{{ ansible_playbook_python }}"
    model_store_revision: 0123456789abcdef0123456789abcdef01234567
    model_store_path: "{{ inventory_dir | dirname | dirname }}/srv/store"
    vllm_runtime_root: "{{ inventory_dir | dirname | dirname }}/srv"
    vllm_service_root: "{{ inventory_dir | dirname | dirname }}/srv"
    vllm_service_group: root
    vllm_service_api_key: "{{ vault_key }}"
    # A host that has been rolled out differs in nothing.
    vllm_drift_ignore: "{{ ['*'] if (inventory_dir | dirname | dirname ~ '/rolled-out') is file else [] }}"
"""
PLAYBOOK = """\
- name: Stand in for a rollout
  hosts: vllm
  gather_facts: false
  tasks:
    - name: Leave a receipt
      ansible.builtin.copy:
        dest: "{{ playbook_dir }}/release.json"
        content: "{{ {'release': '0123456789ab'} | to_json }}"
        mode: "0644"
    - name: Use the secret
      ansible.builtin.assert:
        that: vault_key == 'planted-key'
    - name: Differ in nothing from now on
      ansible.builtin.file:
        path: "{{ playbook_dir }}/rolled-out"
        state: touch
        mode: "0644"
"""
# A command that notes that it was called, with what it had of the vault, and ends as it is told to.
STAND_IN = """\
#!/bin/sh
echo "${0##*/} $*${ANSIBLE_VAULT_PASSWORD_FILE:+ with the vault}" >> "$CALLS"
exit "${%s:-0}"
"""
# A systemd that knows no unit.
SYSTEMCTL = """\
#!/bin/sh
printf 'LoadState=not-found\\nActiveState=inactive\\nSubState=dead\\n'
"""


@dataclass(frozen=True)
class Checkout:
    """The checkout in ``path``; ``calls`` of its stand-ins are noted in a file beside it."""

    path: Path
    calls_file: Path

    @property
    def calls(self) -> list[str]:
        """What the stand-ins were called with, in order."""
        return self.calls_file.read_text().splitlines() if self.calls_file.exists() else []

    @cached_property
    def environment(self) -> dict[str, str]:
        """The variables of a runner with the secrets of the pipeline's settings."""
        key = self.calls_file.with_name("key")
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
        return {
            "PATH": f"{self.path / 'bin'}:/usr/bin:/bin",
            "HOME": str(self.calls_file.parent),
            "LC_ALL": "C.UTF-8",
            "CALLS": str(self.calls_file),
            "VAULT_PASSWORD": SECRETS["VAULT_PASSWORD"],
            "DEPLOY_KEY": key.read_text(),
            "KNOWN_HOSTS": f"{HOST} ssh-ed25519 AAAA",
            "PLAYBOOK": "stand_in.yml",
            "RECEIPT": str(self.path / "release.json"),
        }

    def use(self, *names: str) -> None:
        """Let stand-ins take the places of programs; each ends with the status in the variable of its name."""
        for name in names:
            path = self.path / name
            if path.is_symlink() or path.exists():
                path.unlink()
            write_program(path, STAND_IN % path.name.upper().replace("-", "_"))


def write_program(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def make_checkout(directory: Path) -> Checkout:
    """Make it below ``directory``: the project's own files, an inventory and a playbook of the fleet's."""
    path = directory / "checkout"
    path.mkdir()
    for name in ("ansible.cfg", "collections", "playbooks", "plugins", "roles"):
        (path / name).symlink_to(ROOT / name)
    for name in ("docs/pipelines", "tools"):
        shutil.copytree(ROOT / name, path / name)
    (path / ".venv/bin").mkdir(parents=True)
    (path / ".venv/bin/activate").write_text(f'PATH="$PWD/.venv/bin:$PATH:{Path(sys.executable).parent}"\n')
    inventory = path / "inventories/mine"
    inventory.mkdir(parents=True)
    (inventory / "hosts.yml").write_text(HOSTS_YML)
    (inventory / "group_vars").mkdir()
    (inventory / "group_vars/all.yml").write_bytes(in_vault(f"vault_key: {SECRETS['VAULTED']}\n"))
    (path / "stand_in.yml").write_text(PLAYBOOK)
    write_program(path / "bin/systemctl", SYSTEMCTL)
    checkout = Checkout(path, directory / "calls")
    checkout.use("bin/make")
    as_repository(path)
    return checkout


def in_vault(text: str) -> bytes:
    secret = VaultSecret(SECRETS["VAULT_PASSWORD"].encode())
    return VaultLib([(DEFAULT_VAULT_ID_MATCH, secret)]).encrypt(text, secret)


def as_repository(path: Path) -> None:
    def git(*arguments: str) -> None:
        identity = ("-c", "user.name=fleet", "-c", "user.email=fleet@example.com")
        variables = {**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1"}
        subprocess.run(["git", *identity, *arguments], cwd=path, env=variables, check=True, capture_output=True)

    git("init", "--quiet", "--initial-branch", "main")
    git("add", "--all")
    git("commit", "--quiet", "--message", "The fleet")
    git("remote", "add", "origin", "https://git.example.com/llmops/fleet.git")
