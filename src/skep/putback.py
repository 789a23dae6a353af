"""The user's own service set aside while something else needs the machine, and put back on any end.

`python -m skep.putback --word-fd N --answer-fd M` is the guardian: it holds what is to be put back and the reading end
of a pipe, in a session of its own. At the word `back`, or at the pipe's end (whoever held it was killed), it starts
the service again as it was: same wishes, folder, environment and port. Knows nothing of tuning.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import chdir, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, Any

from skep.configfile import wished_settings
from skep.engines.control import NotRunning, ask, ask_down, socket_of
from skep.engines.logfile import open_log
from skep.engines.shown import NO_REPLICAS
from skep.errors import EngineError, SkepError
from skep.places import Paths, user_paths
from skep.settings import wishes_of
from skep.wire.heads import parse_url

TRIES = 20  # a card is given back a moment after its engine has ended
TRY_EVERY_S = 3.0


@dataclass(frozen=True, slots=True)
class Service:
    """What runs, and all that is needed to start it again."""

    url: str
    models: tuple[str, ...]
    pid: int
    gpus: tuple[int, ...]
    settings: Mapping[str, Any]  # as `skep.cli.detached` takes them
    environment: Mapping[str, str]
    folder: str | None
    unit: str | None = None  # of systemd's user manager, where that started it

    def __str__(self) -> str:
        cards = f" on GPU {', '.join(map(str, self.gpus))}" if self.gpus else ""
        return f"skep serves {', '.join(self.models) or 'no model'}{cards} at {self.url} (pid {self.pid})"

    def shares(self, cards: Sequence[int]) -> tuple[int, ...]:
        """Which of its cards another one would have too, who takes these; none named: any."""
        return tuple(card for card in self.gpus if not cards or card in cards)


def running_service(paths: Paths) -> Service | None:
    """For who would share the machine with it, not to start it again; None: nothing runs."""
    try:
        status = ask(socket_of(paths.lock, paths.socket), {"op": "status"})
    except NotRunning:
        return None
    return _service(status, {}, {}, None, None)


@contextmanager
def service_set_aside(paths: Paths) -> Iterator[Service | None]:
    """Stopped after its answers while the block runs; serving again when the block has been left, also by a kill.

    Yields None where nothing was running.
    """
    found = _find(paths)
    if found is None:
        yield None
        return
    with _guardian(found, paths):
        ask_down(socket_of(paths.lock, paths.socket))
        yield found


def _find(paths: Paths) -> Service | None:
    """Whatever could keep it from being started again is raised here, before it is stopped."""
    where = socket_of(paths.lock, paths.socket)
    try:
        status, wishes = ask(where, {"op": "status"}), wishes_of(ask(where, {"op": "origin"})["wishes"])
    except NotRunning:
        return None
    environment = _environment(status["pid"])
    with chdir(wishes.folder) if wishes.folder else nullcontext():
        settings = wished_settings(wishes, paths, environment)
    origin, _ = parse_url(status["url"])
    settings = replace(settings, gateway=replace(settings.gateway, port=origin.port))
    return _service(status, asdict(settings), environment, wishes.folder, _unit(status["pid"]))


def _service(
    status: Mapping[str, Any],
    settings: Mapping[str, Any],
    environment: Mapping[str, str],
    folder: str | None,
    unit: str | None,
) -> Service:
    rows = [row for row in status["rows"] if row["kind"] not in NO_REPLICAS]
    models = tuple(sorted({row["model"] for row in rows if row["model"]}))
    rooms = {name for row in rows for name in row.get("room") or {} if name.startswith("gpu")}
    gpus = tuple(sorted(int(name.removeprefix("gpu")) for name in rooms))
    return Service(status["url"], models, status["pid"], gpus, settings, environment, folder, unit)


def _environment(pid: int) -> dict[str, str]:
    """Of that process as it was started; ours where it cannot be read."""
    try:
        words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return dict(os.environ)
    pairs = (os.fsdecode(word).partition("=") for word in words if b"=" in word)
    return {name: value for name, _, value in pairs}


def _unit(pid: int) -> str | None:
    """The unit that `skep service` prints, where it is the one that runs."""
    try:
        group = Path(f"/proc/{pid}/cgroup").read_text(encoding="utf-8")
    except OSError:
        return None
    leaf = group.strip().rpartition("/")[2]
    return leaf if leaf.startswith("skep") and leaf.endswith(".service") else None


# The side of who sets it aside


@contextmanager
def _guardian(service: Service, paths: Paths) -> Iterator[None]:
    word_read, word_write = os.pipe()
    answer_read, answer_write = os.pipe()
    argv = [sys.executable, "-m", "skep.putback", "--word-fd", str(word_read), "--answer-fd", str(answer_write)]
    with open_log(paths.logs / "putback.log") as log:
        child = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=log, stderr=log, pass_fds=[word_read, answer_write],
            start_new_session=True,
        )  # fmt: skip
    os.close(word_read)
    os.close(answer_write)
    document = {"service": asdict(service), "logs": str(paths.logs)}
    with os.fdopen(answer_read) as answers, os.fdopen(word_write, "wb", buffering=0) as word:
        assert child.stdin is not None
        with child.stdin:
            child.stdin.write(json.dumps(document).encode())
        if "holding" not in answers.readline():
            raise EngineError("nobody could be made to put the service back", hint=f"see {paths.logs / 'putback.log'}")
        error: BaseException | None = None
        try:
            yield
        except BaseException as raised:
            error = raised
        trouble = _back(child, word, answers)
    if trouble is not None and isinstance(error, SkepError):  # both are told
        error.hint = "; ".join(filter(None, (f"{trouble}: {trouble.hint}", error.hint)))
    elif trouble is not None:
        raise trouble from error
    if error is not None:
        raise error


def _back(child: subprocess.Popen[bytes], word: IO[bytes], answers: IO[str]) -> EngineError | None:
    """The word is given; what the guardian could not do."""
    with suppress(OSError):  # it was killed: there is no answer either
        word.write(b"back\n")
    told = json.loads(answers.readline() or "{}")
    child.wait()
    if "back" in told:
        return None
    why = told.get("error", f"its guardian ended with code {child.returncode}")
    return EngineError(f"the service could not be put back: {why}", hint="start it with `skep up -d`")


# The guardian's side


def put_back(document: Mapping[str, Any]) -> dict[str, Any]:
    """Tried again for a while: what ran meanwhile may still hold the cards."""
    service = document["service"]
    said: dict[str, Any] = {}
    for left in range(TRIES - 1, -1, -1):
        said = _start(service, Path(document["logs"]))
        if "back" in said or _is_up(service["environment"]):
            return {"back": True}
        if left:
            time.sleep(TRY_EVERY_S)
    return said


def _is_up(environment: Mapping[str, str]) -> bool:
    """Somebody else may have started it."""
    paths = user_paths(environment)
    with suppress(SkepError):
        return bool(ask(socket_of(paths.lock, paths.socket), {"op": "status"})["phase"] == "ready")
    return False


def _start(service: Mapping[str, Any], logs: Path) -> dict[str, Any]:
    """The command that `skep up -d` runs, or the unit it was."""
    if service["unit"] is not None:
        done = subprocess.run(["systemctl", "--user", "start", service["unit"]], check=False)
        return {"back": True} if done.returncode == 0 else {"error": f"{service['unit']} does not start"}
    read_fd, write_fd = os.pipe()
    with open_log(logs / "skep.log") as log:
        child = subprocess.Popen(
            [sys.executable, "-m", "skep.cli.detached", "--announce-fd", str(write_fd)],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            pass_fds=[write_fd],
            start_new_session=True,
            env=dict(service["environment"]),
            cwd=service["folder"],
        )
    os.close(write_fd)
    assert child.stdin is not None
    with child.stdin:
        child.stdin.write(json.dumps(service["settings"]).encode())
    with os.fdopen(read_fd) as lines:
        messages = (json.loads(line) for line in lines)
        said: dict[str, Any] = next((one for one in messages if "ready" in one or "error" in one), {})
    if "ready" in said:
        return {"back": True}
    child.wait()
    return {"error": said.get("error", f"skep ended with code {child.returncode}")}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="skep-putback")
    parser.add_argument("--word-fd", type=int, required=True)
    parser.add_argument("--answer-fd", type=int, required=True)
    args = parser.parse_args(argv)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: None)  # not SIG_IGN: the service would inherit that
    for fd in (args.word_fd, args.answer_fd):
        os.set_inheritable(fd, False)
    document = json.load(sys.stdin)
    answer = os.fdopen(args.answer_fd, "w", buffering=1)
    answer.write('{"holding": true}\n')
    with os.fdopen(args.word_fd) as word:
        word.readline()  # "back", or the end of who would have said it
    told = put_back(document)
    with suppress(OSError):
        answer.write(json.dumps(told) + "\n")
        answer.close()
    return 0 if "back" in told else 1


if __name__ == "__main__":
    sys.exit(main())
