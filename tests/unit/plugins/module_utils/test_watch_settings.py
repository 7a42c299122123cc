from __future__ import annotations

import json
import os

import pytest
from ansible_collections.llmops.vllm.plugins.module_utils.diagnosis_causes import CAUSES, OUTSIDE_CAUSES
from ansible_collections.llmops.vllm.plugins.module_utils.errors import InvalidInputError
from ansible_collections.llmops.vllm.plugins.module_utils.watch_settings import (
    LASTING_CAUSES,
    Note,
    read_note,
    read_settings,
    why_not_again,
    write_note,
)

UNIT = "vllm@kimi.service"
LAUNCH = "1" * 32
WHOLE = {"unit": UNIT, "port": 8000, "served_model": "kimi", "canary": {"kind": "completion", "prompt": "x"}}


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "watch.json"

    def write(content):
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return str(path)

    return write


def test_settings_are_read_with_their_defaults(file):
    settings = read_settings(file({**WHOLE, "hang_seconds": 60, "a_later_version_knows_more": 1}))
    assert (settings.unit, settings.canary.kind, settings.host) == (UNIT, "completion", "127.0.0.1")
    assert (settings.hang_seconds, settings.stall_timeout_seconds, settings.hang_policy) == (60.0, 900.0, "restart")


@pytest.mark.parametrize(
    "content",
    [
        "{",
        "[]",
        {},
        {**WHOLE, "canary": {"prompt": "x", "colour": "red"}},
        {**WHOLE, "hang_policy": "shrug"},
        {**WHOLE, "heartbeat_seconds": 0},
        {**WHOLE, "hang_seconds": "soon"},
    ],
)
def test_settings_that_are_not_whole_are_one_sentence(file, content):
    with pytest.raises(InvalidInputError, match=r"watch\.json does not hold the watch's settings: .*Deploy"):
        read_settings(file(content))


def test_settings_that_are_not_there_are_one_sentence(tmp_path):
    with pytest.raises(InvalidInputError, match=r"cannot be read: No such file or directory\. Deploy"):
        read_settings(str(tmp_path / "none.json"))


def test_a_note_is_about_one_launch_and_for_root_alone(tmp_path):
    directory = str(tmp_path / "notes")
    note = Note(LAUNCH, "failed: it hung", "the policy says so", ["one", "two"])
    write_note(UNIT, note, directory)
    write_note(UNIT, note, directory)
    assert read_note(UNIT, LAUNCH, directory) == note
    assert read_note(UNIT, "2" * 32, directory) is None
    assert read_note(UNIT, "", directory) is None
    assert os.stat(directory).st_mode & 0o777 == 0o700
    assert [entry.name for entry in os.scandir(directory)] == [f"{UNIT}.json"]


def test_a_note_that_cannot_be_left_or_read_stops_nothing(tmp_path):
    (tmp_path / "file").write_text("")
    write_note(UNIT, Note(LAUNCH, "failed"), str(tmp_path / "file"))
    assert read_note(UNIT, LAUNCH, str(tmp_path / "file")) is None


@pytest.mark.parametrize(
    ("cause_class", "hung", "policy", "reason"),
    [
        ("weights_corrupt_or_missing", False, "restart", "does not cure"),
        ("weights_corrupt_or_missing", True, "restart", "does not cure"),
        ("cuda_illegal_access", False, "restart", ""),
        ("cuda_illegal_access", False, "stop", ""),
        ("", True, "restart", ""),
        ("", True, "stop", "vllm_service_hang_policy"),
    ],
)
def test_only_what_a_restart_can_cure_and_the_policy_allows_is_started_again(cause_class, hung, policy, reason):
    said = why_not_again(cause_class, hung=hung, hang_policy=policy)
    assert (reason in said) if reason else said == ""


def test_the_lasting_causes_are_classes_that_the_diagnosis_knows():
    assert sorted(LASTING_CAUSES - {cause.cause_class for cause in (*CAUSES, *OUTSIDE_CAUSES)}) == []
