from __future__ import annotations

import os
import socket

import pytest
from ansible_collections.llmops.vllm.plugins.module_utils import drift_process
from ansible_collections.llmops.vllm.plugins.module_utils.drift import Report
from ansible_collections.llmops.vllm.plugins.module_utils.drift_process import (
    TOLERANCE_SECONDS,
    compare_listener,
    compare_process,
    compare_unit,
)
from ansible_collections.llmops.vllm.plugins.module_utils.errors import PreconditionError
from ansible_collections.llmops.vllm.plugins.module_utils.instance import read_instance
from ansible_collections.llmops.vllm.plugins.module_utils.listener import Listener, Owner
from ansible_collections.llmops.vllm.plugins.module_utils.procfs import ProcFs
from ansible_collections.llmops.vllm.plugins.module_utils.systemd import CompletedRun, UnitState
from ansible_collections.llmops.vllm.tests.unit.drift_host import LAUNCH, DriftHost


@pytest.fixture
def host(tmp_path):
    return DriftHost(tmp_path)


def shown(host, **changes):
    values = {
        "LoadState": "loaded",
        "ActiveState": "active",
        "SubState": "running",
        "MainPID": "5",
        "UnitFileState": "enabled",
        "FragmentPath": str(host.unit_file),
        "DropInPaths": "",
        "NeedDaemonReload": "no",
        **changes,
    }
    return "".join(f"{key}={value}\n" for key, value in values.items())


def unit(host, status=0, **changes):
    report = Report()
    compare_unit(host.expected(), lambda _argv: CompletedRun(status, shown(host, **changes), ""), report)
    return [(drift.where, drift.what) for drift in report.drifts], report.notes


def test_a_unit_as_it_was_installed_has_no_drift(host):
    assert unit(host, DropInPaths=str(host.settings)) == ([], [])


@pytest.mark.parametrize(
    "changes",
    [
        {"ActiveState": "activating", "SubState": "auto-restart", "MainPID": "0"},
        {"ActiveState": "activating", "SubState": "start"},
        {"ActiveState": "reloading", "SubState": "reload"},
    ],
)
def test_an_engine_that_is_starting_is_a_note_and_no_drift(host, changes):
    drifts, notes = unit(host, **changes)
    assert drifts == [] and "is starting" in notes[0]


def test_an_engine_that_is_stopping_is_a_note(host):
    assert unit(host, ActiveState="deactivating") == ([], ["vllm@kimi.service is stopping."])


@pytest.mark.parametrize(
    ("changes", "where", "what"),
    [
        ({"ActiveState": "failed"}, "vllm@kimi.service", "is failed, and should serve"),
        ({"ActiveState": "inactive"}, "vllm@kimi.service", "is inactive, and should serve"),
        ({"UnitFileState": "disabled"}, "vllm@kimi.service", "does not start at boot: it is disabled"),
        ({"LoadState": "masked"}, "vllm@kimi.service", "is masked"),
        ({"LoadState": "not-found"}, "vllm@kimi.service", "is not known to systemd"),
        ({"NeedDaemonReload": "yes"}, "vllm@kimi.service", "daemon-reload"),
        ({"FragmentPath": "/run/systemd/system/vllm@.service"}, "/run/systemd/system/vllm@.service", "takes"),
        ({"DropInPaths": "/etc/a.d/x.conf"}, "/etc/a.d/x.conf", "is not of the repository"),
    ],
)
def test_what_systemd_has_otherwise_is_told(host, changes, where, what):
    ((found_where, found_what),), _notes = unit(host, **changes)
    assert found_where == where and what in found_what


def test_settings_of_all_services_of_a_host_are_the_hosts(host):
    assert unit(host, DropInPaths="/usr/lib/systemd/system/service.d/10-timeout-abort.conf")[0] == []


def test_a_host_without_systemd_is_an_error_and_no_drift(host):
    with pytest.raises(PreconditionError, match="systemd does not answer"):
        unit(host, status=1)


def process(host, started, invocation=LAUNCH):
    report = Report()
    state = UnitState("u", True, "loaded", "active", "running", invocation_id=invocation, main_pid=5)
    compare_process(host.expected(), read_instance(str(host.root), "kimi"), state, started, report)
    return [drift.what for drift in report.drifts]


def set_times(host, seconds):
    for path in (host.unit_file, host.settings, host.launcher, host.root / "instances/kimi/current"):
        os.utime(path, (seconds, seconds), follow_symlinks=False)


def test_the_launch_of_the_receipt_and_any_later_one_have_no_drift(host):
    set_times(host, 1000)
    assert process(host, 1001) == []
    assert process(host, 1500, "2" * 32) == []
    assert process(host, 0, "2" * 32) == []


def test_a_process_older_than_its_release_is_told(host):
    set_times(host, 1000)
    assert process(host, 990, "2" * 32)[0].startswith("began before")


def test_a_process_older_than_what_is_installed_is_told_beyond_the_tolerance(host):
    set_times(host, 1000)
    os.utime(host.unit_file, (1500, 1500))
    assert process(host, 1500 - TOLERANCE_SECONDS + 1) == []
    assert process(host, 1500 - TOLERANCE_SECONDS - 1) == [f"is older than {host.unit_file}"]
    host.unit_file.unlink()
    assert process(host, 1100) == []


def listener(host, control_group, port):
    report = Report()
    state = UnitState("vllm@kimi.service", True, control_group=control_group)
    compare_listener(host.expected(port=port), ProcFs(), state, report)
    return [(drift.where, drift.what) for drift in report.drifts]


def test_a_listener_that_is_not_the_units_is_named(host):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        ((where, what),) = listener(host, "/system.slice/vllm@kimi.service", port)
    assert where == f"port {port}"
    assert what.startswith(f"is held by process {os.getpid()}, not by vllm@kimi.service: ")
    assert listener(host, "/system.slice/vllm@kimi.service", port) == []


def test_the_units_own_listener_is_no_drift_and_an_unseen_one_a_note(host, monkeypatch):
    def look(listener):
        report = Report()
        monkeypatch.setattr(drift_process, "look_at_port", lambda *_args: listener)
        compare_listener(host.expected(), ProcFs(), UnitState("u"), report)
        return report.drifts, report.notes

    assert look(Listener(8000, (Owner(5, "vllm", "/u", True),))) == ([], [])
    drifts, notes = look(Listener(8000, (), 1))
    assert drifts == [] and "cannot be seen" in notes[0]
