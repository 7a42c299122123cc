# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The stop of a unit, waited for as long as systemd lets it take (TimeoutStopSec, systemd.service(5))."""

from __future__ import annotations

from ansible_collections.llmops.vllm.plugins.module_utils.errors import LlmopsError
from ansible_collections.llmops.vllm.plugins.module_utils.systemd import NO_ANSWER, Runner, UnitState, show_unit


def is_stopped(unit: UnitState) -> bool:
    """Whether systemd runs nothing of the unit and is not about to; so it is for a unit that systemd does not know."""
    return not unit.exists or unit.active_state in ("inactive", "failed")


def stop_unit(runner: Runner, name: str) -> bool:
    """Stop the unit ``name`` and return whether it had to be. Raises ``LlmopsError`` when systemd does not do it.

    A unit can take longer to stop than ``runner`` waits; systemctl is then run again, and joins the stop under way.
    """
    if is_stopped(show_unit(runner, name)):
        return False
    while True:
        done = runner(["systemctl", "stop", "--", name])
        unit = show_unit(runner, name)
        if is_stopped(unit):
            return True
        if done.returncode != NO_ANSWER:
            reason = " ".join(done.stderr.split()) or f"it is {unit.active_state} again; see who starts it"
            raise LlmopsError(f"systemd did not stop {name}: {reason}")
