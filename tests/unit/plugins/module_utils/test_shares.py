"""Sharing out work among forked helpers."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Sequence
from typing import Any

import pytest
from ansible_collections.llmops.vllm.plugins.module_utils import shares
from ansible_collections.llmops.vllm.plugins.module_utils.shares import shared

HERE = os.getpid()


@pytest.fixture(autouse=True)
def four_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3})
    monkeypatch.setattr(shares, "WORTH_SHARING", 10)
    monkeypatch.setattr(threading, "active_count", lambda: 1)


def who_and_what(items: Sequence[int]) -> list[list[int]]:
    return [[os.getpid()], list(items)]


def no_child_is_left() -> bool:
    try:
        return os.waitpid(-1, os.WNOHANG) == (0, 0)
    except ChildProcessError:
        return True


def test_each_item_is_done_once_by_several_processes() -> None:
    found = shared(who_and_what, range(50))
    assert sorted(item for _who, items in found for item in items) == list(range(50))
    assert len({who[0] for who, _items in found}) == 4
    assert no_child_is_left()


def test_few_items_or_threads_mean_no_helper(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shared(who_and_what, range(9)) == [[[HERE], list(range(9))]]
    assert shared(who_and_what, []) == [[[HERE], []]]
    monkeypatch.setattr(threading, "active_count", lambda: 2)
    assert shared(who_and_what, range(50)) == [[[HERE], list(range(50))]]


@pytest.mark.parametrize("how", ["killed", "raises", "no JSON"])
def test_what_a_helper_does_not_do_is_done_here(how: str) -> None:
    def work(items: Sequence[int]) -> Any:
        if os.getpid() != HERE:
            if how == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            if how == "raises":
                raise ValueError
            return {1}
        return who_and_what(items)

    found = [item for one in shared(work, range(50)) for item in one[1]]
    assert sorted(found) == list(range(50))
    assert no_child_is_left()


def test_no_helper_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> int:
        raise BlockingIOError

    monkeypatch.setattr(os, "fork", refuse)
    assert [who for who, _items in shared(who_and_what, range(50))] == [[HERE]] * 4


def test_error_of_the_work_itself_leaves_no_child() -> None:
    def work(items: Sequence[int]) -> list[int]:
        if os.getpid() == HERE:
            raise PermissionError
        return list(items)

    with pytest.raises(PermissionError):
        shared(work, range(50))
    assert no_child_is_left()
