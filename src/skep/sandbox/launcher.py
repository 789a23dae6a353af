"""The launcher: a small process that stays, and forks a supervisor for every run.

It has nothing in it but the standard library, so that a fork costs a millisecond. It ends when its socket to skep does.
A supervisor starts, feeds, watches and ends one script, by itself: limits hold however busy skep's event loop is.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import select
import selectors
import signal
import socket
import stat
import sys
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from skep.sandbox.bubblewrap import (
    BOX,
    Bubblewrap,
    SandboxLimits,
    SandboxScript,
    ScriptEnding,
    ScriptResult,
    ScriptView,
    checked,
    libc,
    pack_result,
    prctl,
    unpack_order,
)

CHEAP = (b"RssAnon:", b"RssShmem:", b"VmSwap:", b"VmPTE:")
EXACT = (b"Pss_Anon:", b"Pss_Shmem:", b"SwapPss:")
MOST_FILES = 8192  # of the folder; an empty file takes no room but memory all the same
FILE_BYTES = 1024  # what the kernel keeps for each, about
SOCKET_BYTES = 256 << 10  # what a unix socket may hold; how much it does hold is told nowhere
QUEUES = ("tcp", "tcp6", "udp", "udp6")  # tables that tell what is queued


class MemoryWatch:
    """Opened once for a sandbox whose first process is `init_pid`, as soon as it has its own root; never closed."""

    def __init__(self, init_pid: int) -> None:
        self._init_pid = init_pid
        self._proc: int | None = None
        self._box: int | None = None

    @property
    def opened(self) -> bool:
        return self._box is not None

    def over(self, limit_bytes: int) -> bool:
        """Cheaply at first: forked processes share pages, and only where the plain sum is too much is it divided."""
        if not self._open():
            return False
        assert self._box is not None
        box = os.fstatvfs(self._box)
        files = box.f_files - box.f_ffree
        if files > MOST_FILES:
            return True
        kept = (box.f_blocks - box.f_bfree) * box.f_frsize + files * FILE_BYTES
        # What sockets hold is the kernel's memory, not a process's: a script could keep gigabytes there.
        for table in QUEUES:  # what waits to be sent and to be read
            lines = [line.split() for line in self._text(f"1/net/{table}").splitlines()[1:]]
            kept += sum(int(size, 16) for line in lines if len(line) > 4 for size in line[4].split(b":"))
        kept += self._text("1/net/unix").count(b"\n") * SOCKET_BYTES
        pids = [pid for pid in self._list(".") if pid.isdigit() and pid != "1"]
        return kept + sum(map(self._plain, pids)) > limit_bytes and kept + sum(map(self._divided, pids)) > limit_bytes

    def _open(self) -> bool:
        if self._box is not None:
            return True
        root = f"/proc/{self._init_pid}/root"
        try:
            theirs, ours = os.stat(root), os.stat("/")  # noqa: PTH116
            if (theirs.st_dev, theirs.st_ino) == (ours.st_dev, ours.st_ino):
                return False
            self._proc = os.open(f"{root}/proc", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            self._box = os.open(f"{root}{BOX}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            if self._proc is not None:
                os.close(self._proc)
                self._proc = None
            return False
        return True

    def _divided(self, pid: str) -> int:
        """Return each page divided by the processes that share it; as in `_plain` where the kernel does not tell."""
        text = self._text(f"{pid}/smaps_rollup")
        told = _bytes_of(text, EXACT) if EXACT[0] in text else None  # a kernel before 5.4 has but a part of them
        return self._plain(pid) if told is None else told

    def _plain(self, pid: str) -> int:
        """A process whose first thread has ended keeps its memory, but shows it in the other threads only."""
        told = _bytes_of(self._text(f"{pid}/status"), CHEAP)
        if told is None:
            texts = [self._text(f"{pid}/task/{thread}/status") for thread in self._list(f"{pid}/task")]
            told = max((other for text in texts if (other := _bytes_of(text, CHEAP)) is not None), default=0)
        return told

    def _list(self, path: str) -> list[str]:
        with contextlib.suppress(OSError):
            return os.listdir(f"/proc/self/fd/{self._proc}/{path}")  # noqa: PTH208
        return []

    def _text(self, path: str) -> bytes:
        with contextlib.suppress(OSError), open(f"/proc/self/fd/{self._proc}/{path}", "rb") as file:  # noqa: PTH123
            return file.read()
        return b""  # it has ended meanwhile


def _bytes_of(text: bytes, fields: tuple[bytes, ...]) -> int | None:
    """Return the sum of these fields in bytes. None: it has none of them."""
    found = [int(line.split()[1]) for line in text.splitlines() if line.startswith(fields)]
    return sum(found) * 1024 if found else None


# One of these is covered, in a mount namespace of the launcher's own; nothing is written to the real one.
STAGES = ("/mnt", "/media", "/srv", "/opt", "/tmp")  # noqa: S108
EXIT_WAIT_S = 3.0
FIRST_UID = 65100  # root runs scripts as one of these: no login, no files; low enough for a container's own mapping
UIDS = 300
LOOK_S = 0.03
SETUP_S = 20.0  # for bubblewrap until the script can begin; none of the script's own time
BLIND_S = 5.0  # a script whose memory cannot be looked at for so long is ended
PIECE = 64 << 10
CLONE_NEWNS = 0x00020000
MS_NOSUID, MS_NODEV, MS_BIND, MS_REC, MS_SLAVE = 0x2, 0x4, 0x1000, 0x4000, 0x80000
PR_SET_CHILD_SUBREAPER = 36
BEGIN = """import json, sys
setup = json.load(sys.stdin)
sys.path.insert(0, setup.pop("source"))
from skep.sandbox.launcher import main
main(setup)
"""


def setup_text(fd: int, program: str, views: dict[bool, ScriptView]) -> str:
    """For the standard input of `BEGIN`: an argument could be read by any script whose first process is a fork."""
    told = {str(packages): asdict(view) for packages, view in views.items()}
    return json.dumps({"source": str(Path(__file__).parents[2]), "fd": fd, "program": program, "views": told})


def main(setup: dict[str, Any]) -> None:
    """Serve skep with what `setup_text` says: the `fd` of the socket to it, bubblewrap's program and the two views."""
    control = socket.socket(fileno=setup["fd"])
    control.set_inheritable(False)
    os.chdir("/")
    views = {packages: ScriptView(**setup["views"][str(packages)]) for packages in (True, False)}
    try:
        if os.geteuid() == 0:
            views = stage(views, setup["program"])
    except OSError as error:
        control.sendall(f"error: {error}".encode())
        return
    control.sendall(b"ready")
    gc.disable()  # a collection in a fork would copy every page it looks at
    SandboxLauncher(control, setup["program"], views).run()


@dataclass(eq=False, repr=False)
class SandboxLauncher:
    control: socket.socket
    program: str
    views: dict[bool, ScriptView]

    def __post_init__(self) -> None:
        self._slots: dict[int, int] = {}  # supervisor → its place among those at work
        self._life = os.pipe()  # supervisors have the end for reading, and see by its end that the launcher is no more

    def run(self) -> None:
        """Until skep hangs up; the supervisors then have a moment to end what they run."""
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        woken, self._waker = socket.socketpair()
        self._waker.setblocking(False)
        signal.set_wakeup_fd(self._waker.fileno(), warn_on_full_buffer=False)
        while True:
            ready = select.select([self.control, woken], [], [])[0]
            if woken in ready:
                woken.recv(4096)
                self._reap()
            if self.control in ready:
                message, fds, _, _ = socket.recv_fds(self.control, 1, 1)
                if not message:
                    break
                os.set_inheritable(fds[0], False)  # a script that inherits it could write its own verdict
                self._fork(fds[0])
        deadline = time.monotonic() + EXIT_WAIT_S
        self._reap()
        while self._slots and (left := deadline - time.monotonic()) > 0:
            select.select([woken], [], [], left)
            self._reap()

    def _fork(self, link_fd: int) -> None:
        slot = next(number for number in range(len(self._slots) + 1) if number not in self._slots.values())
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                signal.set_wakeup_fd(-1)
                self.control.close()
                os.close(self._life[1])
                # Root gives each script at work its own uid outside, others have but theirs.
                uid = FIRST_UID + slot % UIDS if os.geteuid() == 0 else os.getuid()
                self._supervise(socket.socket(fileno=link_fd), uid)
                code = 0
            finally:
                os._exit(code)
        os.close(link_fd)
        self._slots[pid] = slot

    def _supervise(self, link: socket.socket, uid: int) -> None:
        """Carry out the one order that comes over `link`, and answer it unless nobody waits any more."""
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        with link, contextlib.suppress(OSError, EOFError):
            with link.makefile("rb") as order:
                script, limits = unpack_order(order.readline())
            result: ScriptResult | str
            try:
                run = SupervisedRun(link, self._life[0], script, limits)
                result = run.carry_out(self.program, self.views[script.packages], uid)
            except OSError as error:
                result = str(error)
            finally:
                end_children()
            link.setblocking(True)
            link.sendall(pack_result(result))

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while (pid := os.waitpid(-1, os.WNOHANG)[0]) != 0:
                self._slots.pop(pid, None)
        for orphan in set(children()) - set(self._slots):  # its supervisor was killed
            os.kill(orphan, signal.SIGKILL)


def end_children() -> None:
    """Leave no process. The first one of a namespace takes all of it along, and its end waits for theirs. Whoever loses
    its parent becomes a child of the supervisor, and only children are killed: a reused process number is never hit."""
    while True:
        for pid in children():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def children() -> list[int]:
    pid = os.getpid()
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@dataclass(eq=False, repr=False)
class SupervisedRun:
    """One script in bubblewrap. Ends when it does, at a limit, or with the end of `link` or `life_fd`.

    `link` is the socket to skep; `life_fd` becomes readable when the launcher has died. A signal then would be too
    quick: bubblewrap ties its first process to itself only just before the script starts; one orphaned earlier stays.
    """

    link: socket.socket
    life_fd: int
    script: SandboxScript
    limits: SandboxLimits

    def __post_init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._taken = {1: bytearray(), 2: bytearray()}
        self._pending = memoryview(self.script.stdin)
        self._verdict: ScriptEnding | None = None
        self._watch: MemoryWatch | None = None
        self._ended: int | None = None
        self._abandoned = False  # nobody waits for it any more, or nobody could clear away after this process

    def carry_out(self, program: str, view: ScriptView, uid: int) -> ScriptResult | str:
        """Return how the script ended, or why it was never started."""
        began = time.monotonic()
        bubblewrap = self._start(program, view, uid)
        self._follow(bubblewrap, began)
        seconds = time.monotonic() - (bubblewrap.released_s or began)
        end_children()
        self._drain(bubblewrap)
        stdout, stderr = bytes(self._taken[1]), bytes(self._taken[2])
        if self._abandoned:
            return "its launcher was killed"
        if self._verdict is not None:
            return ScriptResult(self._verdict, None, None, stdout, stderr, seconds)
        ending = bubblewrap.ending(self._ended, stderr)
        return ending if isinstance(ending, str) else ScriptResult(*ending, stdout, stderr, seconds)

    def _start(self, program: str, view: ScriptView, uid: int) -> Bubblewrap:
        stdin_read, self._stdin = os.pipe()
        stdout_read, stdout_write = os.pipe()
        stderr_read, stderr_write = os.pipe()
        self._outputs = {stdout_read: 1, stderr_read: 2}
        streams = (stdin_read, stdout_write, stderr_write)
        bubblewrap = Bubblewrap(program, self.script, self.limits, view, streams, uid)
        for fd in streams:
            os.close(fd)
        for fd in (self._stdin, stdout_read, stderr_read):
            os.set_blocking(fd, False)
        self.link.setblocking(False)
        for readable in (self.link.fileno(), self.life_fd, bubblewrap.status_fd, *self._outputs):
            self._selector.register(readable, selectors.EVENT_READ)
        if self._pending:
            self._selector.register(self._stdin, selectors.EVENT_WRITE)
        else:
            os.close(self._stdin)
        return bubblewrap

    def _follow(self, bubblewrap: Bubblewrap, began: float) -> None:
        """Until it has ended, or has to. The script's time begins when bubblewrap may start it."""
        pidfd = os.pidfd_open(bubblewrap.pid)
        self._selector.register(pidfd, selectors.EVENT_READ)
        look = began
        try:
            while self._verdict is None:
                released = bubblewrap.released_s
                deadline = began + SETUP_S if released is None else released + self.limits.seconds
                for key, _ in self._selector.select(max(0.0, min(LOOK_S, deadline - time.monotonic()))):
                    if key.fd == pidfd:
                        self._ended = os.waitpid(bubblewrap.pid, 0)[1]
                        return
                    if key.fd in (self.link.fileno(), self.life_fd):
                        self._abandoned = True
                        return
                    if key.fd in self._outputs:
                        self._take(key.fd)
                    elif key.fd == bubblewrap.status_fd:
                        news = os.read(key.fd, PIECE)
                        bubblewrap.hear(news) if news else self._selector.unregister(key.fd)
                    else:
                        self._feed()
                now = time.monotonic()
                if self._verdict is not None or bubblewrap.released_s != released:
                    continue
                if now >= deadline:
                    if released is None:
                        raise OSError(f"bubblewrap was not ready within {SETUP_S:.0f} s")
                    self._verdict = ScriptEnding.OUT_OF_TIME
                elif now >= look:
                    look = now + LOOK_S
                    self._look(bubblewrap, now)
        finally:
            self._selector.unregister(pidfd)
            os.close(pidfd)

    def _look(self, bubblewrap: Bubblewrap, now: float) -> None:
        if self._watch is None and bubblewrap.init_pid is not None:
            self._watch = MemoryWatch(bubblewrap.init_pid)
        if self._watch is not None and self._watch.over(self.limits.memory_bytes):
            self._verdict = ScriptEnding.OUT_OF_MEMORY
        seen = self._watch is not None and self._watch.opened
        if not seen and bubblewrap.released_s is not None and now > bubblewrap.released_s + BLIND_S:
            raise OSError("its memory cannot be watched")

    def _take(self, fd: int) -> bool:
        """False at its end. What is over the limit is not kept."""
        try:
            piece = os.read(fd, PIECE)
        except BlockingIOError:
            return False
        kept = self._taken[self._outputs[fd]]
        room = self.limits.output_bytes - len(kept)
        kept += piece[:room]
        if len(piece) > room and self._verdict is None:
            self._verdict = ScriptEnding.TOO_MUCH_OUTPUT
        if not piece and fd in self._selector.get_map():
            self._selector.unregister(fd)
        return bool(piece)

    def _feed(self) -> None:
        with contextlib.suppress(BlockingIOError):
            try:
                self._pending = self._pending[os.write(self._stdin, self._pending[:PIECE]) :]
            except BrokenPipeError:
                self._pending = self._pending[:0]
            if not self._pending:
                self._selector.unregister(self._stdin)
                os.close(self._stdin)

    def _drain(self, bubblewrap: Bubblewrap) -> None:
        """All writers are gone: what is still in the pipes is all there will be."""
        with contextlib.suppress(BlockingIOError):
            if news := os.read(bubblewrap.status_fd, PIECE):
                bubblewrap.hear(news)
        for fd in self._outputs:
            while self._take(fd):
                pass


def stage(views: dict[bool, ScriptView], program: str) -> dict[bool, ScriptView]:
    """Every source of the views at a path that any user can reach, in a mount namespace that ends with this process."""
    checked(libc.unshare(ctypes.c_int(CLONE_NEWNS)), "unshare")
    mount("none", "/", None, MS_SLAVE | MS_REC)
    sources = sorted({source for view in views.values() for source in view.binds.values()})
    opened = {source: os.open(source, os.O_PATH | os.O_CLOEXEC) for source in sources}
    # A folder that nothing lies in which the launcher and bubblewrap still read.
    read = [Path(path) for path in (__file__, sys.prefix, sys.base_prefix, program)]
    needed = {place for path in read for one in (path, path.resolve()) for place in (one, *one.parents)}
    free = [place for place in map(Path, STAGES) if place.is_dir() and place.resolve() == place and place not in needed]
    if not free:
        raise OSError(f"each of {', '.join(STAGES)} is missing or in use")
    covered = str(free[0])
    mount("tmpfs", covered, "tmpfs", MS_NOSUID | MS_NODEV, "mode=755,size=64k")
    places: dict[str, str] = {}
    for number, (source, fd) in enumerate(opened.items()):
        place = Path(covered) / str(number)
        place.mkdir() if stat.S_ISDIR(os.fstat(fd).st_mode) else place.touch()
        mount(f"/proc/self/fd/{fd}", str(place), None, MS_BIND | MS_REC)
        os.close(fd)
        places[source] = str(place)
    staged = {}
    for packages, view in views.items():
        staged[packages] = replace(view, binds={dest: places[source] for dest, source in view.binds.items()})
    return staged


def mount(source: str, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    words = [None if word is None else os.fsencode(word) for word in (source, target, kind, options)]
    result = libc.mount(words[0], words[1], words[2], ctypes.c_ulong(flags), words[3])
    checked(result, f"mount {kind or 'bind'} on {target}")
