"""The launcher: a small process that stays, and forks a warden for every run.

It is started once, with nothing in it but the standard library, so that a fork costs a millisecond and no thread of
skep is caught in one. It ends when its socket to skep does. Where skep is root, it has a mount namespace of its own in
which the interpreter can be reached by users who cannot pass through root's home folder.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import select
import signal
import socket
import stat
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from skep.sandbox.cell import Way, uid_for
from skep.sandbox.interpreter import View
from skep.sandbox.kernel import (
    CLONE_NEWNS,
    MS_BIND,
    MS_NODEV,
    MS_NOSUID,
    MS_REC,
    MS_SLAVE,
    PR_SET_CHILD_SUBREAPER,
    mount,
    prctl,
    unshare,
)
from skep.sandbox.warden import Link, children, serve

# One of these is covered, in a mount namespace of the launcher's own; nothing is written to the real one.
STAGES = ("/mnt", "/media", "/srv", "/opt", "/tmp")  # noqa: S108
FAREWELL_S = 3.0
BEGIN = """import json, sys
setup = json.load(sys.stdin)
sys.path.insert(0, setup.pop("source"))
from skep.sandbox.launcher import main
main(setup)
"""


def main(setup: dict[str, Any]) -> None:
    """`fd` of the socket to skep, the way and its program, and the two views; see `setup_text`."""
    control = socket.socket(fileno=setup["fd"])
    control.set_inheritable(False)
    os.chdir("/")
    views = {packages: _view(setup["views"][str(packages)]) for packages in (True, False)}
    try:
        way = _way(setup["way"], setup["program"])
        if os.geteuid() == 0:
            views = stage(views, setup["program"])
    except OSError as error:
        control.sendall(f"error: {error}".encode())
        return
    control.sendall(b"ready")
    gc.disable()  # a collection in a fork would copy every page it looks at
    Launcher(control, way, views).run()


class Launcher:
    def __init__(self, control: socket.socket, way: Way, views: dict[bool, View]) -> None:
        self._control = control
        self._way = way
        self._views = views
        self._slots: dict[int, int] = {}  # warden → its place among those at work
        self._life = os.pipe()  # the wardens have the end for reading, and see by its end that the launcher is no more

    def run(self) -> None:
        """Until skep hangs up; the wardens then have a moment to clear away what they watch over."""
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        woken, self._waker = socket.socketpair()
        self._waker.setblocking(False)
        signal.set_wakeup_fd(self._waker.fileno(), warn_on_full_buffer=False)
        while True:
            ready = select.select([self._control, woken], [], [])[0]
            if woken in ready:
                woken.recv(4096)
                self._reap()
            if self._control in ready:
                message, fds, _, _ = socket.recv_fds(self._control, 1, 1)
                if not message:
                    break
                os.set_inheritable(fds[0], False)  # a script that inherits it could write its own verdict
                self._fork(fds[0])
        deadline = time.monotonic() + FAREWELL_S
        self._reap()
        while self._slots and (left := deadline - time.monotonic()) > 0:
            select.select([woken], [], [], left)
            self._reap()

    def _fork(self, link_fd: int) -> None:
        slot = next(number for number in range(len(self._slots) + 1) if number not in self._slots.values())
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                signal.set_wakeup_fd(-1)
                self._control.close()
                os.close(self._life[1])
                link = Link(socket.socket(fileno=link_fd), self._life[0])
                serve(link, self._way, self._views, uid_for(slot))
                code = 0
            finally:
                os._exit(code)
        os.close(link_fd)
        self._slots[pid] = slot

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while (pid := os.waitpid(-1, os.WNOHANG)[0]) != 0:
                self._slots.pop(pid, None)
        for orphan in set(children()) - set(self._slots):  # its warden was killed
            os.kill(orphan, signal.SIGKILL)


def stage(views: dict[bool, View], program: str | None) -> dict[bool, View]:
    """Every source of the views at a path that any user can reach, in a mount namespace that ends with this process."""
    unshare(CLONE_NEWNS)
    mount("none", "/", None, MS_SLAVE | MS_REC)
    sources = sorted({source for view in views.values() for source in view.binds.values()})
    opened = {source: os.open(source, os.O_PATH | os.O_CLOEXEC) for source in sources}
    covered = _not_needed(__file__, sys.prefix, sys.base_prefix, program or "/")
    mount("tmpfs", covered, "tmpfs", MS_NOSUID | MS_NODEV, "mode=755,size=64k")
    places: dict[str, str] = {}
    for number, (source, fd) in enumerate(opened.items()):
        place = Path(covered) / str(number)
        place.mkdir() if stat.S_ISDIR(os.fstat(fd).st_mode) else place.touch()
        mount(f"/proc/self/fd/{fd}", str(place), None, MS_BIND | MS_REC)
        os.close(fd)
        places[source] = str(place)
    return {
        packages: replace(view, binds={dest: places[source] for dest, source in view.binds.items()})
        for packages, view in views.items()
    }


def _not_needed(*paths: str) -> str:
    """A folder that none of these lies in: what the launcher and bubblewrap still read must not be covered."""
    needed = {parent for path in paths for one in (Path(path), Path(path).resolve()) for parent in (one, *one.parents)}
    for place in map(Path, STAGES):
        if place.is_dir() and place.resolve() == place and place not in needed:
            return str(place)
    raise OSError(f"each of {', '.join(STAGES)} is missing or in use")


def setup_text(fd: int, way: str, program: str | None, views: dict[bool, View]) -> str:
    """For the standard input of `BEGIN`: an argument could be read by any script whose first process is a fork."""
    told = {str(packages): asdict(view) for packages, view in views.items()}
    source = str(Path(__file__).parents[2])
    return json.dumps({"source": source, "fd": fd, "way": way, "program": program, "views": told})


def _view(told: dict[str, Any]) -> View:
    return View(**{**told, "emptied": tuple(told["emptied"])})


def _way(name: str, program: str | None) -> Way:
    if name == "bubblewrap":
        from skep.sandbox.bubblewrap import Bubblewrap

        assert program is not None
        return Bubblewrap(program)
    from skep.sandbox.namespaces import Namespaces

    return Namespaces()
