"""Landlock: a wall around files that stays closed even if a mount should be where it must not be. Linux 5.13."""

from __future__ import annotations

import ctypes
import os
import struct

from skep.sandbox.kernel import (
    SYS_LANDLOCK_ADD_RULE,
    SYS_LANDLOCK_CREATE_RULESET,
    SYS_LANDLOCK_RESTRICT_SELF,
    syscall,
)

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
REFER, TRUNCATE, IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15
RIGHTS_OF_VERSION_1 = (1 << 13) - 1
FILE_RIGHTS = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV
SCOPE_ABSTRACT_UNIX_SOCKET, SCOPE_SIGNAL = 1 << 0, 1 << 1
CREATE_RULESET_VERSION = 1
RULE_PATH_BENEATH = 1


def version() -> int:
    """Of the kernel's Landlock. OSError where it has none, or has it switched off."""
    none = ctypes.c_void_p(None)
    return syscall(
        "Landlock", SYS_LANDLOCK_CREATE_RULESET, none, ctypes.c_size_t(0), ctypes.c_uint(CREATE_RULESET_VERSION)
    )


def restrict(read: list[str], write: list[str]) -> None:
    """From now on: `read` is for reading and running, `write` for everything, the rest for nothing.

    Signals and abstract sockets reach no process outside either, where the kernel can do that (6.12).
    Needs no_new_privs.
    """
    known = version()
    rights = RIGHTS_OF_VERSION_1
    for since, right in ((2, REFER), (3, TRUNCATE), (5, IOCTL_DEV)):
        rights |= right if known >= since else 0
    attributes = struct.pack("=QQQ", rights, 0, SCOPE_ABSTRACT_UNIX_SOCKET | SCOPE_SIGNAL if known >= 6 else 0)
    size = 8 if known < 4 else 16 if known < 6 else 24  # what an older kernel knows of the structure
    ruleset = syscall("Landlock", SYS_LANDLOCK_CREATE_RULESET, attributes, ctypes.c_size_t(size), ctypes.c_uint(0))
    try:
        for path in read:
            _allow(ruleset, path, rights & (READ_FILE | READ_DIR | EXECUTE))
        for path in write:
            _allow(ruleset, path, rights)
        syscall("Landlock", SYS_LANDLOCK_RESTRICT_SELF, ctypes.c_int(ruleset), ctypes.c_uint(0))
    finally:
        os.close(ruleset)


def _allow(ruleset: int, path: str, rights: int) -> None:
    fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        allowed = rights if os.path.isdir(path) else rights & FILE_RIGHTS  # noqa: PTH112
        rule = struct.pack("=Qi", allowed, fd)
        kind = ctypes.c_int(RULE_PATH_BENEATH)
        syscall(f"Landlock {path}", SYS_LANDLOCK_ADD_RULE, ctypes.c_int(ruleset), kind, rule, ctypes.c_uint(0))
    finally:
        os.close(fd)
