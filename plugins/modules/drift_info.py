#!/usr/bin/python
# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: drift_info
short_description: Tell how an instance differs from what its repository says
version_added: 0.1.0
description:
  - Compares the current release, its files and what is installed from it, its view of the model, its runtime, its unit,
    the running process, the listener on its port and its API key with what the repository says.
  - What a restart, a reboot or a rotated journal changes is not compared, so that an untouched host has no drift.
  - Changes nothing, and asks neither the engine nor the hub anything. To read the weights is for
    M(llmops.vllm.model_shards), with O(llmops.vllm.model_shards#module:state=verified).
  - With O(host), O(directories) and O(weights) all that a deployment sees to is compared in this one look, and
    RV(settled) says whether a deployment would find anything to do.
extends_documentation_fragment:
  - llmops.vllm.attributes
  - llmops.vllm.attributes.actiongroup_vllm
  - llmops.vllm.attributes.info_module
  - llmops.vllm.instance
  - llmops.vllm.instance.root
  - llmops.vllm.instance.run_path
options:
  release_id:
    description: Identifier of the release that the repository says, the hash of O(content). It may be left out.
    type: str
  content:
    description:
      - What that release is made of, with at least C(model), C(patches), C(runtime), C(files) and C(launcher).
      - A current release that is another one is compared with the content in its receipt, whose hash has to be its
        identifier.
    type: dict
    required: true
  launcher:
    description: The program that the unit starts, a copy of C(launcher) in O(content).
    type: path
    default: /usr/local/lib/llmops-vllm-serve
  unit_path:
    description: Directory of the unit files.
    type: path
    default: /etc/systemd/system
  unit:
    description: Full name of the systemd unit. The default is C(vllm@INSTANCE.service).
    type: str
  port:
    description: Port on which the instance listens.
    type: int
    default: 8000
  api_key_file:
    description: File of the instance's API key; empty for an instance without one.
    type: path
    default: ""
  store:
    description: Directory of all snapshots.
    type: path
    default: /srv/llm/store
  runtimes:
    description: Directory of all runtimes.
    type: path
    default: /srv/llm/runtimes
  owner:
    description: Name or numeric id of the user who owns what the roles write; not compared without it.
    type: str
  group:
    description: Name or numeric id of the group of a release's files; not compared without it.
    type: str
  host:
    description: What the host has to have for any release; not compared without it.
    type: dict
    suboptions:
      libraries:
        description: Shared libraries that the dynamic loader has to find.
        type: list
        elements: str
        default: []
      modules:
        description: Python modules that the interpreter of this module has to find.
        type: list
        elements: str
        default: []
      python3_modules:
        description: Python modules that C(python3) has to find, which may be another interpreter.
        type: list
        elements: str
        default: []
      account:
        description: The user that has to exist, as for M(llmops.vllm.host_info).
        type: dict
        suboptions:
          user:
            description: Its name.
            type: str
            required: true
          group:
            description: Its primary group.
            type: str
            required: true
          home:
            description: Its home directory, which need not exist.
            type: path
            required: true
          shell:
            description: Its shell.
            type: path
            required: true
  directories:
    description: Directories that all releases share, as for M(llmops.vllm.file_tree). They belong to O(owner).
    type: list
    elements: dict
    default: []
    suboptions:
      path:
        description: The directory.
        type: path
        required: true
      state:
        description: It is a directory.
        type: str
        choices: [directory]
        default: directory
      group:
        description: Name or numeric id of its group; not compared without it.
        type: str
      mode:
        description: Its mode, a quoted octal string.
        type: str
        required: true
      follow:
        description: Whether a link at O(directories[].path) is followed.
        type: bool
        default: false
  weights:
    description:
      - Which files of the model have to be in O(store), by C(stat) and by the manifest that lies there; not compared
        without it. They belong to O(group).
    type: dict
    suboptions:
      include:
        description: Patterns, as O(llmops.vllm.model_shards#module:include).
        type: list
        elements: str
        default: []
      exclude:
        description: Patterns, as O(llmops.vllm.model_shards#module:exclude).
        type: list
        elements: str
        default: []
      publish_blobs:
        description: Whether they have second names for other hosts.
        type: bool
        default: false
  runtime_level:
    description:
      - How the runtime is compared with the records of its packages. V(stat) compares which files there are, and their
        sizes; V(full) reads every byte; V(receipt) asks only whether its installation came to its end; V(none) leaves
        it out.
      - Compiled bytecode is in no record, and is not compared.
    type: str
    choices: [none, receipt, stat, full]
    default: stat
  ignore:
    description:
      - Patterns, as of a shell, for C(KIND WHERE) of differences that are meant to be, such as
        V(unit /etc/systemd/system/vllm@kimi.service.d/site.conf).
    type: list
    elements: str
    default: []
author:
  - llmops.vllm maintainers (@llmops)
seealso:
  - module: llmops.vllm.vllm_instance_info
  - module: llmops.vllm.model_shards
"""

EXAMPLES = r"""
- name: How does this host differ from the release that the roles have named?
  llmops.vllm.drift_info:
    instance: kimi
    release_id: "{{ vllm_service_result.id }}"
    content: "{{ vllm_service_result.content }}"
    port: "{{ vllm_service_result.probe.port }}"
    api_key_file: "{{ vllm_service_result.probe.api_key_file }}"
    owner: root
    group: vllm
    runtime_level: full
  register: drift

- name: Say it
  ansible.builtin.debug:
    msg: "{{ item.where }} {{ item.what }}"
  loop: "{{ drift.findings }}"
"""

RETURN = r"""
drift:
  description: Whether anything differs that is not ignored.
  returned: success
  type: bool
  sample: true
settled:
  description:
    - Whether a deployment has nothing to do. The release is current, proven and serves, no rollout was interrupted, and
      none of RV(findings) and RV(ignored) is of a kind that a deployment puts right, which are V(host), V(release),
      V(files), V(view), V(runtime) and V(weights).
    - What was not to be compared is not known here, and left to whoever asks.
  returned: success
  type: bool
  sample: false
findings:
  description: What differs, without what is ignored. No content of a file is in it.
  returned: success
  type: list
  elements: dict
  contains:
    kind:
      description:
        - What it is about, one of V(host), V(release), V(files), V(view), V(runtime), V(unit), V(process), V(listener),
          V(api_key) and V(weights).
      returned: always
      type: str
      sample: files
    where:
      description: A path, a unit, a process or a port.
      returned: always
      type: str
      sample: /etc/systemd/system/vllm@.service
    what:
      description: The rest of a sentence that begins with RV(findings[].where).
      returned: always
      type: str
      sample: differs in line 12
ignored:
  description: What differs and is ignored, in the form of RV(findings).
  returned: success
  type: list
  elements: dict
  sample: []
notes:
  description: What is no difference but worth a word, such as a unit that is starting.
  returned: success
  type: list
  elements: str
  sample: ["vllm@kimi.service is starting (activating, auto-restart)."]
current:
  description: Identifier of the current release; empty when there is none.
  returned: success
  type: str
  sample: 3f7a9c1e22b4
expected:
  description: Identifier of the repository's release.
  returned: success
  type: str
  sample: 3f7a9c1e22b4
model:
  description: The model that the current release is made of, as C(repo) and C(commit); empty when it is not known.
  returned: success
  type: dict
  sample: {"repo": "nvidia/Kimi-K2.5-NVFP4", "commit": "0123456789abcdef0123456789abcdef01234567"}
"""

import os
import time
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.llmops.vllm.plugins.module_utils.deploy_lock import RUN_PATH, read_lock
from ansible_collections.llmops.vllm.plugins.module_utils.drift import (
    CONTENT_PARTS,
    Expected,
    Report,
    compare_api_key,
    compare_intent,
    compare_release,
    ignoring,
    is_settled,
)
from ansible_collections.llmops.vllm.plugins.module_utils.drift_files import (
    DIRECTORY_MODE,
    FILE_MODE,
    compare_files,
    compare_view,
)
from ansible_collections.llmops.vllm.plugins.module_utils.drift_prerequisites import (
    compare_directories,
    compare_prerequisites,
)
from ansible_collections.llmops.vllm.plugins.module_utils.drift_process import (
    compare_listener,
    compare_process,
    compare_unit,
)
from ansible_collections.llmops.vllm.plugins.module_utils.drift_runtime import LEVELS, compare_runtime
from ansible_collections.llmops.vllm.plugins.module_utils.drift_weights import compare_weights
from ansible_collections.llmops.vllm.plugins.module_utils.errors import InvalidInputError, LlmopsError, as_sentence
from ansible_collections.llmops.vllm.plugins.module_utils.file_tree import Entry, check_path
from ansible_collections.llmops.vllm.plugins.module_utils.instance import is_proven, read_instance
from ansible_collections.llmops.vllm.plugins.module_utils.permissions import Accounts, parse_mode
from ansible_collections.llmops.vllm.plugins.module_utils.plain_json import plain_json
from ansible_collections.llmops.vllm.plugins.module_utils.prerequisites import OPTIONS, Prerequisites
from ansible_collections.llmops.vllm.plugins.module_utils.procfs import ProcFs
from ansible_collections.llmops.vllm.plugins.module_utils.release import release_id
from ansible_collections.llmops.vllm.plugins.module_utils.shards import Wish
from ansible_collections.llmops.vllm.plugins.module_utils.store import Attributes, check_store
from ansible_collections.llmops.vllm.plugins.module_utils.systemd import run_command, started_seconds

NAMES: dict[str, Any] = {"type": "list", "elements": "str", "default": []}
ARGUMENT_SPEC: dict[str, dict[str, Any]] = {
    "instance": {"type": "str", "required": True},
    "root": {"type": "path", "default": "/srv/llm"},
    "release_id": {"type": "str"},
    "content": {"type": "dict", "required": True},
    "launcher": {"type": "path", "default": "/usr/local/lib/llmops-vllm-serve"},
    "unit_path": {"type": "path", "default": "/etc/systemd/system"},
    "run_path": {"type": "path", "default": RUN_PATH},
    "unit": {"type": "str"},
    "port": {"type": "int", "default": 8000},
    "api_key_file": {"type": "path", "default": "", "no_log": False},
    "store": {"type": "path", "default": "/srv/llm/store"},
    "runtimes": {"type": "path", "default": "/srv/llm/runtimes"},
    "owner": {"type": "str"},
    "group": {"type": "str"},
    "host": {"type": "dict", "options": OPTIONS},
    "directories": {
        "type": "list",
        "elements": "dict",
        "default": [],
        "options": {
            "path": {"type": "path", "required": True},
            "state": {"type": "str", "choices": ["directory"], "default": "directory"},
            "group": {"type": "str"},
            "mode": {"type": "str", "required": True},
            "follow": {"type": "bool", "default": False},
        },
    },
    "weights": {
        "type": "dict",
        "options": {"include": NAMES, "exclude": NAMES, "publish_blobs": {"type": "bool", "default": False}},
    },
    "runtime_level": {"type": "str", "choices": list(LEVELS), "default": "stat"},
    "ignore": {"type": "list", "elements": "str", "default": []},
}


def content_of(params: dict[str, Any]) -> dict[str, Any]:
    """Return the expected release's content. Raises InvalidInputError unless it is whole and its hash is the id."""
    content: dict[str, Any] = plain_json(params["content"])
    missing = sorted(CONTENT_PARTS - content.keys())
    if missing:
        raise InvalidInputError(f"content lacks {', '.join(missing)}; give vllm_service_result.content as it is.")
    if params["release_id"] not in (None, release_id(content)):
        raise InvalidInputError(
            f"release_id is {params['release_id']}, but content is that of {release_id(content)}; give both from the "
            "same vllm_service_result."
        )
    return content


def expected_of(module: AnsibleModule) -> Expected:
    """Return what the repository says. Raises InvalidInputError."""
    params = module.params
    accounts = Accounts(module.check_mode, module.warn)
    content = content_of(params)
    return Expected(
        instance=params["instance"],
        root=check_path("root", params["root"]),
        release_id=release_id(content),
        content=content,
        unit=params["unit"] or f"vllm@{params['instance']}.service",
        port=params["port"],
        launcher=check_path("launcher", params["launcher"]),
        unit_path=check_path("unit_path", params["unit_path"]),
        store=check_store(params["store"]),
        runtimes=check_path("runtimes", params["runtimes"]),
        api_key_file=params["api_key_file"],
        uid=accounts.uid(params["owner"]),
        gid=accounts.gid(params["group"]),
    )


def directories_of(module: AnsibleModule, uid: int | None) -> list[Entry]:
    """Return the directories of all releases, which ``uid`` owns. Raises InvalidInputError."""
    accounts = Accounts(module.check_mode, module.warn)
    entries = []
    for given in module.params["directories"]:
        path = check_path("path of directories", given["path"])
        mode = parse_mode(f"mode of {path}", given["mode"], 0o700)
        place = os.path.realpath(path) if given["follow"] else path
        entries.append(Entry(place, "directory", mode=mode, uid=uid, gid=accounts.gid(given["group"])))
    return entries


def wish_of(params: dict[str, Any], gid: int | None) -> Wish:
    """Return what shall be true of the weights, which belong to ``gid``."""
    given = params["weights"]
    return Wish(
        include=tuple(given["include"]),
        exclude=tuple(given["exclude"]),
        attributes=Attributes(FILE_MODE, DIRECTORY_MODE, gid=gid),
        publish=given["publish_blobs"],
    )


def compare_host(module: AnsibleModule, expected: Expected, report: Report) -> None:
    """Compare what a deployment sees to beside the release, as far as it was given. Raises InvalidInputError."""
    if module.params["host"]:
        compare_prerequisites(Prerequisites.of(module.params["host"]), run_command, report)
    compare_directories(directories_of(module, expected.uid), report)
    if module.params["weights"] is not None:
        compare_weights(expected, wish_of(module.params, expected.gid), report)


def run(module: AnsibleModule) -> dict[str, Any]:
    """Look at the host and return the result. Raises LlmopsError."""
    expected, report = expected_of(module), Report()
    instance = read_instance(expected.root, expected.instance)
    with as_sentence("compare this host with its repository"):
        compare_intent(instance, read_lock(expected.instance, module.params["run_path"]), report)
        content = compare_release(expected, instance.current, report)
        if content and instance.current is not None:
            compare_files(expected, instance.current.path, content, report)
            compare_view(expected, instance.current.path, content, report)
            compare_runtime(expected, content, module.params["runtime_level"], report)
            compare_api_key(expected, content, report)
        unit = compare_unit(expected, run_command, report)
        started = started_seconds(unit, time.time(), time.monotonic())
        compare_process(expected, instance, unit, started, report)
        compare_listener(expected, ProcFs(), unit, report)
        compare_host(module, expected, report)
    counted, ignored = ignoring(report.drifts, module.params["ignore"])
    return {
        "changed": False,
        "drift": bool(counted),
        "settled": is_settled(expected, instance, is_proven(instance, unit, started), report),
        "findings": [drift.as_dict() for drift in counted],
        "ignored": [drift.as_dict() for drift in ignored],
        "notes": [*instance.warnings, *report.notes],
        "current": instance.current.release_id if instance.current else "",
        "expected": expected.release_id,
        "model": dict(content.get("model", {})),
    }


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
