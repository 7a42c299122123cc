from __future__ import annotations

import pytest
from ansible_collections.llmops.vllm.plugins.modules import host_info


@pytest.mark.parametrize("check", [False, True])
def test_what_is_missing_is_named_and_nothing_changes(run_module, check):
    account = {"user": "no-such-user", "group": "no-such-group", "home": "/", "shell": "/bin/sh"}
    result = run_module(host_info, check=check, libraries=["libnone.so"], modules=["json", "none"], account=account)
    assert (result["changed"], result["missing"]) == (False, ["libnone.so", "none"])
    assert result["account"] == ["there is no group no-such-group"]
    assert result["python_version"].count(".") == 2 and result["service_manager"]


def test_without_a_question_there_is_no_complaint(run_module):
    result = run_module(host_info)
    assert (result["missing"], result["account"]) == ([], [])


def test_an_account_without_its_group_is_refused(run_module):
    assert "group" in run_module(host_info, account={"user": "vllm"})["msg"]
