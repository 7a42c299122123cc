"""The model from the hub to the view, over real HTTP on the target."""

from __future__ import annotations

import json

import pytest

HUB = "http://hub:8080"  # the rig's nginx
KIMI = "rehearsal/tiny-kimi-k2.5-nvfp4"
SHARD = "model-00007-of-00119.safetensors"
PATCHES = [
    {
        "name": "no-fp8-kv-cache",
        "file": name,
        "reason": "No attention backend here takes an FP8 KV cache",
        "remove_keys": ["kv_cache_scheme", "kv_cache_quant_algo"],
    }
    for name in ("config.json", "hf_quant_config.json")
]


def shards(host, check=False, **changes):
    parameters = {
        "repo": KIMI, "revision": host.commits[KIMI], "endpoint": HUB, "reserve_bytes": 0, "retries": 1,
        "owner": "root", "group": "vllm", "file_mode": "0640", "directory_mode": "0750", **changes,
    }  # fmt: skip
    return host.module("model_shards", check=check, **parameters)


@pytest.fixture(scope="module")
def present(host):
    """What the first runs did, in check mode and in earnest."""
    return {"checked": shards(host, check=True), "first": shards(host)}


def test_check_mode_says_what_the_first_run_does(present):
    checked, first = present["checked"], present["first"]
    assert checked["changed"] and first["changed"]
    assert checked["fetched_bytes"] == first["fetched_bytes"] == first["total_bytes"] > 0
    assert checked["files"] == first["files"]


def test_the_first_run_fetches_every_file_with_its_owner_and_mode(host, present):
    snapshot = present["first"]["path"]
    assert snapshot == f"/srv/llm/store/rehearsal--tiny-kimi-k2.5-nvfp4/{host.commits[KIMI]}"
    own = "-not -path '*/.llmops/*' -not -path '*/.cache/*'"
    listing = host.run(f"find {snapshot} -type f {own} -printf '%f %u %g %m\\n'").splitlines()
    assert len(listing) == present["first"]["files"]
    assert {line.split(" ", 1)[1] for line in listing} == {"root vllm 640"}
    assert host.run(f"find {snapshot}/.llmops/partial -type f", check=False) == ""


def test_the_second_run_asks_nobody_and_changes_nothing(host, present):
    again = shards(host)
    assert (again["changed"], again["requests"], again["fetched_bytes"]) == (False, 0, 0)


def test_a_flipped_byte_is_found_and_that_file_alone_is_fetched_again(host, present):
    path = f"{present['first']['path']}/{SHARD}"
    before = host.run(f"sha256sum < {path}")
    flip = "f.seek(4000); b = f.read(1)[0]; f.seek(4000); f.write(bytes([b ^ 1]))"
    host.run(f"python3 -c \"f = open('{path}', 'r+b'); {flip}\"")
    assert host.run(f"sha256sum < {path}") != before
    found = shards(host, state="verified")
    assert found["failed"] and SHARD in found["msg"] and host.run(f"sha256sum < {path}") != before
    repaired = shards(host, verify="full")
    assert repaired["changed"] and repaired["damaged"] == [SHARD]
    assert repaired["fetched_bytes"] == int(host.run(f"stat -c %s {path}"))
    assert host.run(f"sha256sum < {path}") == before
    assert shards(host)["changed"] is False


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"revision": "0" * 40}, ["0" * 40, KIMI]),
        ({"revision": "no-such-branch"}, ["no-such-branch", KIMI]),
        ({"repo": "rehearsal/gated", "revision": "main"}, ["rehearsal/gated", "token"]),
        ({"repo": "rehearsal/no-such-model", "revision": "main"}, ["rehearsal/no-such-model"]),
    ],
)
def test_what_the_hub_does_not_give_is_one_sentence_and_leaves_nothing(host, present, wrong, words):
    before = host.run("find /srv/llm/store | sort | sha256sum")
    result = shards(host, **wrong)
    assert result["failed"] and all(word in result["msg"] for word in words)
    assert "Traceback" not in json.dumps(result) and "\n" not in result["msg"]
    assert host.run("find /srv/llm/store | sort | sha256sum") == before


def test_a_view_takes_the_fp8_kv_cache_out_and_leaves_the_snapshot_alone(host, present):
    snapshot, view = present["first"]["path"], "/srv/llm/releases/integration-view"
    before = host.run(f"cd {snapshot} && sha256sum *.json")
    wanted = {"snapshot": snapshot, "view": view, "patches": PATCHES, "group": "vllm", "file_mode": "0640"}

    checked = host.module("config_patch", check=True, **wanted)
    assert checked["changed"] and host.run(f"ls -d {view}", check=False) == ""
    first = host.module("config_patch", **wanted)
    assert first["changed"] and first["digest"] == checked["digest"]
    assert first["patched"][0]["effective"], first["patched"]
    assert [sorted(patch["removed"]) for patch in first["patched"]] == [
        ["/quantization_config/kv_cache_quant_algo", "/quantization_config/kv_cache_scheme"],
        ["/quantization/kv_cache_quant_algo"],
    ]

    config = json.loads(host.run(f"cat {view}/config.json"))
    assert not {"kv_cache_scheme", "kv_cache_quant_algo"} & config["quantization_config"].keys()
    assert "kv_cache" not in host.run(f"cat {view}/hf_quant_config.json")
    assert host.run(f"readlink -f {view}/{SHARD}") == f"{snapshot}/{SHARD}"
    assert host.run(f"cd {snapshot} && sha256sum *.json") == before
    assert host.run(f"sudo -u vllm head -c 8 {view}/{SHARD} | wc -c") == "8", "the service may read it through the view"

    second = host.module("config_patch", **wanted)
    assert not second["changed"] and second["digest"] == first["digest"]


def test_a_patch_that_expects_another_model_is_refused_and_makes_no_view(host, present):
    patch = {**PATCHES[0], "expect": {"/quantization_config/kv_cache_scheme/num_bits": 4}}
    view = "/srv/llm/releases/integration-refused"
    result = host.module("config_patch", snapshot=present["first"]["path"], view=view, patches=[patch])
    assert result["failed"] and "/quantization_config/kv_cache_scheme/num_bits" in result["msg"]
    assert host.run(f"ls -d {view}", check=False) == ""
