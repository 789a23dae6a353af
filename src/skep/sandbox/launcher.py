"""The launcher: a small process that stays, and starts, feeds, watches and ends each script in a
thread of its own.

Limits hold however busy skep's event loop is. A process that loses its parent inside becomes a
child of the launcher, which ends it. The launcher ends when its socket to skep is closed."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import json
import os
import selectors
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from dataclasses import asdict, replace
from io import FileIO
from pathlib import Path
from typing import Any

from skep.sandbox.bubblewrap import (
    Bubblewrap,
    SandboxLimits,
    SandboxScript,
    ScriptEnding,
    ScriptResult,
    checked,
    libc,
    pack_result,
    prctl,
    unpack_order,
)
from skep.sandbox.view import BOX, ScriptView

# Of /proc/PID/status, which costs little, and of smaps_rollup, which tells shared pages apart.
STATUS_FIELDS = (b"RssAnon:", b"RssShmem:", b"VmSwap:", b"VmPTE:")
SMAPS_FIELDS = (b"Pss_Anon:", b"Pss_Shmem:", b"SwapPss:")
MOST_FILES = 8192  # of the folder; an empty file takes no room but memory all the same
FILE_BYTES = 1024  # what the kernel keeps for each, about
SOCKET_BYTES = 256 << 10  # what a unix socket may hold; how much it does hold is told nowhere
QUEUE_TABLES = ("tcp", "tcp6", "udp", "udp6")  # of /proc/net: they tell what is queued


class MemoryWatch:
    """Measures the memory that a script uses. It opens as soon as the first process of its
    bubblewrap has its own root.
    """

    def __init__(self, bubblewrap: Bubblewrap) -> None:
        self._bubblewrap = bubblewrap
        self._proc: int | None = None
        self._box: int | None = None

    def close(self) -> None:
        for fd in (self._proc, self._box):
            if fd is not None:
                os.close(fd)

    @property
    def opened(self) -> bool:
        return self._box is not None

    def over(self, limit_bytes: int) -> bool:
        """Return whether the script uses more than this.

        Forked processes share pages. The plain sum is cheap, so shared pages are divided only
        where that sum is too much.
        """
        if not self._open():
            return False
        assert self._box is not None
        box = os.fstatvfs(self._box)
        files = box.f_files - box.f_ffree
        if files > MOST_FILES:
            return True
        file_bytes = (box.f_blocks - box.f_bfree) * box.f_frsize + files * FILE_BYTES
        room_bytes = limit_bytes - file_bytes - self._socket_bytes()
        pids = [pid for pid in self._list(".") if pid.isdigit() and pid != "1"]
        if sum(map(self._plain, pids)) <= room_bytes:
            return False
        return sum(map(self._divided, pids)) > room_bytes

    def _socket_bytes(self) -> int:
        """Return what sockets hold: memory of the kernel, which a script could fill."""
        held_bytes = self._text("1/net/unix").count(b"\n") * SOCKET_BYTES
        for table in QUEUE_TABLES:
            _, *lines = self._text(f"1/net/{table}").splitlines() or [b""]
            for columns in map(bytes.split, lines):
                if len(columns) > 4:  # bytes to be sent and to be read, "00000000:0000001A"
                    held_bytes += sum(int(size, 16) for size in columns[4].split(b":"))
        return held_bytes

    def _open(self) -> bool:
        """Open the folders of the script's root once it has one; return whether they are open."""
        if self._box is not None or self._bubblewrap.init_pid is None:
            return self._box is not None
        root = f"/proc/{self._bubblewrap.init_pid}/root"
        try:
            theirs = os.stat(root)  # noqa: PTH116
            ours = os.stat("/")  # noqa: PTH116
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
        """Return the memory of a process, each page divided by the processes that share it.

        As in `_plain` where the kernel does not tell: before 5.4 it has only some of the fields.
        """
        text = self._text(f"{pid}/smaps_rollup")
        shared_bytes = _bytes_of(text, SMAPS_FIELDS) if SMAPS_FIELDS[0] in text else None
        if shared_bytes is None:
            return self._plain(pid)
        return shared_bytes

    def _plain(self, pid: str) -> int:
        """Return the memory of a process, shared pages included.

        A process whose first thread has ended keeps its memory, but shows it in the other threads
        only.
        """
        used_bytes = _bytes_of(self._text(f"{pid}/status"), STATUS_FIELDS)
        if used_bytes is not None:
            return used_bytes
        threads = self._list(f"{pid}/task")
        texts = (self._text(f"{pid}/task/{thread}/status") for thread in threads)
        return max((_bytes_of(text, STATUS_FIELDS) or 0 for text in texts), default=0)

    def _list(self, path: str) -> list[str]:
        with contextlib.suppress(OSError):
            return os.listdir(f"/proc/self/fd/{self._proc}/{path}")  # noqa: PTH208
        return []

    def _text(self, path: str) -> bytes:
        with (
            contextlib.suppress(OSError),
            open(f"/proc/self/fd/{self._proc}/{path}", "rb") as file,  # noqa: PTH123
        ):
            return file.read()
        return b""  # it has ended meanwhile


def _bytes_of(text: bytes, fields: tuple[bytes, ...]) -> int | None:
    """Return the sum of these fields in bytes; None: the text has none of them."""
    sizes_kib = [int(line.split()[1]) for line in text.splitlines() if line.startswith(fields)]
    return sum(sizes_kib) * 1024 if sizes_kib else None


# One of these is covered, in a mount namespace of the launcher's own; nothing is written to the
# real one.
STAGE_FOLDERS = ("/mnt", "/media", "/srv", "/opt", "/tmp")  # noqa: S108
EXIT_WAIT_S = 3.0
# Root runs scripts as one of these: no login, no files; low enough for a container's own mapping.
FIRST_UID = 65100
UID_COUNT = 300
LOOK_S = 0.03
SETUP_S = 20.0  # for bubblewrap until the script can begin; none of the script's own time
BLIND_S = 5.0  # a script whose memory cannot be looked at for so long is ended
PIECE_BYTES = 64 << 10
CLONE_NEWNS = 0x00020000
MS_NOSUID = 0x2
MS_NODEV = 0x4
MS_BIND = 0x1000
MS_REC = 0x4000
MS_SLAVE = 0x80000
PR_SET_CHILD_SUBREAPER = 36
BEGIN_SCRIPT = """import json, sys
setup = json.load(sys.stdin)
sys.path.insert(0, setup.pop("source"))
from skep.sandbox.launcher import main
main(setup)
"""


def setup_text(fd: int, program: str, view: ScriptView) -> str:
    """Return the standard input of `BEGIN_SCRIPT`. Any script whose first process is a fork could
    read an argument.
    """
    source = str(Path(__file__).parents[2])
    return json.dumps({"source": source, "fd": fd, "program": program, "view": asdict(view)})


def main(setup: dict[str, Any]) -> None:
    """Serve skep with what `setup_text` says: the `fd` of the socket to it, bubblewrap's program
    and the view.
    """
    control = socket.socket(fileno=setup["fd"])
    control.set_inheritable(False)
    os.chdir("/")
    view = ScriptView(**setup["view"])
    try:
        if os.geteuid() == 0:
            view = stage(view, setup["program"])
    except OSError as error:
        control.sendall(f"error: {error}".encode())
        return
    control.sendall(b"ready")
    SandboxLauncher(control, setup["program"], view).run()


class SandboxLauncher:
    def __init__(self, control: socket.socket, program: str, view: ScriptView) -> None:
        self._control = control
        self._program = program
        self._view = view
        self._uids = itertools.cycle(range(FIRST_UID, FIRST_UID + UID_COUNT))
        self._at_work: set[int] = set()  # bubblewraps that are children of this process
        # Held while children are made, or those of no run are ended.
        self._children = threading.Lock()

    def run(self) -> None:
        """Serve until skep hangs up; runs then have a moment to end what they started."""
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        threads: list[threading.Thread] = []
        while True:
            message, fds, _, _ = socket.recv_fds(self._control, 1, 1)
            if not message:
                break
            threads = [thread for thread in threads if thread.is_alive()]
            link = socket.socket(fileno=fds[0])
            thread = threading.Thread(target=self._serve, args=(link,), daemon=True)
            threads.append(thread)
            thread.start()
        deadline = time.monotonic() + EXIT_WAIT_S
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _serve(self, link: socket.socket) -> None:
        """Carry out the one order that comes over `link`, and answer it unless nobody waits any
        more.
        """
        with link, contextlib.suppress(OSError, EOFError):
            with link.makefile("rb") as order:
                script, limits = unpack_order(order.readline())
            try:
                result = self._carry_out(link, script, limits)
            except OSError as error:
                result = str(error)
            link.setblocking(True)
            link.sendall(pack_result(result))

    def _carry_out(
        self, link: socket.socket, script: SandboxScript, limits: SandboxLimits
    ) -> ScriptResult | str:
        with SupervisedRun(link, script, limits, self._children) as run:
            with self._children:
                # Root gives each script a uid of its own outside; others have only theirs.
                uid = next(self._uids) if os.geteuid() == 0 else os.getuid()
                process = run.start(self._program, self._view, uid)
                self._at_work.add(process.pid)
            try:
                run.follow()
            finally:
                self._end(process, run.init_pid)
            return run.result()

    def _end(self, process: subprocess.Popen[bytes], init_pid: int | None) -> None:
        """End all processes of a run.

        The end of the first process inside ends all of the others, and waits for them.
        """
        process.kill()
        process.wait()
        with self._children:
            self._at_work.discard(process.pid)
            orphans = children()
            if init_pid:
                orphans.add(init_pid)
            for orphan in orphans - self._at_work:
                # It may be no child of this process, or a child no longer.
                with contextlib.suppress(ChildProcessError):
                    if os.waitpid(orphan, os.WNOHANG)[0] == 0:
                        os.kill(orphan, signal.SIGKILL)
                        os.waitpid(orphan, 0)


def children() -> set[int]:
    """Return the children of each thread. The kernel may leave some out while others end."""
    pids: set[int] = set()
    for task in Path(f"/proc/{os.getpid()}/task").iterdir():
        with contextlib.suppress(OSError):  # the thread has ended
            pids |= {int(word) for word in (task / "children").read_text().split()}
    return pids


class SupervisedRun(contextlib.ExitStack):
    """One script in bubblewrap.

    Ends with the script, at a limit, or when `link`, the socket to skep, is closed.
    """

    def __init__(
        self,
        link: socket.socket,
        script: SandboxScript,
        limits: SandboxLimits,
        children: threading.Lock,
    ) -> None:
        super().__init__()
        self._link = link
        self._script = script
        self._limits = limits
        self._children = children
        self._selector = self.enter_context(selectors.DefaultSelector())
        self._outputs: dict[int, bytearray] = {}
        self._pending = memoryview(script.stdin)
        self._verdict: ScriptEnding | None = None
        self._began = self._ended = time.monotonic()

    def start(self, program: str, view: ScriptView, uid: int) -> subprocess.Popen[bytes]:
        pipes = [os.pipe() for _ in range(3)]
        ours = [pipes[0][1], pipes[1][0], pipes[2][0]]
        theirs = (pipes[0][0], pipes[1][1], pipes[2][1])
        self._stdin, *outputs = (self.enter_context(FileIO(fd, "r+")) for fd in ours)
        try:
            self._bubblewrap = Bubblewrap(program, self._script, self._limits, view, theirs, uid)
        finally:
            for fd in theirs:
                os.close(fd)
        self.callback(self._bubblewrap.close)
        self._watch = self.enter_context(contextlib.closing(MemoryWatch(self._bubblewrap)))
        for fd in ours:
            os.set_blocking(fd, False)
        self._link.setblocking(False)
        self._outputs = {output.fileno(): bytearray() for output in outputs}
        for readable in (self._link.fileno(), self._bubblewrap.status_fd, *self._outputs):
            self._selector.register(readable, selectors.EVENT_READ)
        self._selector.register(self._stdin, selectors.EVENT_WRITE)
        return self._bubblewrap.process

    @property
    def init_pid(self) -> int | None:
        return self._bubblewrap.init_pid

    def follow(self) -> None:
        """Feed and watch the script until it has ended or has to end.

        Its time begins when bubblewrap may start it.
        """
        bubblewrap = self._bubblewrap
        ended = os.pidfd_open(bubblewrap.process.pid)
        self.callback(os.close, ended)
        self._selector.register(ended, selectors.EVENT_READ)
        next_look_s = self._began
        while self._verdict is None:
            released = bubblewrap.released_s
            if released is None:
                deadline = self._began + SETUP_S
            else:
                deadline = released + self._limits.seconds
            wait_s = max(0.0, min(LOOK_S, deadline - time.monotonic()))
            ready = {key.fd for key, _ in self._selector.select(wait_s)}
            self._ended = now = time.monotonic()
            if ended in ready:
                return
            self._move(ready)
            if self._verdict is not None or bubblewrap.released_s != released:
                continue
            if now >= deadline:
                if released is None:
                    raise OSError(f"bubblewrap was not ready within {SETUP_S:.0f} s")
                self._verdict = ScriptEnding.OUT_OF_TIME
            elif now >= next_look_s:
                next_look_s = now + LOOK_S
                self._check_memory(now)

    def _move(self, ready: set[int]) -> None:
        """Pass on what there is to be read and written."""
        if self._link.fileno() in ready:
            raise EOFError  # nobody waits for the result any more
        for fd in ready & self._outputs.keys():
            self._read_output(fd)
        if self._bubblewrap.status_fd in ready:
            with self._children:
                if not self._bubblewrap.read_status():
                    self._selector.unregister(self._bubblewrap.status_fd)
        if not self._stdin.closed and self._stdin.fileno() in ready:
            self._feed()

    def _check_memory(self, now: float) -> None:
        if self._watch.over(self._limits.memory_bytes):
            self._verdict = ScriptEnding.OUT_OF_MEMORY
        released = self._bubblewrap.released_s
        if not self._watch.opened and released is not None and now > released + BLIND_S:
            raise OSError("its memory cannot be watched")

    def _read_output(self, fd: int) -> bool:
        """Read what is ready; return False at its end. Output over the limit is not kept."""
        try:
            piece = os.read(fd, PIECE_BYTES)
        except BlockingIOError:
            return False
        output = self._outputs[fd]
        room = self._limits.output_bytes - len(output)
        output += piece[:room]
        if len(piece) > room and self._verdict is None:
            self._verdict = ScriptEnding.TOO_MUCH_OUTPUT
        if not piece and fd in self._selector.get_map():
            self._selector.unregister(fd)
        return bool(piece)

    def _feed(self) -> None:
        try:
            self._pending = self._pending[self._stdin.write(self._pending[:PIECE_BYTES]) or 0 :]
        except BrokenPipeError:
            self._pending = self._pending[:0]
        if not self._pending:
            self._selector.unregister(self._stdin)
            self._stdin.close()

    def result(self) -> ScriptResult | str:
        """Return how the script ended, or why it was never started.

        All writers are gone, so no more output follows the rest that is in the pipes.
        """
        self._bubblewrap.read_status()
        for fd in self._outputs:
            while self._read_output(fd):
                pass
        stdout, stderr = map(bytes, self._outputs.values())
        seconds = self._ended - (self._bubblewrap.released_s or self._began)
        if self._verdict is not None:
            return ScriptResult(self._verdict, None, None, stdout, stderr, seconds)
        ending = self._bubblewrap.ending(stderr)
        if isinstance(ending, str):
            return ending
        return ScriptResult(*ending, stdout, stderr, seconds)


def stage(view: ScriptView, program: str) -> ScriptView:
    """Return the view with every source at a path that any user can reach, in a mount namespace
    that ends with this process.
    """
    checked(libc.unshare(ctypes.c_int(CLONE_NEWNS)), "unshare")
    mount("none", "/", None, MS_SLAVE | MS_REC)
    sources = sorted({*view.binds.values()})
    opened = {source: os.open(source, os.O_PATH | os.O_CLOEXEC) for source in sources}
    # The folder that is covered must hold no file that the launcher and bubblewrap still read.
    needed: set[Path] = set()
    for path in map(Path, (__file__, sys.prefix, sys.base_prefix, program)):
        for form in (path, path.resolve()):
            needed.update((form, *form.parents))
    free = [
        place
        for place in map(Path, STAGE_FOLDERS)
        if place.is_dir() and place.resolve() == place and place not in needed
    ]
    if not free:
        raise OSError(f"each of {', '.join(STAGE_FOLDERS)} is missing or in use")
    covered = str(free[0])
    mount("tmpfs", covered, "tmpfs", MS_NOSUID | MS_NODEV, "mode=755,size=64k")
    places: dict[str, str] = {}
    for number, (source, fd) in enumerate(opened.items()):
        place = Path(covered) / str(number)
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            place.mkdir()
        else:
            place.touch()
        mount(f"/proc/self/fd/{fd}", str(place), None, MS_BIND | MS_REC)
        os.close(fd)
        places[source] = str(place)
    return replace(view, binds={dest: places[source] for dest, source in view.binds.items()})


def mount(
    source: str, target: str, kind: str | None, flags: int, options: str | None = None
) -> None:
    result = libc.mount(
        os.fsencode(source),
        os.fsencode(target),
        None if kind is None else os.fsencode(kind),
        ctypes.c_ulong(flags),
        None if options is None else os.fsencode(options),
    )
    checked(result, f"mount {kind or 'bind'} on {target}")
