# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The stop of a unit, waited for as long as systemd lets it take (TimeoutStopSec, systemd.service(5))."""

from __future__ import annotations

from typing import Callable

from ansible_collections.llmops.vllm.plugins.module_utils.errors import LlmopsError
from ansible_collections.llmops.vllm.plugins.module_utils.systemd import Runner, UnitState, show_unit

POLL_SECONDS = 0.1
STOPPED = ("inactive", "failed")


def is_stopped(unit: UnitState) -> bool:
    """Whether systemd runs nothing of the unit and is not about to; so it is for a unit that systemd does not know."""
    return not unit.exists or unit.active_state in STOPPED


def stop_unit(runner: Runner, name: str, sleep: Callable[[float], None]) -> bool:
    """Stop the unit ``name`` and return whether it had to be. Raises ``LlmopsError`` when systemd refuses.

    The stop is asked for without waiting, so that the time that requests are given to end does not count as silence of
    ``systemctl``.
    """
    before = show_unit(runner, name)
    if is_stopped(before):
        return False
    done = runner(["systemctl", "--no-block", "stop", "--", name])
    if done.returncode:
        reason = " ".join(done.stderr.split()) or f"exit status {done.returncode}"
        raise LlmopsError(f"systemd did not stop {name}: {reason}")
    while True:
        unit = show_unit(runner, name)
        if is_stopped(unit):
            return True
        if unit.invocation_id != before.invocation_id:
            raise LlmopsError(f"{name} was started again while it was stopped; see who does that: systemctl status {name}")
        sleep(POLL_SECONDS)
