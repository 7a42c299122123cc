from __future__ import annotations

import subprocess
import time

import pytest
from ansible_collections.llmops.vllm.plugins.module_utils.errors import InvalidInputError
from ansible_collections.llmops.vllm.plugins.module_utils.procfs import ProcFs
from ansible_collections.llmops.vllm.plugins.module_utils.systemd import (
    CompletedRun,
    check_invocation_id,
    check_unit_name,
    parse_show,
    run_command,
    show_unit,
)

SHOWN = """\
LoadState=loaded
ActiveState=active
SubState=running
Result=success
InvocationID=00112233445566778899aabbccddeeff
MainPID=4711
NRestarts=2
ExecMainCode=0
ExecMainStatus=0
ControlGroup=/system.slice/vllm@kimi.service
UnitFileState=enabled
StatusText=weights 3/12 = a quarter
ExecMainStartTimestampMonotonic=5123400000
ActiveEnterTimestampMonotonic=5123500000
"""


def test_show_is_parsed_into_types():
    unit = parse_show("vllm@kimi.service", SHOWN)
    assert unit.systemd and unit.exists and unit.serving
    assert (unit.main_pid, unit.n_restarts) == (4711, 2)
    assert unit.exec_main_start_seconds == 5123.4
    assert unit.status_text == "weights 3/12 = a quarter"
    assert unit.as_dict()["control_group"] == "/system.slice/vllm@kimi.service"


def test_unset_and_odd_numbers_are_zero():
    unit = parse_show(
        "x.service", "MainPID=\nNRestarts=[not set]\nActiveEnterTimestampMonotonic=18446744073709551615\n"
    )
    assert (unit.main_pid, unit.n_restarts, unit.active_enter_seconds) == (0, 0, 0.0)


def test_an_unknown_unit_does_not_exist():
    unit = parse_show("x.service", "LoadState=not-found\nActiveState=inactive\nSubState=dead\n")
    assert unit.systemd and not unit.exists and not unit.serving


def test_a_host_without_systemd_gives_empty_values():
    unit = show_unit(lambda argv: CompletedRun(127, "", "systemctl: No such file or directory"), "x.service")
    assert not unit.systemd and not unit.exists and unit.main_pid == 0


def test_the_unit_name_is_one_argument_after_the_options():
    seen = []

    def runner(argv):
        seen.append(list(argv))
        return CompletedRun(0, SHOWN, "")

    show_unit(runner, "vllm@kimi.service")
    assert seen[0][:2] == ["systemctl", "show"] and seen[0][-2:] == ["--", "vllm@kimi.service"]


@pytest.mark.parametrize("name", ["", "vllm", "-H evil.service", "a b.service", "x.service\n", "../x.service"])
def test_what_is_no_unit_name_is_refused(name):
    with pytest.raises(InvalidInputError, match="full name"):
        check_unit_name(name)


@pytest.mark.parametrize("text", ["", "abc", "0" * 31, "G" * 32, "0" * 32 + "\n"])
def test_what_is_no_invocation_id_is_refused(text):
    with pytest.raises(InvalidInputError, match="invocation"):
        check_invocation_id(text)


def test_a_command_that_is_absent_is_an_exit_status():
    assert run_command(["no-such-command-here"]).returncode == 127


def test_a_command_gets_no_shell():
    done = run_command(["printf", "%s", "$(id)"])
    assert (done.returncode, done.stdout) == (0, "$(id)")


def test_a_command_that_hangs_is_ended_with_what_it_started(tmp_path):
    program = tmp_path / "hangs"
    program.write_text(f"#!/bin/sh\nsleep 60 & echo $! > {tmp_path}/child\necho half an answer\nwait\n")
    program.chmod(0o755)
    started = time.monotonic()
    done = run_command([str(program)], timeout_seconds=0.2)
    assert (done.returncode, done.stdout, done.stderr) == (124, "", f"{program} gave no answer within 0.2 s")
    assert time.monotonic() - started < 5
    number = int((tmp_path / "child").read_text())
    # Killed is not yet gone, on a busy machine.
    while (child := ProcFs().process(number)) and child.alive:
        assert time.monotonic() - started < 20
        time.sleep(0.01)


def test_a_command_that_even_a_kill_does_not_end_is_not_waited_for(monkeypatch):
    class Stuck:
        pid = 2**22 + 1  # no process: the largest PID is 2^22

        def __init__(self, *_args, **_settings):
            pass

        def wait(self, timeout):
            raise subprocess.TimeoutExpired("nvidia-smi", timeout)

    monkeypatch.setattr(subprocess, "Popen", Stuck)
    assert run_command(["nvidia-smi"], timeout_seconds=7).stderr == "nvidia-smi gave no answer within 7 s"


def test_both_outputs_are_kept_apart_and_bytes_that_are_no_text_do_no_harm():
    done = run_command(["sh", "-c", "printf 'a\\377b'; printf oops >&2; exit 3"])
    assert done == CompletedRun(3, "a\ufffdb", "oops")
