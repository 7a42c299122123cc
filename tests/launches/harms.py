"""What is done to a tiny model before a launch. Each harm is given the model's folder."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ansible_collections.llmops.vllm.tests.rig import tiny_models

Harm = Callable[[Path], None]
INDEX = "model.safetensors.index.json"
UP = "model.layers.1.mlp.up_proj.weight"
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab2935c943f9e0ff69d22e\nsize 662600\n"


def nothing(folder: Path) -> None:
    """The model as it is."""


def shard(number: int) -> str:
    """Name of a shard of the tiny Kimi."""
    return f"model-{number:05d}-of-00119.safetensors"


def remove(*names: str) -> Harm:
    """Let files be gone."""

    def harm(folder: Path) -> None:
        for name in names:
            (folder / name).unlink()

    return harm


def write(name: str, content: bytes) -> Harm:
    """Let a file have another content."""
    return lambda folder: (folder / name).write_bytes(content) and None


def cut(name: str, size: int) -> Harm:
    """Let a file end early."""
    return lambda folder: os.truncate(folder / name, size)


def forbid(name: str) -> Harm:
    """Let a file be readable by its owner alone, who is not the service's user."""
    return lambda folder: (folder / name).chmod(0o600)


def empty(folder: Path) -> None:
    """Let the model's folder have nothing in it."""
    for path in folder.iterdir():
        path.unlink()


def configure(**changes: Any) -> Harm:
    """Change values of config.json, of the text model's part where there is one; None removes one."""

    def harm(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        text = config.get("text_config", config)
        for name, value in changes.items():
            for place in (text, config) if name == "quantization_config" else (text,):
                place[name] = value
            if name == "architectures":
                config[name] = value
        tiny_models.write_json(folder / "config.json", config)

    return harm


def unquantised(folder: Path) -> None:
    """Take the quantisation out of config.json and leave it in hf_quant_config.json, which then counts."""
    config = json.loads((folder / "config.json").read_text())
    del config["quantization_config"]
    tiny_models.write_json(folder / "config.json", config)


def quantised(folder: Path) -> None:
    """Ask for NVFP4 in earnest, with no module left out."""
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"].update(ignore=["lm_head"], exclude_modules=["lm_head"])
    tiny_models.write_json(folder / "config.json", config)


def ghost(folder: Path) -> None:
    """Let the index name a file that is not there."""
    index = json.loads((folder / INDEX).read_text())
    index["weight_map"][next(iter(index["weight_map"]))] = "model-00120-of-00119.safetensors"
    tiny_models.write_json(folder / INDEX, index)


def rewrite(change: Callable[[dict[str, tiny_models.Tensor]], object]) -> Harm:
    """Change the tensors of the tiny Llama."""

    def harm(folder: Path) -> None:
        tensors = tiny_models.llama_tensors(tiny_models.llama_config(), tiny_models.Weights(seed=1))
        change(tensors)
        tiny_models.write_shards(folder, tensors, 1)

    return harm


short_up = rewrite(lambda tensors: tensors.update({UP: ("BF16", (100, 256), bytes(100 * 256 * 2))}))
without_up = rewrite(lambda tensors: tensors.pop(UP))
