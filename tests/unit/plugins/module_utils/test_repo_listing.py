from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path

import pytest
from ansible_collections.llmops.vllm.plugins.module_utils import manifest
from ansible_collections.llmops.vllm.plugins.module_utils.errors import InvalidInputError, LlmopsError
from ansible_collections.llmops.vllm.plugins.module_utils.repo_listing import (
    GIT_SHA1,
    SHA256,
    Listing,
    RepoFile,
    check_path,
    check_repo,
    is_commit,
    select,
)
from hypothesis import given
from hypothesis import strategies as st

COMMIT = "0123456789abcdef0123456789abcdef01234567"
HOSTILE = st.text(alphabet="./\\ab\n\x00~é\ud800-", max_size=12)


def listing(*paths: str) -> Listing:
    return Listing("a/b", COMMIT, tuple(RepoFile(path, 1, SHA256, "0" * 64) for path in paths))


@given(HOSTILE)
def test_a_name_that_is_accepted_stays_inside_the_snapshot(name: str) -> None:
    try:
        check_path(name)
    except LlmopsError:
        return
    path = os.path.normpath(os.path.join("/store/snapshot", name))
    assert path == f"/store/snapshot/{name}"
    assert not path.startswith("/store/snapshot/.llmops/")
    os.fsencode(path)


@given(st.text(max_size=20))
def test_a_repository_that_is_accepted_is_one_directory_name(name: str) -> None:
    try:
        check_repo(name)
    except InvalidInputError:
        return
    directory = name.replace("/", "--")
    assert "/" not in directory and not directory.startswith((".", "-"))
    assert directory.split("--") == name.split("/")


@pytest.mark.parametrize("repo", ["nvidia/Kimi-K2.5-NVFP4", "a/b", "deepseek-ai/DeepSeek-V3.1", "o_1/x_y"])
def test_real_repository_names_are_accepted(repo: str) -> None:
    assert check_repo(repo) == repo


@pytest.mark.parametrize("text", ["main", COMMIT[:-1], COMMIT.upper(), COMMIT + "\n", ""])
def test_only_a_full_lower_case_commit_is_pinned(text: str) -> None:
    assert is_commit(COMMIT) and not is_commit(text)


def test_a_name_that_is_a_file_and_a_directory_or_comes_twice_is_refused() -> None:
    with pytest.raises(LlmopsError, match="both as a file and as a directory"):
        listing("a", "a/b")
    with pytest.raises(LlmopsError, match="lists a file twice: a"):
        listing("a", "b", "a")


@pytest.mark.parametrize(
    "bad", [{"size": -1}, {"size": True}, {"digest": "xyz"}, {"digest": "A" * 64}, {"algorithm": "md5"}]
)
def test_a_file_without_a_sound_size_or_digest_is_refused(bad: dict[str, object]) -> None:
    good = {"path": "a", "size": 1, "algorithm": SHA256, "digest": "0" * 64}
    with pytest.raises(LlmopsError, match="of 'a' is not"):
        RepoFile(**{**good, **bad})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("include", "exclude", "left"),
    [
        ((), (), ["a.json", "o/c.bin", "o/d.json"]),
        (("*.json",), (), ["a.json", "o/d.json"]),
        ((), ("o/",), ["a.json"]),
        (("o/",), ("*.bin",), ["o/d.json"]),
        (("A.json", "o/c.bin"), (), ["o/c.bin"]),
    ],
)
def test_globs_select_on_the_whole_path(include: tuple[str, ...], exclude: tuple[str, ...], left: list[str]) -> None:
    assert [file.path for file in select(listing("a.json", "o/c.bin", "o/d.json"), include, exclude)] == left


def test_an_empty_selection_is_a_mistake() -> None:
    with pytest.raises(InvalidInputError, match="leave none of the 1 files"):
        select(listing("a"), ("b",), ())


def test_the_digest_of_a_small_file_is_that_of_git(tmp_path: Path) -> None:
    data = b"hello\n"
    (tmp_path / "f").write_bytes(data)
    command = ["git", "hash-object", "--no-filters", tmp_path / "f"]
    expected = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    digester = RepoFile("f", len(data), GIT_SHA1, expected).digester()
    digester.update(data)
    assert digester.hexdigest() == expected
    assert RepoFile("f", 1, SHA256, "0" * 64).digester().hexdigest() == hashlib.sha256().hexdigest()


def test_a_manifest_read_back_says_the_same(tmp_path: Path) -> None:
    content = listing("a", "b/c")
    records = {"a": manifest.FileRecord(content.files[0], 1, 2, 3)}
    written = manifest.Manifest(content, "http://hub", records, ("a",), (), True)
    path = tmp_path / "manifest.json"
    path.write_text(written.as_json())
    assert manifest.load(str(path)) == written


@given(st.binary(max_size=300))
def test_any_other_manifest_counts_as_none(content: bytes) -> None:
    path = Path("/dev/shm") / f"llmops-test-{os.getpid()}.json"
    path.write_bytes(content)
    try:
        assert manifest.load(str(path)) is None
    finally:
        path.unlink()


@pytest.mark.parametrize(
    "text",
    [
        '{"schema": 2}',
        "[]",
        '{"schema": 1, "repo": "a/b", "commit": "x", "endpoint": "", "files": [], "others": [{"path": "../x", '
        '"size": 1, "algorithm": "git-sha1", "digest": "0123456789abcdef0123456789abcdef01234567"}]}',
    ],
)
def test_a_manifest_of_another_shape_counts_as_none(text: str, tmp_path: Path) -> None:
    (tmp_path / "m").write_text(text)
    assert manifest.load(str(tmp_path / "m")) is None
