"""The calls to the kernel that Python 3.11 does not offer, each with the error it ended with."""

from __future__ import annotations

import ctypes
import os
import platform

CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_RDONLY = 0x1
MS_NOSUID = 0x2
MS_NODEV = 0x4
MS_NOEXEC = 0x8
MS_BIND = 0x1000
MS_REC = 0x4000
MS_SLAVE = 0x80000
MNT_DETACH = 2

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_SECCOMP = 22
PR_CAPBSET_DROP = 24
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38
PR_CAP_AMBIENT = 47
PR_CAP_AMBIENT_CLEAR_ALL = 4
SECCOMP_MODE_FILTER = 2

AT_EMPTY_PATH = 0x1000
AT_RECURSIVE = 0x8000
MOUNT_ATTR_RDONLY = 0x1
MOUNT_ATTR_NOSUID = 0x2
MOUNT_ATTR_NODEV = 0x4

# Calls without a name in the C library. Everything from 424 on has the same number on all architectures.
SYS_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
SYS_MOUNT_SETATTR = 442
SYS_LANDLOCK_CREATE_RULESET = 444
SYS_LANDLOCK_ADD_RULE = 445
SYS_LANDLOCK_RESTRICT_SELF = 446
CAPABILITY_VERSION_3 = 0x20080522
HIGHEST_CAPABILITY = 63

_libc = ctypes.CDLL(None, use_errno=True)


def _checked(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def syscall(what: str, number: int, *args: object) -> int:
    return _checked(_libc.syscall(ctypes.c_long(number), *args), what)


def unshare(flags: int) -> None:
    _checked(_libc.unshare(ctypes.c_int(flags)), "unshare")


def mount(source: str, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    words = [None if word is None else os.fsencode(word) for word in (source, target, kind, options)]
    result = _libc.mount(words[0], words[1], words[2], ctypes.c_ulong(flags), words[3])
    _checked(result, f"mount {kind or 'bind'} on {target}")


def umount_detached(target: str) -> None:
    _checked(_libc.umount2(os.fsencode(target), ctypes.c_int(MNT_DETACH)), f"umount {target}")


def pivot_root(new: str, old: str) -> None:
    syscall("pivot_root", SYS_PIVOT_ROOT[platform.machine()], os.fsencode(new), os.fsencode(old))


def prctl(option: int, argument: int = 0, second: int = 0) -> None:
    words = [ctypes.c_ulong(word) for word in (argument, second, 0, 0)]
    _checked(_libc.prctl(ctypes.c_int(option), *words), f"prctl {option}")


class _MountAttributes(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("attr_set", "attr_clr", "propagation", "userns_fd")]


def set_mount_attributes(path: str, attributes: int, *, recursive: bool) -> None:
    """Adds them, to all mounts below as well where asked. Linux 5.12."""
    wanted = _MountAttributes(attr_set=attributes)
    flags = AT_RECURSIVE if recursive else 0
    size = ctypes.c_size_t(ctypes.sizeof(wanted))
    at_cwd = ctypes.c_int(-100)
    name = f"mount_setattr {path}"
    syscall(name, SYS_MOUNT_SETATTR, at_cwd, os.fsencode(path), ctypes.c_uint(flags), ctypes.byref(wanted), size)


def drop_capabilities() -> None:
    """All of them, from every set, for good."""
    for capability in range(HIGHEST_CAPABILITY + 1):
        try:
            prctl(PR_CAPBSET_DROP, capability)
        except OSError:
            break  # the kernel knows no more of them
    prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL)
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0)
    _checked(_libc.capset(header, (ctypes.c_uint32 * 6)()), "capset")
