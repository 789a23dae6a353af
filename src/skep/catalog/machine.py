"""What a machine is: its cards, processor and memory. `None` means unknown."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Gpu:
    index: int
    name: str
    memory_bytes: int | None
    compute_capability: str | None = None
    pcie_generation: int | None = None  # as negotiated now; an idle card may drop to 1
    pcie_generation_max: int | None = None
    pcie_lanes: int | None = None
    pcie_lanes_max: int | None = None
    power_limit_w: float | None = None


@dataclass(frozen=True, slots=True)
class HostFacts:
    os: str
    machine: str  # x86_64, aarch64
    python: str
    cpu_model: str | None
    cpu_cores: int
    cpu_features: tuple[str, ...]
    memory_bytes: int | None
    memory_available_bytes: int | None
    open_files_soft: int | None
    open_files_hard: int | None
    driver_version: str | None = None
    cuda_version: str | None = None  # the newest CUDA that the driver carries
    gpus: tuple[Gpu, ...] = ()
    links: tuple[tuple[int, int, str], ...] = ()  # (gpu, gpu, "NV4" | "PIX" | "PHB" | ...)
