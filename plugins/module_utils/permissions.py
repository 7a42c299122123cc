# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Modes and owners as a module's parameters give them: ``file_mode``, ``owner``, ``group``."""

from __future__ import annotations

import re
from collections.abc import Callable

from ansible_collections.llmops.vllm.plugins.module_utils.errors import InvalidInputError
from ansible_collections.llmops.vllm.plugins.module_utils.users import find_gid, find_uid


def parse_mode(name: str, text: str, needed: int) -> int:
    """Return the mode of parameter ``name``; it starts with 0, because YAML turns an unquoted 0644 into 420."""
    if not re.fullmatch(r"0[0-7]{3}", text) or int(text, 8) & needed != needed:
        raise InvalidInputError(
            f'{name} must be a quoted octal string that lets the owner in, like "{needed | 0o044:04o}", not {text!r}.'
        )
    return int(text, 8)


class Accounts:
    """Ids of users and groups; each name is looked up, and in check mode warned about, once."""

    def __init__(self, check_mode: bool, warn: Callable[[str], None]) -> None:
        self._check_mode = check_mode
        self._warn = warn
        self._known: dict[tuple[str, str], int | None] = {}

    def uid(self, owner: str | None) -> int | None:
        """Return the id of a user. Raises InvalidInputError for an unknown one, except in check mode."""
        return None if owner is None else self._find("owner", owner, find_uid)

    def gid(self, group: str | None) -> int | None:
        """Return the id of a group. Raises InvalidInputError for an unknown one, except in check mode."""
        return None if group is None else self._find("group", group, find_gid)

    def _find(self, kind: str, name: str, look_up: Callable[[str], int]) -> int | None:
        if (kind, name) not in self._known:
            try:
                self._known[kind, name] = look_up(name)
            except InvalidInputError as error:
                if not self._check_mode:
                    raise
                self._warn(f"{error.message} It is not compared in check mode.")
                self._known[kind, name] = None
        return self._known[kind, name]
