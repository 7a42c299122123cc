#!/usr/bin/python
# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: model_shards_info
short_description: List the model snapshots in a store
version_added: 0.1.0
description:
  - Lists what M(llmops.vllm.model_shards) keeps in a store, from the manifests and the status of the files.
  - Reads no file content and no network. To read every byte use M(llmops.vllm.model_shards) with C(state=verified).
options:
  store:
    description: Directory of all snapshots. One that does not exist holds nothing.
    type: path
    default: /srv/llm/store
  repo:
    description: List only the snapshots of this repository, as C(org/name).
    type: str
extends_documentation_fragment:
  - llmops.vllm.attributes
  - llmops.vllm.attributes.info_module
  - llmops.vllm.attributes.actiongroup_vllm
seealso:
  - module: llmops.vllm.model_shards
author:
  - llmops.vllm maintainers (@llmops)
"""

EXAMPLES = r"""
- name: Look at the store
  llmops.vllm.model_shards_info:
  register: store

- name: Fail unless the model of the next release is complete
  ansible.builtin.assert:
    that: store.snapshots | selectattr('commit', '==', model_commit) | selectattr('complete') | length == 1
"""

RETURN = r"""
snapshots:
  description: The snapshots, ordered by repository and commit.
  returned: success
  type: list
  elements: dict
  contains:
    repo:
      description: The repository.
      returned: always
      type: str
      sample: acme/small-model
    commit:
      description: The commit.
      returned: always
      type: str
      sample: 0123456789abcdef0123456789abcdef01234567
    path:
      description: Directory of the snapshot.
      returned: always
      type: str
      sample: /srv/llm/store/acme--small-model/0123456789abcdef0123456789abcdef01234567
    manifest:
      description:
        - Path of the manifest; empty when there is none.
        - It can be the O(llmops.vllm.model_shards#module:manifest) of hosts that reach no hub.
      returned: always
      type: str
      sample: /srv/llm/store/acme--small-model/0123456789abcdef0123456789abcdef01234567/.llmops/manifest.json
    endpoint:
      description: The hub it came from; empty when there is no manifest.
      returned: always
      type: str
      sample: https://huggingface.co
    complete:
      description: Whether all files of the last selection are there and look as they did when they were verified.
      returned: always
      type: bool
      sample: true
    files:
      description: Number of verified files.
      returned: always
      type: int
      sample: 134
    total_bytes:
      description: Bytes of the verified files.
      returned: always
      type: int
      sample: 540123456789
    partial_bytes:
      description: Bytes of files that are still arriving or were interrupted.
      returned: always
      type: int
      sample: 0
    changed:
      description: Paths of files that are missing or no longer look as they did when they were verified.
      returned: always
      type: list
      elements: str
      sample: []
"""

from dataclasses import asdict
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.llmops.vllm.plugins.module_utils.errors import LlmopsError
from ansible_collections.llmops.vllm.plugins.module_utils.repo_listing import check_repo
from ansible_collections.llmops.vllm.plugins.module_utils.store import check_store
from ansible_collections.llmops.vllm.plugins.module_utils.store_inventory import inventory

ARGUMENT_SPEC: dict[str, Any] = {
    "store": {"type": "path", "default": "/srv/llm/store"},
    "repo": {"type": "str"},
}


def main() -> None:
    """Run the module."""
    module = AnsibleModule(argument_spec=ARGUMENT_SPEC, supports_check_mode=True)
    repo = module.params["repo"]
    try:
        snapshots = inventory(check_store(module.params["store"]), check_repo(repo) if repo else None)
    except LlmopsError as error:
        module.fail_json(msg=error.message, **error.details)
    module.exit_json(changed=False, snapshots=[asdict(snapshot) for snapshot in snapshots])


if __name__ == "__main__":
    main()
