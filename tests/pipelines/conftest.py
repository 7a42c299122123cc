"""A checkout for each test, and the programs that run pipelines."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.llmops.vllm.tests.benchmarks._peers import packages_of_npm, programs_of
from ansible_collections.llmops.vllm.tests.pipelines.checkout import Checkout, make_checkout


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return make_checkout(tmp_path)


@pytest.fixture(scope="session")
def node() -> Path:
    return programs_of("node") / "node"


@pytest.fixture(scope="session")
def packages() -> Path:
    return packages_of_npm(Path(__file__).parent / "node")
