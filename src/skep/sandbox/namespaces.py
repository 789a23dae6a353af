"""Rooms of our own making: namespaces, a root put together from nothing, Landlock and the filter of system calls.

For machines without bubblewrap. Three processes a room: the warden's child that has left the uid and makes the
namespaces, the first process inside that furnishes the room and buries the dead, and the script.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import platform
import signal
import socket
import stat
import struct
from pathlib import Path
from typing import NoReturn

from skep.sandbox import kernel, landlock, rlimits, seccomp
from skep.sandbox.base import Limits
from skep.sandbox.cell import Cell, Exit, Streams, become, give_streams
from skep.sandbox.interpreter import BOX, DEVICES, ETC, FOLDER, UID, View
from skep.sandbox.kernel import MS_BIND, MS_NODEV, MS_NOEXEC, MS_NOSUID, MS_RDONLY, MS_REC, MS_SLAVE, mount, prctl
from skep.sandbox.messages import Order
from skep.sandbox.watching import MOST_FILES

OUR_PROCESSES = 2
STATUS_FD = 3
ROOM = "/tmp"  # noqa: S108 - where the new root is put together, in the room's own mount namespace
SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 0x1
NAMESPACES = (
    kernel.CLONE_NEWNS | kernel.CLONE_NEWPID | kernel.CLONE_NEWNET | kernel.CLONE_NEWIPC | kernel.CLONE_NEWUTS
) | kernel.CLONE_NEWCGROUP


class NamespacesCell:
    """What it hears: `init PID`, then `code N`, `signal N` or `failure WHY`."""

    def __init__(self, pid: int, status_fd: int) -> None:
        self.pid = pid
        self.init_pid: int | None = None
        self.status_fd = status_fd
        self._news = b""
        self._exit: Exit | None = None

    def hear(self, news: bytes) -> None:
        *lines, self._news = (self._news + news).split(b"\n")
        for line in lines:
            word, _, rest = line.decode(errors="replace").partition(" ")
            if word == "init":
                self.init_pid = int(rest)
            elif word == "failure":
                self._exit = Exit(failure=rest)
            elif self._exit is None:
                self._exit = Exit(code=int(rest)) if word == "code" else Exit(signal=int(rest))

    def exit(self, wait_status: int | None, stderr: bytes) -> Exit:
        del stderr
        if self._exit is not None:
            return self._exit
        if self.init_pid is None:
            return Exit(failure=f"its first process ended with wait status {wait_status}")
        return Exit(signal=int(signal.SIGKILL))


class Namespaces:
    def __init__(self) -> None:
        found = seccomp.program()
        if found is None:
            raise OSError(f"no filter of system calls for {platform.machine()}")
        self._filter = found
        landlock.version()

    def start(self, order: Order, view: View, streams: Streams, uid: int) -> Cell:
        status_read, status_write = os.pipe()
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._make(order, view, streams, (uid, parent), status_write)
        os.close(status_write)
        os.set_blocking(status_read, False)
        return NamespacesCell(pid, status_read)

    def _make(self, order: Order, view: View, streams: Streams, whose: tuple[int, int], status: int) -> NoReturn:
        """Of the warden's child: leaves the uid, makes the namespaces, and waits for the first process in them."""
        try:
            give_streams(streams)
            os.dup2(status, STATUS_FD, inheritable=False)
            os.closerange(STATUS_FD + 1, os.sysconf("SC_OPEN_MAX"))  # above all the socket to skep, and ends of pipes
            status = STATUS_FD
            uid, parent = whose
            limits = rlimits.rlimits(order.limits, of_the_sandbox=OUR_PROCESSES, uid=uid)
            become(uid, parent)
            os.setsid()
            gid = os.getgid()
            kernel.unshare(kernel.CLONE_NEWUSER)
            Path("/proc/self/setgroups").write_text("deny")
            Path("/proc/self/uid_map").write_text(f"{UID} {uid} 1")
            Path("/proc/self/gid_map").write_text(f"{UID} {gid} 1")
            kernel.unshare(NAMESPACES)
            life = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
            init = os.fork()
            if init == 0:
                prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
                os.close(life[1])
                with contextlib.suppress(BlockingIOError):  # nothing to read: it lives
                    os.read(life[0], 1)
                    os._exit(1)
                self._inside(order, view, limits, status)
            os.write(status, f"init {init}\n".encode())
            os.waitpid(init, 0)
        except BaseException as error:
            _tell(status, error)
        finally:
            os._exit(0)

    def _inside(self, order: Order, view: View, limits: dict[int, int], status: int) -> NoReturn:
        """Of the first process: furnishes the room, gives up every right to change it, and buries the dead."""
        try:
            socket.sethostname("box")
            raise_loopback()
            furnish(view, order)
            kernel.drop_capabilities()
            prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
            rlimits.apply(limits)
            script = os.fork()
            if script == 0:
                self._become_script(view, order, status)
            os.closerange(0, 3)
            while True:
                pid, ended = os.wait()
                if pid == script:
                    code = os.waitstatus_to_exitcode(ended)
                    os.write(status, (f"code {code}\n" if code >= 0 else f"signal {-code}\n").encode())
                    break
        except BaseException as error:
            _tell(status, error)
        finally:
            os._exit(0)

    def _become_script(self, view: View, order: Order, status: int) -> NoReturn:
        try:
            os.chdir(FOLDER)
            # Also keeps the script, which has the same uid, from looking into the first process: that one is outside.
            landlock.restrict(["/"], [BOX, *(f"/dev/{name}" for name in DEVICES)])
            seccomp.load(self._filter)
            env = {**view.env, "PWD": FOLDER}
            os.execve(view.program, [view.program, *order.script.argv], env)  # noqa: S606
        except BaseException as error:
            _tell(status, error)
        finally:
            os._exit(127)


def furnish(view: View, order: Order) -> None:
    """A new root with what the view shows, and nothing else; then the old one is let go."""
    mount("none", "/", None, MS_SLAVE | MS_REC)
    sources = {dest: os.open(source, os.O_PATH | os.O_CLOEXEC) for dest, source in view.binds.items()}
    sources |= {f"/dev/{name}": os.open(f"/dev/{name}", os.O_PATH | os.O_CLOEXEC) for name in DEVICES}
    mount("tmpfs", ROOM, "tmpfs", MS_NOSUID | MS_NODEV, "mode=755,size=1m,nr_inodes=4k")
    for dest, fd in sources.items():
        _bind(fd, ROOM + dest, device=dest.startswith("/dev/"))
    empty_flags = MS_NOSUID | MS_NODEV | MS_RDONLY
    for dest in view.emptied:
        mount("tmpfs", ROOM + dest, "tmpfs", empty_flags, "size=4k,nr_inodes=2")
    for link, target in view.links.items():
        Path(ROOM + link).parent.mkdir(parents=True, exist_ok=True)
        Path(ROOM + link).symlink_to(target)
    for path, text in ETC.items():
        Path(ROOM + path).parent.mkdir(parents=True, exist_ok=True)
        Path(ROOM + path).write_text(text)
    Path(ROOM, "proc").mkdir()
    mount("proc", f"{ROOM}/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC | MS_RDONLY)
    _fill_box(order.limits, dict(order.script.files))
    os.chdir(ROOM)
    kernel.pivot_root(".", ".")
    kernel.umount_detached(".")
    os.chdir("/")
    kernel.set_mount_attributes("/", kernel.MOUNT_ATTR_RDONLY, recursive=False)


def _bind(fd: int, place: str, *, device: bool) -> None:
    path = Path(place)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.mkdir(exist_ok=True) if stat.S_ISDIR(os.fstat(fd).st_mode) else path.touch()
    mount(f"/proc/self/fd/{fd}", place, None, MS_BIND | MS_REC)
    os.close(fd)
    attributes = kernel.MOUNT_ATTR_NOSUID | (0 if device else kernel.MOUNT_ATTR_RDONLY | kernel.MOUNT_ATTR_NODEV)
    kernel.set_mount_attributes(place, attributes, recursive=True)


def _fill_box(limits: Limits, files: dict[str, bytes]) -> None:
    box = Path(ROOM + BOX)
    box.mkdir()
    options = f"mode=700,size={limits.disk_bytes},nr_inodes={MOST_FILES}"
    mount("tmpfs", str(box), "tmpfs", MS_NOSUID | MS_NODEV, options)
    for name in ("work", "tmp", "shm"):
        (box / name).mkdir(mode=0o700)
    for name, data in files.items():
        path = Path(ROOM + FOLDER, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def raise_loopback() -> None:
    """The only interface there is. It gets its addresses by itself."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asker:
        request = struct.pack("16sh14x", b"lo", 0)
        flags = struct.unpack("16sh14x", fcntl.ioctl(asker, SIOCGIFFLAGS, request))[1]
        fcntl.ioctl(asker, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", flags | IFF_UP))


def _tell(status: int, error: BaseException) -> None:
    why = " ".join((str(error) or type(error).__name__).split())
    os.write(status, f"failure {why}\n".encode())
