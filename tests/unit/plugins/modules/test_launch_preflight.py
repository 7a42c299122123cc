from __future__ import annotations

import json
import os
import socket
import sys

import pytest
from ansible_collections.llmops.vllm.plugins.module_utils import preflight_host
from ansible_collections.llmops.vllm.plugins.module_utils.findings import Finding
from ansible_collections.llmops.vllm.plugins.module_utils.gpu import Gpu, GpuReport
from ansible_collections.llmops.vllm.plugins.module_utils.host_facts import HostFacts, Space
from ansible_collections.llmops.vllm.plugins.module_utils.sizes import GIB
from ansible_collections.llmops.vllm.plugins.modules import launch_preflight
from ansible_collections.llmops.vllm.tests.unit.checkpoints import LLAMA, llama, write_checkpoint
from ansible_collections.llmops.vllm.tests.unit.engine_files import write_engine

DONE = {"stage": "done", "error": "", "version": "0.32.0", "kv_cache_dtype": "fp8_e4m3"}


class Host:
    """A host with a runtime, a snapshot and a free port; systemd knows no unit."""

    def __init__(self, directory):
        self.directory = directory
        self.python = directory / "runtime/bin/python"
        self.python.parent.mkdir(parents=True)
        self.snapshot = directory / "snapshot"
        self.snapshot.mkdir()
        (self.snapshot / "model.gguf").touch()
        with socket.create_server(("127.0.0.1", 0)) as server:
            self.port = server.getsockname()[1]
        systemctl = directory / "systemctl"
        systemctl.write_text("#!/bin/sh\nprintf 'LoadState=not-found\\nActiveState=inactive\\nMainPID=0\\n'\n")
        systemctl.chmod(0o755)

    def engine_says(self, **changes):
        answer = {**DONE, **changes}
        self.python.write_text(
            f"#!{sys.executable} -S\nimport json, os, sys\nquestion = json.load(sys.stdin)\n"
            f"answer = {answer!r}\nseen = {{'question': question, 'environment': dict(os.environ)}}\n"
            "config = os.path.join(question['model'], 'config.json')\n"
            "seen['config'] = open(config).read() if os.path.exists(config) else ''\n"
            f"open({str(self.directory / 'seen')!r}, 'w').write(json.dumps(seen))\nprint(json.dumps(answer))\n"
        )
        self.python.chmod(0o755)

    @property
    def seen(self):
        return json.loads((self.directory / "seen").read_text())

    def parameters(self, **changes):
        return {
            "runtime": str(self.directory / "runtime"), "snapshot": str(self.snapshot),
            "serve_yaml": "tensor-parallel-size: 8\n", "unit": "vllm@kimi.service", "port": self.port, **changes,
        }  # fmt: skip


@pytest.fixture
def host(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    facts = HostFacts(GpuReport(False, reason="no GPU"), memory_total_bytes=24 * GIB)
    monkeypatch.setattr(preflight_host, "collect", lambda *_: facts)
    return Host(tmp_path)


def test_a_launch_that_nothing_speaks_against_is_a_go(run_module, host):
    host.engine_says()
    result = run_module(launch_preflight, **host.parameters(environment={"OMP_NUM_THREADS": 4}))
    assert (result["verdict"], result["findings"], result["changed"]) == ("go", [], False)
    assert (result["vllm_version"], result["kv_cache_dtype"]) == ("0.32.0", "fp8_e4m3")
    question = host.seen["question"]
    assert question.pop("model") != str(host.snapshot)  # a view of it, as a release has
    assert question == {"serve_yaml": "tensor-parallel-size: 8\n", "compute_capability": ""}
    assert host.seen["environment"]["OMP_NUM_THREADS"] == "4"


def test_asking_again_is_the_same(run_module, host):
    host.engine_says()
    first, second = (run_module(launch_preflight, diff=True, **host.parameters()) for _ in range(2))
    assert first == second


def test_a_no_go_fails_with_the_whole_text(run_module, host):
    host.engine_says(stage="parse", error="vllm serve: error: unrecognized arguments: --no-such-flag 1")
    result = run_module(launch_preflight, **host.parameters())
    assert result["failed"] and result["verdict"] == "no_go"
    assert result["msg"].splitlines() == [
        "This launch cannot work; nothing was touched.",
        "NO-GO: vLLM 0.32.0 does not take these arguments.",
        "  evidence: vllm serve: error: unrecognized arguments: --no-such-flag 1",
        "  remedy: correct vllm_service_arguments or vllm_service_arguments_extra",
    ]
    assert [finding["id"] for finding in result["findings"]] == ["serve_arguments"]


def test_check_mode_fails_on_a_no_go_as_well(run_module, host):
    host.engine_says(stage="config", error="no backend takes fp8")
    result = run_module(launch_preflight, check=True, **host.parameters())
    assert result["failed"] and "no backend takes fp8" in result["msg"]


def test_a_port_of_somebody_else_is_a_no_go_whatever_the_engine_says(run_module, host):
    host.engine_says()
    with socket.create_server(("127.0.0.1", 0)) as server:
        result = run_module(launch_preflight, **host.parameters(port=server.getsockname()[1]))
    assert result["failed"] and [finding["id"] for finding in result["findings"]] == ["port_in_use"]
    assert f"PID {os.getpid()} (" in result["msg"]


def test_an_engine_that_cannot_be_asked_is_a_warning_and_no_failure(run_module, host, capsys):
    host.python.write_text("#!/bin/sh\necho 'Illegal instruction' >&2\n")
    host.python.chmod(0o755)
    result = run_module(launch_preflight, **host.parameters())
    assert "failed" not in result and (result["verdict"], result["vllm_version"]) == ("warn", "")
    assert "Illegal instruction" in capsys.readouterr().err


@pytest.mark.parametrize("missing", ["runtime", "snapshot"])
def test_what_is_not_there_is_a_failure(run_module, host, missing):
    host.engine_says()
    result = run_module(launch_preflight, **host.parameters(**{missing: "/no/such/directory"}))
    assert result["failed"]
    assert result["msg"].startswith(f"The engine cannot be asked on this host: the {missing} is not there: /no/such/")


@pytest.mark.parametrize("missing", ["runtime", "snapshot"])
def test_what_is_not_there_yet_is_a_warning_finding_in_check_mode(run_module, host, missing, capsys):
    host.engine_says()
    result = run_module(launch_preflight, check=True, **host.parameters(**{missing: "/no/such/directory"}))
    assert "failed" not in result and result["verdict"] == "warn" and "WARN" not in capsys.readouterr().err
    (finding,) = result["findings"]
    assert finding["id"] == "engine_not_asked" and f"the {missing} is not there" in finding["evidence"]


def test_the_engine_is_never_asked_as_root_for_want_of_its_user(run_module, host, monkeypatch):
    host.engine_says()
    monkeypatch.setattr(launch_preflight.os, "geteuid", lambda: 0)
    result = run_module(launch_preflight, **host.parameters(user="no-such-user"))
    assert result["failed"] and "there is no user 'no-such-user'" in result["msg"]
    result = run_module(launch_preflight, check=True, **host.parameters(user="no-such-user"))
    assert result["verdict"] == "warn" and "no-such-user" in result["findings"][0]["evidence"]
    assert not (host.directory / "seen").exists()


def test_a_user_who_is_not_root_asks_as_himself(run_module, host, monkeypatch):
    host.engine_says()
    monkeypatch.setattr(launch_preflight.os, "geteuid", lambda: 1000)
    assert run_module(launch_preflight, **host.parameters(user="no-such-user"))["verdict"] == "go"


def test_the_engines_cache_is_used_when_it_is_there_and_never_in_check_mode(run_module, host):
    host.engine_says()
    cache = host.directory / "cache"
    run_module(launch_preflight, **host.parameters(cache=str(cache)))
    assert host.seen["environment"]["VLLM_CACHE_ROOT"] == host.seen["environment"]["HOME"]
    cache.mkdir()
    run_module(launch_preflight, check=True, **host.parameters(cache=str(cache)))
    assert host.seen["environment"]["VLLM_CACHE_ROOT"] == host.seen["environment"]["HOME"]
    run_module(launch_preflight, **host.parameters(cache=str(cache)))
    assert host.seen["environment"]["VLLM_CACHE_ROOT"] == str(cache)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"port": 0}, "port 0 is not between 1 and 65535."),
        ({"port": 65536}, "port 65536 is not between 1 and 65535."),
        ({"timeout_seconds": 0}, "timeout_seconds must be more than 0."),
        ({"unit": "kimi"}, "unit 'kimi' is not the full name of a service, such as vllm@kimi.service."),
    ],
)
def test_a_value_that_cannot_be_right_is_refused_before_anything_is_asked(run_module, host, wrong, sentence):
    host.engine_says()
    result = run_module(launch_preflight, **host.parameters(**wrong))
    assert result["failed"] and result["msg"] == sentence
    assert not (host.directory / "seen").exists()


REFUSING = {
    "device": "cpu", "head_size": 576, "mla": True, "quantized": True, "accepting": [], "error": "", "capability": "",
    "refusing": {"CPU_MLA": ["kv_cache_dtype not supported"]}, "selected": "CPU_MLA", "validates": False,
}  # fmt: skip
TOLD = {
    "device": "cpu", "max_model_len": 512, "max_num_seqs": 4, "max_num_batched_tokens": 2048, "block_size": 128,
    "dtype": "bfloat16", "tensor_parallel_size": 1, "kv_cache_memory_bytes": 64 * 1024 * 1024,
}  # fmt: skip
PATCH = {
    "name": "no-fp8", "file": "config.json", "reason": "No backend takes it", "remove_keys": ["kv_cache_scheme"],
}  # fmt: skip


@pytest.fixture
def model(host):
    config = {**LLAMA, "quantization_config": {"kv_cache_scheme": {"num_bits": 8}}}
    (host.snapshot / "config.json").write_text(json.dumps(config))
    write_checkpoint(host.snapshot, llama(), 3)
    return host


def test_what_fits_is_told_with_a_go(run_module, model):
    model.engine_says(kv_cache_dtype="auto", config=TOLD)
    result = run_module(launch_preflight, **model.parameters())
    assert (result["verdict"], result["findings"]) == ("go", [])
    assert (result["memory"]["kv_tokens"], result["memory"]["largest_model_len"]) == (65536, 65536)
    assert "65536 tokens, largest max-model-len 65536" in result["report"]


def test_a_context_that_does_not_fit_is_a_no_go_that_says_what_would(run_module, model):
    model.engine_says(kv_cache_dtype="auto", config={**TOLD, "max_model_len": 100_000})
    result = run_module(launch_preflight, **model.parameters())
    assert result["failed"] and [finding["id"] for finding in result["findings"]] == ["context_does_not_fit"]
    assert "max-model-len: 65536" in result["msg"]


def test_memory_of_an_unknown_kind_is_no_objection(run_module, model):
    model.engine_says(config={**TOLD, "kv_cache_memory_bytes": 1}, kv_cache_dtype="nvfp4")
    result = run_module(launch_preflight, **model.parameters())
    assert (result["verdict"], result["memory"]) == ("go", {})
    assert [finding["id"] for finding in result["findings"]] == ["memory_not_reckoned"]


def test_the_engine_is_shown_the_model_as_the_patches_leave_it(run_module, model):
    model.engine_says(config=TOLD)
    run_module(launch_preflight, **model.parameters(patches=[PATCH]))
    shown = model.seen["question"]["model"]
    assert shown.startswith(model.seen["environment"]["HOME"]) and not os.path.exists(shown)
    assert json.loads(model.seen["config"])["quantization_config"] == {}
    assert json.loads((model.snapshot / "config.json").read_text())["quantization_config"] != {}


def test_a_patch_that_is_none_is_refused(run_module, model):
    model.engine_says()
    result = run_module(launch_preflight, **model.parameters(patches=[{"name": "x", "colour": "red"}]))
    assert result["failed"] and "colour" in result["msg"] and "config_patch" in result["msg"]


def test_weights_that_are_damaged_are_a_no_go_whatever_the_engine_says(run_module, model):
    model.engine_says(config=TOLD)
    (model.snapshot / "model-00002-of-00003.safetensors").write_bytes(b"")
    result = run_module(launch_preflight, check=True, **model.parameters())
    assert result["failed"] and [finding["id"] for finding in result["findings"]] == ["shard_damaged"]
    assert "model-00002-of-00003.safetensors: it has 0 bytes" in result["msg"] and result["memory"] == {}


def test_what_the_attention_selector_refuses_is_a_no_go_until_it_is_overruled(run_module, model, capsys):
    model.engine_says(config=TOLD, attention=REFUSING)
    result = run_module(launch_preflight, **model.parameters())
    assert result["failed"] and result["attention"]["refusing"] == REFUSING["refusing"]
    assert "NO-GO: No attention backend takes this model with a KV cache of fp8_e4m3." in result["msg"]
    assert "  price: about half the KV tokens" in result["msg"]
    result = run_module(launch_preflight, **model.parameters(overrule=["kv_cache_dtype"]))
    assert "failed" not in result and result["verdict"] == "warn"
    assert "(overruled)" in capsys.readouterr().err


def test_an_answer_that_was_kept_is_not_asked_for_again(run_module, model):
    model.engine_says(config=TOLD)
    parameters = model.parameters(answers=str(model.directory / "answers"))
    assert not run_module(launch_preflight, check=True, **parameters)["cached"]
    assert not (model.directory / "answers").exists()
    first = run_module(launch_preflight, **parameters)
    model.python.write_text("#!/bin/sh\nexit 1\n")
    second = run_module(launch_preflight, **parameters)
    assert (first["cached"], second["cached"]) == (False, True)
    assert {**first, "cached": True} == second
    assert run_module(launch_preflight, **{**parameters, "serve_yaml": "port: 1"})["verdict"] == "warn"


def test_check_mode_keeps_an_answer_where_others_are_kept(run_module, model):
    (model.directory / "answers").mkdir(mode=0o700)
    model.engine_says(config=TOLD)
    parameters = model.parameters(answers=str(model.directory / "answers"))
    results = [run_module(launch_preflight, check=True, **parameters) for _turn in range(2)]
    assert [(one["cached"], one["changed"]) for one in results] == [(False, False), (True, False)]


def test_the_source_of_an_engine_that_cannot_be_asked_is_read_for_the_gpus_asked_about(run_module, model, capsys):
    write_engine(model.directory / "runtime/lib/python3.11/site-packages")
    (model.directory / "runtime/lib/python3.11/site-packages/vllm-0.99.0.dist-info").mkdir()
    model.python.write_text("#!/bin/sh\nexit 1\n")
    model.python.chmod(0o755)
    result = run_module(launch_preflight, **model.parameters(compute_capability="12.0"))
    assert (result["verdict"], result["vllm_version"], result["kv_cache_dtype"]) == ("warn", "0.99.0", "auto")
    assert (result["attention"]["read"], result["attention"]["selected"]) == ("source", "PLAIN")
    asked = {"kv-cache-dtype": "nvfp4"}
    result = run_module(launch_preflight, **model.parameters(compute_capability="12.0", arguments=asked))
    assert result["failed"] and "kv_cache_dtype" in [finding["id"] for finding in result["findings"]]
    assert "read in its source" in result["msg"]


def test_a_source_that_was_read_is_not_read_again(run_module, model, monkeypatch):
    write_engine(model.directory / "runtime/lib/python3.11/site-packages")
    model.engine_says(config=TOLD)
    parameters = model.parameters(answers=str(model.directory / "answers"), compute_capability="12.0")
    first = run_module(launch_preflight, **parameters)
    monkeypatch.setattr(launch_preflight, "consult_source", None)
    second = run_module(launch_preflight, **parameters)
    assert second["kernels"] == first["kernels"] and second["attention"] == first["attention"]
    assert first["attention"]["read"] == "source"


def test_an_objection_is_asked_for_again(run_module, model):
    parameters = model.parameters(answers=str(model.directory / "answers"))
    model.engine_says(stage="config", error="no driver")
    assert run_module(launch_preflight, **parameters)["failed"]
    model.engine_says(config=TOLD)
    assert run_module(launch_preflight, **parameters)["verdict"] == "go"


def test_a_gpu_that_is_not_there_is_asked_about_by_its_capability(run_module, model):
    model.engine_says(config={**TOLD, "device": "cuda", "gpu_memory_utilization": 0.9, "kv_cache_memory_bytes": None})
    parameters = model.parameters(compute_capability="12.0", gpu_memory_bytes=96 * 1024**3)
    result = run_module(launch_preflight, **parameters)
    assert model.seen["question"]["compute_capability"] == "12.0"
    assert result["memory"]["estimated"] and result["memory"]["memory_bytes"] == 96 * 1024**3
    result = run_module(launch_preflight, **model.parameters(compute_capability="sm120"))
    assert result["msg"] == "compute_capability 'sm120' is not two numbers with a dot, such as 12.0."


def test_what_the_host_has_against_the_launch_is_a_finding_with_or_without_an_engine(run_module, model, monkeypatch):
    facts = HostFacts(GpuReport(False), shm=Space("/dev/shm", 64 * 1024**2, 64 * 1024**2), memory_total_bytes=GIB)
    monkeypatch.setattr(preflight_host, "collect", lambda *_: facts)
    model.engine_says(config=TOLD)
    parameters = model.parameters(arguments={"tensor-parallel-size": 8})
    assert "shm_too_small" in [finding["id"] for finding in run_module(launch_preflight, **parameters)["findings"]]
    result = run_module(launch_preflight, check=True, **{**parameters, "runtime": "/no/such/runtime"})
    assert {"shm_too_small", "engine_not_asked"} <= {finding["id"] for finding in result["findings"]}


def test_the_smallest_gpu_of_the_host_is_what_has_to_hold_the_model(run_module, model, monkeypatch):
    gpus = tuple(
        Gpu(number, f"0000:{number:02x}:00.0", memory_total_bytes=size * GIB) for number, size in enumerate((96, 48))
    )
    monkeypatch.setattr(preflight_host, "collect", lambda *_: HostFacts(GpuReport(True, gpus=gpus)))
    model.engine_says(config={**TOLD, "device": "cuda", "gpu_memory_utilization": 0.9, "kv_cache_memory_bytes": None})
    result = run_module(launch_preflight, **model.parameters(arguments={"tensor-parallel-size": 2}))
    assert result["memory"]["memory_bytes"] == 48 * GIB
    result = run_module(launch_preflight, **model.parameters(arguments={"tensor-parallel-size": 2}, gpu_memory_bytes=7))
    assert result["memory"]["memory_bytes"] == 7


def test_a_known_hazard_is_a_finding(run_module, model, monkeypatch):
    hazard = Finding("garbled", "no_go", "Answers are garbled.", "vllm 0.32.0", "use 0.33.0")
    monkeypatch.setattr(preflight_host, "hazard_findings", lambda traits: [hazard])
    model.engine_says(config=TOLD)
    result = run_module(launch_preflight, **model.parameters())
    assert result["failed"] and [finding["id"] for finding in result["findings"]] == ["garbled"]


def test_code_that_is_linked_in_the_snapshot_is_a_copy_in_the_view_and_no_hazard(run_module, model):
    packages = model.directory / "runtime/lib/python3.12/site-packages"
    for name in ("vllm-0.32.0", "transformers-5.12.1"):
        (packages / f"{name}.dist-info").mkdir(parents=True)
    (model.snapshot / "modeling.py").symlink_to("config.json")
    model.engine_says(kv_cache_dtype="auto")
    result = run_module(launch_preflight, **model.parameters(arguments={"trust-remote-code": True}))
    assert "linked_code" not in [finding["id"] for finding in result["findings"]]
