#!/usr/bin/python
# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: file_tree
short_description: Make many directories, files and links right in one call
version_added: 0.1.0
description:
  - Makes directories, files and symbolic links that are declared in one list, in its order, and corrects their owners,
    groups and modes.
  - Everything is compared before anything is written. Something of another kind in the way, such as a file where a
    directory shall be or a link where a file shall be, fails the module while nothing was changed.
  - A file or link is made aside and renamed into place, and only when it differs. After an interruption every path is
    as it was or as it shall be, and a further run does the rest.
  - A symbolic link in the last component of a path is never followed. Links above it are followed.
  - Nothing is removed but what a killed run of this module left aside.
author:
  - llmops.vllm maintainers (@llmops)
extends_documentation_fragment:
  - llmops.vllm.attributes
  - llmops.vllm.attributes.actiongroup_vllm
attributes:
  check_mode:
    support: full
    details:
      - A user, a group or a parent directory that does not exist yet is a warning, because an earlier task may make it.
  diff_mode:
    support: full
    details:
      - Shows a listing of what is made and of changed attributes, then the text of each file that differs. Content that
        is no text, or larger than 1 MiB, is replaced by its size.
options:
  entries:
    description:
      - What shall be there. The parent of each path must exist or be an earlier entry. No path is declared twice.
    type: list
    elements: dict
    required: true
    suboptions:
      path:
        description: Absolute path, without C(..).
        type: path
        required: true
      state:
        description: What the path shall be.
        type: str
        required: true
        choices: [directory, file, link]
      content:
        description: Content of the file, written as UTF-8. Required for O(entries[].state=file), and only for it.
        type: str
      target:
        description:
          - Absolute path that the link points to. It need not exist. Required for O(entries[].state=link), and only for
            it.
        type: path
      follow:
        description: Whether a directory may be a link to one, which is then looked at in its place.
        type: bool
        default: false
      owner:
        description: Name or numeric id of the owner. By default O(owner).
        type: str
      group:
        description: Name or numeric id of the group. By default O(group).
        type: str
      mode:
        description:
          - Mode as a quoted octal number of four digits. By default O(file_mode) or O(directory_mode). A link has none.
        type: str
  owner:
    description: Owner of the entries that name none. By default an owner is left as it is.
    type: str
  group:
    description: Group of the entries that name none. By default a group is left as it is.
    type: str
  file_mode:
    description: Mode of the files that have none, as a quoted octal number of four digits that lets the owner read.
    type: str
    default: "0644"
  directory_mode:
    description: Mode of the directories that have none, as a quoted octal number of four digits that lets the owner in.
    type: str
    default: "0755"
seealso:
  - module: ansible.builtin.file
  - module: ansible.builtin.copy
"""

EXAMPLES = r"""
- name: Make a release
  llmops.vllm.file_tree:
    owner: root
    group: vllm
    directory_mode: "0750"
    file_mode: "0640"
    entries:
      - path: /srv/llm/releases/kimi
        state: directory
      - path: /srv/llm/releases/kimi/4f1c2a9b7d30
        state: directory
      - path: /srv/llm/releases/kimi/4f1c2a9b7d30/env
        state: file
        content: |
          HF_HUB_OFFLINE="1"
      - path: /srv/llm/releases/kimi/4f1c2a9b7d30/runtime
        state: link
        target: /srv/llm/runtimes/9d0e2b3f4f0c
"""

RETURN = r"""
changed_paths:
  description: Paths that were made, replaced or corrected (in check mode, that would be), in the order of O(entries).
  returned: success
  type: list
  elements: str
  sample: [/srv/llm/releases/kimi/4f1c2a9b7d30/env]
"""

import os
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.llmops.vllm.plugins.module_utils.errors import InvalidInputError, LlmopsError, as_sentence
from ansible_collections.llmops.vllm.plugins.module_utils.file_tree import Entry, check_path, plan_tree, render_diff
from ansible_collections.llmops.vllm.plugins.module_utils.file_tree_apply import apply_tree
from ansible_collections.llmops.vllm.plugins.module_utils.left_aside import process_exists
from ansible_collections.llmops.vllm.plugins.module_utils.permissions import Accounts, parse_mode

ENTRY_OPTIONS: dict[str, dict[str, Any]] = {
    "path": {"type": "path", "required": True},
    "state": {"type": "str", "required": True, "choices": ["directory", "file", "link"]},
    "content": {"type": "str", "no_log": False},
    "target": {"type": "path"},
    "follow": {"type": "bool", "default": False},
    "owner": {"type": "str"},
    "group": {"type": "str"},
    "mode": {"type": "str"},
}

ARGUMENT_SPEC: dict[str, dict[str, Any]] = {
    "entries": {"type": "list", "elements": "dict", "required": True, "options": ENTRY_OPTIONS},
    "owner": {"type": "str"},
    "group": {"type": "str"},
    "file_mode": {"type": "str", "default": "0644"},
    "directory_mode": {"type": "str", "default": "0755"},
}

# The option that a state needs, and that the other states cannot have.
OWN_OPTION = {"content": "file", "target": "link"}


def check_options(path: str, given: dict[str, Any]) -> None:
    """Raise InvalidInputError unless an entry has what its state needs, and nothing else."""
    state = given["state"]
    for option, owning_state in OWN_OPTION.items():
        if (given[option] is None) == (state == owning_state):
            fault = "needs" if state == owning_state else "cannot have"
            raise InvalidInputError(f"The entry {path} is a {state} and {fault} {option}; correct the entry.")
    if state == "link" and given["mode"] is not None:
        raise InvalidInputError(f"The entry {path} is a link and cannot have mode; correct the entry.")
    if state != "directory" and given["follow"]:
        raise InvalidInputError(f"The entry {path} is a {state} and cannot have follow; correct the entry.")


def mode_of(path: str, given: dict[str, Any], params: dict[str, Any]) -> int | None:
    """Return the mode bits of an entry, None for a link. Raises InvalidInputError."""
    if given["state"] == "link":
        return None
    default = f"{given['state']}_mode"
    needed = 0o700 if given["state"] == "directory" else 0o400
    if given["mode"] is None:
        return parse_mode(default, params[default], needed)
    return parse_mode(f"mode of {path}", given["mode"], needed)


def entry_of(given: dict[str, Any], params: dict[str, Any], accounts: Accounts) -> Entry:
    """Return one entry with the defaults filled in. Raises InvalidInputError."""
    path = check_path("path", given["path"])
    check_options(path, given)
    target = given["target"] or ""
    if given["state"] == "link" and (not os.path.isabs(target) or "\0" in target):
        raise InvalidInputError(f"target of {path} must be an absolute path, not {target!r}.")
    return Entry(
        path=os.path.realpath(path) if given["follow"] else path,
        state=given["state"],
        content=(given["content"] or "").encode("utf-8", "surrogateescape"),
        target=target,
        mode=mode_of(path, given, params),
        uid=accounts.uid(params["owner"] if given["owner"] is None else given["owner"]),
        gid=accounts.gid(params["group"] if given["group"] is None else given["group"]),
    )


def run(module: AnsibleModule) -> dict[str, Any]:
    """Plan, apply unless in check mode, and return the result. Raises LlmopsError."""
    accounts = Accounts(module.check_mode, module.warn)
    entries = [entry_of(given, module.params, accounts) for given in module.params["entries"]]
    with as_sentence("compare the entries with what is there"):
        plan = plan_tree(entries, predict=module.check_mode)
    for warning in plan.warnings:
        module.warn(warning)
    difference = render_diff(plan) if module._diff else []
    if not module.check_mode:
        apply_tree(plan, os.getpid(), process_exists)
    result = {"changed": bool(plan.steps), "changed_paths": plan.changed_paths}
    return {**result, "diff": difference} if difference else result


def main() -> None:
    """Run the module."""
    module = AnsibleModule(argument_spec=ARGUMENT_SPEC, supports_check_mode=True)
    try:
        result = run(module)
    except LlmopsError as exc:
        module.fail_json(msg=exc.message, **exc.details)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
