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
  - Beside the files lies the metadata of the hub's own client, C(.cache/huggingface). C(hf download --local-dir) then
    takes the snapshot for complete and fetches nothing.
  - The token is sent to the origin of O(endpoint) only, never to hosts it redirects to, and C(~/.netrc) is not used.
    Proxies are taken from O(proxy) or the environment.
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
  manifest:
    description:
      - What belongs to the commit, in place of the hub's answer. The hub is then not asked, which is for hosts that
        reach none. Whether its files still come from a hub is for O(sources) to say.
      - A mapping, or the absolute path of a JSON file on the target, with C(commit) (40 hexadecimal digits) and
        C(files), a list of C({path, size, sha256}); C(size) is bytes. Small files may have C(git_sha1), the blob id
        that the hub lists, in place of C(sha256).
      - The manifest of a snapshot on a connected host, C(<path>/.llmops/manifest.json), is one.
    type: raw
  sources:
    description:
      - Where files come from. For each file they are tried in order, until one delivers the right bytes.
      - One that cannot be reached, does not have the file, or delivers wrong bytes twice or less than 16 KiB per second
        for a minute is followed by the next. One that has not answered at all, retries included, or does not know who
        asks (status 401) is skipped for the rest of the run, with a warning.
      - No source is trusted. What a file must be is known from O(endpoint) or O(manifest) before any is asked.
      - By default the hub at O(endpoint).
    type: list
    elements: dict
    suboptions:
      type:
        description:
          - V(hub) is O(endpoint), or another server that speaks a hub's API, at O(sources[].url).
          - V(mirror) is any HTTP(S) server or S3-style bucket that serves the files under O(sources[].url).
          - V(peers) are hosts that serve finished files at C(<url>/blobs/<digest>), as O(publish_blobs) arranges them.
            One that does not have a file yet answers 404. Every host asks them in another order, and begins with
            another file, so that a file leaves the hub about once for all of them.
          - V(directory) is a directory on the target, a network mount or a USB disk for instance.
        type: str
        choices: [hub, mirror, peers, directory]
        required: true
      url:
        description:
          - Base URL of a V(hub) or V(mirror), without user and query. O(token) is sent to O(endpoint) only.
          - C({repo}) and C({commit}) in it stand for those of the snapshot.
        type: str
      urls:
        description: Base URLs of V(peers). A host may be among its own.
        type: list
        elements: str
      layout:
        description:
          - V(repo) when a V(mirror) serves files at C(<url>/<path>), V(blobs) when at C(<url>/blobs/<digest>).
          - The digest is the one that the hub lists, the SHA-256 of large files and git's blob id of small ones.
        type: str
        choices: [repo, blobs]
        default: repo
      path:
        description:
          - Directory of the files, which lie in it at their repository paths or at C(blobs/<digest>).
          - Links inside it are not followed.
        type: path
      link:
        description:
          - How files of a V(directory) get into the store. They are read and verified all the same.
          - V(reflink) shares the bytes until one side is written. V(hardlink) makes it one file, which gets the owner
            and mode given here under its old name too. Both need one file system that can do that.
        type: str
        choices: [copy, reflink, hardlink]
        default: copy
      token:
        description:
          - Token that a V(mirror), V(peers), or a V(hub) with O(sources[].url) of its own wants. It is sent as a bearer
            token or in O(sources[].header).
          - Like every credential of a source it is sent to the origins of its own URLs only, not to what they redirect
            to, and C(~/.netrc) is not used. It is in no result, log, file or argument list.
          - Either a token or O(sources[].username) and a password, each as an option or as a file on the target.
        type: str
      token_file:
        description: File on the target that holds the token, as O(token_file).
        type: path
      header:
        description:
          - Name of the header that carries the token as it is, where the server takes no bearer token;
            C(PRIVATE-TOKEN), for instance.
        type: str
      username:
        description: User for a server that asks for a password (HTTP Basic).
        type: str
      password:
        description: Password of O(sources[].username).
        type: str
      password_file:
        description: File on the target that holds the password, as O(token_file).
        type: path
  token:
    description: Token for private and gated repositories. Mutually exclusive with O(token_file).
    type: str
  token_file:
    description:
      - File on the target that holds the token. It must belong to root or the user that runs the module and give nobody
        else access.
    type: path
  publish_blobs:
    description:
      - Give every verified file a second name, C(<store>/.llmops/blobs/<digest>), a hard link, for other hosts. Any web
        server can hand them out; C(<store>/.llmops) is what it serves as C(/), and only C(/blobs/) of it is needed.
      - A name goes with the last snapshot that has the file. V(false) leaves existing ones alone.
      - As O(sources) of type V(directory) with C(link=hardlink), C(<store>/.llmops) gives a new revision the files that
        did not change.
    type: bool
    default: false
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
  bandwidth_bytes_per_second:
    description: How much all transfers of this run may take of the network together; V(0) is no limit.
    type: int
    default: 0
  proxy:
    description:
      - Proxy for everything but the hosts in E(NO_PROXY), as an http(s) URL, which may hold user and password.
      - Without it E(HTTPS_PROXY) and its like decide.
    type: str
  lock_timeout_seconds:
    description: Seconds to wait for another run that works on the same snapshot.
    type: int
    default: 3600
  ca_path:
    description:
      - CA bundle file or directory on the target for TLS.
      - Without it E(REQUESTS_CA_BUNDLE), then the bundle of requests.
    type: path
  prune:
    description:
      - Which other snapshots of the store are removed once this one is present. Never one that a release links into or
        that another run works on.
      - Releases of this host alone are looked at, so leave it out for a store that several hosts share.
    type: dict
    suboptions:
      keep:
        description: Number of unused snapshots to keep, those that were wanted last.
        type: int
        required: true
      min_age_seconds:
        description:
          - Seconds for which a snapshot must not have been wanted before it is removed. When it was wanted is known to
            the hour.
        type: int
        default: 0
  make_room:
    description:
      - Whether unused snapshots are removed, the least recently wanted first, when this one does not fit otherwise.
      - None is removed when all of them are not enough. The same are spared as by O(prune).
    type: bool
    default: false
  releases:
    description:
      - Directory of releases that is searched for links into a snapshot before it is removed.
      - By default C(releases) beside O(store), so C(/srv/llm/releases).
    type: path
  detach:
    description:
      - Leave what takes long, fetching and reading files, to a worker on the target that goes on when this run, its
        controller or the connection ends. A later run for the same snapshot finds it and waits for it.
      - Under systemd, for root, the worker is the service C(llmops-model-...), and C(systemctl status) shows how far it
        is; elsewhere a process of its own. C(.llmops/status.json) in the snapshot says the same.
      - Stopping the service keeps what arrived; the next run resumes it.
      - On a controller the progress is printed meanwhile. Check mode and O(state=absent) never start a worker.
    type: bool
    default: false
  slice_seconds:
    description:
      - With O(detach) how long one call on the target may wait for the worker, in seconds; V(0) waits for its end.
      - On a controller, calls are repeated until the end anyway; V(0) then stands for slices of 10 to 60 seconds.
    type: int
    default: 0
  follow:
    description: The worker to wait for, as RV(follow) of an earlier slice. Set between slices.
    type: str
    default: ""
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

- name: Take everything from a mirror that wants a password
  llmops.vllm.model_shards:
    repo: nvidia/Kimi-K2.5-NVFP4
    manifest: /srv/llm/manifests/kimi.json
    sources:
      - type: mirror
        url: https://artifacts.example.com/models/{repo}/{commit}
        username: vllm
        password_file: /etc/llm/mirror-password

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

- name: Have the next model, at the cost of those that nothing uses any more
  llmops.vllm.model_shards:
    repo: nvidia/Kimi-K2.5-NVFP4
    make_room: true
    prune:
      keep: 1
      min_age_seconds: 604800

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
    - Snapshots removed by O(prune) and O(make_room) count too.
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
removed:
  description: Snapshots that O(prune) and O(make_room) removed; in check mode, would remove.
  returned: success
  type: list
  elements: dict
  contains:
    repo:
      description: The repository.
      type: str
      returned: always
      sample: acme/old-model
    commit:
      description: The commit.
      type: str
      returned: always
      sample: 0123456789abcdef0123456789abcdef01234567
    path:
      description: Directory of the snapshot.
      type: str
      returned: always
      sample: /srv/llm/store/acme--old-model/0123456789abcdef0123456789abcdef01234567
    freed_bytes:
      description: Bytes that it took and others did not share.
      type: int
      returned: always
      sample: 540123456789
sources:
  description: The sources that gave something or were skipped, in the order of O(sources).
  returned: success
  type: list
  elements: dict
  contains:
    type:
      description: The type of the source.
      type: str
      returned: always
      sample: peers
    location:
      description: Its URL or path.
      type: str
      returned: always
      sample: http://gpu-02:8088
    files:
      description: Number of files that it gave, or gave the last bytes of.
      type: int
      returned: always
      sample: 17
    bytes:
      description: Bytes that came from it.
      type: int
      returned: always
      sample: 76500000000
    skipped:
      description: Whether it was given up because it did not answer.
      type: bool
      returned: always
      sample: false
elapsed_seconds:
  description: Duration of the work in seconds; with O(detach) that of the worker, whoever started it.
  returned: success
  type: float
  sample: 431.7
follow:
  description: Which worker is still at work, for the next slice to wait for.
  returned: when a slice ended before the worker
  type: str
  sample: 7d4a3c5e9b1f4f0c8f6a2b1c0d9e8f7a
unit:
  description: Service that does the work; empty where systemd does not run it.
  returned: when a slice ended before the worker
  type: str
  sample: llmops-model-acme--small-model-0123456789ab-5f0c11.service
stop_command:
  description: Command that stops the worker and keeps what arrived; empty when that is not known yet.
  returned: when a slice ended before the worker
  type: str
  sample: systemctl stop llmops-model-acme--small-model-0123456789ab-5f0c11.service
progress:
  description: How far the worker is.
  returned: when a slice ended before the worker
  type: str
  sample: 37/119 files, 171 of 540 GB, 1.9 GB/s, 3m10s left
wrong:
  description: What is wrong with the snapshot, a phrase for each thing.
  returned: when O(state=verified) fails
  type: list
  elements: str
  sample: ["model-00017-of-00119.safetensors: damaged, wrong digest"]
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

import os
import time
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.llmops.vllm.plugins.module_utils.credentials import check_token, read_secret
from ansible_collections.llmops.vllm.plugins.module_utils.errors import LlmopsError
from ansible_collections.llmops.vllm.plugins.module_utils.model_detached import Answer, DetachedRequest, Host
from ansible_collections.llmops.vllm.plugins.module_utils.model_request import Surroundings, as_result, fulfil
from ansible_collections.llmops.vllm.plugins.module_utils.systemd import run_command
from ansible_collections.llmops.vllm.plugins.module_utils.worker_place import default_root
from ansible_collections.llmops.vllm.plugins.module_utils.worker_start import find_launcher

ARGUMENT_SPEC: dict[str, Any] = {
    "repo": {"type": "str", "required": True},
    "revision": {"type": "str", "default": "main"},
    "state": {"type": "str", "choices": ["present", "absent", "verified"], "default": "present"},
    "store": {"type": "path", "default": "/srv/llm/store"},
    "endpoint": {"type": "str", "default": "https://huggingface.co"},
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
            "token": {"type": "str", "no_log": True},
            "token_file": {"type": "path", "no_log": False},
            "header": {"type": "str"},
            "username": {"type": "str"},
            "password": {"type": "str", "no_log": True},
            "password_file": {"type": "path", "no_log": False},
        },
        "required_if": [("type", "mirror", ["url"]), ("type", "peers", ["urls"]), ("type", "directory", ["path"])],
    },
    "token": {"type": "str", "no_log": True},
    "token_file": {"type": "path", "no_log": False},
    "publish_blobs": {"type": "bool", "default": False},
    "include": {"type": "list", "elements": "str", "default": []},
    "exclude": {"type": "list", "elements": "str", "default": []},
    "verify": {"type": "str", "choices": ["stat", "sample", "full"]},
    "sample_percent": {"type": "int", "default": 5},
    "sample_number": {"type": "int"},
    "workers": {"type": "int", "default": 8},
    "reserve_bytes": {"type": "int", "default": 1024**3},
    "owner": {"type": "str"},
    "group": {"type": "str"},
    "file_mode": {"type": "str", "default": "0644"},
    "directory_mode": {"type": "str", "default": "0755"},
    "stall_timeout_seconds": {"type": "int", "default": 30},
    "retries": {"type": "int", "default": 5},
    "bandwidth_bytes_per_second": {"type": "int", "default": 0},
    "proxy": {"type": "str", "no_log": True},
    "lock_timeout_seconds": {"type": "int", "default": 3600},
    "ca_path": {"type": "path"},
    "prune": {
        "type": "dict",
        "options": {
            "keep": {"type": "int", "required": True},
            "min_age_seconds": {"type": "int", "default": 0},
        },
    },
    "make_room": {"type": "bool", "default": False},
    "releases": {"type": "path"},
    "detach": {"type": "bool", "default": False},
    "slice_seconds": {"type": "int", "default": 0},
    "follow": {"type": "str", "default": ""},
}


def _read_secret(module: AnsibleModule, path: str, option: str) -> str:
    secret = read_secret(path, option)
    module.no_log_values.add(secret.strip())
    return secret


def _token(module: AnsibleModule) -> str | None:
    params = module.params
    if params["token_file"]:
        path = params["token_file"]
        return check_token(_read_secret(module, path, "token_file").strip(), f"token_file {path}")
    return check_token(params["token"], "token") if params["token"] else None


def _answer(module: AnsibleModule) -> Answer:
    params = module.params
    around = Surroundings(
        module.check_mode,
        token=lambda: _token(module),
        warn=module.warn,
        read_secret=lambda path, option: _read_secret(module, path, option),
    )
    if params["detach"] and params["state"] != "absent" and not module.check_mode:
        host = Host(find_launcher(run_command), default_root(os.geteuid()))
        return DetachedRequest(params, around, host).run()
    started = time.monotonic()
    outcome = fulfil(params, around)
    return Answer(as_result(outcome, time.monotonic() - started), outcome.warnings)


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec=ARGUMENT_SPEC,
        mutually_exclusive=[("token", "token_file")],
        supports_check_mode=True,
        # The host's log would show the list of sources as Python writes it, and a password with a backslash is then
        # not recognised as one.
        no_log=True,
    )
    try:
        answer = _answer(module)
    except LlmopsError as error:
        module.fail_json(msg=error.message, **error.details)
    for warning in answer.warnings:
        module.warn(warning)
    module.exit_json(**answer.values)


if __name__ == "__main__":
    main()
