# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The token of a model hub, from a parameter or from a file that nobody else can read."""

from __future__ import annotations

import os
import re
import stat

from ansible_collections.llmops.vllm.plugins.module_utils.errors import InvalidInputError

_TOKEN = re.compile(r"[\x21-\x7e]+")
_LONGEST_BYTES = 4096


def check_token(token: str, source: str) -> str:
    """Return ``token`` when it can be sent in a header, else raise ``InvalidInputError`` about ``source``."""
    if not _TOKEN.fullmatch(token):
        raise InvalidInputError(f"{source} must hold one token of printable ASCII characters without blanks.")
    return token


def read_token(path: str) -> str:
    """Return the token in the file at ``path``, a regular file of root or of this user with no access for others."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise InvalidInputError(f"token_file {path} cannot be read: {error.strerror}.") from error
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_uid not in (0, os.geteuid()):
            raise InvalidInputError(f"token_file {path} must be a regular file that belongs to root or to this user.")
        mode = stat.S_IMODE(status.st_mode)
        if mode & 0o077:
            raise InvalidInputError(f"token_file {path} has mode {mode:04o}, so others can read it; give it mode 0600.")
        content = os.read(descriptor, _LONGEST_BYTES)
    finally:
        os.close(descriptor)
    return check_token(content.decode("ascii", "replace").strip(), f"token_file {path}")
