"""The end of a log, and what comes after it."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from skep.errors import UserError

POLL_S = 0.2
TAIL_BYTES = 4 << 20


def show_log(folder: Path, name: str, lines: int, *, follow: bool) -> None:
    path = folder / f"{name}.log"
    if "/" in name or not path.is_file():
        known = sorted(found.stem for found in folder.glob("*.log"))
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
