"""ARCHITECTURE.md names what there is, and nothing else."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "ARCHITECTURE.md").read_text()
BY_JOB = ("plugins/modules", "plugins/module_utils")  # named in a table of their own
MADE = {"build", "output"}


def rows(heading: str) -> list[list[str]]:
    """The cells of the table's rows below a heading."""
    section = TEXT.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    lines = [line.split("|")[1:-1] for line in section.splitlines() if line.startswith("| ")]
    assert len(lines) > 1, f"no table below {heading}"
    return lines[1:]


def quoted(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


FOLDERS = {folder: quoted(what) for folders, what in rows("The folders") for folder in quoted(folders)}
JOBS = rows("Modules and libraries")


def holds_files(folder: Path) -> bool:
    return any(path.is_file() and path.suffix != ".pyc" for path in folder.rglob("*"))


def folders_in(path: Path) -> set[str]:
    found = {item.name for item in path.iterdir() if item.is_dir() and item.name[0] not in "._" and holds_files(item)}
    return found - MADE


def stems_in(path: Path) -> set[str]:
    return {item.stem for item in path.iterdir() if item.is_file()}


def test_every_folder_is_named():
    assert {folder.partition("/")[0] for folder in FOLDERS} == folders_in(ROOT)
    for parent in ("plugins", "tests"):
        assert {folder for folder in FOLDERS if folder.startswith(f"{parent}/")} == {
            f"{parent}/{name}" for name in folders_in(ROOT / parent)
        }


@pytest.mark.parametrize("folder", sorted({*FOLDERS} - {*BY_JOB}))
def test_what_a_row_names_is_in_its_folder(folder):
    assert (ROOT / folder).is_dir()
    there = stems_in(ROOT / folder) | folders_in(ROOT / folder)
    assert [name for name in FOLDERS[folder] if name.removesuffix(".md") not in there] == []


@pytest.mark.parametrize(
    "folder", ["roles", "inventories", "playbooks", "tools", *sorted(f for f in FOLDERS if f.startswith("plugins/"))]
)
def test_what_is_in_a_folder_is_named(folder):
    there = stems_in(ROOT / folder) | folders_in(ROOT / folder)
    assert folder in BY_JOB or sorted(there - set(FOLDERS[folder])) == []


def test_every_module_and_every_library_has_a_job():
    modules = [name for cells in JOBS for name in quoted(cells[1])]
    patterns = [name for cells in JOBS for name in quoted(cells[2])]
    libraries = stems_in(ROOT / "plugins/module_utils")
    assert sorted(modules) == sorted(stems_in(ROOT / "plugins/modules"))
    assert [name for name in libraries if not any(fnmatchcase(name, pattern) for pattern in patterns)] == []
    assert [pattern for pattern in patterns if not any(fnmatchcase(name, pattern) for name in libraries)] == []
