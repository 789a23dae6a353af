"""The processes of a Ray node that skep started, by the mark in their environment: which, where they listen, their end.

Process numbers are used again and names are shared with other people's clusters; the mark is not. Linux only.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import struct
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from skep.cluster.ray_command import MARK
from skep.errors import UserError
from skep.host.processes import descendants, living

PROC = Path("/proc")
EVERYWHERE = ("0.0.0.0", "::")  # noqa: S104 - to be told, not to be bound
_LISTENS = "0A"
_LOOK_EVERY_S = 0.1


@dataclass(frozen=True, slots=True)
class Process:
    pid: int
    name: str


@dataclass(frozen=True, slots=True)
class Listener:
    process: str
    address: str
    port: int

    @property
    def is_everywhere(self) -> bool:
        return self.address in EVERYWHERE


def require_proc() -> None:
    if not (PROC / "self/environ").exists():
        raise UserError("a node of a cluster needs Linux", hint="`skep up` serves on this machine without a cluster")


def marked(mark: str) -> list[Process]:
    """Return every live process that carries it."""
    wanted = f"{MARK}={mark}".encode()
    found = []
    for pid in living():
        with contextlib.suppress(OSError):  # gone, or another user's
            words = (PROC / str(pid) / "environ").read_bytes().split(b"\0")
            if wanted in words:
                found.append(Process(pid, (PROC / str(pid) / "comm").read_text().strip()))
    return found


def end(mark: str, patience_s: float = 8.0) -> list[int]:
    """The raylet first: it takes leave of the head and ends its workers. Then the rest; what stays is killed.

    Returns the process numbers that were killed.
    """
    kin = descendants(*(process.pid for process in marked(mark)))  # Ray's agents and workers write over their mark
    _ask_to_end(mark, ("raylet",), patience_s)
    _ask_to_end(mark, None, patience_s)
    left = marked(mark)
    _send(left, signal.SIGKILL)
    now = living()
    _send((Process(pid, "") for pid, begun in kin.items() if pid in now and now[pid][1] == begun), signal.SIGKILL)
    return [process.pid for process in left]


def listeners(processes: Sequence[Process]) -> list[Listener]:
    """Return where they listen for TCP."""
    owners = {inode: process.name for process in processes for inode in _sockets(process.pid)}
    rows = [*_table("tcp", socket.AF_INET), *_table("tcp6", socket.AF_INET6)]
    found = {Listener(owners[inode], address, port) for inode, address, port in rows if inode in owners}
    return sorted(found, key=lambda one: (one.port, one.address))


def parse_table(text: str, family: socket.AddressFamily) -> list[tuple[int, str, int]]:
    """Listening sockets of /proc/net/tcp or tcp6: inode, address, port."""
    found = []
    for line in text.splitlines()[1:]:
        words = line.split()
        if len(words) > 9 and words[3] == _LISTENS:
            address, _, port = words[1].partition(":")
            found.append((int(words[9]), _address(address, family), int(port, 16)))
    return found


def _address(digits: str, family: socket.AddressFamily) -> str:
    """Words of 4 bytes, each in the byte order of the machine."""
    words = [int(digits[i : i + 8], 16) for i in range(0, len(digits), 8)]
    text = socket.inet_ntop(family, struct.pack(f"={len(words)}I", *words))
    return text.removeprefix("::ffff:") if "." in text else text


def _table(name: str, family: socket.AddressFamily) -> list[tuple[int, str, int]]:
    try:
        return parse_table((PROC / "net" / name).read_text(), family)
    except FileNotFoundError:  # a kernel without IPv6
        return []


def _sockets(pid: int) -> set[int]:
    found = set()
    with contextlib.suppress(OSError):
        for link in (PROC / str(pid) / "fd").iterdir():
            with contextlib.suppress(OSError):  # closed meanwhile
                kind, _, number = str(link.readlink()).partition(":")
                if kind == "socket":
                    found.add(int(number[1:-1]))
    return found


def _send(processes: Iterable[Process], number: signal.Signals) -> None:
    for process in processes:
        try:
            os.kill(process.pid, number)
        except ProcessLookupError:
            continue


def _ask_to_end(mark: str, names: tuple[str, ...] | None, patience_s: float) -> None:
    """Those of these names, or all; returns when they are gone, or patience is."""
    deadline = time.monotonic() + patience_s
    told: set[int] = set()
    while True:
        left = [process for process in marked(mark) if names is None or process.name in names]
        _send((process for process in left if process.pid not in told), signal.SIGTERM)
        told |= {process.pid for process in left}
        if not left or time.monotonic() > deadline:
            return
        time.sleep(_LOOK_EVERY_S)
