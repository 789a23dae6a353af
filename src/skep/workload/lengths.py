"""How long a text will be in an engine's tokens, without its tokenizer.

Characters are a poor measure: prose has more of them to a token than code. *Pieces* are a better one: a word, a digit,
an underscore, a run of signs, or a line break with its indentation is one piece, and about one token in today's
vocabularies. How many tokens there are to a piece is measured once for each engine (`skep.workload.calibration`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass

from skep.errors import UserError

CHARS_PER_PIECE = 3.57  # of these prompts, on average
TYPICAL_CHARS_PER_TOKEN = 3.4  # where nothing was measured
MOST_TOKENS = 1_000_000

_PIECE = re.compile(r"[^\W\d_]+|\d|_|[^\w\s]+|\n\s*")


def pieces(text: str) -> int:
    return len(_PIECE.findall(text))


def cut(text: str, count: int) -> str:
    """Its first pieces, that many or fewer where it has no more. A shorter cut is the beginning of a longer one."""
    if count <= 0:
        return ""
    for place, match in enumerate(_PIECE.finditer(text), start=1):
        if place == count:
            return text[: match.end()]
    return text


def pieces_for(tokens: float, chars_per_token: float, overhead_tokens: float = 0.0) -> int:
    """How many pieces make so many tokens, the chat template's own included. May be negative."""
    if not (math.isfinite(chars_per_token) and chars_per_token > 0):
        raise UserError(f"`{chars_per_token}` characters per token is not possible", hint="between 2 and 6 is usual")
    return round((tokens - overhead_tokens) * chars_per_token / CHARS_PER_PIECE)


def room_for(what: str, tokens: int, chars_per_token: float, overhead_tokens: float, fewest: int) -> int:
    """`pieces_for`, refusing what is too short for such a text (`fewest` pieces) or beyond any model."""
    room = pieces_for(tokens, chars_per_token, overhead_tokens)
    if room < fewest:
        least = math.ceil(fewest * CHARS_PER_PIECE / chars_per_token + overhead_tokens)
        raise UserError(f"`{tokens}` tokens are too few for {what}", hint=f"ask for {least} or more")
    if tokens > MOST_TOKENS:
        raise UserError(f"`{tokens}` tokens are too many for {what}", hint=f"ask for {MOST_TOKENS} or fewer")
    return room


@dataclass(frozen=True, slots=True)
class Budget:
    """A length to be kept to, in whatever `measure` counts."""

    measure: Callable[[str], int]
    target: int

    def left(self, *parts: str) -> int:
        return self.target - sum(map(self.measure, parts))
