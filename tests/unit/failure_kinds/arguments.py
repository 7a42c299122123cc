"""Kinds that lie in arguments, addresses, packages and files of the model."""

from __future__ import annotations

from ansible_collections.llmops.vllm.tests.unit.failure_kinds.form import (
    CHATS,
    START,
    UP,
    Kind,
    loading,
    server,
    starting,
    traceback,
)

KINDS = (
    Kind(
        "an address that is not the host's",
        START
        + UP
        + "ERROR:    [Errno 99] error while attempting to bind on address ('10.9.9.9', 8000): cannot assign requested "
        + "address\n",
        "config_invalid",
        "Errno 99",
    ),
    Kind(
        "an address that is not the host's, before the engine starts",
        starting("OSError: [Errno 99] Cannot assign requested address"),
        "config_invalid",
        "Errno 99",
    ),
    Kind(
        "a port that only root may use",
        START
        + UP
        + "ERROR:    [Errno 13] error while attempting to bind on address ('0.0.0.0', 443): permission denied\n",
        "config_invalid",
        "Errno 13",
    ),
    Kind(
        "a host name that nobody knows",
        loading("socket.gaierror: [Errno -2] Name or service not known"),
        "unclassified",
        "gaierror",
    ),
    Kind(
        "a network interface that is not there",
        loading(
            "RuntimeError: [enforce fail at ../third_party/gloo/gloo/transport/tcp/device.cc:84] ifa != nullptr. "
            "Unable to find address for: eth9"
        ),
        "config_invalid",
        "eth9",
    ),
    Kind(
        "a file of arguments that is no YAML",
        starting("yaml.scanner.ScannerError: mapping values are not allowed here"),
        "config_invalid",
        "Scanner",
    ),
    Kind(
        "an adapter of a higher rank than allowed",
        loading("ValueError: LoRA rank 64 is greater than max_lora_rank 16."),
        "config_invalid",
        "rank",
    ),
    Kind(
        "a GPU that another process has for itself",
        loading("torch.AcceleratorError: CUDA error: CUDA-capable device(s) is/are busy or unavailable"),
        "gpu_memory_busy_at_start",
        "busy",
    ),
    Kind(
        "memory of an accelerator of another maker",
        loading("RuntimeError: NPU out of memory. Tried to allocate 2.00 GiB (NPU 0; 60.96 GiB total capacity)"),
        "cuda_oom",
        "NPU",
    ),
    Kind(
        "torch and torchvision for different CUDAs",
        starting(
            "RuntimeError: Detected that PyTorch and torchvision were compiled with different CUDA major versions. "
            "PyTorch has CUDA Version=13.0 and torchvision has CUDA Version=12.8."
        ),
        "dependency_mismatch",
        "torchvision",
    ),
    Kind(
        "a tokenizer of another transformers",
        starting("AttributeError: Qwen2Tokenizer has no attribute all_special_tokens_extended. Did you mean: 'x'?"),
        "dependency_mismatch",
        "Tokenizer",
    ),
    Kind(
        "a library of another CUDA",
        starting("OSError: libcudart.so.13: cannot open shared object file: No such file or directory"),
        "dependency_mismatch",
        "libcudart",
    ),
    Kind(
        "weights on a mount that went away",
        loading("OSError: [Errno 107] Transport endpoint is not connected: '/mnt/m/model-00001-of-00119.safetensors'"),
        "weights_corrupt_or_missing",
        "Errno 107",
    ),
    Kind(
        "an architecture that the GGUF loader does not know",
        loading("RuntimeError: Unknown gguf model_type: kimi_k2"),
        "model_arch_unsupported",
        "gguf",
    ),
    Kind(
        "a question about failures",
        START
        + UP
        + "(APIServer pid=100) INFO 03-01 10:05:00 [logger.py:42] Received request cmpl-1: prompt: 'I see "
        + "Segmentation fault (core dumped), slurmstepd: error: *** JOB 1 CANCELLED DUE TO TIME LIMIT ***, exitcode: "
        + "-9 and torch.OutOfMemoryError: CUDA out of memory. Why?', params: SamplingParams(n=1)\n"
        + CHATS,
        verdict="healthy",
    ),
    Kind(
        "failures around a service that goes on",
        START
        + "gpu-1:77:77 [0] misc/socket.cc:50 NCCL WARN socketStartConnect: Connect to 10.0.0.9<41> failed\n"
        + UP
        + server(traceback("ValueError: the request is too large")),
        verdict="healthy",
    ),
)
