import json
import platform
import shutil
from pathlib import Path

import pytest
from msgspec.structs import replace

from skep.catalog.gpus import Gpu
from skep.host.facts import (
    CgroupLimits,
    NvidiaReport,
    count_busy_cores,
    host_json,
    lasting_json,
    parse_cpu_features,
    parse_cpu_max,
    parse_cpu_model,
    parse_cuda_version,
    parse_gpus,
    parse_links,
    read_host,
    read_limits,
    read_nvidia,
)
from skep.units import GIB, MIB

CAPTURED = Path(__file__).parent / "captured"


@pytest.fixture
def machine(tmp_path):
    """A /proc with 62.7 GiB of memory and an empty cgroup mount."""
    proc = tmp_path / "proc"
    cgroup = tmp_path / "cgroup"
    (proc / "self").mkdir(parents=True)
    cgroup.mkdir()
    shutil.copy(CAPTURED / "cpuinfo-x86.txt", proc / "cpuinfo")
    shutil.copy(CAPTURED / "meminfo.txt", proc / "meminfo")
    return proc, cgroup


def write(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text + "\n", encoding="utf-8")


def test_x86_features_are_those_llama_cpp_uses(captured):
    """Flags without a kernel in llama.cpp are left out."""
    text = captured("cpuinfo-x86.txt")
    assert parse_cpu_model(text) == "AMD Ryzen 9 7950X 16-Core Processor"
    assert parse_cpu_features(text) == (
        "f16c",
        "fma",
        "avx",
        "avx2",
        "avx512f",
        "avx512_vnni",
        "avx512_bf16",
    )


def test_arm_names_no_model_and_has_the_features_of_all_its_cores(captured):
    """A thread may run on any core: a feature of only some does not count.

    macOS has no cpuinfo.
    """
    text = captured("cpuinfo-spark.txt")
    assert parse_cpu_model(text) is None
    assert parse_cpu_features(text) == ("asimd", "asimddp", "i8mm", "bf16", "sve")
    assert "i8mm" not in parse_cpu_features(text.replace(" i8mm", "", 1))
    assert (parse_cpu_model(""), parse_cpu_features("")) == (None, ())


def test_container_limit_is_the_memory_of_the_host_where_it_is_below_the_machines(machine):
    """A container of 8 GiB on a machine of 64 GiB has 8 GiB; file caches count as free."""
    proc, cgroup = machine
    plain = read_host(NvidiaReport(), proc=proc, cgroup=cgroup)
    assert (plain.memory_bytes, plain.memory_available_bytes) == (65718272 * 1024, 48 * GIB)
    assert (plain.cpu_model, plain.python) == (
        "AMD Ryzen 9 7950X 16-Core Processor",
        platform.python_version(),
    )
    write(cgroup, memory__max=str(900 * GIB), memory__current="0", cpu__max="99900000 100000")
    large = read_host(NvidiaReport(), proc=proc, cgroup=cgroup)
    assert (large.memory_bytes, large.cpu_cores) == (plain.memory_bytes, plain.cpu_cores)
    write(proc / "self", cgroup="0::/")
    write(cgroup, memory__max=str(8 * GIB), memory__current=str(7 * GIB), cpu__max="100000 100000")
    write(cgroup, memory__stat=f"anon {2 * GIB}\ninactive_file {4 * GIB}\nactive_file {GIB}")
    facts = read_host(NvidiaReport(), proc=proc, cgroup=cgroup)
    assert (facts.memory_bytes, facts.memory_available_bytes, facts.cpu_cores) == (
        8 * GIB,
        6 * GIB,
        1,
    )


def test_tightest_group_up_to_the_root_counts(tmp_path):
    """A systemd slice limits the services inside it."""
    write(tmp_path / "user.slice", memory__max=str(4 * GIB), cpu__max="250000 100000")
    write(
        tmp_path / "user.slice" / "skep.service",
        memory__max="max",
        memory__current="0",
        cpu__max="max 100000",
    )
    limits = read_limits(tmp_path, "0::/user.slice/skep.service\n")
    assert limits == CgroupLimits(4 * GIB, 4 * GIB, 2.5)


@pytest.mark.parametrize("text", ["", "max 100000", "-1 100000", "100000 0", "nonsense"])
def test_cpu_share_without_limit_is_unknown(text):
    """Only two positive numbers make a share."""
    assert parse_cpu_max(text) is None


def test_host_without_proc_is_read(tmp_path):
    """macOS has neither /proc nor cgroups; unknown facts are None.

    The machine that runs the tests can be stored.
    """
    facts = read_host(NvidiaReport(), proc=tmp_path / "none", cgroup=tmp_path / "none")
    assert (facts.cpu_model, facts.cpu_features, facts.memory_available_bytes) == (None, (), None)
    assert facts.cpu_cores >= 1
    stored = host_json(read_host())
    assert json.loads(json.dumps(stored)) == stored


def test_stored_host_names_nobody(machine, smi):
    """No host name, user name or serial number travels with a run."""
    proc, cgroup = machine
    stored = host_json(read_host(read_nvidia(smi("3090x2-nvlink")), proc=proc, cgroup=cgroup))
    assert stored["gpus"][1]["name"] == "NVIDIA GeForce RTX 3090"
    assert stored["links"] == [[0, 1, "NV4"]]
    assert not {"hostname", "user", "uuid", "serial", "mac"} & (
        set(stored) | set(stored["gpus"][0])
    )
    assert platform.node() not in {value for value in stored.values() if isinstance(value, str)}


def test_lasting_facts_are_equal_for_repeats(machine, smi):
    """Free memory and the link generation of an idle card change between two runs on one
    machine.
    """
    proc, cgroup = machine
    first = read_host(read_nvidia(smi("5090")), proc=proc, cgroup=cgroup)
    busy = tuple(replace(gpu, pcie_generation=5) for gpu in first.gpus)
    second = replace(first, gpus=busy, memory_available_bytes=1, open_files_soft=1)
    assert lasting_json(first) == lasting_json(second)
    assert lasting_json(first) != lasting_json(replace(second, driver_version="595.58.03"))


DRIVER_GONE = (
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. "
    "Make sure that the latest NVIDIA driver is installed and running."
)


def test_card_is_read_with_all_its_fields(captured):
    """Each column of the query reaches its field, with units taken off, found by its name in the
    header.
    """
    assert parse_gpus(captured("h200/query.csv")) == (
        Gpu(0, "NVIDIA H200", 143771 * MIB, "9.0", 5, 5, 16, 16, 700.0),
    )
    assert parse_gpus("name, index\nTesla K80, 3\n") == (Gpu(3, "Tesla K80", None),)


@pytest.mark.parametrize("cell", ["[N/A]", "N/A", "[Not Supported]", "[Unknown Error]", ""])
def test_field_that_the_driver_does_not_tell_is_unknown(cell):
    """None, never zero and never the bracketed text."""
    text = (
        "index, name, memory.total [MiB], compute_cap, power.limit [W]\n0, NVIDIA GB10, "
        f"{cell}, {cell}, {cell}\n"
    )
    assert parse_gpus(text) == (Gpu(0, "NVIDIA GB10", None),)


@pytest.mark.parametrize(
    "text",
    ["", DRIVER_GONE, "No devices were found\n", 'Field "x" is not a valid field to query.'],
)
def test_error_text_holds_no_cards(text):
    """An error message is not mistaken for a table."""
    assert parse_gpus(text) == ()
    assert parse_links(text) == ()
    assert parse_cuda_version(text) is None


@pytest.mark.parametrize(
    ("machine", "version"), [("3090x2-nvlink", "12.8"), ("3090x4-lanes", "13.2"), ("gb10", "13.3")]
)
def test_cuda_version_is_found_in_old_and_new_headers(captured, machine, version):
    """Driver 610 renamed `CUDA Version` to `CUDA UMD Version`."""
    assert parse_cuda_version(captured(f"{machine}/header.txt")) == version


def test_links_skip_network_cards(captured):
    """Four cards have six pairs; the NIC row and column are not among them."""
    links = parse_links(captured("3090x4-lanes/topo.txt"))
    assert links == (
        (0, 1, "PHB"),
        (0, 2, "SYS"),
        (0, 3, "SYS"),
        (1, 2, "SYS"),
        (1, 3, "SYS"),
        (2, 3, "PIX"),
    )


def test_two_cards_are_read_from_a_running_program(smi):
    """Cards, driver, CUDA version and links come from three questions to one executable."""
    report = read_nvidia(smi("3090x2-nvlink"))
    assert [gpu.name for gpu in report.gpus] == ["NVIDIA GeForce RTX 3090"] * 2
    assert (report.driver_version, report.cuda_version, report.links) == (
        "570.211.01",
        "12.8",
        ((0, 1, "NV4"),),
    )
    assert report.error is None


def test_missing_program_is_no_error_but_one_that_may_not_be_run_is(tmp_path):
    """A host without NVIDIA software is a healthy host."""
    path = tmp_path / "nvidia-smi"
    assert read_nvidia(str(path)) == NvidiaReport()
    path.write_text("#!/bin/sh\n", encoding="utf-8")
    assert "could not be started" in (read_nvidia(str(path)).error or "")


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (f'echo "{DRIVER_GONE}"; exit 9', DRIVER_GONE),  # on standard output
        ("exit 3", "nvidia-smi ended with status 3 and said nothing"),
        (
            "exec sleep 60",
            "nvidia-smi did not answer within 0.2 s",
        ),  # as where a card fell off the bus
    ],
    ids=["driver gone", "silent", "hung"],
)
def test_failure_is_told_in_the_words_of_the_program_or_our_own(script, body, error):
    assert read_nvidia(script(body), timeout_s=0.2 if "sleep" in body else 10) == NvidiaReport(
        error=error
    )


def test_cards_left_beside_a_lost_one_are_kept(script):
    """The error is told and the cards that answered are listed."""
    lost = "Unable to determine the device handle for GPU 0000:0A:00.0: GPU is lost."
    report = read_nvidia(
        script(f"echo 'index, name'; echo '0, NVIDIA GeForce RTX 3090'; echo '{lost}'; exit 15")
    )
    assert (len(report.gpus), report.error) == (1, lost)


@pytest.mark.parametrize(
    ("loadavg", "cores", "busy"),
    [
        ("0.31 0.5 0.6 1/300 9", 8, 0),  # idle
        ("2.6 2.0 1.0 5/300 9", 8, 3),
        ("2.6 2.0 1.0 1/300 9", 8, 0),  # what has just ended
        ("30.2 20.0 9.0 40/300 9", 8, 8),
        ("3.2 3.0 3.0 9/300 9", 2, 0),  # six of the eight cores are not ours
        ("7.2 7.0 7.0 9/300 9", 2, 1),
        ("", 8, 0),  # no /proc, as on macOS
        ("unreadable", 8, 0),
    ],
)
def test_cores_are_busy_by_the_load_that_still_runs(tmp_path, loadavg, cores, busy):
    if loadavg:
        (tmp_path / "loadavg").write_text(loadavg)
    assert count_busy_cores(cores, total=8, proc=tmp_path) == busy
