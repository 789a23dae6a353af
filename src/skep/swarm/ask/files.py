"""The files that a goal is about: found by patterns under a root, text only, never outside of it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath

from skep.errors import UserError
from skep.units import format_bytes

LARGEST_BYTES = 2 << 20
MOST_FILES = 5_000
MOST_LOOKED_AT = 200_000  # names, before a root is called too large
_LOOK_BYTES = 8 << 10
PASSED_BY = frozenset({".git", "node_modules", "__pycache__", "venv", "site-packages"})


@dataclass(frozen=True, slots=True)
class Sources:
    """Texts by their names under the root, in order, and the names that were left out, each with its reason."""

    texts: Mapping[str, str]
    left_out: tuple[tuple[str, str], ...] = ()


def find_sources(root: Path, patterns: Sequence[str]) -> Sources:
    """Read all files that a pattern names. `**` is any depth of folders; a folder's name stands for all in it."""
    root = root.resolve()
    if not root.is_dir():
        raise UserError(f"--root `{root}` is not a folder", hint="name the folder that the files are in")
    wanted = [_pattern(pattern, root) for pattern in patterns]
    names = [name for name in _walk(root, hidden=any(map(_is_hidden, wanted))) if _is_named(name, wanted)]
    if len(names) > MOST_FILES:
        raise UserError(f"the patterns name {len(names):,} files, more than {MOST_FILES:,}", hint="name fewer")
    texts: dict[str, str] = {}
    left_out: list[tuple[str, str]] = []
    for name in names:
        try:
            texts[name] = read_text(root, name)
        except UserError as error:
            left_out.append((name, error.message))
    if not texts:
        shown = ", ".join(f"`{pattern}`" for pattern in patterns)
        why = f": {left_out[0][0]} is {left_out[0][1]}" if left_out else ""
        hint = 'patterns are relative to --root: "src/**/*.py", in quotes'
        raise UserError(f"{shown} names no text file under {root}{why}", hint=hint)
    return Sources(texts, tuple(left_out))


def read_text(root: Path, name: str) -> str:
    """Raise a UserError that says what the file is where it is no text under the root."""
    try:
        path = (root / name).resolve()
        if not path.is_relative_to(root):
            raise UserError("outside of the root")
        if not path.is_file():
            raise UserError("no ordinary file")
        if path.stat().st_size > LARGEST_BYTES:
            raise UserError(f"larger than {format_bytes(LARGEST_BYTES)}")
        data = path.read_bytes()
    except (OSError, RuntimeError, ValueError) as error:  # RuntimeError: links in a circle; ValueError: a NUL
        raise UserError(f"not to be read ({getattr(error, 'strerror', None) or error})") from None
    if b"\0" in data[:_LOOK_BYTES]:
        raise UserError("no text")
    text = data.decode("utf-8-sig", "replace").replace("\r\n", "\n").replace("\r", "\n")
    return text.replace("\0", "\ufffd")


def _walk(root: Path, *, hidden: bool) -> Iterator[str]:
    """Names of files under the root, in order. No link to a folder is followed."""
    looked_at = 0
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(one for one in folders if one not in PASSED_BY and (hidden or not one.startswith(".")))
        looked_at += len(files) + len(folders)
        if looked_at > MOST_LOOKED_AT:
            hint = "name a smaller folder with --root"
            raise UserError(f"{root} holds more than {MOST_LOOKED_AT:,} files", hint=hint)
        here = PurePosixPath(Path(folder).relative_to(root).as_posix())
        names = (str(here / one) for one in sorted(files) if hidden or not one.startswith("."))
        yield from (name for name in names if name.isprintable())


def _pattern(pattern: str, root: Path) -> tuple[str, ...]:
    """Its parts, relative to the root."""
    if ".." in PurePosixPath(pattern).parts or (pattern.startswith("/") and not Path(pattern).is_relative_to(root)):
        raise UserError(f"`{pattern}` leads out of {root}", hint="choose another --root")
    path = PurePosixPath(pattern)
    parts = path.relative_to(root).parts if path.is_absolute() else path.parts
    return (*parts, "**") if (root / pattern).is_dir() else parts


def _is_hidden(pattern: Sequence[str]) -> bool:
    return any(part.startswith(".") for part in pattern)


def _is_named(name: str, patterns: Sequence[tuple[str, ...]]) -> bool:
    parts = PurePosixPath(name).parts
    return any(parts == pattern or _matches(parts, pattern) for pattern in patterns)


def _matches(parts: tuple[str, ...], pattern: tuple[str, ...]) -> bool:
    if not pattern:
        return not parts
    if pattern[0] == "**":
        return any(_matches(parts[start:], pattern[1:]) for start in range(len(parts) + 1))
    return bool(parts) and fnmatchcase(parts[0], pattern[0]) and _matches(parts[1:], pattern[1:])
