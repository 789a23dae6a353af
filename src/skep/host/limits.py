"""Limits that a container or a systemd slice puts on this process: cgroup v2, and v1 where it is still mounted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

_NO_LIMIT_V1 = 2**60  # cgroup v1 writes "no limit" as a number near 2**63

# (limit, used, reclaimable lines of memory.stat) for v2 and v1
_MEMORY_V2 = ("memory.max", "memory.current", ("inactive_file", "active_file", "slab_reclaimable"))
_MEMORY_V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", ("total_inactive_file", "total_active_file"))


@dataclass(frozen=True, slots=True)
class Limits:
    """None where no group on the way to the root sets a limit."""

    memory_bytes: int | None = None
    memory_available_bytes: int | None = None
    cpus: float | None = None


def read_limits(mount: Path, own_groups: str) -> Limits:
    """`own_groups` is the text of /proc/self/cgroup. The tightest limit from the own group up to the root counts."""
    paths = parse_own_groups(own_groups)
    unified = list(_folders(mount, paths.get("", "/")))
    memory = [_memory(folder, *_MEMORY_V2) for folder in unified]
    memory += [_memory(folder, *_MEMORY_V1) for folder in _folders(mount / "memory", paths.get("memory", "/"))]
    limits = [limit for limit, _ in memory if limit is not None]
    available = [free for _, free in memory if free is not None]
    cpus = [parse_cpu_max(_text(folder / "cpu.max")) for folder in unified]
    cpus += [_cpus_v1(folder) for folder in _folders(mount / "cpu", paths.get("cpu", "/"))]
    return Limits(
        min(limits, default=None),
        min(available, default=None),
        min((n for n in cpus if n is not None), default=None),
    )


def parse_own_groups(text: str) -> dict[str, str]:
    """Controller → path; the one of cgroup v2 has the empty name."""
    fields = [line.split(":", 2) for line in text.splitlines()]
    return {name: parts[2] for parts in fields if len(parts) == 3 for name in parts[1].split(",")}


def parse_cpu_max(text: str) -> float | None:
    """ "150000 100000" is 1.5 CPUs; "max 100000" is no limit."""
    match text.split():
        case [quota, period] if quota.isdecimal() and period.isdecimal() and int(period):
            return int(quota) / int(period)
    return None


def parse_counters(text: str) -> dict[str, int]:
    """Lines of `name value`, as in memory.stat; /proc/meminfo's `Name: value kB` gives bytes."""
    counters = {}
    for line in text.splitlines():
        match line.split():
            case [name, value] if value.isdecimal():
                counters[name.rstrip(":")] = int(value)
            case [name, value, "kB"] if value.isdecimal():
                counters[name.rstrip(":")] = int(value) * 1024
    return counters


def _memory(folder: Path, limit: str, used: str, caches: tuple[str, ...]) -> tuple[int | None, int | None]:
    """(limit, available). File caches count as available: the kernel drops them before it kills."""
    limit_bytes, used_bytes = _bytes(folder / limit), _bytes(folder / used)
    if limit_bytes is None or used_bytes is None:
        return limit_bytes, limit_bytes
    stat = parse_counters(_text(folder / "memory.stat"))
    held = max(0, used_bytes - sum(stat.get(name, 0) for name in caches))
    return limit_bytes, max(0, limit_bytes - held)


def _cpus_v1(folder: Path) -> float | None:
    return parse_cpu_max(f"{_text(folder / 'cpu.cfs_quota_us')} {_text(folder / 'cpu.cfs_period_us')}")


def _folders(root: Path, path: str) -> Iterator[Path]:
    """A container may see the host's path in /proc/self/cgroup yet mount its own group as the root: try all."""
    own = PurePosixPath(path.lstrip("/"))
    if ".." not in own.parts:
        yield from (root / folder for folder in (own, *own.parents) if folder != PurePosixPath())
    yield root


def _bytes(path: Path) -> int | None:
    text = _text(path).strip()
    return int(text) if text.isdecimal() and int(text) < _NO_LIMIT_V1 else None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
