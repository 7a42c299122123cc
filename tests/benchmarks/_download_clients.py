# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The clients of the download benchmark: our module, and those that an operator would take otherwise."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from _download_server import Repository, Server
from _peers import MissingPeerError, programs_of

ROOT = Path(__file__).parents[2]
PARALLEL = 8
HF_ENVIRONMENT = {
    "HF_HUB_DISABLE_UPDATE_CHECK": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
}
# Runs the module as a file would and says at its end whether `requests` was imported.
MODULE = """\
import atexit, runpy, sys
atexit.register(lambda: print("imported requests:", "requests" in sys.modules, file=sys.stderr))
runpy.run_module("ansible_collections.llmops.vllm.plugins.modules.model_shards", run_name="__main__", alter_sys=True)
"""
Command = tuple[list[str], dict[str, str]]


@dataclass(frozen=True)
class Job:
    """What to fetch from where; ``scratch`` is an empty folder for a client's lists and caches."""

    server: Server
    repository: Repository
    tls: bool
    destination: Path
    scratch: Path

    @property
    def ca(self) -> Path:
        """The authority of the server's certificate."""
        return self.server.root / "ca.pem"

    def blob_url(self, shard: str) -> str:
        """Where a shard can be fetched without the hub."""
        return f"{self.server.url('cdn', self.tls)}/blobs/{self.repository.shards[shard][1]}"


@dataclass(frozen=True)
class Client:
    """A way to fetch a repository; ``absent`` says why this machine cannot show it."""

    name: str
    command: Callable[[Job], Command]
    verifies: bool = False
    absent: str = ""


def module_command(job: Job, revision: str = "main", **parameters: object) -> Command:
    """Our module, in a process of its own."""
    arguments = {
        "repo": job.repository.name,
        "revision": revision,
        "store": str(job.destination),
        "endpoint": job.server.url("hub", job.tls),
        "ca_path": str(job.ca) if job.tls else None,
        **parameters,
    }
    (job.scratch / "arguments.json").write_text(json.dumps({"ANSIBLE_MODULE_ARGS": arguments}))
    environment = {
        "PYTHONPATH": str(ROOT / "collections"),
        "PYTHONPYCACHEPREFIX": str(job.server.root / "pycache"),
        "PYTHONDONTWRITEBYTECODE": "",
    }
    return [sys.executable, "-c", MODULE, str(job.scratch / "arguments.json")], environment


def hf_command(program: Path) -> Callable[[Job], Command]:
    """The hub's own client."""

    def command(job: Job) -> Command:
        bundles = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE") if job.tls else ()
        environment = {
            **HF_ENVIRONMENT,
            "HF_ENDPOINT": job.server.url("hub", job.tls),
            "HF_HOME": str(job.scratch / "home"),
            **dict.fromkeys(bundles, str(job.ca)),
        }
        options = ["--local-dir", str(job.destination), "--max-workers", str(PARALLEL)]
        return [str(program), "download", job.repository.name, *options], environment

    return command


def aria2_command(job: Job) -> Command:
    """aria2, eight files and eight ranges at once, with the digests as its list can hold them."""
    lines = []
    for shard, (_size, digest) in job.repository.shards.items():
        lines += [job.blob_url(shard), f"  out={shard}", f"  checksum=sha-256={digest}"]
    (job.scratch / "list").write_text("\n".join(lines) + "\n")
    options = [f"-x{PARALLEL}", f"-s{PARALLEL}", f"-j{PARALLEL}", "--file-allocation=none", "--quiet=true"]
    options += ["--auto-file-renaming=false", "--allow-overwrite=true", f"--ca-certificate={job.ca}"]
    return ["aria2c", "--no-conf", *options, "-d", str(job.destination), "-i", str(job.scratch / "list")], {}


def rclone_command(job: Job) -> Command:
    """rclone from a plain directory listing."""
    (job.scratch / "list").write_text("\n".join(job.repository.shards) + "\n")
    folder = job.repository.name.partition("/")[2]
    source = f"{job.server.url('cdn', job.tls)}/named/{folder}/"
    options = ["--transfers", str(PARALLEL), "--checkers", str(PARALLEL), "--quiet", "--ca-cert", str(job.ca)]
    options += ["--http-url", source, "--files-from", str(job.scratch / "list")]
    return ["rclone", "copy", *options, ":http:", str(job.destination)], {"RCLONE_CONFIG": "/dev/null"}


def curl_command(job: Job) -> Command:
    """curl --parallel."""
    lines = [f'url = "{job.blob_url(shard)}"\noutput = "{shard}"' for shard in job.repository.shards]
    (job.scratch / "list").write_text("\n".join(lines) + "\n")
    options = ["--silent", "--show-error", "--fail", "--parallel", "--parallel-max", str(PARALLEL)]
    options += ["--create-dirs", "--output-dir", str(job.destination), "--cacert", str(job.ca)]
    return ["curl", *options, "--config", str(job.scratch / "list")], {}


def hf_client(name: str, environment: str) -> Client:
    """One version of `hf`, or why there is none."""
    try:
        return Client(name, hf_command(programs_of(environment) / "hf"))
    except MissingPeerError as error:
        return Client(name, hf_command(Path("hf")), absent=str(error))


def tool_client(name: str, program: str, command: Callable[[Job], Command], verifies: bool = False) -> Client:
    """A tool of the distribution."""
    absent = "" if shutil.which(program) else f"{program} is not installed"
    return Client(name, command, verifies, absent)


def all_clients() -> list[Client]:
    """Ours first, then the peers."""
    return [
        Client("model_shards", module_command, verifies=True),
        hf_client("hf current", "hf"),
        hf_client("hf 0.36", "hf-0.36"),
        tool_client("aria2 + checksum", "aria2c", aria2_command, verifies=True),
        tool_client("rclone", "rclone", rclone_command),
        tool_client("curl --parallel", "curl", curl_command),
    ]
