"""Unit tests for plugins/module_utils/errors.py."""

from __future__ import annotations

import pytest
from ansible_collections.llmops.vllm.plugins.module_utils.errors import PreconditionError, as_sentence


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (OSError(28, "No space left on device", "/srv/llm/x"), "No space left on device (/srv/llm/x)"),
        (OSError(28, "No space left on device"), "No space left on device"),
        (OSError("only words"), "only words"),
    ],
)
def test_an_error_of_the_system_says_what_failed_why_and_where(error, sentence):
    with pytest.raises(PreconditionError) as raised, as_sentence("write the release"):
        raise error
    assert raised.value.message == f"Cannot write the release: {sentence}."


def test_other_errors_pass():
    with pytest.raises(ValueError, match=r"^mine$"), as_sentence("write the release"):
        raise ValueError("mine")
