"""Scripts that try to get out, to look out, or to gain privileges. Each prints what it managed."""

import asyncio
import contextlib
import os
import socket
import sys
import threading
from pathlib import Path

import pytest

from skep.sandbox.bubblewrap import SandboxLimits, SandboxScript, ScriptEnding

pytestmark = pytest.mark.needs("bwrap")
SECRET = "a word that must not be seen inside"
CHECKOUT = Path(__file__).parents[2]

TRY = """
import os, socket, ctypes, errno, sys
libc = ctypes.CDLL(None, use_errno=True)
def refused(action, *args):
    try:
        got = action(*args)
    except OSError as error:
        return True
    print("managed:", action, args, repr(got)[:300])
    return False
def call(name, number, *args):
    words = [ctypes.c_long(word) if isinstance(word, int) else word for word in args]
    result = libc.syscall(ctypes.c_long(number), *words)
    if result < 0:
        raise OSError(ctypes.get_errno(), name)
    return result
arm = os.uname().machine == "aarch64"
"""


@pytest.fixture
def attempt(run):
    """Run a script that tries to escape; return its last line, or all output if that is another
    line than `kept in`.
    """

    def attempt(text, **options):
        result = run(TRY + text, **options)
        output = result.stdout.decode(errors="replace")
        if output.endswith("kept in\n") and result.ok:
            return "kept in"
        return output + result.stderr.decode(errors="replace")

    return attempt


def test_the_host_s_files_are_not_there(attempt, tmp_path):
    """Neither the home folder, nor /etc, nor the checkout, nor another script's folder."""
    (tmp_path / "secret").write_text(SECRET)
    names = (
        "etc/shadow etc/hostname home root/.ssh root/.bashrc var run sys boot opt usr/bin/env "
        "bin/sh sbin mnt media srv"
    )
    places = [f"/{name}" for name in names.split()] + [
        str(Path.home() / ".cache"),
        str(tmp_path / "secret"),
    ]
    places += [
        str(CHECKOUT / "src"),
        str(CHECKOUT / "pyproject.toml"),
        str(CHECKOUT / ".git"),
        __file__,
    ]
    text = f"""
seen = [place for place in {places!r} if os.path.lexists(place)]
print(seen, open("/etc/passwd").read(), os.listdir("/etc"), os.listdir(os.path.expanduser("~")))
here = os.listdir("/")
assert not seen and open("/etc/passwd").read().count("\\n") == 1, seen
assert set(os.listdir("/etc")) <= {{"passwd", "group", "hosts", "nsswitch.conf", "ld.so.cache"}}
assert os.listdir(os.path.expanduser("~")) == ["main.py"] == os.listdir(".")
assert os.listdir("/tmp") == [] == os.listdir("/dev/shm")
print("kept in")
"""
    assert attempt(text) == "kept in"


def test_with_packages_the_checkout_stays_closed(attempt):
    """An editable install points into it, and the environment may lie in it."""
    text = f"""
import importlib.util, iniconfig
assert importlib.util.find_spec("pytest")
assert not os.path.exists({str(CHECKOUT / "src")!r})
try:
    import skep
except ImportError:
    print("kept in")
"""
    installed = (
        Path(sys.prefix) / "lib" / f"python3.{sys.version_info.minor}" / "site-packages" / "skep"
    )
    if installed.exists():
        pytest.skip("skep itself is among the packages")
    assert attempt(text) == "kept in"


def test_nothing_but_its_folder_can_be_written(attempt):
    text = """
import iniconfig
places = ["/", "/etc", "/dev", "/proc", "/usr/lib", "/box/.."]
places += [os.path.dirname(iniconfig.__file__), os.path.dirname(os.__file__)]
kept = [refused(open, place + "/written", "w") for place in places]
kept += [
    refused(open, "/etc/passwd", "w"),
    refused(os.remove, "/etc/passwd"),
    refused(open, os.__file__, "a"),
    refused(os.chmod, "/etc/passwd", 0o777),
    refused(os.rename, "/box", "/bix"),
    refused(os.mkdir, "/new"),
    refused(open, "/proc/sys/kernel/core_pattern", "w"),
    refused(open, "/proc/sysrq-trigger", "w"),
    refused(open, sys.executable, "r+b"),
    refused(os.mknod, "node", 0o60600, os.makedev(254, 0)),
]
open("mine", "w").write("x"); open(os.environ["TMPDIR"] + "/mine", "w").write("x")
print("kept in" if all(kept) else kept)
"""
    assert attempt(text) == "kept in"


def test_the_environment_tells_nothing(run, monkeypatch):
    monkeypatch.setenv("SKEP_TEST_SECRET", SECRET)
    result = run(
        "import os; print(dict(os.environ), open('/proc/self/environ').read())"
    ).stdout.decode()
    assert SECRET not in result
    assert str(Path.home()) not in result.replace(sys.base_prefix, "").replace(sys.prefix, "")
    assert "'HOME': '/box/work'" in result


class Listening:
    """TCP, UDP and two kinds of unix socket on the host that count what they receive."""

    def __init__(self, folder):
        self.tcp = socket.create_server(("127.0.0.1", 0))
        self.udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.udp.bind(("127.0.0.1", 0))
        self.abstract = socket.socket(socket.AF_UNIX)
        self.abstract.bind(f"\0skep-test-{os.getpid()}-{threading.get_ident()}")
        self.path = socket.socket(socket.AF_UNIX)
        self.path.bind(str(folder / "socket"))
        for listener in (self.abstract, self.path):
            listener.listen()
        for listener in (self.tcp, self.udp, self.abstract, self.path):
            listener.setblocking(False)

    def came_in(self):
        received = []
        for listener in (self.tcp, self.abstract, self.path):
            try:
                listener.accept()
                received.append(listener)
            except BlockingIOError:
                pass
        with contextlib.suppress(BlockingIOError):
            received.append(self.udp.recv(100))
        for listener in (self.tcp, self.udp, self.abstract, self.path):
            listener.close()
        return received


def test_no_socket_of_the_host_is_reached(attempt, tmp_path):
    host = Listening(tmp_path)
    text = f"""
s = socket.socket(); s.settimeout(1)
kept = [refused(s.connect, ("127.0.0.1", {host.tcp.getsockname()[1]}))]
kept += [refused(socket.socket().connect, (host, 80)) for host in ("192.0.2.1", "10.0.0.1")]
u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
# This goes to its own loopback, where nobody listens.
u.sendto(b"hello", ("127.0.0.1", {host.udp.getsockname()[1]}))
kept += [refused(u.sendto, b"hello", ("192.0.2.1", 53))]
names = ({host.abstract.getsockname()!r}, {host.path.getsockname()!r})
kept += [refused(socket.socket(socket.AF_UNIX).connect, name) for name in names]
# netlink, packet, alg, vsock, bluetooth, and raw sockets of the internet
families = (16, 17, 38, 40, 31, 2)
kept += [refused(socket.socket, family, socket.SOCK_RAW) for family in families]
kept += [refused(socket.getaddrinfo, "example.org", 80)]
print("kept in" if all(kept) else kept)
"""
    assert attempt(text) == "kept in"
    assert host.came_in() == []


def test_its_own_loopback_works(run):
    text = """
import socket, threading
server = socket.create_server(("127.0.0.1", 0))
threading.Thread(target=lambda: server.accept()[0].sendall(b"hello")).start()
print(socket.create_connection(("localhost", server.getsockname()[1]), 5).recv(5))
print(socket.create_server(("::1", 0), family=socket.AF_INET6).getsockname()[0])
"""
    assert run(text).stdout == b"b'hello'\n::1\n"


def test_no_other_process_is_seen_or_signalled(attempt):
    """kill -1 reaches the script's own processes only; the first one inside ignores it."""
    text = f"""
import signal, subprocess, time
pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
assert pids == [1, os.getpid()], pids
kept = [refused(os.kill, {os.getpid()}, 9), refused(open, "/proc/{os.getpid()}/environ")]
for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP, signal.SIGHUP):
    try:
        os.kill(os.getppid(), number)
    except OSError:
        pass
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
signal.signal(signal.SIGTERM, signal.SIG_IGN)
try:
    os.kill(-1, signal.SIGTERM)
except OSError:
    child.kill()
child.wait()
time.sleep(0.05)
kept.append(os.path.exists("/proc/1"))
print("kept in" if all(kept) else kept)
"""
    assert attempt(text) == "kept in"


def test_the_first_process_inside_tells_nothing(attempt, monkeypatch):
    """Its environment is empty, its memory closed or worth nothing,
    its root the same closed one.
    """
    text = f"""
def look(path, binary=False):
    try:
        return open(path, "rb").read(100000).decode(errors="replace")
    except OSError:
        return ""
names = ("environ", "cmdline", "maps")
text = "".join(look(f"/proc/{{pid}}/{{name}}") for pid in ("1", "self") for name in names)
assert {SECRET!r} not in text and {str(CHECKOUT / "src")!r} not in text, text
for root in ("/proc/1/root", "/proc/self/root", "/proc/1/cwd", "/proc/self/cwd/../.."):
    try:
        allowed = set(os.listdir("/")) | {{"main.py", "work", "tmp", "shm"}}
        assert set(os.listdir(root)) <= allowed, os.listdir(root)
    except OSError:
        pass
paths = [f"/proc/self/fd/{{fd}}" for fd in os.listdir("/proc/self/fd")]
opened = [os.readlink(path) for path in paths if os.path.lexists(path)]
assert all(name.startswith("pipe:") for name in opened), opened
assert all(int(fd) < 4 for fd in os.listdir("/proc/self/fd")), os.listdir("/proc/self/fd")
print("kept in")
"""
    monkeypatch.setenv("SKEP_TEST_SECRET", SECRET)
    assert attempt(text) == "kept in"


def test_overwriting_the_first_process_gains_nothing(run):
    """bubblewrap's can be written to by its children; that ends the run, and is no error of
    skep's.
    """
    text = """
def overwrite():
    maps = [line.split() for line in open("/proc/1/maps") if " r-xp " in line]
    with open("/proc/1/mem", "r+b", buffering=0) as memory:
        for place, *_ in maps:
            start, end = (int(word, 16) for word in place.split("-"))
            memory.seek(start)
            memory.write(bytes(min(end - start, 1 << 20)))
if refused(overwrite):
    print("kept in")
else:
    sys.stderr.write("bwrap: forged\\n"); sys.stderr.flush()
    os._exit(0)
"""
    result = run(TRY + text)
    assert result.stdout == b"kept in\n" or result.ending is not ScriptEnding.EXITED


def test_links_in_its_folder_lead_nowhere(attempt, tmp_path):
    (tmp_path / "secret").write_text(SECRET)
    text = f"""
os.symlink({str(tmp_path / "secret")!r}, "a")
os.symlink("/etc/shadow", "b")
os.symlink("/../../../..", "c")
kept = [refused(open, "a"), refused(open, "b"), refused(os.link, "/etc/passwd", "d")]
kept += ["main" not in os.listdir("c")]
print("kept in" if all(kept) else kept)
"""
    assert attempt(text) == "kept in"


def test_dangerous_calls_are_refused(attempt):
    """Other processes' memory, mounts, namespaces, keys, programs for the kernel."""
    text = """
calls = {
    "ptrace": (101, 117, 0, 0, 0, 0),
    "process_vm_readv": (310, 270, 1, 0, 0, 0, 0, 0),
    "unshare user": (272, 97, 0x10000000),
    "unshare net": (272, 97, 0x40000000),
    "setns": (308, 268, 0, 0),
    "keyctl": (250, 219, 0, -3, 1),
    "add_key": (248, 217, 0, 0, 0, 0, -3),
    "bpf": (321, 280, 0, 0, 0),
    "perf": (298, 241, 0, 0, -1, -1, 0),
    "io_uring": (425, 425, 8, 0),
    "userfaultfd": (323, 282, 1),
    "clone user": (56, 220, 0x10000011, 0, 0, 0, 0),
    "clone3": (435, 435, 0, 0),
    "chroot": (161, 51, b"/box"),
    "pivot": (155, 41, b".", b"."),
    "mount": (165, 40, b"tmpfs", b"/box", b"tmpfs", 0, 0),
    "umount": (166, 39, b"/proc", 2),
    "fsopen": (430, 430, b"tmpfs", 0),
    "open_tree": (428, 428, -100, b"/", 1),
    "reboot": (169, 142, 0xfee1dead, 672274793, 0),
    "memfd": (319, 279, b"x", 0),
    "shmget": (29, 194, 0, 4096, 0o1600),
    "handle": (304, 265, -100, 0, 0),
    "personality": (135, 92, 0x0040000),
    "module": (313, 273, 0, b"", 0),
    "kexec": (246, 104, 0, 0, 0, 0),
    "syslog": (103, 116, 3, 0, 0),
    "sethostname": (170, 161, b"x", 1),
    "swapon": (167, 224, b"x", 0),
    "clock": (227, 112, 0, 0),
    "pidfd_getfd": (438, 438, 3, 0, 0),
}
managed = []
for name, (x86, generic, *args) in calls.items():
    try:
        call(name, generic if arm else x86, *args)
        managed.append(name)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOSYS):
            managed.append((name, error.errno))
print("kept in" if not managed else managed)
"""
    assert attempt(text) == "kept in"


def test_no_privilege_can_be_gained(attempt):
    text = """
import stat, shutil
kept = [refused(os.setuid, 0), refused(os.setgid, 0), refused(os.setgroups, [0])]
kept += [refused(os.setresuid, 0, 0, 0), refused(os.chown, "main.py", 0, 0)]
shutil.copy(sys.executable, "python"); os.chmod("python", 0o6755)
import subprocess
command = ["./python", "-I", "-S", "-c", "import os; print(os.geteuid(), os.getegid())"]
ids = subprocess.run(command, capture_output=True, text=True)
kept += [ids.stdout.strip() in ("1000 1000", "")]
for folder in filter(os.path.isdir, os.environ["PATH"].split(":")):
    modes = [os.lstat(os.path.join(folder, name)).st_mode for name in os.listdir(folder)]
    kept += [not any(mode & stat.S_ISUID for mode in modes)]
status = open("/proc/self/status").read()
kept += ["NoNewPrivs:\\t1" in status, "Seccomp:\\t2" in status]
kept += ["CapBnd:\\t0000000000000000" in status]
print("kept in" if all(kept) else (kept, ids))
"""
    assert attempt(text) == "kept in"


async def test_two_scripts_at_once_do_not_meet(sandbox):
    """Each has its own processes, folder, loopback and abstract sockets."""
    text = b"""
import os, socket, time
s = socket.socket(); s.bind(("127.0.0.1", 5000)); s.listen()
a = socket.socket(socket.AF_UNIX); a.bind("\\0meeting")
open("/tmp/mark", "x"); open("/dev/shm/mark", "x"); open("mark", "x")
time.sleep(0.2)
print(len([n for n in os.listdir("/proc") if n.isdigit()]))
"""
    script = SandboxScript(("main.py",), {"main.py": text})
    both = await asyncio.gather(*(sandbox.run(script, SandboxLimits(seconds=8)) for _ in range(2)))
    assert [(result.ending, result.stdout, result.stderr) for result in both] == [
        (ScriptEnding.EXITED, b"2\n", b"")
    ] * 2
