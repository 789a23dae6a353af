"""What a GPU is to the planner: sizes and speeds from data sheets, each with where it was read and how sure that is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class Origin:
    """Where one value comes from. `confidence`: A read in a data sheet, B derived, C one unconfirmed source."""

    source: str
    confidence: str


def no_origins() -> Mapping[str, Origin]:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Device:
    """One GPU (or a chip with memory of its own). `None`: nobody told. Rates are dense, with FP32 accumulation."""

    id: str  # a lower-case slug: `rtx-3090`
    title: str
    vendor: str  # nvidia, amd, intel, apple, huawei
    arch: str
    memory_gib: float
    bandwidth_gbs: float  # 10^9 bytes a second
    fp16_tflops: float | None
    fp8_tflops: float | None = None
    fp4_tflops: float | None = None
    int8_tops: float | None = None
    cache_mb: float | None = None
    units: int | None = None  # streaming multiprocessors or compute units
    compute_capability: float | None = None  # NVIDIA only: 8.6
    formats: tuple[str, ...] = ("fp16",)  # in hardware: fp16, bf16, int8, fp8, fp4
    pcie: str | None = None  # "4.0 x16"
    nvlink: str | None = None
    nvlink_gbs: float | None = None  # one direction
    tdp_w: float | None = None
    unified_memory: bool = False  # the system's memory: not all of it is for the model
    origins: Mapping[str, Origin] = field(default_factory=no_origins, compare=False, hash=False)

    @property
    def family(self) -> str:
        """`ampere`, `ada`, `blackwell`, `rdna4`: what kernels are written for."""
        return self.arch.lower().replace(" ", "-")
