# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What an engine that takes a configuration is let try besides, within the probe: steps of its start that need no GPU.

``TRIALS`` is a part of the probe's program and runs under the engine's Python. Each trial is a step that the engine
itself takes later, in another process: reading its variables, dividing the processors, building the model (without
memory, on PyTorch's meta device), preparing its attention, compiling the chat template. What fails in the engine's own
step is an objection; what fails around it, because a probe is no worker, is no answer.
"""

from __future__ import annotations

TRIALS = r"""
class Elsewhere(Exception):
    pass


def try_variables(config, arguments):
    from vllm import envs

    for name in sorted(set(envs.environment_variables) & set(os.environ)):
        try:
            getattr(envs, name)
        except (ValueError, TypeError, KeyError) as error:
            return f"{name}: {told(error)}"


def try_files(config, arguments):
    # As the service's user, which may not be who wrote them.
    model = config.model_config.model
    paths = [os.path.join(model, name) for name in sorted(os.listdir(model))]
    closed = [os.path.basename(path) for path in paths if os.path.exists(path) and not os.access(path, os.R_OK)]
    return f"Permission denied: {', '.join(closed[:3])}" + (" and others" if len(closed) > 3 else "") if closed else ""


def try_processors(config, arguments):
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return ""
    from vllm.utils.ompmultiprocessing import OMPProcessManager

    try:
        OMPProcessManager(config)
    except AssertionError as error:
        return told(error)


def no_device(*_, **__):
    raise Elsewhere("a probe touches no GPU")


def try_model(config, arguments):
    import torch
    from vllm.config import set_current_vllm_config
    from vllm.distributed import parallel_state
    from vllm.model_executor.model_loader.utils import initialize_model

    parallel = config.parallel_config
    if parallel.data_parallel_size > 1 or getattr(parallel, "prefill_context_parallel_size", 1) > 1:
        raise Elsewhere("ranks that one process cannot play")
    torch.cuda._lazy_init = no_device
    torch.nn.Module.to = lambda module, *_, **__: module
    with set_current_vllm_config(config):
        place = "file://" + os.path.join(tempfile.mkdtemp(), "ranks")
        parallel_state.init_distributed_environment(1, 0, place, 0, "gloo")
        parallel_state.initialize_model_parallel(1, 1, backend="gloo")
        # One process is the first of all ranks: a model is built without asking the others.
        parallel_state.get_tp_group().world_size = parallel.tensor_parallel_size
        dtype = torch.get_default_dtype()
        torch.set_default_dtype(config.model_config.dtype)
        try:
            with torch.device("meta"):
                initialize_model(vllm_config=config)
        except (AssertionError, AttributeError, KeyError, TypeError, ValueError) as error:
            # Of tensors without memory only a probe can complain.
            return "" if "meta" in str(error).lower() else told(error)
        finally:
            torch.set_default_dtype(dtype)


def try_attention(config, arguments):
    # Of a model that was built, whose layers the configuration knows. A GPU's attention prepares itself on the GPU.
    import torch
    from vllm.config import set_current_vllm_config
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return ""
    with set_current_vllm_config(config):
        for name, layer in config.compilation_config.static_forward_context.items():
            spec = layer.get_kv_cache_spec(config)
            prepare = layer.get_attn_backend().get_builder_cls()
            try:
                prepare(spec, [name], config, torch.device("cpu"))
            except NotImplementedError as error:
                return told(error)


def try_chat_template(config, arguments):
    import jinja2
    from transformers.utils import chat_template_utils
    from vllm.tokenizers import cached_tokenizer_from_config

    try:
        from vllm.renderers.chat_utils import load_chat_template
    except ImportError:
        from vllm.entrypoints.chat_utils import load_chat_template
    given = load_chat_template(getattr(arguments, "chat_template", None))
    text = cached_tokenizer_from_config(config.model_config).get_chat_template(given)
    try:
        chat_template_utils._compile_jinja_template(text)
    except jinja2.TemplateSyntaxError as error:
        return f"{told(error)} (line {error.lineno})"


def trials(config, arguments, wanted):
    # What each says against the launch; None of one that could not be made here. A machine that is to answer for GPUs
    # of another says nothing of itself.
    found = {}
    here = () if wanted else (try_processors, try_model, try_attention)
    for trial in (try_variables, try_files, *here, try_chat_template):
        name = trial.__name__[len("try_"):]
        try:
            found[name] = str(trial(config, arguments) or "")
        except Exception:
            found[name] = None
    return found
"""
