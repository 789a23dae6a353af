"""How full each NVIDIA card is now."""

from __future__ import annotations

import csv
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from skep.host.nvidia import ask_smi
from skep.units import MIB


@dataclass(frozen=True, slots=True)
class GpuMemory:
    index: int
    total_bytes: int | None
    used_bytes: int | None


def read_gpu_memory(nvidia_smi: str = "nvidia-smi", *, timeout_s: float = 10.0) -> tuple[GpuMemory, ...]:
    """Empty without nvidia-smi, or where it fails; never raises. Unified memory is told by neither number."""
    try:
        status, text = ask_smi(
            nvidia_smi, timeout_s, "--query-gpu=index,memory.total,memory.used", "--format=csv,noheader,nounits"
        )
    except (OSError, subprocess.TimeoutExpired):
        return ()
    rows = csv.reader(text.splitlines()) if status == 0 else ()
    cells = ([cell.strip() for cell in row] for row in rows)
    return tuple(
        GpuMemory(int(row[0]), _mib(row[1]), _mib(row[2])) for row in cells if len(row) == 3 and row[0].isdecimal()
    )


def visible_gpus(
    gpus: Sequence[GpuMemory], visible: str | None, nvidia_smi: str = "nvidia-smi"
) -> tuple[GpuMemory, ...]:
    """Those that CUDA_VISIBLE_DEVICES names, by number or UUID, in its order; None: all."""
    if visible is None or not gpus:
        return tuple(gpus)
    by_name = {str(gpu.index): gpu for gpu in gpus}
    words = [word.strip() for word in visible.split(",")]
    if any(not word.isdecimal() for word in words):
        by_name |= _by_uuid(gpus, nvidia_smi)
    found: list[GpuMemory] = []
    for word in words:
        fits = (gpu for name, gpu in by_name.items() if name == word or (len(word) > 4 and name.startswith(word)))
        gpu = next(fits, None)
        if gpu is None:
            break  # as CUDA does: what comes after one that is not there is not there
        found.append(gpu)
    return tuple(found)


def _by_uuid(gpus: Sequence[GpuMemory], nvidia_smi: str) -> dict[str, GpuMemory]:
    try:
        _, text = ask_smi(nvidia_smi, 10.0, "--query-gpu=index,uuid", "--format=csv,noheader")
    except (OSError, subprocess.TimeoutExpired):
        return {}
    numbers = {str(gpu.index): gpu for gpu in gpus}
    rows = ([cell.strip() for cell in row] for row in csv.reader(text.splitlines()))
    return {row[1]: numbers[row[0]] for row in rows if len(row) == 2 and row[0] in numbers}


def _mib(cell: str) -> int | None:
    return int(cell) * MIB if cell.isdecimal() else None
