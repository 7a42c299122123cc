# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The one exception family of this collection.

Libraries raise it with a sentence for the operator (what, where, what to do); a module's ``main()`` catches it once.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any


class LlmopsError(Exception):
    """Something that the operator can act on.

    ``details`` are returned as additional result keys of the failed module.
    """

    def __init__(self, message: str, **details: Any) -> None:
        super().__init__(message)
        self.message = message
        self.details = details


class InvalidInputError(LlmopsError):
    """A parameter or a file given by the operator cannot be right."""


class PreconditionError(LlmopsError):
    """The host is not in a state in which the work could succeed; nothing is half done."""


@contextlib.contextmanager
def as_sentence(doing: str) -> Iterator[None]:
    """Turn an OSError into a PreconditionError: what could not be done, why, and at which path."""
    try:
        yield
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        raise PreconditionError(f"Cannot {doing}: {error.strerror or error}{where}.") from error
