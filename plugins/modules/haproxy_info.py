#!/usr/bin/python
# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: haproxy_info
short_description: Tell which servers of a backend of HAProxy get requests
version_added: 0.1.0
author:
  - llmops.vllm maintainers (@llmops)
description:
  - Asks the socket of a HAProxy on the host that the module runs on about all servers of a backend, in one look.
extends_documentation_fragment:
  - llmops.vllm.attributes
  - llmops.vllm.attributes.actiongroup_vllm
  - llmops.vllm.attributes.info_module
options:
  backend:
    description: Name of the backend.
    type: str
    required: true
  socket:
    description: The socket (C(stats socket)).
    type: path
    default: /run/haproxy/admin.sock
seealso:
  - module: llmops.vllm.haproxy_backend
"""

EXAMPLES = r"""
- name: See who gets requests
  llmops.vllm.haproxy_info:
    backend: vllm
  delegate_to: gateway-01
  register: gateway

- name: Say it
  ansible.builtin.debug:
    msg: "{{ gateway.serving | join(', ') }}"
"""

RETURN = r"""
serving:
  description: Names of the servers to which new requests are sent.
  returned: success
  type: list
  elements: str
  sample: [gpu-01, gpu-02]
servers:
  description: All servers, in the order of the configuration.
  returned: success
  type: list
  elements: dict
  contains:
    name:
      description: Its name.
      returned: always
      type: str
      sample: gpu-01
    address:
      description: Address and port.
      returned: always
      type: str
      sample: 192.0.2.11:8000
    state:
      description: What was decided about it, V(ready), V(drain) or V(maint).
      returned: always
      type: str
      sample: ready
    healthy:
      description: Whether its checks find it healthy.
      returned: always
      type: bool
      sample: true
    serving:
      description: Whether new requests are sent to it.
      returned: always
      type: bool
      sample: true
    weight:
      description: Its weight in the configuration.
      returned: always
      type: int
      sample: 1
    sessions:
      description: Requests that it is answering, or that wait for it alone.
      returned: always
      type: int
      sample: 3
    check:
      description: Its status and its last check in HAProxy's words.
      returned: always
      type: str
      sample: UP L7OK
"""

from functools import partial

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.llmops.vllm.plugins.module_utils.errors import LlmopsError
from ansible_collections.llmops.vllm.plugins.module_utils.haproxy import Backend, ask_socket

ARGUMENT_SPEC = {
    "backend": {"type": "str", "required": True},
    "socket": {"type": "path", "default": "/run/haproxy/admin.sock"},
}


def main() -> None:
    """Run the module."""
    module = AnsibleModule(argument_spec=ARGUMENT_SPEC, supports_check_mode=True)
    try:
        servers = Backend(partial(ask_socket, module.params["socket"]), module.params["backend"]).servers()
    except LlmopsError as exc:
        module.fail_json(msg=exc.message, **exc.details)
    module.exit_json(
        changed=False,
        serving=[server.name for server in servers if server.serving],
        servers=[server.as_dict() for server in servers],
    )


if __name__ == "__main__":
    main()
