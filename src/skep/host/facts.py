"""Reads what this machine is. What cannot be read is None; no host name, user name or serial
number is kept.

GPUs are what `nvidia-smi` says: texts of drivers 510 to 610; a field the driver does not tell is
None."""

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
_NUMBER = re.compile(
    r"[0-9]{1,12}+(?:\.[0-9]{1,6})?(?![0-9e])"
)  # of nvidia-smi: a longer one is none
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
    """Reads the answer to `--query-gpu=... --format=csv`, columns in any order; error text gives
    no GPUs.
    """
    return tuple(_gpu(row) for row in _rows(csv_text))


def parse_driver_version(csv_text: str) -> str | None:
    versions = (_known(row.get("driver_version")) for row in _rows(csv_text))
    return next((version for version in versions if version), None)


def parse_cuda_version(text: str) -> str | None:
    """The header says `CUDA Version: 12.8`, from driver 610 on `CUDA UMD Version: 13.3`."""
    match = re.search(r"CUDA(?: UMD)? Version\s*:\s*(\d{1,4}\.\d{1,4})(?!\d)", text)
    return match[1] if match else None


def parse_links(topo_text: str) -> Links:
    """Return one (gpu, gpu, kind) per pair, from the matrix of `nvidia-smi topo -m`; network cards
    are skipped.
    """
    lines = [line.split() for line in re.sub(r"\x1b\[[0-9;]*m", "", topo_text).splitlines()]
    header = next((words for words in lines if "GPU0" in words[:1]), [])
    columns = {
        place: gpu for place, word in enumerate(header) if (gpu := _gpu_number(word)) is not None
    }
    links = []
    for words in lines:
        row = _gpu_number(words[0]) if words else None
        if row is None or words == header:
            continue
        cells = dict(enumerate(words[1:]))
        links += [
            (row, gpu, cells[at]) for at, gpu in columns.items() if row < gpu and at in cells
        ]
    return tuple(sorted(links))


def read_nvidia(nvidia_smi: str = "nvidia-smi", *, timeout_s: float = 10.0) -> NvidiaReport:
    """Asks for cards, CUDA version and links, `timeout_s` seconds at most for each;
    never raises.
    """
    try:
        status, text = ask_smi(
            nvidia_smi, timeout_s, f"--query-gpu={','.join(FIELDS)}", "--format=csv"
        )
    except FileNotFoundError:
        return NvidiaReport()
    except subprocess.TimeoutExpired:
        return NvidiaReport(error=f"nvidia-smi did not answer within {timeout_s:g} s")
    except OSError as error:
        return NvidiaReport(error=f"nvidia-smi could not be started: {error.strerror}")
    gpus = parse_gpus(text)
    complaint = None
    if status != 0 or not gpus:
        lines = (line.strip() for line in text.splitlines())
        line = next((line for line in lines if line and not re.match(r"index,|\d+, ", line)), None)
        complaint = one_line(line) or f"nvidia-smi ended with status {status} and said nothing"
    if not gpus:
        return NvidiaReport(error=complaint)
    header = _ask_or_nothing(nvidia_smi, timeout_s)
    if len(gpus) > 1:
        topo = _ask_or_nothing(nvidia_smi, timeout_s, "topo", "-m")
    else:
        topo = ""
    return NvidiaReport(
        gpus, parse_driver_version(text), parse_cuda_version(header), parse_links(topo), complaint
    )


def _ask_or_nothing(nvidia_smi: str, timeout_s: float, *args: str) -> str:
    try:
        status, text = ask_smi(nvidia_smi, timeout_s, *args)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return text if status == 0 else ""


def ask_smi(nvidia_smi: str, timeout_s: float, *args: str) -> tuple[int, str]:
    """No `with` here: a card that fell off the bus leaves nvidia-smi unkillable, and waiting for
    it never ends.
    """
    pipes: dict[str, Any] = {
        "stdin": subprocess.DEVNULL,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.STDOUT,
    }
    process = subprocess.Popen([nvidia_smi, *args], **pipes, text=True, errors="replace")
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
    # Nothing is in quotes.
    lines = [[cell.strip() for cell in line.split(",")] for line in csv_text.splitlines()]
    start = next(
        (at for at, cells in enumerate(lines) if "index" in cells and len(cells) > 1), len(lines)
    )
    if start < len(lines):
        names = [cell.partition(" [")[0] for cell in lines[start]]
    else:
        names = []
    rows = [dict(zip(names, cells, strict=False)) for cells in lines[start + 1 :]]
    return [row for row in rows if _INDEX.fullmatch(row.get("index", ""))]


def _gpu(row: dict[str, str]) -> Gpu:
    return Gpu(
        index=int(row["index"]),
        name=_known(row.get("name")) or "NVIDIA GPU",
        memory_bytes=_mib(row.get("memory.total")),
        compute_capability=_known(row.get("compute_cap")),
        pcie_generation=_count(row.get("pcie.link.gen.current")),
        pcie_generation_max=_count(row.get("pcie.link.gen.max")),
        pcie_lanes=_count(row.get("pcie.link.width.current")),
        pcie_lanes_max=_count(row.get("pcie.link.width.max")),
        power_limit_w=_number(row.get("power.limit")),
    )


def _known(cell: str | None) -> str | None:
    is_told = (
        cell and len(cell) <= _LONGEST_CELL and not cell.startswith("[") and cell.upper() != "N/A"
    )
    return cell if is_told else None


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
    """Empty without nvidia-smi, or where it fails; never raises.

    Unified memory is told by neither number.
    """
    rows = _rows(
        _ask_or_nothing(
            "nvidia-smi", 10.0, "--query-gpu=index,memory.total,memory.used", "--format=csv"
        )
    )
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

    What comes after one that is not there, or that was named before, is not there either, as CUDA
    has it."""
    chosen: list[T] = []
    for word in (word.strip() for word in visible.split(",")):
        numbered = word.isdecimal()
        found = [
            card
            for name, card in by_name.items()
            if name == word or (not numbered and name.startswith(word))
        ]
        if len(found) != 1 or not word or found[0] in chosen:
            break
        chosen += found
    return tuple(chosen)


FEATURES = (
    "f16c", "fma", "avx", "avx2", "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16", "amx_int8",
    "asimd", "asimddp", "i8mm", "bf16", "sve",
)  # fmt: skip


def parse_cpu_model(cpuinfo: str) -> str | None:
    """ "AMD Ryzen 9 5950X 16-Core Processor"; Linux on ARM names no model."""
    names = (processor.get("model name") for processor in _processors(cpuinfo))
    return next((" ".join(name.split()) for name in names if name), None)


def parse_cpu_features(cpuinfo: str) -> tuple[str, ...]:
    """Return those of `FEATURES` that every processor has: threads may run on any of them."""
    flags = [
        set((p.get("flags") or p.get("Features") or "").split()) for p in _processors(cpuinfo)
    ]
    flags = [flag for flag in flags if flag]
    return tuple(name for name in FEATURES if flags and all(name in flag for flag in flags))


def _processors(cpuinfo: str) -> Iterator[dict[str, str]]:
    for block in cpuinfo.split("\n\n"):
        pairs = (line.partition(":") for line in block.splitlines())
        processor = {key.strip(): value.strip() for key, colon, value in pairs if colon}
        if processor:
            yield processor


_CACHES = ("inactive_file", "active_file", "slab_reclaimable")  # in memory.stat


class CgroupLimits(msgspec.Struct, frozen=True):
    """None where no group on the way to the root sets a limit."""

    memory_bytes: int | None = None
    memory_available_bytes: int | None = None
    cpus: float | None = None


def read_limits(mount: Path, own_groups: str) -> CgroupLimits:
    """`own_groups` is the text of /proc/self/cgroup.

    The tightest limit from the own group up to the root counts.
    """
    folders = list(_folders(mount, own_groups))
    memory = [_memory_limit(folder) for folder in folders]
    limits = [limit for limit, _ in memory if limit is not None]
    available = [free for _, free in memory if free is not None]
    cpus = [
        share
        for folder in folders
        if (share := parse_cpu_max(_text(folder / "cpu.max"))) is not None
    ]
    return CgroupLimits(
        min(limits, default=None), min(available, default=None), min(cpus, default=None)
    )


def read_oom_kills(
    *, proc: Path = Path("/proc"), cgroup: Path = Path("/sys/fs/cgroup")
) -> int | None:
    """Return the kernel's count for this control group, else for the whole machine; None: it
    counts nowhere.
    """
    files = [
        folder / "memory.events" for folder in _folders(cgroup, _text(proc / "self" / "cgroup"))
    ]
    counts = (parse_counters(_text(path)).get("oom_kill") for path in (*files, proc / "vmstat"))
    return next((count for count in counts if count is not None), None)


def parse_cpu_max(text: str) -> float | None:
    """ "150000 100000" is 1.5 CPUs; "max 100000" is no limit."""
    match text.split():
        case [quota, period] if _is_count(quota) and _is_count(period) and int(period):
            return int(quota) / int(period)
    return None


def _is_count(text: str) -> bool:
    """Return whether it is a number as the kernel writes it: 20 digits hold 64 bits."""
    return text.isdecimal() and len(text) <= 20


def parse_counters(text: str) -> dict[str, int]:
    """Return lines of `name value`, as in memory.stat; /proc/meminfo's `Name: value kB` gives
    bytes.
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
    """(limit, available).

    File caches count as available: the kernel drops them before it kills.
    """
    limit_bytes = _bytes(folder / "memory.max")
    used_bytes = _bytes(folder / "memory.current")
    if limit_bytes is None or used_bytes is None:
        return limit_bytes, limit_bytes
    stat = parse_counters(_text(folder / "memory.stat"))
    held = max(0, used_bytes - sum(stat.get(name, 0) for name in _CACHES))
    return limit_bytes, max(0, limit_bytes - held)


def _folders(root: Path, own_groups: str) -> Iterator[Path]:
    """A container may see the host's path in /proc/self/cgroup yet mount its own group as the
    root: try all.
    """
    path = next((line[3:] for line in own_groups.splitlines() if line.startswith("0::")), "/")
    pure_posix_path = PurePosixPath(path.lstrip("/"))
    if ".." not in pure_posix_path.parts:
        yield from (
            root / folder
            for folder in (pure_posix_path, *pure_posix_path.parents)
            if folder != PurePosixPath()
        )
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
    """Without `nvidia`, nvidia-smi is asked.

    A container's limits count where they are below the machine's.
    """
    nvidia = read_nvidia() if nvidia is None else nvidia
    cpuinfo = _text(proc / "cpuinfo")
    limits = read_limits(cgroup, _text(proc / "self" / "cgroup"))
    counters = parse_counters(_text(proc / "meminfo"))
    if "MemTotal" not in counters:
        with suppress(
            AttributeError, OSError, ValueError
        ):  # macOS has no /proc, but tells its pages
            counters["MemTotal"] = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    soft, hard = _open_files()
    return HostFacts(
        os=f"{platform.system()} {platform.release()}".strip(),
        machine=platform.machine(),
        python=platform.python_version(),
        cpu_model=parse_cpu_model(cpuinfo),
        # a share of one is rounded down: a thread more would be throttled
        cpu_cores=max(1, min(cores, cores if limits.cpus is None else int(limits.cpus))),
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
    """Return how many of our `cores` others keep busy, by the load of the last minute, rounded; at
    most those that run now: what has just ended is in the load. Cores of the machine that are not
    ours (`total`) take their share first."""
    fields = _text(proc / "loadavg").split()
    try:
        # One of them asks.
        busy = min(round(float(fields[0])), int(fields[3].partition("/")[0]) - 1)
    except (IndexError, OverflowError, ValueError):
        return 0
    return min(cores, max(0, busy - ((total or os.cpu_count() or cores) - cores)))


def host_json(facts: HostFacts) -> dict[str, Any]:
    """Return the facts as plain JSON values, to be stored with a run."""
    stored: dict[str, Any] = json.loads(json.dumps(msgspec.to_builtins(facts)))
    return stored


def lasting_json(facts: HostFacts) -> dict[str, Any]:
    """`host_json` without what changes between two runs on the same machine: the part to take a
    fingerprint of.
    """
    lasting = {key: value for key, value in host_json(facts).items() if key not in _CHANGING}
    lasting["gpus"] = [
        {k: v for k, v in gpu.items() if k != "pcie_generation"} for gpu in lasting["gpus"]
    ]
    return lasting


def _open_files() -> tuple[int | None, int | None]:
    try:
        import resource
    except ImportError:
        return None, None
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return (None if soft < 0 else soft), (None if hard < 0 else hard)


def _smaller(a: int | None, b: int | None) -> int | None:
    return min((n for n in (a, b) if n is not None), default=None)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


BUFFER_BYTES = 128 * MIB  # larger than caches are
MEASURE_S = 0.4
TRIES = 3


def memory_bandwidth_gbs(cores: int) -> float:
    """10^9 bytes a second, read and written; the best of a few tries.

    The kernel copies, so other threads go on.
    """
    if hasattr(os, "memfd_create"):
        in_memory = os.fdopen(os.memfd_create("skep-bandwidth"), "r+b")
    else:
        in_memory = None
    with in_memory or tempfile.TemporaryFile() as source:  # read back from the page cache
        source.write(bytes(range(256)) * (BUFFER_BYTES // 256))
        source.flush()
        return max(
            _once(source.fileno(), cores, MEASURE_S / TRIES, BUFFER_BYTES) for _ in range(TRIES)
        )


def _once(source: int, cores: int, seconds: float, size: int) -> float:
    copied = [0] * cores
    buffers = [bytearray(size // 2) for _ in range(cores)]
    for buffer in buffers:
        os.preadv(source, [buffer], 0)  # its pages are there before the clock runs
    began = time.perf_counter()

    def copy(place: int) -> None:
        offset = (place % 2) * (size // 2)
        while time.perf_counter() - began < seconds:
            copied[place] += os.preadv(source, [buffers[place]], offset)

    with ThreadPoolExecutor(
        cores
    ) as pool:  # Ctrl-C waits for them: what they read is closed after that
        list(pool.map(copy, range(cores)))
    return 2 * sum(copied) / (time.perf_counter() - began) / 1e9
