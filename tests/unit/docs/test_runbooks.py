"""The runbooks say what the diagnosis and the preflight know."""

from __future__ import annotations

import sys

from ansible_collections.llmops.vllm.plugins.module_utils import diagnosis_causes
from ansible_collections.llmops.vllm.plugins.module_utils.diagnosis_causes import CAUSES
from ansible_collections.llmops.vllm.tests.tools import runbooks


def test_the_pages_are_what_the_data_say() -> None:
    written = {path.name: path.read_text(encoding="utf-8") for path in runbooks.DIRECTORY.glob("*.md")}
    assert written == runbooks.pages(), "run make runbooks"


def test_another_remedy_is_another_page(monkeypatch) -> None:
    monkeypatch.setattr(runbooks, "CAUSES", CAUSES[1:])
    assert runbooks.pages() != {path.name: path.read_text() for path in runbooks.DIRECTORY.glob("*.md")}


def test_every_known_cause_and_hazard_has_its_lines() -> None:
    pages = runbooks.pages()
    for cause in (*CAUSES, *diagnosis_causes.OUTSIDE_CAUSES):
        page = pages[runbooks.file_name(cause.cause_class)]
        assert cause.example in page and cause.remedy in page
    assert all(hazard["id"] in pages[runbooks.HAZARDS] for hazard in runbooks.KNOWN_HAZARDS)


def test_pages_of_classes_that_are_gone_are_removed(tmp_path, monkeypatch) -> None:
    (tmp_path / "gone.md").write_text("")
    monkeypatch.setattr(sys, "argv", ["runbooks", str(tmp_path)])
    runbooks.main()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(runbooks.pages())
