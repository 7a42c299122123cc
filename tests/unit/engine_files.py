"""As much of an engine's source as the preflight reads: of our own making, with rules of its own."""

from __future__ import annotations

from pathlib import Path

FILES = {
    "vllm/__init__.py": "",
    "vllm/envs.py": """
import os

environment_variables = {"VLLM_PP_LAYER_PARTITION": lambda: os.getenv("VLLM_PP_LAYER_PARTITION")}
""",
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

QuantizationMethods = Literal["modelopt", "modelopt_fp4", "mxfp4", "blocks", "gpt_oss_mxfp4", "compressed-tensors",
                              "old"]
QUANTIZATION_METHODS: list = list(get_args(QuantizationMethods))


class Base:
    @classmethod
    def get_min_capability(cls):
        return 80

    @classmethod
    def override_quantization_method(cls, config, user):
        return None

    @classmethod
    def from_config(cls, config):
        return cls(config.get("width"))


class ModelOpt(Base):
    def __init__(self, width):
        self.width = width

    def get_quant_method(self, layer, prefix):
        from vllm.model_executor.layers.fused_moe import Old

        return Old(layer.moe_config)


class Fp4(ModelOpt):
    @classmethod
    def override_quantization_method(cls, config, user):
        return "modelopt_fp4" if config.get("algo") == "NVFP4" else None

    def get_quant_method(self, layer, prefix):
        from vllm.model_executor.layers.fused_moe import Choosing, RoutedExperts

        if isinstance(layer, RoutedExperts):
            return Choosing(layer.moe_config, self.width or 1)


class Other(Fp4):
    @classmethod
    def override_quantization_method(cls, config, user, hf_config=None):
        return "gpt_oss_mxfp4" if getattr(hf_config, "model_type", None) == "gpt_oss" else None


class Blocks(Base):
    def __init__(self, width):
        self.width = width

    @classmethod
    def from_config(cls, config):
        return cls(config.get("weight_block_size"))

    def get_quant_method(self, layer, prefix):
        from vllm.model_executor.layers.fused_moe import RoutedExperts

        return BlocksOfExperts(self.width) if isinstance(layer, RoutedExperts) else self

    def create_weights(self, input_share):
        if input_share % self.width[0] != 0:
            raise ValueError(f"{input_share} is not divisible by blocks of {self.width[0]}")


class BlocksOfExperts(Blocks):
    def create_weights(self, layer, experts, hidden, share, dtype):
        if share % self.width[0] != 0:
            raise ValueError(f"{share} of an expert is not divisible by blocks of {self.width[0]}")


class Compressed(Base):
    def _is_small(self, scheme):
        from compressed_tensors.quantization import QuantizationArgs, QuantizationStrategy

        return isinstance(scheme, QuantizationArgs) and scheme.strategy == QuantizationStrategy.GROUP.value


def get_quantization_config(quantization):
    kinds = {"modelopt": ModelOpt, "modelopt_fp4": Fp4, "gpt_oss_mxfp4": Other, "mxfp4": ModelOpt, "blocks": Blocks}
    return {**kinds, "compressed-tensors": Compressed}[quantization]
""",
    "vllm/model_executor/layers/quantization/compressed_tensors/compressed_tensors_moe.py": """
from compressed_tensors import CompressionFormat

from vllm.model_executor.layers.fused_moe import Choosing, Old


class CompressedTensorsMoEMethod:
    @staticmethod
    def get_moe_method(quant_config, layer, layer_name):
        schemes = [quant_config.get_scheme_dict(layer, layer_name + name) for name in (".0.up_proj", ".0.down_proj")]
        scheme = schemes.pop()
        if not all([one == scheme for one in schemes]):
            raise ValueError("several schemes")
        if quant_config._is_small(scheme.get("weights")) and scheme.get("input_activations") is None:
            assert scheme.get("format") == CompressionFormat.pack_quantized.value
            return Choosing(layer.moe_config, scheme.get("weights").group_size)
        return Old(layer.moe_config)
""",
    "vllm/model_executor/layers/fused_moe/__init__.py": """
from vllm.model_executor.layers.fused_moe.oracle.kernels import select_moe_backend


class RoutedExperts:
    pass


class Method:
    def __init__(self, moe):
        self.moe = moe


class Old(Method):
    def __init__(self, moe):
        super().__init__(moe)
        self.backend = "only one"


class Choosing(Method):
    def __init__(self, moe, width):
        super().__init__(moe)
        self.backend, self.kernels = select_moe_backend(self.moe, width)
        for kernel in self.kernels:
            self.prepare(kernel)


class UnquantizedFusedMoEMethod(Choosing):
    def __init__(self, moe):
        super().__init__(moe, 1)
""",
    "vllm/distributed/__init__.py": "from .utils import *\n",
    "vllm/distributed/utils.py": """
from vllm import envs


def divide(numerator, denominator):
    assert numerator % denominator == 0, "{} is not divisible by {}".format(numerator, denominator)
    return numerator // denominator


def get_pp_indices(layers, rank, size):
    partition = envs.VLLM_PP_LAYER_PARTITION
    if partition is not None and len(partition.split(",")) != size:
        raise ValueError(f"{partition} is not for {size} stages")
    return 0, layers // size
""",
    "vllm/model_executor/layers/vocab_parallel_embedding.py": """
import torch

from vllm.distributed import divide, get_tensor_model_parallel_world_size


class VocabParallelEmbedding:
    def __init__(self, size, width, quant_config=None, prefix=""):
        self.share = divide((size + 63) // 64 * 64, get_tensor_model_parallel_world_size())
        self.weight = torch.empty(self.share, width)
""",
    "vllm/model_executor/layers/linear.py": """
from vllm.distributed import divide, get_tensor_model_parallel_world_size


class Plain:
    def create_weights(self, input_share):
        raise ValueError("nobody asks for these")


class QKVParallelLinear:
    def __init__(self, hidden_size, head_size, heads, kv_heads, quant_config=None, prefix=""):
        ranks = get_tensor_model_parallel_world_size()
        self.heads = divide(heads, ranks)
        self.copies = divide(ranks, kv_heads) if ranks >= kv_heads else divide(kv_heads, ranks)


class MergedColumnParallelLinear:
    def __init__(self, input_size, output_sizes, quant_config=None, prefix=""):
        ranks = get_tensor_model_parallel_world_size()
        assert all(size % ranks == 0 for size in output_sizes)


class RowParallelLinear:
    def __init__(self, input_size, output_size, quant_config=None, prefix=""):
        self.method = Plain() if quant_config is None else quant_config.get_quant_method(self, prefix)
        self.method.create_weights(divide(input_size, get_tensor_model_parallel_world_size()))
""",
    "vllm/model_executor/layers/fused_moe/config.py": """
class FusedMoEConfig:
    width: int
    ranks: int

    def __post_init__(self):
        assert self.width % self.ranks == 0
""",
    "vllm/model_executor/layers/fused_moe/layer.py": """
from vllm.model_executor.layers.fused_moe.config import FusedMoEConfig


def FusedMoEFactory(num_experts, intermediate_size, num_redundant_experts, tp_size, enable_eplb, **more):
    if not enable_eplb:
        assert num_redundant_experts == 0, "copies are for balance"
    elif (num_experts + num_redundant_experts) % tp_size != 0:
        raise ValueError(f"{num_experts + num_redundant_experts} experts do not go by {tp_size}")
    FusedMoEConfig(intermediate_size, tp_size)
    raise ValueError("nobody asks for what comes next")
""",
    "vllm/config/parallel.py": """
from pydantic import model_validator


class ParallelConfig:
    @model_validator(mode="after")
    def _validate_parallel_config(self):
        if self.tensor_parallel_size % self.decode_context_parallel_size != 0:
            raise ValueError(f"{self.decode_context_parallel_size} does not go into {self.tensor_parallel_size}")
        return self
""",
    "vllm/model_executor/layers/fused_moe/oracle/kernels.py": """
from enum import Enum

from vllm.platforms import current_platform


class MoeBackend(Enum):
    FAST = "fast"
    SLOW = "slow"


def select_moe_backend(config, width):
    share = config.intermediate_size_per_partition
    if config.moe_backend == "fast" and not current_platform.has_device_capability(100):
        raise ValueError(f"fast does not take {width} here")
    if config.moe_backend == "auto" and config.moe_parallel_config.use_ep:
        raise NotImplementedError("no backend for that")
    if share % width != 0:
        raise NotImplementedError(f"groups of {width} do not go into {share}")
    return (MoeBackend.FAST if current_platform.has_device_capability(100) else MoeBackend.SLOW), None
""",
}


def write_engine(site: Path) -> Path:
    """Write the files below ``site``, a directory of installed packages, and return it."""
    for name, text in FILES.items():
        path = site / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return site
