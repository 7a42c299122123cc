# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The id of a release: a hash of its content, so that the same content is the same release."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from ansible_collections.llmops.vllm.plugins.module_utils.plain_json import plain_json

ID_DIGITS = 12


def release_id(content: Any) -> str:
    """Return the first 12 hexadecimal digits of the SHA-256 of ``content`` as canonical JSON.

    Canonical: keys sorted, no white space, ASCII. Raises InvalidInputError, naming the place, for a key that is no
    string and for a value that JSON cannot hold.
    """
    canonical = json.dumps(plain_json(content), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode("ascii")).hexdigest()[:ID_DIGITS]
