"""The filter of system calls, as a classic BPF program: what a script of Python never needs and an attacker might.

Refused calls fail with an error instead of ending the process, so that libraries can fall back. The filter is the
second wall: the first are namespaces, in which most of these calls reach nothing. Numbers are those of the kernel's
tables (arch/x86/entry/syscalls/syscall_64.tbl, include/uapi/asm-generic/unistd.h).
"""

from __future__ import annotations

import errno
import platform
import struct
from dataclasses import dataclass

ALLOW = 0x7FFF0000
KILL_PROCESS = 0x80000000
ERRNO = 0x00050000

LOAD, JEQ, JGE, JSET, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
AT_NUMBER, AT_ARCH, AT_FIRST_ARGUMENT, AT_SECOND_ARGUMENT, AT_THIRD_ARGUMENT = 0, 4, 16, 24, 32
NEW_NAMESPACE = 0x7E020080  # CLONE_NEW*: time, mount, cgroup, uts, ipc, user, pid, net
FIRST_X32 = 512  # from here on x86_64 has the numbers of its 32-bit twin, which would pass by the table
FAMILIES = (1, 2, 10)  # AF_UNIX, AF_INET, AF_INET6
SOL_SOCKET = 1
BUFFERS = (7, 8, 32, 33)  # SO_SNDBUF, SO_RCVBUF and their forced forms: how much the kernel keeps for a socket

# name: (x86_64, aarch64); None: the architecture has no such call.
REFUSED: dict[str, tuple[int | None, int | None]] = {
    # other processes
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "pidfd_getfd": (438, 438),
    "kcmp": (312, 272),
    # mounts, roots and namespaces
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "statmount": (457, 457),
    "listmount": (458, 458),
    "listns": (470, 470),
    "open_tree_attr": (467, 467),
    "unshare": (272, 97),
    "setns": (308, 268),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "fanotify_init": (300, 262),
    "fanotify_mark": (301, 263),
    # large and often broken into
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "userfaultfd": (323, 282),
    "keyctl": (250, 219),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "vmsplice": (278, 75),
    "remap_file_pages": (216, 234),
    "migrate_pages": (256, 238),
    "move_pages": (279, 239),
    # memory that belongs to no process, and so escapes the watch
    "memfd_secret": (447, 447),
    "shmget": (29, 194),
    "shmat": (30, 196),
    "semget": (64, 190),
    "msgget": (68, 186),
    "mq_open": (240, 180),
    # the machine itself
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "reboot": (169, 142),
    "personality": (135, 92),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "acct": (163, 89),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "syslog": (103, 116),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "adjtimex": (159, 171),
    "clock_adjtime": (305, 266),
    "lookup_dcookie": (212, 18),
    "nfsservctl": (180, 42),
    "vhangup": (153, 58),
    "iopl": (172, None),
    "ioperm": (173, None),
    "modify_ldt": (154, None),
    "uselib": (134, None),
    "ustat": (136, None),
    "sysfs": (139, None),
}
# As if the kernel were older, which makes the C library and others take the plain way.
UNKNOWN: dict[str, tuple[int | None, int | None]] = {"clone3": (435, 435), "memfd_create": (319, 279)}


@dataclass(frozen=True, slots=True)
class Architecture:
    audit: int
    column: int
    clone: int
    socket: int
    socketpair: int
    setsockopt: int


ARCHITECTURES = {
    "x86_64": Architecture(audit=0xC000003E, column=0, clone=56, socket=41, socketpair=53, setsockopt=54),
    "aarch64": Architecture(audit=0xC00000B7, column=1, clone=220, socket=198, socketpair=199, setsockopt=208),
}

Step = tuple[int, int, str | None]  # operation, value, where to go if it holds


def program(machine: str | None = None) -> bytes | None:
    """Return the filter for this machine. None: an architecture whose numbers are not in the table."""
    architecture = ARCHITECTURES.get(machine or platform.machine())
    return None if architecture is None else _assemble(_steps(architecture), _ends())


def _steps(architecture: Architecture) -> list[Step | str]:
    """Steps, and between them the names of places that steps go to."""
    steps: list[Step | str] = [
        (LOAD, AT_ARCH, None),
        (JEQ, architecture.audit, "known"),
        (RETURN, KILL_PROCESS, None),
        "known",
        (LOAD, AT_NUMBER, None),
    ]
    if architecture.column == 0:
        steps.append((JGE, FIRST_X32, "unknown"))
    steps += [(JEQ, architecture.socket, "socket"), (JEQ, architecture.socketpair, "socket")]
    steps += [(JEQ, architecture.clone, "clone"), (JEQ, architecture.setsockopt, "setsockopt")]
    for table, end in ((REFUSED, "refuse"), (UNKNOWN, "unknown")):
        numbers = [pair[architecture.column] for pair in table.values()]
        steps += [(JEQ, number, end) for number in numbers if number is not None]
    steps += [(RETURN, ALLOW, None), "socket", (LOAD, AT_FIRST_ARGUMENT, None)]
    steps += [(JEQ, family, "allow") for family in FAMILIES]
    steps += [(RETURN, ERRNO | errno.EAFNOSUPPORT, None)]
    steps += ["setsockopt", (LOAD, AT_SECOND_ARGUMENT, None), (JEQ, SOL_SOCKET, "of any socket"), (RETURN, ALLOW, None)]
    steps += ["of any socket", (LOAD, AT_THIRD_ARGUMENT, None), *((JEQ, option, "ignore") for option in BUFFERS)]
    steps += [(RETURN, ALLOW, None)]
    steps += ["clone", (LOAD, AT_FIRST_ARGUMENT, None), (JSET, NEW_NAMESPACE, "refuse"), (RETURN, ALLOW, None)]
    return steps


def _ends() -> list[Step | str]:
    return [
        "allow",
        (RETURN, ALLOW, None),
        "refuse",
        (RETURN, ERRNO | errno.EPERM, None),
        "unknown",
        (RETURN, ERRNO | errno.ENOSYS, None),
        "ignore",  # as if it had been done
        (RETURN, ERRNO, None),
    ]


def _assemble(*parts: list[Step | str]) -> bytes:
    lines = [line for part in parts for line in part]
    places: dict[str, int] = {}
    steps: list[Step] = []
    for line in lines:
        if isinstance(line, str):
            places[line] = len(steps)
        else:
            steps.append(line)
    code = b""
    for number, (operation, value, target) in enumerate(steps):
        distance = 0 if target is None else places[target] - number - 1
        assert 0 <= distance <= 255, (number, target)
        code += struct.pack("=HBBI", operation, distance, 0, value)
    return code
