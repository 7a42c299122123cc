# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The program that makes a unit tell the truth about its engine, which itself tells systemd nothing.

systemd runs it three times, each with the path of the release's settings:

``start``, beside the loading engine (``ExecStartPost``), follows this launch, shows its progress as the unit's status,
and returns when the launch has answered a checked completion: only then is the unit active. A launch that dies or
stands still is explained and ended, and the unit fails.

``heartbeat``, in a unit of its own while the engine serves, ends an engine that hangs.

``ended``, after the end (``ExecStopPost``), explains an end that nobody has explained yet, and keeps systemd from
starting again what a restart cannot cure.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from ansible_collections.llmops.vllm.plugins.module_utils.engine_api import EngineApi, read_api_key
from ansible_collections.llmops.vllm.plugins.module_utils.errors import LlmopsError
from ansible_collections.llmops.vllm.plugins.module_utils.gate import (
    POLL_SECONDS,
    Failed,
    NotYet,
    failure_message,
)
from ansible_collections.llmops.vllm.plugins.module_utils.gate_host import HostObserver, UnitWatch
from ansible_collections.llmops.vllm.plugins.module_utils.heartbeat import Pulse, read_metrics
from ansible_collections.llmops.vllm.plugins.module_utils.journal import ENDED_THIS_LAUNCH, Journal, command_for
from ansible_collections.llmops.vllm.plugins.module_utils.launch_evidence import read_launch, settled_diagnosis
from ansible_collections.llmops.vllm.plugins.module_utils.launch_follow import (
    Background,
    Clock,
    GateSettings,
    LaunchGate,
)
from ansible_collections.llmops.vllm.plugins.module_utils.procfs import ProcFs
from ansible_collections.llmops.vllm.plugins.module_utils.sd_notify import notify
from ansible_collections.llmops.vllm.plugins.module_utils.systemd import Runner, run_command, show_unit
from ansible_collections.llmops.vllm.plugins.module_utils.transfer_progress import duration
from ansible_collections.llmops.vllm.plugins.module_utils.watch_settings import (
    NOTES,
    Note,
    WatchSettings,
    read_note,
    read_settings,
    why_not_again,
    write_note,
)

METRICS_TIMEOUT_SECONDS = 10.0
STATUS_SECONDS = 1.0
KILL_SECONDS = 10.0
MAX_STATUS = 400
ERROR, INFO = 3, 6


class StopRequestedError(Exception):
    """systemd asks for the end of what is being started."""


@dataclass(frozen=True)
class Host:
    """What the watch needs of its host; ``log`` writes lines to the unit's journal with a syslog level."""

    environ: Mapping[str, str]
    runner: Runner = run_command
    now: Callable[[], float] = time.monotonic
    epoch: Callable[[], float] = time.time
    sleep: Callable[[float], Any] = time.sleep
    notes: str = NOTES
    procfs: ProcFs = field(default_factory=ProcFs)


def log(text: str, level: int = INFO) -> None:
    """Write to the journal: systemd takes the number in front of a line as its level (sd-daemon(3))."""
    sys.stderr.write("".join(f"<{level}>{line}\n" for line in text.split("\n")))
    sys.stderr.flush()


def status_of(reason: str, diagnosis: Mapping[str, Any]) -> str:
    """Return a verdict in one line."""
    if diagnosis.get("verdict") == "cause":
        text = f"failed: {diagnosis['title']} ({diagnosis['cause_class']})"
    else:
        text = f"failed: {reason}"
    return text[:MAX_STATUS]


class MainProcess:
    """The engine's process, held so that its number cannot come to mean another one.

    On a host without ``pidfd_open`` (Linux before 5.3) it is looked at every time it matters.
    """

    def __init__(self, pid: int, procfs: ProcFs) -> None:
        self._procfs = procfs
        self._process = procfs.process(pid) if pid else None
        self._descriptor = _open_pidfd(pid)

    def wait(self, seconds: float) -> None:
        """Return when the process ends, at the latest after ``seconds``; when it has ended, after all of them."""
        if self._descriptor < 0 or self._readable(0):
            time.sleep(seconds)
        else:
            self._readable(seconds)

    @property
    def alive(self) -> bool:
        """Whether it still is there."""
        if self._descriptor >= 0:
            return not self._readable(0)
        return self._process is not None and self._procfs.is_alive(self._process)

    def send(self, number: signal.Signals) -> None:
        """Send a signal, if it still is there."""
        if self._process is None or not self.alive:
            return
        with contextlib.suppress(ProcessLookupError):
            if self._descriptor >= 0:
                signal.pidfd_send_signal(self._descriptor, number)
            else:
                os.kill(self._process.pid, number)

    def _readable(self, seconds: float) -> bool:
        """Whether the descriptor says within ``seconds`` that the process has ended."""
        poll = select.poll()
        poll.register(self._descriptor, select.POLLIN)
        return bool(poll.poll(seconds * 1000))


def _open_pidfd(pid: int) -> int:
    try:
        return os.pidfd_open(pid) if pid else -1
    except (AttributeError, OSError):
        return -1


class Start:
    """The start of one launch, from its process to its proof."""

    def __init__(self, settings: WatchSettings, host: Host, main: MainProcess, observer: HostObserver) -> None:
        self._settings = settings
        self._host = host
        self._main = main
        self._invocation_id = host.environ["INVOCATION_ID"]
        gate = GateSettings(
            unit=settings.unit,
            invocation_id=self._invocation_id,
            served_model=settings.served_model,
            canaries=(settings.canary,),
            stall_timeout_seconds=settings.stall_timeout_seconds,
            soak_seconds=0,
            starting=True,
        )
        self._gate = LaunchGate(gate, observer, Clock(host.now, host.epoch, host.sleep))
        self._told = ("", 0.0)

    def run(self) -> int:
        """Return 0 when the launch has proved itself, 1 when it was ended; what stops it is passed on to the engine."""
        try:
            while True:
                verdict = self._gate.step()
                if not isinstance(verdict, NotYet):
                    break
                self._tell()
                self._main.wait(POLL_SECONDS)
            if isinstance(verdict, Failed):
                self._fail(verdict.reason, verdict.stalled)
                return 1
        except StopRequestedError:
            # While it loads the engine ignores SIGTERM. SIGHUP ends it, and systemd takes that for a clean end.
            notify("STATUS=stopped while it was starting")
            self._main.send(signal.SIGHUP)
            return 0
        taken = duration(self._gate.waited_seconds)
        notify(f"STATUS=serves, proved after {taken}")
        log(f"This launch has proved itself after {taken}: {_phases(self._gate.timeline())}.")
        return 0

    def _tell(self) -> None:
        text, at = self._told
        now = self._host.now()
        if self._gate.found.progress != text or now - at >= STATUS_SECONDS:
            self._told = (self._gate.found.progress, now)
            notify(f"STATUS={self._gate.found.progress}, {duration(self._gate.waited_seconds)}")

    def _fail(self, reason: str, stalled: bool) -> None:
        diagnosis = self._gate.diagnosis()
        alive = self._main.alive
        status = status_of(reason, diagnosis)
        not_again = why_not_again(diagnosis["cause_class"], hung=stalled, hang_policy=self._settings.hang_policy)
        write_note(self._settings.unit, Note(self._invocation_id, status, not_again), self._host.notes)
        notify(f"STATUS={status}")
        if alive:
            log(f"{ENDED_THIS_LAUNCH}{reason}", ERROR)
        command = command_for(self._invocation_id)
        log(failure_message(self._settings.unit, self._invocation_id, reason, diagnosis, command), ERROR)
        # Nobody has been promised an answer yet, and an engine that loads or stands still does not follow SIGTERM.
        self._main.send(signal.SIGKILL)


def _phases(timeline: Sequence[Mapping[str, Any]]) -> str:
    return ", ".join(f"{item['phase']} {item['seconds']:.1f} s" for item in timeline)


def _api(settings: WatchSettings) -> EngineApi:
    key = read_api_key(settings.api_key_file) if settings.api_key_file else ""
    return EngineApi(settings.host, settings.port, key)


def start(settings: WatchSettings, host: Host) -> int:
    """Follow the launch that systemd has begun, until it has proved itself or failed."""
    signal.signal(signal.SIGTERM, _stop)
    main = MainProcess(int(host.environ.get("MAINPID", "0")), host.procfs)
    observer = HostObserver(
        UnitWatch(host.runner, settings.unit, host.procfs, host.now),
        Journal(host.runner, host.environ["INVOCATION_ID"]),
        host.procfs,
        _api(settings),
        port=settings.port,
        served_model=settings.served_model,
        canary_timeout_seconds=settings.canary_timeout_seconds,
        now=host.now,
    )
    return Start(settings, host, main, observer).run()


def _stop(number: int, frame: FrameType | None) -> None:
    del number, frame
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise StopRequestedError


def ended(settings: WatchSettings, host: Host) -> int:
    """Explain how the launch ended, and keep systemd from repeating what a restart cannot cure."""
    result, invocation_id = host.environ.get("SERVICE_RESULT", ""), host.environ.get("INVOCATION_ID", "")
    note = read_note(settings.unit, invocation_id, host.notes)
    if result == "success":
        if note is None:
            notify("STATUS=stopped")
        return 0
    if note is None:
        note = _explain(settings, host, invocation_id)
    if note.lines:
        log("\n".join(note.lines), ERROR)
    notify(f"STATUS={note.status}")
    if note.not_again:
        log(f"It is not started again: {note.not_again}. Start it by hand, or deploy again.", ERROR)
        host.runner(["systemctl", "--no-block", "stop", "--", settings.unit])
        # The answer comes after systemd has taken the stop for the unit's last word.
        show_unit(host.runner, settings.unit)
    return 0


def _explain(settings: WatchSettings, host: Host, invocation_id: str) -> Note:
    reason = _how_it_ended(host.environ)
    found = settled_diagnosis(lambda: read_launch(host.runner, invocation_id, settings.unit), host.sleep)
    diagnosis = found.as_dict()
    command = command_for(invocation_id)
    text = failure_message(settings.unit, invocation_id, reason, diagnosis, command, state="has ended")
    not_again = why_not_again(found.cause_class, hung=False, hang_policy=settings.hang_policy)
    return Note(invocation_id, status_of(reason, diagnosis), not_again, text.split("\n"))


def _how_it_ended(environ: Mapping[str, str]) -> str:
    code, status = environ.get("EXIT_CODE", ""), environ.get("EXIT_STATUS", "")
    how = {"exited": "exit status", "killed": "killed by signal", "dumped": "dumped core on signal"}.get(code)
    said = f"the main process ended, {how} {status}" if how else "the main process ended"
    if (code, status) == ("exited", "0"):
        said += " although nobody had asked it to: so it does when its engine has died"
    result = environ.get("SERVICE_RESULT", "")
    return said if result in ("exit-code", "signal", "core-dump", "") else f"{said} (systemd's result: {result})"


class Heartbeat:
    """The watch over one launch that serves."""

    def __init__(self, settings: WatchSettings, host: Host, api: EngineApi, invocation_id: str) -> None:
        self._settings = settings
        self._host = host
        self._api = api
        self._invocation_id = invocation_id
        self._pulse = Pulse(settings.heartbeat_seconds, settings.hang_seconds, host.now())
        self._question: Background[int] | None = None

    def beat(self) -> str:
        """Look once; return why the engine hangs, or an empty string."""
        text = self._api.text("/metrics", METRICS_TIMEOUT_SECONDS)
        status = self._question.poll() if self._question is not None else None
        if status is not None:
            self._question = None
        beat = self._pulse.beat(self._host.now(), read_metrics(text) if text is not None else None, status)
        notify(f"STATUS={beat.text}\nWATCHDOG=1")
        if beat.ask and self._question is None:
            self._question = Background(self._ask)
        return beat.hang

    def _ask(self) -> int:
        body = {"model": self._settings.served_model, "prompt": "1", "max_tokens": 1, "temperature": 0}
        return self._api.post("/v1/completions", body, max(self._settings.hang_seconds, METRICS_TIMEOUT_SECONDS)).status

    def end(self, reason: str) -> None:
        """End the launch, if it still is the same."""
        unit = self._settings.unit
        if not self._serves():
            return
        not_again = why_not_again("", hung=True, hang_policy=self._settings.hang_policy)
        status = f"failed: hung, {reason}"[:MAX_STATUS]
        lines = [f"{ENDED_THIS_LAUNCH}{reason}"]
        write_note(unit, Note(self._invocation_id, status, not_again, lines), self._host.notes)
        log(f"{unit} hangs, and is {'stopped' if not_again else 'restarted'}: {reason}.", ERROR)
        self._host.runner(["systemctl", "kill", "--kill-who=main", "--signal=KILL", "--", unit])
        deadline = self._host.now() + KILL_SECONDS
        while self._serves():
            if self._host.now() >= deadline:
                self._host.runner(["systemctl", "kill", "--signal=KILL", "--", unit])
                return
            self._host.sleep(POLL_SECONDS)

    def _serves(self) -> bool:
        state = show_unit(self._host.runner, self._settings.unit)
        return state.serving and state.invocation_id == self._invocation_id


def heartbeat(settings: WatchSettings, host: Host) -> int:
    """Watch the launch that serves now, until it hangs or is over."""
    state = show_unit(host.runner, settings.unit)
    if not state.serving:
        log(f"{settings.unit} does not serve: nothing to watch.")
        return 0
    watch = Heartbeat(settings, host, _api(settings), state.invocation_id)
    notify("READY=1")
    while True:
        reason = watch.beat()
        if reason:
            watch.end(reason)
            return 0
        host.sleep(settings.heartbeat_seconds)


COMMANDS: dict[str, Callable[[WatchSettings, Host], int]] = {"start": start, "ended": ended, "heartbeat": heartbeat}


def main() -> int:
    """Run the command named by the first argument, with the settings in the file named by the second."""
    if len(sys.argv) != 3 or sys.argv[1] not in COMMANDS:
        sys.stderr.write(f"usage: {os.path.basename(sys.argv[0])} {'|'.join(COMMANDS)} SETTINGS\n")
        return 2
    try:
        return COMMANDS[sys.argv[1]](read_settings(sys.argv[2]), Host(os.environ))
    except LlmopsError as exc:
        log(exc.message, ERROR)
        notify(f"STATUS=failed: {exc.message}")
        return 1
