"""How full each NVIDIA card is now."""

from __future__ import annotations

import csv
import subprocess
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


def _mib(cell: str) -> int | None:
    return int(cell) * MIB if cell.isdecimal() else None
