"""Reads the text of /proc/cpuinfo: the model, and the features that llama.cpp has kernels for."""

from __future__ import annotations

from collections.abc import Iterator

FEATURES = (
    "f16c", "fma", "avx", "avx2", "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16", "amx_int8",
    "asimd", "asimddp", "i8mm", "bf16", "sve",
)  # fmt: skip

# Linux on ARM names no model, only implementer and part.
ARM_PARTS = {
    ("0x41", "0xd03"): "Cortex-A53", ("0x41", "0xd05"): "Cortex-A55", ("0x41", "0xd08"): "Cortex-A72",
    ("0x41", "0xd0b"): "Cortex-A76", ("0x41", "0xd0c"): "Neoverse-N1", ("0x41", "0xd40"): "Neoverse-V1",
    ("0x41", "0xd42"): "Cortex-A78AE", ("0x41", "0xd49"): "Neoverse-N2", ("0x41", "0xd4f"): "Neoverse-V2",
    ("0x41", "0xd85"): "Cortex-X925", ("0x41", "0xd87"): "Cortex-A725", ("0xc0", "0xac3"): "Ampere-1",
}  # fmt: skip


def parse_cpu_model(cpuinfo: str) -> str | None:
    """ "AMD Ryzen 9 5950X 16-Core Processor", or for ARM the kinds of core: "Cortex-X925 + Cortex-A725"."""
    processors = list(_processors(cpuinfo))
    for processor in processors:
        if processor.get("model name"):
            return " ".join(processor["model name"].split())
    kinds = dict.fromkeys(name for processor in processors if (name := _arm_name(processor)))
    return " + ".join(kinds) or None


def parse_cpu_features(cpuinfo: str) -> tuple[str, ...]:
    """Those of `FEATURES` that every processor has: threads may run on any of them."""
    flags = [set((p.get("flags") or p.get("Features") or "").split()) for p in _processors(cpuinfo)]
    flags = [found for found in flags if found]
    return tuple(name for name in FEATURES if flags and all(name in found for found in flags))


def _processors(cpuinfo: str) -> Iterator[dict[str, str]]:
    for block in cpuinfo.split("\n\n"):
        pairs = (line.partition(":") for line in block.splitlines())
        processor = {key.strip(): value.strip() for key, colon, value in pairs if colon}
        if processor:
            yield processor


def _arm_name(processor: dict[str, str]) -> str | None:
    implementer, part = processor.get("CPU implementer"), processor.get("CPU part")
    if implementer is None or part is None:
        return None
    return ARM_PARTS.get((implementer, part), f"ARM implementer {implementer} part {part}")
