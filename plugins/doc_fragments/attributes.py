# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations


class ModuleDocFragment:
    DOCUMENTATION = r"""
options: {}
attributes:
  check_mode:
    description: Can run in C(check_mode) and return changed status prediction without modifying target.
  diff_mode:
    description: Will return details on what has changed, or in C(check_mode) would change, when in diff mode.
"""

    ACTIONGROUP_VLLM = r"""
options: {}
attributes:
  action_group:
    description: Use C(group/llmops.vllm.vllm) in C(module_defaults) to set defaults for this module.
    support: full
    membership:
      - llmops.vllm.vllm
"""

    CHECK_AND_DIFF = r"""
options: {}
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
"""

    CHECK_ONLY = r"""
options: {}
attributes:
  check_mode:
    support: full
  diff_mode:
    support: none
"""

    INFO_MODULE = r"""
options: {}
attributes:
  check_mode:
    support: full
    details: This module never changes anything.
  diff_mode:
    support: N/A
    details: This module never changes anything.
"""
