"""As much of an engine's source as the preflight reads: of our own making, with rules of its own."""

from __future__ import annotations

from pathlib import Path

FILES = {
    "vllm/__init__.py": "",
    "vllm/envs.py": "environment_variables = {}\n",
    "vllm/config/__init__.py": "def get_current_vllm_config():\n    raise AssertionError\n",
    "vllm/config/model.py": """
class ModelConfig:
    def verify_with_parallel_config(self, parallel_config):
        heads = self.model_arch_config.total_num_attention_heads
        if heads % parallel_config.tensor_parallel_size != 0:
            raise ValueError(f"{heads} heads do not go by {parallel_config.tensor_parallel_size}")
""",
    "vllm/platforms/__init__.py": "def __getattr__(name):\n    raise AttributeError(name)\n",
    "vllm/platforms/cuda.py": """
from functools import cache

from vllm.v1.attention.backends.registry import AttentionBackendEnum


@cache
def _get_backend_priorities(use_mla, device_capability, num_heads=None):
    if use_mla:
        return [AttentionBackendEnum.QUICK_MLA, AttentionBackendEnum.PLAIN_MLA]
    return [AttentionBackendEnum.PLAIN]


class CudaPlatformBase:
    @classmethod
    def get_device_capability(cls, device_id=0):
        raise NotImplementedError

    @classmethod
    def has_device_capability(cls, capability):
        return cls.get_device_capability().to_int() >= capability

    @classmethod
    def get_vit_attn_backend(cls, head_size, dtype, backend=None):
        if backend is not None:
            assert backend == AttentionBackendEnum.PLAIN, f"{backend} is not supported"
            return backend
        return AttentionBackendEnum.PLAIN
""",
    "vllm/utils/import_utils.py": "def resolve_obj_by_qualname(path):\n    raise ImportError\n",
    "vllm/utils/flashinfer.py": """
import importlib.util


def has_flashinfer():
    return importlib.util.find_spec("flashinfer") is not None
""",
    "vllm/utils/torch_utils.py": """
def resolve_kv_cache_dtype_string(kv_cache_dtype, model_config):
    if kv_cache_dtype != "auto":
        return kv_cache_dtype
    config = getattr(model_config.hf_config, "quantization_config", None)
    return "fp8" if config is not None and config.get("kv") == 8 else "auto"
""",
    "vllm/transformers_utils/model_arch_config_convertor.py": """
class ModelArchConfigConvertorBase:
    def get_quantization_config(self):
        found = getattr(self.hf_config, "quantization_config", None)
        if found is not None and "producer" in found:
            found["quant_method"] = "modelopt"
        return found
""",
    "vllm/transformers_utils/configs/copying.py": """
class Copying:
    def __init__(self, text_config):
        self.quantization_config = text_config.quantization_config
""",
    "vllm/v1/attention/backends/registry.py": """
from enum import Enum


class AttentionBackendEnum(Enum):
    QUICK_MLA = "vllm.v1.attention.backends.latent.Quick"
    PLAIN_MLA = "vllm.v1.attention.backends.latent.Plain"
    PLAIN = "vllm.v1.attention.backends.latent.Ordinary"
    LOST = "vllm.v1.attention.backends.lost.Lost"
""",
    "vllm/v1/attention/backend.py": """
class AttentionBackend:
    dtypes = ["auto", "bfloat16"]

    @classmethod
    def is_mla(cls):
        return False

    @classmethod
    def supports_compute_capability(cls, capability):
        return True

    @classmethod
    def validate_configuration(cls, head_size, kv_cache_dtype, use_mla, device_capability, use_dcp=False):
        reasons = []
        if kv_cache_dtype not in cls.dtypes:
            reasons.append("kv_cache_dtype not supported")
        if use_mla != cls.is_mla():
            reasons.append("MLA not supported" if use_mla else "non-MLA not supported")
        if not cls.supports_compute_capability(device_capability):
            reasons.append("compute capability not supported")
        if use_dcp:
            reasons.append("DCP not supported")
        return reasons
""",
    "vllm/v1/attention/backends/latent.py": """
from vllm.utils.flashinfer import has_flashinfer
from vllm.v1.attention.backend import AttentionBackend


class Ordinary(AttentionBackend):
    dtypes = ["auto", "fp8"]


class Plain(AttentionBackend):
    @classmethod
    def is_mla(cls):
        return True


class Quick(Plain):
    dtypes = ["auto", "bfloat16", "fp8"]

    @classmethod
    def supports_compute_capability(cls, capability):
        return capability.major == 9 and has_flashinfer()
""",
    "vllm/v1/attention/backends/mla/prefill/selector.py": """
class Fast:
    @staticmethod
    def get_name():
        return "FAST"


def get_mla_prefill_backend(vllm_config):
    from vllm.platforms import current_platform

    if not current_platform.has_device_capability(90):
        raise ValueError("no backend for the prefill")
    return Fast
""",
    "vllm/model_executor/models/registry.py": """
_TEXT = {"AcmeForCausalLM": ("acme", "AcmeForCausalLM")}
_VLLM_MODELS = {**_TEXT}
""",
    "vllm/model_executor/layers/quantization/__init__.py": """
from typing import Literal, get_args

QuantizationMethods = Literal["modelopt", "modelopt_fp4", "old"]
QUANTIZATION_METHODS: list = list(get_args(QuantizationMethods))


class ModelOpt:
    @classmethod
    def get_min_capability(cls):
        return 80

    @classmethod
    def override_quantization_method(cls, config, user):
        return None


class Fp4(ModelOpt):
    @classmethod
    def override_quantization_method(cls, config, user):
        return "modelopt_fp4" if config.get("algo") == "NVFP4" else None


def get_quantization_config(quantization):
    return {"modelopt": ModelOpt, "modelopt_fp4": Fp4}[quantization]
""",
    "vllm/model_executor/layers/quantization/utils/quant_utils.py": "kNvfp4Static = 1\nkNvfp4Dynamic = 2\n",
    "vllm/model_executor/layers/fused_moe/oracle/nvfp4.py": """
from enum import Enum

from vllm.platforms import current_platform


class Kernels(Enum):
    FAST = "fast"
    SLOW = "slow"


def select_nvfp4_moe_backend(config, weight, activation):
    if config.moe_backend == "fast" and not current_platform.has_device_capability(100):
        raise ValueError(f"fast does not take {weight} and {activation} here")
    if config.moe_backend == "auto" and config.moe_parallel_config.use_ep:
        raise NotImplementedError("no backend for that")
    return (Kernels.FAST if current_platform.has_device_capability(100) else Kernels.SLOW), None
""",
}


def write_engine(site: Path) -> Path:
    """Write the files below ``site``, a directory of installed packages, and return it."""
    for name, text in FILES.items():
        path = site / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return site
