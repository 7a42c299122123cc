"""Try the launches of cases.py on the real engine, and hold what the preflight says against what becomes of them.

usage: make launches            needs root, and a runtime of vLLM 0.32.0 for the CPU, which a scenario leaves in
                                LLMOPS_CACHE; RUNTIME=DIRECTORY names another
       CASES=REGEX              some of the cases; the others' records stay
       NEW=1                    those that were not launched yet
       LAUNCH=0                 only ask the preflight; the engine's part of the records stays
       JOBS=N                   launches at a time (default 1)

Writes the records and logs to tests/launches/logs, and docs/preflight-launches.md.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from ansible_collections.llmops.vllm.tests.launches import records, table
from ansible_collections.llmops.vllm.tests.launches.cases import CASES, KIMI, LLAMA, Case
from ansible_collections.llmops.vllm.tests.rig import tiny_models

CACHE = Path(os.environ.get("LLMOPS_CACHE", Path.home() / ".cache/llmops-vllm"))
COLLECTIONS = Path(__file__).resolve().parents[2] / "collections"
SANDBOX = r"""
mount -t tmpfs -o "mode=1777,size=$1" tmpfs /dev/shm
mount --bind "$2" /srv
mount --bind -o ro "$3" "$4"
shift 4
exec "$@"
"""


def find_runtime() -> Path | None:
    """The engine to ask."""
    given = os.environ.get("RUNTIME")
    found = [Path(given)] if given else sorted(CACHE.glob("runtimes/*"))
    return next((path for path in found if list(path.glob("lib/python*/site-packages/vllm/__init__.py"))), None)


def write_models(folder: Path) -> None:
    """Write the tiny models that the cases are made from."""
    tiny_models.write_kimi(folder / KIMI)
    tiny_models.write_llama(folder / LLAMA)


def try_case(case: Case, models: Path, runtime: Path, work: Path, launch: bool) -> dict[str, Any]:
    """Run one case in a sandbox of its own; return what preflight and engine came to. Its log is ``launch.log``."""
    folder, srv = work / case.name, work / case.name / "srv"
    inside = Path("/srv/llm/runtimes") / runtime.name
    snapshot = srv / "llm/store/tiny"
    shutil.copytree(models / case.model, snapshot)
    (srv / "llm/runtimes" / runtime.name).mkdir(parents=True)
    for path in (srv, srv / "llm", folder, work):
        path.chmod(0o755)
    case.harm(snapshot)
    request = {"runtime": str(inside), "folder": str(folder), "launch": launch}
    namespaces = ["unshare", "--mount", "--pid", "--uts", "--fork", "--kill-child", "--mount-proc"]
    trial = [sys.executable, "-m", "ansible_collections.llmops.vllm.tests.launches.trial"]
    command = [
        *namespaces, "bash", "-ec", SANDBOX, "sandbox", case.host.shm, str(srv), str(runtime), str(inside),
        *trial, case.name, json.dumps(request),
    ]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": str(COLLECTIONS)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=3600, env=environment)
    outcome = folder / "outcome.json"
    if not outcome.exists():
        raise RuntimeError(f"{case.name}: {done.stderr or done.stdout}")
    return dict(json.loads(outcome.read_text()))


def main() -> int:
    """Run the trials."""
    runtime = find_runtime()
    if os.geteuid() != 0 or runtime is None:
        print(f"It takes root and a runtime of vLLM in {CACHE}/runtimes, where a scenario leaves one.", file=sys.stderr)
        return 2
    launch = os.environ.get("LAUNCH", "1") != "0"
    known = records.load() if os.environ.get("NEW") == "1" else {}
    wanted = [
        case
        for case in CASES
        if re.search(os.environ.get("CASES", ""), case.name) and "engine" not in known.get(case.name, {})
    ]
    with tempfile.TemporaryDirectory(prefix="launches-") as directory:
        work = Path(directory)
        models = work / "models"
        write_models(models)

        def run(case: Case) -> bool:
            try:
                outcome = try_case(case, models, runtime, work, launch)
            except Exception as error:
                print(f"BROKEN {case.name}: {error}", flush=True)
                return False
            log = work / case.name / "launch.log"
            record = records.keep(case, outcome, log if launch else None)
            shutil.rmtree(work / case.name / "srv", ignore_errors=True)
            print(table.told(case, record), flush=True)
            return True

        with ThreadPoolExecutor(int(os.environ.get("JOBS", "1"))) as pool:
            all_ran = all(list(pool.map(run, wanted)))
    print(json.dumps(table.write(records.load())))
    return 0 if all_ran else 1


if __name__ == "__main__":
    raise SystemExit(main())
