"""The judge of these tests sees what it is there to see: here the module is broken on purpose."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.llmops.vllm.plugins.module_utils import download, http_client, hub, part_file, repo_listing
from ansible_collections.llmops.vllm.tests.download import arrangements as arrange
from ansible_collections.llmops.vllm.tests.download import faults
from ansible_collections.llmops.vllm.tests.download.rig import SHARD


class Credulous:
    """A digester that finds what was expected."""

    def __init__(self, file: repo_listing.RepoFile) -> None:
        self._digest = file.digest

    def update(self, _data: Any) -> None:
        """Look away."""

    def hexdigest(self) -> str:
        return self._digest


@pytest.fixture
def unverified(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repo_listing.RepoFile, "digester", lambda file: Credulous(file))  # noqa: PLW0108 (a class is no method)


@pytest.mark.usefixtures("unverified")
def test_a_flipped_byte_is_seen_when_nothing_verifies(make_rig: Any) -> None:
    rig = make_rig()
    rig.fault("cdn", "flip")
    assert not rig.run().get("failed")
    assert rig.judge().wrong == [SHARD]


@pytest.mark.usefixtures("unverified")
def test_a_mixed_file_is_seen_when_neither_digest_nor_range_is_checked(
    make_rig: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "continues_at", lambda *_arguments: True)
    rig = make_rig()
    arrange.cut_then("wrong_range")(rig)
    rig.run()
    assert rig.judge().wrong == [SHARD]


def test_a_token_that_follows_a_redirect_is_seen(make_rig: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_client, "origin_of", lambda _url: "one for all")
    rig = make_rig(small=True)
    arrange.with_token(rig)
    rig.run()
    assert rig.judge().leaks


def test_a_name_that_leads_out_of_the_snapshot_is_seen(make_rig: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repo_listing, "_path_problem", lambda _path: None)
    file_url = hub.Hub.file_url
    served = {"../../../outside/x": "config.json"}  # an HTTP client takes the dots out of a URL
    monkeypatch.setattr(hub.Hub, "file_url", lambda *args: file_url(*args[:3], served.get(args[3], args[3])))
    rig = make_rig(small=True)
    arrange.named("../../../outside/x")(rig)
    rig.run()
    assert rig.judge().strays == ["outside/x"]


def test_a_part_under_a_final_name_is_seen(make_rig: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = make_rig()
    place = rig.snapshot / SHARD

    class Hasty(part_file.Part):
        def __init__(self, directory: str, file: Any, boot_id: str) -> None:
            super().__init__(directory, file, boot_id)
            self.path = str(place) if file.path == SHARD else self.path

    monkeypatch.setattr("ansible_collections.llmops.vllm.plugins.module_utils.shards.Part", Hasty)
    rig.fault("cdn", "truncate")
    rig.always("cdn", faults.status(500))
    assert rig.run()["failed"]
    assert rig.judge().wrong == [SHARD]
