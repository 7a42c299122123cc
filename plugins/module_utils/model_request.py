# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""From the parameters of ``model_shards`` to what was done, in whatever process that happens."""

from __future__ import annotations

import os
import random
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.llmops.vllm.plugins.module_utils.bandwidth import Bandwidth
from ansible_collections.llmops.vllm.plugins.module_utils.credentials import (
    ReadSecret,
    bearer,
    read_secret,
    sends_in_clear,
)
from ansible_collections.llmops.vllm.plugins.module_utils.errors import InvalidInputError
from ansible_collections.llmops.vllm.plugins.module_utils.given_manifest import read_listing
from ansible_collections.llmops.vllm.plugins.module_utils.http_client import (
    HttpClient,
    RetryPolicy,
    check_endpoint,
    load_requests,
)
from ansible_collections.llmops.vllm.plugins.module_utils.hub import Connection, Hub
from ansible_collections.llmops.vllm.plugins.module_utils.permissions import Accounts, parse_mode
from ansible_collections.llmops.vllm.plugins.module_utils.repo_listing import check_repo, check_revision
from ansible_collections.llmops.vllm.plugins.module_utils.shards import Sample, Wish
from ansible_collections.llmops.vllm.plugins.module_utils.snapshot_keeper import Outcome, SnapshotKeeper
from ansible_collections.llmops.vllm.plugins.module_utils.snapshot_pruning import PrunePolicy
from ansible_collections.llmops.vllm.plugins.module_utils.sources import SourceSpec, parse_sources, shares_bytes
from ansible_collections.llmops.vllm.plugins.module_utils.store import Attributes, check_store
from ansible_collections.llmops.vllm.plugins.module_utils.transfer_progress import Progress

_DAY_SECONDS = 24 * 3600
_RANGES = {
    "sample_percent": (1, 100),
    "workers": (1, 16),
    "reserve_bytes": (0, 2**63),
    "stall_timeout_seconds": (1, 3600),
    "retries": (0, 100),
    "bandwidth_bytes_per_second": (0, 2**63),
    "lock_timeout_seconds": (0, 7 * 24 * 3600),
    "slice_seconds": (0, 3600),
}


@dataclass(frozen=True)
class Surroundings:
    """What a request is given besides its parameters: ``token`` is called when a hub has to be asked.

    ``read_secret`` takes a path and the option that names it. With ``postpone`` long work is only planned. ``progress``
    tells another thread how far it is.
    """

    check_mode: bool
    token: Callable[[], str | None]
    warn: Callable[[str], None]
    stop: threading.Event = field(default_factory=threading.Event)
    progress: Progress = field(default_factory=Progress)
    postpone: bool = False
    read_secret: ReadSecret = read_secret


def fulfil(params: Mapping[str, Any], around: Surroundings) -> Outcome:
    """Do what ``params``, the module's checked parameters, ask for. Raises ``LlmopsError``."""
    _check_numbers(params)
    revision = check_revision(params["revision"])
    attributes = _attributes(params, around)
    sources = parse_sources(params["sources"], around.read_secret)
    keeper = _keeper(params, attributes, sources, around)
    if params["state"] == "absent":
        return keeper.absent(revision, _releases(params))
    verify = params["verify"] or ("full" if params["state"] == "verified" else "stat")
    wish = Wish(
        include=tuple(params["include"]),
        exclude=tuple(params["exclude"]),
        full=verify == "full",
        sample=_sample(params) if verify == "sample" else Sample(),
        attributes=attributes,
        reserve_bytes=params["reserve_bytes"],
        workers=params["workers"],
        publish=params["publish_blobs"],
        linked=shares_bytes(sources),
    )
    if params["state"] == "verified":
        return keeper.verified(revision, wish, postpone=around.postpone)
    return keeper.present(revision, wish, postpone=around.postpone)


def as_result(outcome: Outcome, elapsed_seconds: float) -> dict[str, Any]:
    """Return the result of the module for ``outcome``."""
    return {
        "changed": outcome.tracker.changed,
        "diff": outcome.tracker.as_diff(),
        "elapsed_seconds": round(elapsed_seconds, 3),
        **outcome.as_result(),
    }


def _check_numbers(params: Mapping[str, Any]) -> None:
    for name, (lowest, highest) in _RANGES.items():
        if not lowest <= params[name] <= highest:
            raise InvalidInputError(f"{name} must be from {lowest} to {highest}, not {params[name]}.")


def _releases(params: Mapping[str, Any]) -> str:
    return params["releases"] or os.path.join(os.path.dirname(check_store(params["store"])), "releases")


def _prune_policy(params: Mapping[str, Any]) -> PrunePolicy:
    prune = params["prune"] or {}
    keep, age = prune.get("keep"), prune.get("min_age_seconds") or 0
    for name, value in (("keep", keep), ("min_age_seconds", age)):
        if value is not None and value < 0:
            raise InvalidInputError(f"{name} of prune must not be negative, as {value} is.")
    return PrunePolicy(_releases(params), keep, float(age), params["make_room"])


def _bandwidth(params: Mapping[str, Any], around: Surroundings) -> Bandwidth | None:
    rate = params["bandwidth_bytes_per_second"]
    return Bandwidth(rate, sleep=around.stop.wait, monotonic=time.monotonic) if rate else None


def _sample(params: Mapping[str, Any]) -> Sample:
    number = params["sample_number"]
    today = int(time.time() // _DAY_SECONDS)
    return Sample(params["sample_percent"], today if number is None else number)


def _attributes(params: Mapping[str, Any], around: Surroundings) -> Attributes:
    accounts = Accounts(around.check_mode, around.warn)
    return Attributes(
        file_mode=parse_mode("file_mode", params["file_mode"], 0o400),
        directory_mode=parse_mode("directory_mode", params["directory_mode"], 0o700),
        uid=accounts.uid(params["owner"]),
        gid=accounts.gid(params["group"]),
    )


def _keeper(
    params: Mapping[str, Any], attributes: Attributes, sources: tuple[SourceSpec, ...], around: Surroundings
) -> SnapshotKeeper:
    repo = check_repo(params["repo"])
    endpoint = check_endpoint(params["endpoint"])
    policy = RetryPolicy(params["retries"], sleep=around.stop.wait, jitter=random.random)

    def connect() -> Connection:
        token = around.token()
        if token and sends_in_clear(endpoint):
            around.warn(f"The token is sent to {endpoint} without encryption; use an https endpoint.")
        client = HttpClient(
            endpoint,
            requests=load_requests(),
            credential=bearer(token) if token else None,
            ca_path=params["ca_path"],
            stall_seconds=float(params["stall_timeout_seconds"]),
            proxy=params["proxy"],
            bandwidth=_bandwidth(params, around),
        )
        return Connection(client, Hub(client, policy, has_token=token is not None), policy)

    return SnapshotKeeper(
        repo=repo,
        store=check_store(params["store"]),
        endpoint=endpoint,
        attributes=attributes,
        check_mode=around.check_mode,
        lock_timeout_seconds=float(params["lock_timeout_seconds"]),
        connect=connect,
        stop=around.stop,
        sleep=time.sleep,
        monotonic=time.monotonic,
        progress=around.progress,
        sources=sources,
        host=socket.gethostname(),
        prune=_prune_policy(params),
        given=read_listing(params["manifest"], repo) if params["manifest"] else None,
    )
