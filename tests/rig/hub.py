#!/usr/bin/env python3
# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Lay out a model hub that nginx serves: its HTTP API as static JSON, files by digest from a CDN of its own origin.

usage: hub.py MODELS DESTINATION

Every folder of MODELS becomes the repository ``rehearsal/<folder>``; its commit is the sha1 of its files' digests, so
it is the same on every machine, and ``commits.json`` names it. Two more repositories exist to fail: ``rehearsal/gated``
(401 without a token, 403 with one) and any other name (401 without a token, 404 with one, as the hub answers for what
is missing or private).
The CDN answers 400 when an Authorization header arrives there, as signed URLs do: a leaked token fails the download.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from pathlib import Path
from typing import Any

HUB_PORT, CDN_PORT = 8080, 8081
LFS_SUFFIXES = (".safetensors", ".model", ".gguf")
NGINX = """\
worker_processes 1; daemon off; pid /tmp/hub.pid; error_log stderr warn; user root;
events {{ worker_connections 512; }}
http {{
  log_format hub '$msec $server_port $request_method $status $body_bytes_sent "$request_uri" range="$http_range"';
  access_log /log/access.log hub;
  absolute_redirect off; sendfile on; default_type application/octet-stream;
  types {{ application/json json; }}
  server {{
    listen {hub_port};
    error_page 404 = @missing;
    location @missing {{
      default_type application/json; add_header X-Error-Code RepoNotFound always;
      if ($http_authorization) {{ return 404 '{{"error":"Repository not found"}}'; }}
      return 401 '{{"error":"Invalid username or password."}}';
    }}
    location ~ ^/(api/models/)?rehearsal/gated {{
      default_type application/json; add_header X-Error-Code GatedRepo always;
      add_header X-Error-Message "Access to model rehearsal/gated is restricted." always;
      if ($http_authorization) {{ return 403 '{{"error":"not in the authorized list"}}'; }}
      return 401 '{{"error":"Access to model rehearsal/gated is restricted."}}';
    }}
{locations}
  }}
  server {{
    listen {cdn_port};
    location /blobs/ {{
      if ($http_authorization) {{ return 400; }}
      root /hub; etag off; add_header Accept-Ranges bytes;
    }}
  }}
}}
"""
REVISION = """\
    location = /api/models/{repo}{path} {{ alias {root}/api/{commit}.info.json; default_type application/json; }}
"""
TREE = """\
    location ~ ^/api/models/{repo}/tree/({commit}|main)/?$ {{
      alias {root}/api/{commit}.tree.json; default_type application/json;
    }}
"""
NO_REVISION = """\
    location /api/models/{repo}/ {{
      default_type application/json; add_header X-Error-Code RevisionNotFound always;
      add_header X-Error-Message "Invalid rev id" always; return 404 '{{"error":"Invalid rev id"}}';
    }}
"""
LARGE = """\
    location ~ ^/{repo}/resolve/({commit}|main)/{path}$ {{
      add_header X-Repo-Commit {commit} always; add_header X-Linked-Size {size} always;
      add_header X-Linked-Etag '"{digest}"' always;
      return 302 {cdn}/blobs/{digest}?X-Amz-Signature=rehearsal;
    }}
"""
SMALL = """\
    location ~ ^/{repo}/resolve/({commit}|main)/{path}$ {{
      add_header X-Repo-Commit {commit} always; return 307 /api/resolve-cache/models/{repo}/{commit}/{path};
    }}
    location = /api/resolve-cache/models/{repo}/{commit}/{path} {{
      etag off; add_header X-Repo-Commit {commit} always; add_header ETag '"{digest}"' always;
      alias {root}/files/{digest};
    }}
"""


def describe(path: Path) -> dict[str, Any]:
    """A file as the hub's API shows it: git's object id, size, and for large files the LFS digest."""
    data = path.read_bytes()
    sha256 = hashlib.sha256(data).hexdigest()
    if path.name.endswith(LFS_SUFFIXES):
        pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{sha256}\nsize {len(data)}\n".encode()
        lfs = {"sha256": sha256, "oid": sha256, "size": len(data), "pointerSize": len(pointer)}
        return {"path": path.name, "size": len(data), "oid": git_object_id(pointer), "lfs": lfs}
    return {"path": path.name, "size": len(data), "oid": git_object_id(data)}


def git_object_id(data: bytes) -> str:
    """The sha1 that git gives to a blob."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def add_repository(
    folder: Path, destination: Path, root: str = "/hub", cdn: str = f"http://$host:{CDN_PORT}"
) -> tuple[str, str, str]:
    """Lay out one repository; return its name, its commit and nginx's locations for it.

    `root` is where nginx sees `destination`, `cdn` the origin that it sends clients to for large files.
    """
    repo = f"rehearsal/{folder.name}"
    files = [describe(path) for path in sorted(folder.iterdir())]
    commit = hashlib.sha1(json.dumps(files, sort_keys=True).encode()).hexdigest()
    siblings = [
        {"rfilename": file["path"], "size": file["size"], "blobId": file["oid"]}
        | ({"lfs": {key: file["lfs"][key] for key in ("sha256", "size", "pointerSize")}} if "lfs" in file else {})
        for file in files
    ]
    tree = [
        {"type": "file"} | {key: value for key, value in file.items() if key != "lfs"}
        | ({"lfs": {key: file["lfs"][key] for key in ("oid", "size", "pointerSize")}} if "lfs" in file else {})
        for file in files
    ]  # fmt: skip
    info = {"id": repo, "modelId": repo, "sha": commit, "private": False, "gated": False, "siblings": siblings}
    (destination / "api" / f"{commit}.info.json").write_text(json.dumps(info), encoding="utf-8")
    (destination / "api" / f"{commit}.tree.json").write_text(json.dumps(tree), encoding="utf-8")
    locations = "".join(
        REVISION.format(repo=repo, commit=commit, path=p, root=root)
        for p in ("", "/revision/main", f"/revision/{commit}")
    )
    locations += TREE.format(repo=repo, commit=commit, root=root) + NO_REVISION.format(repo=repo)
    for file in files:
        large = "lfs" in file
        digest = file["lfs"]["oid"] if large else file["oid"]
        shutil.copyfile(folder / file["path"], destination / ("blobs" if large else "files") / digest)
        locations += (LARGE if large else SMALL).format(
            repo=repo, commit=commit, path=file["path"], size=file["size"], digest=digest, root=root, cdn=cdn
        )
    return repo, commit, locations


def main() -> None:
    """Run the command."""
    models, destination = Path(sys.argv[1]), Path(sys.argv[2])
    for name in ("api", "blobs", "files"):
        (destination / name).mkdir(parents=True, exist_ok=True)
    repositories = [add_repository(folder, destination) for folder in sorted(models.iterdir())]
    locations = "".join(text for _, _, text in repositories)
    (destination / "nginx.conf").write_text(
        NGINX.format(hub_port=HUB_PORT, cdn_port=CDN_PORT, locations=locations), encoding="utf-8"
    )
    commits = {repo: commit for repo, commit, _ in repositories}
    (destination / "commits.json").write_text(json.dumps(commits, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
