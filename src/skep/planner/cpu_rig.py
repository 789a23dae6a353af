"""A machine without a GPU as the planner sees it: one device whose memory is the machine's and whose cores compute."""

from __future__ import annotations

from dataclasses import replace

from skep.catalog.devices import Device, Origin
from skep.catalog.machine import HostFacts
from skep.planner.setup import Rig
from skep.units import GIB

_CLOCK_GHZ = 3.0  # a guess: the clock under load is not known
# Operations a core and cycle, by the widest unit that llama.cpp has kernels for. Rough: a calibration corrects it.
# Without i8mm, ARM cores are far below what their units could do: on a Neoverse-N1, about 3 with 4-bit weights.
_PER_CYCLE = (("amx_int8", 64), ("avx512f", 64), ("avx2", 32), ("i8mm", 32), ("sve", 16), ("avx", 16), ("asimddp", 8))
_LEAST_PER_CYCLE = 4


def cpu_device(facts: HostFacts, bandwidth_gbs: float, *, measured: bool) -> Device:
    per_cycle = next((width for name, width in _PER_CYCLE if name in facts.cpu_features), _LEAST_PER_CYCLE)
    tflops = facts.cpu_cores * _CLOCK_GHZ * per_cycle / 1000
    told = Origin("copying a large buffer" if measured else "--bandwidth", "C")
    return Device(
        id="cpu", title=facts.cpu_model or "CPU", vendor="cpu", arch="CPU",
        memory_gib=round((facts.memory_bytes or 0) / GIB, 1), bandwidth_gbs=round(bandwidth_gbs, 1),
        fp16_tflops=round(tflops, 3), units=facts.cpu_cores, formats=("fp16", "int8"),
        origins={"bandwidth_gbs": told, "fp16_tflops": Origin("cores x 3 GHz x width of the units", "C")},
    )  # fmt: skip


def cpu_rig(facts: HostFacts, bandwidth_gbs: float, *, measured: bool, replicas: int = 1) -> Rig:
    """Replicas share cores and memory evenly: each is taken for a device of its own."""
    whole = cpu_device(facts, bandwidth_gbs, measured=measured)
    share = replace(
        whole, memory_gib=whole.memory_gib / replicas, bandwidth_gbs=whole.bandwidth_gbs / replicas,
        fp16_tflops=(whole.fp16_tflops or 0.0) / replicas,
    )  # fmt: skip
    title = f"this machine's CPU ({facts.cpu_cores} cores, {whole.bandwidth_gbs:g} GB/s)"
    return Rig((share if replicas > 1 else whole,) * replicas, title=title)
