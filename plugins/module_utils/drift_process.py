# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The unit as systemd has it, the process that runs, and who listens on its port."""

from __future__ import annotations

import os

from ansible_collections.llmops.vllm.plugins.module_utils.drift import Expected, Report
from ansible_collections.llmops.vllm.plugins.module_utils.errors import PreconditionError
from ansible_collections.llmops.vllm.plugins.module_utils.instance import Instance, runs_current
from ansible_collections.llmops.vllm.plugins.module_utils.listener import look_at_port
from ansible_collections.llmops.vllm.plugins.module_utils.procfs import ProcFs
from ansible_collections.llmops.vllm.plugins.module_utils.systemd import Runner, UnitState, show_unit

# A rollout writes the unit and starts it within seconds, and clocks are set by fractions of one.
TOLERANCE_SECONDS = 30.0
_RUNNING = ("active", "activating", "reloading", "refreshing")


def compare_unit(expected: Expected, runner: Runner, report: Report) -> UnitState:
    """Compare what systemd has loaded with what is installed. Raises PreconditionError without systemd."""
    unit = show_unit(runner, expected.unit)
    if not unit.systemd:
        raise PreconditionError("systemd does not answer on this host, so nothing can be said about the unit.")
    if not unit.exists:
        report.add("unit", unit.name, "is not known to systemd")
        return unit
    if unit.load_state != "loaded":
        report.add("unit", unit.name, f"is {unit.load_state}")
    _compare_sources(expected, runner, report)
    if unit.unit_file_state != "enabled":
        report.add("unit", unit.name, f"does not start at boot: it is {unit.unit_file_state or 'not enabled'}")
    if unit.active_state == "deactivating":
        report.notes.append(f"{unit.name} is stopping.")
    elif unit.active_state not in _RUNNING:
        report.add("unit", unit.name, f"is {unit.active_state or 'not running'}, and should serve")
    elif not unit.serving:
        report.notes.append(f"{unit.name} is starting ({unit.active_state}, {unit.sub_state}).")
    return unit


def _compare_sources(expected: Expected, runner: Runner, report: Report) -> None:
    wanted = "FragmentPath,DropInPaths,NeedDaemonReload"
    done = runner(["systemctl", "show", "--no-pager", "--property", wanted, "--", expected.unit])
    values = dict(line.partition("=")[::2] for line in done.stdout.splitlines())
    fragment, own = values.get("FragmentPath", ""), expected.started_from
    if fragment and fragment not in own:
        report.add("unit", fragment, f"is what systemd takes {expected.unit} from")
    for path in values.get("DropInPaths", "").split():
        # Settings of all services of a host (service.d) are the host's, not the instance's.
        if path not in own and os.path.basename(os.path.dirname(path)) != "service.d":
            report.add("unit", path, f"changes {expected.unit} and is not of the repository")
    if values.get("NeedDaemonReload") == "yes":
        report.add("unit", expected.unit, "was changed on the disk since systemd has read it (systemctl daemon-reload)")


def compare_process(
    expected: Expected, instance: Instance, unit: UnitState, started_seconds: float, report: Report
) -> None:
    """Compare the running process, which began at ``started_seconds`` (epoch), with what it was started from."""
    if not unit.main_pid or not started_seconds:
        return
    if (
        instance.current is not None
        and instance.current.release_id
        and not runs_current(instance, unit, started_seconds)
    ):
        what = f"began before {instance.current.release_id} became the current release, and runs what was before"
        report.add("process", f"process {unit.main_pid}", what)
    for path in expected.started_from:
        try:
            changed = os.lstat(path).st_mtime
        except FileNotFoundError:
            continue
        if changed > started_seconds + TOLERANCE_SECONDS:
            report.add("process", f"process {unit.main_pid}", f"is older than {path}")


def compare_listener(expected: Expected, procfs: ProcFs, unit: UnitState, report: Report) -> None:
    """Say who else listens on the instance's port. That nobody does is no drift: an engine loads for minutes."""
    listener = look_at_port(procfs, expected.port, unit.control_group, unit.main_pid)
    for owner in listener.owners:
        if not owner.ours:
            report.add(
                "listener",
                f"port {expected.port}",
                f"is held by process {owner.pid}, not by {unit.name}: {owner.command}",
            )
    if listener.unseen and not listener.owners:
        report.notes.append(f"Port {expected.port} is held by a process that cannot be seen from here.")
