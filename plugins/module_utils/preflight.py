# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a launch would meet, judged before anything is stopped."""

from __future__ import annotations

from ansible_collections.llmops.vllm.plugins.module_utils.engine_probe import EngineAnswer
from ansible_collections.llmops.vllm.plugins.module_utils.findings import Finding
from ansible_collections.llmops.vllm.plugins.module_utils.gate import Listener

ARGUMENTS_REMEDY = "correct vllm_service_arguments or vllm_service_arguments_extra"


def judge_engine(answer: EngineAnswer) -> list[Finding]:
    """Turn the engine's answer into findings; an engine that could not be asked is a warning, never a guess."""
    engine = f"vLLM {answer.version}" if answer.version else "the installed engine"
    if answer.stage == "done":
        return []
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
    return [Finding("engine_not_asked", "warn", what, answer.error, "run the command of the runtime by hand and look")]


def judge_port(listener: Listener) -> list[Finding]:
    """A port that belongs to somebody else cannot become the service's, and must not be taken from its holder."""
    foreign = [owner for owner in listener.owners if not owner.ours]
    if not foreign and not (listener.unseen and not listener.owners):
        return []
    holders = ", ".join(f"PID {owner.pid} ({owner.command})" for owner in foreign) or "a process that cannot be seen"
    what = f"Port {listener.port} is taken by a process that is not the instance's."
    return [Finding("port_in_use", "no_go", what, holders, "end that process, or set vllm_service_port to a free one")]
