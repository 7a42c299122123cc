# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the instances of a host are doing, for one line each: release, state, phase, load, drift, last verdict, lock."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Callable

from ansible_collections.llmops.vllm.plugins.module_utils.deploy_lock import read_lock
from ansible_collections.llmops.vllm.plugins.module_utils.durable import needed
from ansible_collections.llmops.vllm.plugins.module_utils.errors import LlmopsError
from ansible_collections.llmops.vllm.plugins.module_utils.instance import Instance, is_proven, read_instance
from ansible_collections.llmops.vllm.plugins.module_utils.prometheus import count, read_samples, total, values_of
from ansible_collections.llmops.vllm.plugins.module_utils.receipts import evidence_of
from ansible_collections.llmops.vllm.plugins.module_utils.release_switch import Place, unit_files
from ansible_collections.llmops.vllm.plugins.module_utils.systemd import Runner, UnitState, show_unit

METRICS_SECONDS = 2.0
# What the receipt's evidence of the current release calls the things that can be changed by hand afterwards.
_KEPT = {
    "unit_sha256": "units of the release",
    "runtime_lock_sha256": "lock of the runtime",
    "packages": "packages of the runtime",
    "manifest_sha256": "manifest of the model",
}
_TOKENS = "vllm:generation_tokens_total"
_KV_USE = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")

# Answers the text of GET /metrics of (host, port), None when there is no answer.
Metrics = Callable[[str, int], "str | None"]


@dataclass(frozen=True)
class Load:
    """Of one engine: ``kv_use`` is a share from 0 to 1; None stands for what it does not count."""

    tokens_per_second: float | None = None
    kv_use: float | None = None
    running: int | None = None
    waiting: int | None = None


@dataclass(frozen=True)
class Status:
    """One instance. Times are UTC, empty when there is none.

    ``drift`` is what the host itself can tell without the repository: installed unit files that are not the current
    release's, and what of that release is not as its receipt says.
    """

    instance: str
    release: str
    previous: str
    since: str
    state: str
    phase: str
    proven: bool
    last_verdict: str
    load: Load
    drift: list[str]
    intent: dict[str, Any] | None
    lock: dict[str, Any] | None

    def as_dict(self) -> dict[str, Any]:
        """Return the values for a module's result, those of the load among the others."""
        values = asdict(self)
        values.update(values.pop("load"))
        return values


@dataclass(frozen=True)
class Host:
    """Where the instances lie, and how the host and its engines are asked."""

    root: str
    run_path: str
    run: Runner
    metrics: Metrics
    unit_path: str = "/etc/systemd/system"


@dataclass(frozen=True)
class Clock:
    """``wall`` gives seconds since the epoch, ``monotonic`` those of this boot, ``sleep`` waits."""

    wall: Callable[[], float] = time.time
    monotonic: Callable[[], float] = time.monotonic
    sleep: Callable[[float], object] = time.sleep


def instance_names(root: str) -> list[str]:
    """Return the instances of this host, by name."""
    try:
        with os.scandir(os.path.join(root, "instances")) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
    except OSError:
        return []


def read_status(host: Host, names: Sequence[str], sample_seconds: float, clock: Clock) -> list[Status]:
    """Return the status of each instance; the engines are asked twice, ``sample_seconds`` apart, for their rate."""
    found = [(read_instance(host.root, name), show_unit(host.run, f"vllm@{name}.service")) for name in names]
    asked = [_address(instance) if unit.main_pid else None for instance, unit in found]
    first = [host.metrics(*address) if address else None for address in asked]
    began = clock.monotonic()
    if sample_seconds > 0 and any(first):
        clock.sleep(sample_seconds)
    loads = []
    for address, text in zip(asked, first):
        later = host.metrics(*address) if address and text is not None else None
        loads.append(load_of(text, later, clock.monotonic() - began))
    return [_status(instance, unit, load, host, clock) for (instance, unit), load in zip(found, loads)]


def load_of(first: str | None, later: str | None, seconds: float) -> Load:
    """Return the load from two looks at the metrics, ``seconds`` apart; several engines of one server count as one."""
    if first is None or later is None:
        return Load()
    samples = read_samples(later)
    tokens, before = total(samples, _TOKENS), total(read_samples(first), _TOKENS) or 0.0
    use = next(filter(None, (values_of(samples, name) for name in _KV_USE)), [])
    return Load(
        tokens_per_second=None if tokens is None or seconds <= 0 else round(max(0.0, tokens - before) / seconds, 1),
        kv_use=round(sum(use) / len(use), 4) if use else None,
        running=count(samples, "vllm:num_requests_running"),
        waiting=count(samples, "vllm:num_requests_waiting"),
    )


def _address(instance: Instance) -> tuple[str, int] | None:
    probe = ((instance.current.receipt if instance.current else None) or {}).get("probe") or {}
    try:
        return str(probe["host"]), int(probe["port"])
    except (KeyError, TypeError, ValueError):
        return None


def _status(instance: Instance, unit: UnitState, load: Load, host: Host, clock: Clock) -> Status:
    lock = read_lock(instance.name, host.run_path)
    offset = clock.wall() - clock.monotonic()
    started = offset + unit.exec_main_start_seconds if unit.exec_main_start_seconds else 0.0
    proven = is_proven(instance, unit, started)
    return Status(
        instance=instance.name,
        release=instance.current.release_id if instance.current else "",
        previous=instance.previous.release_id if instance.previous else "",
        since=_utc(offset + unit.active_enter_seconds) if unit.active_enter_seconds and unit.serving else "",
        state=unit.active_state or "unknown",
        phase=unit.status_text or ("serves" if proven else unit.sub_state),
        proven=proven,
        last_verdict=_verdict(instance),
        load=load,
        drift=_drift(instance, host),
        intent=instance.intent.as_dict() if instance.intent else None,
        lock=lock.as_dict() if lock else None,
    )


def _drift(instance: Instance, host: Host) -> list[str]:
    release = instance.current
    if release is None or not release.release_id:
        return []
    place = Place(instance.name, host.root, host.run_path, host.unit_path)
    try:
        found = [step.path for step in needed(unit_files(place, release.path))]
        now = evidence_of(release.path)
    except LlmopsError as exc:
        return [exc.message]
    receipt = (release.receipt or {}).get("evidence") or {}
    return found + [what for name, what in _KEPT.items() if receipt.get(name) and receipt[name] != now[name]]


def _verdict(instance: Instance) -> str:
    """Return outcome and first sentence of the newest receipt of the instance's releases."""
    receipts = [release.receipt for release in instance.releases if release.receipt]
    if not receipts:
        return ""
    newest = max(receipts, key=lambda receipt: str(receipt.get("time", "")))
    message = str((newest.get("verdict") or {}).get("message", "")).partition("\n")[0]
    return " ".join(filter(None, (str(newest.get("release", "")), str(newest.get("outcome", "")), message)))


def _utc(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
