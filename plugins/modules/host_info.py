#!/usr/bin/python
# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: host_info
short_description: Tell what a host lacks of what a service needs
version_added: 0.1.0
description:
  - Asks in one look for the service manager, for libraries, for Python modules and for the account of the service. It
    asks what the host can do, not which packages it has, so it is the same on every distribution.
extends_documentation_fragment:
  - llmops.vllm.attributes
  - llmops.vllm.attributes.actiongroup_vllm
  - llmops.vllm.attributes.info_module
options:
  libraries:
    description: Shared libraries that the dynamic loader has to find, such as V(libnuma.so.1).
    type: list
    elements: str
    default: []
  modules:
    description: Python modules that the interpreter of this module has to find.
    type: list
    elements: str
    default: []
  python3_modules:
    description: Python modules that C(python3) has to find, which may be another interpreter.
    type: list
    elements: str
    default: []
  account:
    description: The user that has to exist. Without it none is asked for.
    type: dict
    suboptions:
      user:
        description: Its name.
        type: str
        required: true
      group:
        description: Its primary group.
        type: str
        required: true
      home:
        description: Its home directory, which need not exist.
        type: path
        required: true
      shell:
        description: Its shell.
        type: path
        required: true
author:
  - llmops.vllm maintainers (@llmops)
"""

EXAMPLES = r"""
- name: See what the host lacks
  llmops.vllm.host_info:
    libraries: [libnuma.so.1]
    modules: [requests]
    python3_modules: [ensurepip]
    account: {user: vllm, group: vllm, home: /var/lib/vllm, shell: /usr/sbin/nologin}
  register: host
"""

RETURN = r"""
service_manager:
  description: V(systemd), or the name of process 1.
  returned: success
  type: str
  sample: systemd
python_version:
  description: Version of the interpreter of this module.
  returned: success
  type: str
  sample: 3.11.2
missing:
  description: Libraries and Python modules that are not found.
  returned: success
  type: list
  elements: str
  sample: [libnuma.so.1, ensurepip]
account:
  description: In what the account differs, as parts of a sentence. Empty when it is as asked, or not asked for.
  returned: success
  type: list
  elements: str
  sample: [there is no user vllm]
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.llmops.vllm.plugins.module_utils.prerequisites import (
    OPTIONS,
    Prerequisites,
    python_version,
    service_manager,
)
from ansible_collections.llmops.vllm.plugins.module_utils.systemd import run_command

ARGUMENT_SPEC = OPTIONS


def main() -> None:
    """Run the module."""
    module = AnsibleModule(argument_spec=ARGUMENT_SPEC, supports_check_mode=True)
    wanted = Prerequisites.of(module.params)
    module.exit_json(
        changed=False,
        service_manager=service_manager(),
        python_version=python_version(),
        missing=wanted.missing(run_command),
        account=wanted.account_differences(),
    )


if __name__ == "__main__":
    main()
