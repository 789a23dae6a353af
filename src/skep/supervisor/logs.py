"""Logs of replicas and of skep's own processes: files of this machine, or told by the hive where they lie on a node."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
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
    """Yield the last lines; where it is followed, also what is written later, without end.

    Whoever runs is asked first: a file of that name may be what another hive left here.
    """
    try:
        told = None if name in OF_SKEP else _elsewhere(paths, name, lines)
    except EngineError:
        if not (paths.logs / f"{name}.log").is_file():
            raise
        told = None
    yield from _here(paths, name, lines, follow) if told is None else _on_node(paths, name, told, follow)


def read_all_logs(paths: Paths, lines: int, *, follow: bool) -> Iterator[bytes]:
    """Yield the last lines of every log, each line behind its name; where they are followed, as they are written."""
    names = sorted({*(found.stem for found in paths.logs.glob("*.log")), *_on_nodes(paths)})
    if not names:
        raise UserError("there are no logs yet", hint="`skep up -d` starts a hive")
    width = max(map(len, names))
    chunks = SimpleQueue[bytes]()

    def read(name: str) -> None:
        prefix = f"{name:{width}} | ".encode()
        for chunk in read_log(paths, name, lines, follow=follow):
            chunks.put(b"".join(prefix + line for line in chunk.splitlines(keepends=True)))

    for name in names if not follow else ():
        read(name)
    while not chunks.empty():
        yield chunks.get()
    for name in names if follow else ():
        Thread(target=read, args=(name,), daemon=True).start()
    while follow:
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
    try:
        told = _ask(paths, {"op": "log", "name": name, "lines": lines, "offset": offset}, ANSWER_S)
    except NotRunning:
        return None
    return told if "text" in told else None


def _ask(paths: Paths, message: Message, timeout_s: float) -> Message:
    return ask(socket_of(paths.lock, paths.socket), message, timeout_s=timeout_s)


def _on_nodes(paths: Paths) -> list[str]:
    """Return the replicas whose logs lie on the nodes of a cluster."""
    try:
        rows = _ask(paths, {"op": "status"}, 10.0)["rows"]
    except (NotRunning, EngineError):
        return []
    return [row["name"] for row in rows if row.get("node")]


def _here(paths: Paths, name: str, lines: int, follow: bool) -> Iterator[bytes]:
    path = paths.logs / f"{name}.log"
    if "/" in name or not path.is_file():
        known = sorted({*(found.stem for found in paths.logs.glob("*.log")), *_on_nodes(paths)})
        raise UserError(f"there is no log of `{name}`", hint=f"known: {', '.join(known) or 'none yet'}")
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - TAIL_BYTES))
        seen = file.read().splitlines(keepends=True)
        yield b"".join(seen[-lines:] if lines else ())
        position = file.tell()
    if follow:
        yield from _appended(path, position)


def _appended(path: Path, position: int) -> Iterator[bytes]:
    """Yield what is written behind this place, across rotations."""
    inode = path.stat().st_ino
    while True:
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
