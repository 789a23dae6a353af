import pytest
from msgspec.structs import replace

from skep.catalog.gpus import Gpu, HostFacts
from skep.host import checks
from skep.host.facts import (
    parse_cpu_features,
    parse_cpu_model,
    parse_driver_version,
    parse_gpus,
    parse_links,
    read_nvidia,
)
from skep.units import GIB

HOST = HostFacts(
    os="Linux 6.8.0",
    machine="x86_64",
    python="3.12.3",
    cpu_model="AMD Ryzen 9 7950X",
    cpu_cores=32,
    cpu_features=("f16c", "fma", "avx", "avx2"),
    memory_bytes=64 * GIB,
    memory_available_bytes=48 * GIB,
    open_files_soft=65536,
    open_files_hard=1048576,
)


@pytest.fixture
def host_of(captured):
    """HOST with the cards of one captured machine."""

    def of(machine: str, cuda: str = "13.0") -> HostFacts:
        query = captured(f"{machine}/query.csv")
        gpus = parse_gpus(query)
        driver = parse_driver_version(query)
        if len(gpus) > 1:
            links = parse_links(captured(f"{machine}/topo.txt"))
        else:
            links = ()
        return replace(HOST, gpus=gpus, links=links, driver_version=driver, cuda_version=cuda)

    return of


def by_check(findings: list[checks.HostFinding]) -> dict[str, checks.HostFinding]:
    return {finding.check: finding for finding in findings}


def test_host_without_gpu_is_healthy():
    """No NVIDIA GPU is a fact, not a fault; driver, lanes and links are then not spoken of."""
    findings = by_check(checks.examine(HOST))
    assert list(findings) == ["python", "cpu", "memory", "open files", "gpu"]
    assert {finding.verdict for finding in findings.values()} == {checks.CheckResult.OK}
    assert findings["gpu"].detail == "no NVIDIA GPU: the embedded model runs on the CPU"


# Of each machine: its CUDA, details of findings, and the hints of warnings
MACHINES = {
    "h200": ("13.0", {"gpu": "1 x NVIDIA H200 (140.4 GiB, compute 9.0, 700 W)",
                      "driver": "580.159.03, carries CUDA 13.0"}, {}),
    # driver 570 carries CUDA 12.8: later builds end with error 804
    "3090x2-nvlink": ("12.8", {"gpu": "2 x NVIDIA GeForce RTX 3090 (24.0 GiB, compute 8.6, 350 W)",
                               "links": "GPU 0-1: NV4 (NVLink, 4 bonded links)"},
                      {"driver": "install driver 580 or newer and reboot; or take a release "
                                 "for CUDA 12: `skep engine install vllm --version 0.19.0`"}),
    "3090x4-lanes": ("13.0", {
        "pcie": "GPU 0 x16, GPU 1 x16, GPU 2 x8 of x16, GPU 3 x4 of x16",
        "links": "GPU 0-1: PHB (PCIe through the CPU's host bridge); "
                 "GPU 2-3: PIX (PCIe, one switch between them); "
                 "GPU 0-2, 0-3, 1-2, 1-3: SYS (PCIe across NUMA nodes or CPU sockets)"},
        {"pcie": "check slot, riser and BIOS bifurcation; one replica per card loses less "
                 "than one model split over cards"}),
    # driver 580 carries CUDA 13.0; two reports recommend 590 for this card
    "5090": ("13.0", {}, {"driver": "install driver 590 or newer and reboot"}),
    # one PCIe lane that it does not use, and no memory of its own
    "gb10": ("13.3", {"gpu": "1 x NVIDIA GB10 (no memory of its own, compute 12.1)",
                      "pcie": None}, {}),
}  # fmt: skip


@pytest.mark.parametrize("machine", MACHINES)
def test_a_machine_is_described_and_warned_of_what_is_wrong(host_of, machine):
    cuda, details, hints = MACHINES[machine]
    findings = by_check(checks.examine(host_of(machine, cuda)))
    assert ("error 804" in findings["driver"].detail) == (machine == "3090x2-nvlink")
    assert {
        check: findings[check].detail if check in findings else None for check in details
    } == details
    assert {
        check: finding.hint
        for check, finding in findings.items()
        if finding.verdict is not checks.CheckResult.OK
    } == hints


def test_broken_nvidia_smi_is_a_problem_with_a_remedy(script):
    """What the program said reaches the doctor's line."""
    error = read_nvidia(
        script('echo "Failed to initialize NVML: Driver/library version mismatch"; exit 18')
    ).error
    finding = by_check(checks.examine(HOST, nvidia_error=error))["gpu"]
    assert finding.verdict is checks.CheckResult.PROBLEM
    assert (
        finding.detail
        == "nvidia-smi fails: Failed to initialize NVML: Driver/library version mismatch"
    )
    assert finding.hint == "the driver was upgraded under running programs: reboot"


@pytest.mark.parametrize(
    ("error", "word"),
    [
        (
            "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.",
            "modprobe",
        ),
        ("No devices were found", "lspci"),
        ("Unable to determine the device handle for GPU 0000:0A:00.0: GPU is lost.", "riser"),
        ("nvidia-smi did not answer within 10 s", "dmesg"),
        ("Failed to initialize NVML: Unknown Error", "container"),
        ("Failed to initialize NVML: Insufficient Permissions", "/dev/nvidia"),
        ("something new", "by hand"),
    ],
)
def test_each_failure_of_nvidia_smi_has_its_remedy(error, word):
    """One lost card of two does not hide the other."""
    finding = checks.gpu_finding((Gpu(0, "RTX 3090", 24 * GIB),), error)
    assert "it lists 1 x RTX 3090" in finding.detail
    assert word in finding.hint


def lanes(now, limit):
    """Of an idle card: that it shows generation 1 is no fault."""
    gpu = Gpu(
        0,
        "card",
        24 * GIB,
        pcie_generation=1,
        pcie_generation_max=4,
        pcie_lanes=now,
        pcie_lanes_max=limit,
    )
    return checks.lanes_finding((gpu,))


def driver(version, card="NVIDIA GeForce RTX 4090"):
    return checks.driver_finding(version, None, (Gpu(0, card, 24 * GIB),))


def memory(total, available):
    return checks.memory_finding(total and total * GIB, available and available * GIB)


def disk(free):
    return checks.disk_finding("~/.cache/skep", free * GIB, 20 * GIB)


VERDICTS = [
    # 580 for CUDA 13
    *(
        (driver(version), "warning")
        for version in ("550.90.07", "570.211.01", "575.57.08", None, "unreadable")
    ),
    *((driver(version), "ok") for version in ("580.65.06", "610.43.02")),
    (driver("590.48.01", "NVIDIA GeForce RTX 5090"), "ok"),
    # fewer than the card can, or x4 and less
    *((lanes(*pair), "warning") for pair in ((8, 16), (4, 4), (1, 16))),
    *((lanes(*pair), "ok") for pair in ((16, 16), (8, 8), (16, None))),
    # below 4 GiB a warning, below 2 GiB a problem; the total stands in where the free part is
    # unknown
    (memory(64, 1), "problem"),
    *((memory(*pair), "warning") for pair in ((64, 3), (3, None))),
    *((memory(*pair), "ok") for pair in ((64, 48), (64, 4), (None, None))),
    # two GiB are to be left over
    *((disk(free), verdict) for free, verdict in ((30, "ok"), (21, "warning"), (19, "problem"))),
]


@pytest.mark.parametrize(("finding", "verdict"), VERDICTS)
def test_a_value_has_its_verdict_and_a_hint_where_it_is_not_ok(finding, verdict):
    assert finding.verdict.value == verdict
    assert (finding.hint is None) == (verdict == "ok")
    assert ("~/.cache/skep" in finding.detail) == (finding.check == "disk")


def test_links_that_are_not_told_are_unknown():
    """Two cards without a topology are not called unconnected."""
    cards = (Gpu(0, "card", None), Gpu(1, "card", None))
    assert checks.links_finding(cards, ()) == checks.HostFinding(
        "links", checks.CheckResult.OK, "between the cards unknown"
    )
    assert checks.links_finding(cards[:1], ()) is None
    assert checks.link_means("C2C") == "C2C"


def test_x86_without_avx2_is_a_warning(captured):
    """An i7-3770K runs llama.cpp, slowly."""
    text = captured("cpuinfo-x86-old.txt")
    host = replace(
        HOST, cpu_model=parse_cpu_model(text), cpu_features=parse_cpu_features(text), cpu_cores=8
    )
    finding = checks.cpu_finding(host)
    assert finding.verdict is checks.CheckResult.WARNING
    assert finding.detail == (
        "Intel(R) Core(TM) i7-3770K CPU @ 3.50GHz, 8 cores, f16c avx; without AVX2 "
        "llama.cpp is slow"
    )
    assert finding.hint is not None


def test_arm_without_avx2_is_fine():
    """ARM has its own features; unknown features are not held against a host."""
    arm = replace(
        HOST, machine="aarch64", cpu_model=None, cpu_features=("asimd", "asimddp"), cpu_cores=1
    )
    assert checks.cpu_finding(arm) == checks.HostFinding(
        "cpu", checks.CheckResult.OK, "aarch64, 1 core, asimd asimddp"
    )
    assert checks.cpu_finding(replace(HOST, cpu_features=())).verdict is checks.CheckResult.OK


@pytest.mark.parametrize(
    ("soft", "hard", "hint"),
    [
        (4096, 4096, None),
        (None, None, None),
        (1024, 1048576, "`ulimit -n 65536`"),
        (1024, None, "`ulimit -n 65536`"),
        (1024, 8192, "`ulimit -n 8192`"),
        (256, 1024, "limits.conf"),
    ],
)
def test_low_file_limit_has_a_command_that_works(soft, hard, hint):
    """`ulimit -n` cannot pass the hard limit, so the hint stays below it."""
    finding = checks.open_files_finding(soft, hard)
    assert finding.verdict.value == ("ok" if hint is None else "warning")
    assert (hint or "") in (finding.hint or "")
