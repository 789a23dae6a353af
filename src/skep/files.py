"""An engine's log: appended line by line, rotated by size, its last lines at hand when the engine
dies.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import time
from collections import deque
from collections.abc import Iterable, Iterator
from io import FileIO
from itertools import count, pairwise
from pathlib import Path, PosixPath
from typing import Any

from skep.errors import EngineError, UserError
from skep.paths import make_private
from skep.units import MIB


@contextlib.contextmanager
def hold_lock(lock_path: Path, holder: str, hint: str, *lines: str) -> Iterator[None]:
    """One holder at a time, whose pid (and what it tells) is in the file; EngineError says who it
    is.

    The kernel gives the lock back when its holder dies, so it cannot go stale.
    """
    make_private(lock_path.parent)
    descriptor = os.open(lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            pid = os.read(descriptor, 32).decode(errors="replace").partition("\n")[0] or "unknown"
            raise EngineError(f"{holder} is already running (pid {pid})", hint=hint) from None
        os.ftruncate(descriptor, 0)
        os.write(descriptor, "".join(f"{line}\n" for line in (os.getpid(), *lines)).encode())
        yield
    finally:
        os.close(descriptor)


def lock_holder(lock_path: Path) -> int | None:
    """Return the process whose number is in the file of `held`, if it holds that lock, as the
    kernel tells.

    Looked up, not tried: whoever tries a lock is in the way of the one who wants it.
    """
    try:
        pid = int(lock_path.read_text(encoding="ascii").partition("\n")[0])
        inode = lock_path.stat().st_ino
        rows = [
            line.split() for line in Path("/proc/locks").read_text(encoding="ascii").splitlines()
        ]
    except (OSError, ValueError):
        return None
    mine = [row for row in rows if len(row) > 5 and row[1] == "FLOCK" and row[4] == str(pid)]
    if any(row[5].endswith(f":{inode}") for row in mine):
        return pid
    return None


def write_whole(path: Path, content: str | Iterable[bytes | memoryview], mode: int = 0o644) -> int:
    """Write beside its place and move it there, so that a reader never sees half a file.

    Return how many bytes.
    """
    import tempfile

    descriptor, draft = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.writelines((content.encode(),) if isinstance(content, str) else content)
            size = file.tell()
            file.flush()
            os.fsync(descriptor)  # whole also after a power failure
        Path(draft).chmod(mode)
        Path(draft).replace(path)
    except BaseException:
        Path(draft).unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(folder)  # a move is on disk only when its folder is
    finally:
        os.close(folder)
    return size


def write_secret(path: Path, text: str) -> None:
    """Write a file that only this user can read, at once and whole."""
    make_private(path.parent)
    write_whole(path, text, 0o600)


HTML = (".html", ".htm")
PAGES = (*HTML, ".svg")


class OutputFile(PosixPath):
    """A file that a command writes. One that is there is replaced only with `--overwrite`, or
    where it is skep's own page about the same runs. A name that nobody typed gives way to a free
    one: report-2.html."""

    # as the command line has it
    option = "--output"
    named = True
    overwrite = True

    def checked(self, *runs: str, suffixes: tuple[str, ...] = ()) -> OutputFile:
        """Return where to write.

        Called before the work. Raise UserError where it cannot be, or must not be.
        """
        check_place(self, self.option)
        if os.path.lexists(self) and not self.is_file():
            raise UserError(
                f"{self.option} `{self}` is not a regular file", hint="name another file"
            )
        if suffixes and self.suffix not in suffixes:
            message = f"{self.option} `{self}` ends in none of {', '.join(suffixes)}"
            raise UserError(message, hint=f"name it {self.stem}{suffixes[0]}, for instance")
        if self.overwrite or not _is_taken(self, runs):
            return self
        if self.named:
            raise UserError(
                f"{self.option} `{self}` exists", hint="name another file, or add --overwrite"
            )
        others = (self.with_stem(f"{self.stem}-{number}") for number in count(2))
        return next(path for path in others if not _is_taken(path, runs))

    def write(self, text: str, *runs: str) -> None:
        """Write a text; the last line of a page has the runs that it is about."""
        write_whole(self, f"{text}{_about(runs) if runs and self.suffix in PAGES else ''}")


def check_place(path: Path, name: str = "--output") -> None:
    """UserError where a file could not be written there. `name`: of who asks for it."""
    is_folder = os.path.isdir(path)  # noqa: PTH112 - False also where nobody may look
    if is_folder or not os.path.isdir(path.parent):  # noqa: PTH112
        if is_folder:
            problem = "is a folder"
        else:
            problem = "lies in a folder that does not exist"
        raise UserError(f"{name} `{path}` {problem}", hint="name a file in a folder that exists")
    # It is written as it is; its folder may be closed.
    is_device = path.exists() and not path.is_file()
    in_closed_folder = not is_device and not os.access(path.parent, os.W_OK | os.X_OK)
    if in_closed_folder or (path.exists() and not os.access(path, os.W_OK)):
        raise UserError(
            f"{name} `{path}` cannot be written: no permission", hint="name another file"
        )


def _is_taken(path: Path, runs: tuple[str, ...]) -> bool:
    return os.path.lexists(path) and not (
        path.is_file() and runs and path.read_bytes().endswith(_about(runs).encode())
    )


def _about(runs: tuple[str, ...]) -> str:
    return f"\n<!-- skep: {' '.join(runs)} -->\n"


MAX_LINE = 1000  # of what is kept as last words
HIDDEN_KEY = b"(key)"  # stands where the engine said its key


def open_log(path: Path, *, empty: bool = False) -> FileIO:
    """Open a log to append to it, or `empty`: without what it holds.

    Only this user can read it or new folders.
    """
    make_private(path.parent)
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | (os.O_TRUNC if empty else 0)
    file = FileIO(os.open(path, flags, 0o600), "ab")
    status = os.fstat(file.fileno())
    if stat.S_ISREG(status.st_mode) and status.st_mode & 0o077:
        with contextlib.suppress(PermissionError):  # a file of another user
            os.fchmod(file.fileno(), 0o600)
    return file


class RotatingLog:
    """`NAME.log`, and `NAME.log.1` … `.N` for what came before.

    `hidden` never gets there, whoever says it.
    """

    def __init__(
        self,
        path: Path,
        *,
        max_bytes: int = 8 * MIB,
        keep: int = 3,
        tail_lines: int = 400,
        hidden: str = "",
    ) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._keep = keep
        self._tail: deque[str] = deque(maxlen=tail_lines)
        self._rest = b""
        self._hidden = hidden.encode()
        # the end of what was written last, where it may be the beginning of what is hidden
        self._begun = b""
        self._file = open_log(path)
        for older in self._older():
            with contextlib.suppress(OSError):  # gone, or of another user
                older.chmod(0o600)

    @property
    def tail(self) -> list[str]:
        if self._rest or self._begun:
            rest = [(self._rest + self._begun).decode(errors="replace")]
        else:
            rest = []
        return [*self._tail, *rest]

    def write(self, data: bytes) -> None:
        """A full disk costs log lines, never the engine."""
        data = self._without_hidden(data) if self._hidden else data
        *lines, self._rest = (self._rest + data).split(b"\n")
        self._rest = self._rest[-MAX_LINE:]
        self._tail.extend(line[:MAX_LINE].decode(errors="replace").rstrip("\r") for line in lines)
        with contextlib.suppress(OSError):
            self._file.write(data)
            if self._file.tell() > self._max_bytes:
                self._rotate()

    def _without_hidden(self, data: bytes) -> bytes:
        data = (self._begun + data).replace(self._hidden, HIDDEN_KEY)
        sizes = range(min(len(self._hidden) - 1, len(data)), 0, -1)
        size = next((size for size in sizes if data.endswith(self._hidden[:size])), 0)
        self._begun = data[len(data) - size :]
        return data[: len(data) - size]

    def remark(self, text: str) -> None:
        """A line of ours, dated, between the engine's; not among its last words."""
        with contextlib.suppress(OSError):
            self._file.write(
                f"--- {time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())} {text}\n".encode()
            )

    def close(self) -> None:
        self._file.close()

    def _older(self) -> list[Path]:
        return [
            self._path.with_name(f"{self._path.name}.{number}")
            for number in range(1, self._keep + 1)
        ]

    def _rotate(self) -> None:
        """The old file is given up only when the new one is open."""
        for before, after in reversed([*pairwise((self._path, *self._older()))]):
            # None yet, or deleted by somebody: a new one is begun.
            with contextlib.suppress(FileNotFoundError):
                os.replace(before, after)  # noqa: PTH105
        fresh = open_log(self._path)
        self._file.close()
        self._file = fresh


def read_user_text(path: Path) -> str:
    """Read a file that the user named."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(
            f"`{path}` cannot be read: {error.strerror}", hint="check the path"
        ) from None
    except UnicodeDecodeError:
        raise UserError(
            f"`{path}` is not text in UTF-8", hint="check that it is the right file"
        ) from None


def read_user_toml(path: Path) -> dict[str, Any]:
    import tomllib

    try:
        return tomllib.loads(read_user_text(path))
    except (ValueError, RecursionError) as error:
        raise UserError(
            f"`{path}` is not TOML: {error}", hint="docs/measure.md has an example"
        ) from None
