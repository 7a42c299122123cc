from __future__ import annotations

import pytest
from ansible_collections.llmops.vllm.plugins.module_utils.runtime_facts import Runtime, read_runtime

BUILT = "from typing import Optional\n__version__ = '2.9.1'\ncuda: Optional[str] = {cuda}\nhip: Optional[str] = {hip}\n"


def make(root, cuda="None", hip="None", names=()):
    site = root / "lib/python3.12/site-packages"
    (site / "torch").mkdir(parents=True)
    (site / "torch/version.py").write_text(BUILT.format(cuda=cuda, hip=hip))
    for name in names:
        (site / f"{name}.dist-info").mkdir()
    return read_runtime(str(root))


def test_packages_are_found_by_their_normal_names(tmp_path):
    runtime = make(tmp_path, "'12.9'", names=["vllm-0.32.0+cu129", "flashinfer_python-0.7.2", "Jinja2-3.1.6"])
    assert (runtime.device, runtime.cuda) == ("cuda", "12.9")
    assert (runtime.packages["vllm"], runtime.version("vllm"), runtime.version("flashinfer-python")) == (
        "0.32.0+cu129", "0.32.0", "0.7.2",
    )  # fmt: skip
    assert runtime.version("jinja2") == "3.1.6" and runtime.version("fastsafetensors") == ""


@pytest.mark.parametrize(
    ("settings", "device"), [({}, "cpu"), ({"hip": "'6.4'"}, "rocm"), ({"cuda": '"13.0"'}, "cuda")]
)
def test_the_device_is_the_one_that_torch_was_built_for(tmp_path, settings, device):
    assert make(tmp_path, **settings).device == device


def test_the_newest_python_of_an_environment_counts(tmp_path):
    (tmp_path / "lib/python3.11/site-packages/vllm-0.1.0.dist-info").mkdir(parents=True)
    assert make(tmp_path, names=["vllm-0.32.0"]).version("vllm") == "0.32.0"


def test_a_source_file_is_read_and_one_that_is_not_there_is_none(tmp_path):
    runtime = make(tmp_path)
    assert "__version__" in runtime.source("torch/version.py")
    assert runtime.source("vllm/nothing.py") is None and Runtime().source("torch/version.py") is None


def test_a_runtime_that_is_not_there_has_nothing(tmp_path):
    assert read_runtime(str(tmp_path / "none")) == Runtime(str(tmp_path / "none"))
    (tmp_path / "lib").mkdir()
    assert read_runtime(str(tmp_path)).device == ""
