# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Making a model present by a worker that outlives the module, and following one that is already at it.

Work of one snapshot in one store has one workplace. A module that finds a worker there waits for it, whoever started
it; when that one was asked for something else, what is still missing is planned anew afterwards.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ansible_collections.llmops.vllm.plugins.module_utils import model_worker
from ansible_collections.llmops.vllm.plugins.module_utils.credentials import with_secrets, without_secrets
from ansible_collections.llmops.vllm.plugins.module_utils.errors import LlmopsError
from ansible_collections.llmops.vllm.plugins.module_utils.model_request import Surroundings, as_result, fulfil
from ansible_collections.llmops.vllm.plugins.module_utils.snapshot_keeper import Outcome
from ansible_collections.llmops.vllm.plugins.module_utils.store import Snapshot, check_store
from ansible_collections.llmops.vllm.plugins.module_utils.worker_payload import pack
from ansible_collections.llmops.vllm.plugins.module_utils.worker_place import FACTS, RESULT, Workplace, read_json
from ansible_collections.llmops.vllm.plugins.module_utils.worker_start import Launcher, Start

_POLL_SECONDS = 0.1
_NOT_ITS_BUSINESS = ("token", "token_file", "proxy", "detach", "slice_seconds", "follow", "lock_timeout_seconds")
_ENVIRONMENT = ("http_proxy", "https_proxy", "all_proxy", "no_proxy", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")


@dataclass(frozen=True)
class Host:
    """What the work needs of its host: ``root`` is the directory of all workplaces."""

    launcher: Launcher
    root: str
    monotonic: Callable[[], float] = time.monotonic
    sleep: Callable[[float], object] = time.sleep


@dataclass(frozen=True)
class Answer:
    """The result of the module so far. Of an unfinished one ``values`` say which worker to follow."""

    values: dict[str, Any]
    warnings: list[str] = field(default_factory=list)


class DetachedRequest:
    """One call of the module. ``params`` are its parameters; ``around`` is for the planning, which happens here."""

    def __init__(self, params: Mapping[str, Any], around: Surroundings, host: Host) -> None:
        self._params = params
        self._around = around
        self._host = host
        self._started_at = host.monotonic()
        self._store = check_store(params["store"])

    def run(self) -> Answer:
        """Return the result, or how far it is when the slice ends before. Raises ``LlmopsError``."""
        if self._params["follow"]:
            revision = self._params["revision"]
            followed = self._follow(self._snapshot(revision), self._params["follow"])
            if followed:
                return followed
        while True:
            outcome = fulfil(self._params, replace(self._around, postpone=True))
            if not outcome.postponed:
                values = as_result(outcome, self._host.monotonic() - self._started_at)
                return Answer(values, outcome.warnings)
            followed = self._follow(self._snapshot(outcome.commit), self._join(outcome))
            if followed:
                return followed

    def _snapshot(self, commit: str) -> Snapshot:
        return Snapshot(self._store, self._params["repo"], commit)

    def _place(self, snapshot: Snapshot) -> Workplace:
        store = hashlib.sha256(snapshot.store.encode()).hexdigest()[:6]
        return Workplace(self._host.root, f"{snapshot.repo.replace('/', '--')}-{snapshot.commit[:12]}-{store}")

    def _join(self, outcome: Outcome) -> str:
        """Return the id of the worker of this snapshot, started now unless one is at work."""
        place = self._place(self._snapshot(outcome.commit))
        with place.reserved():
            if place.is_alive():
                return str(place.read_json(FACTS).get("id", ""))
            identity = uuid.uuid4().hex
            job = self._job(identity, place, outcome)
            place.remove(RESULT)
            place.forget_others()
            place.write_json(FACTS, {key: job[key] for key in ("id", "unit", "started", "repo", "commit", "options")})
            self._host.launcher.start(
                Start(
                    place,
                    json.dumps(job).encode(),
                    pack(model_worker.__name__),
                    f"Download of {outcome.repo} at {outcome.commit[:12]} into {self._store}",
                    _existing(self._store),
                    apart=not _links(self._params["sources"]),
                )
            )
            return identity

    def _job(self, identity: str, place: Workplace, outcome: Outcome) -> dict[str, Any]:
        params = {**self._params, "revision": outcome.commit, "token": None, "token_file": None}
        if params["sources"]:
            params["sources"] = with_secrets(params["sources"], self._around.read_secret)
        environment = {name: os.environ[name] for each in _ENVIRONMENT for name in {each, each.upper()} & {*os.environ}}
        return {
            "id": identity,
            "root": place.root,
            "name": place.name,
            "unit": self._host.launcher.unit(place.name),
            "started": round(time.time(), 3),
            "repo": outcome.repo,
            "commit": outcome.commit,
            "options": self._options(outcome.commit),
            "params": params,
            "requests": outcome.requests,
            "token": self._around.token(),
            "environment": environment,
            "python_path": [entry for entry in sys.path if os.path.isdir(entry)],
        }

    def _options(self, commit: str) -> str:
        """Return a digest of what is asked for, by which two requests are known to be the same."""
        asked = {key: value for key, value in self._params.items() if key not in _NOT_ITS_BUSINESS}
        asked.update(revision=commit, sources=without_secrets(self._params["sources"]))
        return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()

    def _follow(self, snapshot: Snapshot, identity: str) -> Answer | None:
        """Wait for the worker called ``identity``; None when what it did is not what is asked for here."""
        place, slice_seconds = self._place(snapshot), self._params["slice_seconds"]
        while place.is_alive():
            if slice_seconds and self._host.monotonic() - self._started_at >= slice_seconds:
                return Answer(self._unfinished(snapshot, place, identity))
            self._host.sleep(_POLL_SECONDS)
        found = place.read_json(RESULT)
        if found.get("id") != identity:
            self._check_replaced(snapshot, place, identity)
            return None
        if found.get("options") != self._options(snapshot.commit):
            return None
        if "error" in found:
            raise LlmopsError(found["error"].pop("msg"), **found["error"])
        return Answer(found["result"], found["warnings"])

    def _check_replaced(self, snapshot: Snapshot, place: Workplace, identity: str) -> None:
        """Raise ``LlmopsError`` unless another request has begun anew since."""
        if place.read_json(FACTS).get("id") == identity:
            raise LlmopsError(
                f"The download of {snapshot.repo} at {snapshot.commit[:12]} ended without a result "
                f"({self._host.launcher.fate(place.name)}); what arrived is kept, run again to resume."
            )

    def _unfinished(self, snapshot: Snapshot, place: Workplace, identity: str) -> dict[str, Any]:
        status = read_json(snapshot.target(model_worker.STATUS_FILE))
        known = status if status.get("id") == identity else {}
        launcher = self._host.launcher
        return {
            "changed": False,
            "follow": identity,
            "commit": snapshot.commit,
            "unit": launcher.unit(place.name),
            "stop_command": launcher.stop_command(place.name, known.get("pid", "")),
            "progress": str(known.get("text", "starting")),
        }


def _links(sources: Sequence[Mapping[str, Any]] | None) -> bool:
    """Whether files of a source are linked into the store and not copied."""
    return any(source["link"] not in (None, "copy") for source in sources or ())


def _existing(path: str) -> str:
    """Return ``path`` with links resolved, or its nearest parent that exists."""
    while not os.path.isdir(path):
        path = os.path.dirname(path)
    return os.path.realpath(path)
