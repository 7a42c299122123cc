from __future__ import annotations

from ansible_collections.llmops.vllm.plugins.filter.look_lines import FilterModule, look_lines

FINE = {"settled": True, "expected": "aaa", "findings": [], "ignored": []}
UNIT = {"kind": "unit", "where": "vllm@kimi.service", "what": "does not start at boot"}


def finding(number):
    return {"kind": "files", "where": f"/f{number}", "what": "is missing"}


def test_hosts_with_nothing_to_do_are_one_line_for_each_release():
    looks = {"b": FINE, "a": FINE, "other": {**FINE, "expected": "bbb"}}
    assert look_lines(looks, settled=["b", "a", "other"]) == [
        "release aaa is proven and serves: nothing to do on b, a",
        "release bbb is proven and serves: nothing to do on other",
    ]


def test_a_large_fleet_is_still_one_line():
    hosts = [f"gpu-{number}" for number in range(1, 11)]
    (line,) = look_lines(dict.fromkeys(hosts, FINE), settled=hosts)
    assert line.endswith("nothing to do on gpu-1, gpu-2, gpu-3, gpu-4, gpu-5, gpu-6, gpu-7, gpu-8, and 2 more")


def test_what_differs_is_told_host_by_host_and_of_much_the_first():
    looks = {
        "one": {**FINE, "settled": False, "findings": [finding(1)]},
        "many": {**FINE, "settled": False, "findings": [finding(number) for number in range(5)]},
    }
    assert look_lines(looks, settled=[]) == [
        "one: /f1 is missing",
        "many: /f0 is missing; /f1 is missing; /f2 is missing; and 2 more",
    ]


def test_what_a_deployment_leaves_alone_is_told_to_be_left_alone():
    lines = look_lines({"one": {**FINE, "findings": [UNIT]}}, settled=["one"])
    assert lines == [
        "release aaa is proven and serves: nothing to do on one",
        "one: vllm@kimi.service does not start at boot; this is left alone (docs/drift.md)",
    ]
    assert look_lines({"one": {**FINE, "findings": [UNIT]}}, settled=[]) == lines[1:]


def test_a_host_that_serves_and_may_get_no_requests_is_told():
    assert look_lines({"one": FINE}, settled=[]) == [
        "one: release aaa is proven and serves, and it is not known that it gets requests"
    ]


def test_a_host_that_was_not_looked_at_or_has_only_ignored_differences_has_no_line():
    ignored = {**FINE, "settled": False, "ignored": [finding(1)]}
    looks = {"skipped": {"skipped": True}, "failed": {"failed": False, "msg": "no"}, "none": None, "ignored": ignored}
    assert look_lines(looks, settled=[]) == look_lines({}, settled=[]) == []


def test_it_is_a_filter():
    assert FilterModule().filters()["look_lines"] is look_lines
