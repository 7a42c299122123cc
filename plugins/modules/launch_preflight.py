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
    files as the patches leave them, and lets its selector of attention backends take or refuse the model. What it
    objects to is passed on; its rules are not repeated here.
  - Reads the installed source, without running it, of an engine that cannot be asked, and for the kernels that it has
    for the model on these GPUs. What that does not tell either is left open.
  - Lets the engine try steps of its start that need neither GPU nor weights. It builds the model without memory, reads
    the environment's variables, compiles the chat template, and looks whether O(user) may read the model's files.
  - Reads the headers of all weights, without loading any, and holds them against index and configuration.
  - Reckons what fits into memory beside the weights, and how long the largest context can be.
  - Looks at the host as well, at GPUs and driver, memory, limits, compilers, what earlier launches left, and whether
    the port is free, or held by the instance that is to be replaced.
  - Holds all of it against a list of hazards that are known from public reports and that nobody can be asked about.
  - Fails when the verdict is V(no_go). Touches no service, and nothing of the release.
extends_documentation_fragment:
  - llmops.vllm.attributes
  - llmops.vllm.attributes.actiongroup_vllm
attributes:
  check_mode:
    support: full
    details: On a host that has no runtime, snapshot or user yet the engine cannot be asked, which is a warning. Kept
      answers are used, and new ones are kept where O(answers) is there already. They are notes of what was asked, by
      which nothing else changes.
  diff_mode:
    support: N/A
    details: This module changes nothing but the answers that it keeps for itself.
options:
  runtime:
    description: Virtual environment that holds the engine.
    type: path
    required: true
  snapshot:
    description: Directory with the model's files, pristine or patched.
    type: path
    required: true
  patches:
    description: Patches of the model's configuration that the release is to have, as for M(llmops.vllm.config_patch).
    type: list
    elements: dict
    default: []
  serve_yaml:
    description: The text of the configuration file that C(vllm serve --config) is to read.
    type: str
    required: true
  arguments:
    description: What O(serve_yaml) holds, as a mapping; by it the host is judged, which need not be able to read YAML.
    type: dict
    default: {}
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
  answers:
    description:
      - Directory in which answers without an objection are kept, so that the same question to the same runtime about
        the same model is answered at once, and notes of weights in which nothing was wrong. It is made, and must
        belong to the user that the module runs as alone.
      - Nothing is kept when this is not set.
    type: path
  gpu_memory_bytes:
    description:
      - Memory of each GPU, in bytes, for what would fit on other GPUs than the host's. By default that of the smallest
        of the host's own that the engine would use.
    type: int
  compute_capability:
    description:
      - Compute capability, such as V(12.0), of GPUs that this host does not have; the engine's selector for CUDA is
        asked about them. On a host with GPUs the engine sees its own.
    type: str
  overrule:
    description: RV(findings[].id) of findings that are to stop nothing; they are reported as warnings.
    type: list
    elements: str
    default: []
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
report:
  description: All findings and what fits, as text for people.
  returned: always
  type: str
  sample: "What fits: each worker has weights 71.80 GiB of 94.97 GiB, ...: 181760 tokens, largest max-model-len 181760"
memory:
  description:
    - What fits on one GPU, or for an engine on the CPU into one worker. Empty when it cannot be reckoned, for want of
      RV(memory.memory_bytes) or for a model of an unknown kind.
    - RV(memory.kv_tokens) repeats the engine's own arithmetic; what it gets to share out is an estimate unless the size
      of the cache is given.
  returned: always
  type: dict
  contains:
    memory_bytes:
      description: Memory of the GPU, or of the host, in bytes; 0 when it is not known.
      returned: when it can be reckoned
      type: int
    weights_bytes:
      description: Bytes of weights on the GPU that holds most.
      returned: when it can be reckoned
      type: int
    allowance_bytes:
      description: Bytes left for activations, sampler, CUDA graphs and buffers, an estimate.
      returned: when it can be reckoned
      type: int
    kv_cache_bytes:
      description: Bytes of KV cache.
      returned: when it can be reckoned
      type: int
    kv_token_bytes:
      description: Bytes of KV cache that one token takes on one GPU.
      returned: when it can be reckoned
      type: int
    kv_tokens:
      description: Tokens that the KV cache holds, as the engine logs it at its start.
      returned: when it can be reckoned
      type: int
    largest_model_len:
      description: The largest C(max-model-len) that fits, in tokens.
      returned: when it can be reckoned
      type: int
    largest_num_seqs:
      description: The largest C(max-num-seqs) whose sampler leaves the KV cache large enough for C(max-model-len).
      returned: when it can be reckoned
      type: int
    estimated:
      description: Whether the size of the KV cache is an estimate.
      returned: when it can be reckoned
      type: bool
    note:
      description: What was assumed.
      returned: when it can be reckoned
      type: str
attention:
  description: How the engine's selector of attention backends took the model; empty when it was not reached.
  returned: always
  type: dict
  contains:
    selected:
      description: The backend that would serve; empty when none would, or when it is not known which of several.
      returned: when the engine was asked
      type: str
    accepting:
      description: All backends that would, the preferred first; empty for an engine that has but one.
      returned: when the engine was asked
      type: list
      elements: str
    refusing:
      description: The backends that would not, with the engine's reasons.
      returned: when the engine was asked
      type: dict
    undecided:
      description: The backends of which the engine's source does not tell whether they would, with what may refuse.
      returned: when the engine's source was read
      type: dict
    read:
      description: V(source) when the engine could not be asked, and its installed source was read without running it.
      returned: when the engine's source was read
      type: str
      sample: source
    capability:
      description: Compute capability of the GPU that the question was about; empty for an engine on the CPU.
      returned: when the engine was asked
      type: str
kernels:
  description:
    - What the source of the installed engine says of the kernels for this model on these GPUs, as far as it tells; read
      without running it. Empty for an engine on the CPU.
    - Where a selector may end with one of several, all are named.
  returned: always
  type: dict
  contains:
    quantization:
      description: The quantisation C(method), whether it is C(known), and the C(min_capability) it needs, 75 for 7.5.
      returned: when the source tells
      type: dict
      sample: {"method": "modelopt_fp4", "known": true, "min_capability": 75}
    experts:
      description: C(possible) backends for the experts in their quantisation, and C(reasons) of those that refuse.
      returned: when the model has experts, and this version selects among kernels for them
      type: dict
      sample: {"possible": ["FLASHINFER_CUTLASS"], "reasons": []}
    layers:
      description: What speaks against spreading a kind of layer over the ranks, by the kind with its sizes.
      returned: when the engine has not made the layers itself, and something does
      type: dict
      sample: {"vocabulary of 163840": "163840 is not divisible by 6"}
    vision:
      description: The attention backend of the vision tower.
      returned: when the model has one
      type: str
      sample: FLASH_ATTN
    prefill:
      description: The backend for the prefill of latent attention.
      returned: when the model has it
      type: str
      sample: FLASH_ATTN
cached:
  description: Whether the engine's answer is one that was kept.
  returned: always
  type: bool
vllm_version:
  description: Version of the engine that was asked, or whose source was read; empty when neither could be.
  returned: always
  type: str
  sample: 0.32.0
kv_cache_dtype:
  description: The KV cache's dtype as the engine resolves it from arguments and model; empty when it was not reached.
  returned: always
  type: str
  sample: fp8_e4m3
"""

import json
import os
import pwd
import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, fields
from functools import partial
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.llmops.vllm.plugins.module_utils.checkpoint import Checkpoint
from ansible_collections.llmops.vllm.plugins.module_utils.checkpoint_note import checkpoint_of
from ansible_collections.llmops.vllm.plugins.module_utils.engine_answers import (
    keep,
    keep_document,
    question_key,
    recall,
    recall_document,
)
from ansible_collections.llmops.vllm.plugins.module_utils.engine_probe import EngineAnswer, ProbeUser, ask_engine
from ansible_collections.llmops.vllm.plugins.module_utils.errors import InvalidInputError, LlmopsError, as_sentence
from ansible_collections.llmops.vllm.plugins.module_utils.findings import Finding, as_result, report
from ansible_collections.llmops.vllm.plugins.module_utils.gpu_query import this_host
from ansible_collections.llmops.vllm.plugins.module_utils.launch import Launch
from ansible_collections.llmops.vllm.plugins.module_utils.listener import look_at_port
from ansible_collections.llmops.vllm.plugins.module_utils.memory_model import NotModelled
from ansible_collections.llmops.vllm.plugins.module_utils.patch_set import Patch, apply_patches
from ansible_collections.llmops.vllm.plugins.module_utils.preflight import (
    judge_checkpoint,
    judge_engine,
    judge_port,
    overrule,
)
from ansible_collections.llmops.vllm.plugins.module_utils.preflight_host import look_at_host, see
from ansible_collections.llmops.vllm.plugins.module_utils.preflight_memory import Fit, judge_memory, reckon, summary
from ansible_collections.llmops.vllm.plugins.module_utils.preflight_source import (
    Reading,
    consult_source,
    judge_reading,
    with_reading,
)
from ansible_collections.llmops.vllm.plugins.module_utils.procfs import ProcFs
from ansible_collections.llmops.vllm.plugins.module_utils.runtime_facts import read_runtime
from ansible_collections.llmops.vllm.plugins.module_utils.systemd import run_command, show_unit
from ansible_collections.llmops.vllm.plugins.module_utils.view import read_source, snapshot_sources

HOST_TIMEOUT_SECONDS = 20.0  # for each program that is asked about the host


def check_parameters(parameters: dict[str, Any]) -> None:
    """Raise ``InvalidInputError`` for values that cannot be right."""
    if not 0 < parameters["port"] < 65536:
        raise InvalidInputError(f"port {parameters['port']} is not between 1 and 65535.")
    if parameters["timeout_seconds"] <= 0:
        raise InvalidInputError("timeout_seconds must be more than 0.")
    capability = parameters["compute_capability"]
    if capability and not re.fullmatch(r"[0-9]{1,3}\.[0-9]", capability):
        raise InvalidInputError(f"compute_capability '{capability}' is not two numbers with a dot, such as 12.0.")


def probe_user(name: str | None) -> ProbeUser | None:
    """Return whom to ask the engine as, or None for oneself. Raises ``KeyError`` for a user that is not there."""
    if not name or os.geteuid() != 0:
        return None
    entry = pwd.getpwnam(name)
    return ProbeUser(entry.pw_uid, entry.pw_gid)


def what_is_missing(parameters: Mapping[str, Any]) -> str:
    """Return what has to be there before the engine can be asked and is not, as clauses; empty when all is."""
    python = os.path.join(parameters["runtime"], "bin", "python")
    missing = [
        f"the {thing} is not there: {path}"
        for path, thing in ((python, "runtime"), (parameters["snapshot"], "snapshot"))
        if not os.path.exists(path)
    ]
    try:
        probe_user(parameters["user"])
    except KeyError:
        missing.append(f"there is no user '{parameters['user']}'; the role host_prereq makes it")
    return "; ".join(missing)


def keeps(module: AnsibleModule) -> bool:
    """Whether answers are kept: always where their directory is, which check mode does not make."""
    answers = module.params["answers"]
    return bool(answers) and (not module.check_mode or os.path.isdir(answers))


def ask(module: AnsibleModule, contents: Mapping[str, bytes]) -> tuple[EngineAnswer, bool]:
    """Return the engine's answer, and whether it was kept from an earlier time. Raises LlmopsError and OSError."""
    parameters = module.params
    python = os.path.join(parameters["runtime"], "bin", "python")
    environment = {name: str(value) for name, value in parameters["environment"].items()}
    capability = parameters["compute_capability"] or ""
    question = {"serve_yaml": parameters["serve_yaml"], "capability": capability, "user": parameters["user"]}
    answers = parameters["answers"]
    key = question_key(python, parameters["snapshot"], contents, question, environment) if answers else ""
    kept = recall(answers, key) if answers else None
    if kept is not None:
        return kept, True
    cache = parameters["cache"] if parameters["cache"] and os.path.isdir(parameters["cache"]) else ""
    answer = ask_engine(
        python=python,
        serve_yaml=parameters["serve_yaml"],
        model=parameters["snapshot"],
        environment=environment,
        timeout_seconds=parameters["timeout_seconds"],
        user=probe_user(parameters["user"]),
        cache="" if module.check_mode else cache,
        contents=contents,
        compute_capability=capability,
    )
    if keeps(module):
        keep(answers, key, answer)
    return answer, False


def consult(
    module: AnsibleModule,
    contents: Mapping[str, bytes],
    answer: EngineAnswer,
    launch: Launch,
    subject: tuple[dict[str, Any], dict[str, Any] | None, str],
) -> Reading:
    """Return what the engine's source says, as it was read before where nothing has changed since. Raises OSError."""
    config, quantized, capability = subject
    answers, python = module.params["answers"], os.path.join(launch.runtime.path, "bin", "python")
    if not answers or not capability:
        return consult_source(answer, launch, config, quantized, capability)
    question = {"read": asdict(answer), "arguments": launch.arguments, "capability": capability}
    key = "source-" + question_key(python, module.params["snapshot"], contents, question, launch.environment)
    kept = recall_document(answers, key)
    if kept is not None and set(kept) == {one.name for one in fields(Reading)}:
        return Reading(**kept)
    told = consult_source(answer, launch, config, quantized, capability)
    if keeps(module):
        keep_document(answers, key, asdict(told))
    return told


def patched_files(parameters: Mapping[str, Any]) -> tuple[dict[str, bytes], dict[str, Any], dict[str, Any] | None]:
    """Return the files that the patches change, and ``config.json`` and ``hf_quant_config.json`` as they then are.

    The last is None where there is none. Raises LlmopsError.
    """
    if not os.path.isdir(parameters["snapshot"]):
        return {}, {}, None
    snapshot = os.path.realpath(parameters["snapshot"])
    try:
        patches = [Patch.from_parameters(patch) for patch in parameters["patches"]]
    except TypeError as error:
        raise InvalidInputError(f"patches: {error}; see the options of llmops.vllm.config_patch.") from error
    with as_sentence(f"read the snapshot {snapshot}"):
        sources = snapshot_sources(snapshot)
        contents = apply_patches(patches, lambda path: read_source(sources, path)).contents
        texts = [contents.get(name) or read_source(sources, name) for name in ("config.json", "hf_quant_config.json")]
    config, quantized = (as_mapping(text) for text in texts)
    return contents, config or {}, quantized


def as_mapping(text: bytes | None) -> dict[str, Any] | None:
    """Return a JSON object, None for anything else: the engine says what is wrong with it."""
    try:
        value = json.loads(text or b"null")
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def launch_of(parameters: Mapping[str, Any], weight_bytes: int | None) -> Launch:
    """Return the launch as far as the host cares."""
    return Launch(
        arguments=parameters["arguments"],
        environment={name: str(value) for name, value in parameters["environment"].items()},
        runtime=read_runtime(parameters["runtime"]),
        unit=parameters["unit"],
        user=parameters["user"] or "",
        model=parameters["snapshot"],
        cache=parameters["cache"] or "",
        weight_bytes=weight_bytes,
    )


def fits(
    checkpoint: Checkpoint, config: Mapping[str, Any], answer: EngineAnswer, memory_bytes: int
) -> tuple[Fit | None, list[Finding]]:
    """Return what fits, where that can be reckoned, and what speaks against it."""
    if answer.stage != "done" or not checkpoint.tensors or checkpoint.problems:
        return None, []
    try:
        fit = reckon(checkpoint, config, answer, memory_bytes)
        return fit, list(judge_memory(fit, config, answer)) if fit else []
    except NotModelled as reason:
        what = f"What fits into memory was not reckoned: {reason} is not known here."
        return None, [Finding("memory_not_reckoned", "info", what, "config.json", "see what the engine logs")]


@dataclass(frozen=True)
class Examined:
    """What was found, and what it rests on."""

    findings: list[Finding]
    answer: EngineAnswer
    reading: Reading = field(default_factory=Reading)
    fit: Fit | None = None
    cached: bool = False


def examine(module: AnsibleModule) -> Examined:
    """Ask the engine, read the weights' headers, look at the host. Raises LlmopsError."""
    parameters = module.params
    host = this_host(partial(run_command, timeout_seconds=HOST_TIMEOUT_SECONDS))
    capability = parameters["compute_capability"] or ""
    missing = what_is_missing(parameters)
    if missing:
        if not module.check_mode:
            raise InvalidInputError(f"The engine cannot be asked on this host: {missing}.")
        answer, launch = EngineAnswer("silent", missing, "", ""), launch_of(parameters, None)
        look = look_at_host(see(host, launch, capability), launch, {}, "")
        return Examined([*judge_engine(answer), *look.findings], answer)
    contents, config, quantized = patched_files(parameters)
    reading = as_sentence(f"read the snapshot {parameters['snapshot']}")
    with reading, ThreadPoolExecutor(max_workers=1) as pool:
        asked = pool.submit(ask, module, contents)  # the engine works in a process of its own meanwhile
        notes = parameters["answers"] or ""
        checkpoint = checkpoint_of(parameters["snapshot"], config, notes, keeps(module))
        answer, cached = asked.result()
    launch = launch_of(parameters, checkpoint.total_bytes)
    seen = see(host, launch, capability)
    told = consult(module, contents, answer, launch, (config, quantized, seen.capability))
    answer = with_reading(answer, told, launch)
    look = look_at_host(seen, launch, config, answer.kv_cache_dtype)
    on_gpu = answer.config.get("device") == "cuda"
    memory = (parameters["gpu_memory_bytes"] or look.gpu_bytes) if on_gpu else look.memory_bytes
    fit, unfit = fits(checkpoint, config, answer, memory)
    judged = [*judge_engine(answer), *judge_reading(told, answer, seen.capability, launch.runtime.site_packages)]
    judged += judge_checkpoint(checkpoint, parameters["snapshot"])
    return Examined([*judged, *unfit, *look.findings], answer, told, fit, cached)


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "runtime": {"type": "path", "required": True},
            "snapshot": {"type": "path", "required": True},
            "patches": {"type": "list", "elements": "dict", "default": []},
            "serve_yaml": {"type": "str", "required": True},
            "arguments": {"type": "dict", "default": {}},
            "environment": {"type": "dict", "default": {}},
            "unit": {"type": "str", "required": True},
            "port": {"type": "int", "required": True},
            "user": {"type": "str"},
            "cache": {"type": "path"},
            "answers": {"type": "path"},
            "gpu_memory_bytes": {"type": "int"},
            "compute_capability": {"type": "str"},
            "overrule": {"type": "list", "elements": "str", "default": []},
            "timeout_seconds": {"type": "float", "default": 300},
        },
        supports_check_mode=True,
    )
    try:
        check_parameters(module.params)
        unit = show_unit(run_command, module.params["unit"])
        listener = look_at_port(ProcFs(), module.params["port"], unit.control_group, unit.main_pid)
        found = examine(module)
    except LlmopsError as exc:
        module.fail_json(msg=exc.message, **exc.details)
    fit = found.fit
    findings = overrule([*found.findings, *judge_port(listener)], module.params["overrule"])
    text = "\n".join(part for part in (report(findings), f"What fits: {summary(fit)}." if fit else "") if part)
    result = {
        **as_result(findings),
        "report": text,
        "memory": fit.as_dict() if fit else {},
        "attention": dict(found.answer.attention),
        "kernels": dict(found.reading.kernels),
        "cached": found.cached,
        "vllm_version": found.answer.version,
        "kv_cache_dtype": found.answer.kv_cache_dtype,
    }
    if result["verdict"] == "no_go":
        module.fail_json(msg=f"This launch cannot work; nothing was touched.\n{report(findings)}", **result)
    if result["verdict"] == "warn" and not module.check_mode:
        module.warn(report(findings))
    module.exit_json(changed=False, **result)


if __name__ == "__main__":
    main()
