"""The client side of a hive: starts one, asks it over the control socket, reads its status over
time and its logs.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from functools import partial
from io import BufferedReader
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any, BinaryIO, cast

import msgspec

from skep.config.settings import Settings
from skep.errors import EngineError, SkepError, UserError
from skep.files import open_log
from skep.paths import LOOPBACK, Paths


def local_key(url: str, env: Mapping[str, str], paths: Paths) -> str | None:
    """Return the key of a server on this machine: the hive's for its replicas, otherwise the
    gateway's SKEP_API_KEY.
    """
    from skep.engines.base import GATEWAY_KEY
    from skep.wire.heads import parse_url

    here = parse_url(url)[0].host in LOOPBACK
    if here:
        return replica_key(url, paths) or env.get(GATEWAY_KEY) or None
    return None


def replica_key(url: str, paths: Paths) -> str | None:
    """Return the key of the hive that runs here if the URL is that of one of its replicas on this
    machine.
    """
    from skep.engines.base import ANSWER_S, KEY_FILE
    from skep.wire.heads import parse_url

    asked = parse_url(url)[0]
    if asked.host not in LOOPBACK:
        return None
    try:
        key = (paths.state / KEY_FILE).read_text().strip()
        rows = ask(socket_of(paths.lock, paths.socket), {"op": "status"}, timeout_s=ANSWER_S)[
            "rows"
        ]
    except (OSError, SkepError):
        return None
    origins = [parse_url(row["url"])[0] for row in rows if row["kind"] == "replica" and row["url"]]
    if any(origin.host in LOOPBACK and origin.port == asked.port for origin in origins):
        return key
    return None


EXIT_S = 5.0
EXIT_POLL_S = 0.01
STOP_S = 15.0  # for ending engines and gateway once the drain is over


class NotRunning(UserError):
    exit_code = 1

    def __init__(self) -> None:
        super().__init__("skep is not running", hint="start it with `skep up -d`")


class NoAnswer(EngineError):
    """Somebody listens on the control socket and says nothing in time."""

    def __init__(self, error: OSError) -> None:
        hint = "see `skep logs skep`; `skep down` ends it where it stays silent"
        super().__init__(f"skep does not answer on its control socket: {error}", hint=hint)


def ask(
    socket_path: Path, message: dict[str, Any], *, timeout_s: float | None = 10.0
) -> dict[str, Any]:
    """Return the supervisor's answer.

    Raise NotRunning where none runs, EngineError for an answer that is an error.
    """
    with connected(socket_path, timeout_s) as say:
        return say(message)


@contextmanager
def connected(
    socket_path: Path, timeout_s: float | None
) -> Iterator[Callable[[dict[str, Any]], dict[str, Any]]]:
    """Yield a function that sends requests over one connection; it raises as `ask` does."""
    with _connect(socket_path, timeout_s) as sock, sock.makefile("rb") as answers:
        yield partial(_exchange, sock, answers)


def ask_down(socket_path: Path, drain_s: float | None = None) -> list[str]:
    """Ask the hive to drain for `drain_s` (None: as configured) and stop.

    Return, then, what could not be ended.
    """
    said = b""
    with _connect(socket_path, 10.0) as sock, sock.makefile("rb") as answers:
        told = _exchange(sock, answers, {"op": "down", "drain_s": drain_s})
        left_s = told["drain_s"] + told.get("stop_s", STOP_S)
        sock.settimeout(left_s)
        try:
            said = answers.readline()
        except TimeoutError:
            hint = "run `skep down` again to stop without waiting for running requests"
            raise EngineError(f"skep did not stop within {left_s:g} s", hint=hint) from None
        except OSError:
            pass
    deadline = time.monotonic() + EXIT_S  # its socket is closed a moment before the process ends
    with suppress(OSError):
        while time.monotonic() < deadline and _stat(told["pid"])[0] != "Z":
            time.sleep(EXIT_POLL_S)
    # Else it was killed.
    return list(json.loads(said)["left_behind"]) if said.endswith(b"\n") else []


def _stat(pid: int) -> list[str]:
    """Return what the kernel says of a process, from its state on.

    Raise OSError where there is none.
    """
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def socket_of(lock_path: Path, default: Path) -> Path:
    """Return the control socket that the lock file names; the running skep may use another runtime
    folder.
    """
    try:
        return Path(lock_path.read_text().splitlines()[1])
    except (OSError, IndexError, UnicodeDecodeError):
        return default


def _connect(socket_path: Path, timeout_s: float | None) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(timeout_s)
    try:
        sock.connect(str(socket_path))
    except OSError:
        sock.close()
        raise NotRunning from None
    return sock


def _exchange(
    sock: socket.socket, answers: BufferedReader, message: dict[str, Any]
) -> dict[str, Any]:
    try:
        sock.sendall(json.dumps(message).encode() + b"\n")
        line = answers.readline()
    except ConnectionError:  # the hive ended
        raise NotRunning from None
    except OSError as error:
        raise NoAnswer(error) from None
    if not line.endswith(b"\n"):
        raise NotRunning
    answer: dict[str, Any] = json.loads(line)
    if "error" in answer:
        raise _error_of(answer)
    return answer


def _error_of(told: Mapping[str, Any]) -> EngineError:
    error = EngineError(told["error"], hint=told.get("hint"))
    error.exit_code = told.get("exit_code", error.exit_code)
    return error


Status = dict[str, Any]
NO_REPLICAS = ("gateway", "monitor", "cluster")
OUTCOMES = ("answered", "refused", "broken", "hung_up")
NO_ANSWER = "the gateway gets no answer from its engine"


class ReplicaStatus(msgspec.Struct, frozen=True):
    """One replica, from the rows of the supervisor and of the gateway."""

    name: str
    model: str
    state: str
    slots: int
    active: int | None  # None: the gateway does not know it
    releasing: int
    restarts: int | None
    mark: str
    why: str
    node: str = ""  # empty: here


def replicas_of(status: Status) -> list[ReplicaStatus]:
    gateway = status.get("gateway") or {}
    rows = {row["name"]: row for row in status["rows"] if row["kind"] not in NO_REPLICAS}
    seen: dict[str, list[dict[str, Any]]] = {name: [] for name in rows}
    for entry in gateway.get(
        "replicas", ()
    ):  # a name comes twice while an older replica of that name drains
        seen.setdefault(entry["name"], []).append(entry)
    return [
        _shown(rows.get(name, {}), entries, told=bool(gateway)) for name, entries in seen.items()
    ]


def _shown(row: dict[str, Any], entries: list[dict[str, Any]], *, told: bool) -> ReplicaStatus:
    state = row.get("state", "ready")
    why = row.get("why") or ""
    told_by = row or entries[0]
    if state == "ready" and entries:
        serving = [entry["state"] for entry in entries if entry["state"] != "draining"]
        if serving:
            state = next((found for found in serving if found != "up"), "up")
        else:
            state = "draining"
    elif state == "ready" and told:
        why = why or "gets no requests"
    active, releasing = (sum(entry[kind] for entry in entries) for kind in ("active", "releasing"))
    if any(source.get("simulated") for source in (row, *entries)):
        mark = "simulated"
    else:
        mark = ""
    model = next((source["model"] for source in (row, *entries) if source.get("model")), "")
    name = told_by["name"]
    slots = told_by["slots"]
    node = row.get("node") or ""
    restarts = row.get("restarts")
    return ReplicaStatus(
        name,
        model,
        state,
        slots,
        active if entries else None,
        releasing,
        restarts,
        mark,
        why,
        node,
    )


def up_s(pid: int) -> float | None:
    """Return how long that process has run."""
    try:
        return time.clock_gettime(time.CLOCK_BOOTTIME) - int(_stat(pid)[19]) / os.sysconf(
            "SC_CLK_TCK"
        )
    except (OSError, AttributeError):
        return None  # there is no /proc


# The status over time, for `skep top` and the dashboard

HISTORY = 120  # readings
WINDOW_S = 10.0  # rates are means over so long


def read_status(paths: Paths, timeout_s: float) -> Status:
    """Return the status of the hive that runs here; blocks until it answers. Raises SkepError."""
    status = ask(socket_of(paths.lock, paths.socket), {"op": "status"}, timeout_s=timeout_s)
    return {**status, "up_s": up_s(status["pid"])}


class Rate:
    """What a counter gains per second over WINDOW_S.

    None: not counted yet. A step down (a new gateway) is no gain.
    """

    def __init__(self) -> None:
        self._last = 0.0
        self._told = False
        self._points: deque[tuple[float, float]] = deque()  # (time, gained since the first)

    def take(self, value: float | None, now: float) -> None:
        self._told = self._told or value is not None
        gain = max(0.0, (value or 0.0) - self._last)
        self._last = value or 0.0
        self._points.append((now, self._points[-1][1] + gain if self._points else 0.0))
        while len(self._points) > 2 and self._points[1][0] <= now - WINDOW_S:
            self._points.popleft()

    def per_s(self) -> float | None:
        if not self._told:
            return None
        (began, before), (ended, after) = self._points[0], self._points[-1]
        if ended > began:
            return (after - before) / (ended - began)
        return None


class HiveReadings:
    """All readings of one hive so far; another pid is another hive.

    `status`: the last one, or empty.
    """

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        self.status: Status = {}
        self.replicas: list[ReplicaStatus] = []
        self._ended = Rate()
        self._tokens: dict[str, Rate] = {}  # by replica; "": of all
        self._busy: dict[str, int] = {}  # slots, likewise
        self.speeds: deque[float | None] = deque(maxlen=HISTORY)
        self.queued: deque[int | None] = deque(maxlen=HISTORY)

    def take(self, status: Status, now: float) -> None:
        """`now` is of a clock that is never set."""
        if self.status.get("pid") not in (None, status["pid"]):
            self.forget()
        self.status = status
        self.replicas = replicas_of(status)
        if gateway := self.gateway:
            tokens: dict[str, float] = gateway["tokens"]
            self._busy = {replica.name: replica.active or 0 for replica in self.replicas}
            self._busy[""] = sum(self._busy.values())
            if tokens:
                counts = {**tokens, "": sum(tokens.values())}
            else:
                counts = {}
            for name in {*tokens, *self._busy}:
                self._tokens.setdefault(name, Rate()).take(counts.get(name), now)
            self._ended.take(sum(gateway["ended"].values()), now)
        self.speeds.append(self.tok_s)
        self.queued.append(gateway.get("queued"))

    @property
    def gateway(self) -> dict[str, Any]:
        """Return the figures of the gateway; empty: it gives none."""
        return self.status.get("gateway") or {}

    @property
    def tok_s(self) -> float | None:
        return self.tok_s_of("")

    @property
    def requests_per_s(self) -> float | None:
        if self.gateway:
            return self._ended.per_s()
        return None

    @property
    def ended(self) -> dict[str, int | None]:
        """Return how many requests ended, by outcome."""
        return {
            name: self.gateway["ended"].get(name, 0) if self.gateway else None for name in OUTCOMES
        }

    def tok_s_of(self, replica: str) -> float | None:
        """Return tokens per second of a replica; "": of all.

        None: nobody counts, or slots are busy without a token.
        """
        if self.gateway and replica in self._tokens:
            rate = self._tokens[replica].per_s()
        else:
            rate = None
        if not rate and self._busy.get(replica):
            return None
        return rate

    def rates(self) -> dict[str, Any]:
        """Return all rates as JSON has them. None: nobody says."""
        if self.gateway:
            replicas = {name: self.tok_s_of(name) for name in sorted(self._tokens) if name}
        else:
            replicas = {}
        return {"tok_s": self.tok_s, "requests_per_s": self.requests_per_s, "replicas": replicas}

    def slots(self) -> dict[str, int | None]:
        """Return total, active and releasing slots of all replicas that the gateway knows."""
        known = [replica for replica in self.replicas if replica.active is not None]
        if not known:
            return {
                "total": sum(replica.slots for replica in self.replicas),
                "active": None,
                "releasing": None,
            }
        active = sum(one.active or 0 for one in known)
        releasing = sum(one.releasing for one in known)
        return {"total": sum(one.slots for one in known), "active": active, "releasing": releasing}


# The logs of replicas and of skep's own processes: files of this machine, or told by the hive
# where they lie on a node

POLL_S = 0.2
POLL_ELSEWHERE_S = 1.0
OTHER_ANSWER_S = 20.0  # of another machine
OF_SKEP = ("skep", "gateway", "monitor", "requests")  # always here, also while nobody answers
TAIL_BYTES = 4 << 20  # at most so much of the end is searched for the last lines
PART_BYTES = 512 << 10  # JSON makes at most six bytes of one, and a message may have 4 MiB
_AS_BYTES = "surrogateescape"  # what is no UTF-8 in a log comes out as it is


class LogPart(msgspec.Struct, frozen=True):
    """A part of a log, where it ends, and the size of the whole."""

    text: str = ""
    offset: int = 0
    size: int = 0


def log_part(file: BinaryIO, offset: int | None, lines: int, errors: str = "replace") -> LogPart:
    """Return the last lines, or what came since `offset`, as much as fits: to the end of a line if
    it holds one.
    """
    size = file.seek(0, os.SEEK_END)
    begin = offset if offset is not None and offset <= size else 0
    if offset is None:
        file.seek(max(0, size - TAIL_BYTES))
        found = file.read(min(TAIL_BYTES, size)).splitlines(keepends=True)
        begin = size - sum(map(len, found[-lines:] if lines else ()))
    file.seek(begin)
    data = file.read(min(PART_BYTES, size - begin))
    if begin + len(data) < size:
        data = data[: data.rfind(b"\n") + 1] or data
    return LogPart(data.decode(errors=errors), begin + len(data), size)


def read_log(paths: Paths, name: str, lines: int, *, follow: bool) -> Iterator[bytes]:
    """Yield the last lines; where it is followed, also what is written later, to the end of the
    hive.
    """
    read = _elsewhere
    poll_s = POLL_ELSEWHERE_S
    part = None
    try:  # whoever runs is asked first: a file of that name may be what another hive left here
        part = None if name in OF_SKEP else read(paths, name, lines)
    except EngineError:
        if not (paths.logs / f"{name}.log").is_file():
            raise
    if part is None:
        read = _here
        poll_s = POLL_S
        part = read(paths, name, lines)
    end = part.size if part is not None else 0
    while part is not None:
        yield part.text.encode(errors=_AS_BYTES)
        before = part.offset
        if not follow and before >= end:
            return
        time.sleep(0 if before < part.size else poll_s)
        try:
            part = read(paths, name, 0, before)
        except EngineError:  # it moves to another node
            if not follow:
                raise
            part = LogPart("", before, before)
        if not follow and part is not None and part.offset <= before:
            return


def read_all_logs(paths: Paths, lines: int, *, follow: bool) -> Iterator[bytes]:
    """Yield the last lines of every log, each line behind its name; where they are followed, as
    they are written.
    """
    names = _names(paths)
    if not names:
        raise UserError("there are no logs yet", hint="`skep up -d` starts a deployment")
    width = max(map(len, names))
    chunks = SimpleQueue[bytes]()

    def read(name: str) -> None:
        prefix = f"{name:{width}} | ".encode()
        for chunk in read_log(paths, name, lines, follow=follow):
            chunks.put(b"".join(prefix + line for line in chunk.splitlines(keepends=True)))

    for name in names:
        if follow:
            Thread(target=read, args=(name,), daemon=True).start()
        else:
            read(name)
    while follow or not chunks.empty():
        yield chunks.get()


def _elsewhere(paths: Paths, name: str, lines: int, offset: int | None = None) -> LogPart | None:
    """Return a part of a log that lies on another node; None if the log is here or skep is not
    running.
    """
    message = {"op": "log", "name": name, "lines": lines, "offset": offset}
    try:
        told = ask(socket_of(paths.lock, paths.socket), message, timeout_s=OTHER_ANSWER_S)
    except NotRunning:
        return None
    if "text" in told:
        return LogPart(told["text"], told["offset"], told.get("size", 0))
    return None


def _here(paths: Paths, name: str, lines: int, offset: int | None = None) -> LogPart | None:
    """Return a part of a log of this machine. One that was rotated is read from its beginning."""
    path = paths.logs / f"{name}.log"
    if offset is None and ("/" in name or not path.is_file()):
        raise UserError(
            f"there is no log of `{name}`", hint=f"known: {', '.join(_names(paths)) or 'none yet'}"
        )
    try:
        with path.open("rb") as file:
            return log_part(file, offset, lines, _AS_BYTES)
    except FileNotFoundError:  # between two steps of a rotation
        return LogPart()


def _names(paths: Paths) -> list[str]:
    """Return whose logs lie here, and the replicas whose logs lie on the nodes of a cluster."""
    found = {path.stem for path in paths.logs.glob("*.log")}
    with suppress(NotRunning, EngineError):
        rows = ask(socket_of(paths.lock, paths.socket), {"op": "status"})["rows"]
        found |= {row["name"] for row in rows if row.get("node")}
    return sorted(found)


# A hive in a process of its own: settings go in by stdin, announcements come back as JSON lines

PROGRAM = "skep.cli.hive_process"  # runs `skep.supervisor.main.run_detached`
HearAnnouncement = Callable[[Mapping[str, Any]], None]


class HiveProcess:
    """With `parent_fd`, the reading end of a pipe,
    the hive ends when all writing ends are closed.
    """

    def __init__(
        self,
        settings: Settings,
        paths: Paths,
        env: Mapping[str, str],
        hear: HearAnnouncement,
        parent_fd: int | None,
    ) -> None:
        read_fd, write_fd = os.pipe()
        words = [sys.executable, "-m", PROGRAM, "--announce-fd", str(write_fd)]
        fds = [write_fd]
        if parent_fd is not None:
            words = [*words, "--parent-fd", str(parent_fd)]
            fds = [write_fd, parent_fd]
        self._log = paths.logs / "skep.log"
        self._hear = hear
        self._stop_s = settings.drain_s + STOP_S
        with open_log(self._log) as log:
            self.child = subprocess.Popen(
                words,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                pass_fds=fds,
                start_new_session=True,
                env=env,
            )
        os.close(write_fd)
        self._pipe = os.fdopen(read_fd)
        try:
            self._send(settings)
        except BaseException:
            self.end()
            self.close()
            raise

    def _send(self, settings: Settings) -> None:
        """Write the settings to its stdin.

        One that has ended already reads none: `until_ready` says why it did.
        """
        assert self.child.stdin is not None
        with suppress(BrokenPipeError), self.child.stdin as stdin:
            stdin.write(msgspec.json.encode(settings))

    def close(self) -> None:
        self._pipe.close()

    def end(self) -> None:
        """End it with all it has started: SIGTERM, then SIGKILL where it takes too long or its
        user is in a hurry.
        """
        self.child.send_signal(signal.SIGTERM)
        self._await_end(self._stop_s)

    def kill(self) -> None:
        from skep.supervisor.silent_hive import kill_family, process_family

        try:
            family = process_family(self.child.pid)
        finally:  # also where one more signal comes: its guards end the engines then
            self.child.send_signal(signal.SIGKILL)
        kill_family(family)

    def _await_end(self, limit_s: float) -> None:
        try:
            self.child.wait(limit_s)
        except subprocess.TimeoutExpired:
            self.kill()
        except BaseException:
            self.kill()
            raise

    def until_ready(self) -> dict[str, Any]:
        """Return its description. Raise where it does not start."""
        for message in self._announced():
            if "ready" in message:
                return cast("dict[str, Any]", message["ready"])
        what = f"skep ended with code {self.child.wait()} before it was ready"
        raise EngineError(what, hint=f"the end of {self._log} says more")

    def until_ended(self) -> None:
        """Raise its error where it ends with one."""
        for _ in self._announced():
            pass
        self.child.wait()

    def _announced(self) -> Iterator[Mapping[str, Any]]:
        for line in self._pipe:
            message = json.loads(line)
            self._hear(message)
            if "error" in message:
                self._await_end(STOP_S)
                raise _error_of(message)
            yield message


def start_detached(
    settings: Settings,
    paths: Paths,
    env: Mapping[str, str],
    hear: HearAnnouncement,
    *,
    parent_fd: int | None = None,
) -> dict[str, Any]:
    """Return the description of the hive once it is ready.

    A Ctrl-C meanwhile stops what was started.
    """
    with closing(HiveProcess(settings, paths, env, hear, parent_fd)) as hive:
        try:
            return hive.until_ready()
        except BaseException:
            hive.end()
            raise
