# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What it means when an engine fails a step of its start that it was let try; see ``engine_trials``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ansible_collections.llmops.vllm.plugins.module_utils.engine_probe import EngineAnswer
from ansible_collections.llmops.vllm.plugins.module_utils.findings import Finding

_EVIDENCE_LENGTH = 600


@dataclass(frozen=True)
class Trial:
    """What an objection of a trial means: ``id`` of the finding, what, remedy, and who objected."""

    id: str
    what: str
    remedy: str
    where: str


TRIALS_OF = {
    "variables": Trial(
        "environment",
        "cannot use a variable of the environment.",
        "correct it in vllm_service_environment_extra",
        "its own reader of variables",
    ),
    "files": Trial(
        "file_forbidden",
        "may not read files of the model as the service's user.",
        "chgrp -R the snapshot to the service's group, and chmod -R g+rX it",
        "access(2) as the service's user",
    ),
    "processors": Trial(
        "cpu_binding",
        "cannot divide the processors of this host among its ranks.",
        "set VLLM_CPU_OMP_THREADS_BIND in vllm_service_environment_extra (one entry for each rank, or nobind)",
        "its own division of processors",
    ),
    "model": Trial(
        "model_refused",
        "cannot build this model.",
        "review config.json, vllm_service_patches and hf-overrides, or choose another model or runtime "
        "(vllm_runtime_lock)",
        "its own model class, built without memory",
    ),
    "attention": Trial(
        "attention_refused",
        "cannot prepare its attention on this processor.",
        "set kv-cache-dtype in vllm_service_arguments_extra to a dtype without quantisation, such as bfloat16",
        "its own attention, prepared for each layer",
    ),
    "chat_template": Trial(
        "chat_template",
        "cannot compile the chat template: it would start and refuse every chat.",
        "correct chat-template in vllm_service_arguments_extra, or the template in the model's files",
        "its own template engine",
    ),
}


def judge_trials(answer: EngineAnswer, engine: str) -> Iterator[Finding]:
    """Turn the objections of the trials into findings.

    A model that cannot be built is certain on the CPU, where a worker does the very same; on a GPU it is a warning.
    """
    for name, said in answer.trials.items():
        trial = TRIALS_OF.get(name)
        if trial is None or not said:
            continue
        certain = name != "model" or answer.config.get("device") == "cpu"
        severity = "no_go" if certain else "warn"
        where = f"{engine}, {trial.where}"
        yield Finding(trial.id, severity, f"{engine} {trial.what}", said[:_EVIDENCE_LENGTH], trial.remedy, where)
