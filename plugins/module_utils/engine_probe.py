# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ask an installed vLLM, in its own Python and without a GPU, whether it takes a launch's arguments and model.

The engine's rules change with its versions, so none of them is repeated here: the probe lets the engine's own parser
read ``serve.yaml`` and lets it build its configuration from the model's files, and passes on what it says.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.llmops.vllm.plugins.module_utils.engine_script import PROBE
from ansible_collections.llmops.vllm.plugins.module_utils.left_aside import process_exists
from ansible_collections.llmops.vllm.plugins.module_utils.view import Permissions, plan_view, snapshot_sources
from ansible_collections.llmops.vllm.plugins.module_utils.view_composition import apply_view


@dataclass(frozen=True)
class EngineAnswer:
    """What the installed engine said.

    ``stage`` is how far it came: ``import``, ``broken`` (a package that it needs is missing), ``parse`` (arguments
    refused), ``config`` (model or combination refused), ``done`` (nothing to object), or ``silent`` (no answer;
    ``error`` says why). ``config`` holds what the engine has resolved, by its own names, with ``device`` and
    ``kv_cache_dtype_asked``; ``attention`` how its selector of attention backends took the question, or why it could
    not be put (``unanswered``). ``trials`` are steps of its start that it was let try, each with its objection, empty
    for none, None where it could not be tried. All are empty when it did not come that far.
    """

    stage: str
    error: str
    version: str
    kv_cache_dtype: str
    config: Mapping[str, Any] = field(default_factory=dict)
    attention: Mapping[str, Any] = field(default_factory=dict)
    trials: Mapping[str, str | None] = field(default_factory=dict)


@dataclass(frozen=True)
class ProbeUser:
    """Whom the probe runs as; model code (``trust-remote-code``) is then not run by root."""

    uid: int
    gid: int


def read_answer(text: str, complaints: str) -> EngineAnswer:
    """Parse the probe's output; of ``complaints``, its stderr, the last line is told when there is no answer."""
    try:
        answer: dict[str, Any] = json.loads(text)
        stage, error, version, dtype = (str(answer[name]) for name in ("stage", "error", "version", "kv_cache_dtype"))
        config, attention, trials = (dict(answer.get(name) or {}) for name in ("config", "attention", "trials"))
        return EngineAnswer(stage, error, version, dtype, config, attention, trials)
    except (ValueError, KeyError, TypeError):
        lines = complaints.strip().splitlines() or ["it ended without an answer"]
        return EngineAnswer("silent", lines[-1][:500], "", "")


def probe_environment(environment: Mapping[str, str], home: str, cache: str) -> dict[str, str]:
    """Return the whole environment of the probe: the launch's own, with every place to write to moved to ``home``.

    A setting is such a place when its name speaks of a cache and its value is a path: ``VLLM_CPU_KVCACHE_SPACE`` is a
    size. Nothing is inherited from the caller.
    """
    settings = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8", **environment}
    settings.update({name: home for name, value in settings.items() if "CACHE" in name and "/" in value})
    settings.update(HOME=home, TMPDIR=home, HF_HOME=home, PYTHONDONTWRITEBYTECODE="1")
    settings.update(VLLM_CACHE_ROOT=cache or home, VLLM_RPC_BASE_PATH=home, VLLM_LOGGING_LEVEL="WARNING")
    return settings


def converse(process: subprocess.Popen[str], question: str, timeout_seconds: float) -> EngineAnswer:
    """Put the question to the probe and wait for its answer; end it, with all that it started, when that takes long."""
    try:
        output, complaints = process.communicate(question, timeout=timeout_seconds)
    except subprocess.TimeoutExpired:
        # The engine looks at a model's class in a process of its own. The probe leads the group of all of them, and as
        # it was not waited for, the number still is that group's.
        os.killpg(process.pid, signal.SIGKILL)
        return EngineAnswer("silent", f"it did not answer within {timeout_seconds:g} s", "", "")
    return read_answer(output, complaints)


def patched_view(snapshot: str, view: str, contents: Mapping[str, bytes]) -> str:
    """Compose a view of ``snapshot`` with the patched files at ``view`` and return it. Raises LlmopsError."""
    plan = plan_view(snapshot, view, snapshot_sources(snapshot), contents, Permissions())
    apply_view(plan, os.getpid(), process_exists)
    return view


def ask_engine(
    *,
    python: str,
    serve_yaml: str,
    model: str,
    environment: Mapping[str, str],
    timeout_seconds: float,
    user: ProbeUser | None = None,
    cache: str = "",
    contents: Mapping[str, bytes] | None = None,
    compute_capability: str = "",
) -> EngineAnswer:
    """Run the probe with the runtime's interpreter ``python`` on the files of ``model``; at most ``timeout_seconds``.

    The engine may keep what it learns about the architecture in ``cache``, which the launch then need not find again.
    ``contents`` are the files of the model that patches change; the engine is shown a view that has them.
    ``compute_capability``, such as 12.0, is of a GPU that a machine without one is asked about. Raises LlmopsError.
    """
    with tempfile.TemporaryDirectory(prefix="llmops-probe-") as home:
        if os.path.isdir(model):
            # As in a release: copies of the small files, whoever may read the snapshot's own.
            model = patched_view(os.path.realpath(model), os.path.join(home, "model"), contents or {})
        if user is not None:
            os.chown(home, user.uid, user.gid)
        identity: dict[str, Any] = {"user": user.uid, "group": user.gid, "extra_groups": []} if user else {}
        try:
            process = subprocess.Popen(  # pylint: disable=ansible-bad-function # this library knows no AnsibleModule
                [python, "-c", PROBE],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                encoding="utf-8",
                errors="replace",
                cwd=home,
                env=probe_environment(environment, home, cache),
                start_new_session=True,
                **identity,
            )
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            return EngineAnswer("silent", f"{python} cannot be run: {reason}", "", "")
        question = {"serve_yaml": serve_yaml, "model": model, "compute_capability": compute_capability}
        with process:
            return converse(process, json.dumps(question), timeout_seconds)
