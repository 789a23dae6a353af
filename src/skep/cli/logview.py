"""The end of a log, and what comes after it: of a file here, or of a replica that stands elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from skep.engines.control import NotRunning, ask, socket_of
from skep.errors import EngineError, UserError
from skep.places import Paths

POLL_S = 0.2
POLL_ELSEWHERE_S = 1.0
ANSWER_S = 20.0  # of another machine
OF_SKEP = ("skep", "gateway", "monitor", "requests")  # always here, also while nobody answers
TAIL_BYTES = 4 << 20


def show_log(paths: Paths, name: str, lines: int, *, follow: bool) -> None:
    """Whoever runs is asked first: a file of that name may be what another hive left here."""
    try:
        told = None if name in OF_SKEP else _elsewhere(paths, name, lines)
    except EngineError:
        if not (paths.logs / f"{name}.log").is_file():
            raise
        told = None
    if told is None:
        show_file(paths.logs, name, lines, follow=follow, others=lambda: _hosted(paths))
    else:
        offset = _write_all(paths, name, told)
        if follow:
            _follow_elsewhere(paths, name, offset)


def _write_all(paths: Paths, name: str, told: dict[str, Any]) -> int:
    """In parts, as far as it went when the first of them was told; where that ends."""
    offset, size = told["offset"], told.get("size", 0)
    _write(told["text"].encode())
    while offset < size and (more := _elsewhere(paths, name, 0, offset)) is not None and more["offset"] > offset:
        offset = more["offset"]
        _write(more["text"].encode())
    return int(offset)


def _follow_elsewhere(paths: Paths, name: str, offset: int) -> None:
    """Also while it moves, and its log cannot be had for a moment; until Ctrl-C, or the end of the hive."""
    is_behind = False
    with suppress(KeyboardInterrupt):
        while True:
            time.sleep(0 if is_behind else POLL_ELSEWHERE_S)
            is_behind = False
            with suppress(EngineError):
                if (told := _elsewhere(paths, name, 0, offset)) is None:
                    return
                offset, is_behind = told["offset"], told["offset"] < told.get("size", 0)
                _write(told["text"].encode())


def _elsewhere(paths: Paths, name: str, lines: int, offset: int | None = None) -> dict[str, Any] | None:
    """None: its log is here, or nobody is there to ask."""
    message = {"op": "log", "name": name, "lines": lines, "offset": offset}
    try:
        told = ask(socket_of(paths.lock, paths.socket), message, timeout_s=ANSWER_S)
    except NotRunning:
        return None
    return told if "text" in told else None


def _hosted(paths: Paths) -> list[str]:
    """The replicas whose logs lie on the nodes of a cluster."""
    try:
        rows = ask(socket_of(paths.lock, paths.socket), {"op": "status"})["rows"]
    except (NotRunning, EngineError):
        return []
    return [row["name"] for row in rows if row.get("node")]


def show_file(
    folder: Path, name: str, lines: int, *, follow: bool, others: Callable[[], Iterable[str]] = tuple
) -> None:
    """`others`: whose log lies elsewhere."""
    path = folder / f"{name}.log"
    if "/" in name or not path.is_file():
        known = sorted({*(found.stem for found in folder.glob("*.log")), *others()})
        raise UserError(f"there is no log of `{name}`", hint=f"known: {', '.join(known) or 'none yet'}")
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - TAIL_BYTES))
        seen = file.read().splitlines(keepends=True)
        _write(b"".join(seen[-lines:] if lines else ()))
        if follow:
            _follow(path, file.tell())


def _follow(path: Path, position: int) -> None:
    """Across rotations; until Ctrl-C."""
    inode = path.stat().st_ino
    try:
        while True:
            try:
                found = path.stat()
            except FileNotFoundError:  # between two steps of a rotation
                time.sleep(POLL_S)
                continue
            if found.st_ino != inode or found.st_size < position:
                inode, position = found.st_ino, 0
            if found.st_size > position:
                with path.open("rb") as file:
                    file.seek(position)
                    data = file.read()
                position += len(data)
                _write(data)
            time.sleep(POLL_S)
    except KeyboardInterrupt:
        pass


def _write(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.flush()
