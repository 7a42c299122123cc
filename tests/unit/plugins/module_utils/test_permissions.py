from __future__ import annotations

import pytest
from ansible_collections.llmops.vllm.plugins.module_utils.errors import InvalidInputError
from ansible_collections.llmops.vllm.plugins.module_utils.permissions import Accounts, parse_mode


@pytest.mark.parametrize("text", ["644", "420", "0888", "04755", "", "u=rw", "0044"])
def test_a_mode_that_is_no_quoted_octal_string_is_refused(text: str) -> None:
    with pytest.raises(InvalidInputError, match="file_mode must be"):
        parse_mode("file_mode", text, 0o400)
    assert parse_mode("file_mode", "0640", 0o400) == 0o640


def test_names_and_numbers_of_accounts_are_found() -> None:
    accounts = Accounts(check_mode=False, warn=pytest.fail)
    assert (accounts.uid("root"), accounts.gid("0"), accounts.uid(None), accounts.gid(None)) == (0, 0, None, None)


def test_an_unknown_account_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="owner 'no-such-user' is no user of this host"):
        Accounts(check_mode=False, warn=pytest.fail).uid("no-such-user")


def test_in_check_mode_an_unknown_account_is_one_warning() -> None:
    warnings: list[str] = []
    accounts = Accounts(check_mode=True, warn=warnings.append)
    assert accounts.gid("no-such-group") is None
    assert accounts.gid("no-such-group") is None
    assert len(warnings) == 1
    assert "no-such-group" in warnings[0]
