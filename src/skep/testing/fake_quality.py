"""How well the fake engine answers: which answers are wrong, cut short or refused, always or under load.

Pure but for its one source of chance, `Random(seed)`, drawn in the order in which requests come: the same requests in
the same order meet the same fate, while clients that race each other meet another one each time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from random import Random
from typing import Self

from skep.errors import UserError
from skep.testing.fake_answers import FakeAnswer, FakeRequest, StoredAnswer


@dataclass(frozen=True, slots=True)
class LoadShare:
    """Strikes a share of the requests that find more than `load` inside, themselves counted."""

    load: int
    share: float

    @classmethod
    def parse(cls, text: str | None) -> Self | None:
        """`4:0.15`; None: never."""
        if text is None:
            return None
        load, colon, share = text.partition(":")
        if not colon or not load.isascii() or not load.isdigit():
            raise UserError(f"`{text}` is not C:S, such as 4:0.15")
        return cls(int(load), parse_share(share))


def parse_share(text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise UserError(f"`{text}` is not a share from 0 to 1")
    return share


@dataclass(frozen=True, slots=True)
class Quality:
    """`wrong_share` is of prompts, the same ones at every request; all else is chance, request by request."""

    wrong_share: float = 0.0
    flip_share: float = 0.0
    worse: LoadShare | None = None
    truncate: LoadShare | None = None
    error: LoadShare | None = None
    seed: int = 0


@dataclass(frozen=True, slots=True)
class AnswerDecision:
    """`answers` in the form of `fake_answers.answer`: the one to give, or none, where none is stored for the prompt."""

    answers: tuple[tuple[str, str], ...] = ()
    cut: bool = False
    fails: bool = False


class QualityPolicy:
    """Decides each request once, when it comes. A prompt without a stored answer is never answered wrongly."""

    def __init__(self, stored: Sequence[StoredAnswer], quality: Quality) -> None:
        self._stored = stored
        self._quality = quality
        self._chance = Random(quality.seed)
        self._by_message: dict[str, StoredAnswer] = {}
        for one in stored:
            self._by_message.setdefault(one.prompt, one)

    def decide(self, ask: FakeRequest, *, inside: int) -> AnswerDecision:
        if self._strikes(self._quality.error, inside):
            return AnswerDecision(fails=True)
        stored = self._stored_for(ask)
        said = () if stored is None else ((ask.prompt, self._text(stored, ask, inside)),)
        return AnswerDecision(said, cut=self._strikes(self._quality.truncate, inside))

    def _stored_for(self, ask: FakeRequest) -> StoredAnswer | None:
        """Return the one for exactly this message, else the first whose key the prompt holds."""
        exact = self._by_message.get(ask.last)
        return exact or next((one for one in self._stored if one.prompt in ask.prompt), None)

    def _text(self, stored: StoredAnswer, ask: FakeRequest, inside: int) -> str:
        share, choice = _hashed(ask.prompt)
        by_nature = right = share >= self._quality.wrong_share
        if self._draw(self._quality.flip_share):
            right = not right
        if right and self._strikes(self._quality.worse, inside):
            right = False
        if right:
            return stored.text
        return self._chance.choice(stored.wrong) if by_nature else stored.wrong[choice % len(stored.wrong)]

    def _strikes(self, above: LoadShare | None, inside: int) -> bool:
        return above is not None and inside > above.load and self._draw(above.share)

    def _draw(self, share: float) -> bool:
        return share > 0 and self._chance.random() < share


def halved(answer: FakeAnswer) -> FakeAnswer:
    """Half of its tokens, rounded down, but at least one; it ended at a limit."""
    return FakeAnswer(answer.tokens[: max(1, len(answer.tokens) // 2)], "length")


def thinking(answer: FakeAnswer, text: str, *, room: int) -> FakeAnswer:
    """Return the reasoning before the answer, both within `room`.

    The stream form `reasoning` takes the first quarter of the tokens for reasoning, so the text is divided among a
    third as many tokens as the answer has, and is whole however many those are. What it costs is the answer's end.
    """
    kept = len(answer.tokens)
    while kept + _thoughts(kept) > room and kept:
        kept -= 1
    count = _thoughts(kept)
    places = [len(text) * part // count for part in range(count + 1)]
    thoughts = tuple(text[begin:end] for begin, end in pairwise(places))
    finish = answer.finish_reason if kept == len(answer.tokens) else "length"
    return FakeAnswer(thoughts + answer.tokens[:kept], finish)


def _thoughts(words: int) -> int:
    return max(1, words // 3)


def _hashed(prompt: str) -> tuple[float, int]:
    """Return a share from 0 to 1 and a number, both the prompt's own."""
    digest = hashlib.sha256(prompt.encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:8]) / 2**64, int.from_bytes(digest[8:16])
