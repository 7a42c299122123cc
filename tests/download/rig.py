"""One store, one hub that misbehaves, the module run against it, and a judge that trusts neither."""

from __future__ import annotations

import json
import os
import random
import re
import ssl
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from ansible_collections.llmops.vllm.plugins.modules import model_shards
from ansible_collections.llmops.vllm.tests.unit.hub_server import ALWAYS, COMMIT, REPO, SIGNATURE, TOKEN, Hub, Kind

MIB = 1024 * 1024
SHARD = "model-00004-of-00006.safetensors"  # the one that a fault is aimed at
BEFORE_SHARD = 3  # with one worker the largest files come first, and shards of one size in the order of their names
SHARDS = 6
SHARD_BYTES = 6 * MIB + 12_345
CUT_AT = SHARD_BYTES * 3 // 4  # more than the 4 MiB that a worker holds in memory
SMALL_SHARD_BYTES = 12_345  # where no content is at stake

# A module run as AnsiballZ runs it, in a process of its own.
_MODULE = """
import json, signal, sys
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # ignored by all children of nohup
exec(sys.argv[3])
sys.path[:0] = json.loads(sys.argv[1])
from ansible.module_utils.testing import patch_module_args
from ansible_collections.llmops.vllm.plugins.modules import model_shards
with patch_module_args(json.loads(sys.argv[2])):
    model_shards.main()
"""


@lru_cache(maxsize=2)
def model_files(shard_bytes: int = SHARD_BYTES) -> dict[str, bytes]:
    """Return the repository: small files, one of them deep and one empty, and six shards."""
    files = {
        ".gitattributes": b"*.safetensors filter=lfs diff=lfs merge=lfs -text\n",
        "config.json": b'{"model_type": "tiny"}\n',
        "empty.txt": b"",
        "tokenizer/vocab.txt": b"<s>\n</s>\n",
    }
    for number in range(1, SHARDS + 1):
        files[f"model-{number:05d}-of-{SHARDS:05d}.safetensors"] = random.Random(number).randbytes(shard_bytes)
    return files


@dataclass
class Verdict:
    """What lies under final names, compared byte by byte with what the hub was given to serve."""

    right: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    strays: list[str] = field(default_factory=list)
    """What was written outside of the snapshot."""
    leaks: list[str] = field(default_factory=list)
    """Requests that carried the token to where it does not belong."""

    @property
    def flawless(self) -> bool:
        """Whether every file is there and nothing else happened."""
        return not (self.wrong or self.missing or self.strays or self.leaks)


class Rig:
    """``parameters`` are the module's; ``planted`` are paths in the snapshot that the case itself put in the way."""

    def __init__(self, run_module: Any, base: Path, hub: Hub, ca_path: Path | None) -> None:
        self.base = base
        self.store = base / "store"
        self.outside = base / "outside"
        self.outside.mkdir()
        self.given = base / "given"
        self.hub = hub
        self.tls = ca_path is not None
        self.planted: list[Path] = []
        self.undo: list[Callable[[], None]] = []
        self.pauses: list[float] = []
        self.proxies: list[Any] = []
        self.peers: list[Hub] = []
        self._run_module = run_module
        self.parameters: dict[str, Any] = {
            "repo": REPO,
            "store": str(self.store),
            "releases": str(base / "releases"),
            "endpoint": hub.endpoint,
            "reserve_bytes": 0,
            "workers": 1,
            "retries": 2,
            "stall_timeout_seconds": 30,
            "lock_timeout_seconds": 60,
            **({"ca_path": str(ca_path)} if ca_path else {}),
        }

    @property
    def snapshot(self) -> Path:
        """The directory of the snapshot."""
        return self.store / "acme--tiny-model" / COMMIT

    @property
    def total_bytes(self) -> int:
        """The size of the repository."""
        return sum(map(len, self.hub.files.values()))

    def fault(self, where: str, kind: Kind, times: int = 1, path: str | None = SHARD) -> None:
        """Break the answers about one shard, or about whatever ``path`` says."""
        self.hub.fault(where, kind, times, path)

    def always(self, where: str, kind: Kind, path: str | None = SHARD) -> None:
        """Break every answer."""
        self.hub.fault(where, kind, ALWAYS, path)

    def run(self, **changes: Any) -> dict[str, Any]:
        """Run the module in this process and return its result."""
        return self._run_module(model_shards, **{**self.parameters, **changes})

    def start(self, before: str = "", **changes: Any) -> subprocess.Popen[str]:
        """Run the module in a process of its own."""
        command = self.command(before, **changes)
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def command(self, before: str = "", **changes: Any) -> list[str]:
        """Return what runs the module in a process of its own, and the statement ``before`` it."""
        parameters = {**self.parameters, **changes}
        return [sys.executable, "-c", _MODULE, json.dumps([p for p in sys.path if p]), json.dumps(parameters), before]

    def set_environment(self, **variables: str) -> None:
        """Set environment variables until the rig is healed."""
        for name, value in variables.items():
            os.environ[name] = value
            self.undo.append(lambda name=name: os.environ.pop(name, None))

    def add_peer(self) -> Hub:
        """Start another server that has all files; its CDN hands them out by digest, as peers and mirrors do."""
        peer = Hub(self.hub.files)
        peer.truncate_after = self.hub.truncate_after
        self.peers.append(peer)
        return peer

    @property
    def sent_bytes(self) -> int:
        """The bytes of content that all servers sent."""
        return self.hub.sent_bytes + sum(peer.sent_bytes for peer in self.peers)

    def close(self) -> None:
        """Stop all servers."""
        self.heal()
        for server in (self.hub, *self.peers):
            server.close()

    def heal(self) -> None:
        """Take all faults away."""
        for server in (self.hub, *self.peers):
            server.faults.clear()
        self.hub.names.clear()
        self.hub.gate.open(hang_up=True)
        while self.undo:
            self.undo.pop()()
        self.planted.clear()

    def plant_link(self, path: str, target: Path) -> None:
        """Put a symbolic link where the snapshot wants to write, until the rig is healed."""
        place = Path(os.path.normpath(self.snapshot / path))
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(target)
        self.planted.append(place)
        self.undo.append(place.unlink)

    def judge(self) -> Verdict:
        """Compare what is on the disk, and what was asked, with what should be."""
        verdict = Verdict()
        for path in files_of(self.snapshot):
            name = str(path.relative_to(self.snapshot))
            if path in self.planted or name.startswith((".llmops/", ".cache/")):
                continue
            right = path.is_file() and not path.is_symlink() and path.read_bytes() == self.hub.files.get(name)
            (verdict.right if right else verdict.wrong).append(name)
        verdict.missing = [name for name in self.hub.files if not (self.snapshot / name).exists()]
        known = [self.snapshot, self.store / ".llmops"]
        outside = [path for path in files_of(self.base) if not any(place in path.parents for place in known)]
        expected = [self.base / "allowed", *self.planted, *files_of(self.given)]
        verdict.strays = [str(path.relative_to(self.base)) for path in outside if path not in expected]
        elsewhere = [*self.hub.requests_to("cdn"), *(entry for peer in self.peers for entry in peer.log)]
        verdict.leaks = [f"{where} {path}" for where, path, headers in elsewhere if leaks(headers)]
        return verdict

    def plain_words(self, sentence: str) -> str:
        """Return ``sentence`` without what differs from run to run."""
        names = {self.hub.api.url: "hub", self.hub.cdn.url: "cdn"}
        names.update({other.url: "other" for other in self.hub.others})
        names.update({peer.cdn.url: "peer" for peer in self.peers})
        for url, name in names.items():
            sentence = sentence.replace(url, f"<{name}>").replace(url.partition("://")[2], f"<{name}>")
        sentence = sentence.replace(str(self.store), "<store>").replace(str(self.base), "<base>")
        sentence = sentence.replace(COMMIT, "<commit>").replace(os.uname().nodename, "<host>")
        sentence = re.sub(r"127\.0\.0\.1:\d+", "<elsewhere>", sentence)
        sentence = re.sub(r"\bprocess \d+", "process <pid>", sentence)
        sentence = re.sub(r"has \d+ bytes free; free \d+ bytes", "has <n> bytes free; free <n> bytes", sentence)
        sentence = re.sub(r"(.)\1{30,}", r"\1…", sentence)
        return re.sub(r"\b([0-9a-f]{8})[0-9a-f]{32,56}\b", r"\1…", sentence)


def files_of(directory: Path) -> list[Path]:
    """Return everything below ``directory`` that is not a directory, links not followed."""
    found = []
    for root, directories, files in os.walk(directory):
        links = [name for name in directories if os.path.islink(os.path.join(root, name))]
        found += [Path(root, name) for name in sorted([*files, *links])]
    return sorted(found)


def leaks(headers: dict[str, str]) -> bool:
    """Whether a request carries the token, under whatever name."""
    return any(TOKEN in value or name.lower() == "authorization" for name, value in headers.items())


def is_clear(sentence: str) -> bool:
    """Whether ``sentence`` is something to show to an operator, with nothing in it that is secret."""
    unfit = ("Traceback", "Error(", "object at 0x", TOKEN, SIGNATURE, "5ecret", "\n")
    return 20 <= len(sentence) <= 900 and sentence.endswith((".", ")")) and not any(text in sentence for text in unfit)


def make_certificate(directory: Path) -> tuple[ssl.SSLContext, Path]:
    """Return the server's side of a TLS that vouches for itself, and the file that a client is given as CA."""
    key, certificate = directory / "key.pem", directory / "certificate.pem"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 1 -subj /CN=127.0.0.1"
    names = ["-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([*command.split(), *names, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    return context, certificate
