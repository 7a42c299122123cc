"""Every fault ends in exactly the right bytes, or in one clear sentence with nothing wrong under a final name."""

from __future__ import annotations

import re
from typing import Any

import pytest
from ansible_collections.llmops.vllm.tests.download.cases import ERROR, RIGHT, SECTIONS, TLS, WITHOUT_CONTENT, Case
from ansible_collections.llmops.vllm.tests.download.rig import Rig, Verdict, is_clear
from ansible_collections.llmops.vllm.tests.download.table import Row, Table


@pytest.mark.parametrize(
    ("section", "case", "over"),
    [
        pytest.param(section, case, over, id=f"{case.fault}-{over}")
        for section, cases in SECTIONS.items()
        for case in cases
        for over in case.over
    ],
)
def test_a_fault_ends_in_the_right_bytes_or_in_a_clear_error(
    make_rig: Any, table: Table, section: str, case: Case, over: str
) -> None:
    rig = make_rig(tls=over == TLS, small=case in WITHOUT_CONTENT)
    case.arrange(rig)
    result = rig.run()
    verdict = rig.judge()
    sent = rig.sent_bytes
    check(case, rig, result, verdict)
    rig.heal()
    again = rig.run()
    assert not again.get("failed"), again
    assert rig.judge().flawless
    assert again["changed"] == (case.ends == ERROR)
    ends_right = case.ends == RIGHT
    table.add(
        section,
        Row(
            fault=case.fault,
            over=over,
            ends=case.ends,
            right=f"{len(verdict.right)} of {len(rig.hub.files)}",
            wrong=len(verdict.wrong),
            fetched=f"at most {case.at_most} %" if case.at_most else share(sent, rig),
            next_run="nothing to do" if ends_right else share(again["fetched_bytes"], rig),
            says="" if ends_right else rig.plain_words(result["msg"]),
        ),
    )


def check(case: Case, rig: Rig, result: dict[str, Any], verdict: Verdict) -> None:
    """What holds of every fault, and what this case expects besides."""
    assert (verdict.wrong, verdict.strays, verdict.leaks) == ([], [], [])
    assert bool(result.get("failed")) == (case.ends == ERROR), result
    if case.ends == ERROR:
        assert is_clear(result["msg"]), result["msg"]
        assert re.search(case.says, result["msg"]), result["msg"]
    else:
        assert verdict.flawless, verdict
        assert result["fetched_bytes"] <= rig.sent_bytes or "sources" in rig.parameters  # a directory sends nothing
    if case.at_most:
        assert rig.sent_bytes <= case.at_most / 100 * rig.total_bytes
    if case.pauses is not None:
        assert tuple(rig.pauses) == case.pauses


def share(size: int, rig: Rig) -> str:
    """Return ``size`` as a share of the repository's."""
    return f"{100 * size / rig.total_bytes:.0f} %"
