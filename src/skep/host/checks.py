"""What `skep doctor` finds in the facts of a host. Judges values; reads nothing itself."""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from collections.abc import Sequence
from enum import Enum
from functools import cache
from importlib.resources import files

import msgspec

from skep.catalog.drivers import driver_number, need_of_cuda, older_release, recommended_driver
from skep.catalog.gpus import Gpu, HostFacts
from skep.units import GIB, format_bytes


class CheckResult(Enum):
    OK = "ok"
    ABSENT = "absent"  # and may stay so
    WARNING = "warning"
    PROBLEM = "problem"

    @property
    def wants_action(self) -> bool:
        return self in (CheckResult.WARNING, CheckResult.PROBLEM)


class HostFinding(msgspec.Struct, frozen=True):
    """One line of `skep doctor`. `hint` says what to do; None when there is nothing to do."""

    check: str
    verdict: CheckResult
    detail: str
    hint: str | None = None


NEWEST_CUDA = 13  # for which the engines of `skep engine install` are built
FEW_LANES = 4

_ANY_REMEDY = "run `nvidia-smi` by hand; reinstall the driver and reboot if it keeps failing"


@cache
def _texts(table: str) -> dict[str, str]:
    text = files("skep.host").joinpath("checks.toml").read_text(encoding="utf-8")
    return msgspec.convert(tomllib.loads(text)[table], dict[str, str])


def gpu_finding(gpus: Sequence[Gpu], error: str | None) -> HostFinding:
    if error is not None:
        hint = next(
            (remedy for words, remedy in _texts("remedies").items() if words in error.lower()),
            _ANY_REMEDY,
        )
        listed = f"; it lists {_describe_all(gpus)}" if gpus else ""
        return HostFinding("gpu", CheckResult.PROBLEM, f"nvidia-smi fails: {error}{listed}", hint)
    if not gpus:
        return HostFinding(
            "gpu", CheckResult.OK, "no NVIDIA GPU: the embedded model runs on the CPU"
        )
    return HostFinding("gpu", CheckResult.OK, _describe_all(gpus))


def driver_finding(
    driver: str | None, cuda: str | None, gpus: Sequence[Gpu]
) -> HostFinding | None:
    """Judge the driver; None without cards, which need none."""
    if not gpus:
        return None
    number = driver_number(driver)
    if driver is None or number is None:
        hint = "run `nvidia-smi` and look at its first line"
        return HostFinding("driver", CheckResult.WARNING, "version unknown", hint)
    detail = f"{driver}, carries CUDA {cuda}" if cuda else driver
    needed = need_of_cuda(NEWEST_CUDA).driver
    if number < needed:
        reason = f"vLLM and SGLang of today are built for CUDA {NEWEST_CUDA}"
        return HostFinding(
            "driver",
            CheckResult.WARNING,
            f"{detail}; {reason}, which needs driver {needed} (error 804 without it)",
            _driver_remedy(driver, needed),
        )
    for gpu in gpus:
        recommended = recommended_driver(gpu.name)
        if recommended is not None and number < recommended:
            return HostFinding(
                "driver",
                CheckResult.WARNING,
                f"{detail}; driver {recommended} is recommended for an {gpu.name}",
                f"install driver {recommended} or newer and reboot",
            )
    return HostFinding("driver", CheckResult.OK, detail)


def _driver_remedy(driver: str, needed: int) -> str:
    hint = f"install driver {needed} or newer and reboot"
    release = older_release("vllm", driver)
    if release is None:
        return hint
    return f"{hint}; or take a release for CUDA 12: `skep engine install vllm --version {release}`"


def lanes_finding(gpus: Sequence[Gpu]) -> HostFinding | None:
    """Judge the PCIe lanes. The generation is not judged: an idle card lowers it.

    Return None where no card reports its lanes.
    """
    widths = []
    narrow = False
    for gpu in gpus:
        lanes = gpu.pcie_lanes
        lanes_max = gpu.pcie_lanes_max
        # A GB10 is on the CPU's package: it reports no memory of its own, and one PCIe lane that
        # it does not use.
        if lanes is None or gpu.memory_bytes is None:
            continue
        width = f"GPU {gpu.index} x{lanes}"
        if lanes_max is not None and lanes != lanes_max:
            width += f" of x{lanes_max}"
        widths.append(width)
        narrow = narrow or lanes <= FEW_LANES or lanes < (lanes_max or 0)
    if not widths:
        return None
    detail = ", ".join(widths)
    if not narrow:
        return HostFinding("pcie", CheckResult.OK, detail)
    hint = (
        "check slot, riser and BIOS bifurcation; one replica per card loses less than one model "
        "split over cards"
    )
    return HostFinding("pcie", CheckResult.WARNING, detail, hint)


def links_finding(
    gpus: Sequence[Gpu], links: Sequence[tuple[int, int, str]]
) -> HostFinding | None:
    """Say what joins each pair of cards; None with fewer than two."""
    if len(gpus) < 2:
        return None
    if not links:
        return HostFinding("links", CheckResult.OK, "between the cards unknown")
    pairs: dict[str, list[str]] = {}
    for first, second, kind in links:
        pairs.setdefault(kind, []).append(f"{first}-{second}")
    kinds = sorted(pairs, key=lambda kind: (not kind.startswith("NV"), kind))
    groups = [f"GPU {', '.join(pairs[kind])}: {link_means(kind)}" for kind in kinds]
    return HostFinding("links", CheckResult.OK, "; ".join(groups))


def link_means(kind: str) -> str:
    """Return the link with its meaning, as far as it is known."""
    match = re.fullmatch(r"NV(\d+)", kind)
    if match:
        return f"{kind} (NVLink, {match[1]} bonded links)"
    meaning = _texts("links").get(kind)
    return f"{kind} ({meaning})" if meaning else kind


def _describe_all(gpus: Sequence[Gpu]) -> str:
    counts = Counter(_describe(gpu) for gpu in gpus)
    return "; ".join(f"{count} x {gpu}" for gpu, count in counts.items())


def _describe(gpu: Gpu) -> str:
    if gpu.memory_bytes is None:
        facts = ["no memory of its own"]
    else:
        facts = [format_bytes(gpu.memory_bytes)]
    if gpu.compute_capability:
        facts.append(f"compute {gpu.compute_capability}")
    if gpu.power_limit_w:
        facts.append(f"{gpu.power_limit_w:.0f} W")
    return f"{gpu.name} ({', '.join(facts)})"


MEMORY_PROBLEM_BYTES = 2 * GIB
MEMORY_WARNING_BYTES = 4 * GIB
DISK_SPARE_BYTES = 2 * GIB
OPEN_FILES_WARNING = 4096
OPEN_FILES_WANTED = 65536


def examine(facts: HostFacts, *, nvidia_error: str | None = None) -> list[HostFinding]:
    """Return all findings about this host, in the order they are printed.

    `nvidia_error` is `NvidiaReport.error`.
    """
    findings = [
        HostFinding("python", CheckResult.OK, facts.python),
        cpu_finding(facts),
        memory_finding(facts.memory_bytes, facts.memory_available_bytes),
        open_files_finding(facts.open_files_soft, facts.open_files_hard),
        gpu_finding(facts.gpus, nvidia_error),
        driver_finding(facts.driver_version, facts.cuda_version, facts.gpus),
        lanes_finding(facts.gpus),
        links_finding(facts.gpus, facts.links),
    ]
    return [finding for finding in findings if finding is not None]


def cpu_finding(facts: HostFacts) -> HostFinding:
    features = " ".join(facts.cpu_features) or "features unknown"
    cores = "1 core" if facts.cpu_cores == 1 else f"{facts.cpu_cores} cores"
    detail = f"{facts.cpu_model or facts.machine}, {cores}, {features}"
    x86 = facts.machine.lower() in {"x86_64", "amd64", "i686"}
    if not x86 or not facts.cpu_features or "avx2" in facts.cpu_features:
        return HostFinding("cpu", CheckResult.OK, detail)
    hint = (
        "in a virtual machine pass the host's CPU through (`-cpu host`); else run the model on "
        "a GPU or another host"
    )
    return HostFinding(
        "cpu", CheckResult.WARNING, f"{detail}; without AVX2 llama.cpp is slow", hint
    )


def memory_finding(total_bytes: int | None, available_bytes: int | None) -> HostFinding:
    free = total_bytes if available_bytes is None else available_bytes
    if free is None:
        return HostFinding("memory", CheckResult.OK, "size unknown")
    detail = f"{format_bytes(free)} available"
    if total_bytes:
        detail += f" of {format_bytes(total_bytes)}"
    if free >= MEMORY_WARNING_BYTES:
        return HostFinding("memory", CheckResult.OK, detail)
    if free < MEMORY_PROBLEM_BYTES:
        verdict = CheckResult.PROBLEM
    else:
        verdict = CheckResult.WARNING
    hint = (
        "end other programs or raise the container's limit until "
        f"{format_bytes(MEMORY_WARNING_BYTES)} are free"
    )
    return HostFinding("memory", verdict, detail, hint)


def open_files_finding(soft: int | None, hard: int | None) -> HostFinding:
    if soft is None:
        return HostFinding("open files", CheckResult.OK, "no limit")
    if soft >= OPEN_FILES_WARNING:
        return HostFinding("open files", CheckResult.OK, f"limit {soft}")
    detail = f"limit {soft}; each agent takes two or more"
    unit = f"`LimitNOFILE={OPEN_FILES_WANTED}` in the systemd unit"
    if hard is not None and hard < OPEN_FILES_WARNING:
        hint = (
            f"the hard limit is {hard}: as root raise `nofile` in /etc/security/limits.conf, or "
            f"set {unit}"
        )
    else:
        limit = OPEN_FILES_WANTED if hard is None else min(hard, OPEN_FILES_WANTED)
        hint = f"run `ulimit -n {limit}` in the shell that starts skep, or set {unit}"
    return HostFinding("open files", CheckResult.WARNING, detail, hint)


def disk_finding(path_label: str, free_bytes: int, need_bytes: int) -> HostFinding:
    """Judge the space of a disk. `need_bytes`: what is still to be written there."""
    detail = f"{format_bytes(free_bytes)} free in {path_label}"
    if free_bytes >= need_bytes + DISK_SPARE_BYTES:
        return HostFinding("disk", CheckResult.OK, detail)
    if free_bytes < need_bytes:
        verdict = CheckResult.PROBLEM
    else:
        verdict = CheckResult.WARNING
    missing = format_bytes(need_bytes + DISK_SPARE_BYTES - free_bytes)
    hint = f"free {missing} more there, or choose a folder on another disk"
    return HostFinding("disk", verdict, f"{detail}, {format_bytes(need_bytes)} needed", hint)
