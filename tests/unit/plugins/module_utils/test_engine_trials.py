from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from types import ModuleType, SimpleNamespace

import pytest
from ansible_collections.llmops.vllm.plugins.module_utils.engine_probe import EngineAnswer
from ansible_collections.llmops.vllm.plugins.module_utils.engine_trials import TRIALS
from ansible_collections.llmops.vllm.plugins.module_utils.preflight_trials import judge_trials

PARALLEL = SimpleNamespace(tensor_parallel_size=8, data_parallel_size=1)
CONFIG = SimpleNamespace(parallel_config=PARALLEL, model_config=SimpleNamespace(model="", dtype="bfloat16"))


class Engine:
    """An engine made of modules that a test puts together, and the trials that are made with it."""

    def __init__(self, monkeypatch):
        self._monkeypatch = monkeypatch
        self.names = {"os": os, "tempfile": tempfile, "told": lambda error: f"{type(error).__name__}: {error}"}
        exec(TRIALS, self.names)

    def module(self, name, **contents):
        module = ModuleType(name)
        vars(module).update(contents)
        parent, _dot, own = name.rpartition(".")
        if parent:
            if parent not in sys.modules:
                self.module(parent)
            self._monkeypatch.setattr(sys.modules[parent], own, module, raising=False)
        self._monkeypatch.setitem(sys.modules, name, module)
        return module

    def trials(self, config=CONFIG, wanted="", **arguments):
        return self.names["trials"](config, SimpleNamespace(**arguments), wanted)


@pytest.fixture
def engine(monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] in ("vllm", "torch", "transformers")]:
        monkeypatch.delitem(sys.modules, name)
    made = Engine(monkeypatch)
    for name in ("vllm", "torch", "transformers"):
        made.module(name)
    return made


def builder(engine, build):
    """Give the engine what it takes to build a model; return the group of ranks, and what was set before and after."""
    group, dtypes = SimpleNamespace(world_size=1), []

    @contextlib.contextmanager
    def nothing(*_arguments):
        yield

    engine.module("torch.cuda")
    module = type("Module", (), {"to": lambda self, device: 1 / 0})
    torch = sys.modules["torch"]
    torch.nn = SimpleNamespace(Module=module)
    torch.device, torch.get_default_dtype, torch.set_default_dtype = nothing, lambda: "float32", dtypes.append
    engine.module("vllm.config", set_current_vllm_config=nothing)
    state = {"init_distributed_environment": lambda *_: None, "get_tp_group": lambda: group}
    engine.module("vllm.distributed.parallel_state", initialize_model_parallel=lambda *_, **__: None, **state)
    engine.module("vllm.model_executor.model_loader.utils", initialize_model=build)
    return group, dtypes


def test_an_engine_that_lacks_everything_that_is_tried_says_nothing(engine):
    said = engine.trials()
    assert set(said) == {"variables", "files", "processors", "model", "attention", "chat_template"}
    assert not any(said.values())


def test_a_variable_that_the_engine_cannot_read_is_an_objection_and_one_that_is_not_set_is_not_read(
    engine, monkeypatch
):
    class Envs(ModuleType):
        environment_variables = ("VLLM_PORT", "VLLM_OTHER")
        read = ()

        def __getattr__(self, name):
            if name not in self.environment_variables:
                raise AttributeError(name)
            self.read = (*self.read, name)
            raise ValueError("appears to be a URI")

    envs = Envs("vllm.envs")
    monkeypatch.setitem(sys.modules, "vllm.envs", envs)
    sys.modules["vllm"].envs = envs
    monkeypatch.delenv("VLLM_OTHER", raising=False)
    monkeypatch.setenv("VLLM_PORT", "tcp://192.0.2.1:8000")
    assert engine.trials()["variables"] == "VLLM_PORT: ValueError: appears to be a URI"
    assert envs.read == ("VLLM_PORT",)


def test_files_that_the_services_user_may_not_read_are_named(engine, tmp_path, monkeypatch):
    for number in range(5):
        (tmp_path / f"{number}.safetensors").touch()
    config = SimpleNamespace(model_config=SimpleNamespace(model=str(tmp_path)), parallel_config=PARALLEL)
    assert engine.trials(config)["files"] == ""
    monkeypatch.setattr(os, "access", lambda path, mode: path.endswith("0.safetensors"))
    assert engine.trials(config)["files"] == (
        "Permission denied: 1.safetensors, 2.safetensors, 3.safetensors and others"
    )


@pytest.mark.parametrize(("cpu", "said"), [(True, "AssertionError: Given number of CPU id list"), (False, "")])
def test_the_processors_are_divided_where_the_engine_runs_on_them(engine, cpu, said):
    def divide(config):
        raise AssertionError("Given number of CPU id list")

    engine.module("vllm.platforms", current_platform=SimpleNamespace(is_cpu=lambda: cpu))
    engine.module("vllm.utils.ompmultiprocessing", OMPProcessManager=divide)
    assert engine.trials()["processors"] == said


def test_a_model_is_built_as_the_first_of_its_ranks_without_memory_and_without_a_gpu(engine):
    def build(vllm_config):
        torch = sys.modules["torch"]
        assert torch.nn.Module().to("cuda") is not None
        assert dtypes == ["bfloat16"]
        assert group.world_size == 8
        torch.cuda._lazy_init()

    group, dtypes = builder(engine, build)
    assert engine.trials()["model"] is None  # a model that wants the GPU for that cannot be tried
    assert dtypes == ["bfloat16", "float32"]


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (KeyError("original_max_position_embeddings"), "KeyError: 'original_max_position_embeddings'"),
        (ValueError("Failed to find a kernel"), "ValueError: Failed to find a kernel"),
        (ValueError("a meta tensor has no data"), ""),
        (NotImplementedError("aten::equal"), None),
        (RuntimeError("Tensor.item() cannot be called"), None),
    ],
)
def test_what_the_models_class_refuses_is_an_objection_and_what_only_a_probe_meets_is_not(engine, error, said):
    def build(vllm_config):
        raise error

    builder(engine, build)
    assert engine.trials()["model"] == said


def test_a_model_over_several_engines_is_not_tried(engine):
    builder(engine, lambda vllm_config: 1 / 0)
    parallel = SimpleNamespace(tensor_parallel_size=1, data_parallel_size=2)
    config = SimpleNamespace(parallel_config=parallel, model_config=CONFIG.model_config)
    assert engine.trials(config)["model"] is None


@pytest.mark.parametrize(
    ("is_cpu", "error", "said"),
    [
        (True, NotImplementedError("FP8 needs AVX-512"), "NotImplementedError: FP8 needs AVX-512"),
        (True, AttributeError("of another version"), None),
        (False, NotImplementedError("not asked of a GPU"), ""),
        (True, None, ""),
    ],
)
def test_the_attention_of_each_layer_is_prepared_where_it_needs_no_gpu(engine, is_cpu, error, said):
    asked = []

    def prepare(spec, names, config, device):
        asked.append((spec, names, device))
        if error:
            raise error

    backend = SimpleNamespace(get_builder_cls=lambda: prepare)
    layer = SimpleNamespace(get_kv_cache_spec=lambda config: "spec", get_attn_backend=lambda: backend)
    builder(engine, lambda vllm_config: None)
    sys.modules["torch"].device = lambda name: name
    engine.module("vllm.platforms", current_platform=SimpleNamespace(is_cpu=lambda: is_cpu))
    compilation = SimpleNamespace(static_forward_context={"layers.0": layer})
    config = SimpleNamespace(compilation_config=compilation, **vars(CONFIG))
    assert engine.trials(config)["attention"] == said
    assert asked[:1] == ([("spec", ["layers.0"], "cpu")] if is_cpu else [])


def test_a_machine_that_answers_for_other_gpus_says_nothing_of_its_own(engine):
    assert set(engine.trials(wanted="12.0")) == {"variables", "files", "chat_template"}


@pytest.mark.parametrize(
    ("text", "said"),
    [("{{ fine }}", ""), ("{% for message in messages %}{{ message }", "TemplateSyntaxError: unexpected '}' (line 1)")],
)
def test_a_chat_template_is_compiled(engine, text, said):
    jinja2 = pytest.importorskip("jinja2")
    tokenizer = SimpleNamespace(get_chat_template=lambda given: given)
    engine.module("vllm.entrypoints.chat_utils", load_chat_template=lambda given: given)
    engine.module("vllm.tokenizers", cached_tokenizer_from_config=lambda config: tokenizer)
    engine.module("transformers.utils", chat_template_utils=SimpleNamespace())
    sys.modules["transformers.utils"].chat_template_utils._compile_jinja_template = jinja2.Environment().from_string
    assert engine.trials(chat_template=text)["chat_template"] == said


def judged(trials, device="cpu"):
    answer = EngineAnswer("done", "", "0.32.0", "auto", {"device": device}, {}, trials)
    return {found.id: found.severity for found in judge_trials(answer, "vLLM 0.32.0")}


def test_every_objection_stops_a_launch_on_the_cpu():
    everything = dict.fromkeys(("variables", "files", "processors", "model", "attention", "chat_template"), "no")
    assert judged(everything) == dict.fromkeys(
        ("environment", "file_forbidden", "cpu_binding", "model_refused", "attention_refused", "chat_template"), "no_go"
    )


def test_a_model_that_a_gpu_might_yet_take_is_a_warning():
    assert judged({"model": "KeyError: 'x'", "files": "no"}, "cuda") == {
        "model_refused": "warn",
        "file_forbidden": "no_go",
    }


def test_trials_that_passed_or_could_not_be_made_are_no_finding():
    assert judged({"model": "", "files": None, "a trial of a later version": "no"}) == {}
