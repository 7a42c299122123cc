from __future__ import annotations

import json
import os
from dataclasses import replace

import pytest
from ansible_collections.llmops.vllm.plugins.module_utils import engine_answers
from ansible_collections.llmops.vllm.plugins.module_utils.engine_answers import KEPT, keep, question_key, recall
from ansible_collections.llmops.vllm.plugins.module_utils.engine_probe import EngineAnswer

ANSWER = EngineAnswer("done", "", "0.32.0", "fp8", {"max_model_len": 512}, {"selected": "TRITON_MLA"})


@pytest.fixture
def asked(tmp_path):
    """A runtime and a model, and the key of a question to them."""
    packages = tmp_path / "runtime/lib/python3.11/site-packages"
    packages.mkdir(parents=True)
    model = tmp_path / "model"
    (model / ".llmops").mkdir(parents=True)
    (model / "config.json").write_text("{}")
    (model / "model.safetensors").write_bytes(b"weights")

    def key(contents=None, question=None, environment=None):
        python = str(tmp_path / "runtime/bin/python")
        return question_key(python, str(model), contents or {}, question or {"a": 1}, environment or {})

    key.packages, key.model = packages, model
    return key


def test_an_answer_that_was_kept_is_had_again(tmp_path):
    answers = str(tmp_path / "answers")
    assert recall(answers, "k") is None
    keep(answers, "k", ANSWER)
    assert recall(answers, "k") == ANSWER
    assert os.stat(answers).st_mode & 0o777 == 0o700
    assert os.listdir(answers) == ["k.json"]


@pytest.mark.parametrize("stage", ["import", "broken", "parse", "config", "silent"])
def test_an_objection_is_not_kept_because_its_cause_may_pass(tmp_path, stage):
    keep(str(tmp_path / "answers"), "k", EngineAnswer(stage, "no driver", "", ""))
    assert not (tmp_path / "answers").exists()


def test_an_objection_of_a_trial_is_not_kept_either(tmp_path):
    keep(str(tmp_path), "refused", replace(ANSWER, trials={"model": "KeyError: 'x'"}))
    keep(str(tmp_path), "passed", replace(ANSWER, trials={"model": "", "files": None}))
    assert os.listdir(tmp_path) == ["passed.json"]
    assert recall(str(tmp_path), "passed").trials == {"model": "", "files": None}


def test_weights_that_others_may_read_make_another_question(asked):
    before = asked()
    (asked.model / "model.safetensors").chmod(0o600)
    assert asked() != before


def test_the_same_question_has_the_same_key(asked):
    assert asked() == asked() and len(asked()) == 64


@pytest.mark.parametrize(
    "change",
    [
        {"contents": {"config.json": b"patched"}},
        {"question": {"a": 2}},
        {"environment": {"OMP_NUM_THREADS": "4"}},
    ],
)
def test_another_question_has_another_key(asked, change):
    assert asked(**change) != asked()


def test_another_content_of_the_model_or_the_runtime_has_another_key(asked, monkeypatch):
    keys = {asked()}
    (asked.model / "config.json").write_text("{ }")
    keys.add(asked())
    os.utime(asked.model / "config.json", (1, 1))
    keys.add(asked())
    (asked.model / "tokenizer.json").write_text("{}")
    keys.add(asked())
    os.utime(asked.packages, (1, 1))
    keys.add(asked())
    monkeypatch.setattr(engine_answers, "PROBE", "another program")
    keys.add(asked())
    assert len(keys) == 6


def test_weights_and_records_of_the_snapshot_do_not_count(asked):
    before = asked()
    (asked.model / "model.safetensors").write_bytes(b"other weights")
    (asked.model / ".llmops/manifest.json").write_text("{}")
    assert asked() == before


@pytest.mark.parametrize("text", ["", "{", "[]", '{"stage": "done"}', json.dumps({"stage": "config"})])
def test_what_is_no_answer_is_asked_for_again(tmp_path, text):
    answers = tmp_path / "answers"
    answers.mkdir(mode=0o700)
    (answers / "k.json").write_text(text)
    assert recall(str(answers), "k") is None


def test_a_directory_that_others_write_in_is_not_believed_and_not_written_to(tmp_path):
    answers = tmp_path / "answers"
    keep(str(answers), "k", ANSWER)
    answers.chmod(0o777)
    assert recall(str(answers), "k") is None
    keep(str(answers), "other", ANSWER)
    assert os.listdir(answers) == ["k.json"]


def test_a_link_is_not_followed(tmp_path):
    answers = tmp_path / "answers"
    keep(str(answers), "k", ANSWER)
    (answers / "link.json").symlink_to(answers / "k.json")
    assert recall(str(answers), "link") is None


def test_a_place_that_cannot_be_written_costs_nothing_but_time(tmp_path):
    (tmp_path / "answers").write_text("a file")
    keep(str(tmp_path / "answers"), "k", ANSWER)
    assert recall(str(tmp_path / "answers"), "k") is None


def test_the_oldest_answers_go(tmp_path):
    answers = tmp_path / "answers"
    for number in range(KEPT + 3):
        keep(str(answers), f"k{number}", ANSWER)
        if (answers / f"k{number}.json").exists():
            os.utime(answers / f"k{number}.json", (number, number))
    keep(str(answers), "new", ANSWER)
    names = sorted(os.listdir(answers))
    assert len(names) == KEPT and "new.json" in names and "k0.json" not in names
