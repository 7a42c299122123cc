# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a runtime is made of, read from its files in milliseconds; nothing of it is run or imported.

Versions are those of the directories ``NAME-VERSION.dist-info`` (Binary distribution format, packaging.python.org); for
which kind of device it was built stands in ``torch/version.py``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

DIST_INFO = re.compile(r"(?P<name>.+)-(?P<version>[^-]+)\.dist-info")
SITE_PACKAGES = re.compile(r"python3\.\d+t?")
SOURCE_BYTES_MAX = 4 * 1024 * 1024


@dataclass(frozen=True)
class Runtime:
    """A runtime: ``packages`` by normalised name (``flashinfer-python``), and the ``device`` it was built for.

    ``device`` is cuda, rocm, xpu, cpu, or empty when that cannot be told; ``cuda`` is the toolkit's version, 12.9.
    """

    path: str = ""
    site_packages: str = ""
    packages: Mapping[str, str] = field(default_factory=dict)
    device: str = ""
    cuda: str = ""

    def version(self, name: str) -> str:
        """Return the version of a package without its local part, empty when it is not installed."""
        return self.packages.get(name, "").partition("+")[0]

    def source(self, name: str) -> str | None:
        """Return the text of a file below the installed packages, None when it is not there."""
        if not self.site_packages:
            return None
        try:
            with open(os.path.join(self.site_packages, name), encoding="utf-8", errors="replace") as stream:
                return stream.read(SOURCE_BYTES_MAX)
        except OSError:
            return None


def read_runtime(path: str) -> Runtime:
    """Read the runtime in the virtual environment ``path``; one that is not there has nothing."""
    try:
        versions = sorted(name for name in os.listdir(f"{path}/lib") if SITE_PACKAGES.fullmatch(name))
        site_packages = f"{path}/lib/{versions[-1]}/site-packages"
        names = os.listdir(site_packages)
    except (OSError, IndexError):
        return Runtime(path)
    found = (DIST_INFO.fullmatch(name) for name in names)
    packages = {normalised(one["name"]): one["version"] for one in found if one}
    built = Runtime(path, site_packages).source("torch/version.py") or ""
    cuda = _assigned(built, "cuda")
    return Runtime(path, site_packages, packages, _device(built, cuda), cuda)


def normalised(name: str) -> str:
    """Return a package's name as PEP 503 compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _device(built: str, cuda: str) -> str:
    if cuda:
        return "cuda"
    others = {"hip": "rocm", "xpu": "xpu"}
    found = next((device for name, device in others.items() if _assigned(built, name)), "")
    return found or ("cpu" if built else "")


def _assigned(text: str, name: str) -> str:
    match = re.search(rf"^{name}\b[^=\n]*=\s*['\"]([^'\"]+)['\"]", text, re.MULTILINE)
    return match.group(1) if match else ""
