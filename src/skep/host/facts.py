"""Reads what this machine is. What cannot be read is None; no host name, user name or serial number is kept."""

from __future__ import annotations

import json
import os
import platform
from dataclasses import asdict
from pathlib import Path
from typing import Any

from skep.host.cpu import parse_cpu_features, parse_cpu_model
from skep.host.limits import Limits, parse_counters, read_limits
from skep.host.nvidia import NvidiaReport, read_nvidia
from skep.records import HostFacts

_PASSING = ("memory_available_bytes", "open_files_soft", "open_files_hard")


def read_host(
    nvidia: NvidiaReport | None = None, *, proc: Path = Path("/proc"), cgroup: Path = Path("/sys/fs/cgroup")
) -> HostFacts:
    """Without `nvidia`, nvidia-smi is asked. A container's limits count where they are below the machine's."""
    nvidia = read_nvidia() if nvidia is None else nvidia
    cpuinfo = _text(proc / "cpuinfo")
    limits = read_limits(cgroup, _text(proc / "self" / "cgroup"))
    total, available = _memory(_text(proc / "meminfo"), limits)
    soft, hard = _open_files()
    return HostFacts(
        os=f"{platform.system()} {platform.release()}".strip(),
        machine=platform.machine(),
        python=platform.python_version(),
        cpu_model=parse_cpu_model(cpuinfo),
        cpu_cores=_cores(limits),
        cpu_features=parse_cpu_features(cpuinfo),
        memory_bytes=total,
        memory_available_bytes=available,
        open_files_soft=soft,
        open_files_hard=hard,
        driver_version=nvidia.driver_version,
        cuda_version=nvidia.cuda_version,
        gpus=nvidia.gpus,
        links=nvidia.links,
    )


def host_json(facts: HostFacts) -> dict[str, Any]:
    """The facts as plain JSON values, to be stored with a run."""
    stored: dict[str, Any] = json.loads(json.dumps(asdict(facts)))
    return stored


def lasting_json(facts: HostFacts) -> dict[str, Any]:
    """`host_json` without what changes between two runs on the same machine: the part to take a fingerprint of."""
    lasting = {key: value for key, value in host_json(facts).items() if key not in _PASSING}
    lasting["gpus"] = [{k: v for k, v in gpu.items() if k != "pcie_generation"} for gpu in lasting["gpus"]]
    return lasting


def _cores(limits: Limits) -> int:
    """Logical processors for this process. A share of one is rounded down: a thread more would be throttled."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(cores, cores if limits.cpus is None else int(limits.cpus)))


def _memory(meminfo: str, limits: Limits) -> tuple[int | None, int | None]:
    counters = parse_counters(meminfo)
    total = counters.get("MemTotal", _physical_bytes())
    return _smaller(total, limits.memory_bytes), _smaller(counters.get("MemAvailable"), limits.memory_available_bytes)


def _physical_bytes() -> int | None:
    """macOS has no /proc, but tells its pages."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return None


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
