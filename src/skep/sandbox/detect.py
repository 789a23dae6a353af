"""Whether bubblewrap can close a sandbox on this machine. Found out by a script that runs in it and looks around."""

from __future__ import annotations

import shutil
from pathlib import Path

from skep.errors import SkepError, UserError
from skep.sandbox.runner import Sandbox
from skep.sandbox.script import SandboxLimits, SandboxScript, ScriptEnding

TRIAL_LIMITS = SandboxLimits(seconds=15.0, output_bytes=4096)
APPARMOR = Path("/proc/sys/kernel/apparmor_restrict_unprivileged_userns")
CLONE = Path("/proc/sys/kernel/unprivileged_userns_clone")  # Debian's own switch
MOST = Path("/proc/sys/user/max_user_namespaces")
INSTALLING = {"apt": "apt install", "dnf": "dnf install", "pacman": "pacman -S", "zypper": "zypper install"}
TRIAL = """
import os, socket
status = dict(line.split(":", 1) for line in open("/proc/self/status").read().splitlines())
assert os.getuid() != 0 and not int(status["CapEff"], 16), "it has privileges"
assert int(status["NoNewPrivs"]) == 1, "it can gain privileges"
assert sorted(map(int, filter(str.isdigit, os.listdir("/proc")))) == [1, os.getpid()], "it sees other processes"
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
GREEDY = "x = b'x' * (64 << 20)\nimport time\ntime.sleep(10)"
GREEDY_LIMITS = SandboxLimits(seconds=5.0, memory_bytes=32 << 20)


def open_sandbox() -> Sandbox:
    """Start a sandbox and try it out. UserError, with what to do, where bubblewrap is missing or cannot close it."""
    program = shutil.which("bwrap")
    if program is None:
        raise UserError("code cannot be run safely here: no program `bwrap` on PATH", hint=remedy())
    sandbox = Sandbox(program)
    failure = _failure(sandbox)
    if failure is not None:
        sandbox.close_now()
        raise UserError(f"code cannot be run safely here: bubblewrap: {failure}", hint=remedy())
    return sandbox


def remedy() -> str:
    """Return what to install or to lift, by what this machine lacks or forbids."""
    if shutil.which("bwrap") is None:
        found = [f"`sudo {command} bubblewrap`" for program, command in INSTALLING.items() if shutil.which(program)]
        return f"install bubblewrap: {found[0]}" if found else "install the package `bubblewrap`"
    if _says(APPARMOR, "1"):
        return (
            "AppArmor keeps user namespaces from bubblewrap: `sudo apt install bubblewrap apparmor-profiles`, then "
            "`sudo install -m 644 /usr/share/apparmor/extra-profiles/bwrap-userns-restrict /etc/apparmor.d/` and "
            "`sudo apparmor_parser -r /etc/apparmor.d/bwrap-userns-restrict`; or, for all programs, "
            "`sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0`"
        )
    if _says(CLONE, "0"):
        return "user namespaces are switched off: `sudo sysctl -w kernel.unprivileged_userns_clone=1`"
    if _says(MOST, "0"):
        return "user namespaces are switched off: `sudo sysctl -w user.max_user_namespaces=15000`"
    return "in a container, allow user namespaces and an unmasked /proc, or run skep outside of it (docs/sandbox.md)"


def _failure(sandbox: Sandbox) -> str | None:
    """Say why a trial in it failed. None: it did not."""
    try:
        result = sandbox.try_out(SandboxScript(("-c", TRIAL)), TRIAL_LIMITS)
        if result.ok and result.stdout == b"closed\n":
            result = sandbox.try_out(SandboxScript(("-I", "-S", "-c", GREEDY), packages=False), GREEDY_LIMITS)
            if result.ending is ScriptEnding.OUT_OF_MEMORY:
                return None
    except (SkepError, OSError) as error:
        return str(error).removeprefix("the sandbox failed: ")
    said = result.stderr.decode(errors="replace").strip().splitlines()
    return f"a trial in it ended with: {said[-1] if said else result.ending.value}"


def _says(path: Path, value: str) -> bool:
    try:
        return path.read_text().strip() == value
    except OSError:
        return False
