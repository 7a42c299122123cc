#!/usr/bin/env python3
# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What this machine can do at most: the disk past the page cache, SHA-256 on one core. Prints bytes per second.

usage: _limits.py write FOLDER FILES BYTES | read FOLDER | sha256
"""

from __future__ import annotations

import hashlib
import mmap
import os
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

BUFFER_BYTES = 4 * 1024 * 1024
THREADS = 8
SHA256_SECONDS = 1.0


def aligned_buffer() -> memoryview:
    """Memory that O_DIRECT takes."""
    return memoryview(mmap.mmap(-1, BUFFER_BYTES))


def in_threads(job: Callable[[Path], int], paths: Iterable[Path]) -> float:
    """Bytes per second of `job` over all paths, as many at once as a download has."""
    began = time.perf_counter()
    with ThreadPoolExecutor(THREADS) as pool:
        total = sum(pool.map(job, paths))
    return total / (time.perf_counter() - began)


def write_rate(folder: Path, files: int, size: int) -> float:
    """Write `files` new files of `size` bytes, synced, directories too."""
    folder.mkdir(parents=True)
    content = aligned_buffer()
    content[:] = os.urandom(BUFFER_BYTES)

    def write(path: Path) -> int:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_DIRECT, 0o644)
        for offset in range(0, size, BUFFER_BYTES):
            os.pwrite(descriptor, content[: min(BUFFER_BYTES, size - offset)], offset)
        os.fsync(descriptor)
        os.close(descriptor)
        return size

    return in_threads(write, [folder / str(number) for number in range(files)])


def read_rate(folder: Path) -> float:
    """Read all files of `folder`, past the page cache and by way of it; the quicker one counts."""
    paths = sorted(folder.glob("*.safetensors"))

    def read(path: Path, flags: int = 0) -> int:
        buffer, done = aligned_buffer(), 0
        descriptor = os.open(path, os.O_RDONLY | flags)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        while count := os.preadv(descriptor, [buffer], done):
            done += count
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)
        return done

    return max(in_threads(lambda path: read(path, os.O_DIRECT), paths), in_threads(read, paths))


def sha256_rate() -> float:
    """Hash the same megabyte, in one thread."""
    block, digester, done = os.urandom(1024 * 1024), hashlib.sha256(), 0
    began = time.perf_counter()
    while time.perf_counter() - began < SHA256_SECONDS:
        digester.update(block)
        done += len(block)
    return done / (time.perf_counter() - began)


def main() -> None:
    """Run the command."""
    name, *arguments = sys.argv[1:] or [""]
    if name == "write":
        folder, files, size = arguments
        print(write_rate(Path(folder), int(files), int(size)))
    elif name == "read":
        print(read_rate(Path(arguments[0])))
    elif name == "sha256":
        print(sha256_rate())
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
