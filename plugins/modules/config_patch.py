#!/usr/bin/python
# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: config_patch
short_description: Compose a view of a model snapshot with declared JSON patches
version_added: 0.1.0
description:
  - Composes a directory, the view, that an inference engine can load in place of a downloaded model snapshot.
    Files called C(*.safetensors) are links into the snapshot, every other file is a real copy, and the declared
    patches are applied to the copies. The snapshot is only read.
  - Directories of the snapshot whose names start with a dot, such as the records of the download, are left out.
  - A patch keeps the formatting of the file, so that the diff shows the change and nothing else.
  - The view is composed aside and renamed into place. A view that is already right is left untouched. One that
    differs, for example because it was edited by hand, is replaced as a whole.
  - A directory that is not a view (it holds real C(*.safetensors) files, or nothing that the snapshot has) is refused.
author:
  - llmops.vllm maintainers (@llmops)
extends_documentation_fragment:
  - llmops.vllm.attributes
  - llmops.vllm.attributes.actiongroup_vllm
attributes:
  check_mode:
    support: full
    details:
      - When the snapshot does not exist yet, the module reports RV(pending=true) and only checks the form of the
        patches.
  diff_mode:
    support: full
    details:
      - Shows patched and otherwise differing text files as texts, and everything else as lines of a listing.
options:
  snapshot:
    description:
      - Absolute path of the downloaded model. A path through symbolic links is resolved, so that the view keeps
        pointing at the same snapshot.
    type: path
    required: true
  view:
    description:
      - Absolute path of the view. Its parent directory must exist, the view must not lie in the snapshot.
    type: path
    required: true
  patches:
    description:
      - Changes of JSON files of the snapshot, applied in the given order.
      - Within one patch the order is O(patches[].expect), O(patches[].operations), O(patches[].merge),
        O(patches[].remove_keys). At least one of the last three is required.
    type: list
    elements: dict
    default: []
    suboptions:
      name:
        description: Name of the patch, for results and messages.
        type: str
        required: true
      file:
        description: Path of the JSON file within the snapshot.
        type: str
        required: true
      reason:
        description: Why the patch is needed; the person who can drop it one day reads this.
        type: str
        required: true
      operations:
        description:
          - JSON Patch (RFC 6902) operations, each a dictionary with C(op) (V(add), V(remove), V(replace), V(move),
            V(copy) or V(test)), C(path) and, depending on C(op), C(value) or C(from). All of them apply, or the module
            fails.
        type: list
        elements: dict
        default: []
      merge:
        description: JSON Merge Patch (RFC 7396); a null value removes the member.
        type: dict
        default: {}
      remove_keys:
        description: Keys that are removed wherever they stand, at any depth. A key that is nowhere is no error.
        type: list
        elements: str
        default: []
      expect:
        description:
          - JSON pointers (RFC 6901) and the values that must stand there before this patch; otherwise the module fails.
          - Use it to notice that a new revision of the model no longer needs the patch, or needs another one.
        type: dict
        default: {}
      optional:
        description: Skip the patch when the snapshot has no such file, instead of failing.
        type: bool
        default: false
      when:
        description:
          - Skip the patch unless this holds. Versions of vLLM and compute capabilities are conditions as well, decided
            before by P(llmops.vllm.applicable_patches#filter), as the role C(vllm_service) does.
        type: dict
        suboptions:
          keys:
            description: Keys of which one has to stand somewhere in the file, at any depth.
            type: list
            elements: str
  owner:
    description: Name or numeric id of the user who owns the view. By default whoever runs the module owns it.
    type: str
  group:
    description: Name or numeric id of the group of the view.
    type: str
  file_mode:
    description: Mode of the copied files, as a quoted octal number of four digits.
    type: str
    default: "0644"
  directory_mode:
    description: Mode of the directories, as a quoted octal number of four digits.
    type: str
    default: "0755"
seealso:
  - module: llmops.vllm.model_shards
  - name: JSON Patch
    description: RFC 6902, the operations.
    link: https://www.rfc-editor.org/rfc/rfc6902
  - name: JSON Merge Patch
    description: RFC 7396, the merge.
    link: https://www.rfc-editor.org/rfc/rfc7396
"""

EXAMPLES = r"""
- name: Compose a view that does not ask for an FP8 KV cache
  llmops.vllm.config_patch:
    snapshot: /srv/llm/store/nvidia--Kimi-K2.5-NVFP4/0123456789abcdef0123456789abcdef01234567
    view: /srv/llm/releases/kimi/4f1c2a9b7d30/model
    owner: root
    group: vllm
    file_mode: "0640"
    directory_mode: "0750"
    patches:
      - name: no-fp8-kv-cache
        file: config.json
        reason: No MLA attention backend of this vLLM takes an FP8 KV cache on SM120
        remove_keys: [kv_cache_scheme, kv_cache_quant_algo]
        expect:
          /quantization_config/kv_cache_scheme/num_bits: 8
      - name: no-fp8-kv-cache-legacy
        file: hf_quant_config.json
        reason: Keep the second description of the quantisation in step with config.json
        remove_keys: [kv_cache_scheme, kv_cache_quant_algo]
        optional: true

- name: Change one value and add another
  llmops.vllm.config_patch:
    snapshot: /srv/llm/store/example--model/0123456789abcdef0123456789abcdef01234567
    view: /srv/llm/releases/example/0c5d1e8f2a37/model
    patches:
      - name: longer-context
        file: config.json
        reason: YaRN doubles the context that the model was trained with
        operations:
          - {op: test, path: /max_position_embeddings, value: 131072}
          - {op: replace, path: /max_position_embeddings, value: 262144}
      - name: sampling-defaults
        file: generation_config.json
        reason: The service promises reproducible answers by default
        merge: {temperature: 0.0, top_p: null}
"""

RETURN = r"""
path:
  description: Absolute path of the view.
  returned: always
  type: str
  sample: /srv/llm/releases/kimi/4f1c2a9b7d30/model
digest:
  description:
    - SHA-256 (64 hexadecimal digits) over the sorted list of relative path, kind, and content hash or link target of
      everything in the view. Equal views of one snapshot have equal digests.
  returned: when RV(pending=false)
  type: str
  sample: 8d0e2b3f4f0cf21e5a6ad5a2ef5e7f3a6f0d3f7c1c54a9d1e2b60718c3a4d5e6
pending:
  description: Whether the snapshot does not exist yet, so that the patches could not be tried; in check mode only.
  returned: always
  type: bool
patched:
  description: What each patch does to the snapshot's file, in the given order.
  returned: always
  type: list
  elements: dict
  contains:
    name:
      description: Name of the patch.
      type: str
    file:
      description: Path of the file within the view.
      type: str
    reason:
      description: Why the patch is declared.
      type: str
    added:
      description: JSON pointers of what the patch adds.
      type: list
      elements: str
    removed:
      description: JSON pointers of what the patch removes.
      type: list
      elements: str
    changed:
      description: JSON pointers of the values that the patch replaces; an array of another length counts as a whole.
      type: list
      elements: str
    effective:
      description:
        - Whether the served model notices the patch. False when the file was already as wanted, when an optional file
          is missing, and when vLLM does not read the file because C(config.json) takes precedence.
      type: bool
    note:
      description: Why a patch has no effect, or what else to know about it; empty when there is nothing to say.
      type: str
  sample:
    - name: no-fp8-kv-cache
      file: config.json
      reason: No MLA attention backend of this vLLM takes an FP8 KV cache on SM120
      added: []
      removed: [/quantization_config/kv_cache_scheme]
      changed: []
      effective: true
      note: ""
"""

import os
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.llmops.vllm.plugins.module_utils.errors import InvalidInputError, LlmopsError, as_sentence
from ansible_collections.llmops.vllm.plugins.module_utils.left_aside import process_exists
from ansible_collections.llmops.vllm.plugins.module_utils.patch_set import Patch, apply_patches
from ansible_collections.llmops.vllm.plugins.module_utils.permissions import Accounts, parse_mode
from ansible_collections.llmops.vllm.plugins.module_utils.view import (
    Permissions,
    plan_view,
    read_source,
    render_diff,
    snapshot_sources,
)
from ansible_collections.llmops.vllm.plugins.module_utils.view_composition import apply_view

PATCH_OPTIONS: dict[str, dict[str, Any]] = {
    "name": {"type": "str", "required": True},
    "file": {"type": "str", "required": True},
    "reason": {"type": "str", "required": True},
    "operations": {"type": "list", "elements": "dict", "default": []},
    "merge": {"type": "dict", "default": {}},
    "remove_keys": {"type": "list", "elements": "str", "default": [], "no_log": False},
    "expect": {"type": "dict", "default": {}},
    "optional": {"type": "bool", "default": False},
    "when": {"type": "dict", "options": {"keys": {"type": "list", "elements": "str", "no_log": False}}},
}

ARGUMENT_SPEC: dict[str, dict[str, Any]] = {
    "snapshot": {"type": "path", "required": True},
    "view": {"type": "path", "required": True},
    "patches": {"type": "list", "elements": "dict", "default": [], "options": PATCH_OPTIONS},
    "owner": {"type": "str"},
    "group": {"type": "str"},
    "file_mode": {"type": "str", "default": "0644"},
    "directory_mode": {"type": "str", "default": "0755"},
}


def absolute(name: str, path: str) -> str:
    """Return a normalised absolute path. Raises InvalidInputError for a relative one."""
    if not os.path.isabs(path):
        raise InvalidInputError(f"{name} must be an absolute path, not '{path}'.")
    return os.path.normpath(path)


def permissions_of(module: AnsibleModule) -> Permissions:
    """Return modes and numeric owners. Raises InvalidInputError."""
    params = module.params
    accounts = Accounts(module.check_mode, module.warn)
    return Permissions(
        file_mode=parse_mode("file_mode", params["file_mode"], 0o400),
        directory_mode=parse_mode("directory_mode", params["directory_mode"], 0o500),
        uid=accounts.uid(params["owner"]),
        gid=accounts.gid(params["group"]),
    )


def run(module: AnsibleModule) -> dict[str, Any]:
    """Plan, apply unless in check mode, and return the result. Raises LlmopsError."""
    params = module.params
    view = absolute("view", params["view"])
    snapshot = os.path.realpath(absolute("snapshot", params["snapshot"]))
    patches = [Patch.from_parameters(parameters) for parameters in params["patches"]]
    if module.check_mode and not os.path.lexists(snapshot):
        message = f"The snapshot {snapshot} does not exist yet; the patches will be tried once it is there."
        return {"changed": True, "pending": True, "path": view, "patched": [], "msg": message}
    permissions = permissions_of(module)
    with as_sentence(f"compare the view {view} with its snapshot"):
        sources = snapshot_sources(snapshot)
        outcome = apply_patches(patches, lambda path: read_source(sources, path))
        plan = plan_view(snapshot, view, sources, outcome.contents, permissions)
        difference = render_diff(plan) if module._diff else []
    if not module.check_mode:
        apply_view(plan, os.getpid(), process_exists)
    patched = [report.as_result() for report in outcome.reports]
    result = {"changed": plan.changed, "pending": False, "path": view, "digest": plan.digest, "patched": patched}
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
