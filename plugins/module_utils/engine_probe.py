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
from dataclasses import dataclass
from typing import Any

# Runs under the runtime's interpreter. Reads {"serve_yaml", "model"} from stdin, writes one JSON object to the real
# stdout: {"stage": import | broken | parse | config | done, "error": str, "version": str, "kv_cache_dtype": str}.
PROBE = r"""
import contextlib, io, json, os, sys, tempfile

answer = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
result = {"stage": "import", "error": "", "version": "", "kv_cache_dtype": ""}


def told(error):
    errors = getattr(error, "errors", None)
    if callable(errors):
        return "; ".join(str(entry["msg"]).removeprefix("Value error, ") for entry in errors())
    return f"{type(error).__name__}: {error}"


try:
    import importlib.metadata

    result["version"] = importlib.metadata.version("vllm")
    import yaml
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.entrypoints.cli import serve

    request = json.load(sys.stdin)
    parser = serve.FlexibleArgumentParser(prog="vllm")
    serve.ServeSubcommand().subparser_init(parser.add_subparsers(required=True))
    path = os.path.join(tempfile.mkdtemp(), "serve.yaml")
    result["stage"] = "parse"
    wanted = yaml.safe_load(request["serve_yaml"])
    if not isinstance(wanted, dict):
        raise ValueError("serve.yaml holds no mapping of arguments to values")
    with open(path, "w") as file:
        yaml.safe_dump(wanted | {"model": request["model"]}, file, sort_keys=False)
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            arguments = parser.parse_args(["serve", "--config", path])
            serve.ServeSubcommand().validate(arguments)
    except SystemExit:
        lines = [line for line in said.getvalue().splitlines() if line.strip()]
        raise ValueError(lines[-1] if lines else "the parser refused them without a word") from None
    result["stage"] = "config"
    config = AsyncEngineArgs.from_cli_args(arguments).create_engine_config()
    result["kv_cache_dtype"] = str(config.cache_config.cache_dtype)
    result["stage"] = "done"
except ModuleNotFoundError as error:
    if not str(error.name).startswith("vllm."):
        result["stage"] = "broken"
    result["error"] = told(error)
except Exception as error:
    result["error"] = told(error)
with answer:
    json.dump(result, answer)
"""


@dataclass(frozen=True)
class EngineAnswer:
    """What the installed engine said.

    ``stage`` is how far it came: ``import``, ``broken`` (a package that it needs is missing), ``parse`` (arguments
    refused), ``config`` (model or combination refused), ``done`` (nothing to object), or ``silent`` (no answer;
    ``error`` says why).
    """

    stage: str
    error: str
    version: str
    kv_cache_dtype: str


@dataclass(frozen=True)
class ProbeUser:
    """Whom the probe runs as; model code (``trust-remote-code``) is then not run by root."""

    uid: int
    gid: int


def read_answer(text: str, complaints: str) -> EngineAnswer:
    """Parse the probe's output; of ``complaints``, its stderr, the last line is told when there is no answer."""
    try:
        answer: dict[str, Any] = json.loads(text)
        return EngineAnswer(**{name: str(answer[name]) for name in ("stage", "error", "version", "kv_cache_dtype")})
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


def ask_engine(
    *,
    python: str,
    serve_yaml: str,
    model: str,
    environment: Mapping[str, str],
    timeout_seconds: float,
    user: ProbeUser | None = None,
    cache: str = "",
) -> EngineAnswer:
    """Run the probe with the runtime's interpreter ``python`` on the files of ``model``; at most ``timeout_seconds``.

    The engine may keep what it learns about the architecture in ``cache``, which the launch then need not find again.
    """
    with tempfile.TemporaryDirectory(prefix="llmops-probe-") as home:
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
        with process:
            return converse(process, json.dumps({"serve_yaml": serve_yaml, "model": model}), timeout_seconds)
