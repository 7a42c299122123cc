from __future__ import annotations


def test_check_mode_on_a_fresh_host_completes_and_changes_nothing(host_prereq):
    checked = host_prereq["checked"]
    assert checked.status == 0, checked.output
    assert checked.recap["changed"] > 0 and checked.recap["failed"] == 0
    assert host_prereq["user after check"] == ""


def test_the_first_run_makes_the_user_and_the_directories(host_prereq, host):
    first = host_prereq["first"]
    assert first.status == 0, first.output
    assert first.recap["changed"] == host_prereq["checked"].recap["changed"], "check mode announced something else"
    assert host.run("getent passwd vllm").endswith(":/var/lib/vllm:/usr/sbin/nologin")
    assert host.run("cd /srv/llm && stat -c '%n %U %G %a' store runtimes releases instances").splitlines() == [
        "store root vllm 750",
        "runtimes root root 755",
        "releases root vllm 750",
        "instances root vllm 750",
    ]


def test_the_second_run_changes_nothing(host_prereq):
    second = host_prereq["second"]
    assert second.status == 0, second.output
    assert second.recap["changed"] == 0
