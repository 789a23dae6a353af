"""Long texts in pieces that fit a context, cut where the text itself makes a pause. Pure: knows no files and no models.

A cut is looked for at a heading, at a definition that begins in the first column, at an empty line, and only then
between any two lines. The pieces of a text are about equally long, cover it and do not overlap.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import ceil
from pathlib import PurePosixPath

_PROSE = frozenset({".md", ".markdown", ".rst", ".txt", ".adoc", ""})
_HEADING = re.compile(r"(#{1,6})\s")
_FENCE = re.compile(r"\s{0,3}(```|~~~)")
_SOONEST = 0.5  # of the wanted length: no piece ends before it


@dataclass(frozen=True, slots=True)
class Piece:
    """Some lines of a file. `ref` names them, counted from 1: `docs/a.md:1-80`, or a part of one long line."""

    ref: str
    text: str


def lines_of(text: str) -> list[str]:
    """Only line feeds end a line, as editors and `grep -n` count; the last piece has no end of its own."""
    lines = text.split("\n")
    return lines[:-1] if lines and not lines[-1] else lines


def pieces_of(file: str, text: str, most_chars: int) -> list[Piece]:
    """Pieces of at most so many characters. None where the text is blank."""
    lines = lines_of(text)
    scores = _scores(lines, prose=PurePosixPath(file).suffix.lower() in _PROSE)
    found: list[Piece] = []
    for begin, end in _spans(lines, scores, most_chars):
        whole, ref = "\n".join(lines[begin:end]), f"{file}:{begin + 1}-{end}"
        if not whole.strip():
            continue
        if len(whole) <= most_chars:
            found.append(Piece(ref, whole))
        else:  # one line
            parts = _parts(whole, ceil((len(whole) + 1) / most_chars))
            found.extend(Piece(f"{ref} ({number}/{len(parts)})", part) for number, part in enumerate(parts, 1))
    return found


def _spans(lines: list[str], scores: list[int], most_chars: int) -> list[tuple[int, int]]:
    spans: list[tuple[int, int]] = []
    left = sum(len(line) + 1 for line in lines)
    begin = 0
    while begin < len(lines):
        end = _cut(lines, scores, begin, left, most_chars)
        spans.append((begin, end))
        left -= sum(len(line) + 1 for line in lines[begin:end])
        begin = end
    return spans


def _cut(lines: list[str], scores: list[int], begin: int, left: int, most_chars: int) -> int:
    """Where the piece that begins here ends: the best border from half the wanted length to the longest allowed."""
    if left - 1 <= most_chars:
        return len(lines)
    wanted = left / ceil(left / most_chars)
    size, best, best_score = 0, begin + 1, -1e9
    for end in range(begin + 1, len(lines) + 1):
        size += len(lines[end - 1]) + 1
        if size - 1 > most_chars:
            break
        score = scores[end] - 60 * abs(size - wanted) / wanted if size >= _SOONEST * wanted else -1e6 + size
        if score >= best_score:
            best, best_score = end, score
    return best


def _scores(lines: list[str], *, prose: bool) -> list[int]:
    """How good a cut before each line is; the last entry is the end."""
    scores, fenced = [0], False
    for before, line in zip(lines, [*lines[1:], ""], strict=False):
        if prose and _FENCE.match(before):
            fenced = not fenced
        heading = _HEADING.match(line) if prose and not fenced else None
        if heading:
            scores.append(100 - 5 * len(heading[1]))
        elif before.strip():
            scores.append(0)
        elif line[:1].strip() and not fenced:
            scores.append(60 if prose else 80)
        else:
            scores.append(30 - min(len(line) - len(line.lstrip()), 16))
    scores[-1] = 100
    return scores


def _parts(text: str, parts: int) -> list[str]:
    """As many as asked for, cut at a space where there is one nearby."""
    found, start = [], 0
    for number in range(1, parts):
        wanted = len(text) * number // parts
        space = text.rfind(" ", max(start, wanted - 80), wanted) + 1
        end = space or wanted
        found.append(text[start:end])
        start = end
    return [*found, text[start:]]
