from __future__ import annotations

import os

import pytest
from ansible_collections.llmops.vllm.plugins.module_utils import checkpoint_note
from ansible_collections.llmops.vllm.plugins.module_utils.checkpoint import read_checkpoint
from ansible_collections.llmops.vllm.plugins.module_utils.checkpoint_note import checkpoint_of, merged, weights_key
from ansible_collections.llmops.vllm.plugins.module_utils.weight_layout import Layout, weights_per_gpu
from ansible_collections.llmops.vllm.tests.unit.checkpoints import LATENT, latent, write_checkpoint


@pytest.fixture
def model(tmp_path):
    folder = tmp_path / "model"
    write_checkpoint(folder, latent(), 4)
    return folder


def test_a_note_stands_in_for_the_headers(model, tmp_path, monkeypatch):
    notes = str(tmp_path / "notes")
    first = checkpoint_of(str(model), LATENT, notes, True)
    monkeypatch.setattr(checkpoint_note, "read_checkpoint", None)
    assert checkpoint_of(str(model), LATENT, notes, True) == first
    assert first.total_bytes == read_checkpoint(str(model), LATENT).total_bytes


def test_experts_that_are_noted_as_one_are_spread_as_they_were(model):
    whole = read_checkpoint(str(model), LATENT)
    for layout in (Layout(), Layout(tensor=2), Layout(tensor=2, data=2, expert_parallel=True)):
        assert weights_per_gpu(merged(whole).tensors, LATENT, layout) == weights_per_gpu(whole.tensors, LATENT, layout)
    assert len(merged(whole).tensors) < len(whole.tensors)


def test_a_checkpoint_with_a_problem_is_read_again(model, tmp_path):
    (model / "model-00002-of-00004.safetensors").write_bytes(b"")
    for _ in range(2):
        assert checkpoint_of(str(model), LATENT, str(tmp_path / "notes"), True).problems
    assert not (tmp_path / "notes").exists()


@pytest.mark.parametrize(("notes", "write"), [("", True), ("notes", False)])
def test_no_note_is_written_where_none_is_wanted(model, tmp_path, notes, write):
    checkpoint_of(str(model), LATENT, notes and str(tmp_path / notes), write)
    assert sorted(os.listdir(tmp_path)) == ["model"]


def test_other_files_another_configuration_or_other_rules_have_another_note(model, monkeypatch):
    keys = {weights_key(str(model), LATENT), weights_key(str(model), {**LATENT, "vocab_size": 7})}
    os.utime(model / "model-00001-of-00004.safetensors", (1, 1))
    keys.add(weights_key(str(model), LATENT))
    monkeypatch.setattr(checkpoint_note, "RULES", 0)
    keys.add(weights_key(str(model), LATENT))
    assert len(keys) == 4
