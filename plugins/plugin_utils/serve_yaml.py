# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The YAML file that ``vllm serve --config`` reads.

vLLM (``FlexibleArgumentParser.load_config_file``) turns each entry into a command line argument: ``true`` into
``--key``, ``false`` into ``--no-key`` where its parser knows that (older versions drop it), a list into ``--key`` and
its elements, everything else into ``--key`` and the text of the value. It looks ``--no-key`` up literally, which is why
keys are written with dashes. Mappings are written as JSON text, which every version takes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import yaml
from ansible_collections.llmops.vllm.plugins.module_utils.errors import InvalidInputError
from ansible_collections.llmops.vllm.plugins.module_utils.plain_json import plain_json

_FLAG = re.compile(r"[A-Za-z][A-Za-z0-9]*(?:[-_][A-Za-z0-9]+)*(?:\.[A-Za-z0-9_-]+)*")


def render_serve_yaml(arguments: Any) -> str:
    """Return the YAML text for a mapping of arguments, in the given order; ``None`` leaves an argument out.

    Raises InvalidInputError for a key that is no flag, one given in both spellings, and a value that cannot be passed.
    """
    if not isinstance(arguments, Mapping):
        raise InvalidInputError(f"The arguments must be a dictionary, not {type(arguments).__name__}.")
    flags: dict[str, Any] = {}
    for key, value in plain_json(arguments).items():
        flag = _flag(key)
        if flag in flags:
            raise InvalidInputError(f"The argument '{flag}' is given twice, with dashes and with underscores.")
        flags[flag] = _value(flag, value)
    written = {flag: value for flag, value in flags.items() if value is not None}
    if not written:
        return "{}\n"
    return str(yaml.safe_dump(written, sort_keys=False, default_flow_style=False, width=float("inf")))


def _flag(key: str) -> str:
    if not _FLAG.fullmatch(key) or key == "config":
        hint = "write it without leading dashes" if key.startswith("-") else "see vllm serve --help=all"
        raise InvalidInputError(f"'{key}' cannot be an argument in the configuration file of vllm serve; {hint}.")
    # what follows a dot is the name of a field, which vLLM takes as it is written
    name, dot, fields = key.partition(".")
    return name.replace("_", "-") + dot + fields


def _value(flag: str, value: Any) -> Any:
    if isinstance(value, list):
        return [_element(flag, element) for element in value]
    return None if value is None else _element(flag, value)


def _element(flag: str, value: Any) -> Any:
    if isinstance(value, dict):
        return json.dumps(value)
    if value is None or isinstance(value, list):
        raise InvalidInputError(f"A list given to the argument '{flag}' cannot hold lists or null.")
    if isinstance(value, str) and value.startswith("--"):
        raise InvalidInputError(
            f"The value '{value}' of '{flag}' starts with '--': vLLM would take it for an argument."
        )
    return value
