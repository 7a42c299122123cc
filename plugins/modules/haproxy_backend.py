#!/usr/bin/python
# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: haproxy_backend
short_description: Take a server out of HAProxy's rotation and let it finish, or put it back
version_added: 0.1.0
author:
  - llmops.vllm maintainers (@llmops)
description:
  - Talks to the admin socket of a HAProxy on the host that the module runs on.
  - With O(state=drain) the server gets no new requests, and the module waits until those that it has are answered.
  - With O(state=ready) the server gets requests again, and the module waits until its checks find it healthy.
  - A server that serves is not taken out when too few others would be left. The look and the decision are one step,
    also when several hosts ask at the same time.
  - A server that somebody has put into maintenance is left there, unless O(end_maintenance) says otherwise.
extends_documentation_fragment:
  - llmops.vllm.attributes
  - llmops.vllm.attributes.actiongroup_vllm
attributes:
  check_mode:
    support: full
    details: Nothing is decided and nothing is waited for.
  diff_mode:
    support: full
options:
  backend:
    description: Name of the backend.
    type: str
    required: true
  server:
    description: Name of the server in it.
    type: str
    required: true
  state:
    description:
      - V(ready) takes requests, as far as its checks find it healthy.
      - V(drain) takes no new ones, and is checked on.
      - V(maint) takes no new ones, and is not checked.
    type: str
    choices: [drain, maint, ready]
    required: true
  minimum_serving:
    description:
      - How many other servers of the backend have to be serving when one that serves is taken out.
      - Else the module fails, and nothing is changed.
    type: int
    default: 0
  timeout_seconds:
    description:
      - How long the requests of a server that is taken out may take to end. What is left then is told in RV(drained),
        and is no failure.
      - How long the checks may take to find a server healthy that is put back. It is a failure when they do not.
      - With V(0) nothing is waited for.
    type: float
    default: 300
  end_maintenance:
    description: Whether a server in maintenance is set to O(state) as well.
    type: bool
    default: false
  socket:
    description: The admin socket (C(stats socket) with C(level admin)).
    type: path
    default: /run/haproxy/admin.sock
  state_file:
    description:
      - HAProxy's C(server-state-file), which is written when something was changed, so that a restart of HAProxy does
        not put back what was taken out. Empty for none.
    type: path
    default: ""
seealso:
  - module: llmops.vllm.launch_gate
"""

EXAMPLES = r"""
- name: Take the host out of rotation and let it finish its requests, but leave two others
  llmops.vllm.haproxy_backend:
    backend: vllm
    server: gpu-01
    state: drain
    minimum_serving: 2
    timeout_seconds: 600
  delegate_to: gateway-01
  register: drained

- name: Put it back
  llmops.vllm.haproxy_backend:
    backend: vllm
    server: gpu-01
    state: ready
    timeout_seconds: 60
  delegate_to: gateway-01
"""

RETURN = r"""
server:
  description: The server, as it is after the wait.
  returned: success
  type: dict
  contains:
    name:
      description: Its name.
      type: str
      sample: gpu-01
    address:
      description: Address and port.
      type: str
      sample: 192.0.2.11:8000
    state:
      description: What was decided about it, V(ready), V(drain) or V(maint).
      type: str
      sample: drain
    healthy:
      description: Whether its checks find it healthy.
      type: bool
      sample: true
    serving:
      description: Whether new requests are sent to it.
      type: bool
      sample: false
    weight:
      description: Its weight in the configuration.
      type: int
      sample: 1
    sessions:
      description: Requests that it is answering, or that wait for it alone.
      type: int
      sample: 0
    check:
      description: Its status and its last check in HAProxy's words.
      type: str
      sample: UP L7OK
state_before:
  description: What was decided about it before.
  returned: success
  type: str
  sample: ready
kept_maintenance:
  description: Whether it was left in maintenance.
  returned: success
  type: bool
  sample: false
drained:
  description: Whether it has no requests any more.
  returned: success
  type: bool
  sample: true
waited_seconds:
  description: How long that was waited for.
  returned: success
  type: float
  sample: 4.2
serving:
  description: The servers of the backend that were serving before.
  returned: success, and when too few would be left
  type: list
  elements: str
  sample: [gpu-01, gpu-02]
"""

import os
import time
from functools import partial

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.llmops.vllm.plugins.module_utils.errors import LlmopsError
from ansible_collections.llmops.vllm.plugins.module_utils.haproxy import Backend, Server, ask_socket
from ansible_collections.llmops.vllm.plugins.module_utils.rotation import Plan, Rotation, Wish, one_at_a_time, plan

ARGUMENTS = {
    "backend": {"type": "str", "required": True},
    "server": {"type": "str", "required": True},
    "state": {"type": "str", "choices": ["drain", "maint", "ready"], "required": True},
    "minimum_serving": {"type": "int", "default": 0},
    "timeout_seconds": {"type": "float", "default": 300},
    "end_maintenance": {"type": "bool", "default": False},
    "socket": {"type": "path", "default": "/run/haproxy/admin.sock"},
    "state_file": {"type": "path", "default": ""},
}


def run(module: AnsibleModule) -> tuple[Plan, Server, float]:
    """Plan, apply and wait; return the plan, the server as it is then, and the seconds waited."""
    given = module.params
    backend = Backend(partial(ask_socket, given["socket"]), given["backend"])
    wish = Wish(
        server=given["server"],
        state=given["state"],
        minimum_serving=given["minimum_serving"],
        timeout_seconds=given["timeout_seconds"],
        end_maintenance=given["end_maintenance"],
    )
    rotation = Rotation(backend, time.monotonic, time.sleep, given["state_file"])
    with one_at_a_time(os.path.dirname(given["socket"])):
        found = plan(backend, wish)
        if not module.check_mode:
            rotation.apply(found)
    if module.check_mode or (found.kept_maintenance and wish.state == "ready"):
        return found, found.before, 0.0
    server, waited = rotation.wait(wish)
    if wish.state == "ready" and wish.timeout_seconds > 0 and not server.serving:
        raise LlmopsError(
            f"{wish.server} is back in the rotation of {backend.name}, but gets no requests: after {waited:.0f} s its "
            f"checks say '{server.check}'; see whether the gateway reaches {server.address}.",
            server=server.as_dict(),
        )
    return found, server, waited


def main() -> None:
    """Run the module."""
    module = AnsibleModule(argument_spec=ARGUMENTS, supports_check_mode=True)
    try:
        found, server, waited = run(module)
    except LlmopsError as exc:
        module.fail_json(msg=exc.message, **exc.details)
    difference = found.differences()
    module.exit_json(
        changed=difference.changed,
        diff=difference.as_diff(),
        server=server.as_dict(),
        state_before=found.before.state,
        kept_maintenance=found.kept_maintenance,
        drained=server.sessions == 0,
        waited_seconds=round(waited, 2),
        serving=list(found.serving),
    )


if __name__ == "__main__":
    main()
