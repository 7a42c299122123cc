"""tools/drift, with a stand-in for ansible-playbook."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

DRIFT = Path(__file__).parents[3] / "tools/drift"


@pytest.fixture
def drift(tmp_path, monkeypatch):
    """Return a function that runs tools/drift, where the playbook ends with `status` after writing `report`."""

    def run(status, report, *arguments):
        stand_in = tmp_path / "ansible-playbook"
        writes = f"printf '%s' '{report}' > \"${{path#*=}}\"" if report is not None else ":"
        stand_in.write_text(
            "#!/bin/bash\necho played; printf '%s\\n' \"$@\" > arguments; env > environment\n"
            f"path=${{@: -1}}\n{writes}\nexit {status}\n"
        )
        stand_in.chmod(0o755)
        path = f"{tmp_path}:{os.environ['PATH']}"
        monkeypatch.delenv("ANSIBLE_CONFIG", raising=False)
        return subprocess.run(
            [DRIFT, *arguments],
            cwd=tmp_path,
            env={**os.environ, "PATH": path},
            capture_output=True,
            text=True,
            check=False,
        )

    return run


def report_of(verdict):
    return json.dumps(
        {"schema": "llmops.vllm/drift", "hosts": {"a": {"verdict": "drift"}}, "verdict": verdict}, indent=4
    )


@pytest.mark.parametrize(
    ("status", "verdict", "code"),
    [
        (0, "none", 0),
        (2, "drift", 3),
        (2, "error", 1),
        (4, "error", 1),
        (2, "none", 1),
        (0, "drift", 1),
        (4, "drift", 1),
        (0, None, 1),
        (2, None, 1),
        (1, None, 1),
        (130, None, 1),
    ],
)
def test_the_exit_code_takes_the_report_and_the_run_to_agree(drift, status, verdict, code):
    assert drift(status, None if verdict is None else report_of(verdict)).returncode == code


def test_arguments_are_passed_on_and_the_report_is_of_this_run(drift, tmp_path):
    done = drift(0, report_of("none"), "-i", "in ventory", "-e", "deploy_model=m")
    said = (tmp_path / "arguments").read_text().splitlines()
    assert said[0] == str(DRIFT.parents[1] / "playbooks/drift.yml")
    assert said[1:5] == ["-i", "in ventory", "-e", "deploy_model=m"]
    path = said[6].partition("=")[2]
    assert said[5] == "-e" and said[6].startswith("vllm_drift_report_file=") and not os.path.exists(path)
    assert done.stdout == "played\n"
    assert f"ANSIBLE_CONFIG={DRIFT.parents[1]}/ansible.cfg" in (tmp_path / "environment").read_text().splitlines()


def test_json_is_the_whole_output(drift):
    done = drift(2, report_of("drift"), "--json")
    assert json.loads(done.stdout)["verdict"] == "drift" and done.stderr == "played\n"


def test_a_configuration_of_the_users_own_is_left_alone(drift, tmp_path):
    (tmp_path / "ansible.cfg").write_text("")
    drift(0, report_of("none"))
    assert "ANSIBLE_CONFIG=" not in (tmp_path / "environment").read_text()
