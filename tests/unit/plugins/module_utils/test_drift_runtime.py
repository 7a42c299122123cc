from __future__ import annotations

import os

import pytest
from ansible_collections.llmops.vllm.plugins.module_utils.drift import Report
from ansible_collections.llmops.vllm.plugins.module_utils.drift_runtime import (
    LEVELS,
    compare_runtime,
    digest_of,
    read_records,
)
from ansible_collections.llmops.vllm.tests.unit.drift_host import RUNTIME, DriftHost


@pytest.fixture
def host(tmp_path):
    return DriftHost(tmp_path)


def runtime(host, level="stat"):
    report = Report()
    compare_runtime(host.expected(), host.content, level, report)
    base = host.root / "runtimes" / RUNTIME
    return [(os.path.relpath(drift.where, base), drift.what) for drift in report.drifts]


@pytest.mark.parametrize("level", LEVELS)
def test_an_untouched_runtime_has_no_drift(host, level):
    assert runtime(host, level) == []


def test_what_python_writes_by_itself_is_no_drift(host):
    cache = host.packages / "vllm/__pycache__"
    cache.mkdir()
    (cache / "__init__.cpython-312.pyc").write_bytes(b"bytecode")
    (host.packages / "vllm-1.0.dist-info/INSTALLER").write_text("uv")
    (host.packages / "vllm/notes.txt").write_text("")
    assert runtime(host, "full") == []


def test_another_size_is_seen_by_stat_and_the_same_size_by_full_alone(host):
    script = host.packages.parents[2] / "bin/vllm"
    script.write_bytes(b"#!other\n")
    assert runtime(host) == [("bin/vllm", "has 8 bytes, not 9")]
    script.write_bytes(b"#!pYthon\n")
    assert runtime(host) == []
    assert runtime(host, "full") == [("bin/vllm", "has another content")]
    assert runtime(host, "none") == []


@pytest.mark.parametrize("name", ["planted.pth", "sitecustomize.py", "vllm/_new.so", "vllm/old.pyc"])
def test_what_python_would_load_and_no_package_has_is_told(host, name):
    (host.packages / name).write_text("")
    assert runtime(host) == [(f"lib/python3.12/site-packages/{name}", "belongs to no package")]


def test_missing_linked_and_writable_files_are_told(host):
    (host.packages / "vllm/_C.so").unlink()
    (host.packages / "vllm/__init__.py").unlink()
    (host.packages / "vllm/__init__.py").symlink_to("/etc/hostname")
    (host.packages.parents[2] / "bin/vllm").chmod(0o777)
    assert [what for _where, what in runtime(host)] == [
        "can be written by everybody",
        "is missing",
        "is no regular file",
    ]


def test_a_file_that_two_packages_claim_is_right_for_either(host):
    other = host.packages / "other-1.dist-info"
    other.mkdir()
    (other / "RECORD").write_text("vllm/__init__.py,sha256=AAAA,999\nvllm/_C.so,,\n\n")
    assert runtime(host, "full") == []


def test_lines_that_lead_out_of_the_runtime_and_quoted_names_are_read_right(host):
    other = host.packages / "other-1.dist-info"
    other.mkdir()
    (host.packages / "a,b.txt").write_text("x")
    (other / "RECORD").write_text('../../../../../etc/passwd,sha256=AAAA,1\n"a,b.txt",md5=AAAA,1\nc.pyc,,5\n')
    found = read_records(str(host.packages.parents[2]), str(host.packages))
    assert not [path for path in found if path.endswith("passwd")]
    assert runtime(host) == []
    assert runtime(host, "full") == [("lib/python3.12/site-packages/a,b.txt", "has another content")]


@pytest.mark.parametrize("receipt", [None, "{", "[]", '{"id": "other"}'])
@pytest.mark.parametrize("level", ["receipt", "stat", "full"])
def test_a_runtime_without_its_receipt_is_told(host, receipt, level):
    path = host.packages.parents[2] / "runtime.json"
    path.unlink()
    if receipt is not None:
        path.write_text(receipt)
    assert runtime(host, level)[0][1].startswith("has no receipt")


def test_where_the_receipt_is_enough_no_file_of_the_runtime_is_looked_at(host):
    (host.packages / "planted.pth").write_text("")
    (host.packages / "vllm/_C.so").unlink()
    assert len(runtime(host)) == 2
    assert runtime(host, "receipt") == []


def test_a_runtime_without_the_engine_is_told(host):
    (host.packages / "vllm-1.0.dist-info/RECORD").unlink()
    assert ("lib/python3.12/site-packages", "holds no installed vLLM") in runtime(host)


def test_an_unknown_kind_of_digest_is_no_match(tmp_path):
    (tmp_path / "f").write_text("")
    assert digest_of(str(tmp_path / "f"), "sha0") == ""
    assert digest_of(str(tmp_path / "f"), "sha256") == "47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU"
