"""Unlimited distinct coding prompts of one length, and conversations about one piece of code, from
a seed.

Each prompt begins with a tag of its own, so that no prefix cache helps: every request pays for its
prompt. Prompts of one size differ little in length, so that the levels of a sweep are comparable.
A conversation begins with a coding prompt and goes on with written follow-ups; its context grows
by whatever the model answers.

From a few texts that an engine has counted, `calibrate` finds how long prompts are in its tokens.
"""

from __future__ import annotations

import hashlib
import json
import math
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, combinations, count
from random import Random
from typing import Any, Literal, Unpack

import msgspec

from skep.errors import UserError
from skep.workload import filling
from skep.workload.filling import (
    CHARS_PER_PIECE,
    FULL_IDEAS,
    TINY_IDEAS,
    TYPICAL_CHARS_PER_TOKEN,
    Budget,
    Idea,
    Lengths,
    Names,
    pick,
    pieces,
    read_data,
    room_for,
    shuffled,
)

Kind = Literal["implement", "test", "fix", "refactor", "document"]
KINDS: tuple[Kind, ...] = ("implement", "test", "fix", "refactor", "document")

# System and user message together: about 50 tokens, fewer or more by tokenizer.
SHORT_CHARACTERS = 155
FEWEST_PIECES = 28
_PIECES_FOR_CODE = 80
_PIECES_FOR_FULL_IDEAS = 170
_FOR_REQUIREMENTS = 24  # pieces, kept free by the module

_TASKS: Mapping[Kind, str] = read_data("words.toml")["tasks"]
_WITHOUT_CODE: Mapping[Kind, str] = read_data("words.toml")["tasks_without_code"]
_LEAD = "It belongs to this module:"
_BETWEEN = "\n\n"  # system and user message, as `Prompt.text` joins them

# Without code; a few lines of code; a function or class and its module.
Form = Literal["bare", "plain", "full"]


class Prompt(msgspec.Struct, frozen=True):
    kind: Kind
    system: str
    user: str

    @property
    def text(self) -> str:
        return f"{self.system}{_BETWEEN}{self.user}"

    @property
    def messages(self) -> list[dict[str, str]]:
        return [{"role": "system", "content": self.system}, {"role": "user", "content": self.user}]


def coding_prompts(
    rng: Random, *, tokens: int | None = None, **lengths: Unpack[Lengths]
) -> Iterator[Prompt]:
    """Yield endless prompts; any five in a row hold each kind. `tokens` None: short ones."""
    if tokens is not None:
        budget, form = token_budget(tokens, **lengths)
    else:
        budget = Budget(len, SHORT_CHARACTERS)
        form = "plain"
    order = shuffled(rng, KINDS)
    return (
        compose(rng, order[serial % len(order)], serial, budget, form)[0] for serial in count()
    )


def token_budget(tokens: int, **lengths: Unpack[Lengths]) -> tuple[Budget, Form]:
    room = room_for("a coding prompt", tokens, FEWEST_PIECES, **lengths)
    return Budget(pieces, room), form_for(room)


def form_for(room: int) -> Form:
    if room < _PIECES_FOR_CODE:
        return "bare"
    if room < _PIECES_FOR_FULL_IDEAS:
        return "plain"
    return "full"


def tag(rng: Random, serial: int) -> str:
    """Return what a message begins with so that no other begins like it.

    In digits: tokenizers agree on those.
    """
    return f"{rng.getrandbits(32) % 10_000_000:07d}-{serial}"


def compose(
    rng: Random, kind: Kind, serial: int, budget: Budget, form: Form
) -> tuple[Prompt, Names]:
    """Return one prompt, with the names that it speaks of."""
    if form == "bare":
        system = tag(rng, serial)
    else:
        system = f"{tag(rng, serial)} You write Python."
    names = filling.draw_names(rng)
    exact = budget.measure is pieces
    before = (system, _BETWEEN) if exact else (system,)
    ideas = FULL_IDEAS if form == "full" else TINY_IDEAS
    tasks = [_task(kind, idea, names, form) for idea in ideas]
    fitting = [task for task in tasks if budget.left(*before, task) >= 0]
    user = pick(rng, fitting or [min(tasks, key=budget.measure)])
    if form == "full":
        room = budget.left(*before, user)
        if exact:
            room -= _FOR_REQUIREMENTS
        user += filling.module(rng, budget.measure, room, _LEAD)
    glue = " " if form == "bare" else "\n\n"
    room = budget.left(*before, user)
    if exact:
        room -= budget.measure(glue)
    requirements = filling.draw_requirements(rng, names, budget.measure, room, exact=exact)
    if requirements:
        user = f"{user}{glue}{requirements}"
    return Prompt(kind, system, user), names


def _task(kind: Kind, idea: Idea, names: Names, form: Form) -> str:
    code = idea.code
    if kind == "fix":
        code = code.replace(*idea.bug, 1)
    code = code.format_map(names)
    if form == "full":
        code = filling.fenced(code)
    tasks = _WITHOUT_CODE if form == "bare" else _TASKS
    return tasks[kind].format(
        name=idea.name.format_map(names), summary=idea.summary.format_map(names), code=code
    )


FEWEST_SYSTEM_PIECES = 60
_ABOUT = (
    "{tag} You write Python for a project of many people. Keep to the style of its code and to "
    "its conventions."
)
_SHARED_LEAD = "This is what there is so far:"


def shared_prefix(
    rng: Random, *, tokens: int = 4096, task_tokens: int = 60, **lengths: Unpack[Lengths]
) -> Iterator[Prompt]:
    """Yield endless tasks behind one system message of `tokens` tokens that no other seed has; a
    chat template counts as part of the task.
    """
    task_room = room_for("a task", task_tokens, FEWEST_PIECES, **lengths)
    lengths["overhead_tokens"] = 0.0
    room = room_for("a shared system prompt", tokens, FEWEST_SYSTEM_PIECES, **lengths)
    system = _system(rng, room)
    kinds = shuffled(rng, KINDS)
    return (_with_system(rng, system, serial, kinds, task_room) for serial in count())


def _system(rng: Random, room: int) -> str:
    text = _ABOUT.format(tag=tag(rng, 0))
    text += filling.module(rng, pieces, room - pieces(text) - _FOR_REQUIREMENTS, _SHARED_LEAD)
    free_room = room - pieces(text) - pieces("\n\n")
    requirements = filling.draw_requirements(
        rng, filling.draw_names(rng), pieces, free_room, exact=True
    )
    if requirements:
        return f"{text}\n\n{requirements}"
    return text


def _with_system(
    rng: Random, system: str, serial: int, kinds: Sequence[Kind], room: int
) -> Prompt:
    """Return a prompt whose user message is the task, its own tag first: agents part ways at its
    first token.
    """
    kind = kinds[serial % len(kinds)]
    task, _ = compose(rng, kind, serial, Budget(pieces, room), form_for(room))
    return Prompt(kind, system, task.text)


FEWEST_TURN_PIECES = 12
MOST_TURNS = 1000
_PIECES_FOR_CODE_AROUND = 120
_CALLER = "This is the code around it:"

FOLLOW_UPS: tuple[str, ...] = tuple(read_data("words.toml")["follow_ups"])


class ConversationScript(msgspec.Struct, frozen=True):
    """What one agent says, turn by turn.

    `think_s[i]` passes between the answer to turn i and turn i + 1.
    """

    kind: Kind
    system: str
    turns: tuple[str, ...]
    think_s: tuple[float, ...]

    def messages(self, turn: int, answers: Sequence[str]) -> list[dict[str, str]]:
        """Return what is sent for turn 0, 1, ...: everything said so far, with the answers to the
        turns before.
        """
        messages = [{"role": "system", "content": self.system}]
        for question, answer in zip(self.turns[:turn], answers, strict=True):
            messages += [
                {"role": "user", "content": question},
                {"role": "assistant", "content": answer},
            ]
        return [*messages, {"role": "user", "content": self.turns[turn]}]


def conversations(
    rng: Random,
    *,
    turns: int = 4,
    tokens_first: int = 250,
    tokens_turn: int = 40,
    think_s: float = 5.0,
    **lengths: Unpack[Lengths],
) -> Iterator[ConversationScript]:
    """Yield endless scripts.

    Think times are exponential with that mean, at most about 5 times it. `tokens_turn` does not
    count the chat template.
    """
    if not 1 <= turns <= MOST_TURNS:
        raise UserError(
            f"a conversation of `{turns}` turns is not possible", hint=f"from 1 to {MOST_TURNS}"
        )
    if not 0 <= think_s < math.inf:
        raise UserError(f"`{think_s}` is not a think time", hint="give seconds, 0 or more")
    budget, form = token_budget(tokens_first, **lengths)
    lengths["overhead_tokens"] = 0.0
    room = room_for("a further turn", tokens_turn, FEWEST_TURN_PIECES, **lengths)
    order = shuffled(rng, KINDS)

    def script(serial: int) -> ConversationScript:
        prompt, names = compose(rng, order[serial % len(order)], serial, budget, form)
        pauses = tuple(filling.capped_exponential(rng, think_s) for _ in range(turns - 1))
        user_turns = (prompt.user, *_further(rng, names, turns - 1, room))
        return ConversationScript(prompt.kind, prompt.system, user_turns, pauses)

    return map(script, count())


def _further(rng: Random, names: Names, number: int, room: int) -> Iterator[str]:
    """Yield each follow-up once before any comes again; then it is about other figures."""
    leads: list[str] = []
    for _ in range(number):
        if not leads:
            leads = shuffled(rng, FOLLOW_UPS)
        lead = leads.pop()
        turn_names = {**names, "number": filling.draw_names(rng)["number"]}
        text = lead.format_map(turn_names)
        if pieces(text) > room:  # too long for so short a turn: one that is not
            text = pick(
                rng, [short for short in FOLLOW_UPS if "{" not in short and pieces(short) <= room]
            )
        if room >= _PIECES_FOR_CODE_AROUND:
            text += filling.module(rng, pieces, room - pieces(text) - _FOR_REQUIREMENTS, _CALLER)
        glue = "\n\n" if "\n" in text else " "
        requirements = filling.draw_requirements(
            rng, turn_names, pieces, room - pieces(text) - pieces(glue), exact=True
        )
        yield f"{text}{glue}{requirements}" if requirements else text


_SPREAD = (40, 60, 90, 140, 240, 400, 700, 1200)  # pieces
_AROUND = (0.6, 0.8, 1.0, 1.25)  # of the target
_LONGEST_SAMPLE = 1600
_TELLS_OVERHEAD = 1.5  # longest sample over shortest, at least


class TokenCalibration(msgspec.Struct, frozen=True):
    """tokens = overhead_tokens + characters / chars_per_token, for prompts of this package; both
    are rounded.

    Short prompts are made of other words than long ones: the overhead may lie a little below zero.
    """

    chars_per_token: float = TYPICAL_CHARS_PER_TOKEN
    overhead_tokens: float = 0.0
    # Median miss of the samples, as a share of their tokens; None: nothing was measured.
    error: float | None = None
    worst: float | None = None  # largest miss
    samples: int = 0

    @property
    def lengths(self) -> dict[str, Any]:
        """Return the figures as makers of prompts take them."""
        return {"chars_per_token": self.chars_per_token, "overhead_tokens": self.overhead_tokens}

    def tokens(self, text: str) -> float:
        """Return how many an engine would count, as far as this can tell."""
        return self.overhead_tokens + pieces(text) * CHARS_PER_PIECE / self.chars_per_token


def sample_prompts(
    rng: Random, *, tokens: int | None = None, count: int = 12
) -> tuple[Prompt, ...]:
    """Return prompts that the engine is to count: around a target if one is given, else of many
    lengths; none beyond 2000 tokens.
    """
    lengths: Sequence[int] = _SPREAD
    if tokens is not None:
        target = min(tokens, _LONGEST_SAMPLE / _AROUND[-1])
        lengths = [max(FEWEST_PIECES, round(target * share)) for share in _AROUND]
    streams = [
        coding_prompts(rng, tokens=length, chars_per_token=CHARS_PER_PIECE) for length in lengths
    ]
    return tuple(next(streams[place % len(streams)]) for place in range(count))


def calibrate(counted: Iterable[tuple[str, int]]) -> TokenCalibration:
    """Calibrate by medians: a few wrong counts do no harm.

    Samples of one length do not tell the overhead: it is zero then.
    """
    pairs = [(pieces(text), tokens) for text, tokens in counted if text and tokens > 0]
    if not pairs:
        hint = "ask for short prompts instead"
        raise UserError("no text was counted, so token lengths cannot be calibrated", hint=hint)
    slope, overhead = _line(pairs)
    chars_per_token = round(CHARS_PER_PIECE / slope, 3)
    overhead = round(overhead, 1)
    misses = sorted(
        abs(overhead + x * CHARS_PER_PIECE / chars_per_token - y) / y for x, y in pairs
    )
    return TokenCalibration(
        chars_per_token, overhead, misses[len(misses) // 2], misses[-1], len(pairs)
    )


def _line(pairs: Sequence[tuple[int, int]]) -> tuple[float, float]:
    """Return slope and offset by Theil and Sen's method; pairs far apart say more of the slope,
    short texts more of the offset.
    """
    lengths = [x for x, _ in pairs]
    if max(lengths) >= _TELLS_OVERHEAD * min(lengths):
        slopes = [
            ((b - a) / (x2 - x1), abs(x2 - x1))
            for (x1, a), (x2, b) in combinations(pairs, 2)
            if x1 != x2
        ]
        slope = _weighted_median(slopes)
        if slope > 0:
            offsets = [(y - slope * x, 1.0 / x) for x, y in pairs]
            return slope, _weighted_median(offsets)
    ratios = [(y / x, 1.0) for x, y in pairs]
    return _weighted_median(ratios), 0.0


def _weighted_median(values: Sequence[tuple[float, float]]) -> float:
    """Return the value at or below which half the weight lies."""
    ordered = sorted(values)
    weights_up_to = list(accumulate(weight for _, weight in ordered))
    half = weights_up_to[-1] / 2
    median, _ = ordered[bisect_left(weights_up_to, half)]
    return median


VERSION = "coding-2"  # raised whenever the same seed gives other prompts than before


Option = str | int | float | bool | None


def workload_fingerprint(options: Mapping[str, Option]) -> str:
    """Return 64 hex digits, the same for equal options in any order.

    An option that is None counts as left out.
    """
    given = {name: value for name, value in options.items() if value is not None}
    document = {"version": VERSION, "options": given}
    text = json.dumps(document, sort_keys=True, allow_nan=False)
    return hashlib.sha256(text.encode("ascii")).hexdigest()
