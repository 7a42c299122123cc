# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a person is shown of a task that waits in short calls."""

from __future__ import annotations

import time

from ansible.utils.display import Display

REPEAT_SECONDS = 30.0

display = Display()


class ProgressLine:
    """Prints a host's progress when it changed, and now and then when it did not."""

    def __init__(self, host: str) -> None:
        self._host = host
        self._shown = ""
        self._shown_at = 0.0

    def show(self, progress: str, note: str = "") -> None:
        """Print one line if it is time to; a new ``note`` alone is no reason."""
        now = time.monotonic()
        if progress == self._shown and now - self._shown_at < REPEAT_SECONDS:
            return
        self._shown, self._shown_at = progress, now
        display.display(f"    {self._host}: {progress}{note}")
