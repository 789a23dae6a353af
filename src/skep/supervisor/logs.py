"""Logs of replicas and of skep's own processes: files of this machine, or told by the hive where they lie on a node."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from queue import SimpleQueue
from threading import Thread
from typing import Any

from skep.errors import EngineError, UserError
from skep.paths import Paths
from skep.supervisor.control import NotRunning, ask, socket_of

POLL_S = 0.2
POLL_ELSEWHERE_S = 1.0
ANSWER_S = 20.0  # of another machine
OF_SKEP = ("skep", "gateway", "monitor", "requests")  # always here, also while nobody answers
TAIL_BYTES = 4 << 20
Message = dict[str, Any]


def read_log(paths: Paths, name: str, lines: int, *, follow: bool) -> Iterator[bytes]:
    """Yield the last lines; where it is followed, also what is written later, without end."""
    try:  # whoever runs is asked first: a file of that name may be what another hive left here
        told = None if name in OF_SKEP else _elsewhere(paths, name, lines)
    except EngineError:
        if not (paths.logs / f"{name}.log").is_file():
            raise
        told = None
    yield from _here(paths, name, lines, follow) if told is None else _on_node(paths, name, told, follow)


def read_all_logs(paths: Paths, lines: int, *, follow: bool) -> Iterator[bytes]:
    """Yield the last lines of every log, each line behind its name; where they are followed, as they are written."""
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


def _on_node(paths: Paths, name: str, told: Message, follow: bool) -> Iterator[bytes]:
    """In parts, as far as it went when the first was told; then to the end of the hive, also while it moves."""
    offset, size = told["offset"], told.get("size", 0)
    yield told["text"].encode()
    while offset < size and (more := _elsewhere(paths, name, 0, offset)) is not None and more["offset"] > offset:
        offset = more["offset"]
        yield more["text"].encode()
    is_behind = False
    while follow:
        time.sleep(0 if is_behind else POLL_ELSEWHERE_S)
        is_behind, text = False, ""
        with suppress(EngineError):
            if (more := _elsewhere(paths, name, 0, offset)) is None:
                return
            offset, is_behind, text = more["offset"], more["offset"] < more.get("size", 0), more["text"]
        yield text.encode()


def _elsewhere(paths: Paths, name: str, lines: int, offset: int | None = None) -> Message | None:
    """Return a piece of a log that lies on another node; None if the log is here or skep is not running."""
    message = {"op": "log", "name": name, "lines": lines, "offset": offset}
    try:
        told = ask(socket_of(paths.lock, paths.socket), message, timeout_s=ANSWER_S)
    except NotRunning:
        return None
    return told if "text" in told else None


def _names(paths: Paths) -> list[str]:
    """Return whose logs lie here, and the replicas whose logs lie on the nodes of a cluster."""
    found = {path.stem for path in paths.logs.glob("*.log")}
    with suppress(NotRunning, EngineError):
        rows = ask(socket_of(paths.lock, paths.socket), {"op": "status"})["rows"]
        found |= {row["name"] for row in rows if row.get("node")}
    return sorted(found)


def _here(paths: Paths, name: str, lines: int, follow: bool) -> Iterator[bytes]:
    path = paths.logs / f"{name}.log"
    if "/" in name or not path.is_file():
        raise UserError(f"there is no log of `{name}`", hint=f"known: {', '.join(_names(paths)) or 'none yet'}")
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - TAIL_BYTES))
        seen = file.read().splitlines(keepends=True)
        yield b"".join(seen[-lines:] if lines else ())
        position = file.tell()
    inode = path.stat().st_ino
    while follow:  # across rotations
        with suppress(FileNotFoundError):  # between two steps of a rotation
            found = path.stat()
            if found.st_ino != inode or found.st_size < position:
                inode, position = found.st_ino, 0
            if found.st_size > position:
                with path.open("rb") as file:
                    file.seek(position)
                    data = file.read()
                position += len(data)
                yield data
        time.sleep(POLL_S)
