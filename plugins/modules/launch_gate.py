#!/usr/bin/python
# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: launch_gate
short_description: Wait until one launch of a vLLM unit has proved itself, or say why it cannot
version_added: 0.1.0
description:
  - Follows exactly one launch (one systemd invocation) of a unit, from its start until checked requests are answered.
  - The launch is ready when the unit still is that invocation, the process that listens on O(port) belongs to the
    unit, C(/v1/models) serves O(served_model), C(/version) tells O(version), every canary passes its checks, the soak
    stays within its budget of failures, and the unit is still the same after it, and active.
  - It fails at once when the main process ends, the unit is stopped, restarted or replaced, a line of this launch says
    that it is over, a foreign process answers on the port, a canary fails, or the launch makes no progress. The message
    then names the root cause from the journal of this launch, with the evidence and a remedy. Evidence of another
    launch is never read.
  - While it waits it prints a line of progress. It waits in slices, so that no connection has to stay open for long.
  - It keeps the lock of the run that waits (O(lock)), and fails when another run has taken it over.
extends_documentation_fragment:
  - llmops.vllm.attributes
  - llmops.vllm.attributes.actiongroup_vllm
attributes:
  check_mode:
    support: full
    details: Nothing is waited for and nothing is asked; RV(verdict) is V(skipped).
  diff_mode:
    support: N/A
    details: This module never changes anything.
options:
  unit:
    description: Full name of the systemd unit, such as V(vllm@kimi.service).
    type: str
    required: true
  invocation_id:
    description:
      - The launch to follow, as C(systemctl show -p InvocationID) prints it. The default is the unit's current launch.
      - Give the ID that the start returned, and a restart between start and gate cannot be mistaken for the launch.
    type: str
  host:
    description: Address at which the engine is asked.
    type: str
    default: 127.0.0.1
  port:
    description: TCP port of the engine.
    type: int
    required: true
  served_model:
    description: The model's name as the engine serves it.
    type: str
    required: true
  version:
    description: The version of vLLM that has to answer, such as V(0.32.0), as the runtime's lock has it; empty for any.
    type: str
    default: ""
  api_key_file:
    description: File on the target that holds the engine's API key on one line. The key appears in no result.
    type: path
  canaries:
    description: Requests that the launch must answer, in this order; at least one.
    type: list
    elements: dict
    required: true
    suboptions:
      kind:
        description:
          - What is asked. V(chat) and V(completion) want text.
          - V(tool_call) wants a call of O(canaries[].tool) that the engine has parsed, with arguments that are JSON.
          - V(reasoning) wants thoughts apart from the answer, and an answer after them.
          - V(image) shows a picture of one colour, O(canaries[].image_color), to a model with a vision tower.
        type: str
        choices: [chat, completion, tool_call, reasoning, image]
        default: chat
      prompt:
        description: The user's message, or the text to complete.
        type: str
        required: true
      max_tokens:
        description:
          - Length of the answer in tokens, thoughts included.
          - V(0) stands for 16, for 512 of a tool call, 2048 of reasoning and 64 of an image.
        type: int
        default: 0
      min_chars:
        description: The answer must have at least this many characters; a tool call need not have any.
        type: int
        default: 1
      contains:
        description: The answer must contain this text.
        type: str
        default: ""
      matches:
        description: The answer must match this Python regular expression somewhere.
        type: str
        default: ""
      logprobs:
        description: Ask for the log probabilities of the answer and require that they are finite, which catches NaN.
        type: bool
        default: true
      allow_repetition:
        description:
          - Accept an answer that ends in repeating the same few tokens, as a small random model may give it.
        type: bool
        default: false
      ignore_eos:
        description: Make the engine write all of O(canaries[].max_tokens), even if the model wants to stop at once.
        type: bool
        default: false
      tool:
        description:
          - The function that a V(tool_call) is offered, as OpenAI's interface has it (C(name), C(description),
            C(parameters)). The default is C(get_weather) with the required argument C(city).
        type: dict
      tool_choice:
        description:
          - V(auto) leaves the choice to the model and tests the tool parser; V(named) and V(required) make the engine
            force a call.
        type: str
        choices: [auto, named, required]
        default: auto
      tool_arguments:
        description: Arguments that the call must have, with their values.
        type: dict
      image_color:
        description: Colour of the picture.
        type: str
        choices: [red, green, blue, yellow, white, black]
        default: red
      max_seconds:
        description: The longest time for the whole answer, in seconds; V(0) for none. See O(canary_timeout_seconds).
        type: float
        default: 0
      max_first_token_seconds:
        description: The longest time to the first token, in seconds; the answer is then streamed. V(0) for none.
        type: float
        default: 0
      min_tokens_per_second:
        description: The least speed of the answer, in tokens a second; V(0) for none.
        type: float
        default: 0
  canary_timeout_seconds:
    description: The longest time for one canary's answer, in seconds. The first one may have to compile kernels.
    type: int
    default: 300
  soak_seconds:
    description: How long the unit must stay the same after the last canary, in seconds.
    type: float
    default: 2
  soak_completions:
    description: How many times the canaries are asked again over O(soak_seconds), one after the other, evenly spread.
    type: int
    default: 0
  soak_failures:
    description: How many of O(soak_completions) may fail.
    type: int
    default: 0
  stall_timeout_seconds:
    description:
      - Fail when the launch has written nothing to its journal for this long, in seconds; V(0) never does. A line that
        only says that a process waits for another one counts for nothing.
      - A load that makes progress is never ended by a fixed time.
    type: int
    default: 600
  timeout_seconds:
    description: Fail when the launch is not ready after this long, in seconds; V(0) sets no limit.
    type: int
    default: 0
  findings:
    description:
      - What M(llmops.vllm.launch_preflight) found before the launch, RV(llmops.vllm.launch_preflight#module:findings).
      - Those that can be behind a failure are told with it.
    type: list
    elements: dict
    default: []
  lock:
    description: The lock that is kept while the launch is waited for, as M(llmops.vllm.deploy_lock) has given it.
    type: dict
    suboptions:
      instance:
        description: Name of the instance.
        type: str
        required: true
      run_id:
        description: The run that holds it, RV(llmops.vllm.deploy_lock#module:run.id).
        type: str
        required: true
      run_path:
        description: Directory for locks.
        type: path
        default: /run/llmops-vllm
  slice_seconds:
    description:
      - How long one call on the target may wait, in seconds; V(0) waits until the end in one call.
      - On a controller, calls are repeated until the end anyway; V(0) then stands for slices of 10 seconds.
      - A slice does not end while a canary or the soak is under way.
    type: int
    default: 0
  waited_seconds:
    description: What earlier calls for the same launch have waited, in seconds. Set between slices.
    type: float
    default: 0
author:
  - llmops.vllm maintainers (@llmops)
seealso:
  - module: llmops.vllm.vllm_instance_info
  - module: llmops.vllm.process_teardown
"""

EXAMPLES = r"""
- name: Wait until this launch has proved itself
  llmops.vllm.launch_gate:
    unit: vllm@kimi.service
    invocation_id: "{{ kimi_start.status.InvocationID }}"
    port: 8000
    served_model: kimi-k2.5
    api_key_file: /etc/vllm/kimi.key
    version: 0.32.0
    canaries:
      - prompt: What is the capital of France?
        contains: Paris
      - kind: completion
        prompt: "1, 2, 3, 4,"
        matches: "\\b5\\b"
        max_first_token_seconds: 2
        min_tokens_per_second: 20
      - kind: tool_call
        prompt: What is the weather in Paris? Use the tool.
        tool_arguments: {city: Paris}
      - kind: reasoning
        prompt: What is 17 plus 25?
        contains: "42"
      - kind: image
        prompt: Which colour is this? Answer with one word.
        matches: (?i)red
    soak_seconds: 60
    soak_completions: 20
    soak_failures: 1

- name: A launch that loads from a slow disk
  llmops.vllm.launch_gate:
    unit: vllm@kimi.service
    port: 8000
    served_model: kimi-k2.5
    stall_timeout_seconds: 1800
    canaries:
      - prompt: Hello
"""

RETURN = r"""
verdict:
  description: V(ready), V(failed), V(waiting) when a slice ended before the launch did, or V(skipped) in check mode.
  returned: always
  type: str
  sample: ready
phase:
  description:
    - Where the launch is.
    - One of V(starting), V(config), V(engine), V(weights), V(compile), V(kv_cache), V(graph_capture), V(warmup),
      V(listening), V(canary), V(soak) and V(ready).
  returned: always
  type: str
  sample: ready
progress:
  description: The same as one line for people.
  returned: always
  type: str
  sample: loading weights 37/119
reason:
  description: Why the verdict is what it is.
  returned: always
  type: str
  sample: the launch has proved itself
invocation_id:
  description: The launch that was followed.
  returned: always
  type: str
  sample: 0123456789abcdef0123456789abcdef
main_pid:
  description: Its main process, 0 when there is none.
  returned: always
  type: int
  sample: 4711
timeline:
  description: The phases that the launch has passed.
  returned: always
  type: list
  elements: dict
  contains:
    phase:
      description: Name of the phase.
      returned: always
      type: str
      sample: weights
    seconds:
      description: How long it lasted.
      returned: always
      type: float
      sample: 67.2
canaries:
  description: The requests and their answers.
  returned: always
  type: list
  elements: dict
  contains:
    kind:
      description: Which interface was asked.
      returned: always
      type: str
      sample: chat
    prompt:
      description: The request.
      returned: always
      type: str
      sample: What is the capital of France?
    text:
      description: The answer, at most 2000 characters of it.
      returned: always
      type: str
      sample: Paris.
    tokens:
      description: Length of the answer in tokens.
      returned: always
      type: int
      sample: 3
    seconds:
      description: Time until the answer was complete.
      returned: always
      type: float
      sample: 0.41
    first_token_seconds:
      description: Time until its first token; null unless O(canaries[].max_first_token_seconds) asked for it.
      returned: always
      type: float
      sample: 0.12
    tokens_per_second:
      description: Speed of the answer, from its first token on where that is known.
      returned: always
      type: float
      sample: 53.2
    problem:
      description: The check that did not pass, or an empty string.
      returned: always
      type: str
      sample: ""
soak:
  description: What the soak asked.
  returned: always
  type: dict
  contains:
    asked:
      description: How many completions were asked for.
      returned: always
      type: int
      sample: 20
    failed:
      description: How many of them failed.
      returned: always
      type: int
      sample: 0
    problems:
      description: The first five checks that did not pass.
      returned: always
      type: list
      elements: str
      sample: []
death_to_verdict_seconds:
  description: Time from the end of the launch's main process to this result; null while the process lives.
  returned: always
  type: float
  sample: 0.6
waited_seconds:
  description: How long was waited for this launch, earlier slices included.
  returned: always
  type: float
  sample: 412.5
diagnosis:
  description: Why the launch failed, from the journal of this launch alone.
  returned: when RV(verdict) is V(failed)
  type: dict
  contains:
    verdict:
      description:
        - V(cause), V(insufficient_evidence), V(hang) when the journal ends in waiting, or V(healthy) when it shows no
          failure.
      returned: always
      type: str
      sample: cause
    cause_class:
      description: Kind of the failure; V(unclassified) when it is located but not known.
      returned: always
      type: str
      sample: attention_backend_unsupported
    title:
      description: The cause in words.
      returned: always
      type: str
      sample: the checkpoint asks for an FP8 KV cache that no attention backend here takes
    remedy:
      description: What to do.
      returned: always
      type: str
      sample: add the patch set disable_fp8_kv_cache to vllm_service_patch_sets
    confidence:
      description: From 0 to 1.
      returned: always
      type: float
      sample: 0.95
    source:
      description: Where the knowledge comes from.
      returned: always
      type: str
      sample: https://github.com/vllm-project/vllm/issues/32732
    misleading_last_line:
      description: The last line, when it is not the root.
      returned: always
      type: str
      sample: "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"
    related:
      description: Findings of the preflight that can be behind the failure, the worst first.
      returned: always
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
    evidence:
      description: The root line, then the lines that support it.
      returned: always
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
"""

import time
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.llmops.vllm.plugins.module_utils.canary import (
    KINDS,
    TOOL_CHOICES,
    Canary,
    parse_canary,
)
from ansible_collections.llmops.vllm.plugins.module_utils.canary_image import COLOURS
from ansible_collections.llmops.vllm.plugins.module_utils.deploy_lock import RUN_PATH, DeployLock, Lease
from ansible_collections.llmops.vllm.plugins.module_utils.engine_api import EngineApi, read_api_key
from ansible_collections.llmops.vllm.plugins.module_utils.errors import (
    InvalidInputError,
    LlmopsError,
    PreconditionError,
)
from ansible_collections.llmops.vllm.plugins.module_utils.gate import (
    Failed,
    NotYet,
    NoWaiter,
    Ready,
    Step,
    Verdict,
    Waiter,
    failure_message,
)
from ansible_collections.llmops.vllm.plugins.module_utils.gate_host import HostObserver, UnitWatch
from ansible_collections.llmops.vllm.plugins.module_utils.journal import Journal, command_for
from ansible_collections.llmops.vllm.plugins.module_utils.launch_follow import Clock, GateSettings, LaunchGate
from ansible_collections.llmops.vllm.plugins.module_utils.procfs import ProcFs
from ansible_collections.llmops.vllm.plugins.module_utils.related_findings import check_findings, related
from ansible_collections.llmops.vllm.plugins.module_utils.systemd import (
    check_invocation_id,
    check_unit_name,
    run_command,
    show_unit,
)

CANARY_SPEC = {
    "kind": {"type": "str", "choices": list(KINDS), "default": "chat"},
    "prompt": {"type": "str", "required": True},
    "max_tokens": {"type": "int", "default": 0, "no_log": False},
    "min_chars": {"type": "int", "default": 1},
    "contains": {"type": "str", "default": ""},
    "matches": {"type": "str", "default": ""},
    "logprobs": {"type": "bool", "default": True},
    "allow_repetition": {"type": "bool", "default": False},
    "ignore_eos": {"type": "bool", "default": False},
    "tool": {"type": "dict"},
    "tool_choice": {"type": "str", "choices": list(TOOL_CHOICES), "default": "auto"},
    "tool_arguments": {"type": "dict"},
    "image_color": {"type": "str", "choices": list(COLOURS), "default": "red"},
    "max_seconds": {"type": "float", "default": 0},
    "max_first_token_seconds": {"type": "float", "default": 0, "no_log": False},
    "min_tokens_per_second": {"type": "float", "default": 0, "no_log": False},
}

LOCK_SPEC = {
    "instance": {"type": "str", "required": True},
    "run_id": {"type": "str", "required": True},
    "run_path": {"type": "path", "default": RUN_PATH},
}

ARGUMENT_SPEC = {
    "unit": {"type": "str", "required": True},
    "invocation_id": {"type": "str"},
    "host": {"type": "str", "default": "127.0.0.1"},
    "port": {"type": "int", "required": True},
    "served_model": {"type": "str", "required": True},
    "version": {"type": "str", "default": ""},
    "api_key_file": {"type": "path", "no_log": False},
    "canaries": {"type": "list", "elements": "dict", "required": True, "options": CANARY_SPEC},
    "canary_timeout_seconds": {"type": "int", "default": 300},
    "soak_seconds": {"type": "float", "default": 2},
    "soak_completions": {"type": "int", "default": 0},
    "soak_failures": {"type": "int", "default": 0},
    "stall_timeout_seconds": {"type": "int", "default": 600},
    "timeout_seconds": {"type": "int", "default": 0},
    "findings": {"type": "list", "elements": "dict", "default": []},
    "lock": {"type": "dict", "options": LOCK_SPEC},
    "slice_seconds": {"type": "int", "default": 0},
    "waited_seconds": {"type": "float", "default": 0},
}

NOT_NEGATIVE = (
    "soak_seconds",
    "soak_completions",
    "soak_failures",
    "stall_timeout_seconds",
    "timeout_seconds",
    "slice_seconds",
    "waited_seconds",
)


def check_parameters(params: dict[str, Any]) -> tuple[Canary, ...]:
    """Return the canaries; raise ``InvalidInputError`` for anything that cannot be right."""
    check_unit_name(params["unit"])
    if params["invocation_id"]:
        check_invocation_id(params["invocation_id"])
    if not 0 < params["port"] < 65536:
        raise InvalidInputError(f"port {params['port']} is not between 1 and 65535.")
    for name in NOT_NEGATIVE:
        if params[name] < 0:
            raise InvalidInputError(f"{name} must not be negative.")
    if params["canary_timeout_seconds"] < 1:
        raise InvalidInputError("canary_timeout_seconds must be at least 1.")
    check_findings(params["findings"])
    if not params["canaries"]:
        raise InvalidInputError("canaries is empty: a launch is proved only by answers; give at least one.")
    return tuple(parse_canary(values, position) for position, values in enumerate(params["canaries"], start=1))


def find_launch(params: dict[str, Any]) -> str:
    """Return the launch to follow: the given one or the unit's current one."""
    if params["invocation_id"]:
        return str(params["invocation_id"])
    unit = show_unit(run_command, params["unit"])
    if not unit.systemd:
        raise PreconditionError("systemd does not answer on this host, so there is no launch to follow.")
    if not unit.exists:
        raise PreconditionError(f"systemd does not know {params['unit']}. Deploy it first, or correct the name.")
    if not unit.invocation_id:
        raise PreconditionError(f"{params['unit']} has never been started. Start it first.")
    return unit.invocation_id


def build_gate(params: dict[str, Any], canaries: tuple[Canary, ...], invocation_id: str, api_key: str) -> LaunchGate:
    """Return the gate over this host."""
    procfs = ProcFs()
    settings = GateSettings(
        unit=params["unit"],
        invocation_id=invocation_id,
        served_model=params["served_model"],
        canaries=canaries,
        stall_timeout_seconds=params["stall_timeout_seconds"],
        timeout_seconds=params["timeout_seconds"],
        soak_seconds=params["soak_seconds"],
        waited_seconds=params["waited_seconds"],
        soak_completions=params["soak_completions"],
        soak_failures=params["soak_failures"],
        version=params["version"],
    )
    observer = HostObserver(
        UnitWatch(run_command, params["unit"], procfs, time.monotonic),
        Journal(run_command, invocation_id),
        procfs,
        EngineApi(params["host"], params["port"], api_key),
        port=params["port"],
        served_model=params["served_model"],
        canary_timeout_seconds=params["canary_timeout_seconds"],
        now=time.monotonic,
    )
    return LaunchGate(settings, observer, Clock(time.monotonic, time.time, time.sleep))


def keeping_lock(step: Step, lock: dict[str, Any]) -> Step:
    """Return a step that renews the lock of the run that waits before it looks at the launch."""
    lease = Lease(DeployLock(lock["instance"], time.monotonic, lock["run_path"]), lock["run_id"], time.monotonic)

    def keep_and_look() -> Verdict:
        lease.keep()
        return step()

    return keep_and_look


def as_result(gate: LaunchGate, invocation_id: str, verdict: Verdict) -> dict[str, Any]:
    """Return the module's result without message and diagnosis."""
    names = {Ready: "ready", NotYet: "waiting", Failed: "failed"}
    return {
        "verdict": names[type(verdict)],
        "reason": verdict.reason,
        "phase": gate.found.phase,
        "progress": gate.found.progress,
        "invocation_id": invocation_id,
        "main_pid": gate.found.main_pid,
        "timeline": gate.timeline(),
        "canaries": [canary.as_dict() for canary in gate.found.canaries],
        "soak": gate.soak(),
        "death_to_verdict_seconds": None,
        "waited_seconds": round(gate.waited_seconds, 3),
    }


def follow(module: AnsibleModule) -> dict[str, Any]:
    """Follow the launch and return the result; raise ``LlmopsError`` with the whole result when it failed."""
    params = module.params
    canaries = check_parameters(params)
    if module.check_mode:
        verdict: Verdict = NoWaiter().wait(lambda: NotYet(""), 0)
        nothing = {"phase": "starting", "progress": "", "main_pid": 0, "timeline": [], "canaries": []}
        nothing.update({"soak": {"asked": 0, "failed": 0, "problems": []}, "death_to_verdict_seconds": None})
        launch = {"invocation_id": params["invocation_id"] or "", "waited_seconds": params["waited_seconds"]}
        return {"verdict": "skipped", "reason": verdict.reason, "msg": verdict.reason, **nothing, **launch}
    api_key = read_api_key(params["api_key_file"]) if params["api_key_file"] else ""
    if api_key:
        module.no_log_values.add(api_key)
    invocation_id = find_launch(params)
    gate = build_gate(params, canaries, invocation_id, api_key)
    step = keeping_lock(gate.step, params["lock"]) if params["lock"] else gate.step
    verdict = Waiter(time.monotonic, gate.pause).wait(step, params["slice_seconds"], gate.may_pause)
    # The diagnosis reads the journal to its end, which tells how far the launch has come.
    diagnosis = gate.diagnosis() if isinstance(verdict, Failed) else {}
    result = as_result(gate, invocation_id, verdict)
    if diagnosis:
        diagnosis["related"] = related(params["findings"], diagnosis["verdict"], diagnosis["cause_class"])
        command = command_for(invocation_id)
        message = failure_message(params["unit"], invocation_id, verdict.reason, diagnosis, command)
        late = gate.death_to_verdict_seconds()
        result["death_to_verdict_seconds"] = None if late is None else round(late, 3)
        raise LlmopsError(message, diagnosis=diagnosis, **result)
    return {**result, "msg": f"{params['unit']}: {verdict.reason}"}


def main() -> None:
    """Run the module."""
    module = AnsibleModule(argument_spec=ARGUMENT_SPEC, supports_check_mode=True)
    try:
        result = follow(module)
    except LlmopsError as exc:
        module.fail_json(msg=exc.message, changed=False, **exc.details)
    module.exit_json(changed=False, **result)


if __name__ == "__main__":
    main()
