"""One launch, in a sandbox of its own: what the preflight says of it, and what becomes of it.

usage: trial.py CASE REQUEST    by launches.py, as the first process of new mount, PID and UTS namespaces

Leaves ``outcome.json`` and ``launch.log`` in the folder that REQUEST names. There ``/srv/llm`` is as on a host: store,
view, runtime; and the engine runs as a user without privileges, as the unit has it.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from ansible_collections.llmops.vllm.plugins.module_utils.engine_probe import patched_view
from ansible_collections.llmops.vllm.plugins.module_utils.patch_set import Patch, apply_patches
from ansible_collections.llmops.vllm.plugins.module_utils.view import read_source, snapshot_sources
from ansible_collections.llmops.vllm.tests.launches.cases import (
    ANSWERS_WRONGLY,
    CASES,
    DIES,
    DIES_AT_REQUEST,
    KIMI,
    PATCH,
    SERVES,
    Case,
)

ROOT = Path("/srv/llm")
USER = "nobody"
SNAPSHOT, VIEW, STATE = ROOT / "store/tiny", ROOT / "instances/tiny/current/model", ROOT / "var"
CACHE = STATE / "cache/vllm"
START_SECONDS, ANSWER_SECONDS, END_SECONDS = 1200.0, 120.0, 120.0  # on a machine that has other things to do
TOKENS = re.compile(r"KV cache size: ([\d,]+) tokens")
PREFLIGHT = """
import json, sys
from ansible.module_utils.testing import patch_module_args
from ansible_collections.llmops.vllm.plugins.modules import launch_preflight
with patch_module_args(json.load(open(sys.argv[1]))):
    launch_preflight.main()
"""
SYSTEMCTL = """#!/bin/sh
# What systemd would say of the unit's limits; of a unit that is not there yet it says nothing else.
case "$*" in
  *LimitNOFILE*) printf '%s\\n' LoadState=loaded LimitMEMLOCK=infinity LimitNOFILE={nofile} ;;
  *) exit 1 ;;
esac
"""


class Trial:
    """One launch. ``runtime`` is where the engine lies in the sandbox, ``folder`` where the outcome goes."""

    def __init__(self, case: Case, runtime: Path, folder: Path) -> None:
        self.case, self.runtime, self.folder = case, runtime, folder
        self.patches = [PATCH] if case.patched and case.model == KIMI else []
        self.listener: socket.socket | None = None
        self.port = self._port()

    def _port(self) -> int:
        listener = socket.socket()
        listener.bind(("127.0.0.1", 0))
        if self.case.host.port_taken:
            listener.listen()
            self.listener = listener
            return int(listener.getsockname()[1])
        port = int(listener.getsockname()[1])
        listener.close()
        return port

    def environment(self) -> dict[str, str]:
        """Return the environment of the release. What the preflight learns of the model is at hand for the launch."""
        return {**self.case.whole_environment(), "VLLM_CACHE_ROOT": str(CACHE)}

    def compose(self) -> None:
        """Make the view that the engine is given."""
        sources = snapshot_sources(str(SNAPSHOT))
        patches = [Patch.from_parameters(patch) for patch in self.patches]
        try:
            contents = apply_patches(patches, lambda path: read_source(sources, path)).contents
        except Exception:  # a model that is too harmed to be patched is served as it is
            contents = {}
        VIEW.parent.mkdir(parents=True)
        patched_view(str(SNAPSHOT), str(VIEW), contents)

    def preflight(self) -> dict[str, Any]:
        """Return what the module says of this launch, before it."""
        arguments = self.arguments(str(SNAPSHOT))
        parameters = {
            "runtime": str(self.runtime), "snapshot": str(SNAPSHOT), "serve_yaml": json.dumps(arguments),
            "arguments": arguments, "environment": self.environment(), "unit": "vllm@tiny.service",
            "port": self.port, "user": USER, "patches": self.patches,
            "cache": str(CACHE),
        }  # fmt: skip
        del arguments["model"]
        file = self.folder / "parameters.json"
        file.write_text(json.dumps(parameters))
        tools = self.folder / "bin"
        tools.mkdir(exist_ok=True)
        (tools / "systemctl").write_text(SYSTEMCTL.format(nofile=self.case.host.nofile or 1048576))
        (tools / "systemctl").chmod(0o755)
        path = f"{tools}:{os.environ['PATH']}"
        done = subprocess.run(
            [sys.executable, "-c", PREFLIGHT, str(file)],
            env={**os.environ, "PATH": path}, capture_output=True, text=True, check=False,
        )  # fmt: skip
        for line in done.stdout.splitlines():
            if line.startswith("{"):
                return dict(json.loads(line))
        raise RuntimeError(f"The preflight said nothing: {done.stderr}")

    def arguments(self, model: str) -> dict[str, Any]:
        """Return what serve.yaml holds."""
        return self.case.all_arguments(model=model, port=self.port, host="127.0.0.1", **{"served-model-name": "tiny"})

    def launch(self) -> dict[str, Any]:
        """Start the engine as the unit does, ask it, end it; return what it came to."""
        config = ROOT / "instances/tiny/current/serve.yaml"
        config.write_text(json.dumps(self.arguments(str(VIEW))))
        environment = {
            "PATH": f"{self.runtime}/bin:/usr/sbin:/usr/bin", "HOME": str(STATE), "TMPDIR": str(STATE),
            "LANG": "C.UTF-8", **self.environment(),
        }  # fmt: skip
        nofile = self.case.host.nofile
        limited = ["prlimit", f"--nofile={nofile}:{nofile}"] if nofile else []
        command = [
            *limited, "setpriv", f"--reuid={USER}", "--regid=nogroup", "--clear-groups", "--inh-caps=-all",
            "--bounding-set=-all", "--no-new-privs", str(self.runtime / "bin/vllm"), "serve", "--config", str(config),
        ]  # fmt: skip
        log = self.folder / "launch.log"
        began = time.monotonic()
        with log.open("wb") as output:
            engine = subprocess.Popen(
                command, cwd=STATE, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )
        outcome: dict[str, Any] = {"ends": DIES, "answer": []}
        if self.until_healthy(engine):
            outcome["started_seconds"] = round(time.monotonic() - began, 1)
            outcome |= self.ask()
        if outcome["ends"] != SERVES:
            with contextlib.suppress(subprocess.TimeoutExpired):
                engine.wait(END_SECONDS if outcome["ends"] == DIES else END_SECONDS / 2)
            time.sleep(0.5)  # what its processes have left to say
        outcome["status"] = engine.poll()
        outcome["seconds"] = round(time.monotonic() - began, 1)
        text = log.read_text(errors="replace")
        logged = TOKENS.search(text)
        return {**outcome, "kv_tokens": int(logged[1].replace(",", "")) if logged else None}

    def until_healthy(self, engine: subprocess.Popen[bytes]) -> bool:
        """Wait until the engine says that it is healthy; False when it ends before."""
        until = time.monotonic() + START_SECONDS
        while engine.poll() is None:
            if time.monotonic() > until:
                raise RuntimeError(f"The engine was neither up nor dead after {START_SECONDS:.0f} s.")
            if self.request("/health") == (200, {}):
                return True
            time.sleep(0.25)
        return False

    def ask(self) -> dict[str, Any]:
        """Ask for a completion and a chat; return how the launch ends and the completion's tokens."""
        wanted = {"model": "tiny", "temperature": 0, "max_tokens": 8}
        status, said = self.request("/v1/completions", {**wanted, "prompt": "The north wind", "logprobs": 1})
        if status != 200:
            return {"ends": DIES_AT_REQUEST, "refused": str(said)[:300]}
        told = said["choices"][0]["logprobs"]
        numbers = [round(value, 3) for value in told["token_logprobs"]]
        chat = {**wanted, "messages": [{"role": "user", "content": "Hello"}]}
        status, said = self.request("/v1/chat/completions", chat)
        if status != 200:
            return {"ends": DIES_AT_REQUEST, "refused": str(said)[:300], "answer": numbers}
        return {"ends": SERVES if all(map(math.isfinite, numbers)) else ANSWERS_WRONGLY, "answer": numbers}

    def request(self, path: str, body: Any = None) -> tuple[int, dict[str, Any]]:
        """Return status and JSON of an answer; status 0 when nobody answers."""
        data = json.dumps(body).encode() if body is not None else None
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}", data, {"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=ANSWER_SECONDS) as answer:
                return answer.status, json.loads(answer.read() or b"{}")
        except urllib.error.HTTPError as error:
            return error.code, {"error": error.read().decode(errors="replace")}
        except (OSError, ValueError) as error:
            return 0, {"error": str(error)}


def main() -> int:
    """Run the trial; the kernel ends everything else in the sandbox with this process."""
    request = json.loads(sys.argv[2])
    signal.signal(signal.SIGTERM, lambda *_ignored: sys.exit(1))
    socket.sethostname("rehearsal-1")
    case = next(case for case in CASES if case.name == sys.argv[1])
    CACHE.mkdir(parents=True)
    for folder in (STATE, CACHE):
        shutil.chown(folder, USER)
    trial = Trial(case, Path(request["runtime"]), Path(request["folder"]))
    outcome = {"preflight": trial.preflight()}
    if request["launch"]:
        trial.compose()
        outcome["engine"] = trial.launch()
        outcome["port"] = trial.port
    (trial.folder / "outcome.json").write_text(json.dumps(outcome))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
