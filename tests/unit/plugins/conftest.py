"""Fixtures of the tests that need a model hub, and how property-based tests run."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import settings

# A busy machine is no failure.
settings.register_profile("untimed", settings.default, deadline=None)
settings.load_profile("untimed")


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    # Imported late: a conftest is loaded before the collection can be found.
    server = importlib.import_module("ansible_collections.llmops.vllm.tests.unit.hub_server")
    for name in ("http_proxy", "https_proxy", "all_proxy", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    running = server.Hub(server.make_files())
    yield running
    running.close()
