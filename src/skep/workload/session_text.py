"""Text of agents' sessions: a system prompt that all of them share, and what tools bring before
each turn.

A text is put together from functions that were written once, so that millions of tokens take a
second. It begins with a tag of its own: two texts part at their first words, and those with equal
tags are equal byte by byte. Lengths are in an engine's tokens, as `calibrate` in `prompts.py`
found them; `filling.py` says what a piece is. Knows nothing of turns, answers and pauses.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import cache
from random import Random

import msgspec

from skep.workload import filling
from skep.workload.filling import pieces, pieces_for
from skep.workload.prompts import TokenCalibration

BLOCK_COUNT = 400  # functions that every text is put together from
BLOCK_PIECES = 3_000  # of one draw of functions
_SYSTEM = (
    "{tag} You are a coding agent. You read files, run commands and change code until the task "
    "is done. These are your tools:\n\n"
)
_RESULT = "{tag} result of the tool:\n\n"
_SHORT = "{tag}"
_FEWEST_FOR_WORDS = 60  # pieces; a shorter text is its tag and functions, without a heading
_TAG_DIGITS = 9


class TextBlock(msgspec.Struct, frozen=True):
    """One function of the library; `ends` has, for each of its lines, where it ends and how many
    pieces there are up to there.
    """

    text: str
    pieces: int
    ends: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, text: str) -> TextBlock:
        places = [place + 1 for place, letter in enumerate(text) if letter == "\n"]
        ends = tuple((place, pieces(text[:place])) for place in places)
        return cls(text, pieces(text), ends)

    def cut(self, room: int) -> tuple[str, int]:
        """Return the lines that fit into so many pieces, and their number of pieces."""
        fitting = [(place, count) for place, count in self.ends if count <= room]
        if not fitting:
            return "", 0
        place, count = fitting[-1]
        return self.text[:place], count


@cache
def text_blocks() -> tuple[TextBlock, ...]:
    """Return the library: functions of distinct names, the same on every machine."""
    rng = Random("sessions/blocks")
    blocks: list[TextBlock] = []
    while len(blocks) < BLOCK_COUNT:
        code = filling.functions(rng, pieces, BLOCK_PIECES)
        functions = code.split(filling.BETWEEN_FUNCTIONS)
        blocks += [
            TextBlock.of(function + filling.BETWEEN_FUNCTIONS)
            for function in functions
            if function.strip()
        ]
    return tuple(blocks[:BLOCK_COUNT])


class SessionTexts:
    """Writes the texts of one run. Those of another seed begin otherwise."""

    def __init__(self, seed: int, calibration: TokenCalibration | None = None) -> None:
        self._seed = seed
        self._chars_per_token = (calibration or TokenCalibration()).chars_per_token

    def shared(self, name: str, tokens: int) -> str:
        """Return the beginning that all sessions of that name have: the same bytes each time."""
        return self._text(_SYSTEM, f"shared/{name}", tokens)

    def turn(self, session: str, number: int, tokens: int) -> str:
        """Return what is new in a turn of a session; no other turn and session has it."""
        return self._text(_RESULT, f"{session}/{number}", tokens)

    def _text(self, words: str, place: str, tokens: int) -> str:
        name = f"{self._seed}/{place}"
        room = max(1, pieces_for(tokens, chars_per_token=self._chars_per_token))
        if room < _FEWEST_FOR_WORDS:
            words = _SHORT
        begin = words.format(tag=tag_of(name))
        return begin + "".join(_filled(Random(name), room - pieces(begin)))


def tag_of(name: str) -> str:
    """Return nine digits of a hash of the name: two names hardly ever share them."""
    digest = hashlib.sha256(name.encode()).digest()
    number = int.from_bytes(digest[:8]) % 10**_TAG_DIGITS
    return str(number).zfill(_TAG_DIGITS)


def _filled(rng: Random, room: int) -> Iterator[str]:
    """Yield functions that together have exactly so many pieces; the last one is cut."""
    blocks = text_blocks()
    count = len(blocks)
    while room > 0:
        block = blocks[int(rng.random() * count)]
        if block.pieces > room:
            lines, length = block.cut(room)
            yield lines
            yield _digits(rng, room - length)
            return
        yield block.text
        room -= block.pieces


def _digits(rng: Random, count: int) -> str:
    """Return a comment of digits with so many pieces, for room in which no line fits."""
    if count <= 0:
        return ""
    return "#" + "".join(str(int(rng.random() * 10)) for _ in range(count - 1))
