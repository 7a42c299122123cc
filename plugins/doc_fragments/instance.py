# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations


class ModuleDocFragment:
    DOCUMENTATION = r"""
options:
  instance:
    description: Name of the instance, such as V(kimi).
    type: str
    required: true
"""

    ROOT = r"""
options:
  root:
    description:
      - Directory of what belongs to the instances of a host, C(instances/), C(releases/), C(receipts/) and
        C(audit.jsonl).
    type: path
    default: /srv/llm
"""

    RUN_PATH = r"""
options:
  run_path:
    description:
      - Directory of the locks of M(llmops.vllm.deploy_lock) and of marks, on a file system that a boot empties.
    type: path
    default: /run/llmops-vllm
"""

    RUN_ID = r"""
options:
  run_id:
    description:
      - Identifier of the run, which has to hold the lock of the instance, see M(llmops.vllm.deploy_lock).
      - Without it no lock is asked for.
    type: str
    default: ""
"""
