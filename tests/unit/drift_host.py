"""A host on which an instance is deployed, small enough for a temporary directory."""

from __future__ import annotations

import base64
import hashlib
import json
import os
from pathlib import Path
from typing import Any

from ansible_collections.llmops.vllm.plugins.module_utils import hf_metadata
from ansible_collections.llmops.vllm.plugins.module_utils.drift import Expected, fingerprint
from ansible_collections.llmops.vllm.plugins.module_utils.manifest import Manifest, record
from ansible_collections.llmops.vllm.plugins.module_utils.release import release_id
from ansible_collections.llmops.vllm.plugins.module_utils.repo_listing import Listing, RepoFile
from ansible_collections.llmops.vllm.plugins.module_utils.store import Attributes, Snapshot

COMMIT = "0123456789abcdef0123456789abcdef01234567"
LAUNCH = "1" * 32
KEY = "sk-of-the-unit-test"
RUNTIME = "aaaabbbbcccc"


def content(**changes: Any) -> dict[str, Any]:
    """What a release is made of."""
    return {
        "model": {"repo": "acme/tiny", "commit": COMMIT},
        "patches": [{"name": "p", "file": "config.json", "reason": "r", "remove_keys": ["kv_cache_scheme"]}],
        "runtime": RUNTIME,
        "files": {
            "serve.yaml": "port: 8000\nseed: 1\n",
            "env": 'A="b"\n',
            "vllm@.service": "[Service]\n",
            "instance.conf": "[Unit]\n",
        },
        "launcher": "#!/bin/sh\n",
        "api_key_fingerprint": fingerprint("kimi", KEY),
        **changes,
    }


class DriftHost:
    """Lays out store, runtime, release and instance below ``root``, as the roles do."""

    def __init__(self, root: Path, made_of: dict[str, Any] | None = None) -> None:
        self.root = root
        self.content = made_of or content()
        self.id = release_id(self.content)
        self.release = root / "releases/kimi" / self.id
        self.snapshot = root / "store/acme--tiny" / COMMIT
        self.manifest = self.snapshot / ".llmops/manifest.json"
        self.packages = root / "runtimes" / RUNTIME / "lib/python3.12/site-packages"
        self.unit_file = root / "etc/vllm@.service"
        self.settings = root / "etc/vllm@kimi.service.d/release.conf"
        self.launcher = root / "etc/serve"
        self.api_key = root / "etc/api_key"
        self._write_store()
        self._write_runtime()
        self._write_release()

    def expected(self, **changes: Any) -> Expected:
        """What the repository says, which is what was deployed."""
        values: dict[str, Any] = {
            "instance": "kimi",
            "root": str(self.root),
            "release_id": self.id,
            "content": self.content,
            "unit": "vllm@kimi.service",
            "port": 8000,
            "launcher": str(self.launcher),
            "unit_path": str(self.root / "etc"),
            "store": str(self.root / "store"),
            "runtimes": str(self.root / "runtimes"),
            "api_key_file": str(self.api_key),
        }
        return Expected(**{**values, **changes})

    def parameters(self) -> dict[str, Any]:
        """The same as parameters of the module."""
        expected = self.expected()
        names = ("instance", "root", "release_id", "content", "port", "launcher", "unit_path", "store", "runtimes")
        values = {name: getattr(expected, name) for name in (*names, "api_key_file")}
        return {**values, "run_path": str(self.root / "run")}

    def finish_download(self, **changes: Any) -> None:
        """Leave the snapshot as a download does that has come to its end, ``changes`` being those of its manifest."""
        attributes = Attributes(0o640, 0o750)
        snapshot = Snapshot(str(self.root / "store"), "acme/tiny", COMMIT)
        paths = sorted(path for path in self.snapshot.iterdir() if path.is_file())
        self.snapshot.chmod(attributes.directory_mode)
        files = []
        for path in paths:
            path.chmod(attributes.file_mode)
            data = path.read_bytes()
            files.append(RepoFile(path.name, len(data), "sha256", hashlib.sha256(data).hexdigest()))
            hf_metadata.write(snapshot, files[-1], attributes, lambda: 0.0)
        listing = Listing("acme/tiny", COMMIT, tuple(files))
        records = {file.path: record(file, path.stat()) for file, path in zip(files, paths)}
        self.manifest.parent.mkdir(mode=0o750)
        self.manifest.parent.chmod(0o750)
        values = {"listing": listing, "endpoint": "https://hub.test", "records": records, "complete": True, **changes}
        self.manifest.write_text(Manifest(**values).as_json())

    def _write_store(self) -> None:
        self.snapshot.mkdir(parents=True)
        (self.snapshot / "config.json").write_text('{"a": 1, "kv_cache_scheme": {}}')
        (self.snapshot / "tokenizer.json").write_text("{}")
        (self.snapshot / "model.safetensors").write_bytes(b"weights")

    def _write_runtime(self) -> None:
        files = {"vllm/__init__.py": b"version = 1\n", "vllm/_C.so": b"\x7fELF", "../../../bin/vllm": b"#!python\n"}
        info = self.packages / "vllm-1.0.dist-info"
        info.mkdir(parents=True)
        lines = []
        for name, data in files.items():
            path = Path(os.path.normpath(self.packages / name))
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            lines.append(f"{name},sha256={digest},{len(data)}")
        (info / "RECORD").write_text("\n".join([*lines, "vllm-1.0.dist-info/RECORD,,"]) + "\n")
        (self.packages / "_virtualenv.pth").write_text("import _virtualenv")
        (self.root / "runtimes" / RUNTIME / "runtime.json").write_text(json.dumps({"id": RUNTIME}))

    def _write_release(self) -> None:
        self.release.mkdir(parents=True, mode=0o750)
        self.release.chmod(0o750)
        for name, text in self.content["files"].items():
            _put(self.release / name, text, 0o640)
        (self.release / "runtime").symlink_to(self.root / "runtimes" / RUNTIME)
        view = self.release / "model"
        view.mkdir()
        view.chmod(0o750)
        _put(view / "config.json", '{"a": 1}', 0o640)
        _put(view / "tokenizer.json", "{}", 0o640)
        (view / "model.safetensors").symlink_to(self.snapshot / "model.safetensors")
        self.write_receipt({"outcome": "proven", "invocation_id": LAUNCH, "content": self.content})
        self.settings.parent.mkdir(parents=True)
        _put(self.settings, self.content["files"]["instance.conf"], 0o644)
        _put(self.unit_file, self.content["files"]["vllm@.service"], 0o644)
        _put(self.launcher, self.content["launcher"], 0o755)
        _put(self.api_key, KEY, 0o600)
        (self.root / "instances/kimi").mkdir(parents=True)
        (self.root / "instances/kimi/current").symlink_to(self.release)

    def write_receipt(self, receipt: dict[str, Any]) -> None:
        """Write the receipt of the release."""
        (self.release / "release.json").write_text(json.dumps(receipt))


def _put(path: Path, text: str, mode: int) -> None:
    path.write_text(text)
    path.chmod(mode)
