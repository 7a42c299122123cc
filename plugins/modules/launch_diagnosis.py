#!/usr/bin/python
# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: launch_diagnosis
short_description: Say why a launch of vLLM failed, from its own lines
version_added: 0.1.0
description:
  - Finds the root of a failure among the lines of one launch (one systemd invocation), or of a saved log. The last line
    of such a log mostly reports only that something failed elsewhere.
  - Understands the prefixes of all engine versions, of journald, syslog, Docker, Kubernetes and Ray, chained
    exceptions, messages of native libraries and of the kernel, and several launches in one log.
  - A cause that it does not know is located and said to be unclassified. Where the lines name none, the verdict says
    so; a cause is never guessed.
extends_documentation_fragment:
  - llmops.vllm.attributes
  - llmops.vllm.attributes.actiongroup_vllm
  - llmops.vllm.attributes.info_module
  - llmops.vllm.instance.root
options:
  unit:
    description:
      - Full name of the systemd unit, such as V(vllm@kimi.service); its last launch, running or ended, is read.
      - Together with O(invocation_id) it lets the launch's unmarked last words and memory events be read as well.
    type: str
  invocation_id:
    description: The launch to read, as C(systemctl show -p InvocationID) or M(llmops.vllm.launch_gate) tells it.
    type: str
  path:
    description: A saved log on the target, of any size. Excludes O(unit), O(invocation_id) and O(text).
    type: path
  text:
    description: Lines of a log. Excludes O(unit), O(invocation_id) and O(path).
    type: str
  findings:
    description:
      - What M(llmops.vllm.launch_preflight) found before the launch, RV(llmops.vllm.launch_preflight#module:findings).
      - By default, and with O(unit), those that the receipt of this launch's release holds.
    type: list
    elements: dict
author:
  - llmops.vllm maintainers (@llmops)
seealso:
  - module: llmops.vllm.launch_gate
"""

EXAMPLES = r"""
- name: Why did the last launch fail?
  llmops.vllm.launch_diagnosis:
    unit: vllm@kimi.service
  register: diagnosis

- name: Show it
  ansible.builtin.debug:
    msg: "{{ diagnosis.report }}"

- name: Diagnose an earlier launch
  llmops.vllm.launch_diagnosis:
    unit: vllm@kimi.service
    invocation_id: 0123456789abcdef0123456789abcdef

- name: Diagnose a log that somebody has saved
  llmops.vllm.launch_diagnosis:
    path: /tmp/vllm.log
"""

RETURN = r"""
verdict:
  description:
    - V(cause), V(insufficient_evidence), V(hang) when the log ends in waiting, or V(healthy) when the launch came up
      and nothing ended it.
  returned: success
  type: str
  sample: cause
cause_class:
  description: Kind of the failure; V(unclassified) when it is located but not known.
  returned: success
  type: str
  sample: attention_backend_unsupported
title:
  description: The cause in words.
  returned: success
  type: str
  sample: the checkpoint asks for an FP8 KV cache that no attention backend here takes
remedy:
  description: What to do.
  returned: success
  type: str
  sample: add the patch set disable_fp8_kv_cache to vllm_service_patch_sets
confidence:
  description: From 0 to 1.
  returned: success
  type: float
  sample: 0.95
source:
  description: Where the knowledge comes from.
  returned: success
  type: str
  sample: https://github.com/vllm-project/vllm/issues/32732
misleading_last_line:
  description: The last line, when it is not the root.
  returned: success
  type: str
  sample: "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"
evidence:
  description: The root line, then the lines that support it.
  returned: success
  type: list
  elements: dict
  contains:
    text:
      description: The line.
      returned: always
      type: str
      sample: "RuntimeError: expected scalar type BFloat16 but found Float8_e4m3fn"
    process:
      description: The process that wrote it.
      returned: always
      type: str
      sample: Worker_TP0 pid=4802
    time:
      description: When it was written (UTC).
      returned: always
      type: str
      sample: "2026-03-01T10:00:00Z"
    line:
      description: Its number in the launch's journal, from 1.
      returned: always
      type: int
      sample: 812
related:
  description: Findings of the preflight that can be behind the failure, the worst first; all, where no cause is known.
  returned: success
  type: list
  elements: dict
  contains:
    id:
      description: Kind of the finding, see M(llmops.vllm.launch_preflight).
      returned: always
      type: str
      sample: kv_cache_dtype
    severity:
      description: V(no_go), V(warn) or V(info).
      returned: always
      type: str
      sample: no_go
    what:
      description: What was found.
      returned: always
      type: str
      sample: No attention backend takes this model with a KV cache of fp8_e4m3.
    evidence:
      description: What was seen.
      returned: always
      type: str
      sample: "kv_cache_dtype=fp8_e4m3, head size 576. TRITON_MLA: kv_cache_dtype not supported"
    remedy:
      description: The smallest change that helps.
      returned: always
      type: str
      sample: "set vllm_service_patch_sets: [disable_fp8_kv_cache]"
report:
  description: The same as a page for people, in lines.
  returned: success
  type: list
  elements: str
  sample: ["vllm@kimi.service: the cause is in the log"]
invocation_id:
  description: The launch that was read; empty for a saved log.
  returned: success
  type: str
  sample: 0123456789abcdef0123456789abcdef
command:
  description: The command that shows all lines of this launch; empty for a saved log.
  returned: success
  type: str
  sample: journalctl --no-pager _SYSTEMD_INVOCATION_ID=0123456789abcdef0123456789abcdef
"""

import re
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.llmops.vllm.plugins.module_utils.diagnosis import Diagnosis, diagnose
from ansible_collections.llmops.vllm.plugins.module_utils.diagnosis_lines import (
    lines_of_entries,
    lines_of_log,
    lines_of_text,
)
from ansible_collections.llmops.vllm.plugins.module_utils.diagnosis_report import report
from ansible_collections.llmops.vllm.plugins.module_utils.errors import InvalidInputError, LlmopsError
from ansible_collections.llmops.vllm.plugins.module_utils.journal import command_for
from ansible_collections.llmops.vllm.plugins.module_utils.launch_evidence import find_last_launch, read_launch
from ansible_collections.llmops.vllm.plugins.module_utils.related_findings import (
    check_findings,
    related,
    stored_findings,
)
from ansible_collections.llmops.vllm.plugins.module_utils.systemd import (
    check_invocation_id,
    check_unit_name,
    run_command,
)

ARGUMENT_SPEC = {
    "unit": {"type": "str"},
    "invocation_id": {"type": "str"},
    "path": {"type": "path"},
    "text": {"type": "str"},
    "findings": {"type": "list", "elements": "dict"},
    "root": {"type": "path", "default": "/srv/llm"},
}
INSTANCE = re.compile(r"vllm@([A-Za-z0-9][A-Za-z0-9_.-]{0,63})\.service")


def diagnose_file(path: str) -> Diagnosis:
    """Return the diagnosis of a saved log."""
    try:
        with open(path, "rb") as stream:
            return diagnose(lines_of_log(stream))
    except OSError as exc:
        raise InvalidInputError(f"path {path} cannot be read: {exc.strerror}.") from exc


def find_launch(params: dict[str, Any]) -> str:
    """Return the launch to read, or an empty string when a saved log is given."""
    if params["unit"]:
        check_unit_name(params["unit"])
    if params["invocation_id"]:
        return check_invocation_id(params["invocation_id"])
    return find_last_launch(run_command, params["unit"]) if params["unit"] else ""


def foreseen(params: dict[str, Any], invocation_id: str) -> list[dict[str, Any]]:
    """Return what the preflight found before this launch, as far as that is given or known."""
    if params["findings"] is not None:
        return check_findings(params["findings"])
    instance = INSTANCE.fullmatch(params["unit"] or "")
    return stored_findings(params["root"], instance.group(1), invocation_id) if instance else []


def look(params: dict[str, Any]) -> dict[str, Any]:
    """Return the module's result; raises ``LlmopsError``."""
    invocation_id = find_launch(params)
    if params["text"] is not None:
        name, found = "text", diagnose(lines_of_text(params["text"]))
    elif params["path"]:
        name, found = params["path"], diagnose_file(params["path"])
    else:
        name = ", ".join(part for part in (params["unit"], f"launch {invocation_id}") if part)
        found = diagnose(lines_of_entries(read_launch(run_command, invocation_id, params["unit"] or "")))
    behind = related(foreseen(params, invocation_id), found.verdict, found.cause_class)
    result = {**found.as_dict(), "related": behind}
    page = report(name, result).splitlines()
    command = command_for(invocation_id) if invocation_id else ""
    return {**result, "report": page, "invocation_id": invocation_id, "command": command, "msg": page[0]}


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec=ARGUMENT_SPEC,
        required_one_of=[("unit", "invocation_id", "path", "text")],
        mutually_exclusive=[
            ("path", "text"),
            ("unit", "path"),
            ("unit", "text"),
            ("invocation_id", "path"),
            ("invocation_id", "text"),
        ],
        supports_check_mode=True,
    )
    try:
        result = look(module.params)
    except LlmopsError as exc:
        module.fail_json(msg=exc.message, **exc.details)
    module.exit_json(changed=False, **result)


if __name__ == "__main__":
    main()
