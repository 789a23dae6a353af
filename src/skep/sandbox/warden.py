"""The warden: one small process for one run. It starts the room, feeds it, reads it, watches it and clears it away.

It decides by itself, so that the limits hold however busy skep's event loop is, and a run that takes memory or time
does not disturb a measurement in skep. Its socket to skep is its life: when that ends, the run ends.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import time
from dataclasses import dataclass
from pathlib import Path

from skep.sandbox.base import Ending, Limits, Result
from skep.sandbox.cell import Cell, Streams, Way
from skep.sandbox.interpreter import View
from skep.sandbox.kernel import PR_SET_CHILD_SUBREAPER, prctl
from skep.sandbox.messages import Order, Outcome, Read, pack_outcome, unpack_order
from skep.sandbox.watching import Watch

LOOK_S = 0.03
BLIND_S = 5.0  # a room that cannot be looked into for so long is given up
PIECE = 64 << 10


@dataclass(frozen=True, slots=True)
class Link:
    """The socket to skep, and what becomes readable when the launcher has died. Either's end is the run's end.

    A signal at the launcher's death would be quicker, and too quick: bubblewrap ties its first process to itself only
    when that is about to start the script, and one that loses its parent before is never told.
    """

    socket: socket.socket
    life_fd: int


def serve(link: Link, way: Way, views: dict[bool, View], uid: int) -> None:
    """Carries out the one order that comes over `link`, and answers it unless nobody waits any more."""
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    with link.socket, contextlib.suppress(OSError, EOFError):
        order = unpack_order(_exactly(link.socket))
        try:
            outcome = Run(link, order, way, views[order.script.packages], uid).carry_out()
        except OSError as error:
            outcome = Outcome(None, str(error))
        finally:
            clear_away()
        link.socket.setblocking(True)
        link.socket.sendall(pack_outcome(outcome))


def clear_away() -> None:
    """No process is left. The first one of a namespace takes all of it along, and its end waits for theirs.

    Whoever loses its parent becomes a child of the warden, and only its children are killed: no number of a process
    that has ended meanwhile, and has been given to another one, can be hit.
    """
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


class Run:
    def __init__(self, link: Link, order: Order, way: Way, view: View, uid: int) -> None:
        self._link = link
        self._order = order
        self._view = view
        self._way = way
        self._uid = uid
        self._selector = selectors.DefaultSelector()
        self._taken = {1: bytearray(), 2: bytearray()}
        self._pending = memoryview(order.script.stdin)
        self._verdict: Ending | None = None
        self._watch: Watch | None = None
        self._ended: int | None = None
        self._abandoned = False  # nobody waits for it any more, or nobody could clear away after this process

    def carry_out(self) -> Outcome:
        limits = self._order.limits
        began = time.monotonic()
        cell = self._start()
        try:
            self._follow(cell, began, limits)
        finally:
            if self._watch is not None:
                self._watch.close()
        seconds = time.monotonic() - began
        clear_away()
        self._drain(cell)
        return self._outcome(cell, seconds)

    def _start(self) -> Cell:
        stdin_read, self._stdin = os.pipe()
        stdout_read, stdout_write = os.pipe()
        stderr_read, stderr_write = os.pipe()
        self._outputs = {stdout_read: 1, stderr_read: 2}
        cell = self._way.start(self._order, self._view, Streams(stdin_read, stdout_write, stderr_write), self._uid)
        for fd in (stdin_read, stdout_write, stderr_write):
            os.close(fd)
        for fd in (self._stdin, stdout_read, stderr_read):
            os.set_blocking(fd, False)
        self._link.socket.setblocking(False)
        self._selector.register(self._link.socket, selectors.EVENT_READ)
        self._selector.register(self._link.life_fd, selectors.EVENT_READ)
        self._selector.register(cell.status_fd, selectors.EVENT_READ)
        for fd in self._outputs:
            self._selector.register(fd, selectors.EVENT_READ)
        if self._pending:
            self._selector.register(self._stdin, selectors.EVENT_WRITE)
        else:
            os.close(self._stdin)
        return cell

    def _follow(self, cell: Cell, began: float, limits: Limits) -> None:
        """Until it has ended, or has to."""
        pidfd = os.pidfd_open(cell.pid)
        self._selector.register(pidfd, selectors.EVENT_READ)
        look = began
        try:
            while self._verdict is None:
                left = began + limits.seconds - time.monotonic()
                for key, _ in self._selector.select(max(0.0, min(LOOK_S, left))):
                    if key.fd == pidfd:
                        self._ended = os.waitpid(cell.pid, 0)[1]
                        return
                    if key.fd in (self._link.socket.fileno(), self._link.life_fd):
                        self._abandoned = True
                        return
                    self._attend(key.fd, cell)
                now = time.monotonic()
                if self._verdict is None and now >= began + limits.seconds:
                    self._verdict = Ending.OUT_OF_TIME
                elif self._verdict is None and now >= look:
                    look = now + LOOK_S
                    self._look(cell, limits)
                    if now > began + BLIND_S and (self._watch is None or not self._watch.opened):
                        raise OSError("its memory cannot be watched")
        finally:
            self._selector.unregister(pidfd)
            os.close(pidfd)

    def _look(self, cell: Cell, limits: Limits) -> None:
        if self._watch is None and cell.init_pid is not None:
            self._watch = Watch(cell.init_pid)
        if self._watch is not None and self._watch.over(limits.memory_bytes):
            self._verdict = Ending.OUT_OF_MEMORY

    def _attend(self, fd: int, cell: Cell) -> None:
        if fd in self._outputs:
            self._take(fd)
        elif fd == cell.status_fd:
            news = os.read(fd, PIECE)
            cell.hear(news) if news else self._selector.unregister(fd)
        else:
            self._feed()

    def _take(self, fd: int) -> bool:
        """False at its end. What is over the limit is not kept."""
        try:
            piece = os.read(fd, PIECE)
        except BlockingIOError:
            return False
        kept = self._taken[self._outputs[fd]]
        room = self._order.limits.output_bytes - len(kept)
        kept += piece[:room]
        if len(piece) > room and self._verdict is None:
            self._verdict = Ending.TOO_MUCH_OUTPUT
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

    def _drain(self, cell: Cell) -> None:
        """All writers are gone: what is still in the pipes is all there will be."""
        with contextlib.suppress(BlockingIOError):
            if news := os.read(cell.status_fd, PIECE):
                cell.hear(news)
        for fd in self._outputs:
            while self._take(fd):
                pass

    def _outcome(self, cell: Cell, seconds: float) -> Outcome:
        stdout, stderr = bytes(self._taken[1]), bytes(self._taken[2])
        if self._abandoned:
            return Outcome(None, "its launcher was killed")
        if self._verdict is not None:
            return Outcome(Result(self._verdict, None, None, stdout, stderr, seconds))
        ended = cell.exit(self._ended, stderr)
        if ended.failure is not None:
            return Outcome(None, ended.failure)
        ending = Ending.EXITED if ended.code is not None else Ending.KILLED
        return Outcome(Result(ending, ended.code, ended.signal, stdout, stderr, seconds))


def _exactly(link: socket.socket) -> Read:
    def read(count: int) -> bytes:
        data = bytearray()
        while len(data) < count:
            piece = link.recv(count - len(data))
            if not piece:
                raise EOFError
            data += piece
        return bytes(data)

    return read
