"""What the preflight finds in the harmed models without asking the engine."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from ansible_collections.llmops.vllm.plugins.module_utils.checkpoint import read_checkpoint
from ansible_collections.llmops.vllm.tests.launches.cases import CASES, Case
from ansible_collections.llmops.vllm.tests.launches.launches import write_models

OF_FILES = {
    "shard_missing", "shard_damaged", "index_damaged", "weights_missing", "shape_mismatch", "fused_half_missing",
    "experts_mismatch",
}  # fmt: skip


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    write_models(folder)
    return folder


@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in CASES if case.is_of_files])
def test_the_files_of_a_model_are_refused_exactly_where_the_case_says_so(
    models: Path, tmp_path: Path, case: Case
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(models / case.model, folder, copy_function=shutil.copy)
    case.harm(folder)
    try:
        config = json.loads((folder / "config.json").read_text())
    except (OSError, ValueError):
        config = {}
    fatal = {problem.kind for problem in read_checkpoint(str(folder), config).problems if problem.fatal}
    assert case.finding in fatal if case.finding in OF_FILES else fatal == set()
