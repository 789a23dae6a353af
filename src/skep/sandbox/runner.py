"""The sandbox as its callers see it. It is tried out when it is opened. Runs are handed over to a
launcher process that stays; closing the socket of a run cancels it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
import select
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

from skep.errors import SkepError, UserError
from skep.sandbox.bubblewrap import (
    FILTER,
    SandboxLimits,
    SandboxScript,
    ScriptResult,
    pack_order,
    unpack_result,
)
from skep.sandbox.launcher import BEGIN_SCRIPT, setup_text
from skep.sandbox.view import view

START_S = 10.0
DYING_S = 5.0  # for a launcher whose sockets are closed already, on a busy machine
GRACE_S = 30.0  # beyond a run's own limit, for a machine that is very busy


class Sandbox:
    """Runs scripts. The caller bounds how many run at once."""

    name = "bubblewrap"  # as verdicts tell it

    def __init__(self, program: str) -> None:
        self._program = program
        self._view = view()
        self._launcher: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._live: set[socket.socket] = set()

    async def run(
        self, script: SandboxScript, limits: SandboxLimits | None = None
    ) -> ScriptResult:
        """Run a script. Never raises for what the script does.

        When the call is cancelled, it returns once every process of the script has ended.
        """
        try:
            link = self._hand_over()
        except OSError as error:  # no descriptor left, or the launcher died at this moment
            raise SkepError(
                f"the sandbox could not be checked: {error}", hint="see `skep doctor`"
            ) from error
        launcher = self._launcher
        try:
            line = await self._exchange(link, pack_order(script, limits or SandboxLimits()))
        finally:
            self._live.discard(link)
            link.close()
        if not line.endswith(b"\n") and launcher is not None:
            await asyncio.to_thread(end_group_of_dead, launcher)
        return _result(line)

    def try_out(self, script: SandboxScript, limits: SandboxLimits) -> ScriptResult:
        """Run a script and block meanwhile: for a trial before there is an event loop."""
        with self._hand_over() as link:
            self._live.discard(link)
            link.settimeout(limits.seconds + GRACE_S)
            link.sendall(pack_order(script, limits))
            with link.makefile("rb") as answer:
                return _result(answer.read())

    async def close(self) -> None:
        await asyncio.to_thread(self.close_now)

    def close_now(self) -> None:
        """End the scripts that still run, and the launcher."""
        for link in list(self._live):
            with contextlib.suppress(OSError):
                link.shutdown(socket.SHUT_RDWR)
        launcher = self._launcher
        control = self._control
        self._launcher = self._control = None
        if control is not None:
            control.close()
        if launcher is not None and not end_group_of_dead(launcher, wait_s=START_S):
            launcher.kill()
            end_group_of_dead(launcher, wait_s=START_S)

    async def _exchange(self, link: socket.socket, order: bytes) -> bytes:
        """Send the order and return the answer.

        When the call is cancelled, close our half, and wait until the supervisor has ended the
        script and closed its half, too.
        """
        loop = asyncio.get_running_loop()
        link.setblocking(False)
        try:
            await loop.sock_sendall(link, order)
            return await _read_to_end(loop, link)
        except asyncio.CancelledError:
            with contextlib.suppress(OSError):
                link.shutdown(socket.SHUT_WR)
            ending = asyncio.ensure_future(_read_to_end(loop, link))
            while not ending.done():
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.shield(ending)
            ending.exception()  # read, or asyncio would log it
            raise
        except OSError as error:
            raise _failed(str(error)) from error

    def _hand_over(self) -> socket.socket:
        """Return a new run's socket, whose other end is a supervisor's.

        A launcher that was killed is started anew.
        """
        if self._launcher is None or end_group_of_dead(self._launcher, wait_s=0.0):
            if self._control is not None:
                self._control.close()
            self._start()
        try:
            return self._ask_supervisor()
        except ConnectionError:  # it is dying: its socket is closed, its end not reported yet
            self.close_now()
            self._start()
            return self._ask_supervisor()

    def _ask_supervisor(self) -> socket.socket:
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
                    [sys.executable, "-I", "-S", "-c", BEGIN_SCRIPT],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    env={},
                    pass_fds=(theirs.fileno(),),
                    start_new_session=True,  # an interrupt is skep's business
                )
                assert self._launcher.stdin is not None
                with self._launcher.stdin as pipe:
                    pipe.write(setup_text(theirs.fileno(), self._program, self._view).encode())
            ours.settimeout(START_S)
            message = ours.recv(1000)
            ours.settimeout(None)
        except OSError as error:
            message = str(error).encode()
        self._control = ours
        if message != b"ready":
            self.close_now()
            why = message.decode(errors="replace").removeprefix("error: ")
            raise SkepError(f"the sandbox cannot be set up: {why or 'its launcher ended at once'}")


def end_group_of_dead(launcher: subprocess.Popen[bytes], wait_s: float = DYING_S) -> bool:
    """Kill the processes that a killed launcher left in its group. Return False if it lives.

    bubblewrap ends with its parent, but where it is killed while it makes its first process, that
    process waits for ever. The group is killed before the launcher is reaped: afterwards its
    number may be another's.
    """
    if launcher.returncode is None:
        with contextlib.closing(select.epoll()) as ending:
            pidfd = os.pidfd_open(launcher.pid)
            try:
                ending.register(pidfd, select.EPOLLIN)
                if not ending.poll(wait_s):
                    return False
            finally:
                os.close(pidfd)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(launcher.pid, signal.SIGKILL)
        launcher.wait()
    return True


async def _read_to_end(loop: asyncio.AbstractEventLoop, link: socket.socket) -> bytes:
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


TRIAL_LIMITS = SandboxLimits(seconds=15.0, output_bytes=4096)
APPARMOR_SETTING = Path("/proc/sys/kernel/apparmor_restrict_unprivileged_userns")
CLONE_SETTING = Path("/proc/sys/kernel/unprivileged_userns_clone")  # Debian's own switch
NAMESPACE_LIMIT_SETTING = Path("/proc/sys/user/max_user_namespaces")
INSTALL_COMMANDS = {
    "apt": "apt install",
    "dnf": "dnf install",
    "pacman": "pacman -S",
    "zypper": "zypper install",
}
TRIAL_SCRIPT = """
import os, socket
status = dict(line.split(":", 1) for line in open("/proc/self/status").read().splitlines())
assert os.getuid() != 0 and not int(status["CapEff"], 16), "it has privileges"
assert int(status["NoNewPrivs"]) == 1, "it can gain privileges"
processes = sorted(map(int, filter(str.isdigit, os.listdir("/proc"))))
assert processes == [1, os.getpid()], "it sees other processes"
interfaces = [line.split(":")[0].strip() for line in open("/proc/net/dev") if ":" in line]
assert interfaces == ["lo"], f"it has a network: {interfaces}"
server = socket.create_server(("127.0.0.1", 0))
socket.create_connection(server.getsockname(), 5)
try:
    open("/written", "w")
except OSError:
    pass
else:
    raise AssertionError("it can write outside of its folder")
open("written", "w").write("here")
print("closed")
"""


def open_sandbox() -> Sandbox:
    """Start a sandbox and try it out.

    Raises UserError, with a remedy, where bubblewrap is missing or the trial fails.
    """
    program = shutil.which("bwrap")
    if program is None:
        raise UserError(
            "code cannot be run safely here: no program `bwrap` on PATH", hint=remedy()
        )
    if not FILTER:
        raise UserError(
            f"code cannot be run safely on {platform.machine()}",
            hint="x86_64 and aarch64 have a sandbox",
        )
    sandbox = Sandbox(program)
    failure = _failure(sandbox)
    if failure is not None:
        sandbox.close_now()
        raise UserError(f"code cannot be run safely here: bubblewrap: {failure}", hint=remedy())
    return sandbox


def remedy() -> str:
    """Return what to install or to allow, by what this machine lacks or forbids."""
    if shutil.which("bwrap") is None:
        return how_to_install("bubblewrap")
    if _holds(APPARMOR_SETTING, "1"):
        return (
            "AppArmor keeps user namespaces from bubblewrap: "
            "`sudo apt install bubblewrap apparmor-profiles`, then "
            "`sudo install -m 644 /usr/share/apparmor/extra-profiles/bwrap-userns-restrict "
            "/etc/apparmor.d/` and "
            "`sudo apparmor_parser -r /etc/apparmor.d/bwrap-userns-restrict`; "
            "or, for all programs, `sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0`"
        )
    if _holds(CLONE_SETTING, "0"):
        return (
            "user namespaces are switched off: `sudo sysctl -w kernel.unprivileged_userns_clone=1`"
        )
    if _holds(NAMESPACE_LIMIT_SETTING, "0"):
        return "user namespaces are switched off: `sudo sysctl -w user.max_user_namespaces=15000`"
    return (
        "in a container, allow user namespaces and an unmasked /proc, or run skep outside of it "
        "(docs/sandbox.md)"
    )


def how_to_install(package: str) -> str:
    """Return the sentence with the command of this system's package manager."""
    for program, command in INSTALL_COMMANDS.items():
        if shutil.which(program):
            return f"install {package}: `sudo {command} {package}`"
    return f"install the package `{package}`"


def _failure(sandbox: Sandbox) -> str | None:
    """Return why a trial run in the sandbox failed; None: it did not fail."""
    try:
        result = sandbox.try_out(SandboxScript(("-c", TRIAL_SCRIPT)), TRIAL_LIMITS)
        if result.ok and result.stdout == b"closed\n":
            return None
    except (SkepError, OSError) as error:
        return str(error).removeprefix("the sandbox failed: ")
    error_lines = result.stderr.decode(errors="replace").strip().splitlines()
    last_line = error_lines[-1] if error_lines else result.ending.value
    return f"a trial in it ended with: {last_line}"


def _holds(path: Path, value: str) -> bool:
    """Return whether a setting of the kernel has this value."""
    try:
        return path.read_text().strip() == value
    except OSError:
        return False
