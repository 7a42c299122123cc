#!/usr/bin/python
# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: launch_preflight
short_description: Ask the installed vLLM and the host whether a launch can work, before anything is stopped
version_added: 0.1.0
description:
  - Lets the installed engine itself, without a GPU, read the arguments and build its configuration from the model's
    files, and passes on what it objects to. No rule of the engine is repeated in this collection.
  - Looks whether the port is free, or held by the instance that is to be replaced.
  - Fails when the verdict is V(no_go). Changes nothing.
extends_documentation_fragment:
  - llmops.vllm.attributes
  - llmops.vllm.attributes.actiongroup_vllm
attributes:
  check_mode:
    support: full
    details: On a host that has no runtime, snapshot or user yet the engine cannot be asked, which is a warning.
  diff_mode:
    support: N/A
    details: This module never changes anything.
options:
  runtime:
    description: Virtual environment that holds the engine.
    type: path
    required: true
  snapshot:
    description: Directory with the model's files, pristine or patched.
    type: path
    required: true
  serve_yaml:
    description: The text of the configuration file that C(vllm serve --config) is to read.
    type: str
    required: true
  environment:
    description: The environment that the engine is to have.
    type: dict
    default: {}
  unit:
    description: Full name of the unit that is to be started; its own hold on the port is no objection.
    type: str
    required: true
  port:
    description: TCP port of the service.
    type: int
    required: true
  user:
    description:
      - The user that the engine is asked as, when the module runs as root; code that comes with a model is then not
        run by root.
    type: str
  cache:
    description:
      - Directory of the engine's cache; what it learns about the model's architecture is kept there for the launch.
      - Left alone when it is not there.
    type: path
  timeout_seconds:
    description: How long the engine may take to answer, in seconds.
    type: float
    default: 300
author:
  - llmops.vllm maintainers (@llmops)
seealso:
  - module: llmops.vllm.launch_gate
"""

EXAMPLES = r"""
- name: Would this launch work here?
  llmops.vllm.launch_preflight:
    runtime: /srv/llm/runtimes/3f7a9c1e22b4
    snapshot: /srv/llm/store/nvidia--Kimi-K2.5-NVFP4/0123456789abcdef0123456789abcdef01234567
    serve_yaml: "{{ {'tensor-parallel-size': 8} | llmops.vllm.serve_yaml }}"
    unit: vllm@kimi.service
    port: 8000
    user: vllm
"""

RETURN = r"""
verdict:
  description: V(go), V(warn) or V(no_go), the worst of RV(findings).
  returned: always
  type: str
  sample: go
findings:
  description: What speaks against the launch.
  returned: always
  type: list
  elements: dict
  contains:
    id:
      description: Stable name of the kind of finding.
      returned: always
      type: str
      sample: serve_arguments
    severity:
      description: V(no_go), V(warn) or V(info).
      returned: always
      type: str
      sample: no_go
    what:
      description: What is wrong, as a sentence.
      returned: always
      type: str
      sample: vLLM 0.32.0 does not take these arguments.
    evidence:
      description: What the engine or the host said.
      returned: always
      type: str
      sample: "vllm serve: error: unrecognized arguments: --no-such-flag 1"
    remedy:
      description: What to do.
      returned: always
      type: str
      sample: correct vllm_service_arguments or vllm_service_arguments_extra
    where:
      description: Where the evidence was read; empty when the evidence says so itself.
      returned: always
      type: str
      sample: nvidia-smi -q -x
    price:
      description: What the remedy costs; empty when it costs nothing worth mentioning.
      returned: always
      type: str
      sample: about 450K -> 190K KV tokens on 8x RTX PRO 6000
    source:
      description: Where the rule comes from; empty when the engine itself is the source.
      returned: always
      type: str
      sample: https://docs.nvidia.com/deploy/cuda-compatibility/
vllm_version:
  description: Version of the engine that was asked; empty when it could not be.
  returned: always
  type: str
  sample: 0.32.0
kv_cache_dtype:
  description: The KV cache's dtype as the engine resolves it from arguments and model; empty when it was not reached.
  returned: always
  type: str
  sample: fp8_e4m3
"""

import os
import pwd
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.llmops.vllm.plugins.module_utils.engine_probe import EngineAnswer, ProbeUser, ask_engine
from ansible_collections.llmops.vllm.plugins.module_utils.errors import InvalidInputError, LlmopsError
from ansible_collections.llmops.vllm.plugins.module_utils.findings import as_result, report
from ansible_collections.llmops.vllm.plugins.module_utils.gate_host import look_at_port
from ansible_collections.llmops.vllm.plugins.module_utils.preflight import judge_engine, judge_port
from ansible_collections.llmops.vllm.plugins.module_utils.procfs import ProcFs
from ansible_collections.llmops.vllm.plugins.module_utils.systemd import run_command, show_unit


def check_parameters(parameters: dict[str, Any]) -> None:
    """Raise ``InvalidInputError`` for numbers that cannot be right."""
    if not 0 < parameters["port"] < 65536:
        raise InvalidInputError(f"port {parameters['port']} is not between 1 and 65535.")
    if parameters["timeout_seconds"] <= 0:
        raise InvalidInputError("timeout_seconds must be more than 0.")


def probe_user(name: str | None) -> ProbeUser | None:
    """Return whom to ask the engine as, or None for oneself. Raises ``KeyError`` for a user that is not there."""
    if not name or os.geteuid() != 0:
        return None
    entry = pwd.getpwnam(name)
    return ProbeUser(entry.pw_uid, entry.pw_gid)


def ask(module: AnsibleModule) -> EngineAnswer:
    """Ask the engine, or in check mode say what has to be there first."""
    parameters = module.params
    python = os.path.join(parameters["runtime"], "bin", "python")
    missing = [
        f"the {thing} is not there: {path}"
        for path, thing in ((python, "runtime"), (parameters["snapshot"], "snapshot"))
        if not os.path.exists(path)
    ]
    user = None
    try:
        user = probe_user(parameters["user"])
    except KeyError:
        missing.append(f"there is no user '{parameters['user']}'; the role host_prereq makes it")
    if missing:
        if module.check_mode:
            return EngineAnswer("silent", "; ".join(missing), "", "")
        raise InvalidInputError(f"The engine cannot be asked on this host: {'; '.join(missing)}.")
    cache = parameters["cache"] if parameters["cache"] and os.path.isdir(parameters["cache"]) else ""
    return ask_engine(
        python=python,
        serve_yaml=parameters["serve_yaml"],
        model=parameters["snapshot"],
        environment={name: str(value) for name, value in parameters["environment"].items()},
        timeout_seconds=parameters["timeout_seconds"],
        user=user,
        cache="" if module.check_mode else cache,
    )


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "runtime": {"type": "path", "required": True},
            "snapshot": {"type": "path", "required": True},
            "serve_yaml": {"type": "str", "required": True},
            "environment": {"type": "dict", "default": {}},
            "unit": {"type": "str", "required": True},
            "port": {"type": "int", "required": True},
            "user": {"type": "str"},
            "cache": {"type": "path"},
            "timeout_seconds": {"type": "float", "default": 300},
        },
        supports_check_mode=True,
    )
    try:
        check_parameters(module.params)
        unit = show_unit(run_command, module.params["unit"])
        listener = look_at_port(ProcFs(), module.params["port"], unit.control_group, unit.main_pid)
        answer = ask(module)
    except LlmopsError as exc:
        module.fail_json(msg=exc.message, **exc.details)
    findings = [*judge_engine(answer), *judge_port(listener)]
    result = {**as_result(findings), "vllm_version": answer.version, "kv_cache_dtype": answer.kv_cache_dtype}
    if result["verdict"] == "no_go":
        module.fail_json(msg=f"This launch cannot work; nothing was touched.\n{report(findings)}", **result)
    if result["verdict"] == "warn" and not module.check_mode:
        module.warn(report(findings))
    module.exit_json(changed=False, **result)


if __name__ == "__main__":
    main()
