"""Beside other people's programs: the hub's own client on the same hub, and the module on another hub."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.llmops.vllm.tests.download import olah
from ansible_collections.llmops.vllm.tests.download.clients import run_hf
from ansible_collections.llmops.vllm.tests.download.rig import files_of
from ansible_collections.llmops.vllm.tests.unit.hub_server import REPO


def digests_of(directory: Path) -> dict[str, str]:
    """Return the digest of every file that belongs to the model."""
    names = {str(path.relative_to(directory)): path for path in files_of(directory)}
    own = (".llmops/", ".cache/")
    return {name: sha256(path.read_bytes()).hexdigest() for name, path in names.items() if not name.startswith(own)}


@pytest.mark.parametrize("name", ["hf", "hf-0.36"])
def test_the_hubs_own_client_has_the_same_files_and_finds_nothing_to_do_in_the_snapshot(
    make_rig: Any, tmp_path: Path, name: str
) -> None:
    rig = make_rig(small=True)
    commit = rig.run()["commit"]
    run_hf(name, rig.hub.endpoint, tmp_path / "home", REPO, "--local-dir", str(tmp_path / "theirs"))
    assert digests_of(tmp_path / "theirs") == digests_of(rig.snapshot)
    rig.hub.sent_bytes = 0
    run_hf(name, rig.hub.endpoint, tmp_path / "home", REPO, "--revision", commit, "--local-dir", str(rig.snapshot))
    assert rig.hub.sent_bytes == 0
    assert not rig.run()["changed"]


def test_another_implementation_of_the_hub_will_do(make_rig: Any, tmp_path: Path) -> None:
    rig = make_rig(small=True)
    commit = olah.make_mirror(tmp_path / "mirrors", rig.hub.files)
    with olah.serving(tmp_path / "mirrors", tmp_path / "olah") as endpoint:
        result = rig.run(endpoint=endpoint, workers=4, include=["*.json", "*.txt", "*.safetensors"])
        assert not result.get("failed"), result
        again = rig.run(endpoint=endpoint, workers=4, include=["*.json", "*.txt", "*.safetensors"])
    assert result["commit"] == commit
    expected = {name: sha256(data).hexdigest() for name, data in rig.hub.files.items() if name != ".gitattributes"}
    assert digests_of(Path(result["path"])) == expected
    assert not again["changed"]
