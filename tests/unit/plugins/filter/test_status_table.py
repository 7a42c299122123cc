from __future__ import annotations

from ansible_collections.llmops.vllm.plugins.filter.status_table import FilterModule, status_table

KIMI = {
    "instance": "kimi",
    "release": "aaa",
    "since": "2026-03-01T10:00:00Z",
    "state": "active",
    "phase": "serves",
    "tokens_per_second": 1312.4,
    "kv_use": 0.31,
    "drift": [],
    "last_verdict": "aaa proven",
    "intent": None,
    "lock": None,
}


def test_every_instance_of_every_host_is_an_aligned_line():
    lines = status_table({"gpu-01": {"instances": [KIMI, {**KIMI, "instance": "llama"}]}, "g2": {"instances": []}})
    assert lines[0].split()[:3] == ["host", "instance", "release"]
    assert (
        " ".join(lines[1].split()) == "gpu-01 kimi aaa 2026-03-01T10:00:00Z active serves 1312.4 31 % none aaa proven -"
    )
    assert lines[0].index("instance") == lines[1].index("kimi") == lines[2].index("llama")
    assert "nothing here" in lines[3]


def test_a_host_without_an_answer_says_so():
    lines = status_table({"a": {"unreachable": True, "msg": "no\nroute"}, "b": {"failed": True, "msg": "x"}, "c": {}})
    assert "unreachable  no route" in lines[1] and "failed" in lines[2] and "no answer" in lines[3]


def test_the_lock_names_its_holder_and_an_interruption_shows():
    lock = {"holder": "ops@one", "since": "t", "why": "deploy bbb"}
    intent = {"action": "deploy", "target": "bbb"}
    lines = status_table({"a": {"instances": [{**KIMI, "lock": lock}, {**KIMI, "intent": intent, "kv_use": None}]}})
    assert lines[1].endswith("ops@one since t: deploy bbb") and lines[2].endswith("interrupted: deploy bbb")


def test_long_and_broken_texts_stay_one_line():
    lines = status_table({"a": {"instances": [{**KIMI, "last_verdict": "x\n" * 200}]}})
    assert len(lines) == 2 and len(lines[1]) < 250


def test_what_was_changed_by_hand_is_named():
    (_headings, line) = status_table({"a": {"instances": [{**KIMI, "drift": ["/etc/x", "lock of the runtime"]}]}})
    assert "31 %    /etc/x, lock of the runtime  aaa proven" in line


def test_it_is_a_filter():
    assert FilterModule().filters()["status_table"] is status_table
