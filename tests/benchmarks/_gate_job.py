#!/usr/bin/env python3
# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run launch_gate in this process, with systemd's directory of running units in FOLDER.

usage: _gate_job.py FOLDER PARAMETERS    PARAMETERS is one JSON object; the last line of the output is the result
"""

from __future__ import annotations

import functools
import json
import sys

from ansible.module_utils.testing import patch_module_args
from ansible_collections.llmops.vllm.plugins.modules import launch_gate


def main() -> None:
    """Run the module."""
    folder, parameters = sys.argv[1:]
    launch_gate.UnitWatch = functools.partial(launch_gate.UnitWatch, units_directory=folder)  # type: ignore[misc]
    with patch_module_args(json.loads(parameters)):
        launch_gate.main()


if __name__ == "__main__":
    main()
