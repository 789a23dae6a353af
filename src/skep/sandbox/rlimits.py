"""The kernel's limits for one process and, for their number, for all of them."""

from __future__ import annotations

import errno
import os
import platform
import re
import resource
from pathlib import Path

from skep.sandbox.base import Limits

COUNTS_BY_NAMESPACE = (5, 14)  # from this kernel on, a user namespace counts its own processes only
SLACK_BYTES = 512 << 20  # address space that is reserved and never used: arenas, stacks of threads


def rlimits(limits: Limits, *, of_the_sandbox: int, uid: int, files: int = 0) -> dict[int, int]:
    """By the kernel's number. `of_the_sandbox`: processes inside that are not the script's; `files`: open ones.

    Address space is a coarse bound against one sudden allocation; what is really used is watched and bounded for all
    processes together.
    """
    return {
        resource.RLIMIT_NPROC: limits.processes + of_the_sandbox + _others(uid),
        resource.RLIMIT_AS: 2 * limits.memory_bytes + SLACK_BYTES,
        resource.RLIMIT_FSIZE: limits.disk_bytes,
        resource.RLIMIT_NOFILE: max(limits.open_files, files + 32),
        resource.RLIMIT_CPU: int(limits.seconds) + 2,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_MEMLOCK: 64 << 10,
        resource.RLIMIT_MSGQUEUE: 0,
        resource.RLIMIT_SIGPENDING: 1024,
    }


def apply(wanted: dict[int, int], pid: int = 0) -> None:
    """Never above what is allowed already. 0: this process."""
    for number, value in wanted.items():
        hard = resource.prlimit(pid, number)[1]
        bound = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.prlimit(pid, number, (bound, bound))


def apply_as(uid: int, wanted: dict[int, int], pid: int) -> None:
    """To another process of this user. Root asks as that user: root in a container may lack the right to ask itself."""
    if os.geteuid() != 0:
        apply(wanted, pid)
        return
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            apply(wanted, pid)
            code = 0
        finally:
            os._exit(code)
    if os.waitpid(child, 0)[1] != 0:
        raise OSError(errno.EPERM, f"limits of process {pid}")


def _others(uid: int) -> int:
    """Threads of this user that an older kernel would count too. A newer one counts those of the namespace only."""
    if kernel_version() >= COUNTS_BY_NAMESPACE:
        return 0
    total = 0
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                text = (entry / "status").read_text()
            except OSError:
                continue
            if re.search(rf"^Uid:\t{uid}\t", text, re.MULTILINE):
                threads = re.search(r"^Threads:\t(\d+)", text, re.MULTILINE)
                total += int(threads.group(1)) if threads else 1
    return total


def kernel_version() -> tuple[int, int]:
    found = re.match(r"(\d+)\.(\d+)", platform.release())
    return (int(found.group(1)), int(found.group(2))) if found else (0, 0)
