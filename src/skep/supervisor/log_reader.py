"""Reads the logs of replicas and of skep's own processes, here or, through the hive, on a node of
a cluster. Knows no process: whoever writes a log is not asked.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from queue import SimpleQueue
from threading import Thread
from typing import BinaryIO

import msgspec

from skep.errors import EngineError, UserError
from skep.paths import Paths
from skep.supervisor.control import NotRunning, ask, socket_of

POLL_S = 0.2
POLL_ELSEWHERE_S = 1.0
ELSEWHERE_ANSWER_S = 20.0
OF_SKEP = ("skep", "gateway", "monitor", "requests")  # always here, also while nobody answers
TAIL_BYTES = 4 << 20  # at most so much of the end is searched for the last lines
PART_BYTES = 512 << 10  # JSON makes at most six bytes of one, and a message may have 4 MiB
_AS_BYTES = "surrogateescape"  # bytes that are not UTF-8 come out of a log as they are


class LogPart(msgspec.Struct, frozen=True):
    """A part of a log, where it ends, and the size of the whole."""

    text: str = ""
    offset: int = 0
    size: int = 0


def log_part(file: BinaryIO, offset: int | None, lines: int, errors: str = "replace") -> LogPart:
    """Return the last lines, or with an `offset` what follows it.

    Return no more than PART_BYTES, to the end of a line if they hold one. A file that is shorter
    than the offset was rotated: it is read from its beginning.
    """
    size = file.seek(0, os.SEEK_END)
    if offset is None:
        file.seek(max(0, size - TAIL_BYTES))
        tail = file.read(min(TAIL_BYTES, size)).splitlines(keepends=True)
        begin = size - sum(map(len, tail[-lines:] if lines else ()))
    elif offset <= size:
        begin = offset
    else:
        begin = 0
    file.seek(begin)
    data = file.read(min(PART_BYTES, size - begin))
    if begin + len(data) < size:
        data = data[: data.rfind(b"\n") + 1] or data
    return LogPart(data.decode(errors=errors), begin + len(data), size)


def read_log(paths: Paths, name: str, lines: int, *, follow: bool) -> Iterator[bytes]:
    """Yield the last lines; with `follow`, also what is written later, until the hive ends."""
    read = _part_elsewhere
    poll_s = POLL_ELSEWHERE_S
    part = None
    try:  # the running hive is asked first: a file of that name may be another hive's
        part = None if name in OF_SKEP else read(paths, name, lines)
    except EngineError:
        if not (paths.logs / f"{name}.log").is_file():
            raise
    if part is None:
        read = _part_here
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
    """Yield the last lines of every log, each line behind its name; with `follow`, also what is
    written later.
    """
    names = _log_names(paths)
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


def _part_elsewhere(
    paths: Paths, name: str, lines: int, offset: int | None = None
) -> LogPart | None:
    """Return a part of a log that lies on another node; None if the log is here or skep is not
    running.
    """
    message = {"op": "log", "name": name, "lines": lines, "offset": offset}
    try:
        answer = ask(socket_of(paths.lock, paths.socket), message, timeout_s=ELSEWHERE_ANSWER_S)
    except NotRunning:
        return None
    if "text" in answer:
        return LogPart(answer["text"], answer["offset"], answer.get("size", 0))
    return None


def _part_here(paths: Paths, name: str, lines: int, offset: int | None = None) -> LogPart | None:
    """Return a part of a log of this machine. One that was rotated is read from its beginning."""
    path = paths.logs / f"{name}.log"
    if offset is None and ("/" in name or not path.is_file()):
        names = ", ".join(_log_names(paths)) or "none yet"
        raise UserError(f"there is no log of `{name}`", hint=f"known: {names}")
    try:
        with path.open("rb") as file:
            return log_part(file, offset, lines, _AS_BYTES)
    except FileNotFoundError:  # between two steps of a rotation
        return LogPart()


def _log_names(paths: Paths) -> list[str]:
    """Return whose logs lie here, and the replicas whose logs lie on the nodes of a cluster."""
    names = {path.stem for path in paths.logs.glob("*.log")}
    with suppress(NotRunning, EngineError):
        rows = ask(socket_of(paths.lock, paths.socket), {"op": "status"})["rows"]
        names |= {row["name"] for row in rows if row.get("node")}
    return sorted(names)
