# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One place that files can come from, and what is said when none of them delivers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.llmops.vllm.plugins.module_utils.errors import LlmopsError
from ansible_collections.llmops.vllm.plugins.module_utils.http_client import Answer, RetryPolicy
from ansible_collections.llmops.vllm.plugins.module_utils.repo_listing import RepoFile


class SourceError(LlmopsError):
    """A source cannot give a file; another one may."""


class WrongDigestError(SourceError):
    """A source delivered other bytes than the hub's API promises, twice."""


@dataclass
class Usage:
    """What one source gave in this run; ``down`` says why it is not asked any more."""

    files: int = 0
    received: int = 0
    down: str = ""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, received: int = 0, files: int = 0) -> None:
        """Count bytes and finished files, from any thread."""
        with self.lock:
            self.received += received
            self.files += files

    @property
    def noted(self) -> bool:
        """Whether there is something to report."""
        return bool(self.files or self.received or self.down)

    def as_result(self, kind: str, location: str) -> dict[str, Any]:
        """Return the entry of the module's result."""
        return {
            "type": kind,
            "location": location,
            "files": self.files,
            "bytes": self.received,
            "skipped": bool(self.down),
        }


@dataclass(frozen=True)
class Source:
    """One place that files come from.

    ``ask`` takes a file, headers, and the ``If-Range`` values by origin, and gives an answer or raises. ``refusal``
    says what an answer without content means. ``adopt``, where there is one, makes the part of a file (a path) from
    what lies on this host, without moving its bytes through this process.
    """

    kind: str
    location: str
    policy: RetryPolicy
    ask: Callable[[RepoFile, Mapping[str, str], Mapping[str, str]], Answer]
    refusal: Callable[[Answer], LlmopsError]
    adopt: Callable[[RepoFile, str], None] | None = None
    usage: Usage = field(default_factory=Usage)

    def asked(self, file: RepoFile, headers: Mapping[str, str], conditions: Mapping[str, str]) -> Answer:
        """Ask for ``file``; raises ``TransferError`` for what may pass and ``SourceError`` for what will not."""
        try:
            return self.ask(file, headers, conditions)
        except SourceError:
            raise
        except LlmopsError as error:
            raise SourceError(error.message, **error.details) from error


def none_delivers(file: RepoFile, refusals: Sequence[tuple[Source, LlmopsError]]) -> LlmopsError:
    """Return the failure of ``file`` after every source has refused it: a wrong digest counts more than an absence."""
    wrong = [error for _source, error in refusals if isinstance(error, WrongDigestError)]
    if len(refusals) == 1:
        return refusals[0][1]
    reasons = "; ".join(f"{source.location}: {error.message.rstrip('.')}" for source, error in refusals)
    details = {
        **(wrong[0].details if wrong else {"file": file.path, "expected": file.digest}),
        "refusals": [{"location": source.location, "reason": error.message} for source, error in refusals],
    }
    kind = WrongDigestError if wrong else SourceError
    return kind(f"{file.path} comes from none of the {len(refusals)} sources. {reasons}.", **details)
