"""Machines made of Linux namespaces: each has its own network, processes, name and folders, and a
cable to one switch.

Nothing of this machine's own network is touched. Each is held by one process that reads from us:
when we end, however that is, it ends, and with it everything that runs in its namespace."""

import contextlib
import ctypes
import os
import shutil
import socket
import subprocess
import sys
import threading
from functools import cache
from pathlib import Path

from asking import MODEL, Agents
from clusters import PATIENCE_S, Installation

from api_clients import openai
from skep.cluster.ray_processes import folder_of
from skep.paths import user_paths

CLONE_NEWNET = 0x40000000
NETWORK = "10.0.0"  # as in docs/cluster.md; it exists in the namespaces only
RAY_TRIES = 3  # Ray gives a node 15 s to start, whatever else the machine has to do
_SPACES = ("--net", "--pid", "--mount", "--uts")
# Its first process buries the orphans, as that of a machine does: Ray's workers look whether their
# raylet is there.
_INIT = (
    "import signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); print('up', "
    "flush=True); sys.stdin.read()"
)
_SETUP = 'hostname "$0" && ip link set lo up && exec "$1" -S -c "$2"'


@cache
def cannot():
    """Return why there can be no such machines here; None: there can."""
    for tool in ("ip", "unshare", "nsenter", "hostname", "ss"):
        if shutil.which(tool) is None:
            return f"machines of namespaces need `{tool}`"
    try:
        with Box("probe") as switch, Box("probe2") as box:
            switch.sh(f"ip link add v0 type veth peer name eth0 netns {box.pid}")
    except (OSError, subprocess.SubprocessError, AssertionError) as error:
        return f"namespaces cannot be made here (not root?): {error}"
    return None


class Box:
    """Namespaces, and the process that holds them: when it ends, all that runs in them is killed."""

    def __init__(self, name):
        self.name = name
        argv = ["unshare", *_SPACES, "--fork", "--kill-child", "--mount-proc"]
        argv += ["sh", "-c", _SETUP, name, sys.executable, _INIT]
        self._holder = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        line = self._holder.stdout.readline()
        if line != b"up\n":
            self.close()
            raise OSError(line.decode().strip() or "unshare ended")
        children = Path(f"/proc/{self._holder.pid}/task/{self._holder.pid}/children").read_text()
        self.pid = int(children.split()[0])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def inside(self, *argv):
        return ["nsenter", f"--target={self.pid}", *_SPACES, "--", *argv]

    def sh(self, line):
        """Run a command in its network only: process numbers are ours."""
        argv = ["nsenter", f"--target={self.pid}", "--net", "--", *line.split()]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=20)
        assert done.returncode == 0, f"{line}: {done.stderr}"
        return done.stdout

    def close(self):
        """Kill every process at once, as when the power fails."""
        with contextlib.suppress(OSError):
            self._holder.stdin.close()
        self._holder.stdout.close()
        self._holder.wait(30)


class Machine(Installation):
    """An installation's commands, run inside.

    `address`: of its one cable; all that it writes lies in one folder.
    """

    def __init__(self, box, address, home, env):
        super().__init__(home, env)
        self.box = box
        self.address = address
        self.name = box.name
        self.env["XDG_RUNTIME_DIR"] = self.env["TMPDIR"] = str(self.home)

    def run(self, *args, timeout=PATIENCE_S, check=True, stdin=None):
        argv = self.box.inside(sys.executable, "-m", "skep", *args)
        done = subprocess.run(
            argv, env=self.env, capture_output=True, text=True, timeout=timeout, input=stdin
        )
        if check:
            assert done.returncode == 0, (
                f"skep {' '.join(args)}: {done.stdout[-1000:]}{done.stderr[-3000:]}"
            )
        return done

    def cluster(self, *args, stdin=None):
        """Run `skep cluster start` or `join`. Return what it writes on stderr."""
        for _ in range(RAY_TRIES):
            done = self.run("cluster", *args, check=False, stdin=stdin)
            if done.returncode == 0 or "Ray did not start" not in done.stderr:
                break
        assert done.returncode == 0, done.stderr
        return done.stderr

    def processes(self, words):
        """Return the command lines that have these words, by their process numbers inside."""
        result = subprocess.run(
            self.box.inside("ps", "-eo", "pid=,args="), capture_output=True, text=True, timeout=20
        )
        rows = (line.strip().partition(" ") for line in result.stdout.splitlines())
        return {int(pid): line for pid, _, line in rows if words in line}

    def kill_all(self):
        """Kill every process on it; the machine itself stays."""
        subprocess.run(self.box.inside("kill", "-9", "-1"), timeout=20, check=False)

    def listeners(self):
        """Return address and port of every TCP listener."""
        rows = [line.split()[3].rpartition(":") for line in self.box.sh("ss -Hltn").splitlines()]
        return {(address.strip("[]").partition("%")[0], int(port)) for address, _, port in rows}

    def engines(self):
        """Return the process numbers of the engines that run here."""
        servers = self.processes("-m skep.engines.embedded_server")
        return {
            pid for pid, line in servers.items() if "skep.supervisor.process_guard" not in line
        }

    def reaches(self, machine):
        """Return the ports of another machine that accept a connection from here, wherever they
        are bound.
        """
        return {
            port
            for _, port in machine.listeners()
            if within(self.box, lambda port=port: _accepts(machine, port))
        }

    def chat(self, **fields):
        request = {
            "model": MODEL,
            "max_tokens": 8,
            "messages": [{"role": "user", "content": "Say hello."}],
        }

        def ask():
            with openai.OpenAI(
                base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=60.0
            ) as client:
                return client.chat.completions.create(**request, **fields)

        return within(self.box, ask)


class AgentsAt(Agents):
    """Agents inside a machine, whose gateway listens on its loopback."""

    def __init__(self, machine, count, **options):
        super().__init__(machine.url, count, **options)
        self._box = machine.box

    async def _all(self):
        _enter(self._box)
        await super()._all()


class Room:
    """The machines of one test, their switch, and their cables."""

    def __init__(self, folders, env):
        self._folders = folders
        self._env = env
        self._stack = contextlib.ExitStack()
        self._switch = self._stack.enter_context(Box("switch"))
        self._switch.sh("ip link add br0 type bridge")
        self._switch.sh("ip link set br0 up")
        self.machines = {}

    def add(self, name):
        number = len(self.machines) + 1
        box = self._stack.enter_context(Box(name))
        self._switch.sh(f"ip link add to-{name} type veth peer name eth0 netns {box.pid}")
        self._switch.sh(f"ip link set to-{name} master br0 up")
        box.sh(f"ip addr add {NETWORK}.{number}/24 dev eth0")
        box.sh("ip link set eth0 up")
        machine = self.machines[name] = Machine(
            box, f"{NETWORK}.{number}", self._folders(name), self._env
        )
        return machine

    def pull(self, name):
        """Pull the cable: no connection is closed."""
        self._switch.sh(f"ip link set to-{name} down")

    def plug(self, name):
        self._switch.sh(f"ip link set to-{name} up")

    def close(self):
        self._stack.close()
        for machine in self.machines.values():
            shutil.rmtree(folder_of(user_paths(machine.env)).parent, ignore_errors=True)


def within(box, call):
    """Return what `call` returns in a thread whose sockets are those of that machine."""
    answer = []

    def run():
        _enter(box)
        try:
            answer.append((call(), None))
        except Exception as error:
            answer.append((None, error))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    value, error = answer[0]
    if error is not None:
        raise error
    return value


def _accepts(machine, port):
    try:
        socket.create_connection((machine.address, port), timeout=0.5).close()
    except OSError:
        return False
    return True


def _enter(box):
    """Put this thread into the network of a machine, for the rest of its life."""
    with open(f"/proc/{box.pid}/ns/net") as space:
        if ctypes.CDLL(None, use_errno=True).setns(space.fileno(), CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
