# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The collection's loaded libraries as one file that a Python without Ansible can run.

A module's own code is gone from the host when the module ends; a worker that outlives it needs a copy. The import
system is asked for the sources, so that it does not matter how ansible-core packs a module.
"""

from __future__ import annotations

import io
import sys
import zipfile
from collections.abc import Mapping
from types import ModuleType

from ansible_collections.llmops.vllm.plugins.module_utils.errors import LlmopsError

LIBRARIES = "ansible_collections.llmops.vllm.plugins.module_utils"
_MAIN = "import sys\nfrom {module} import main\nsys.exit(main())\n"
_A_TIME = (1980, 1, 1, 0, 0, 0)


def pack(entry: str, modules: Mapping[str, ModuleType] | None = None) -> bytes:
    """Return a zip archive that runs ``main()`` of the loaded library ``entry``, a full module name.

    It holds every library of the collection that is loaded (``sys.modules`` by default), and so all that ``entry``
    imports. Raises ``LlmopsError`` when the import system does not give a source away.
    """
    loaded = dict(sys.modules if modules is None else modules)
    sources = {name: _source(name, module) for name, module in loaded.items() if name.startswith(f"{LIBRARIES}.")}
    if entry not in sources:
        raise LlmopsError(f"{entry} is not loaded, so no worker can be made of it.")
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        _add(archive, "__main__.py", _MAIN.format(module=entry))
        packages = LIBRARIES.split(".")
        for depth in range(1, len(packages) + 1):
            _add(archive, "/".join([*packages[:depth], "__init__.py"]), "")
        for name in sorted(sources):
            _add(archive, f"{name.replace('.', '/')}.py", sources[name])
    return buffer.getvalue()


def _add(archive: zipfile.ZipFile, name: str, text: str) -> None:
    archive.writestr(zipfile.ZipInfo(name, _A_TIME), text, zipfile.ZIP_DEFLATED)


def _source(name: str, module: ModuleType) -> str:
    loader = getattr(module.__spec__, "loader", None)
    try:
        source = loader.get_source(name) if loader else None
    except (AttributeError, ImportError, OSError):
        source = None
    if isinstance(source, bytes):  # as the loader of ansible-core on a controller gives it
        source = source.decode()
    if not isinstance(source, str):
        raise LlmopsError(f"The source of {name} cannot be read, so no worker can be started; set detach to false.")
    return source
