"""The README names every module and every role."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "README.md").read_text()


def test_every_module_is_in_the_table():
    named = re.findall(r"^\| `(\w+)` \| ", TEXT.partition("| Module | Does |")[2].partition("\n\n")[0], re.MULTILINE)
    assert sorted(named) == sorted(path.stem for path in (ROOT / "plugins/modules").glob("[!_]*.py"))


def test_every_role_is_in_the_table():
    named = re.findall(r"^\| \[`(\w+)`\]\(roles/\w+/README\.md\) \| ", TEXT, re.MULTILINE)
    assert sorted(named) == sorted(path.parent.name for path in ROOT.glob("roles/*/README.md"))
