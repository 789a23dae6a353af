"""What `nvidia-smi` says: parsers of its texts, and the runner that asks for them.

Knows the texts of drivers 470 to 610; a field the driver does not tell is None. Serial numbers are not asked for.
"""

from __future__ import annotations

import csv
import re
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import msgspec

from skep.catalog.gpus import Gpu
from skep.units import MIB

FIELDS = (
    "index", "name", "memory.total", "compute_cap", "pcie.link.gen.current", "pcie.link.gen.max",
    "pcie.link.width.current", "pcie.link.width.max", "power.limit", "driver_version",
)  # fmt: skip

T = TypeVar("T")
Links = tuple[tuple[int, int, str], ...]


class NvidiaReport(msgspec.Struct, frozen=True):
    """`error` is set when nvidia-smi is here and fails; without nvidia-smi all is empty and `error` is None."""

    gpus: tuple[Gpu, ...] = ()
    driver_version: str | None = None
    cuda_version: str | None = None
    links: Links = ()
    error: str | None = None


def parse_gpus(csv_text: str) -> tuple[Gpu, ...]:
    """Reads the answer to `--query-gpu=... --format=csv`, columns in any order; error text gives no GPUs."""
    return tuple(_gpu(row) for row in _rows(csv_text))


def parse_driver_version(csv_text: str) -> str | None:
    versions = (_known(row.get("driver_version")) for row in _rows(csv_text))
    return next((version for version in versions if version), None)


def parse_cuda_version(text: str) -> str | None:
    """The header says `CUDA Version: 12.8`, from driver 610 on `CUDA UMD Version: 13.3`."""
    match = re.search(r"CUDA(?: UMD)? Version\s*:\s*(\d+\.\d+)", text)
    return match[1] if match else None


def parse_links(topo_text: str) -> Links:
    """Return one (gpu, gpu, kind) per pair, from the matrix of `nvidia-smi topo -m`; network cards are skipped."""
    lines = [line.split() for line in re.sub(r"\x1b\[[0-9;]*m", "", topo_text).splitlines()]
    header = next((words for words in lines if "GPU0" in words[:1]), [])
    columns = {place: gpu for place, word in enumerate(header) if (gpu := _gpu_number(word)) is not None}
    links = []
    for words in lines:
        row = _gpu_number(words[0]) if words else None
        if row is None or words == header:
            continue
        cells = dict(enumerate(words[1:]))
        links += [(row, gpu, cells[at]) for at, gpu in columns.items() if row < gpu and at in cells]
    return tuple(sorted(links))


def read_nvidia(nvidia_smi: str = "nvidia-smi", *, timeout_s: float = 10.0) -> NvidiaReport:
    """Asks for cards, CUDA version and links, `timeout_s` seconds at most for each; never raises."""
    try:
        status, text = _query(nvidia_smi, timeout_s)
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
        said = next((line for line in lines if line and not re.match(r"index,|\d+, ", line)), None)
        complaint = said or f"nvidia-smi ended with status {status} and said nothing"
    if not gpus:
        return NvidiaReport(error=complaint)
    header = _ask_or_nothing(nvidia_smi, timeout_s)
    topo = _ask_or_nothing(nvidia_smi, timeout_s, "topo", "-m") if len(gpus) > 1 else ""
    return NvidiaReport(gpus, parse_driver_version(text), parse_cuda_version(header), parse_links(topo), complaint)


def _query(nvidia_smi: str, timeout_s: float) -> tuple[int, str]:
    """Drops each field that this driver does not know, such as `compute_cap` before driver 510, and asks again."""
    fields = list(FIELDS)
    while True:
        status, text = ask_smi(nvidia_smi, timeout_s, f"--query-gpu={','.join(fields)}", "--format=csv")
        match = re.search(r'Field "([^"]+)" is not a valid field', text)
        if match is None or match[1] not in fields:
            return status, text
        fields.remove(match[1])


def _ask_or_nothing(nvidia_smi: str, timeout_s: float, *args: str) -> str:
    try:
        status, text = ask_smi(nvidia_smi, timeout_s, *args)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return text if status == 0 else ""


def ask_smi(nvidia_smi: str, timeout_s: float, *args: str) -> tuple[int, str]:
    """No `with` here: a card that fell off the bus leaves nvidia-smi unkillable, and waiting for it never ends."""
    pipes: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
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
    lines = [[cell.strip() for cell in row] for row in csv.reader(csv_text.splitlines())]
    start = next((at for at, cells in enumerate(lines) if "index" in cells and len(cells) > 1), len(lines))
    names = [cell.partition(" [")[0] for cell in lines[start]] if start < len(lines) else []
    rows = [dict(zip(names, cells, strict=False)) for cells in lines[start + 1 :]]
    return [row for row in rows if row.get("index", "").isdecimal()]


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
    return None if not cell or cell.startswith("[") or cell.upper() == "N/A" else cell


def _number(cell: str | None) -> float | None:
    match = re.match(r"\d+(?:\.\d+)?", cell or "")
    return float(match[0]) if match else None


def _mib(cell: str | None) -> int | None:
    number = _number(cell)
    return None if number is None else round(number * MIB)


def _count(cell: str | None) -> int | None:
    number = _number(cell)
    return int(number) if number else None


def _gpu_number(word: str) -> int | None:
    match = re.fullmatch(r"GPU(\d+)", word)
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
    """Empty without nvidia-smi, or where it fails; never raises. Unified memory is told by neither number."""
    rows = _rows(_ask_or_nothing("nvidia-smi", 10.0, "--query-gpu=index,memory.total,memory.used", "--format=csv"))
    return tuple(
        GpuCard(int(row["index"]), _mib(row.get("memory.total")), _mib(row.get("memory.used"))) for row in rows
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

    What comes after one that is not there, or that was named before, is not there either, as CUDA has it.
    """
    chosen: list[T] = []
    for word in (word.strip() for word in visible.split(",")):
        numbered = word.isdecimal()
        found = [card for name, card in by_name.items() if name == word or (not numbered and name.startswith(word))]
        if len(found) != 1 or not word or found[0] in chosen:
            break
        chosen += found
    return tuple(chosen)
