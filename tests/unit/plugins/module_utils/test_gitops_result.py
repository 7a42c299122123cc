# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json

import pytest
from ansible_collections.llmops.vllm.plugins.module_utils import gitops_result
from ansible_collections.llmops.vllm.plugins.module_utils.gitops_result import Memory, Result

RESULT = Result("gpu-1", "ssh://git@example.com/fleet", 'ma"in\\', 100.0, 130.5, "failed", "why", "a" * 40)


def test_the_numbers_are_in_the_exporters_format():
    text = gitops_result.metrics(RESULT, Memory(deployed_at=7.0, counts={"failed": 3}))
    assert text.endswith("\n")
    assert "llmops_gitops_last_run_timestamp_seconds 130\n" in text
    assert "llmops_gitops_last_success_timestamp_seconds 7\n" in text
    assert "llmops_gitops_last_run_duration_seconds 30.5\n" in text
    assert 'llmops_gitops_runs_total{outcome="failed"} 3\n' in text
    assert 'llmops_gitops_info{revision="ma\\"in\\\\",commit="' in text
    samples = [line for line in text.splitlines() if not line.startswith("#")]
    assert len({line.rpartition(" ")[0] for line in samples}) == len(samples)
    assert sum(line.endswith(" 1") for line in samples if "_outcome{" in line) == 1


def test_a_result_in_one_line_says_what_the_host_has():
    assert RESULT.sentence() == f'failed: ma"in\\ ({"a" * 12}): why'
    refused = Result("h", "u", "main", 0.0, outcome="refused", commit="b" * 40, deployed_commit="a" * 40)
    assert refused.sentence() == f"refused: main ({'b' * 12}); the host has {'a' * 12}"


@pytest.mark.parametrize("text", ["", "{", '{"other": 1}', "[]"])
def test_a_memory_that_is_not_understood_is_empty(tmp_path, text):
    path = tmp_path / "memory.json"
    path.write_text(text)
    assert gitops_result.read_memory(str(path)) == Memory()


def test_a_memory_is_read_back(tmp_path):
    memory = Memory("u", "r", "c", 1.5, "h", {"failed": 1})
    gitops_result.write_json(str(tmp_path / "memory.json"), memory.__dict__)
    assert gitops_result.read_memory(str(tmp_path / "memory.json")) == memory


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "result.json"
    gitops_result.write_json(str(path), {"a": 1})
    with pytest.raises(UnicodeEncodeError):
        gitops_result.write_text(str(path), "\ud800")
    assert json.loads(path.read_text()) == {"a": 1}
    assert [item.name for item in tmp_path.iterdir()] == ["result.json"]


def test_what_the_failed_task_says_is_the_reason():
    lines = [
        "TASK [Ask] ****",
        "[ERROR]: Task failed: NO-GO.",
        "Origin: site.yml:3",
        "",
        "fatal: [gpu-1]: FAILED! =>",
        "    findings:",
        "    -   msg: not this",
        "    msg: |-",
        "        This launch cannot work; nothing was touched.",
        "        NO-GO: no backend takes this model.",
        "    verdict: no_go",
        "",
        "PLAY RECAP ****",
    ]
    assert gitops_result.why(lines).splitlines() == [line.strip() for line in lines[8:10]]


def test_a_failed_task_that_is_not_shown_as_yaml_is_the_reason_as_a_whole():
    lines = ["ok: [gpu-1]", 'fatal: [gpu-1]: FAILED! => {"msg": "no"}', "PLAY RECAP ****"]
    assert gitops_result.why(lines) == lines[1]
    assert gitops_result.why(["[ERROR]: Syntax error.", "Origin: a.yml", ""]) == "[ERROR]: Syntax error.\nOrigin: a.yml"


def test_without_an_error_the_last_words_are_the_reason():
    assert gitops_result.why(["one", "", "\x1b[31mtwo\x1b[0m"]) == "one\ntwo"
    assert len(gitops_result.why(["fatal: " + "x" * 9000])) == 4000
