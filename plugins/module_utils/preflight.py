# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a launch would meet, judged before anything is stopped: what the engine says, the port, the files."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from ansible_collections.llmops.vllm.plugins.module_utils.checkpoint import Checkpoint
from ansible_collections.llmops.vllm.plugins.module_utils.engine_probe import EngineAnswer
from ansible_collections.llmops.vllm.plugins.module_utils.findings import Finding
from ansible_collections.llmops.vllm.plugins.module_utils.listener import Listener
from ansible_collections.llmops.vllm.plugins.module_utils.preflight_trials import judge_trials

ARGUMENTS_REMEDY = "correct vllm_service_arguments or vllm_service_arguments_extra"
KV_REFUSED = "kv_cache_dtype not supported"  # AttentionBackend.validate_configuration of vLLM
KV_PATCH_REMEDY = "set vllm_service_patch_sets: [disable_fp8_kv_cache]"
KV_FLAG_REMEDY = "set vllm_service_arguments_extra: {kv-cache-dtype: auto}"
KV_PRICE = (
    "about half the KV tokens (on 8x RTX PRO 6000 about 190K instead of 450K); decode-context-parallel-size 8 buys "
    "them back"
)
FILES_REMEDY = "set model_store_verify: full to have the files repaired, or choose another model_store_revision"
_EVIDENCE_LENGTH = 600


def judge_engine(answer: EngineAnswer) -> list[Finding]:
    """Turn the engine's answer into findings; an engine that could not be asked is a warning, never a guess.

    What was read of its attention backends in its source counts all the same.
    """
    engine = f"vLLM {answer.version}" if answer.version else "the installed engine"
    if answer.stage == "done":
        return [*judge_attention(answer, engine), *judge_trials(answer, engine)]
    if answer.stage == "parse":
        what = f"{engine} does not take these arguments."
        return [Finding("serve_arguments", "no_go", what, answer.error, ARGUMENTS_REMEDY)]
    if answer.stage == "config":
        what = f"{engine} cannot serve this model with these arguments."
        remedy = f"{ARGUMENTS_REMEDY}, or choose another model or runtime (vllm_runtime_lock)"
        return [Finding("engine_config", "no_go", what, answer.error, remedy)]
    if answer.stage == "broken":
        what = f"{engine} lacks a package that it needs to start."
        return [Finding("runtime_incomplete", "no_go", what, answer.error, "use a complete lock (vllm_runtime_lock)")]
    what = f"{engine} could not be asked; whether the launch can work is unknown."
    remedy = "run the command of the runtime by hand and look"
    return [Finding("engine_not_asked", "warn", what, answer.error, remedy), *judge_attention(answer, engine)]


def judge_attention(answer: EngineAnswer, engine: str) -> Iterator[Finding]:
    """Judge how the engine's selector took head size, dtypes and GPU; the reasons told are its own."""
    said = answer.attention
    if "unanswered" in said:
        what = f"{engine} could not be asked which attention backend it would use."
        yield Finding("attention_not_asked", "warn", what, str(said["unanswered"]), "look at the launch's first lines")
        return
    refusing: Mapping[str, Sequence[str]] = said.get("refusing") or {}
    read = said.get("read") == "source"
    if not said or (said["validates"] and (said.get("selected") or (read and said["accepting"]))):
        return
    if said.get("undecided"):
        what = f"The source of {engine} does not tell whether an attention backend takes this model."
        evidence = "; ".join(f"{name}: {', '.join(why)}" for name, why in said["undecided"].items())[:_EVIDENCE_LENGTH]
        yield Finding("attention_undecided", "warn", what, evidence, "look at the launch's first lines")
        return
    if not any(refusing.values()):
        return
    reasons = "; ".join(f"{name}: {', '.join(why)}" for name, why in refusing.items() if why)
    evidence = f"kv_cache_dtype={answer.kv_cache_dtype}, head size {said['head_size']}. {reasons}"[:_EVIDENCE_LENGTH]
    how = "read in its source" if read else "asked"
    where = f"the attention selector of {engine}, {how} for {said['device'] or 'this host'}"
    # A backend of a platform that validates nothing may serve what it does not list, but for a quantised latent cache,
    # which dies at the first request.
    certain = bool(said["validates"] or (said["mla"] and said["quantized"]))
    if answer.kv_cache_dtype != "auto" and any(KV_REFUSED in why for why in refusing.values()):
        what = f"No attention backend takes this model with a KV cache of {answer.kv_cache_dtype}."
        by_checkpoint = str(answer.config.get("kv_cache_dtype_asked", "auto")) in ("", "auto")
        remedy = KV_PATCH_REMEDY if by_checkpoint else KV_FLAG_REMEDY
        if not said["quantized"]:
            remedy = f"{KV_FLAG_REMEDY}; where the checkpoint asks for FP8, {KV_PATCH_REMEDY} as well"
        origin = "the checkpoint's configuration" if by_checkpoint else "--kv-cache-dtype"
        evidence = f"{evidence}; the dtype comes from {origin}"
        severity = "no_go" if certain else "warn"
        yield Finding("kv_cache_dtype", severity, what, evidence, remedy, where, KV_PRICE if said["quantized"] else "")
        return
    what = "No attention backend takes this model with these arguments."
    remedy = f"{ARGUMENTS_REMEDY} (attention-backend, kv-cache-dtype, block-size, dtype)"
    yield Finding("attention_backend", "no_go" if certain else "warn", what, evidence, remedy, where)


def judge_port(listener: Listener) -> list[Finding]:
    """A port that belongs to somebody else cannot become the service's, and must not be taken from its holder."""
    foreign = [owner for owner in listener.owners if not owner.ours]
    if not foreign and not (listener.unseen and not listener.owners):
        return []
    holders = ", ".join(f"PID {owner.pid} ({owner.command})" for owner in foreign) or "a process that cannot be seen"
    what = f"Port {listener.port} is taken by a process that is not the instance's."
    return [Finding("port_in_use", "no_go", what, holders, "end that process, or set vllm_service_port to a free one")]


def judge_checkpoint(checkpoint: Checkpoint, directory: str) -> list[Finding]:
    """Turn what is wrong with the weights' files into findings."""
    return [
        Finding(
            problem.kind,
            "no_go" if problem.fatal else "warn",
            problem.what,
            problem.evidence,
            FILES_REMEDY,
            f"headers and index in {directory}",
        )
        for problem in checkpoint.problems
    ]


def overrule(findings: Sequence[Finding], ids: Collection[str]) -> list[Finding]:
    """Return the findings, those of ``ids`` no longer a ``no_go`` but a warning that says so."""
    return [
        replace(finding, severity="warn", what=f"{finding.what} (overruled)")
        if finding.id in ids and finding.severity == "no_go"
        else finding
        for finding in findings
    ]
