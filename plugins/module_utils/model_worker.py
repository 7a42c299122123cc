# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A process of its own that makes a model present, whoever is still there to watch.

It is started with a job on its standard input, the only way by which a token reaches it: not by arguments, environment
or a file that stays. It tells systemd and the snapshot's status file how far it is, and leaves a result.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
import time
import traceback
from typing import Any

from ansible_collections.llmops.vllm.plugins.module_utils.errors import LlmopsError
from ansible_collections.llmops.vllm.plugins.module_utils.model_request import Surroundings, as_result, fulfil
from ansible_collections.llmops.vllm.plugins.module_utils.repo_listing import RESERVED_DIRECTORY
from ansible_collections.llmops.vllm.plugins.module_utils.sd_notify import notify
from ansible_collections.llmops.vllm.plugins.module_utils.store import Snapshot, opened_parent
from ansible_collections.llmops.vllm.plugins.module_utils.transfer_progress import Progress, RateMeter, snapshot_of
from ansible_collections.llmops.vllm.plugins.module_utils.worker_place import ALIVE, CODE, RESULT, Workplace, hold

STATUS_SECONDS = 2.0
_DESCRIPTORS = 1024
_SIGNALS = (signal.SIGTERM, signal.SIGINT)
LOG_SECONDS = 60.0
STATUS_FILE = f"{RESERVED_DIRECTORY}/status.json"


class StoppedBySignalError(LlmopsError):
    """Somebody asked the worker to stop."""


class Status:
    """Writes ``progress`` where people look for it: systemd, the status file, and now and then the log."""

    def __init__(self, snapshot: Snapshot, facts: dict[str, Any], progress: Progress) -> None:
        self._snapshot = snapshot
        self._facts = facts
        self._progress = progress
        self._meter = RateMeter(time.monotonic)
        self._logged_at = time.monotonic()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._repeat, daemon=True)

    def begin(self) -> None:
        """Tell it every few seconds from now on."""
        self._tell("running")
        self._thread.start()

    def end(self, state: str, error: str) -> None:
        """Tell it for the last time."""
        self._ended.set()
        self._thread.join()
        self._tell(state, error)

    def _repeat(self) -> None:
        delay = 0.1  # the file cannot be there before the first directory is, and should be soon after
        while not self._ended.wait(delay):
            delay = min(2 * delay, STATUS_SECONDS)
            self._tell("running")

    def _tell(self, state: str, error: str = "") -> None:
        now = snapshot_of(self._progress, self._meter.rate(self._progress.counters.received))
        if error:
            now["text"] = error
        notify(f"STATUS={now['text']}")
        document = {**self._facts, "state": state, "updated": round(time.time(), 3), "error": error, **now}
        # The directory comes with the first file, and a full disk must not end the transfer here.
        with contextlib.suppress(OSError):
            replace_status(self._snapshot, json.dumps(document, indent=2) + "\n")
        if state == "running" and time.monotonic() - self._logged_at >= LOG_SECONDS:
            self._logged_at = time.monotonic()
            log(now["text"])


def main() -> int:
    """Do the job on the standard input and return the exit status."""
    with open(0, "rb", closefd=False) as stream:
        job = json.load(stream)
    os.closerange(3, _DESCRIPTORS)  # whoever waits for the other end of one must not wait for hours
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.environ.update(job["environment"])
    sys.path += [entry for entry in job["python_path"] if entry not in sys.path]
    place = Workplace(job["root"], job["name"])
    lock = hold(place.path(ALIVE))
    place.remove(CODE)
    os.chdir("/")
    if "NOTIFY_SOCKET" not in os.environ:
        os.nice(10)
    stop = threading.Event()
    for number in _SIGNALS:
        signal.signal(number, lambda received, _frame: _stop_once(received, stop))
    notify("READY=1\nSTATUS=starting")
    try:
        return work(job, place, stop)
    finally:
        os.close(lock)


def work(job: dict[str, Any], place: Workplace, stop: threading.Event) -> int:
    """Do the job, leave its result in ``place``, and return the exit status."""
    params, progress = job["params"], Progress()
    snapshot = Snapshot(os.path.normpath(params["store"]), params["repo"], params["revision"])
    facts = {"pid": os.getpid(), **{key: job[key] for key in ("id", "unit", "started", "repo", "commit")}}
    status = Status(snapshot, facts, progress)
    status.begin()
    result, code = _outcome(job, progress, stop)
    error = result.get("error", {}).get("msg", "")
    place.write_json(RESULT, {"id": job["id"], "options": job["options"], **result})
    status.end("failed" if error else "done", error)
    log(error or f"{params['repo']} at {params['revision']} is present.")
    return code


def _outcome(job: dict[str, Any], progress: Progress, stop: threading.Event) -> tuple[dict[str, Any], int]:
    warnings: list[str] = []
    around = Surroundings(False, token=lambda: job["token"], warn=warnings.append, stop=stop, progress=progress)
    started = time.monotonic()
    try:
        outcome = fulfil(job["params"], around)
    except StoppedBySignalError as error:
        return {"error": {"msg": error.message}}, 0
    except LlmopsError as error:
        return {"error": {"msg": error.message, **error.details}, "warnings": warnings}, 1
    except Exception as error:
        log(traceback.format_exc())
        message = f"The download ended by a fault of its own, {type(error).__name__}: {error}. What arrived is kept."
        return {"error": {"msg": message}, "warnings": warnings}, 1
    progress.phase = "done"
    outcome.requests += job["requests"]
    return {
        "result": as_result(outcome, time.monotonic() - started),
        "warnings": [*warnings, *outcome.warnings],
    }, 0


def _stop_once(number: int, stop: threading.Event) -> None:
    """Let the transfers put their parts aside, and end the main thread's waiting."""
    stop.set()
    for each in _SIGNALS:
        signal.signal(each, signal.SIG_IGN)
    notify("STOPPING=1\nSTATUS=stopping, what arrived is kept")
    raise StoppedBySignalError(
        f"The download was stopped by {signal.Signals(number).name}; what arrived is kept, run again to resume."
    )


def replace_status(snapshot: Snapshot, text: str) -> None:
    """Replace the status file, for whom the snapshot's directory is: atomically, but without waiting for the disk."""
    with opened_parent(snapshot, STATUS_FILE) as (parent, name):
        new = f"{name}.new"
        with contextlib.suppress(FileNotFoundError):
            os.unlink(new, dir_fd=parent)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(new, flags, 0o600, dir_fd=parent), "w", encoding="utf-8") as stream:
            directory = os.fstat(parent)
            os.fchown(stream.fileno(), directory.st_uid, directory.st_gid)
            os.fchmod(stream.fileno(), directory.st_mode & 0o666)
            stream.write(text)
        os.replace(new, name, src_dir_fd=parent, dst_dir_fd=parent)


def log(text: str) -> None:
    """Write to the journal or the log file."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
