"""The filter of system calls, as a classic BPF program. It refuses the calls that a script of
Python never needs and an attacker might.

Refused calls (`seccomp.toml`) fail with an error instead of ending the process, so that libraries
can fall back. The filter is the second wall: the first are namespaces, in which most of these
calls reach nothing."""

from __future__ import annotations

import errno
import struct
import tomllib
from dataclasses import dataclass
from pathlib import Path

ALLOW = 0x7FFF0000
KILL_PROCESS = 0x80000000
ERRNO = 0x00050000

LOAD = 0x20
JEQ = 0x15
JGE = 0x35
JSET = 0x45
RETURN = 0x06
AT_NUMBER = 0
AT_ARCH = 4
AT_FIRST_ARGUMENT = 16
AT_SECOND_ARGUMENT = 24
AT_THIRD_ARGUMENT = 32
NEW_NAMESPACE = 0x7E020080  # CLONE_NEW*: time, mount, cgroup, uts, ipc, user, pid, net
# From here on x86_64 has the numbers of its 32-bit variant, which the table does not list.
FIRST_X32 = 512
FAMILIES = (1, 2, 10)  # AF_UNIX, AF_INET, AF_INET6
SOL_SOCKET = 1
# SO_SNDBUF, SO_RCVBUF and their forced forms: the memory of the kernel for a socket.
BUFFERS = (7, 8, 32, 33)


@dataclass(frozen=True, slots=True)
class Architecture:
    """Numbers of an architecture: its own (`audit`), its column in the tables, its calls."""

    audit: int
    column: int
    clone: int
    socket: int
    socketpair: int
    setsockopt: int


_TABLES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())
REFUSED: dict[str, list[int]] = _TABLES["refused"]
# Calls that fail as on a kernel that does not have them.
UNKNOWN: dict[str, list[int]] = _TABLES["unknown"]
ARCHITECTURES = {name: Architecture(**fields) for name, fields in _TABLES["architecture"].items()}

Step = tuple[int, int, str | None]  # operation, value, where to go if it holds


def program(machine: str) -> bytes:
    """Return the filter for such a machine; empty for an architecture whose numbers are not in the
    table.
    """
    architecture = ARCHITECTURES.get(machine)
    if architecture is None:
        return b""
    places: dict[str, int] = {}
    steps: list[Step] = []
    for line in _steps(architecture):
        if isinstance(line, str):
            places[line] = len(steps)
        else:
            steps.append(line)
    code = b""
    for number, (operation, value, target) in enumerate(steps):
        distance = 0
        if target is not None:
            distance = places[target] - number - 1
        assert 0 <= distance <= 255, (number, target)
        code += struct.pack("=HBBI", operation, distance, 0, value)
    return code


def _steps(architecture: Architecture) -> list[Step | str]:
    """Return the steps, and between them the names of places that steps jump to."""
    steps: list[Step | str] = [
        (LOAD, AT_ARCH, None),
        (JEQ, architecture.audit, "known"),
        (RETURN, KILL_PROCESS, None),
    ]
    steps += ["known", (LOAD, AT_NUMBER, None)]
    if architecture.column == 0:
        steps.append((JGE, FIRST_X32, "unknown"))
    steps += [(JEQ, architecture.socket, "socket"), (JEQ, architecture.socketpair, "socket")]
    steps += [(JEQ, architecture.clone, "clone"), (JEQ, architecture.setsockopt, "setsockopt")]
    for table, end in ((REFUSED, "refuse"), (UNKNOWN, "unknown")):
        column = architecture.column
        steps += [
            (JEQ, numbers[column], end) for numbers in table.values() if len(numbers) > column
        ]
    steps += [(RETURN, ALLOW, None), "socket", (LOAD, AT_FIRST_ARGUMENT, None)]
    steps += [(JEQ, family, "allow") for family in FAMILIES]
    steps += [(RETURN, ERRNO | errno.EAFNOSUPPORT, None)]
    steps += [
        "setsockopt",
        (LOAD, AT_SECOND_ARGUMENT, None),
        (JEQ, SOL_SOCKET, "of any socket"),
        (RETURN, ALLOW, None),
    ]
    steps += [
        "of any socket",
        (LOAD, AT_THIRD_ARGUMENT, None),
        *((JEQ, option, "ignore") for option in BUFFERS),
    ]
    steps += [(RETURN, ALLOW, None)]
    steps += [
        "clone",
        (LOAD, AT_FIRST_ARGUMENT, None),
        (JSET, NEW_NAMESPACE, "refuse"),
        (RETURN, ALLOW, None),
    ]
    ends = {"allow": ALLOW, "refuse": ERRNO | errno.EPERM, "unknown": ERRNO | errno.ENOSYS}
    ends["ignore"] = ERRNO  # as if it had been done
    for place, verdict in ends.items():
        steps += [place, (RETURN, verdict, None)]
    return steps
