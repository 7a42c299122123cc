# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A model hub for the download benchmark: nginx with generated repositories, plain and TLS, on loopback."""

from __future__ import annotations

import json
import os
import shutil
import socket
import struct
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from _measure import family, start

sys.path.insert(0, str(Path(__file__).parents[1] / "rig"))
import hub as rig_hub

CONFIGURATION = """\
worker_processes {cores}; daemon off; pid {root}/nginx.pid; error_log {root}/error.log warn; {user}
events {{ worker_connections 1024; }}
http {{
  log_format bench '$server_port $request_method $status $body_bytes_sent $uri';
  access_log {root}/access.log bench;
  client_body_temp_path {root}/t1; proxy_temp_path {root}/t2; fastcgi_temp_path {root}/t3;
  uwsgi_temp_path {root}/t4; scgi_temp_path {root}/t5;
  absolute_redirect off; sendfile on; tcp_nopush on; keepalive_requests 100000;
  default_type application/octet-stream;
  ssl_certificate {root}/server.pem; ssl_certificate_key {root}/server.key; ssl_protocols TLSv1.2 TLSv1.3;
  map $scheme $cdn {{ http http://127.0.0.1:{cdn}; https https://127.0.0.1:{cdn_tls}; }}
  server {{
    listen 127.0.0.1:{hub} backlog=512; listen 127.0.0.1:{hub_tls} ssl backlog=512;
{locations}
  }}
  server {{
    listen 127.0.0.1:{cdn} backlog=512; listen 127.0.0.1:{cdn_tls} ssl backlog=512;
    location /blobs/ {{ if ($http_authorization) {{ return 400; }} root {root}; etag off; }}
    location /named/ {{ alias {root}/named/; autoindex on; }}
  }}
}}
"""


@dataclass(frozen=True)
class Repository:
    """A generated repository: its large files by name, with size and digest."""

    name: str
    commit: str
    shards: dict[str, tuple[int, str]]

    @property
    def total_bytes(self) -> int:
        """Bytes of the shards."""
        return sum(size for size, _digest in self.shards.values())


def write_shard(path: Path, size: int, number: int) -> None:
    """Write a valid safetensors file of `size` random bytes: one tensor of BF16."""
    header_bytes = 1016
    data_bytes = size - 8 - header_bytes
    tensor = {"dtype": "BF16", "shape": [data_bytes // 2], "data_offsets": [0, data_bytes]}
    header = json.dumps({f"weight{number}": tensor}).encode().ljust(header_bytes)
    with path.open("wb") as stream:
        stream.write(struct.pack("<Q", header_bytes) + header)
        while left := size - stream.tell():
            stream.write(os.urandom(min(left, 4 * 1024 * 1024)))


def write_model(folder: Path, count: int, size: int) -> None:
    """Write a model of `count` shards with the small files that every repository has."""
    folder.mkdir(parents=True)
    names = [f"model-{number:05d}-of-{count:05d}.safetensors" for number in range(1, count + 1)]
    for number, name in enumerate(names):
        write_shard(folder / name, size, number)
    weights = {f"weight{number}": name for number, name in enumerate(names)}
    for name, data in (
        ("config.json", {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}),
        ("model.safetensors.index.json", {"metadata": {"total_size": count * size}, "weight_map": weights}),
        ("tokenizer_config.json", {"model_max_length": 4096}),
    ):
        (folder / name).write_text(json.dumps(data, indent=1), encoding="utf-8")


def free_ports(count: int) -> list[int]:
    """Ports on which nobody listens now."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [opened.getsockname()[1] for opened in sockets]
    for opened in sockets:
        opened.close()
    return ports


def make_certificates(root: Path) -> None:
    """Make an authority that signs nothing but this run's server."""
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    authority = ["-subj", "/CN=benchmark", "-addext", "keyUsage=critical,keyCertSign"]
    server = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    server += ["-addext", "basicConstraints=critical,CA:FALSE", "-CA", "ca.pem", "-CAkey", "ca.key"]
    for name, options in (("ca", authority), ("server", server)):
        command = ["openssl", "req", "-x509", *key, *options, "-keyout", f"{name}.key", "-out", f"{name}.pem"]
        subprocess.run(command, cwd=root, check=True, capture_output=True)


class Server:
    """nginx over `root`, a folder in memory; a context manager."""

    def __init__(self, root: Path, nginx: str, cores: int) -> None:
        self.root = root
        self.ports = dict(zip(("hub", "hub_tls", "cdn", "cdn_tls"), free_ports(4)))
        self._nginx = nginx
        self._cores = cores
        self._locations = ""
        self._process: subprocess.Popen[bytes] | None = None
        make_certificates(root)
        for name in ("api", "blobs", "files", "named"):
            (root / name).mkdir()

    def add(self, name: str, count: int, size: int) -> Repository:
        """Generate a repository of `count` shards of `size` bytes."""
        folder = self.root / "models" / name
        write_model(folder, count, size)
        repo, commit, locations = rig_hub.add_repository(folder, self.root, str(self.root), "$cdn")
        self._locations += locations
        shutil.rmtree(folder)
        info = json.loads((self.root / "api" / f"{commit}.info.json").read_text())
        shards = {
            item["rfilename"]: (item["size"], item["lfs"]["sha256"]) for item in info["siblings"] if "lfs" in item
        }
        (self.root / "named" / name).mkdir()
        for shard, (_size, digest) in shards.items():
            (self.root / "named" / name / shard).hardlink_to(self.root / "blobs" / digest)
        return Repository(repo, commit, shards)

    def url(self, role: str, tls: bool) -> str:
        """The origin of the `hub` or the `cdn`."""
        return f"{'https' if tls else 'http'}://127.0.0.1:{self.ports[f'{role}_tls' if tls else role]}"

    def processes(self) -> list[int]:
        """Master and workers."""
        assert self._process
        return family(self._process.pid)

    def log(self) -> tuple[int, int]:
        """How many requests were answered so far, and with how many bytes."""
        lines = (self.root / "access.log").read_text().splitlines()
        return len(lines), sum(int(line.split()[3]) for line in lines)

    def __enter__(self) -> Server:
        """Start."""
        text = CONFIGURATION.format(
            root=self.root,
            cores=self._cores,
            user="user root;" if os.geteuid() == 0 else "",
            locations=self._locations,
            **self.ports,
        )
        (self.root / "nginx.conf").write_text(text)
        command = [self._nginx, "-p", str(self.root), "-e", str(self.root / "error.log"), "-c", "nginx.conf"]
        self._process = start(command)
        for _attempt in range(200):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.ports["hub"])) == 0:
                    return self
            time.sleep(0.05)
        self.__exit__()
        raise RuntimeError(f"nginx does not answer: {(self.root / 'error.log').read_text()}")

    def __exit__(self, *_exc: object) -> None:
        """Stop."""
        if self._process:
            self._process.terminate()
            self._process.wait()
