from __future__ import annotations

from ansible_collections.llmops.vllm.plugins.module_utils.difference import DifferenceTracker


def test_equal_values_are_no_difference():
    tracker = DifferenceTracker()
    tracker.add("a", 1, 1)
    assert tracker.changed is False
    assert tracker.as_diff() == {"before": {}, "after": {}}


def test_absent_things_are_left_out_of_their_side():
    tracker = DifferenceTracker()
    tracker.add("new", None, {"x": 1})
    tracker.add("gone", "old", None)
    assert tracker.changed is True
    assert tracker.as_diff() == {"before": {"gone": "old"}, "after": {"new": {"x": 1}}}
