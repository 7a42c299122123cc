from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path

import pytest
from ansible_collections.llmops.vllm.plugins.module_utils.engine_probe import (
    EngineAnswer,
    ProbeUser,
    ask_engine,
    read_answer,
)
from ansible_collections.llmops.vllm.plugins.module_utils.engine_script import PROBE

DONE = {"stage": "done", "error": "", "version": "0.32.0", "kv_cache_dtype": "fp8_e4m3"}


class Runtime:
    """An interpreter that is not Python: it is started as one, and says what a test wants it to say."""

    def __init__(self, directory):
        self.directory = directory
        self.python = directory / "python"

    def does(self, code):
        self.python.write_text(
            f"#!{sys.executable} -S\nimport json, os, subprocess, sys, time\nfolder = {str(self.directory)!r}\n{code}\n"
        )
        self.python.chmod(0o755)

    def answers(self, **changes):
        self.does(f"sys.stdin.read(); print({json.dumps({**DONE, **changes})!r})")

    def records(self):
        """Write down what it is given, the environment without what Python itself adds to an empty one."""
        self.does(
            "seen = {'argv': sys.argv[1:], 'question': json.load(sys.stdin), 'cwd': os.getcwd(), 'uid': os.getuid(),\n"
            "        'groups': os.getgroups(), 'environment': dict(os.environ)}\n"
            "seen['environment'].pop('LC_CTYPE', None)\n"
            f"print(json.dumps({{**{DONE!r}, 'error': json.dumps(seen)}}))"
        )

    def ask(self, **changes):
        parameters = {
            "python": str(self.python), "serve_yaml": "port: 8000\n", "model": "/srv/llm/store/acme--model/1",
            "environment": {}, "timeout_seconds": 30, **changes,
        }  # fmt: skip
        return ask_engine(**parameters)

    def seen(self, **changes):
        return json.loads(self.ask(**changes).error)


@pytest.fixture
def runtime(tmp_path):
    return Runtime(tmp_path)


def test_an_answer_is_read_field_by_field():
    assert read_answer(json.dumps(DONE), "") == EngineAnswer("done", "", "0.32.0", "fp8_e4m3")
    assert read_answer(json.dumps({**DONE, "news": 1}), "noise") == EngineAnswer("done", "", "0.32.0", "fp8_e4m3")


@pytest.mark.parametrize("text", ["", "Killed", "[]", "7", "null", '"done"', "{}", '{"stage": "done"}', '{"stage"'])
def test_what_is_no_answer_is_silence_with_the_last_complaint(text):
    assert read_answer(text, "first\nSegmentation fault\n\n") == EngineAnswer("silent", "Segmentation fault", "", "")


def test_silence_without_a_complaint_says_so_and_a_long_one_is_cut():
    assert read_answer("", " \n").error == "it ended without an answer"
    assert len(read_answer("", "x" * 9999).error) == 500


@pytest.mark.parametrize("stage", ["import", "broken", "parse", "config", "done"])
def test_every_stage_is_passed_on_as_it_is(runtime, stage):
    runtime.answers(stage=stage, error="said the engine")
    assert runtime.ask() == EngineAnswer(stage, "said the engine", "0.32.0", "fp8_e4m3")


def test_the_probe_is_run_with_arguments_and_model_on_its_standard_input_only(runtime):
    runtime.records()
    seen = runtime.seen(serve_yaml="api-key: sk-very-secret\n")
    assert seen["question"] == {
        "serve_yaml": "api-key: sk-very-secret\n", "model": "/srv/llm/store/acme--model/1", "compute_capability": "",
    }  # fmt: skip
    assert seen["argv"] == ["-c", PROBE]


def test_an_interpreter_that_prints_something_else_is_silent(runtime):
    runtime.does("sys.stdin.read(); print('Python 2.7.18'); print('warning', file=sys.stderr)")
    assert runtime.ask() == EngineAnswer("silent", "warning", "", "")


def test_an_interpreter_that_does_not_read_and_dies_is_silent(runtime):
    runtime.does("print('libpython.so: cannot open', file=sys.stderr); sys.exit(127)")
    assert runtime.ask(serve_yaml="x" * 1_000_000) == EngineAnswer("silent", "libpython.so: cannot open", "", "")


def test_output_that_is_no_text_is_no_reason_to_fail(runtime):
    runtime.does("sys.stdin.read(); os.write(1, b'\\xff\\xfe'); os.write(2, b'bad \\xff\\n')")
    assert runtime.ask().stage == "silent"


def test_after_the_time_nothing_of_the_probe_is_left(runtime):
    runtime.does(
        "child = subprocess.Popen(['sleep', '60'])\n"
        "open(folder + '/pids', 'w').write(f'{os.getpid()} {child.pid}')\n"
        "time.sleep(60)"
    )
    start = time.monotonic()
    assert runtime.ask(timeout_seconds=1.5) == EngineAnswer("silent", "it did not answer within 1.5 s", "", "")
    assert time.monotonic() - start < 30
    for pid in (runtime.directory / "pids").read_text().split():
        assert not _alive(pid)


def test_a_helper_that_outlives_the_probe_with_its_output_is_ended_too(runtime):
    runtime.does(
        "child = subprocess.Popen(['sleep', '60'])\nopen(folder + '/pids', 'w').write(str(child.pid))\nsys.exit(0)"
    )
    assert runtime.ask(timeout_seconds=1.5).stage == "silent"
    assert not _alive((runtime.directory / "pids").read_text())


def _alive(pid):
    """Whether it runs; a zombie that nobody has collected yet does not."""
    for _ in range(100):
        try:
            with open(f"/proc/{pid}/stat") as file:
                state = file.read().rpartition(")")[2].split()[0]
        except OSError:
            return False
        if state in "ZX":
            return False
        time.sleep(0.02)
    return True


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda python: None, "No such file or directory"),
        (lambda python: python.write_text("#!/bin/sh\n"), "Permission denied"),
        (lambda python: (python.write_text("#!/no/such/interpreter\n"), python.chmod(0o755)), "No such file"),
    ],
)
def test_a_file_that_cannot_be_run_is_named(runtime, make, reason):
    make(runtime.python)
    answer = runtime.ask()
    assert (answer.stage, answer.version) == ("silent", "")
    assert answer.error.startswith(f"{runtime.python} cannot be run: {reason}")


def test_an_environment_that_no_process_can_have_is_told(runtime):
    runtime.answers()
    assert "null byte" in runtime.ask(environment={"A": "x\0y"}).error


def test_nothing_of_the_callers_environment_is_inherited(runtime, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("PYTHONPATH", "/somewhere")
    monkeypatch.setenv("LD_PRELOAD", "")
    runtime.records()
    environment = runtime.seen(environment={"OMP_NUM_THREADS": "4"})["environment"]
    home = environment["HOME"]
    assert environment == {
        "PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8", "OMP_NUM_THREADS": "4", "HOME": home, "TMPDIR": home,
        "HF_HOME": home, "VLLM_CACHE_ROOT": home, "VLLM_RPC_BASE_PATH": home, "VLLM_LOGGING_LEVEL": "WARNING",
        "PYTHONDONTWRITEBYTECODE": "1",
    }  # fmt: skip


def test_its_home_is_a_directory_of_its_own_that_goes_with_it(runtime):
    runtime.records()
    first, second = runtime.seen(), runtime.seen(environment={"HOME": "/var/lib/vllm/kimi"})
    homes = {seen["environment"]["HOME"] for seen in (first, second)}
    assert len(homes) == 2 and homes == {first["cwd"], second["cwd"]}
    assert not any(os.path.exists(home) for home in homes)


def test_caches_of_the_service_are_not_written_to(runtime):
    runtime.records()
    places = {name: "/var/cache/vllm/kimi" for name in ("XDG_CACHE_HOME", "TRITON_CACHE_DIR", "HF_HUB_CACHE")}
    environment = runtime.seen(environment=places)["environment"]
    assert {environment[name] for name in places} == {environment["HOME"]}


def test_a_setting_that_speaks_of_a_cache_but_is_no_place_stays_what_it_is(runtime):
    settings = {"VLLM_CPU_KVCACHE_SPACE": "40", "VLLM_DISABLE_COMPILE_CACHE": "1"}
    runtime.records()
    assert settings.items() <= runtime.seen(environment=settings)["environment"].items()


def test_the_engines_own_cache_is_where_it_was_asked_to_be(runtime):
    runtime.records()
    assert (
        runtime.seen(cache="/var/cache/vllm/kimi/vllm")["environment"]["VLLM_CACHE_ROOT"] == "/var/cache/vllm/kimi/vllm"
    )


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_as_another_user_it_has_no_group_of_root_and_may_write_in_its_home():
    # Another user may look neither into pytest's directories nor into root's Python.
    with tempfile.TemporaryDirectory() as directory:
        os.chmod(directory, 0o755)
        python = Path(directory) / "python"
        python.write_text("#!/bin/sh\ntouch written || exit 1\necho $(id -u) $(id -g) $(id -G) >&2\n")
        python.chmod(0o755)
        answer = Runtime(Path(directory)).ask(user=ProbeUser(65534, 65534))
    assert answer == EngineAnswer("silent", "65534 65534 65534", "", "")


STUBS = {
    "yaml.py": """
import json

safe_load = json.loads


def safe_dump(data, file, sort_keys):
    json.dump(data, file)
""",
    "vllm/__init__.py": "",
    "vllm/engine/__init__.py": "",
    "vllm/engine/arg_utils.py": """
import json, types


class Refused(ValueError):
    def errors(self):
        return [{"msg": "Value error, no backend takes fp8"}, {"msg": "and no other"}]


class Dtype:
    def __str__(self):
        return "torch.bfloat16"


class AsyncEngineArgs:
    @classmethod
    def from_cli_args(cls, arguments):
        made = cls()
        made.wanted = arguments.wanted
        return made

    def create_engine_config(self):
        print("noise on the standard output")
        if self.wanted.get("fails") == "refused":
            raise Refused
        if self.wanted.get("fails") == "missing":
            import tiktoken_of_the_model
        if self.wanted.get("fails") == "tell":
            raise ValueError(self.wanted["model"])
        if self.wanted.get("fails") == "value":
            raise ValueError("model is not there")
        wanted = self.wanted
        made = types.SimpleNamespace
        model = made(
            max_model_len=2048, dtype=Dtype(), quantization=None, enforce_eager=False, use_mla=True,
            architecture="AcmeForCausalLM", hf_text_config=made(), multimodal_config=None,
            get_head_size=lambda: 576, get_num_attention_heads=lambda parallel: 8,
        )
        cache = made(cache_dtype=wanted.get("kv", "auto"), block_size=16, gpu_memory_utilization=0.9)
        parallel = made(tensor_parallel_size=2, pipeline_parallel_size=1, decode_context_parallel_size=1)
        return made(
            model_config=model, cache_config=cache, parallel_config=parallel, speculative_config=None,
            scheduler_config=made(max_num_seqs=64, max_num_batched_tokens=8192),
        )
""",
    "vllm/config.py": """
import contextlib


@contextlib.contextmanager
def set_current_vllm_config(config):
    yield
""",
    "vllm/utils/__init__.py": "",
    "vllm/utils/torch_utils.py": "def is_quantized_kv_cache(dtype):\n    return dtype.startswith('fp8')\n",
    "vllm/v1/__init__.py": "",
    "vllm/v1/attention/__init__.py": "",
    "vllm/v1/attention/selector.py": """
from typing import NamedTuple


class AttentionSelectorConfig(NamedTuple):
    head_size: int
    dtype: str
    kv_cache_dtype: str
    block_size: object = None
    use_mla: bool = False
""",
    "vllm/v1/attention/backends.py": """
import types


class Latent:
    takes = ["auto"]

    @staticmethod
    def get_name():
        return "LATENT"

    @classmethod
    def validate_configuration(cls, device_capability, kv_cache_dtype, **rest):
        return [] if kv_cache_dtype in cls.takes else ["kv_cache_dtype not supported"]


class Broken(Latent):
    @classmethod
    def validate_configuration(cls, **rest):
        raise ImportError("no compiled part")
""",
    "vllm/platforms/interface.py": """
from typing import NamedTuple


class DeviceCapability(NamedTuple):
    major: int
    minor: int
""",
    "vllm/platforms/__init__.py": """
import os, types


class Processor:
    device_type = device_name = "cpu"
    is_cuda = staticmethod(lambda: False)

    @classmethod
    def get_attn_backend_cls(cls, chosen, asked, heads):
        return "vllm.v1.attention.backends." + os.environ.get("BACKEND", "Latent")


class Gpu(Processor):
    device_type, device_name = "cuda", "ACME 9000"
    is_cuda = staticmethod(lambda: True)

    @classmethod
    def get_device_capability(cls, device_id=0):
        from vllm.platforms.interface import DeviceCapability

        return DeviceCapability(12, 0)

    @classmethod
    def get_valid_backends(cls, capability, asked, heads):
        from vllm.v1.attention.backends import Latent

        entry = type("Entry", (), {"name": "LATENT"})
        reasons = Latent.validate_configuration(device_capability=capability, **asked._asdict())
        return ([], {entry: (0, reasons)}) if reasons else ([types.SimpleNamespace(backend=entry)], {})

    @classmethod
    def get_attn_backend_cls(cls, chosen, asked, heads):
        if cls.get_valid_backends(cls.get_device_capability(), asked, heads)[0]:
            return "vllm.v1.attention.backends.Latent"
        raise ValueError("No valid attention backend found for ACME 9000")


current_platform = {"gpu": Gpu, "cpu": Processor}[os.environ.get("DEVICE", "cpu")]
""",
    "vllm/entrypoints/__init__.py": "",
    "vllm/entrypoints/cli/__init__.py": "",
    "vllm/entrypoints/cli/serve.py": """
import argparse, json


class FlexibleArgumentParser(argparse.ArgumentParser):
    def parse_args(self, words):
        arguments = super().parse_args(words)
        with open(arguments.config) as file:
            arguments.wanted = json.load(file)
        if "no-such-flag" in arguments.wanted:
            self.error("unrecognized arguments: --no-such-flag")
        return arguments


class ServeSubcommand:
    def subparser_init(self, parsers):
        parsers.add_parser("serve").add_argument("--config")

    def validate(self, arguments):
        if "silent" in arguments.wanted:
            raise SystemExit(2)
""",
    "vllm-9.9.dist-info/METADATA": "Metadata-Version: 2.1\nName: vllm\nVersion: 9.9\n",
}


@pytest.fixture
def engine(runtime):
    """The real probe under a real Python, over as much of an engine as it calls."""
    site = runtime.directory / "site"
    for name, text in STUBS.items():
        path = site / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def ask(arguments, **environment):
        settings = {"PYTHONPATH": str(site), **environment}
        return runtime.ask(python=sys.executable, serve_yaml=arguments, environment=settings)

    ask.site = site
    return ask


def test_the_probe_gives_the_engine_its_arguments_and_the_model(engine):
    answer = engine('{"port": 8000, "fails": "tell"}')
    assert (answer.stage, answer.error) == ("config", "ValueError: /srv/llm/store/acme--model/1")


def test_what_the_engine_resolves_is_told_by_its_own_names(engine):
    answer = engine('{"kv": "fp8"}')
    assert (answer.stage, answer.version, answer.kv_cache_dtype) == ("done", "9.9", "fp8")
    assert answer.config == {
        "max_model_len": 2048, "dtype": "bfloat16", "quantization": None, "enforce_eager": False,
        "architecture": "AcmeForCausalLM", "max_num_seqs": 64, "max_num_batched_tokens": 8192, "block_size": 16,
        "gpu_memory_utilization": 0.9, "tensor_parallel_size": 2, "pipeline_parallel_size": 1,
        "decode_context_parallel_size": 1, "speculative": False, "kv_cache_dtype_asked": "", "device": "cpu",
    }  # fmt: skip


def test_an_answer_does_not_wait_until_the_engine_has_been_taken_apart(engine):
    (engine.site / "vllm/__init__.py").write_text(
        "import atexit, threading, time\n"
        "atexit.register(time.sleep, 60)\nthreading.Thread(target=time.sleep, args=(60,)).start()\n"
    )
    began = time.monotonic()
    assert engine("{}").stage == "done" and time.monotonic() - began < 30


@pytest.mark.parametrize(
    ("dtype", "reasons"), [("auto", []), ("bfloat16", []), ("fp8", ["kv_cache_dtype not supported"])]
)
def test_a_platform_that_validates_nothing_is_asked_through_its_backend(engine, dtype, reasons):
    said = engine(json.dumps({"kv": dtype})).attention
    assert (said["selected"], said["validates"], said["capability"]) == ("LATENT", False, "")
    assert said["refusing"] == {"LATENT": reasons}


def test_a_backend_that_cannot_be_loaded_refuses(engine):
    assert engine("{}", BACKEND="Broken").attention["refusing"] == {"LATENT": ["ImportError: no compiled part"]}


def test_the_selector_of_a_gpu_says_what_accepts_and_what_refuses(engine):
    said = engine("{}", DEVICE="gpu").attention
    assert (said["selected"], said["accepting"], said["refusing"]) == ("Latent", ["LATENT"], {})
    assert (said["validates"], said["capability"], said["device"]) == (True, "12.0", "ACME 9000")
    said = engine('{"kv": "fp8"}', DEVICE="gpu").attention
    assert (said["selected"], said["accepting"]) == ("", [])
    assert said["refusing"] == {"LATENT": ["kv_cache_dtype not supported"]}
    assert said["error"] == "No valid attention backend found for ACME 9000"


def test_a_selector_that_does_not_ask_for_the_number_of_heads_is_asked_without_it(engine):
    path = engine.site / "vllm/platforms/__init__.py"
    path.write_text(path.read_text().replace("asked, heads):", "asked):").replace("asked, heads)[0]", "asked)[0]"))
    assert engine("{}", DEVICE="gpu").attention["selected"] == "Latent"
    assert engine("{}").attention["selected"] == "LATENT"


def test_older_selectors_answer_with_pairs_and_bare_reasons(engine):
    path = engine.site / "vllm/platforms/__init__.py"
    text = path.read_text().replace("types.SimpleNamespace(backend=entry)", "(entry, 0)")
    path.write_text(text.replace("{entry: (0, reasons)}", "{entry: reasons}"))
    assert engine("{}", DEVICE="gpu").attention["accepting"] == ["LATENT"]
    said = engine('{"kv": "fp8"}', DEVICE="gpu").attention
    assert said["refusing"] == {"LATENT": ["kv_cache_dtype not supported"]}


@pytest.mark.parametrize("place", ["vllm/v1/kv_cache_interface.py", "vllm/v1/attention/backend.py"])
def test_what_counts_as_quantised_is_asked_wherever_a_version_has_it(engine, place):
    (engine.site / "vllm/utils/torch_utils.py").rename(engine.site / place)
    assert engine('{"kv": "fp8"}').attention["quantized"] is True
    assert engine("{}").attention["quantized"] is False


def test_an_engine_that_does_not_say_what_is_quantised_leaves_the_question_unanswered(engine):
    (engine.site / "vllm/utils/torch_utils.py").write_text("")
    assert "is_quantized_kv_cache" in engine("{}").attention["unanswered"]


def test_an_engine_without_such_a_selector_leaves_the_question_unanswered(engine):
    (engine.site / "vllm/v1/attention/selector.py").unlink()
    answer = engine("{}")
    assert answer.stage == "done" and list(answer.attention) == ["unanswered"]
    assert "selector" in answer.attention["unanswered"]


@pytest.mark.parametrize(
    "place", [f"vllm/entrypoints/{name}.py" for name in ("common/cli_args", "launchers/launcher", "openai/api_server")]
)
def test_parsers_that_the_engine_does_not_have_are_refused_wherever_a_version_looks_for_them(engine, place):
    path = engine.site / place
    path.parent.mkdir(parents=True)
    (path.parent / "__init__.py").write_text("")
    path.write_text("def validate_api_server_args(arguments):\n    raise KeyError('invalid tool call parser: nope')\n")
    answer = engine("{}")
    assert (answer.stage, answer.error) == ("config", "KeyError: 'invalid tool call parser: nope'")


def test_a_tokenizer_that_cannot_be_loaded_is_refused(engine):
    (engine.site / "vllm/tokenizers.py").write_text(
        "def cached_tokenizer_from_config(model):\n    raise ValueError('there is no tokenizer')\n"
    )
    answer = engine("{}")
    assert (answer.stage, answer.error) == ("config", "ValueError: there is no tokenizer")


@pytest.mark.parametrize(
    ("arguments", "stage", "error"),
    [
        ('{"no-such-flag": 1}', "parse", "ValueError: vllm: error: unrecognized arguments: --no-such-flag"),
        ('{"silent": 1}', "parse", "ValueError: the parser refused them without a word"),
        ("[1]", "parse", "ValueError: serve.yaml holds no mapping of arguments to values"),
        ("{", "parse", "JSONDecodeError: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"),
        ('{"fails": "refused"}', "config", "no backend takes fp8; and no other"),
        ('{"fails": "value"}', "config", "ValueError: model is not there"),
        ('{"fails": "missing"}', "broken", "ModuleNotFoundError: No module named 'tiktoken_of_the_model'"),
    ],
)
def test_the_probe_tells_how_far_the_engine_came_and_what_it_said(engine, arguments, stage, error):
    answer = engine(arguments)
    assert (answer.stage, answer.error, answer.version) == (stage, error, "9.9")


def test_an_engine_that_is_laid_out_differently_is_no_verdict_on_the_arguments(engine):
    (engine.site / "vllm/entrypoints/cli/serve.py").unlink()
    assert engine("{}").stage == "import"


def test_a_runtime_without_the_engine_is_broken(runtime):
    assert runtime.ask(python=sys.executable).stage == "broken"
