from __future__ import annotations

import pytest
from ansible_collections.llmops.vllm.plugins.module_utils.redaction import redacted, without_secrets


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["vllm", "serve", "--api-key", "abc", "def", "--port", "1"], "vllm serve --api-key *** *** --port 1"),
        (["x", "--token=abc"], "x --token=***"),
        (["env", "HF_TOKEN=abc", "x"], "env HF_TOKEN=*** x"),
        (["curl", "-H", "Authorization: Bearer abc"], "curl -H Authorization: ***"),
        (["git", "https://me:pw@host/x"], "git https://***@host/x"),
        (["x", "hf_abcdefghijkl"], "x ***"),
        (["x", "sk-abcdefghijkl"], "x ***"),
        (["x", "--tokenizer", "/model", "--max-tokens=1"], "x --tokenizer /model --max-tokens=1"),
    ],
)
def test_secrets_are_hidden_in_commands(arguments: list[str], text: str) -> None:
    assert redacted(arguments) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("no hf_abcdefghijkl here", "no *** here"),
        ("Incorrect API key provided: sk-proj-abc_def.", "Incorrect API key provided: ***."),
        ("{'Authorization': 'Bearer abc'}", "{'Authorization': '***'}"),
        ("GET https://me:pw@hub/x", "GET https://***@hub/x"),
        ("non-default args: {'api_key': ['a', 'b'], 'port': 1}", "non-default args: {'api_key': ***, 'port': 1}"),
        ("vllm serve --api-key abc --port 1", "vllm serve --api-key *** --port 1"),
        (
            "disk-abcdefghijkl, hf_short, a risk-free task-runner",
            "disk-abcdefghijkl, hf_short, a risk-free task-runner",
        ),
    ],
)
def test_secrets_are_hidden_in_texts(text: str, shown: str) -> None:
    assert without_secrets(text) == shown
