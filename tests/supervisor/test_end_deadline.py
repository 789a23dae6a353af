"""The end of a supervisor's process that nothing can put off, and clients of its control socket
that do not read.
"""

import asyncio
import subprocess
import sys

from forked_processes import alive
from skep.supervisor.control_commands import control_socket

STUCK = """
import asyncio, subprocess, sys
from skep.supervisor.end_deadline import EndDeadline

async def go_on():
    while True:
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            pass

async def main(deadline):
    asyncio.get_running_loop().create_task(go_on(), name="stubborn")
    print(subprocess.Popen(["sleep", "600"]).pid, flush=True)
    deadline.set(0.2)
    deadline.set(600)

asyncio.run(main(EndDeadline("none:")))
"""
ANSWER_BYTES = 1 << 20


def test_a_task_that_ignores_its_end_does_not_keep_the_process_or_its_children_alive():
    done = subprocess.run(
        [sys.executable, "-c", STUCK], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert "skep did not end in time" in done.stderr
    assert not alive(int(done.stdout))


def test_a_full_disk_below_its_log_does_not_keep_the_process_or_its_children_alive():
    """Its last words could not be written, and nothing was killed."""
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-c", STUCK]
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=full, text=True, timeout=60, check=False
        )
    assert done.returncode == 1
    assert not alive(int(done.stdout))


async def test_a_client_that_does_not_read_its_answers_does_not_keep_the_control_socket(tmp_path):
    event = asyncio.Event()

    async def answer(_message):
        event.set()
        return {"text": "x" * ANSWER_BYTES}

    path = tmp_path / "control.sock"
    async with asyncio.timeout(30), control_socket(path, answer):
        _reader, writer = await asyncio.open_unix_connection(str(path), limit=1)
        writer.write(b"{}\n" * 4)
        await event.wait()
    writer.close()
    assert not path.exists()
