from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.llmops.vllm.plugins.module_utils.credentials import (
    Credential,
    basic,
    bearer,
    check_token,
    read_secret,
    sends_in_clear,
    source_credential,
    with_secrets,
    without_secrets,
)
from ansible_collections.llmops.vllm.plugins.module_utils.errors import InvalidInputError

URL = "https://mirror"


def never(path: str, option: str) -> str:
    raise AssertionError(f"{option} {path} was read")


def made(read: Any = never, **item: Any) -> Credential | None:
    return source_credential({"type": "mirror", "url": URL, **item}, read)()


def test_a_password_with_anything_in_it_is_sent_as_utf_8() -> None:
    credential = basic("grüße", "a:b ß")
    assert credential.header == "Authorization"
    assert base64.b64decode(credential.value.partition("Basic ")[2]).decode() == "grüße:a:b ß"


def test_a_credential_that_is_printed_does_not_show_its_value() -> None:
    assert bearer("hf_secret").value == "Bearer hf_secret"
    assert "hf_secret" not in repr(bearer("hf_secret"))


def test_a_source_has_a_token_a_token_in_a_header_or_a_password() -> None:
    assert made() is None
    assert made(token="t0ken") == Credential("Authorization", "Bearer t0ken")
    assert made(token="t0ken", header="PRIVATE-TOKEN") == Credential("PRIVATE-TOKEN", "t0ken")
    assert made(username="u", password="p") == basic("u", "p")


def test_files_are_read_when_the_credential_is_needed_and_not_before(tmp_path: Path) -> None:
    read: list[tuple[str, str]] = []

    def content(path: str, option: str) -> str:
        read.append((path, option))
        return "s3cret "

    later = source_credential({"type": "mirror", "url": URL, "username": "u", "password_file": "/p"}, content)
    assert read == []
    assert later() == basic("u", "s3cret ") and read == [("/p", "password_file")]
    assert made(content, token_file="/t") == bearer("s3cret")


@pytest.mark.parametrize(
    ("item", "words"),
    [
        ({"token": "a", "token_file": "/b"}, "token or token_file, not both"),
        ({"username": "u", "password": "a", "password_file": "/b"}, "password or password_file, not both"),
        ({"username": "u"}, "a username with a password"),
        ({"password": "p"}, "a username with a password"),
        ({"token": "t", "username": "u", "password": "p"}, "either a token or"),
        ({"token": "t", "username": "u"}, "a username with a password"),
        ({"username": "u", "password": "p", "header": "X"}, "header only with a token"),
        ({"type": "directory", "path": "/x", "token": "t"}, "takes no token"),
        ({"type": "hub", "url": None, "token": "t"}, "the module's token or token_file"),
    ],
)
def test_what_cannot_be_meant_together_is_refused_at_once(item: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidInputError, match=words):
        source_credential({"type": "mirror", "url": URL, **item}, never)


@pytest.mark.parametrize(
    ("item", "words"),
    [
        ({"token": "two words"}, "one token"),
        ({"token": "t", "header": "Host"}, "'Host' of a source is no header"),
        ({"token": "t", "header": "X: y\r\nZ"}, "is no header"),
        ({"username": "a:b", "password": "s3cret"}, "no username a colon"),
        ({"username": "u", "password": "s3cret\n"}, "control characters"),
    ],
)
def test_what_cannot_be_sent_is_refused_without_being_shown(item: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidInputError, match=words) as refused:
        made(**item)
    assert "s3cret" not in refused.value.message and "two words" not in refused.value.message


def test_a_job_gets_the_content_of_files_and_a_digest_none_of_it() -> None:
    items = [{"type": "mirror", "url": URL, "username": "u", "password_file": "/p"}, {"type": "hub", "url": None}]
    assert with_secrets(items, lambda path, option: f"{option}={path}") == [
        {"type": "mirror", "url": URL, "username": "u", "password": "password_file=/p"},
        {"type": "hub", "url": None},
    ]
    assert without_secrets(items) == [{"type": "mirror", "url": URL}, {"type": "hub", "url": None}]
    assert without_secrets(None) is None and items[0]["password_file"] == "/p"


@pytest.mark.parametrize("content", [b"two words", b"", b"\xff\xfe"])
def test_a_text_that_is_no_token_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "token"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(InvalidInputError, match="one token"):
        check_token(read_secret(str(path), "token_file"), f"token_file {path}")


def test_a_secret_is_read_only_from_a_file_that_is_closed_to_others(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text("pass wörd \n")
    path.chmod(0o640)
    with pytest.raises(InvalidInputError, match=r"password_file .*/secret has mode 0640, so others can read it"):
        read_secret(str(path), "password_file")
    path.chmod(0o600)
    assert read_secret(str(path), "password_file") == "pass wörd "
    with pytest.raises(InvalidInputError, match="cannot be read"):
        read_secret(str(tmp_path / "missing"), "token_file")
    with pytest.raises(InvalidInputError, match="regular file"):
        read_secret(str(tmp_path), "token_file")


def test_only_plain_http_to_another_host_is_in_clear() -> None:
    assert sends_in_clear("http://hub") and sends_in_clear("http://localhost.evil")
    assert not any(map(sends_in_clear, ("https://hub", "http://localhost:1", "http://127.0.0.1", "http://[::1]:2")))
