"""Scripts that use too much time, memory, disk, processes or output. Each is ended, and none of its
processes or files stay.
"""

import asyncio
import signal
import time

import pytest

from skep.sandbox.bubblewrap import SandboxLimits, SandboxScript, ScriptEnding

pytestmark = pytest.mark.needs("bwrap")
MIB = 1 << 20


def test_an_exit_code_a_signal_and_the_output_come_back(run):
    text = "import sys; sys.stderr.write('e'); print(sys.argv, sys.stdin.read()); sys.exit(3)"
    done = run(text, stdin=b"in", argv=("main.py", "a b"))
    assert (done.ending, done.exit_code, done.signal, done.ok) == (
        ScriptEnding.EXITED,
        3,
        None,
        False,
    )
    assert (done.stdout, done.stderr) == (b"['main.py', 'a b'] in\n", b"e")
    shot = run("import os, signal; print('x', flush=True); os.kill(os.getpid(), signal.SIGSEGV)")
    killed = (ScriptEnding.KILLED, None, signal.SIGSEGV, b"x\n")
    assert (shot.ending, shot.exit_code, shot.signal, shot.stdout) == killed


def test_much_input_binary_output_and_files_in_folders_pass_unchanged(run):
    data = bytes(range(256)) * 800
    done = run(
        "import sys; sys.stdout.buffer.write(sys.stdin.buffer.read())",
        stdin=data,
        output_bytes=MIB,
    )
    assert (done.ok, done.stdout) == (True, data)
    files = {"pack/__init__.py": b"", "pack/inner.py": b"value = 7", "data/deep/x.bin": b"\0\xff"}
    text = "from pack.inner import value; print(value, open('data/deep/x.bin', 'rb').read())"
    # Its input is not read.
    assert run(text, files=files, stdin=data).stdout == b"7 b'\\x00\\xff'\n"


ENDLESS = {
    "a plain loop": "while True: pass",
    "signals ignored": """
import signal
for number in range(1, 65):
    try:
        signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError):
        pass
while True: pass""",
    "a grandchild that left the session": """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.setsid()
    time.sleep(600)
time.sleep(600)""",
    "streams closed": "import os, time\nfor fd in (0, 1, 2): os.close(fd)\ntime.sleep(600)",
    "stopped by itself": "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)",
}


async def run_all(sandbox, texts, **limits):
    """Run scripts at once; return their results by name."""
    scripts = [SandboxScript(("-c", text)) for text in texts.values()]
    results = await asyncio.gather(
        *(sandbox.run(script, SandboxLimits(**limits)) for script in scripts)
    )
    return zip(texts, results, strict=True)


async def test_time_ends_everything(sandbox):
    for name, result in await run_all(sandbox, ENDLESS, seconds=0.4):
        assert (result.ending, result.exit_code) == (ScriptEnding.OUT_OF_TIME, None), name
        assert 0.4 <= result.seconds < 60, name


def test_a_daemon_does_not_outlive_the_script(run):
    """It holds the streams open, in a session of its own; the end of the script is the end of the
    run.
    """
    began = time.monotonic()
    done = run(
        "import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(600)\nprint('over')"
    )
    assert (done.ok, done.stdout) == (True, b"over\n")
    assert time.monotonic() - began < 60


def test_a_fork_bomb_fizzles_out_and_threads_count_as_processes(run):
    text = """
import os, threading, time
started = 0
try:
    for _ in range(200):
        if FORK:
            if os.fork() == 0:
                time.sleep(600)
        else:
            threading.Thread(target=time.sleep, args=(0.5,), daemon=True).start()
        started += 1
except (BlockingIOError, RuntimeError):
    pass
print(started, flush=True)
os._exit(0)
"""
    for forks in (True, False):
        assert run(f"FORK = {forks}\n{text}", processes=10).stdout == b"9\n"
    bomb = run(
        "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
        processes=20,
        seconds=0.5,
    )
    assert bomb.ending is ScriptEnding.OUT_OF_TIME


MEMORY = {
    "one process, bit by bit": "x = []\nwhile True: x.append(bytearray(1 << 20))",
    "several processes, each a part": """
import os, time
for _ in range(8):
    if os.fork() == 0: break
x = bytearray(40 << 20)
time.sleep(600)""",
    "shared between processes": """
import mmap, time
x = mmap.mmap(-1, 180 << 20)
for i in range(0, len(x), 4096): x[i] = 1
time.sleep(600)""",
    "behind a first thread that has ended": """
import ctypes, threading, time
def fill():
    x = bytearray(180 << 20)
    time.sleep(600)
threading.Thread(target=fill).start()
ctypes.CDLL(None).pthread_exit(None)""",
}


async def test_memory_is_bounded_for_all_processes_together(sandbox):
    for name, result in await run_all(sandbox, MEMORY, seconds=8, memory_bytes=150 * MIB):
        assert result.ending is ScriptEnding.OUT_OF_MEMORY, (name, result)
        assert result.seconds < 5, name


def test_forked_processes_are_not_counted_several_times(run):
    """Ten processes that share 60 MiB hold 60 MiB, not 600."""
    text = """
import os, time
x = bytearray(os.urandom(1 << 20)) * 60
for _ in range(9):
    if os.fork() == 0:
        time.sleep(0.3); os._exit(0)
for _ in range(9): os.wait()
print("well")
"""
    assert run(text, memory_bytes=200 * MIB).stdout == b"well\n"


ERRORS = {
    "one big file": "open('x', 'wb').write(bytes(9 << 20))",
    "several files": "for i in range(9): open(f'x{i}', 'wb').write(bytes(1 << 20))",
    "shared memory": "for i in range(9): open(f'/dev/shm/x{i}', 'wb').write(bytes(1 << 20))",
    "the other folder": "for i in range(9): open(f'/tmp/x{i}', 'wb').write(bytes(1 << 20))",
    "memory": "x = bytearray(1 << 40)",
}


@pytest.mark.parametrize("name", ERRORS)
def test_room_for_files_is_bounded_and_one_huge_allocation_is_an_error_of_the_script(run, name):
    done = run(ERRORS[name], disk_bytes=4 * MIB)
    assert (done.ending, done.exit_code) == (ScriptEnding.EXITED, 1)
    assert (b"MemoryError" if name == "memory" else b"OSError") in done.stderr


def test_many_empty_files_end_the_run_or_are_refused(run):
    done = run("i = 0\nwhile True:\n    open(f'{i}', 'w').close(); i += 1")
    assert done.ending is ScriptEnding.OUT_OF_MEMORY or b"No space left" in done.stderr


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_endless_output_ends_the_run_and_up_to_the_limit_it_is_all_there(run, stream):
    done = run(f"import sys\nwhile True: sys.{stream}.write('x' * 10000)", output_bytes=30_000)
    assert done.ending is ScriptEnding.TOO_MUCH_OUTPUT
    assert getattr(done, stream) == b"x" * 30_000
    done = run(f"import sys; sys.{stream}.write('x' * 30_000)", output_bytes=30_000)
    assert (done.ok, len(getattr(done, stream))) == (True, 30_000)


def test_open_files_are_bounded(run):
    done = run("x = []\nwhile True: x.append(open('main.py'))", open_files=40)
    assert b"Too many open files" in done.stderr


def test_memory_kept_in_sockets_counts(run):
    """A script once held ten times its limit in the buffers of socket pairs, which belong to no
    process.
    """
    text = """
import os, socket
for _ in range(3):
    if os.fork() == 0:
        break
kept = []
while True:
    a, b = socket.socketpair()
    a.setblocking(False)
    a.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 24)
    try:
        while True:
            a.send(b"x" * 65536)
    except BlockingIOError:
        kept.append((a, b))
    if len(kept) == 50:
        import time
        time.sleep(60)
"""
    assert run(text, seconds=8, memory_bytes=64 << 20).ending is ScriptEnding.OUT_OF_MEMORY
