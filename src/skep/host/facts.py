"""Reads what this machine is. What cannot be read is None; no host name, user name or serial
number is kept.

GPUs are read from `nvidia-smi`, whose texts are known for drivers 510 to 610."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

import msgspec

from skep.catalog.gpus import Gpu, HostFacts
from skep.units import MIB, one_line

FIELDS = (
    "index", "name", "memory.total", "compute_cap", "pcie.link.gen.current", "pcie.link.gen.max",
    "pcie.link.width.current", "pcie.link.width.max", "power.limit", "driver_version",
)  # fmt: skip

_LONGEST_CELL = 200  # characters; what is longer is no fact
_INDEX = re.compile(r"[0-9]{1,4}")
# Of nvidia-smi; a longer one is no number.
_NUMBER = re.compile(r"[0-9]{1,12}+(?:\.[0-9]{1,6})?(?![0-9e])")
T = TypeVar("T")
Links = tuple[tuple[int, int, str], ...]


class NvidiaReport(msgspec.Struct, frozen=True):
    """`error` is set when nvidia-smi is here and fails; without nvidia-smi all is empty and
    `error` is None.
    """

    gpus: tuple[Gpu, ...] = ()
    driver_version: str | None = None
    cuda_version: str | None = None
    links: Links = ()
    error: str | None = None


def parse_gpus(csv_text: str) -> tuple[Gpu, ...]:
    """Return the GPUs of an answer to `--query-gpu=... --format=csv`, whose columns may have any
    order; none for an error's text.
    """
    return tuple(_gpu(row) for row in _rows(csv_text))


def parse_driver_version(csv_text: str) -> str | None:
    versions = (_text_of(row.get("driver_version")) for row in _rows(csv_text))
    return next((version for version in versions if version), None)


def parse_cuda_version(text: str) -> str | None:
    """Return the version in nvidia-smi's header: `CUDA Version: 12.8`, from driver 610 on
    `CUDA UMD Version: 13.3`.
    """
    match = re.search(r"CUDA(?: UMD)? Version\s*:\s*(\d{1,4}\.\d{1,4})(?!\d)", text)
    return match[1] if match else None


def parse_links(topo_text: str) -> Links:
    """Return one (gpu, gpu, kind) per pair, from the matrix of `nvidia-smi topo -m`; network cards
    are skipped.
    """
    plain_text = re.sub(r"\x1b\[[0-9;]*m", "", topo_text)
    lines = [line.split() for line in plain_text.splitlines()]
    header = next((words for words in lines if "GPU0" in words[:1]), [])
    gpus = [_gpu_number(word) for word in header]
    links = []
    for words in lines:
        row = _gpu_number(words[0]) if words else None
        if row is None or words == header:
            continue
        for gpu, kind in zip(gpus, words[1:], strict=False):
            if gpu is not None and row < gpu:
                links.append((row, gpu, kind))
    return tuple(sorted(links))


def read_nvidia(nvidia_smi: str = "nvidia-smi", *, timeout_s: float = 10.0) -> NvidiaReport:
    """Ask for cards, CUDA version and links, for at most `timeout_s` each. Never raises."""
    query = f"--query-gpu={','.join(FIELDS)}"
    try:
        status, text = ask_smi(nvidia_smi, timeout_s, query, "--format=csv")
    except FileNotFoundError:
        return NvidiaReport()
    except subprocess.TimeoutExpired:
        return NvidiaReport(error=f"nvidia-smi did not answer within {timeout_s:g} s")
    except OSError as error:
        return NvidiaReport(error=f"nvidia-smi could not be started: {error.strerror}")
    gpus = parse_gpus(text)
    failure = None
    if status != 0 or not gpus:
        lines = (line.strip() for line in text.splitlines())
        line = next((line for line in lines if line and not re.match(r"index,|\d+, ", line)), None)
        failure = one_line(line) or f"nvidia-smi ended with status {status} and said nothing"
    if not gpus:
        return NvidiaReport(error=failure)
    header = _ask_or_nothing(nvidia_smi, timeout_s)
    topology = ""
    if len(gpus) > 1:
        topology = _ask_or_nothing(nvidia_smi, timeout_s, "topo", "-m")
    return NvidiaReport(
        gpus=gpus,
        driver_version=parse_driver_version(text),
        cuda_version=parse_cuda_version(header),
        links=parse_links(topology),
        error=failure,
    )


def _ask_or_nothing(nvidia_smi: str, timeout_s: float, *args: str) -> str:
    try:
        status, text = ask_smi(nvidia_smi, timeout_s, *args)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return text if status == 0 else ""


def ask_smi(nvidia_smi: str, timeout_s: float, *args: str) -> tuple[int, str]:
    """Return the exit status and the output of nvidia-smi. Raise TimeoutExpired or OSError.

    No `with` here: a card that fell off the bus leaves nvidia-smi unkillable, and waiting for it
    never ends.
    """
    process = subprocess.Popen(
        [nvidia_smi, *args],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    try:
        text, _ = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=1)
        if process.stdout is not None:
            process.stdout.close()
        raise
    return process.returncode, text


def _rows(csv_text: str) -> list[dict[str, str]]:
    """Return the rows below the header, each by the names of its columns; nothing is in quotes."""
    rows = []
    names: list[str] = []
    for line in csv_text.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if names:
            rows.append(dict(zip(names, cells, strict=False)))
        elif "index" in cells and len(cells) > 1:
            names = [cell.partition(" [")[0] for cell in cells]
    return [row for row in rows if _INDEX.fullmatch(row.get("index", ""))]


def _gpu(row: dict[str, str]) -> Gpu:
    return Gpu(
        index=int(row["index"]),
        name=_text_of(row.get("name")) or "NVIDIA GPU",
        memory_bytes=_mib(row.get("memory.total")),
        compute_capability=_text_of(row.get("compute_cap")),
        pcie_generation=_count(row.get("pcie.link.gen.current")),
        pcie_generation_max=_count(row.get("pcie.link.gen.max")),
        pcie_lanes=_count(row.get("pcie.link.width.current")),
        pcie_lanes_max=_count(row.get("pcie.link.width.max")),
        power_limit_w=_number(row.get("power.limit")),
    )


def _text_of(cell: str | None) -> str | None:
    """Return the text of a cell; None where the driver reports none, as by `[N/A]`."""
    if not cell or len(cell) > _LONGEST_CELL or cell.startswith("[") or cell.upper() == "N/A":
        return None
    return cell


def _number(cell: str | None) -> float | None:
    match = _NUMBER.match(cell or "")
    return float(match[0]) if match else None


def _mib(cell: str | None) -> int | None:
    number = _number(cell)
    if number is None:
        return None
    return round(number * MIB)


def _count(cell: str | None) -> int | None:
    number = _number(cell)
    return int(number) if number else None


def _gpu_number(word: str) -> int | None:
    match = re.fullmatch(r"GPU(\d{1,4})", word)
    return int(match[1]) if match else None


class GpuCard(msgspec.Struct, frozen=True):
    """One GPU of this machine. None: the driver does not say."""

    index: int
    total_bytes: int | None = None
    used_bytes: int | None = None

    @property
    def name(self) -> str:
        return f"gpu{self.index}"


def read_gpu_memory() -> tuple[GpuCard, ...]:
    """Return the memory of each GPU; empty without nvidia-smi, or where it fails. Never raises.

    Unified memory is in neither number.
    """
    query = "--query-gpu=index,memory.total,memory.used"
    rows = _rows(_ask_or_nothing("nvidia-smi", 10.0, query, "--format=csv"))
    return tuple(
        GpuCard(int(row["index"]), _mib(row.get("memory.total")), _mib(row.get("memory.used")))
        for row in rows
    )


def visible_gpus(gpus: Sequence[GpuCard], visible: str | None) -> tuple[GpuCard, ...]:
    """Return those that CUDA_VISIBLE_DEVICES names, by number or UUID, in its order; None: all."""
    if visible is None or not gpus:
        return tuple(gpus)
    by_name = {str(gpu.index): gpu for gpu in gpus}
    if any(not word.strip().isdecimal() for word in visible.split(",")):
        rows = _rows(_ask_or_nothing("nvidia-smi", 10.0, "--query-gpu=index,uuid", "--format=csv"))
        by_name |= {row["uuid"]: by_name[row["index"]] for row in rows if row["index"] in by_name}
    return named_cards(visible, by_name)


def named_cards(visible: str, by_name: Mapping[str, T]) -> tuple[T, ...]:
    """Return the cards that CUDA_VISIBLE_DEVICES names, by number or the beginning of a UUID.

    As in CUDA, the list ends before the first that is not there or was named before."""
    chosen: list[T] = []
    for word in (word.strip() for word in visible.split(",")):
        is_number = word.isdecimal()
        cards = [
            card
            for name, card in by_name.items()
            if name == word or (not is_number and name.startswith(word))
        ]
        if len(cards) != 1 or not word or cards[0] in chosen:
            break
        chosen += cards
    return tuple(chosen)


CPU_FEATURES = (
    "f16c", "fma", "avx", "avx2", "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16", "amx_int8",
    "asimd", "asimddp", "i8mm", "bf16", "sve",
)  # fmt: skip


def parse_cpu_model(cpuinfo: str) -> str | None:
    """Return the model, "AMD Ryzen 9 5950X 16-Core Processor"; Linux on ARM names none."""
    names = (processor.get("model name") for processor in _processors(cpuinfo))
    return next((" ".join(name.split()) for name in names if name), None)


def parse_cpu_features(cpuinfo: str) -> tuple[str, ...]:
    """Return those of `CPU_FEATURES` that every processor has: threads may run on any of them."""
    flag_lists = [
        (processor.get("flags") or processor.get("Features") or "").split()
        for processor in _processors(cpuinfo)
    ]
    flag_sets = [set(flags) for flags in flag_lists if flags]
    if not flag_sets:
        return ()
    shared = set[str].intersection(*flag_sets)
    return tuple(name for name in CPU_FEATURES if name in shared)


def _processors(cpuinfo: str) -> Iterator[dict[str, str]]:
    for block in cpuinfo.split("\n\n"):
        processor = {}
        for line in block.splitlines():
            key, colon, value = line.partition(":")
            if colon:
                processor[key.strip()] = value.strip()
        if processor:
            yield processor


_CACHES = ("inactive_file", "active_file", "slab_reclaimable")  # in memory.stat


class CgroupLimits(msgspec.Struct, frozen=True):
    """The limits of a control group. None: no group on the way to the root sets one."""

    memory_bytes: int | None = None
    memory_available_bytes: int | None = None
    cpus: float | None = None


def read_limits(mount: Path, own_groups: str) -> CgroupLimits:
    """Return the tightest limits from the own group up to the root.

    `own_groups` is the text of /proc/self/cgroup.
    """
    limits: list[int] = []
    available: list[int] = []
    cpus: list[float] = []
    for folder in _folders(mount, own_groups):
        limit_bytes, available_bytes = _memory_limit(folder)
        share = parse_cpu_max(_text(folder / "cpu.max"))
        if limit_bytes is not None:
            limits.append(limit_bytes)
        if available_bytes is not None:
            available.append(available_bytes)
        if share is not None:
            cpus.append(share)
    return CgroupLimits(
        memory_bytes=min(limits, default=None),
        memory_available_bytes=min(available, default=None),
        cpus=min(cpus, default=None),
    )


def read_oom_kills(
    *, proc: Path = Path("/proc"), cgroup: Path = Path("/sys/fs/cgroup")
) -> int | None:
    """Return how many processes the kernel killed for lack of memory: in this control group, else
    on the whole machine; None: it counts nowhere.
    """
    folders = _folders(cgroup, _text(proc / "self" / "cgroup"))
    files = [*(folder / "memory.events" for folder in folders), proc / "vmstat"]
    counts = (parse_counters(_text(path)).get("oom_kill") for path in files)
    return next((count for count in counts if count is not None), None)


def parse_cpu_max(text: str) -> float | None:
    """Return the limit in CPUs: "150000 100000" is 1.5, "max 100000" is None."""
    match text.split():
        case [quota, period] if _is_count(quota) and _is_count(period) and int(period):
            return int(quota) / int(period)
    return None


def _is_count(text: str) -> bool:
    """Return whether it is a number as the kernel writes it: 20 digits hold 64 bits."""
    return text.isdecimal() and len(text) <= 20


def parse_counters(text: str) -> dict[str, int]:
    """Return the values of lines `name value`, as in memory.stat, and in bytes those of lines
    `Name: value kB`, as in /proc/meminfo.
    """
    counters = {}
    for line in text.splitlines():
        match line.split():
            case [name, value] if _is_count(value):
                counters[name.rstrip(":")] = int(value)
            case [name, value, "kB"] if _is_count(value):
                counters[name.rstrip(":")] = int(value) * 1024
    return counters


def _memory_limit(folder: Path) -> tuple[int | None, int | None]:
    """Return a group's limit and what is available of it, in bytes; None where it has no limit.

    File caches count as available: the kernel drops them before it kills.
    """
    limit_bytes = _bytes(folder / "memory.max")
    used_bytes = _bytes(folder / "memory.current")
    if limit_bytes is None or used_bytes is None:
        return limit_bytes, limit_bytes
    stat = parse_counters(_text(folder / "memory.stat"))
    cached_bytes = sum(stat.get(name, 0) for name in _CACHES)
    held_bytes = max(0, used_bytes - cached_bytes)
    return limit_bytes, max(0, limit_bytes - held_bytes)


def _folders(root: Path, own_groups: str) -> Iterator[Path]:
    """Yield the folders of the own group and of those above it.

    A container may see the host's path in /proc/self/cgroup and yet mount its own group as the
    root: some of them need not exist.
    """
    line = next((line for line in own_groups.splitlines() if line.startswith("0::")), "0::/")
    group = PurePosixPath(line.removeprefix("0::").lstrip("/"))
    if ".." not in group.parts:
        for folder in (group, *group.parents):
            if folder != PurePosixPath():
                yield root / folder
    yield root


def _bytes(path: Path) -> int | None:
    text = _text(path).strip()
    return int(text) if _is_count(text) else None


_CHANGING = ("memory_available_bytes", "open_files_soft", "open_files_hard")


def read_host(
    nvidia: NvidiaReport | None = None,
    *,
    proc: Path = Path("/proc"),
    cgroup: Path = Path("/sys/fs/cgroup"),
) -> HostFacts:
    """Return the facts of this machine. Without `nvidia`, nvidia-smi is asked.

    A container's limits count where they are below the machine's.
    """
    if nvidia is None:
        nvidia = read_nvidia()
    cpuinfo = _text(proc / "cpuinfo")
    limits = read_limits(cgroup, _text(proc / "self" / "cgroup"))
    counters = parse_counters(_text(proc / "meminfo"))
    if "MemTotal" not in counters:
        # macOS has no /proc, but reports its pages.
        with suppress(AttributeError, OSError, ValueError):
            counters["MemTotal"] = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    if limits.cpus is not None:  # a share of a core is rounded down: a thread more is throttled
        cores = max(1, min(cores, int(limits.cpus)))
    soft, hard = _open_files()
    return HostFacts(
        os=f"{platform.system()} {platform.release()}".strip(),
        machine=platform.machine(),
        python=platform.python_version(),
        cpu_model=parse_cpu_model(cpuinfo),
        cpu_cores=cores,
        cpu_features=parse_cpu_features(cpuinfo),
        memory_bytes=_smaller(counters.get("MemTotal"), limits.memory_bytes),
        memory_available_bytes=_smaller(
            counters.get("MemAvailable"), limits.memory_available_bytes
        ),
        open_files_soft=soft,
        open_files_hard=hard,
        driver_version=nvidia.driver_version,
        cuda_version=nvidia.cuda_version,
        gpus=nvidia.gpus,
        links=nvidia.links,
    )


def count_busy_cores(cores: int, *, total: int | None = None, proc: Path = Path("/proc")) -> int:
    """Return how many of our `cores` other programs keep busy, by the load of the last minute.

    It is at most the number of threads that run now, for the load still counts what has just
    ended. Cores of the machine (`total`) that are not ours are taken to be busy first."""
    fields = _text(proc / "loadavg").split()
    try:
        load = round(float(fields[0]))
        running = int(fields[3].partition("/")[0]) - 1  # without the thread that asks
    except (IndexError, OverflowError, ValueError):
        return 0
    not_ours = (total or os.cpu_count() or cores) - cores
    return min(cores, max(0, min(load, running) - not_ours))


def host_json(facts: HostFacts) -> dict[str, Any]:
    """Return the facts as plain JSON values, to be stored with a run."""
    stored: dict[str, Any] = json.loads(json.dumps(msgspec.to_builtins(facts)))
    return stored


def lasting_json(facts: HostFacts) -> dict[str, Any]:
    """`host_json` without what changes between two runs on the same machine: the part to take a
    fingerprint of.
    """
    lasting = {key: value for key, value in host_json(facts).items() if key not in _CHANGING}
    for gpu in lasting["gpus"]:
        gpu.pop("pcie_generation", None)
    return lasting


def _open_files() -> tuple[int | None, int | None]:
    try:
        import resource
    except ImportError:
        return None, None
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return (None if soft < 0 else soft), (None if hard < 0 else hard)


def _smaller(first: int | None, second: int | None) -> int | None:
    return min((number for number in (first, second) if number is not None), default=None)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


BUFFER_BYTES = 128 * MIB  # larger than caches are
MEASURE_S = 0.4
COPY_TRIES = 3


def memory_bandwidth_gbs(cores: int) -> float:
    """Measure in 10^9 bytes a second, read and written; the best of a few tries.

    The kernel copies, so other threads go on.
    """
    in_memory = None
    if hasattr(os, "memfd_create"):
        in_memory = os.fdopen(os.memfd_create("skep-bandwidth"), "r+b")
    with in_memory or tempfile.TemporaryFile() as file:  # read back from the page cache
        file.write(bytes(range(256)) * (BUFFER_BYTES // 256))
        file.flush()
        seconds = MEASURE_S / COPY_TRIES
        return max(
            _copy_gbs(file.fileno(), cores, seconds, BUFFER_BYTES) for _ in range(COPY_TRIES)
        )


def _copy_gbs(source: int, cores: int, seconds: float, size: int) -> float:
    """Copy a file of that size for so long, in one thread a core."""
    copied = [0] * cores
    buffers = [bytearray(size // 2) for _ in range(cores)]
    for buffer in buffers:
        os.preadv(source, [buffer], 0)  # its pages are there before the clock runs
    began = time.perf_counter()

    def copy(place: int) -> None:
        offset = (place % 2) * (size // 2)
        while time.perf_counter() - began < seconds:
            copied[place] += os.preadv(source, [buffers[place]], offset)

    # Ctrl-C waits for the threads: what they read is closed after that.
    with ThreadPoolExecutor(cores) as pool:
        list(pool.map(copy, range(cores)))
    return 2 * sum(copied) / (time.perf_counter() - began) / 1e9
