#!/usr/bin/env python3
# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Time `launch_preflight` on the real engine, and hold its verdicts against what launches of that engine come to.

usage: make bench-preflight    needs a runtime of vLLM 0.32.0 for the CPU, which a scenario leaves in LLMOPS_CACHE;
                               RUNTIME=DIRECTORY names another

LAUNCHES=ask       the preflight is asked about each launch of tests/launches, and held against what became of it when
                   `make launches` last tried it; the default, as root
LAUNCHES=live      each is launched as well, which takes half an hour
LAUNCHES=recorded  both are read from the records of `make launches`
CASES=REGEX        some of the launches; JOBS=N so many at a time

The last line is one JSON object: seconds and cpu_seconds (a model of 119 shards), cached_seconds, mb, launches, missed
(failed launches that the preflight let pass), false_alarms (healthy ones that it refused), kv_tokens_error_percent, and
launches_are: asked, live or recorded.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from _measure import Sample, run

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "collections"))

from ansible_collections.llmops.vllm.tests.launches import launches, records, table
from ansible_collections.llmops.vllm.tests.launches.cases import ARGUMENTS, CASES, ENVIRONMENT, KIMI, PATCH, Case
from ansible_collections.llmops.vllm.tests.launches.trial import PREFLIGHT
from ansible_collections.llmops.vllm.tests.rig import tiny_models

MIB = 1024 * 1024


def ask(engine: Path, folder: Path, answers: Path) -> tuple[Sample, dict[str, Any]]:
    """Run the module in an interpreter of its own; return what it cost and what it said."""
    parameters = {
        "runtime": str(engine), "snapshot": str(folder), "serve_yaml": json.dumps(ARGUMENTS), "arguments": ARGUMENTS,
        "environment": ENVIRONMENT, "unit": "vllm@bench.service", "port": 61234, "patches": [PATCH],
        "answers": str(answers),
    }  # fmt: skip
    file = folder.parent / "parameters.json"
    file.write_text(json.dumps(parameters))
    environment = {"PYTHONPATH": str(ROOT / "collections")}
    sample = run([sys.executable, "-c", PREFLIGHT, str(file)], environment=environment, folder=folder.parent, server=[])
    return sample, json.loads(next(line for line in sample.output.splitlines() if line.startswith("{")))


def many_shards(models: Path, work: Path) -> Path:
    """The tiny Kimi, spread over as many shards as NVIDIA's Kimi K2.5 has."""
    folder = work / "many"
    shutil.copytree(models / KIMI, folder, ignore=shutil.ignore_patterns("*.safetensors*"))
    config = tiny_models.kimi_config()
    tiny_models.write_shards(folder, tiny_models.kimi_tensors(config, tiny_models.Weights(seed=25)), 119)
    return folder


def agreement(engine: Path, models: Path, work: Path, how: str) -> table.Counts:
    """Hold the verdicts against what becomes, or became, of the launches."""
    wanted = re.compile(os.environ.get("CASES", ""))
    cases = [case for case in CASES if wanted.search(case.name)]
    known = records.load()

    def examine(case: Case) -> None:
        outcome = launches.try_case(case, models, engine, work, launch=how == "live")
        fresh = records.record_of(case, outcome, (work / case.name / "launch.log") if how == "live" else None)
        known[case.name] = {**known[case.name], **fresh}
        print(table.told(case, known[case.name]), flush=True)

    if how != "recorded":
        with ThreadPoolExecutor(int(os.environ.get("JOBS", "1"))) as pool:
            list(pool.map(examine, cases))
    return table.counts(known, cases)


def main() -> int:
    """Run the benchmark."""
    engine = launches.find_runtime()
    if engine is None:
        print(
            f"There is no runtime of vLLM in {launches.CACHE}/runtimes; a scenario leaves one there.", file=sys.stderr
        )
        return 2
    how = os.environ.get("LAUNCHES", "ask" if os.geteuid() == 0 else "recorded")
    with tempfile.TemporaryDirectory(prefix="bench-preflight-") as directory:
        work = Path(directory)
        models = work / "models"
        launches.write_models(models)
        many = many_shards(models, work)
        first, said = ask(engine, many, work / "answers")
        second, again = ask(engine, many, work / "answers")
        print(
            f"119 shards: {first.seconds:.1f} s, {first.cpu_seconds:.1f} s of CPU, {first.foreign:.0%} busy with others"
        )
        print(
            f"again: {second.seconds:.2f} s, kept answer: {again.get('cached')}; {said.get('report', said.get('msg'))}"
        )
        found = agreement(engine, models, work, how)
    print("missed:", found.missed, "false alarms:", found.false_alarms)
    result = {
        "seconds": round(first.seconds, 2),
        "cpu_seconds": round(first.cpu_seconds, 2),
        "cached_seconds": round(second.seconds, 2),
        "mb": round(first.rss_bytes / MIB),
        "asked": found.asked,
        "launches": found.launches,
        "missed": len(found.missed),
        "false_alarms": len(found.false_alarms),
        "kv_tokens_error_percent": found.kv_tokens_error_percent,
        "launches_are": {"ask": "asked"}.get(how, how),
    }
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
