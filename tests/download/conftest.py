"""Fixtures of the download's tests. The collection can be imported only after conftest files are loaded, hence late."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

PACKAGE = "ansible_collections.llmops.vllm.tests"
LEFT_OUT = pytest.StashKey[bool]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--write-table", action="store_true", help="write docs/download-faults.md instead of checking it")


def pytest_deselected(items: list[pytest.Item]) -> None:
    """Remember that cases were left out, by -k for instance."""
    if items:
        items[0].config.stash[LEFT_OUT] = True


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The table is compared when everything that makes a row of it has run."""
    items.sort(key=lambda item: item.path.name == "test_table.py")


@pytest.fixture(scope="session")
def table(request: pytest.FixtureRequest) -> Any:
    ran = {item.path.name for item in request.session.items}
    partial = request.config.stash.get(LEFT_OUT, False) or not ran.issuperset(
        ("test_faults.py", "test_interruptions.py")
    )
    return importlib.import_module(f"{PACKAGE}.download.table").Table(partial)


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Any:
    rig = importlib.import_module(f"{PACKAGE}.download.rig")
    return rig.make_certificate(tmp_path_factory.mktemp("certificate"))


@pytest.fixture
def run_module() -> Any:
    return importlib.import_module(f"{PACKAGE}.unit.conftest").RunModule()


@pytest.fixture
def make_rig(
    run_module: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[Any]:
    """Return the function that makes the rig, over plain HTTP or TLS; pauses are noted and not waited for."""
    module = importlib.import_module(f"{PACKAGE}.download.rig")
    servers = importlib.import_module(f"{PACKAGE}.unit.hub_server")
    client = importlib.import_module("ansible_collections.llmops.vllm.plugins.module_utils.http_client")
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    rigs: list[Any] = []

    def make(tls: bool = False, small: bool = False) -> Any:
        context, ca_path = request.getfixturevalue("certificate") if tls else (None, None)
        size = module.SMALL_SHARD_BYTES if small else module.SHARD_BYTES
        hub = servers.Hub(dict(module.model_files(size)), context)
        hub.truncate_after = size * 3 // 4
        rig = module.Rig(run_module, tmp_path, hub, ca_path)
        rigs.append(rig)
        pause = client.RetryPolicy.pause

        def noted(policy: Any, failures: int, error: Any) -> None:
            pause(client.RetryPolicy(policy.retries, sleep=rig.pauses.append, jitter=lambda: 0.0), failures, error)

        monkeypatch.setattr(client.RetryPolicy, "pause", noted)
        return rig

    yield make
    for rig in rigs:
        rig.close()
