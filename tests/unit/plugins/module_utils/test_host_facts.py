from __future__ import annotations

import os
from types import SimpleNamespace

import pytest
from ansible_collections.llmops.vllm.plugins.module_utils.cgroups import CgroupLayout
from ansible_collections.llmops.vllm.plugins.module_utils.gpu_query import GpuHost
from ansible_collections.llmops.vllm.plugins.module_utils.host_facts import (
    UNLIMITED,
    Limits,
    Orphan,
    Tools,
    collect,
    read_clock,
    read_limits,
    read_nccl_plugins,
    read_space,
)
from ansible_collections.llmops.vllm.plugins.module_utils.launch import Launch
from ansible_collections.llmops.vllm.plugins.module_utils.procfs import ProcFs
from ansible_collections.llmops.vllm.plugins.module_utils.runtime_facts import Runtime
from ansible_collections.llmops.vllm.plugins.module_utils.systemd import CompletedRun, run_command
from ansible_collections.llmops.vllm.plugins.module_utils.users import user_name
from ansible_collections.llmops.vllm.tests.unit.nvidia_smi import Card, HostTree, Smi, cards

CUDA = Runtime(device="cuda", cuda="12.8")
MEMINFO = "MemTotal:       1000000 kB\nMemFree:  1 kB\nMemAvailable:    600000 kB\nHugePages_Total:       0\n"
LOADER = """\
2 libs found in cache `/etc/ld.so.cache'
\tlibnccl-net.so (libc6,x86-64) => /opt/aws/lib/libnccl-net.so
\tlibnccl.so.2 (libc6,x86-64) => /usr/lib/libnccl.so.2
\tlibnccl-tuner-ofi.so.1 (libc6,x86-64) => /opt/aws/lib/libnccl-tuner-ofi.so.1
"""
STAT = "{pid} ({comm}) S 1 {pid} {pid} 0 -1 4194304" + " 0" * 10 + " 20 0 1 0 100" + " 0" * 30 + "\n"


@pytest.fixture
def tree(tmp_path):
    tree = HostTree(tmp_path).write({"proc/meminfo": MEMINFO, "proc/stat": "btime 1000\n"})
    (tmp_path / "dev/shm").mkdir(parents=True)
    return tree


def host(tree, run):
    proc = ProcFs(str(tree.proc))
    return GpuHost(run, proc, CgroupLayout(proc), {}, str(tree.root))


def look(tree, run=None, **launch):
    return collect(host(tree, run or Smi.of(cards(1))), Launch(**{"runtime": CUDA, **launch}))


def answers(stdout, returncode=0):
    return lambda argv: CompletedRun(returncode, stdout, "")


def test_one_look_gives_everything(tree):
    tree.gpu_on_bus(Card(), iommu="DMA-FQ").write({"sys/class/infiniband/mlx5_0/x": ""})
    smi = Smi.of(cards(1))
    smi.answers["dmesg"] = CompletedRun(0, "[ 1.5] NVRM: Xid (PCI:0000:0a:00): 79, x\n", "")
    smi.answers["ldconfig"] = CompletedRun(0, LOADER, "")
    smi.answers["timedatectl"] = CompletedRun(0, "yes\n", "")
    facts = look(tree, smi, cache="/var/cache/vllm/kimi")
    assert facts.gpus.present and facts.pci[0].iommu == "DMA-FQ" and facts.log.xids[0].last_epoch == 1001.5
    assert (facts.memory_total_bytes, facts.memory_available_bytes) == (1000000 * 1024, 600000 * 1024)
    assert facts.shm.path == "/dev/shm" and facts.cache.path == "/var/cache/vllm/kimi" and facts.cache.free_bytes > 0
    assert (facts.infiniband, facts.clock_synchronised, facts.cpu_count) == (True, True, os.cpu_count())
    assert sorted(facts.nccl_plugins) == ["libnccl-net.so", "libnccl-tuner-ofi.so.1"]
    assert facts.leftovers.processes == () and facts.leftovers.shm_count == 0


def test_an_engine_on_the_cpu_costs_no_question_about_gpus(tree):
    smi = Smi.of(cards(1))
    facts = look(tree, smi, runtime=Runtime(device="cpu"))
    assert not facts.gpus.present and facts.pci == () and facts.tools == Tools()
    assert not any(argv[0] in ("nvidia-smi", "ldconfig") for argv in smi.asked)


def test_a_host_that_shows_nothing_is_no_failure(tmp_path):
    facts = look(HostTree(tmp_path), lambda _argv: CompletedRun(127, "", "not there"))
    assert (facts.memory_total_bytes, facts.clock_synchronised, facts.limits) == (None, None, Limits())
    assert not facts.gpus.present


def test_orphans_of_engines_and_shared_memory_that_nobody_uses_are_left_over(tree):
    me = f"Uid:\t{os.getuid()}\t{os.getuid()}\t{os.getuid()}\t{os.getuid()}\n"
    tree.write({
        "proc/1/cgroup": "0::/init.scope\n",
        "proc/700/stat": STAT.format(pid=700, comm="VLLM::Worker_TP"),
        "proc/700/cgroup": "0::/user.slice/user-0.slice/session-3.scope\n",
        "proc/700/status": f"Name:\tx\n{me}",
        "proc/700/cmdline": "VLLM::Worker_TP0\0",
        "proc/701/stat": STAT.format(pid=701, comm="VLLM::EngineCor"),
        "proc/701/cgroup": "0::/system.slice/vllm@kimi.service\n",
        "proc/702/stat": STAT.format(pid=702, comm="python3"),
        "proc/702/cgroup": "0::/user.slice/user-0.slice/session-3.scope\n",
    })  # fmt: skip
    (tree.root / "dev/shm/psm_0a1b2c3d").write_bytes(b"x" * 8192)
    left = look(tree).leftovers
    assert left.processes == (Orphan(700, user_name(os.getuid()), "VLLM::Worker_TP0"),)
    assert left.shm_count == 1 and left.shm_bytes >= 8192


@pytest.mark.parametrize(
    ("shown", "limits"),
    [
        ("LoadState=loaded\nLimitMEMLOCK=infinity\nLimitNOFILE=1048576\n", Limits(UNLIMITED, 1048576)),
        ("LoadState=loaded\nLimitMEMLOCK=8388608\nLimitNOFILE=\n", Limits(8388608, None)),
        ("LoadState=not-found\nLimitMEMLOCK=8388608\nLimitNOFILE=524288\n", Limits()),
    ],
)
def test_limits_are_those_of_a_unit_that_is_there(shown, limits):
    assert read_limits(answers(shown), "vllm@kimi.service") == limits


def test_without_a_unit_nobody_is_asked_for_limits():
    assert read_limits(None, "") == Limits()


@pytest.mark.parametrize(
    ("said", "status", "known"), [("yes\n", 0, True), ("no\n", 0, False), ("", 1, None), ("?\n", 0, None)]
)
def test_the_clock_is_what_systemd_says(said, status, known):
    assert read_clock(answers(said, status)) is known


def test_the_loader_is_found_where_users_have_no_path_to_it():
    def run(argv):
        return CompletedRun(0, LOADER, "") if argv[0] == "/sbin/ldconfig" else CompletedRun(127, "", "")

    assert read_nccl_plugins(run)["libnccl-net.so"] == "/opt/aws/lib/libnccl-net.so"


def test_space_is_that_of_the_file_system_a_directory_will_be_on(tmp_path):
    status = SimpleNamespace(f_blocks=100, f_bavail=10, f_frsize=4096, f_flag=os.ST_RDONLY | os.ST_NOEXEC)
    asked = []
    (tmp_path / "var").mkdir()
    space = read_space(str(tmp_path), "/var/cache/vllm", lambda path: asked.append(path) or status)
    assert asked == [str(tmp_path / "var")]
    assert (space.path, space.total_bytes, space.free_bytes) == ("/var/cache/vllm", 409600, 40960)
    assert (space.read_only, space.no_exec) == (True, True)


def test_space_that_cannot_be_asked_is_not_known(tmp_path):
    def fails(_path):
        raise OSError(5, "Input/output error")

    assert read_space(str(tmp_path), "/dev/shm", fails) is None


def program(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho '{text}'\n")
    path.chmod(0o755)


@pytest.mark.parametrize(
    ("place", "environment"),
    [
        ("usr/local/cuda/bin/nvcc", {}),
        ("opt/cuda-12.9/bin/nvcc", {"CUDA_HOME": "/opt/cuda-12.9"}),
        ("opt/cuda-12.9/bin/nvcc", {"CUDA_PATH": "/opt/cuda-12.9", "PATH": "/usr/bin"}),
        ("opt/tools/nvcc", {"PATH": "/opt/tools:/usr/bin"}),
    ],
)
def test_compilers_are_found_as_flashinfer_finds_them(tree, place, environment):
    program(tree.root / place, "Cuda compilation tools, release 12.9, V12.9.86")
    program(tree.root / "usr/bin/ninja", "1.13")
    smi = Smi.of(cards(1))
    facts = look(
        tree, lambda argv: run_command(argv) if argv[0].endswith("nvcc") else smi(argv), environment=environment
    )
    assert facts.tools == Tools(str(tree.root / place), "12.9", str(tree.root / "usr/bin/ninja"))


def test_a_toolkit_that_the_service_cannot_find_is_none(tree):
    program(tree.root / "opt/cuda/bin/nvcc", "release 12.9")
    assert look(tree).tools == Tools()


def test_a_toolkit_among_the_runtimes_packages_is_named_and_not_taken_for_the_services(tree):
    packages = tree.root / "runtime/lib/python3.12/site-packages"
    program(packages / "nvidia/cu13/bin/nvcc", "release 13.0")
    facts = look(tree, runtime=Runtime("/r", str(packages), {}, "cuda", "13.0"))
    assert facts.tools == Tools(cuda_in_runtime=str(packages / "nvidia/cu13"))
