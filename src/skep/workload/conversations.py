"""Conversations of several turns about one piece of code.

What an agent says is written down beforehand; the context grows by whatever the model answers. The first turn is a
coding prompt, the others ask for more of the same: tests, an edge case, a refactoring, a new caller.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from random import Random

from skep.errors import UserError
from skep.workload.filling import (
    TYPICAL_CHARS_PER_TOKEN,
    Names,
    capped_exponential,
    draw_names,
    draw_requirements,
    module,
    pick,
    pieces,
    read_data,
    room_for,
    shuffled,
)
from skep.workload.prompts import KINDS, Kind, compose, token_budget

FEWEST_TURN_PIECES = 12
MOST_TURNS = 1000
_PIECES_FOR_CODE = 120
_FOR_REQUIREMENTS = 24
_CALLER = "This is the code around it:"

FOLLOW_UPS: tuple[str, ...] = tuple(read_data("words.toml")["follow_ups"])


@dataclass(frozen=True, slots=True)
class ConversationScript:
    """What one agent says, turn by turn. `think_s[i]` passes between the answer to turn i and turn i + 1."""

    kind: Kind
    system: str
    turns: tuple[str, ...]
    think_s: tuple[float, ...]


def conversations(
    rng: Random,
    *,
    turns: int = 4,
    tokens_first: int = 250,
    tokens_turn: int = 40,
    think_s: float = 5.0,
    chars_per_token: float = TYPICAL_CHARS_PER_TOKEN,
    overhead_tokens: float = 0.0,
) -> Iterator[ConversationScript]:
    """Endless. Think times are exponential with that mean, and at most about five times as long.

    `tokens_turn` is the text of a further turn; what the chat template adds to it comes on top.
    """
    if not 1 <= turns <= MOST_TURNS:
        raise UserError(f"a conversation of `{turns}` turns is not possible", hint=f"from 1 to {MOST_TURNS}")
    if not (math.isfinite(think_s) and think_s >= 0):
        raise UserError(f"`{think_s}` is not a think time", hint="give seconds, 0 or more")
    budget, form = token_budget(tokens_first, chars_per_token, overhead_tokens)
    room = room_for("a further turn", tokens_turn, chars_per_token, 0.0, FEWEST_TURN_PIECES)
    order = shuffled(rng, KINDS)

    def script(serial: int) -> ConversationScript:
        prompt, names = compose(rng, order[serial % len(order)], serial, budget, form)
        pauses = tuple(capped_exponential(rng, think_s) for _ in range(turns - 1))
        said = (prompt.user, *_further(rng, names, turns - 1, room))
        return ConversationScript(prompt.kind, prompt.system, said, pauses)

    return map(script, count())


def next_messages(script: ConversationScript, turn: int, answers: Sequence[str]) -> list[dict[str, str]]:
    """Return what is sent for turn 0, 1, ...: everything said so far, with the answers to the turns before."""
    if not 0 <= turn < len(script.turns):
        raise IndexError(f"turn {turn} of a conversation of {len(script.turns)}")
    if len(answers) < turn:
        raise ValueError(f"turn {turn} needs {turn} answers, got {len(answers)}")
    said = [{"role": "system", "content": script.system}]
    for asked, answer in zip(script.turns[:turn], answers, strict=False):
        said += [{"role": "user", "content": asked}, {"role": "assistant", "content": answer}]
    return [*said, {"role": "user", "content": script.turns[turn]}]


def _further(rng: Random, names: Names, number: int, room: int) -> Iterator[str]:
    """Each follow-up once before any comes again; then it is about other figures."""
    leads: list[str] = []
    for _ in range(number):
        if not leads:
            leads = shuffled(rng, FOLLOW_UPS)
        lead, own = leads.pop(), {**names, "number": draw_names(rng)["number"]}
        text = lead.format_map(own)
        if pieces(text) > room:  # too long for so short a turn: one that is not
            text = pick(rng, [short for short in FOLLOW_UPS if "{" not in short and pieces(short) <= room])
        if room >= _PIECES_FOR_CODE:
            text += module(rng, pieces, room - pieces(text) - _FOR_REQUIREMENTS, _CALLER)
        glue = "\n\n" if "\n" in text else " "
        said = draw_requirements(rng, own, pieces, room - pieces(text) - pieces(glue), exact=True)
        yield f"{text}{glue}{said}" if said else text
