"""What the clients ask, drawn from a seed. Each request is known by two things that nobody else
has at that time.

The marker: every word of its answer begins with it, so that a byte of another's answer is seen.
The length of its body: no other request of the run has it, so that its row in the store is found
without any answer."""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from random import Random
from typing import Any

MARKERS = 512
KEYS = {
    "ant": "key-ant",
    "bee": "key-bee",
    "cub": "key-cub",
}  # by name; `cub` is taken away now and then
CHAT = "/v1/chat/completions"
COMPLETION = "/v1/completions"
MESSAGES = "/v1/messages"
ECHO = "/v1/echo"
COUNT = "/v1/messages/count_tokens"  # takes no slot
LONGEST_WORDS = 160


class Manners(Enum):
    PATIENT = "patient"
    SLOW = "slow"  # reads a little at a time
    LEAVES_SOON = "leaves soon"  # after `leaves_s`, whatever has come by then
    LEAVES_INSIDE = "leaves inside"  # after `leaves_bytes` of the answer
    HALF = "half"  # hangs up before the request is whole


@dataclass(frozen=True, slots=True)
class Ask:
    number: int
    path: str
    streamed: bool
    head: bytes
    body: bytes
    expected: str | None  # the text of the answer; None: only its form is known
    echo: bool  # the answer is the body itself
    key: str
    manners: Manners
    leaves_s: float = 0.0
    leaves_bytes: int = 0
    reset: bool = False  # leaves with RST
    fresh: bool = False  # on a connection of its own

    @property
    def anthropic(self) -> bool:
        return self.path.startswith(MESSAGES)

    @property
    def counts(self) -> bool:
        """It asks for a number of tokens."""
        return self.path == COUNT


@dataclass(frozen=True, slots=True)
class Diet:
    """What an engine can be asked."""

    model: str
    words: tuple[int, int]  # of the answer, from and to
    prompt_words: tuple[int, int]
    echoes: bool  # answers other paths with the body it got
    grammar: bool  # answers what a grammar says; else by its file of answers
    tokens_per_word: int = 1


FAKE = Diet("fake-model", (1, LONGEST_WORDS), (5, 1500), echoes=True, grammar=False)
EMBEDDED = Diet("smollm2-135m", (1, 5), (5, 20), echoes=False, grammar=True, tokens_per_word=12)


def marker(number: int) -> str:
    return f"m{number % MARKERS:03d}"


def words_of(mark: str, count: int) -> str:
    return " ".join(f"{mark}.{place}" for place in range(count))


def write_answers(path: Path) -> Path:
    """The fake engine's file: every marker with its words."""
    rows = (
        {"prompt": f"{m}:", "answer": words_of(m, LONGEST_WORDS)}
        for m in map(marker, range(MARKERS))
    )
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


class Asker:
    """Makes requests; the same seed makes the same ones in the same order."""

    def __init__(self, diet: Diet, rng: Random) -> None:
        self._diet = diet
        self._rng = rng
        self._lengths: set[int] = set()
        self._count = 0

    def next(self, *, patient: bool = False, small: bool = False) -> Ask:
        rng = self._rng
        diet = self._diet
        self._count += 1
        mark = marker(self._count)
        paths = (CHAT, COMPLETION, MESSAGES)
        weights = (75, 15, 10)
        if diet.echoes and not small:
            paths = (CHAT, COMPLETION, MESSAGES, ECHO, COUNT)
            weights = (68, 14, 8, 6, 4)
        path = rng.choices(paths, weights)[0]
        count = self._words()
        fields = self._fields(path, mark, count)
        echo = diet.echoes and path == ECHO
        streamed = not echo and path != COUNT and rng.random() < 0.65
        is_known = path in (CHAT, COMPLETION) or (path == MESSAGES and diet.echoes)
        if streamed:
            fields["stream"] = True
            if path != MESSAGES:
                fields["stream_options"] = {"include_usage": rng.random() < 0.5}
        body = self._of_its_own_length(fields, big=path == ECHO)
        key = rng.choice(list(KEYS))
        return Ask(
            self._count,
            path,
            streamed,
            self._head(path, body, key, patient=patient),
            body,
            words_of(mark, count) if is_known else None,
            echo,
            key,
            **self._manners(streamed=streamed, echo=path == ECHO, patient=patient),
        )

    def _words(self) -> int:
        """Many short answers, a few long ones."""
        low, high = self._diet.words
        return min(high, low + int(self._rng.lognormvariate(3.3, 0.9) * high / LONGEST_WORDS))

    def _fields(self, path: str, mark: str, count: int) -> dict[str, Any]:
        rng = self._rng
        diet = self._diet
        low, high = diet.prompt_words
        prompt = f"{mark}: " + "nectar " * min(high, int(low * rng.paretovariate(0.8)))
        fields: dict[str, Any] = {"model": diet.model, "max_tokens": count * diet.tokens_per_word}
        if path == COMPLETION:
            fields["prompt"] = prompt
        else:
            fields["messages"] = [{"role": "user", "content": prompt}]
        if diet.grammar:
            fields["grammar"] = f'root ::= "{words_of(mark, count)}"'
        return fields

    def _of_its_own_length(self, fields: dict[str, Any], *, big: bool) -> bytes:
        if big:
            pad = self._rng.randrange(200_000, 1_200_000)
        else:
            pad = self._rng.randrange(4000)
        plain = json.dumps({**fields, "pad": ""}).encode()
        while len(plain) + pad in self._lengths:
            pad += 1
        self._lengths.add(len(plain) + pad)
        return json.dumps({**fields, "pad": "x" * pad}).encode()

    def _head(self, path: str, body: bytes, key: str, *, patient: bool) -> bytes:
        rng = self._rng
        lines = [f"POST {path} HTTP/1.1", "host: chaos", "content-type: application/json"]
        lines += [f"content-length: {len(body)}", f"authorization: Bearer {KEYS[key]}"]
        if rng.random() < 0.6:
            lines.append(f"x-skep-priority: {rng.choice(('interactive', 'normal', 'batch'))}")
        if rng.random() < 0.6:
            lines.append(f"x-skep-agent: agent-{rng.randrange(8)}")
        if rng.random() < 0.3:
            lines.append(f"x-skep-session: session-{rng.randrange(12)}")
        if rng.random() < 0.1 and not patient:
            lines.append(f"x-skep-max-wait: {rng.choice((0.2, 2, 10))}")
        return "\r\n".join([*lines, "", ""]).encode()

    def _manners(self, *, streamed: bool, echo: bool, patient: bool) -> dict[str, Any]:
        rng = self._rng
        chance = rng.random()
        fresh = rng.random() < 0.1
        leaving = {"reset": rng.random() < 0.3, "fresh": fresh}
        if patient:
            return {"manners": Manners.PATIENT, "fresh": fresh}
        if chance < 0.06:
            return {
                "manners": Manners.LEAVES_SOON,
                "leaves_s": rng.choice((0.0, 0.01, 0.1, 1.0)) * rng.random(),
                **leaving,
            }
        if chance < 0.12 and streamed:
            return {
                "manners": Manners.LEAVES_INSIDE,
                "leaves_bytes": rng.randrange(1, 6000),
                **leaving,
            }
        if 0.12 <= chance < 0.13:
            return {"manners": Manners.HALF, **leaving}
        if (chance < 0.16 and streamed) or (echo and chance < 0.6):
            return {"manners": Manners.SLOW, "fresh": True}
        return {"manners": Manners.PATIENT, "fresh": fresh}
