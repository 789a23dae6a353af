"""The sandbox as its callers see it: runs are handed to a launcher that stays, and cancelled by hanging up."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
from dataclasses import asdict
from pathlib import PurePosixPath

from skep.errors import SkepError
from skep.sandbox.bubblewrap import view
from skep.sandbox.launcher import BEGIN, setup_text
from skep.sandbox.script import SandboxLimits, SandboxScript, ScriptResult, pack_order, unpack_result

START_S = 10.0
GRACE_S = 30.0  # beyond a run's own limit, for a machine that is very busy
MOST_FILES = 200
LONGEST_ARGUMENT = 120_000  # the kernel takes 128 KiB for one


class Sandbox:
    """As many runs at once as there are cores; the others wait their turn."""

    name = "bubblewrap"  # as verdicts tell it

    def __init__(self, program: str) -> None:
        self._program = program
        self._views = {packages: view(packages=packages) for packages in (True, False)}
        self._places: tuple[asyncio.AbstractEventLoop, asyncio.Semaphore] | None = None  # a semaphore has one loop
        self._launcher: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._live: set[socket.socket] = set()

    async def run(self, script: SandboxScript, limits: SandboxLimits | None = None) -> ScriptResult:
        """Never raises for what the script does. Cancelled: everything it started is gone."""
        limits = limits or SandboxLimits()
        check(script, limits)
        async with self._turn():
            try:
                link = self._hand_over()
            except OSError as error:  # no descriptor left, or the launcher died at this moment
                raise SkepError(f"the sandbox could not be checked: {error}", hint="see `skep doctor`") from error
            try:
                return _result(await self._exchange(link, pack_order(script, limits)))
            finally:
                self._live.discard(link)
                link.close()

    def try_out(self, script: SandboxScript, limits: SandboxLimits) -> ScriptResult:
        """The same, blocking: for a trial before there is an event loop."""
        check(script, limits)
        with self._hand_over() as link:
            self._live.discard(link)
            link.settimeout(limits.seconds + GRACE_S)
            link.sendall(pack_order(script, limits))
            with link.makefile("rb") as answer:
                return _result(answer.read())

    async def close(self) -> None:
        await asyncio.to_thread(self.close_now)

    def close_now(self) -> None:
        """Ends what still runs, and the launcher."""
        for link in list(self._live):
            with contextlib.suppress(OSError):
                link.shutdown(socket.SHUT_RDWR)
        launcher, control = self._launcher, self._control
        self._launcher = self._control = None
        if control is not None:
            control.close()
        if launcher is not None:
            try:
                launcher.wait(START_S)
            except subprocess.TimeoutExpired:
                launcher.kill()
                launcher.wait()

    def _turn(self) -> asyncio.Semaphore:
        loop = asyncio.get_running_loop()
        if self._places is None or self._places[0] is not loop:
            self._places = (loop, asyncio.Semaphore(len(os.sched_getaffinity(0))))
        return self._places[1]

    async def _exchange(self, link: socket.socket, order: bytes) -> bytes:
        """Cancelled: hangs up its half, and waits until the supervisor has cleared away and hung up too."""
        loop = asyncio.get_running_loop()
        link.setblocking(False)
        try:
            await loop.sock_sendall(link, order)
            return await _everything(loop, link)
        except asyncio.CancelledError:
            with contextlib.suppress(OSError):
                link.shutdown(socket.SHUT_WR)
            ending = asyncio.ensure_future(_everything(loop, link))
            while not ending.done():
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.shield(ending)
            ending.exception()
            raise
        except OSError as error:
            raise _failed(str(error)) from error

    def _hand_over(self) -> socket.socket:
        """A new run's socket, whose other end is a supervisor's. The launcher is started anew where it was killed."""
        if self._launcher is None or self._launcher.poll() is not None:
            if self._control is not None:
                self._control.close()
            self._start()
        assert self._control is not None
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                socket.send_fds(self._control, [b"r"], [theirs.fileno()])
            except OSError:
                ours.close()
                raise
        self._live.add(ours)
        return ours

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                self._launcher = subprocess.Popen(
                    [sys.executable, "-I", "-S", "-c", BEGIN],
                    stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={},
                    pass_fds=(theirs.fileno(),), start_new_session=True,  # an interrupt is skep's business
                )  # fmt: skip
                assert self._launcher.stdin is not None
                with self._launcher.stdin as pipe:
                    pipe.write(setup_text(theirs.fileno(), self._program, self._views).encode())
            ours.settimeout(START_S)
            said = ours.recv(1000)
            ours.settimeout(None)
        except OSError as error:
            said = str(error).encode()
        self._control = ours
        if said != b"ready":
            self.close_now()
            why = said.decode(errors="replace").removeprefix("error: ") or "its launcher ended at once"
            raise SkepError(f"the sandbox cannot be set up: {why}")


def check(script: SandboxScript, limits: SandboxLimits) -> None:
    """ValueError for an order that cannot be carried out as it stands."""
    for word in script.argv:
        if "\0" in word:
            raise ValueError("an argument of a script has a NUL byte")
        if len(os.fsencode(word)) > LONGEST_ARGUMENT:
            raise ValueError(f"an argument of a script has more than {LONGEST_ARGUMENT} bytes: put it into a file")
    if len(script.files) > MOST_FILES:
        raise ValueError(f"a script has {len(script.files)} files, at most {MOST_FILES} are possible")
    for name in script.files:
        path = PurePosixPath(name)
        if "\0" in name or path.is_absolute() or ".." in path.parts or str(path) != name or name == ".":
            raise ValueError(f"a script's file cannot be named {name!r}")
    paths = {PurePosixPath(name) for name in script.files}
    for path in paths:
        if below := paths.intersection(path.parents):
            raise ValueError(f"a script's file {str(below.pop())!r} is also the folder of {str(path)!r}")
    size = sum(map(len, script.files.values()))
    if size > limits.disk_bytes:
        raise ValueError(f"a script's files have {size} bytes, more than the {limits.disk_bytes} of its folder")
    for name, value in asdict(limits).items():
        if not value > 0:
            raise ValueError(f"the limit `{name}` is {value}, it has to be more than 0")


async def _everything(loop: asyncio.AbstractEventLoop, link: socket.socket) -> bytes:
    data = bytearray()
    while piece := await loop.sock_recv(link, 1 << 16):
        data += piece
    return bytes(data)


def _result(line: bytes) -> ScriptResult:
    try:
        outcome = unpack_result(line)
    except EOFError:
        outcome = "its supervising process was killed"
    if isinstance(outcome, str):
        raise _failed(outcome)
    return outcome


def _failed(why: str) -> SkepError:
    return SkepError(f"the sandbox failed: {why}", hint="`skep doctor` checks the sandbox")
