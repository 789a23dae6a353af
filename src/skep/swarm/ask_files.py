"""The text files that a goal is about: found by patterns, read, and cut into pieces.

Knows nothing of goals, models and contexts: how long a piece may be is said in characters."""

from __future__ import annotations

import os
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path, PurePosixPath

import msgspec

from skep.errors import UserError
from skep.units import format_bytes

LARGEST_BYTES = 2 << 20
_LOOK_BYTES = 8 << 10  # a NUL in these first bytes: the file is no text
# Folders whose files a pattern does not name: packages, and what tools keep.
PASSED_BY = frozenset({".git", "node_modules", "__pycache__", "venv", "site-packages"})


class Sources(msgspec.Struct, frozen=True):
    """Texts by their names under the root, in order, and the names that were left out, each with
    its reason.
    """

    texts: Mapping[str, str]
    left_out: tuple[tuple[str, str], ...] = ()


def find_sources(root: Path, patterns: Sequence[str], *, outside: bool = False) -> Sources:
    """Read all files that a pattern names. `**` is any depth of folders; a folder's name stands
    for all that it holds.

    `outside`: a pattern may begin in another folder, as in a shell of the user's own. A link that
    leads out of the folder where its pattern begins is never followed.
    """
    root = root.resolve()
    folders: dict[str, Path] = {}  # of each name: where its pattern begins
    for pattern in patterns:
        folder, rest = _beginning(root, pattern, outside=outside)
        for name in _names(folder, rest):
            shown_name = Path(os.path.relpath(folder / name, root)).as_posix()
            folders.setdefault(shown_name, folder)
    texts: dict[str, str] = {}
    left_out: list[tuple[str, str]] = []
    for name in sorted(folders):
        folder = folders[name]
        try:
            texts[name] = read_text(folder, os.path.relpath(root / name, folder))
        except UserError as error:
            left_out.append((name, error.message))
    if not texts:
        quoted_patterns = ", ".join(f"`{pattern}`" for pattern in patterns)
        why = ""
        if left_out:
            name, reason = left_out[0]
            why = f": {name} is {reason}"
        raise UserError(
            f"{quoted_patterns} matches no text file under {root}{why}",
            hint='patterns are relative to this folder: "src/**/*.py", in quotes',
        )
    return Sources(texts, tuple(left_out))


def read_text(root: Path, name: str) -> str:
    """Return the text of a file; UserError says what it is where it is no text under the root."""
    try:
        path = (root / name).resolve()
        if not path.is_relative_to(root):
            raise UserError("outside of the root")
        if not path.is_file():
            raise UserError("not a regular file")
        if path.stat().st_size > LARGEST_BYTES:
            raise UserError(f"larger than {format_bytes(LARGEST_BYTES)}")
        data = path.read_bytes()
    except (OSError, RuntimeError, ValueError) as error:
        # RuntimeError: links in a circle; ValueError: a NUL.
        raise UserError(f"not readable ({getattr(error, 'strerror', None) or error})") from None
    if b"\0" in data[:_LOOK_BYTES]:
        raise UserError("not text")
    text = data.decode("utf-8-sig", "replace")
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    return text.replace("\0", "\ufffd")


def _beginning(root: Path, pattern: str, *, outside: bool) -> tuple[Path, PurePosixPath]:
    """Return the folder in which a pattern begins, and the pattern from there on."""
    relative = pattern
    if pattern.startswith("/"):
        relative = os.path.relpath(pattern, root)
    path = PurePosixPath(relative)
    if ".." not in path.parts:
        return root, path
    if not outside:
        raise UserError(
            f"`{pattern}` leads out of {root}",
            hint="start skep in the folder that the files are in",
        )
    wildcards = (place for place, part in enumerate(path.parts) if set("*?[") & set(part))
    first_wildcard = next(wildcards, len(path.parts))
    if ".." in path.parts[first_wildcard:]:
        raise UserError(
            f"`{pattern}` has `..` behind a `*`",
            hint="begin the pattern with the folder itself",
        )
    folder = root.joinpath(*path.parts[:first_wildcard]).resolve()
    rest = PurePosixPath(*path.parts[first_wildcard:])
    if folder.is_dir():
        return folder, rest
    return folder.parent, PurePosixPath(folder.name) / rest


def _names(root: Path, pattern: PurePosixPath) -> Iterable[str]:
    """Yield the files that a pattern names, relative to the root: hidden ones only where the
    pattern names hidden ones, those in folders of `PASSED_BY` never.
    """
    if (root / pattern).is_dir():
        pattern = pattern / "**" / "*"
    names_hidden = any(part.startswith(".") for part in pattern.parts)
    try:
        paths = [path for path in root.glob(str(pattern)) if not path.is_dir()]
    except ValueError as error:  # `**` beside other signs
        raise UserError(f"`{pattern}` is not a pattern: {error}") from None
    for path in paths:
        name = path.relative_to(root)
        if not names_hidden and any(part.startswith(".") for part in name.parts):
            continue
        if not PASSED_BY.isdisjoint(name.parts):
            continue
        if str(name).isprintable():
            yield name.as_posix()


class FilePiece(msgspec.Struct, frozen=True):
    """Some lines of a file.

    `ref` names them, counted from 1: `docs/a.md:1-80`, or a part of one long line.
    """

    ref: str
    text: str


def pieces_of(file: str, text: str, most_chars: int) -> list[FilePiece]:
    """Cut a text into pieces of at most `most_chars` characters. A blank text has none."""
    # At line feeds alone, as editors and `grep -n` count lines.
    lines = text.removesuffix("\n").split("\n")
    offsets = [0, *accumulate(len(line) + 1 for line in lines)]  # characters before each line
    pieces: list[FilePiece] = []
    begin = 0
    while begin < len(lines):
        end = _cut(lines, offsets, begin, most_chars)
        piece_text = "\n".join(lines[begin:end])
        ref = f"{file}:{begin + 1}-{end}"
        begin = end
        if not piece_text.strip():
            continue
        if len(piece_text) <= most_chars:
            pieces.append(FilePiece(ref, piece_text))
            continue
        starts = range(0, len(piece_text), most_chars)  # the piece is one line
        for number, start in enumerate(starts, 1):
            part = piece_text[start : start + most_chars]
            pieces.append(FilePiece(f"{ref} ({number}/{len(starts)})", part))
    return pieces


def _cut(lines: list[str], offsets: list[int], begin: int, most_chars: int) -> int:
    """Return the line before which the piece from line `begin` on ends: the last of the best
    borders in the second half of what fits.
    """
    last_border = bisect_right(offsets, offsets[begin] + most_chars + 1) - 1
    if last_border >= len(lines):
        return len(lines)
    first_border = bisect_left(offsets, offsets[begin] + most_chars // 2)
    borders = range(max(begin + 1, first_border), last_border + 1)
    return max(
        borders,
        key=lambda end: (_rank(lines[end - 1], lines[end]), end),
        default=begin + 1,
    )


def _rank(before: str, line: str) -> int:
    """Rate a cut between two lines, behind a blank one: best before a heading, then before text
    that is not indented.
    """
    if before.strip():
        return 0
    if line.startswith("#"):
        return 3
    if line[:1].strip():
        return 2
    return 1
