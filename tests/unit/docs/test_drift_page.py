"""docs/drift.md knows the kinds of differences that the code knows, and which of them a deployment puts right."""

from __future__ import annotations

import re
from pathlib import Path

import yaml
from ansible_collections.llmops.vllm.plugins.module_utils.drift import PUT_RIGHT
from ansible_collections.llmops.vllm.plugins.modules import drift_info

TEXT = (Path(__file__).parents[3] / "docs/drift.md").read_text()


def test_every_kind_is_in_the_table():
    table = re.findall(r"^\| `(\w+)` \| ", TEXT.partition("| Kind | Drift is |")[2].partition("\n\n")[0], re.MULTILINE)
    said = " ".join(yaml.safe_load(drift_info.RETURN)["findings"]["contains"]["kind"]["description"])
    assert sorted(table) == sorted(re.findall(r"V\((\w+)\)", said))


def test_what_a_deployment_puts_right_is_said():
    sentence = TEXT.partition("It puts right ")[2].partition("without a restart")[0]
    assert set(re.findall(r"`(\w+)`", sentence)) == PUT_RIGHT
    said = " ".join(yaml.safe_load(drift_info.RETURN)["settled"]["description"])
    assert set(re.findall(r"\bV\((\w+)\)", said)) == PUT_RIGHT
