# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Names and numbers of users and groups."""

from __future__ import annotations

import grp
import pwd

from ansible_collections.llmops.vllm.plugins.module_utils.errors import InvalidInputError


def find_uid(owner: str) -> int:
    """Return the user id for a name or a number; InvalidInputError when this host knows no such user."""
    try:
        return pwd.getpwnam(owner).pw_uid
    except KeyError:
        if owner.isascii() and owner.isdigit() and int(owner) < 2**32 - 1:
            return int(owner)
    raise InvalidInputError(f"owner {owner!r} is no user of this host; give the name or number of one.")


def user_name(uid: int | None) -> str:
    """Return the name for a user id, the number where it has none, ``?`` when it is not known."""
    if uid is None:
        return "?"
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def find_gid(group: str) -> int:
    """Return the group id for a name or a number; InvalidInputError when this host knows no such group."""
    try:
        return grp.getgrnam(group).gr_gid
    except KeyError:
        if group.isascii() and group.isdigit() and int(group) < 2**32 - 1:
            return int(group)
    raise InvalidInputError(f"group {group!r} is no group of this host; give the name or number of one.")


def group_name(gid: int) -> str:
    """Return the name for a group id, the number where it has none."""
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)
