#!/usr/bin/env python3
# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Have the sources of the versions in vllm.lock below LLMOPS_CACHE: text to be read, of which nothing is built or run.

usage: sources.py [check]    check: are they there, or can they be had? exit 0, or one sentence on stdout and exit 3

Where they come from is pip's to know (index, certificates, proxies, credentials): its own finder and its own session
are used, because ``pip download`` would build an sdist to learn what it needs. What arrives must have the lock's hash.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
LOCK = HERE / "vllm.lock"
CACHE = Path(
    os.environ.get("LLMOPS_CACHE")
    or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "llmops-vllm"
)  # fmt: skip
ENTRY = re.compile(r"vllm==(?P<version>[\w.]+) --hash=sha256:(?P<digest>[0-9a-f]{64})")
MEMBER = re.compile(r"vllm-[^/]+/(?P<path>vllm/(?:[^/]+/)*[^/]+\.py)")
CHUNK_BYTES = 1 << 20


def locked() -> dict[str, str]:
    """Return the sha256 of each version's sdist."""
    found = (ENTRY.fullmatch(line) for line in LOCK.read_text().splitlines())
    return {entry["version"]: entry["digest"] for entry in found if entry}


def place(version: str, digest: str) -> Path:
    """Return where a version's source is, or is to be; there is all of it, or nothing."""
    return CACHE / "sources" / f"vllm-{version}-{digest[:12]}"


def links(versions: list[str]) -> Iterator[tuple[str, str, Any]]:
    """Return version, address and session of each sdist, as pip finds them on the index that it is set up for."""
    from pip._internal.commands import create_command  # noqa: PLC0415 - not every Python that starts this has it
    from pip._vendor.packaging.specifiers import SpecifierSet  # noqa: PLC0415

    command: Any = create_command("download")
    options, _rest = command.parse_args(["--no-deps", "--no-binary", ":all:", "--quiet", "vllm"])
    with command.main_context():
        session = command.get_default_session(options)
        finder = command._build_package_finder(options, session)  # pip has no public way to it
        for version in versions:
            best = finder.find_best_candidate("vllm", SpecifierSet(f"=={version}")).best_candidate
            if best is None:
                raise LookupError(f"the package index has no sdist of vllm {version}")
            yield version, best.link.url_without_fragment, session


def fetch(version: str, digest: str, address: str, session: Any) -> None:
    """Download an sdist, check it, and unpack its Python files."""
    target = place(version, digest)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".partial-") as folder:
        archive = Path(folder) / "sdist"
        response = session.get(address, stream=True, headers={"Accept-Encoding": "identity"})
        response.raise_for_status()
        found = hashlib.sha256()
        with archive.open("wb") as stream:
            for chunk in response.iter_content(CHUNK_BYTES):
                found.update(chunk)
                stream.write(chunk)
        if found.hexdigest() != digest:
            raise LookupError(f"the sdist of vllm {version} has the sha256 {found.hexdigest()}, and not {digest}")
        unpack(archive, Path(folder) / "tree")
        (Path(folder) / "tree").rename(target)


def unpack(archive: Path, directory: Path) -> None:
    """Write the package's Python files; whatever else the archive holds, links above all, stays in it."""
    with tarfile.open(archive) as members:
        for member in members:
            match = MEMBER.fullmatch(member.name)
            content = members.extractfile(member) if match and member.isreg() and ".." not in member.name else None
            if match and content is not None:
                path = directory / match["path"]
                path.parent.mkdir(parents=True, exist_ok=True)
                with path.open("wb") as stream:
                    shutil.copyfileobj(content, stream)


def main() -> int:
    """Have them, or say whether they can be had."""
    missing = {version: digest for version, digest in locked().items() if not place(version, digest).is_dir()}
    checking = sys.argv[1:] == ["check"]
    try:
        for version, address, session in links(list(missing)) if missing else ():
            if checking:
                break  # one that was found says that the index answers
            print(f"vllm {version}: {address.rpartition('/')[2]}", flush=True)
            fetch(version, missing[version], address, session)
    except Exception as error:  # pip's own, urllib3's, of the file system: all of them mean that there are no sources
        why = re.sub(r"//[^/@]*@", "//", f"{type(error).__name__}: {error}")  # an index's address may hold a password
        print(f"The sources of vLLM {', '.join(missing)} cannot be had: {why}")
        return 3
    if not checking:
        print(f"{len(locked())} versions are in {CACHE / 'sources'}")
    return 0


if __name__ == "__main__":
    installer = ROOT / ".cache/uv-venv/bin/python"  # made by tests/tools/bootstrap.sh; it has pip
    if installer.exists() and installer != Path(sys.executable):
        os.execv(installer, [str(installer), __file__, *sys.argv[1:]])
    sys.exit(main())
