"""Ways to take more than was given, or to make the sandbox fail in a way its callers do not expect."""

import asyncio
import gc
import os
import signal
import socket
from pathlib import Path

import pytest

from skep.errors import SkepError
from skep.sandbox.script import SandboxLimits, SandboxScript, ScriptEnding

MEMORY = 64 << 20
MOST_SENT = Path("/proc/sys/net/core/wmem_max")
SOCKETS = """
import socket
held, pairs = 0, []
try:
    while held < 256 << 20:
        one, other = socket.socketpair()
        one.setblocking(False)
        one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 24)
        pairs.append((one, other))
        try:
            while True:
                held += one.send(bytes(65536))
        except BlockingIOError:
            pass
except OSError:
    pass
print(held, flush=True)
import time
time.sleep(0.3)
"""


def test_what_waits_in_sockets_counts_as_memory(sandbox):
    """With a limit of 128 MiB four processes held 1.9 GiB of the host's memory."""
    if int(MOST_SENT.read_text()) < 2 << 20:
        pytest.skip(f"{MOST_SENT} is too small to hold much")
    limits = SandboxLimits(seconds=5, memory_bytes=MEMORY)
    result = asyncio.run(sandbox.run(SandboxScript(("-c", SOCKETS), packages=False), limits))
    assert result.ending is ScriptEnding.OUT_OF_MEMORY or int(result.stdout) <= MEMORY


@pytest.mark.slow
def test_a_launcher_that_hangs_up_is_an_error_of_the_sandbox_or_is_started_anew(sandbox):
    """The same way an OSError came out where no descriptor was left: callers expect a SkepError."""
    launcher = sandbox._launcher.pid
    os.kill(launcher, signal.SIGSTOP)  # it lives, but will not hear any more
    sandbox._control.shutdown(socket.SHUT_RDWR)
    other = ""
    try:
        assert asyncio.run(sandbox.run(SandboxScript(("-c", "print(1)"), packages=False))).ok
    except SkepError:
        pass
    except OSError as error:
        other = str(error)
    finally:
        os.kill(launcher, signal.SIGCONT)
        asyncio.run(sandbox.close())
        assert asyncio.run(
            sandbox.run(SandboxScript(("-c", "print(1)"), packages=False))
        ).ok  # opens it for the next test
    gc.collect()
    assert not other
