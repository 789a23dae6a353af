"""Which files a goal is about: found by patterns under a root, text only, never outside of it.

What is left out is told with its reason. Reading is the only thing done to a file here.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from skep.errors import UserError
from skep.swarm.ask.chunks import Piece, lines_of, parse_ref, pieces_of, text_of
from skep.units import format_bytes

LARGEST_BYTES = 2 << 20
MOST_FILES = 5_000
MOST_LOOKED_AT = 200_000  # names, before a pattern is called too wide
_LOOK_BYTES = 8 << 10
PASSED_BY = frozenset({"node_modules", "__pycache__", "venv", "site-packages"})  # besides all that begins with a dot


@dataclass(slots=True)
class Sources:
    """The texts of a run, by name under the root; each file is read once."""

    root: Path
    names: tuple[str, ...] = ()
    passed_by: tuple[tuple[str, str], ...] = ()  # name and why
    _texts: dict[str, str] = field(default_factory=dict)

    def text(self, name: str) -> str:
        if name not in self._texts:
            self._texts[name] = read_text(self.root, name)
        return self._texts[name]

    def piece_text(self, piece: Piece) -> str:
        return text_of(piece, lines_of(self.text(piece.file)))

    def pieces(self, ref: str, most_chars: int) -> list[Piece]:
        """Of a file's name, or of `name:10-80`; UserError where there is no such text."""
        piece = None if ref in self.names else parse_ref(ref)
        if piece is None or (self.root / ref).is_file():
            return pieces_of(ref, self.text(ref), most_chars)
        count = len(lines_of(self.text(piece.file)))
        if piece.last > count:
            raise UserError(f"`{ref}`: the file has {count:,} lines", hint="name lines that are there")
        if piece.parts > 1 or len(self.piece_text(piece)) <= most_chars:
            return [piece]
        return pieces_of(piece.file, self.text(piece.file), most_chars, first=piece.first, last=piece.last)


def find_sources(root: Path, patterns: Sequence[str]) -> Sources:
    """All files that a pattern names, in order of their names. A folder's name stands for all in it."""
    root = root.resolve()
    if not root.is_dir():
        raise UserError(f"--root `{root}` is not a folder", hint="name the folder that the files are in")
    wanted = [_pattern(pattern, root) for pattern in patterns]
    names: list[str] = []
    passed_by: list[tuple[str, str]] = []
    for name in _walk(root, hidden=any(_is_hidden(pattern) for pattern in patterns)):
        if any(one.fullmatch(name) for one in wanted):
            why = _why_not(root, name)
            names.append(name) if why is None else passed_by.append((name, why))
    if len(names) > MOST_FILES:
        raise UserError(f"--files names {len(names):,} files, more than {MOST_FILES:,}", hint="name fewer")
    if patterns and not names:
        shown = ", ".join(f"`{pattern}`" for pattern in patterns)
        why = f": {passed_by[0][0]} is {passed_by[0][1]}" if passed_by else ""
        hint = 'patterns are relative to --root: --files "src/**/*.py", in quotes'
        raise UserError(f"--files {shown} names no text file under {root}{why}", hint=hint)
    return Sources(root, tuple(names), tuple(passed_by))


def inside(root: Path, name: str) -> Path:
    """The file's true path, which must be under the root, whatever links lead there; UserError elsewhere."""
    if "\0" in name:
        raise UserError("a file's name has no NUL in it")
    try:
        path = (root / name).resolve()
    except (OSError, RuntimeError, ValueError):  # RuntimeError: links in a circle; ValueError: half a character
        raise UserError(f"`{name}` cannot be looked up") from None
    if not path.is_relative_to(root.resolve()):
        raise UserError(f"`{name}` is outside of the root", hint="only files under --root are read")
    return path


def read_text(root: Path, name: str) -> str:
    """UserError for what is no ordinary text file of a bearable size."""
    path = inside(root, name)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise UserError(f"`{name}`: {(error.strerror or 'cannot be read').lower()}") from None
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise UserError(f"`{name}` is not a file")
        if found.st_size > LARGEST_BYTES:
            raise UserError(f"`{name}` has {format_bytes(found.st_size)}, more than {format_bytes(LARGEST_BYTES)}")
        with os.fdopen(os.dup(descriptor), "rb") as file:
            data = file.read(LARGEST_BYTES)
    finally:
        os.close(descriptor)
    if b"\0" in data[:_LOOK_BYTES]:
        raise UserError(f"`{name}` is not text")
    text = data.decode("utf-8-sig", "replace").replace("\r\n", "\n").replace("\r", "\n")
    return text.replace("\0", "�")


def walk(root: Path) -> Iterator[str]:
    """Names of files under the root, in order, without hidden and installed ones. No link to a folder is followed."""
    return _walk(root, hidden=False)


def _walk(root: Path, *, hidden: bool) -> Iterator[str]:
    looked_at = 0
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(one for one in folders if _is_walked(one, hidden=hidden))
        looked_at += len(files) + len(folders)
        if looked_at > MOST_LOOKED_AT:
            raise UserError(
                f"{root} holds more than {MOST_LOOKED_AT:,} files", hint="name a smaller folder with --root"
            )
        here = PurePosixPath(Path(folder).relative_to(root).as_posix())
        for one in sorted(files):
            if hidden or not one.startswith("."):
                name = str(here / one)
                if name.isprintable():  # what cannot be shown or stored as text
                    yield name


def _is_walked(name: str, *, hidden: bool) -> bool:
    return name != ".git" and name not in PASSED_BY and (hidden or not name.startswith("."))


def _is_hidden(pattern: str) -> bool:
    return any(part.startswith(".") and part not in (".", "..") for part in PurePosixPath(pattern).parts)


def _why_not(root: Path, name: str) -> str | None:
    """None: it can be read. Only its beginning is looked at."""
    try:
        path = inside(root, name)
        size = path.stat().st_size
        if not path.is_file():
            return "no ordinary file"
        if size > LARGEST_BYTES:
            return f"larger than {format_bytes(LARGEST_BYTES)}"
        with path.open("rb") as file:
            return "no text" if b"\0" in file.read(_LOOK_BYTES) else None
    except UserError as error:
        return "outside of the root" if "outside" in error.message else "not to be read"
    except OSError as error:
        return f"not to be read ({(error.strerror or 'unknown').lower()})"


def _pattern(pattern: str, root: Path) -> re.Pattern[str]:
    """`*` and `?` stay inside a folder, `**` is any depth of them."""
    if pattern.startswith("/"):
        path = Path(pattern)
        if not path.is_relative_to(root):
            raise UserError(f"--files `{pattern}` is outside of {root}", hint="choose another --root")
        pattern = path.relative_to(root).as_posix()
    parts = [part for part in PurePosixPath(pattern).parts if part != "."]
    if ".." in parts:
        raise UserError(f"--files `{pattern}` leads out of {root}", hint="choose another --root")
    if not parts or (root / pattern).is_dir():
        parts.append("**")
    text = ""
    for place, part in enumerate(parts):
        last = place == len(parts) - 1
        if part == "**":
            text += ".*" if last else "(?:[^/]+/)*"
        else:
            text += _segment(part) + ("" if last else "/")
    try:
        return re.compile(text, re.DOTALL)
    except re.error:
        raise UserError(f"--files `{pattern}` is not a pattern", hint='such as "docs/**/*.md"') from None


def _segment(part: str) -> str:
    """Of one folder's or file's name."""
    made, place = "", 0
    while place < len(part):
        one = part[place]
        close = part.find("]", place + 2) if one == "[" else -1
        if one == "*":
            made += "" if made.endswith("[^/]*") else "[^/]*"
        elif one == "?":
            made += "[^/]"
        elif close > 0:
            inner = part[place + 1 : close].replace("\\", "\\\\").replace("[", "\\[")
            made += f"[{'^' + inner[1:] if inner[0] == '!' else inner}]"
            place = close
        else:
            made += re.escape(one)
        place += 1
    return made
