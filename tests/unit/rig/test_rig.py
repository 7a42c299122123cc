"""What the rehearsal is made of: models that an engine loads, a hub with a known commit, wheels with known hashes."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import math
import re
import struct
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
RIG = ROOT / "tests/rig"
LOCKS = sorted((ROOT / "roles/vllm_runtime/files").glob("*.lock"))
KIMI = "tiny-kimi-k2.5-nvfp4"
REHEARSAL = "inventories/rehearsal/group_vars/vllm.yml"
ITEM_BYTES = {"BF16": 2, "F32": 4}


def load(name):
    spec = importlib.util.spec_from_file_location(f"rig_{name}", RIG / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def make_models(destination):
    subprocess.run([sys.executable, RIG / "tiny_models.py", destination], check=True)
    return destination


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    return make_models(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def hub(models, tmp_path_factory):
    destination = tmp_path_factory.mktemp("hub")
    subprocess.run([sys.executable, RIG / "hub.py", models, destination], check=True)
    return destination


def read_header(path):
    """Return a file's tensors, after a check of everything that the safetensors format demands."""
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    assert data[8:9] == b"{", "the header starts with its brace"
    header = json.loads(data[8 : 8 + length])
    assert header.pop("__metadata__") == {"format": "pt"}
    end = 0
    for name, tensor in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        begin, next_end = tensor["data_offsets"]
        assert begin == end, f"{name} leaves a hole or overlaps"
        assert next_end - begin == math.prod(tensor["shape"]) * ITEM_BYTES[tensor["dtype"]], f"{name} has another size"
        end = next_end
    assert len(data) == 8 + length + end, "the data ends where the file does"
    return header


def digests(folder):
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.mark.parametrize("model", [KIMI, "tiny-llama"])
def test_every_shard_is_a_valid_safetensors_file(models, model):
    shards = sorted((models / model).glob("*.safetensors"))
    assert len(shards) == {KIMI: 119, "tiny-llama": 1}[model]
    assert all(read_header(shard) for shard in shards)


def test_the_index_names_the_shard_of_every_tensor(models):
    index = json.loads((models / KIMI / "model.safetensors.index.json").read_text())
    headers = {path.name: read_header(path) for path in (models / KIMI).glob("*.safetensors")}
    assert index["weight_map"] == {tensor: name for name, header in headers.items() for tensor in header}
    offsets = [tensor["data_offsets"] for header in headers.values() for tensor in header.values()]
    assert index["metadata"]["total_size"] == sum(end - begin for begin, end in offsets)


def test_the_shards_are_numbered_as_hubs_number_them(models):
    names = sorted(path.name for path in (models / KIMI).glob("*.safetensors"))
    assert names == [f"model-{number:05d}-of-00119.safetensors" for number in range(1, 120)]


def test_the_attention_heads_can_be_spread_over_eight_devices(models):
    text = json.loads((models / KIMI / "config.json").read_text())["text_config"]
    llama = json.loads((models / "tiny-llama/config.json").read_text())
    assert (text["num_attention_heads"], text["num_key_value_heads"], llama["num_attention_heads"]) == (8, 8, 8)


def test_both_descriptions_of_the_quantization_ask_for_an_fp8_kv_cache(models):
    config = json.loads((models / KIMI / "config.json").read_text())
    assert config["architectures"] == ["KimiK25ForConditionalGeneration"]
    assert config["quantization_config"]["kv_cache_scheme"] == {"dynamic": False, "num_bits": 8, "type": "float"}
    assert config["quantization_config"]["kv_cache_quant_algo"] == "FP8"
    legacy = json.loads((models / KIMI / "hf_quant_config.json").read_text())
    assert legacy["quantization"]["kv_cache_quant_algo"] == "FP8"


def test_the_models_are_the_same_byte_for_byte_every_time(models, tmp_path):
    assert digests(make_models(tmp_path)) == digests(models)


def test_the_rehearsal_pins_the_commit_that_the_hub_serves(hub):
    commit = json.loads((hub / "commits.json").read_text())[f"rehearsal/{KIMI}"]
    (pinned,) = re.findall(r"^model_store_revision: (\S+)$", (ROOT / REHEARSAL).read_text(), re.MULTILINE)
    assert pinned == commit, (
        f"tests/rig/tiny_models.py or tests/rig/hub.py make another model now: its commit is {commit}, and "
        f"{REHEARSAL} pins {pinned}. If that is intended, set model_store_revision there to {commit}."
    )


def test_the_hub_holds_every_file_under_its_digest(models, hub):
    commit = json.loads((hub / "commits.json").read_text())[f"rehearsal/{KIMI}"]
    tree = json.loads((hub / "api" / f"{commit}.tree.json").read_text())
    info = json.loads((hub / "api" / f"{commit}.info.json").read_text())
    assert {file["path"] for file in tree} == {path.name for path in (models / KIMI).iterdir()}
    assert (info["sha"], [file["rfilename"] for file in info["siblings"]]) == (commit, [file["path"] for file in tree])
    for file in tree:
        data = (models / KIMI / file["path"]).read_bytes()
        assert file["size"] == len(data)
        if "lfs" in file:
            assert file["lfs"]["oid"] == hashlib.sha256(data).hexdigest()
            assert (hub / "blobs" / file["lfs"]["oid"]).read_bytes() == data
        else:
            assert file["oid"] == hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
            assert (hub / "files" / file["oid"]).read_bytes() == data


def test_the_alias_wheel_is_the_one_that_the_cpu_lock_pins(tmp_path):
    wheelhouse = load("wheelhouse")
    lock = (ROOT / "roles/vllm_runtime/files/vllm-0.32.0-cpu.lock").read_text()
    (line,) = [line for line in wheelhouse.requirements(lock) if wheelhouse.ALIAS.match(line)]
    wheel = wheelhouse.write_alias(tmp_path, wheelhouse.ALIAS.match(line)["version"])
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    assert line.split() == ["vllm==0.32.0+cpu", f"--hash=sha256:{digest}"]


def test_there_are_locks():
    assert {"uv.lock", "vllm-0.32.0-cpu.lock", "vllm-0.32.0-cu130.lock"} <= {lock.name for lock in LOCKS}


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.name)
def test_every_requirement_of_a_lock_is_one_version_with_a_digest(lock):
    requirements = load("wheelhouse").requirements(lock.read_text())
    assert requirements
    pinned = re.compile(r"[\w.-]+(\[[\w,-]+\])?==[\w.+!]+(\s*;[^\\]*?)?(\s+--hash=sha256:[0-9a-f]{64})+")
    assert [line for line in requirements if not pinned.fullmatch(line)] == []


def test_the_installers_lock_is_of_the_version_that_is_asked_for():
    wanted = [line for line in (ROOT / "requirements/uv.in").read_text().splitlines() if not line.startswith("#")]
    lock = (ROOT / "roles/vllm_runtime/files/uv.lock").read_text()
    assert [line.split()[0] for line in load("wheelhouse").requirements(lock)] == wanted
