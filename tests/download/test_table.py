"""The page in docs shows what happened. It runs last; see conftest.py."""

from __future__ import annotations

import pytest
from ansible_collections.llmops.vllm.tests.download.table import COMMAND, PAGE, Table, unlike


def test_the_page_in_docs_is_what_happened(table: Table, request: pytest.FixtureRequest) -> None:
    if not request.config.getoption("--write-table"):
        difference = unlike(table, PAGE.read_text(encoding="utf-8"))
        assert not difference, (
            f"{PAGE.name} is not what happened; look at the difference, then run `{COMMAND}`:\n{difference}"
        )
        return
    assert not table.partial, "The page is written when every case has run."
    PAGE.write_text(table.page(), encoding="utf-8")
