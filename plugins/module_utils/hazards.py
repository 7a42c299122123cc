# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Hold a launch against the known hazards.

The conditions of an entry are its ``when``; all of them have to hold. What is not known neither fires nor clears an
entry: those that hang on it alone are told together, as information.

========================= =========================================================================================
``device``                what the runtime was built for: cuda, cpu, rocm, xpu
``compute_capability``    the beginning of that of any GPU in use, such as ``12.``
``cuda``                  a range of versions, such as ``>=13,<14``, of the runtime's CUDA
``packages``              package of the runtime to a range, ``present`` or ``absent``
``architectures``         one of the model's architectures
``mla``, ``sparse_mla``   whether the model has latent attention, and a sparse one
``vision``                whether the model's vision tower is loaded
``kv_cache_dtype``        one of the dtypes, as the engine resolves it
``full_graphs``           whether whole CUDA graphs are captured
``linked_code``           whether the model's own code lies in links
``argument``              ``name``, and ``in`` (texts) or ``more_than`` (a number)
``environment``           ``name``, and ``in`` (texts)
``source_lacks``          ``file`` of the runtime in which ``pattern`` (a regular expression) is not found
========================= =========================================================================================
"""

from __future__ import annotations

import operator
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Callable

from ansible_collections.llmops.vllm.plugins.module_utils.driver_floor import numbers
from ansible_collections.llmops.vllm.plugins.module_utils.errors import InvalidInputError
from ansible_collections.llmops.vllm.plugins.module_utils.findings import SEVERITIES, Finding
from ansible_collections.llmops.vllm.plugins.module_utils.known_hazards import KNOWN_HAZARDS
from ansible_collections.llmops.vllm.plugins.module_utils.launch import Launch

COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    "<": operator.lt,
}
BOUND = re.compile(r"\s*(>=|<=|==|!=|>|<)\s*(\d+(?:\.\d+)*)\s*")
REQUIRED = frozenset({"id", "severity", "when", "what", "remedy", "source", "expires"})


@dataclass(frozen=True)
class Model:
    """What of a model's files matters here; ``None`` where there is no ``config.json`` to tell."""

    architectures: tuple[str, ...] | None = None
    mla: bool | None = None
    sparse_mla: bool | None = None
    vision: bool | None = None
    linked_code: bool | None = None


@dataclass(frozen=True)
class Traits:
    """A launch as the hazards see it. ``kv_cache_dtype`` is empty, ``compute_capabilities`` are None when not known."""

    launch: Launch
    model: Model = field(default_factory=Model)
    compute_capabilities: tuple[str, ...] | None = None
    kv_cache_dtype: str = ""


def model_of(config: Mapping[str, Any], directory: str) -> Model:
    """Return what matters of a model: of its ``config.json`` after all patches, empty without one, and of its files."""
    try:
        names = os.listdir(directory)
    except OSError:
        return Model()
    links = any(name.endswith(".py") and os.path.islink(os.path.join(directory, name)) for name in names)
    if not config:
        return Model(linked_code=links)
    text = config["text_config"] if isinstance(config.get("text_config"), dict) else config
    architectures = config.get("architectures")
    return Model(
        architectures=tuple(map(str, architectures)) if isinstance(architectures, list) else (),
        mla=bool(text.get("kv_lora_rank")),
        sparse_mla=bool(text.get("kv_lora_rank")) and bool(text.get("index_topk")),
        vision=isinstance(config.get("vision_config"), dict),
        linked_code=links,
    )


def hazard_findings(traits: Traits, hazards: Sequence[Mapping[str, Any]] = KNOWN_HAZARDS) -> list[Finding]:
    """Return a finding for each hazard that the launch meets, and one for all that could not be decided.

    Nothing is said of a runtime that is not there: that it is not is for others to tell. Raises InvalidInputError for
    an entry that is not well formed.
    """
    found: list[Finding] = []
    undecided: dict[str, list[str]] = {}
    for entry in hazards:
        check_entry(entry)
        if not traits.launch.runtime.packages or _expired(entry, traits):
            continue
        answers = {key: _holds(key, wanted, traits) for key, wanted in entry["when"].items()}
        if all(answers.values()):
            found.append(_finding(entry, traits))
        elif False not in answers.values():
            undecided[entry["id"]] = sorted(key for key, answer in answers.items() if answer is None)
    if undecided:
        evidence = "; ".join(f"{name} (not known: {', '.join(keys)})" for name, keys in undecided.items())
        what = "Known hazards could not be checked."
        remedy = "none, when runtime, model and GPUs will be there by the time of the launch"
        found.append(Finding("hazards_unchecked", "info", what, evidence, remedy, "known hazards"))
    return found


def check_entry(entry: Mapping[str, Any]) -> None:
    """Raise InvalidInputError, naming the entry, when it lacks something or has a condition that nobody knows."""
    name = entry.get("id", "?")
    missing = sorted(REQUIRED - set(entry))
    unknown = sorted(set(entry["when"]) - set(CONDITIONS)) if "when" in entry else []
    if missing or unknown or entry["severity"] not in SEVERITIES:
        wrong = [f"lacks {', '.join(missing)}"] if missing else []
        wrong += [f"has the unknown condition {', '.join(unknown)}"] if unknown else []
        raise InvalidInputError(f"Hazard {name} {' and '.join(wrong) or 'has an unknown severity'}; see hazards.py.")


def in_range(version: str, wanted: str) -> bool | None:
    """Whether a version lies in a range such as ``>=0.18,<0.21``; None for a version that has no numbers.

    Of a pre-release its release counts: 0.20.2rc1 is in ``>=0.20.2``.
    """
    found = numbers(version)
    if not found:
        return None
    for part in wanted.split(","):
        match = BOUND.fullmatch(part)
        if not match:
            raise InvalidInputError(f"{wanted!r} is no range of versions; write one like '>=0.18,<0.21'.")
        bound = numbers(match.group(2))
        length = max(len(found), len(bound))
        padded = [(*one, *(0,) * (length - len(one))) for one in (found, bound)]
        if not COMPARISONS[match.group(1)](*padded):
            return False
    return True


def _expired(entry: Mapping[str, Any], traits: Traits) -> bool:
    return bool(in_range(traits.launch.runtime.version("vllm"), f">={entry['expires']}"))


def _holds(key: str, wanted: Any, traits: Traits) -> bool | None:
    return CONDITIONS[key](wanted, traits)


def _finding(entry: Mapping[str, Any], traits: Traits) -> Finding:
    runtime = traits.launch.runtime
    parts = [f"{name} {runtime.version(name) or 'absent'}" for name in ("vllm", *entry["when"].get("packages", ()))]
    if "cuda" in entry["when"]:
        parts.append(f"CUDA {runtime.cuda}")
    if "compute_capability" in entry["when"]:
        parts.append(f"compute capability {', '.join(sorted(set(traits.compute_capabilities or ())))}")
    if "argument" in entry["when"]:
        name = entry["when"]["argument"]["name"]
        parts.append(f"{name}={traits.launch.text(name)}")
    if "kv_cache_dtype" in entry["when"]:
        parts.append(f"kv_cache_dtype={traits.kv_cache_dtype}")
    evidence = ", ".join(dict.fromkeys(parts))
    return Finding(
        entry["id"],
        entry["severity"],
        entry["what"],
        evidence,
        entry["remedy"],
        "known hazards",
        entry.get("price", ""),
        entry["source"],
    )


def _device(wanted: str, traits: Traits) -> bool | None:
    return traits.launch.runtime.device == wanted if traits.launch.runtime.device else None


def _capability(wanted: Sequence[str], traits: Traits) -> bool | None:
    known = traits.compute_capabilities
    return None if known is None else any(one.startswith(tuple(wanted)) for one in known)


def _cuda(wanted: str, traits: Traits) -> bool | None:
    return in_range(traits.launch.runtime.cuda, wanted)


def _packages(wanted: Mapping[str, str], traits: Traits) -> bool | None:
    answers = [_package(traits.launch.runtime.version(name), wish) for name, wish in wanted.items()]
    return None if None in answers and False not in answers else all(answers)


def _package(version: str, wish: str) -> bool | None:
    if wish in ("present", "absent"):
        return bool(version) is (wish == "present")
    return in_range(version, wish) if version else False


def _architectures(wanted: Sequence[str], traits: Traits) -> bool | None:
    known = traits.model.architectures
    return None if known is None else bool(set(known) & set(wanted))


def _kv_cache_dtype(wanted: Sequence[str], traits: Traits) -> bool | None:
    return traits.kv_cache_dtype in wanted if traits.kv_cache_dtype else None


def _mla(wanted: bool, traits: Traits) -> bool | None:
    return None if traits.model.mla is None else traits.model.mla is wanted


def _sparse_mla(wanted: bool, traits: Traits) -> bool | None:
    return None if traits.model.sparse_mla is None else traits.model.sparse_mla is wanted


def _vision(wanted: bool, traits: Traits) -> bool | None:
    if traits.launch.is_set("language-model-only") or traits.launch.text("mm-encoder-attn-backend"):
        return wanted is False
    return None if traits.model.vision is None else traits.model.vision is wanted


def _linked_code(wanted: bool, traits: Traits) -> bool | None:
    return None if traits.model.linked_code is None else traits.model.linked_code is wanted


def _full_graphs(wanted: bool, traits: Traits) -> bool | None:
    return traits.launch.full_graphs is wanted


def _argument(wanted: Mapping[str, Any], traits: Traits) -> bool | None:
    if "more_than" in wanted:
        return traits.launch.number(wanted["name"], 0) > float(wanted["more_than"])
    return traits.launch.text(wanted["name"]).replace("-", "_") in wanted["in"]


def _environment(wanted: Mapping[str, Any], traits: Traits) -> bool | None:
    return traits.launch.environment.get(wanted["name"], "") in wanted["in"]


def _source_lacks(wanted: Mapping[str, str], traits: Traits) -> bool | None:
    text = traits.launch.runtime.source(wanted["file"])
    return None if text is None else re.search(wanted["pattern"], text) is None


CONDITIONS: dict[str, Callable[[Any, Traits], bool | None]] = {
    "device": _device,
    "compute_capability": _capability,
    "cuda": _cuda,
    "packages": _packages,
    "architectures": _architectures,
    "mla": _mla,
    "sparse_mla": _sparse_mla,
    "vision": _vision,
    "kv_cache_dtype": _kv_cache_dtype,
    "full_graphs": _full_graphs,
    "linked_code": _linked_code,
    "argument": _argument,
    "environment": _environment,
    "source_lacks": _source_lacks,
}
