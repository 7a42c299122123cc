# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Units of sizes in bytes."""

from __future__ import annotations

MIB = 1024 * 1024
GIB = 1024 * MIB
