from __future__ import annotations

import grp
import os
import pwd
import socket

import pytest
from ansible_collections.llmops.vllm.plugins.module_utils.drift_runtime import LEVELS
from ansible_collections.llmops.vllm.plugins.module_utils.release import release_id
from ansible_collections.llmops.vllm.plugins.modules import drift_info
from ansible_collections.llmops.vllm.tests.unit.drift_host import COMMIT, LAUNCH, RUNTIME, DriftHost, content


@pytest.fixture
def host(tmp_path, monkeypatch):
    """Lay out a host, and put a systemctl that shows its active unit first on PATH."""
    host = DriftHost(tmp_path)
    directory = tmp_path / "bin"
    directory.mkdir()
    command = directory / "systemctl"
    lines = ["LoadState=loaded", "ActiveState=active", "SubState=running", "UnitFileState=enabled", "MainPID=5"]
    lines.append(f"InvocationID={LAUNCH}")
    lines.append(f"FragmentPath={host.unit_file}")
    command.write_text("#!/bin/sh\n" + "".join(f"echo {line}\n" for line in lines))
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{directory}:{os.environ['PATH']}")
    return host


@pytest.fixture
def look(run_module, host, free_port):
    def call(check=False, **params):
        return run_module(drift_info, check=check, **{**host.parameters(), "port": free_port, **params})

    return call


@pytest.fixture
def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


@pytest.mark.parametrize("level", LEVELS)
def test_an_untouched_host_has_no_drift(look, host, level):
    result = look(runtime_level=level)
    assert (result["changed"], result["drift"], result["findings"], result["notes"]) == (False, False, [], [])
    assert result["current"] == result["expected"] == host.id
    assert result["model"] == {"repo": "acme/tiny", "commit": COMMIT}


def test_check_mode_tells_the_same(run_module, host, free_port):
    result = run_module(drift_info, check=True, diff=True, **{**host.parameters(), "port": free_port})
    assert result["drift"] is False and "diff" not in result


def test_each_kind_is_found(look, host):
    (host.release / "env").write_text("B=1\n")
    (host.release / "model/config.json").write_text("{}")
    (host.packages / "x.pth").write_text("")
    host.api_key.write_text("other")
    result = look()
    assert result["drift"] is True
    assert [finding["kind"] for finding in result["findings"]] == ["files", "view", "runtime", "api_key"]
    assert set(result["findings"][0]) == {"kind", "where", "what"}


def test_what_is_meant_to_be_is_ignored(look, host):
    (host.packages / "x.pth").write_text("")
    result = look(ignore=["runtime *.pth"])
    assert (result["drift"], result["findings"], len(result["ignored"])) == (False, [], 1)


def test_a_host_without_the_instance_is_drift_and_no_error(look, host):
    (host.root / "instances/kimi/current").unlink()
    result = look()
    assert [finding["kind"] for finding in result["findings"]] == ["release"] and result["model"] == {}


@pytest.fixture
def whole(host):
    """Return what a deployment gives besides the release, on a host that has all of it."""
    host.finish_download()
    (host.root / "instances").chmod(0o750)
    mine = pwd.getpwuid(os.getuid())
    account = {"user": mine.pw_name, "group": grp.getgrgid(mine.pw_gid).gr_name}
    return {
        "host": {
            "libraries": ["libc.so.6"],
            "modules": ["json"],
            "python3_modules": [],
            "account": {**account, "home": mine.pw_dir, "shell": mine.pw_shell},
        },
        "directories": [{"path": str(host.root / "instances"), "mode": "0750", "group": account["group"]}],
        "weights": {"include": [], "exclude": []},
        "runtime_level": "receipt",
        "owner": mine.pw_name,
        "group": account["group"],
    }


@pytest.mark.parametrize("check", [False, True])
def test_a_host_with_all_that_belongs_to_the_release_is_settled(look, whole, check):
    result = look(check, **whole)
    assert (result["changed"], result["findings"], result["settled"]) == (False, [], True)


def test_the_release_is_named_by_its_content_where_no_id_is_given(look, host, whole):
    result = look(**whole, release_id=None)
    assert result["expected"] == host.id and result["settled"] is True


PROVEN = {"outcome": "proven", "invocation_id": LAUNCH}
PUT_RIGHT = {
    "host": lambda host: (host.root / "instances").chmod(0o777),
    "release": lambda host: host.write_receipt({**PROVEN, "content": content(runtime="other")}),
    "files": lambda host: (host.release / "env").write_text("B=1\n"),
    "view": lambda host: (host.release / "model/config.json").write_text("{}"),
    "runtime": lambda host: (host.root / "runtimes" / RUNTIME / "runtime.json").unlink(),
    "weights": lambda host: (host.snapshot / "model.safetensors").write_bytes(b"WEIGHTS"),
}


@pytest.mark.parametrize("kind", PUT_RIGHT)
@pytest.mark.parametrize("ignore", [[], ["*"]])
def test_what_a_deployment_puts_right_makes_a_host_unsettled_ignored_or_not(look, host, whole, kind, ignore):
    PUT_RIGHT[kind](host)
    result = look(**whole, ignore=ignore)
    assert {found["kind"] for found in result["ignored" if ignore else "findings"]} == {kind}
    assert (result["settled"], result["drift"]) == (False, not ignore)


@pytest.mark.parametrize("missing", ["libraries", "modules", "python3_modules"])
def test_what_the_host_lacks_is_named(look, whole, missing):
    whole["host"][missing] = ["no_such_thing"]
    result = look(**whole)
    assert [(found["kind"], found["where"]) for found in result["findings"]] == [("host", "no_such_thing")]
    assert result["settled"] is False


def test_another_account_is_told(look, whole):
    whole["host"]["account"]["home"] = "/else"
    assert "is another one: the home of" in look(**whole)["findings"][0]["what"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"weights": {"include": ["*.json"]}}, "was not left as a whole download leaves it"),
        ({"weights": {"exclude": ["*.md"]}}, "was not left as a whole download leaves it"),
        ({"weights": {"publish_blobs": True}}, "differs in published blobs"),
        ({"group": str(os.getgid() + 1)}, "differs in group of "),
    ],
    ids=["include", "exclude", "publish_blobs", "group"],
)
def test_weights_that_were_chosen_otherwise_or_belong_to_another_group_are_told(look, whole, changes, said):
    found = [one["what"] for one in look(**{**whole, **changes})["findings"] if one["kind"] == "weights"]
    assert len(found) == 1 and found[0].startswith(said)


def test_what_a_deployment_leaves_alone_is_told_and_settled(look, host, whole):
    host.api_key.write_text("other")
    result = look(**whole)
    assert [found["kind"] for found in result["findings"]] == ["api_key"]
    assert (result["drift"], result["settled"]) == (True, True)


def test_a_release_that_has_not_proved_itself_is_not_settled(look, host, whole):
    host.write_receipt({**PROVEN, "outcome": "failed", "content": host.content})
    assert look(**whole)["settled"] is False


def test_a_unit_that_does_not_serve_or_serves_an_older_launch_is_not_settled(look, host, whole):
    systemctl = host.root / "bin/systemctl"
    shown = systemctl.read_text()
    systemctl.write_text(shown.replace("SubState=running", "SubState=start"))
    result = look(**whole)
    assert (result["findings"], result["settled"]) == ([], False)
    systemctl.write_text(shown.replace(LAUNCH, "2" * 32))
    assert look(**whole)["settled"] is False


def test_a_directory_behind_a_link_is_followed_where_that_is_asked(look, host, whole):
    (host.root / "disk").symlink_to(host.root / "instances")
    entry = {**whole["directories"][0], "path": str(host.root / "disk")}
    assert look(**{**whole, "directories": [{**entry, "follow": True}]})["settled"] is True
    assert look(**{**whole, "directories": [entry]})["findings"][0]["what"] == "is not a directory"


def test_what_is_not_given_is_not_compared(look, host):
    (host.root / "instances").chmod(0o777)
    (host.snapshot / "model.safetensors").write_bytes(b"WEIGHTS")
    assert look()["findings"] == []


def test_a_host_without_systemd_fails(look, monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    result = look()
    assert result["failed"] is True and "systemd does not answer" in result["msg"]


@pytest.mark.parametrize(
    ("params", "sentence"),
    [
        ({"release_id": "0" * 12}, "release_id is 000000000000, but content is that of"),
        ({"content": {"model": {}}}, "content lacks files, launcher, patches, runtime"),
        ({"root": "relative"}, "root must be an absolute path"),
        ({"instance": "../x"}, "instance '../x'"),
        ({"unit": "-H a.service"}, "is not the full name of a service"),
        ({"launcher": "serve"}, "launcher must be an absolute path"),
        ({"directories": [{"path": "relative", "mode": "0750"}]}, "path of directories must be an absolute path"),
        ({"directories": [{"path": "/d", "mode": "rwx"}]}, "mode of /d"),
        ({"directories": [{"path": "/d", "mode": "0750", "state": "file"}]}, "must be one of: directory"),
        ({"directories": [{"path": "/d", "mode": "0750", "group": "no-such-group"}]}, "no-such-group"),
        ({"group": "no-such-group"}, "no-such-group"),
        ({"host": {"account": {"user": "vllm"}}}, "missing required arguments: group, home, shell"),
        ({"weights": {"patterns": []}}, "patterns"),
        ({"runtime_level": "sample"}, "must be one of: none, receipt, stat, full"),
    ],
)
def test_bad_input_fails_with_one_sentence(look, params, sentence):
    result = look(**params)
    assert result["failed"] is True and sentence in result["msg"]


def test_a_model_that_is_no_name_fails(look, run_module, host):
    bad = content(model={"repo": "../x", "commit": COMMIT})
    link = host.root / "instances/kimi/current"
    link.unlink()
    link.symlink_to(host.release.rename(host.release.with_name(release_id(bad))))
    result = look(content=bad, release_id=release_id(bad))
    assert result["failed"] is True and "../x" in result["msg"]
