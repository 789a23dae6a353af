"""How often the kernel has killed for want of memory: the difference over a process's life says whether it was that."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

_V2, _V1, _MACHINE = "memory.events", "memory.oom_control", "vmstat"


def read_oom_kills(*, proc: Path = Path("/proc"), cgroup: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Of this process's control group, else of the whole machine; None: nobody counts here."""
    for path in _counters(proc, cgroup):
        for line in _text(path).splitlines():
            match line.split():
                case ["oom_kill", count] if count.isdecimal():
                    return int(count)
    return None


def _counters(proc: Path, cgroup: Path) -> list[Path]:
    """The group's own file first; a container may see the host's path yet mount its group as the root."""
    found: list[Path] = []
    for line in _text(proc / "self" / "cgroup").splitlines():
        _, kinds, path = (*line.split(":", 2), "", "")[:3]
        own = PurePosixPath(path.lstrip("/"))
        if ".." in own.parts:
            own = PurePosixPath()
        if not kinds:
            found += [cgroup / own / _V2, cgroup / _V2]
        elif "memory" in kinds.split(","):
            found += [cgroup / "memory" / own / _V1, cgroup / "memory" / _V1]
    return [*found, proc / _MACHINE]


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
