#!/usr/bin/python
# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: model_shards
short_description: Make one pinned revision of a model present and verified on a host
version_added: 0.1.0
description:
  - Downloads the files of one revision of a model repository from a hub into a store, verifies every byte against the
    digests of the hub's API, and keeps a manifest so that a later run knows in milliseconds that nothing changed.
  - A snapshot is immutable. It lies at C(<store>/<org>--<name>/<commit>/) with the files at their repository paths and
    the manifest C(.llmops/manifest.json).
  - A file gets its final name only after its digest was right and it was synced to the disk. What is still arriving
    lies in C(.llmops/partial), named by digest, and is resumed by the next run, whatever ended this one.
  - With a full commit id as O(revision) and a complete snapshot there is no network access at all.
  - The token is sent to the origin of O(endpoint) only, never to hosts it redirects to, and C(~/.netrc) is not used.
    Proxies are taken from the environment.
options:
  repo:
    description: The repository, as C(org/name).
    type: str
    required: true
  revision:
    description:
      - A branch, tag or full commit id. It is resolved once, to a commit of 40 hexadecimal digits.
      - O(state=absent) takes a full commit id only.
    type: str
    default: main
  state:
    description:
      - V(present) fetches what is missing or damaged.
      - V(verified) changes nothing. It fails, naming all that is wrong, unless the snapshot is complete, right and
        without other files.
      - V(absent) removes the snapshot, unless a release still links into it.
    type: str
    choices: [present, absent, verified]
    default: present
  store:
    description: Directory of all snapshots; missing directories are made.
    type: path
    default: /srv/llm/store
  endpoint:
    description:
      - The hub or a mirror that speaks its API, as an http(s) URL.
      - It says which commit O(revision) is and what belongs to it, unless O(manifest) does.
    type: str
    default: https://huggingface.co
  token:
    description: Token for private and gated repositories. Mutually exclusive with O(token_file).
    type: str
  token_file:
    description:
      - File on the target that holds the token. It must belong to root or the user that runs the module and give nobody
        else access.
    type: path
  include:
    description:
      - Globs of the files to have; all when empty. They match the whole path, C(*) crosses C(/), and C(dir/) means all
        below it.
    type: list
    elements: str
    default: []
  exclude:
    description: Globs of the files to leave out. Files already there are not removed.
    type: list
    elements: str
    default: []
  verify:
    description:
      - V(stat) trusts a file whose size, times and inode are those of the manifest and reads only the others.
      - V(sample) reads some of the files besides, O(sample_percent) of the bytes.
      - V(full) reads every file, on all cores.
      - A damaged file of more than 64 MiB is repaired by fetching only the chunks of 64 MiB that are wrong, from a
        source that gives ranges. The damaged file is not written, since an engine may use it, but replaced.
      - The default is V(full) with O(state=verified), else V(stat).
    type: str
    choices: [stat, sample, full]
  sample_percent:
    description: Share of the bytes that O(verify=sample) reads, in percent, rounded up to whole files.
    type: int
    default: 5
  sample_number:
    description:
      - Which share O(verify=sample) reads. Consecutive numbers go round all files.
      - By default the number of the day. A check every day has then read everything after 100 / O(sample_percent) days.
    type: int
  workers:
    description: Number of files that are fetched or read at the same time, 1 to 16.
    type: int
    default: 8
  reserve_bytes:
    description: Bytes that must stay free on the file system of O(store). Checked before the first byte is fetched.
    type: int
    default: 1073741824
  owner:
    description: Name of the user that owns the snapshot. Without it new files belong to the user that runs the module.
    type: str
  group:
    description: Name of the group of the snapshot.
    type: str
  file_mode:
    description: Mode of files, as a quoted octal string.
    type: str
    default: "0644"
  directory_mode:
    description: Mode of directories, as a quoted octal string.
    type: str
    default: "0755"
  stall_timeout_seconds:
    description: Seconds without a single byte after which a connection is given up and the file continued on another.
    type: int
    default: 30
  retries:
    description:
      - How often a request is made again after a failure that may pass.
      - For a file only failures without progress count.
    type: int
    default: 5
  lock_timeout_seconds:
    description: Seconds to wait for another run that works on the same snapshot.
    type: int
    default: 3600
  ca_path:
    description:
      - CA bundle file or directory on the target for TLS.
      - Without it E(REQUESTS_CA_BUNDLE), then the bundle of requests.
    type: path
  releases:
    description: Directory of releases that is searched for links into the snapshot before it is removed.
    type: path
    default: /srv/llm/releases
requirements:
  - requests (Python package on the target, needed only when something has to be asked over HTTP)
attributes:
  check_mode:
    support: full
    details:
      - Asks the hub and downloads nothing; with O(verify=full) it reads the files. How much of a damaged file would be
        fetched is not known before, so it counts whole.
      - Where requests is missing it warns instead of failing, and reports a change.
  diff_mode:
    support: full
extends_documentation_fragment:
  - llmops.vllm.attributes
  - llmops.vllm.attributes.actiongroup_vllm
seealso:
  - module: llmops.vllm.config_patch
author:
  - llmops.vllm maintainers (@llmops)
"""

EXAMPLES = r"""
- name: Have the model in the store, pinned to one commit
  llmops.vllm.model_shards:
    repo: nvidia/Kimi-K2.5-NVFP4
    revision: 8c4c6a1f0f3a9be1c5f6f5d1b2a9d7e3c4b5a697
    token_file: /etc/llm/hub-token
    owner: llm
    group: llm
  register: model

- name: Leave out what the engine does not read
  llmops.vllm.model_shards:
    repo: acme/small-model
    exclude:
      - "original/"
      - "*.bin"

- name: Ask the other hosts first, then a mirror, then the hub
  llmops.vllm.model_shards:
    repo: nvidia/Kimi-K2.5-NVFP4
    revision: 8c4c6a1f0f3a9be1c5f6f5d1b2a9d7e3c4b5a697
    sources:
      - type: peers
        urls: "{{ groups.vllm | map('regex_replace', '^(.*)$', 'http://\\1:8088') }}"
      - type: mirror
        url: https://s3.example.com/models/{repo}/{commit}
      - type: hub

- name: Install a model that came on a disk, where no hub can be reached
  llmops.vllm.model_shards:
    repo: nvidia/Kimi-K2.5-NVFP4
    manifest: /media/usb/kimi/.llmops/manifest.json
    sources:
      - type: directory
        path: /media/usb/kimi

- name: Read all bytes again and repair what is damaged
  llmops.vllm.model_shards:
    repo: nvidia/Kimi-K2.5-NVFP4
    revision: "{{ model.commit }}"
    verify: full

- name: Every night, fail if a twentieth of the model is not what it was
  llmops.vllm.model_shards:
    repo: nvidia/Kimi-K2.5-NVFP4
    revision: "{{ model.commit }}"
    state: verified
    verify: sample

- name: Remove a snapshot that no release uses
  llmops.vllm.model_shards:
    repo: acme/small-model
    revision: 0123456789abcdef0123456789abcdef01234567
    state: absent
"""

RETURN = r"""
path:
  description: Directory of the snapshot. The directory of the repository when check mode could not find out the commit.
  returned: success
  type: str
  sample: /srv/llm/store/acme--small-model/0123456789abcdef0123456789abcdef01234567
repo:
  description: The repository.
  returned: success
  type: str
  sample: acme/small-model
commit:
  description: The commit that O(revision) means. Empty when check mode could not find it out.
  returned: success
  type: str
  sample: 0123456789abcdef0123456789abcdef01234567
files:
  description: Number of files selected by O(include) and O(exclude); with O(state=absent) the number of files removed.
  returned: success
  type: int
  sample: 134
total_bytes:
  description: Bytes of the selected files.
  returned: success
  type: int
  sample: 540123456789
fetched_bytes:
  description: Bytes of file content that came from sources; in check mode the bytes that would.
  returned: success
  type: int
  sample: 4500000000
reused_bytes:
  description: Bytes of the selected files that were there already, parts of files included.
  returned: success
  type: int
  sample: 535623456789
freed_bytes:
  description:
    - Bytes of the removed files that had no second name; in check mode the bytes that would be freed.
    - 0 unless O(state=absent).
  returned: success
  type: int
  sample: 0
requests:
  description: Number of HTTP requests made, redirects included.
  returned: success
  type: int
  sample: 269
damaged:
  description: Paths of files that were there with wrong content and were replaced (in check mode, would be).
  returned: success
  type: list
  elements: str
  sample: [model-00017-of-00119.safetensors]
elapsed_seconds:
  description: Duration of the module in seconds.
  returned: success
  type: float
  sample: 431.7
file:
  description: The file that no source delivered.
  returned: when a source delivered wrong bytes, or several sources failed
  type: str
  sample: model-00017-of-00119.safetensors
expected:
  description: The digest in the hub's API or in O(manifest).
  returned: when a source delivered wrong bytes, or several sources failed
  type: str
  sample: e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855
got:
  description: The digest of the bytes that came.
  returned: when a source delivered wrong bytes
  type: str
  sample: 5feceb66ffc86f38d952786c6d696c79c2dbc239dd4e91b46729d73a27fb57e9
refusals:
  description: Why each source could not give the file, as C(location) and C(reason).
  returned: when several sources failed
  type: list
  elements: dict
  sample: [{location: "http://gpu-02:8088", reason: "http://gpu-02:8088/blobs/e3b0 is not there (404)."}]
needed_bytes:
  description: Bytes that are missing.
  returned: when there is too little space
  type: int
  sample: 540123456789
free_bytes:
  description: Bytes that are free.
  returned: when there is too little space
  type: int
  sample: 1000000000
used_by:
  description: Releases, as C(<instance>/<release>), that link into the snapshot.
  returned: when a snapshot that is in use should be removed
  type: list
  elements: str
  sample: [kimi/3f2a9c]
"""

import time
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.llmops.vllm.plugins.module_utils.credentials import check_token, read_token
from ansible_collections.llmops.vllm.plugins.module_utils.errors import LlmopsError
from ansible_collections.llmops.vllm.plugins.module_utils.model_request import Surroundings, fulfil

ARGUMENT_SPEC: dict[str, Any] = {
    "repo": {"type": "str", "required": True},
    "revision": {"type": "str", "default": "main"},
    "state": {"type": "str", "choices": ["present", "absent", "verified"], "default": "present"},
    "store": {"type": "path", "default": "/srv/llm/store"},
    "endpoint": {"type": "str", "default": "https://huggingface.co"},
    "token": {"type": "str", "no_log": True},
    "token_file": {"type": "path", "no_log": False},
    "include": {"type": "list", "elements": "str", "default": []},
    "exclude": {"type": "list", "elements": "str", "default": []},
    "verify": {"type": "str", "choices": ["stat", "full"], "default": "stat"},
    "workers": {"type": "int", "default": 8},
    "reserve_bytes": {"type": "int", "default": 1024**3},
    "owner": {"type": "str"},
    "group": {"type": "str"},
    "file_mode": {"type": "str", "default": "0644"},
    "directory_mode": {"type": "str", "default": "0755"},
    "stall_timeout_seconds": {"type": "int", "default": 30},
    "retries": {"type": "int", "default": 5},
    "lock_timeout_seconds": {"type": "int", "default": 3600},
    "ca_path": {"type": "path"},
    "releases": {"type": "path", "default": "/srv/llm/releases"},
}


def _token(module: AnsibleModule) -> str | None:
    params = module.params
    if params["token_file"]:
        token = read_token(params["token_file"])
        module.no_log_values.add(token)
        return token
    return check_token(params["token"], "token") if params["token"] else None


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec=ARGUMENT_SPEC, mutually_exclusive=[("token", "token_file")], supports_check_mode=True
    )
    started = time.monotonic()
    try:
        around = Surroundings(module.check_mode, token=lambda: _token(module), warn=module.warn)
        outcome = fulfil(module.params, around)
    except LlmopsError as error:
        module.fail_json(msg=error.message, **error.details)
    for warning in outcome.warnings:
        module.warn(warning)
    module.exit_json(
        changed=outcome.tracker.changed,
        diff=outcome.tracker.as_diff(),
        elapsed_seconds=round(time.monotonic() - started, 3),
        **outcome.as_result(),
    )


if __name__ == "__main__":
    main()
refusals:
  description: Why each source could not give the file, as C(location) and C(reason).
  returned: when several sources failed
  type: list
  elements: dict
  sample: [{location: "http://gpu-02:8088", reason: "http://gpu-02:8088/blobs/e3b0 is not there (404)."}]
    "manifest": {"type": "raw"},
    "sources": {
        "type": "list",
        "elements": "dict",
        "options": {
            "type": {"type": "str", "choices": ["hub", "mirror", "peers", "directory"], "required": True},
            "url": {"type": "str"},
            "urls": {"type": "list", "elements": "str"},
            "layout": {"type": "str", "choices": ["repo", "blobs"], "default": "repo"},
            "path": {"type": "path"},
            "link": {"type": "str", "choices": ["copy", "reflink", "hardlink"], "default": "copy"},
        },
        "required_if": [("type", "mirror", ["url"]), ("type", "peers", ["urls"]), ("type", "directory", ["path"])],
    },
    "token": {"type": "str", "no_log": True},
    "token_file": {"type": "path", "no_log": False},
    "publish_blobs": {"type": "bool", "default": False},
