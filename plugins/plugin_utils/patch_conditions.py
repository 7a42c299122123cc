# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which patches of a model are for this engine and these GPUs.

It is decided before a release gets its name, as patches that apply and patches that do not make different releases.
Versions are compared as PEP 440 says, by ``packaging``. ansible-core requires it and imports it as is done here, since
not every environment that reads plugins is whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.llmops.vllm.plugins.module_utils.errors import InvalidInputError, PreconditionError

try:
    from packaging.specifiers import InvalidSpecifier, SpecifierSet
    from packaging.version import InvalidVersion, Version
except ImportError:
    HAS_PACKAGING = False
else:
    HAS_PACKAGING = True

DECIDED = ("vllm", "compute_capability")


def applicable(
    patches: Sequence[Mapping[str, Any]], vllm_version: str, compute_capabilities: Sequence[str]
) -> list[dict[str, Any]]:
    """Return those ``patches`` whose ``when`` holds for the engine and at least one GPU, without what was decided.

    Conditions on the files (``keys``) stay, for whoever reads these. Raises InvalidInputError or PreconditionError,
    naming the patch, for a condition that cannot be decided.
    """
    result = []
    for patch in patches:
        when = _condition(patch)
        if _holds(patch, when, vllm_version, compute_capabilities):
            rest = {name: value for name, value in when.items() if name not in DECIDED}
            kept = {name: value for name, value in patch.items() if name != "when"}
            result.append({**kept, "when": rest} if rest else kept)
    return result


def _condition(patch: Mapping[str, Any]) -> Mapping[str, Any]:
    when = patch.get("when") or {}
    if not isinstance(when, Mapping):
        raise InvalidInputError(f"patch '{patch.get('name')}': when is a dictionary, not {when!r}.")
    unknown = sorted(set(when) - {*DECIDED, "keys"})
    if unknown:
        raise InvalidInputError(
            f"patch '{patch.get('name')}': when has {', '.join(map(repr, unknown))}; it takes vllm, compute_capability "
            "and keys."
        )
    return when


def _holds(patch: Mapping[str, Any], when: Mapping[str, Any], version: str, capabilities: Sequence[str]) -> bool:
    name = patch.get("name")
    wanted = when.get("compute_capability")
    if wanted is not None and not isinstance(wanted, (list, tuple)):
        raise InvalidInputError(f"patch '{name}': when.compute_capability is a list such as ['12.0'], not {wanted!r}.")
    if wanted is not None and not {str(one) for one in wanted} & set(capabilities):
        return False
    if when.get("vllm") is None:
        return True
    if not HAS_PACKAGING:
        raise PreconditionError(f"patch '{name}': when.vllm takes the Python package packaging on the controller.")
    try:
        return SpecifierSet(str(when["vllm"])).contains(Version(version), prereleases=True)
    except InvalidSpecifier as error:
        raise InvalidInputError(
            f"patch '{name}': when.vllm is {when['vllm']!r}; it has to be a range of versions such as '>=0.15,<0.18'."
        ) from error
    except InvalidVersion as error:
        raise InvalidInputError(
            f"patch '{name}': when.vllm cannot be decided, as the runtime's lock names no version of vllm but "
            f"{version!r}; pin one there, or drop the condition."
        ) from error
