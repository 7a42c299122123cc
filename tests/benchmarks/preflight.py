#!/usr/bin/env python3
# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Time `launch_preflight` on the real engine, and hold its verdicts against what launches of that engine came to.

usage: make bench-preflight    needs a runtime of vLLM 0.32.0 for the CPU, which a scenario leaves in LLMOPS_CACHE;
                               RUNTIME=DIRECTORY names another, CASES=REGEX takes some of the cases

The outcomes of the launches in `CASES` and the tokens in `LOGGED` were seen on vLLM 0.32.0, and are not tried again.
The last line is one JSON object: seconds and cpu_seconds (a model of 119 shards), cached_seconds, mb, launches, missed
(failed launches that the preflight let pass), false_alarms (healthy ones that it refused), kv_tokens_error_percent.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from _measure import Sample, run

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "collections"), str(ROOT / "tests/rig")]

import tiny_models  # the path is set above
from ansible_collections.llmops.vllm.plugins.module_utils.memory_model import MIB, Limits, capacity

CACHE = Path(os.environ.get("LLMOPS_CACHE", Path.home() / ".cache/llmops-vllm"))
KIMI, LLAMA = "tiny-kimi-k2.5-nvfp4", "tiny-llama"
UNPATCHED = "unpatched"
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1",
    "TORCHDYNAMO_DISABLE": "1",
}  # fmt: skip
ARGUMENTS = {"max-model-len": 512, "max-num-seqs": 4, "kv-cache-memory-bytes": "64M"}
PATCH = {
    "name": "disable_fp8_kv_cache", "file": "config.json", "reason": "as the role has it",
    "remove_keys": ["kv_cache_scheme", "kv_cache_quant_algo"],
}  # fmt: skip
MODULE = """
import json, sys
from ansible.module_utils.testing import patch_module_args
from ansible_collections.llmops.vllm.plugins.modules import launch_preflight
with patch_module_args(json.load(open(sys.argv[1]))):
    launch_preflight.main()
"""


@dataclass(frozen=True)
class Case:
    """A launch whose outcome is known: what is done to the model, the arguments, and whether it served rightly."""

    name: str
    healthy: bool
    model: str = KIMI
    arguments: dict[str, Any] = field(default_factory=dict)
    harm: Callable[[Path], None] = lambda folder: None
    patched: bool = True
    environment: dict[str, str] = field(default_factory=dict)


def shard(number: int) -> str:
    """Name of a shard of the tiny Kimi."""
    return f"model-{number:05d}-of-00012.safetensors"


def remove(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def write(name: str, content: bytes) -> Callable[[Path], None]:
    return lambda folder: [(folder / name).write_bytes(content)].clear()


def cut(name: str, size: int) -> Callable[[Path], None]:
    return lambda folder: os.truncate(folder / name, size)


def configure(**changes: Any) -> Callable[[Path], None]:
    """Change values of config.json, of the text model's part where there is one."""

    def change(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        for name, value in changes.items():
            (config.get("text_config", config) if name != "architectures" else config)[name] = value
            if name == "quantization_config":
                config[name] = value
        tiny_models.write_json(folder / "config.json", config)

    return change


def ghost(folder: Path) -> None:
    """Let the index name a file that is not there."""
    path = folder / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    index["weight_map"][next(iter(index["weight_map"]))] = "model-00099-of-00012.safetensors"
    tiny_models.write_json(path, index)


def rewrite(change: Callable[[dict[str, Any]], None]) -> Callable[[Path], None]:
    """Change the tensors of the tiny Llama."""

    def harm(folder: Path) -> None:
        tensors = tiny_models.llama_tensors(tiny_models.llama_config(), tiny_models.Weights(seed=1))
        change(tensors)
        tiny_models.write_shards(folder, tensors, 1)

    return harm


POINTER = b"version https://git-lfs.github.com/spec/v1\nsize 9\n"
SHORT = ("BF16", (100, 256), bytes(100 * 256 * 2))
UP = "model.layers.1.mlp.up_proj.weight"
SCHEME = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False, "symmetric": True}
COMPRESSED = {
    "quant_method": "compressed-tensors", "format": "float-quantized", "config_groups": {}, "ignore": [],
    "quantization_status": "compressed", "kv_cache_scheme": SCHEME,
}  # fmt: skip
CASES = (
    Case("kimi, patched", True),
    Case("kimi, patched, two ranks", True, arguments={"tensor-parallel-size": 2}),
    Case("kimi, patched, text only", True, arguments={"language-model-only": True}),
    Case("kimi, unpatched, BF16 cache by argument", True, arguments={"kv-cache-dtype": "bfloat16"}, patched=False),
    Case("kimi, compressed-tensors' FP8 scheme", True, harm=configure(quantization_config=COMPRESSED), patched=False),
    Case("llama", True, LLAMA),
    Case("llama, two ranks", True, LLAMA, {"tensor-parallel-size": 2}),
    Case("llama, nvfp4 cache", True, LLAMA, {"kv-cache-dtype": "nvfp4"}),
    Case("llama, int8 cache", True, LLAMA, {"kv-cache-dtype": "int8_per_token_head"}),
    Case("kimi, unpatched: first request kills it", False, patched=False),
    Case("kimi, FP8 cache by argument: first request kills it", False, arguments={"kv-cache-dtype": "fp8"}),
    Case("shard missing", False, harm=remove(shard(3))),
    Case("index names a ghost", False, harm=ghost),
    Case("shard cut off", False, harm=cut(shard(2), 100_000)),
    Case("shard empty", False, harm=cut(shard(2), 0)),
    Case("shard is an LFS pointer", False, harm=write(shard(2), POINTER)),
    Case("index is no JSON", False, harm=cut("model.safetensors.index.json", 500)),
    Case("no weights", False, LLAMA, harm=remove("model.safetensors")),
    Case("shape does not fit", False, LLAMA, harm=rewrite(lambda t: t.update({UP: SHORT}))),
    Case("half of a fused pair: serves garbage", False, LLAMA, harm=rewrite(lambda t: [t.pop(UP)].clear())),
    Case("config names more experts", False, harm=configure(n_routed_experts=16)),
    Case("config names a larger vocabulary", False, harm=configure(vocab_size=400)),
    Case("cache without a block", False, arguments={"kv-cache-memory-bytes": 4096}),
    Case("cache larger than the host", False, arguments={"kv-cache-memory-bytes": "900G"}),
    Case(
        "context larger than the cache", False, LLAMA, {"max-model-len": 5_000_000},
        environment={"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1"},
    ),
    Case("no config.json", False, LLAMA, harm=remove("config.json")),
    Case("config.json is no JSON", False, LLAMA, harm=cut("config.json", 60)),
    Case("no tokenizer", False, LLAMA, harm=remove("tokenizer.json")),
    Case("tokenizer cut off", False, LLAMA, harm=cut("tokenizer.json", 900)),
    Case("unknown architecture", False, LLAMA, harm=configure(architectures=["FooBarForCausalLM"])),
    Case("unknown quantisation", False, LLAMA, harm=configure(quantization_config={"quant_method": "foo"})),
    Case("ranks do not divide the heads", False, LLAMA, {"tensor-parallel-size": 3}),
    Case("context longer than the model's", False, LLAMA, {"max-model-len": 100_000}),
    Case("unknown argument", False, LLAMA, {"no-such-flag": 1}),
    Case("unknown cache dtype", False, LLAMA, {"kv-cache-dtype": "fp9"}),
    Case("unknown tool parser", False, LLAMA, {"tool-call-parser": "nope", "enable-auto-tool-choice": True}),
    Case("unknown attention backend", False, LLAMA, {"attention-backend": "NOPE"}),
    Case("argument is no JSON", False, LLAMA, {"compilation-config": "{nonsense"}),
)  # fmt: skip

# Model, longest request, bytes of cache, block size, ranks, dtype: tokens that the engine logged at its start.
LOGGED = {
    (KIMI, 512, 64 * MIB, 16, 1, "auto"): 19408,
    (KIMI, 512, 20 * MIB, 16, 1, "bfloat16"): 6064,
    (LLAMA, 512, 64 * MIB, 128, 1, "auto"): 65536,
    (LLAMA, 512, 7 * MIB, 128, 2, "auto"): 14336,
    (KIMI, 2048, 33 * MIB, 16, 2, "auto"): 10000,
}


def runtime() -> Path | None:
    """The runtime to ask."""
    given = os.environ.get("RUNTIME")
    found = [Path(given)] if given else sorted(CACHE.glob("runtimes/*"))
    return next((path for path in found if list(path.glob("lib/python*/site-packages/vllm/__init__.py"))), None)


def ask(engine: Path, folder: Path, case: Case, answers: Path | None = None) -> tuple[Sample, dict[str, Any]]:
    """Run the module in an interpreter of its own; return what it cost and what it said."""
    arguments = {**ARGUMENTS, **case.arguments}
    parameters = {
        "runtime": str(engine), "snapshot": str(folder), "serve_yaml": json.dumps(arguments), "arguments": arguments,
        "environment": {**ENVIRONMENT, **case.environment}, "unit": "vllm@bench.service", "port": 61234,
        "patches": [PATCH] if case.patched and case.model == KIMI else [],
        **({"answers": str(answers)} if answers else {}),
    }  # fmt: skip
    file = folder.parent / "parameters.json"
    file.write_text(json.dumps(parameters))
    environment = {"PYTHONPATH": str(ROOT / "collections")}
    sample = run([sys.executable, "-c", MODULE, str(file)], environment=environment, folder=folder.parent, server=[])
    return sample, json.loads(next(line for line in sample.output.splitlines() if line.startswith("{")))


def agreement(engine: Path, models: Path, work: Path) -> tuple[int, list[str], list[str]]:
    """Hold the verdicts against what became of the launches; return their number, those missed, the false alarms."""
    wanted, missed, alarms = re.compile(os.environ.get("CASES", "")), [], []
    cases = [case for case in CASES if wanted.search(case.name)]
    for case in cases:
        folder = work / "model"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(models / case.model, folder)
        case.harm(folder)
        sample, said = ask(engine, folder, case)
        refused = said.get("failed", False)
        if refused == case.healthy:
            (alarms if refused else missed).append(case.name)
        found = ", ".join(finding["id"] for finding in said.get("findings", ()) if finding["severity"] == "no_go")
        right = "right" if refused != case.healthy else "WRONG"
        print(
            f"{right} {sample.seconds:6.1f} s  {case.name}: {found or said.get('verdict', said.get('msg'))}", flush=True
        )
    return len(cases), missed, alarms


def many_shards(models: Path, work: Path) -> Path:
    """The tiny Kimi, spread over as many shards as NVIDIA's Kimi K2.5 has."""
    folder = work / "many"
    shutil.copytree(models / KIMI, folder, ignore=shutil.ignore_patterns("*.safetensors*"))
    config = tiny_models.kimi_config()
    tiny_models.write_shards(folder, tiny_models.kimi_tensors(config, tiny_models.Weights(seed=25)), 119)
    return folder


def token_error() -> float:
    """The largest difference between the tokens reckoned and logged, in percent."""
    configs = {KIMI: tiny_models.kimi_config(), LLAMA: tiny_models.llama_config()}
    errors = []
    for (model, length, size, block, ranks, dtype), logged in LOGGED.items():
        limits = Limits(length, 4, 2048, block, tensor=ranks, kv_cache_dtype=dtype)
        errors.append(abs(capacity(configs[model], limits, size).tokens / logged - 1) * 100)
    return max(errors)


def main() -> int:
    """Run the benchmark."""
    engine = runtime()
    if engine is None:
        print(f"There is no runtime of vLLM in {CACHE}/runtimes; a scenario leaves one there.", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="bench-preflight-") as directory:
        work = Path(directory)
        models = work / "models"
        tiny_models.write_kimi(models / KIMI)
        tiny_models.write_llama(models / LLAMA)
        many, case = many_shards(models, work), Case("119 shards", True)
        first, said = ask(engine, many, case, work / "answers")
        second, again = ask(engine, many, case, work / "answers")
        print(
            f"119 shards: {first.seconds:.1f} s, {first.cpu_seconds:.1f} s of CPU, {first.foreign:.0%} busy with others"
        )
        print(
            f"again: {second.seconds:.2f} s, kept answer: {again.get('cached')}; {said.get('report', said.get('msg'))}"
        )
        launches, missed, alarms = agreement(engine, models, work)
    print("missed:", missed, "false alarms:", alarms)
    result = {
        "seconds": round(first.seconds, 2),
        "cpu_seconds": round(first.cpu_seconds, 2),
        "cached_seconds": round(second.seconds, 2),
        "mb": round(first.rss_bytes / MIB),
        "launches": launches,
        "missed": len(missed),
        "false_alarms": len(alarms),
        "kv_tokens_error_percent": round(token_error(), 3),
    }
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
