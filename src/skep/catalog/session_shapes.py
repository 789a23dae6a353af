"""Agents' sessions as a load: shapes from `session_shapes.toml`, and the sessions drawn from them.

A shape says how lengths and pauses vary. A script is one session that was drawn from it, or read
from a log: every turn with its lengths, no text. Knows nothing of clocks, prompts or engines.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from random import Random
from statistics import NormalDist
from typing import Any

import msgspec

from skep.errors import UserError

_NORMAL = NormalDist()
_TENTH_Z = _NORMAL.inv_cdf(0.9)  # the deviations from the median that one of ten exceeds
# A draw is clipped to these quantiles, so that no session is a hundred times the usual one.
_LOWEST = 0.01
_HIGHEST = 0.99
_GOLDEN = 0.6180339887498949  # its multiples, modulo 1, lie evenly between 0 and 1
STEADY_TURNS = 8  # of each session that a plan plays


class Varying(msgspec.Struct, frozen=True):
    """A quantity that varies lognormally: its median, and the value that one of ten exceeds."""

    median: float
    tenth: float

    def at(self, quantile: float) -> float:
        """Return the value below which this share of the draws lies."""
        if self.tenth <= self.median:
            return self.median
        sigma = math.log(self.tenth / self.median) / _TENTH_Z
        clipped = min(_HIGHEST, max(_LOWEST, quantile))
        return self.median * math.exp(sigma * _NORMAL.inv_cdf(clipped))

    def draw(self, rng: Random) -> float:
        return self.at(rng.random())

    def whole(self, rng: Random, least: int = 1) -> int:
        return max(least, round(self.draw(rng)))


class SessionShape(msgspec.Struct, frozen=True):
    """How the sessions of one kind of agent look; the fields are explained in the data file."""

    about: str
    shared_tokens: int
    first_tokens: Varying
    turns: Varying
    growth_tokens: Varying
    output_tokens: Varying
    pause_s: Varying
    subagent_share: float
    subagents: Varying
    subagent_shared_tokens: int
    subagent_turns: Varying
    compact_share: float
    summary_tokens: int
    least_window_tokens: int
    wanted_window_tokens: int
    name: str = ""


class ScriptedTurn(msgspec.Struct, frozen=True):
    """One turn: what its prompt adds to the one before, and how long its answer is."""

    # Of the prompt, after the previous answer; in the first turn, all but the shared ones.
    new_tokens: int
    output_tokens: int
    pause_s: float = 0.0  # after the previous answer, while tools run
    # The client has compacted the conversation: only the shared beginning is as before.
    begins_anew: bool = False
    # They begin when this turn is answered; the next turn waits until all have ended.
    subagents: tuple[SessionScript, ...] = ()


class SessionScript(msgspec.Struct, frozen=True):
    """One session, or a part of it. Those with the same `shared_name` begin with the same tokens.

    `earlier_tokens`: not shared, and sent or answered before the first of these turns.
    """

    shared_name: str
    shared_tokens: int
    turns: tuple[ScriptedTurn, ...]
    earlier_tokens: int = 0

    def prompts(self) -> list[int]:
        """Return the length of each turn's prompt in tokens."""
        lengths = []
        length = self.shared_tokens + self.earlier_tokens
        for turn in self.turns:
            if turn.begins_anew:
                length = self.shared_tokens
            length += turn.new_tokens
            lengths.append(length)
            length += turn.output_tokens
        return lengths

    @property
    def longest_tokens(self) -> int:
        """The length of the longest prompt with its answer, those of sub-agents among them."""
        lengths = (
            prompt + turn.output_tokens
            for prompt, turn in zip(self.prompts(), self.turns, strict=True)
        )
        subagent_lengths = (
            child.longest_tokens for turn in self.turns for child in turn.subagents
        )
        return max(max(lengths, default=0), max(subagent_lengths, default=0))

    @property
    def requests(self) -> int:
        """The turns of the session and of its sub-agents."""
        return len(self.turns) + sum(
            child.requests for turn in self.turns for child in turn.subagents
        )


@cache
def _tables() -> dict[str, dict[str, Any]]:
    text = files("skep.catalog").joinpath("session_shapes.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


@cache
def session_shapes() -> dict[str, SessionShape]:
    """Return the shapes by name, in the order of the file."""
    return {
        name: msgspec.convert({**fields, "name": name}, SessionShape)
        for name, fields in _tables().items()
    }


def sources_of(name: str) -> Mapping[str, str]:
    """Return where each value of a shape was read."""
    sources: Mapping[str, str] = _tables()[name]["sources"]
    return sources


def find_shape(name: str) -> SessionShape:
    shapes = session_shapes()
    if name not in shapes:
        raise UserError(
            f"no shape of sessions is called `{name}`", hint=f"there are {', '.join(shapes)}"
        )
    return shapes[name]


def draw_sessions(
    shape: SessionShape, count: int, seed: int, *, window_tokens: int | None = None
) -> list[SessionScript]:
    """Return `count` sessions of a shape. The same seed gives the same sessions; a larger count
    only adds to them.

    `window_tokens`: the longest sequence that the engine takes; sessions compact before its end.
    Raises UserError for a window in which the shape cannot begin.
    """
    if window_tokens is not None:
        check_window(shape, window_tokens)
    return [
        draw_session(shape, Random(f"{seed}/{number}"), window_tokens) for number in range(count)
    ]


def check_window(shape: SessionShape, window_tokens: int, option: str = "--shape") -> None:
    """Raise UserError for a context in which agents of this kind cannot work.

    `option`: by which the user chooses the kind.
    """
    if window_tokens >= shape.least_window_tokens:
        return
    smaller = [
        other.name
        for other in session_shapes().values()
        if other.least_window_tokens <= window_tokens
    ]
    hint = "serve with a longer context"
    if smaller:
        hint += f", or choose `{option} {smaller[0]}`"
    raise UserError(
        f"sessions of `{option} {shape.name}` need a context of {shape.least_window_tokens:,} "
        f"tokens, this is {window_tokens:,}",
        hint=hint,
    )


def draw_session(
    shape: SessionShape, rng: Random, window_tokens: int | None = None
) -> SessionScript:
    has_subagents = rng.random() < shape.subagent_share
    count = shape.turns.whole(rng, least=2)
    turns = drawn_turns(shape, rng, count)
    if has_subagents:
        at = rng.randrange(max(1, count - 1))
        children = tuple(
            _draw_subagent(shape, rng, window_tokens) for _ in range(shape.subagents.whole(rng))
        )
        turns[at] = msgspec.structs.replace(turns[at], subagents=children)
    script = SessionScript(shape.name, shape.shared_tokens, tuple(turns))
    return fitted(script, shape, window_tokens)


def _draw_subagent(shape: SessionShape, rng: Random, window_tokens: int | None) -> SessionScript:
    turns = drawn_turns(shape, rng, shape.subagent_turns.whole(rng))
    name = f"{shape.name} sub-agent"
    script = SessionScript(name, shape.subagent_shared_tokens, tuple(turns))
    return fitted(script, shape, window_tokens)


def drawn_turns(shape: SessionShape, rng: Random, count: int) -> list[ScriptedTurn]:
    first = ScriptedTurn(shape.first_tokens.whole(rng), shape.output_tokens.whole(rng))
    later = [
        ScriptedTurn(
            new_tokens=shape.growth_tokens.whole(rng),
            output_tokens=shape.output_tokens.whole(rng),
            pause_s=round(shape.pause_s.draw(rng), 3),
        )
        for _ in range(count - 1)
    ]
    return [first, *later]


def fitted(script: SessionScript, shape: SessionShape, window_tokens: int | None) -> SessionScript:
    """Return the session as its client would keep it within a window: before a prompt would come
    too near to the end of the window, the conversation begins anew with a summary.
    """
    if window_tokens is None:
        return script
    limit = int(window_tokens * shape.compact_share)
    held = script.shared_tokens + script.earlier_tokens
    # A result of a tool is cut where it would fill a window by itself.
    most_new = max(1, (limit - script.shared_tokens - shape.summary_tokens) // 2)
    turns: list[ScriptedTurn] = []
    for turn in script.turns:
        new_tokens = min(turn.new_tokens, most_new)
        output_tokens = min(turn.output_tokens, most_new)
        is_full = (
            bool(turns) or script.earlier_tokens > 0
        ) and held + new_tokens + output_tokens > limit
        if is_full:
            held = script.shared_tokens
            new_tokens = min(most_new, shape.summary_tokens + new_tokens)
        turns.append(
            msgspec.structs.replace(
                turn,
                new_tokens=new_tokens,
                output_tokens=output_tokens,
                begins_anew=turn.begins_anew or is_full,
            )
        )
        held += new_tokens + output_tokens
    return msgspec.structs.replace(script, turns=tuple(turns))


@cache
def steady_sessions(
    shape: SessionShape, count: int, *, window_tokens: int, turns: int = STEADY_TURNS
) -> tuple[SessionScript, ...]:
    """Return parts of sessions that are under way, for a plan. All have the same lengths and
    pauses, each in its own order, and they have grown to all sizes that a window holds. The seed
    is fixed, so that a plan can be repeated.
    """
    limit = int(window_tokens * shape.compact_share)
    rng = Random(0)
    quantities = [
        _strata(quantity, turns)
        for quantity in (shape.growth_tokens, shape.output_tokens, shape.pause_s)
    ]
    smallest = shape.first_tokens.median
    largest = min(limit - shape.shared_tokens, smallest + _growth_of(shape))
    sessions = []
    for number in range(count):
        growth, outputs, pauses = (_shuffled(values, rng) for values in quantities)
        grown_share = (number + 0.5) * _GOLDEN % 1.0
        script = SessionScript(
            shape.name,
            shape.shared_tokens,
            tuple(
                ScriptedTurn(max(1, round(new)), max(1, round(output)), pause)
                for new, output, pause in zip(growth, outputs, pauses, strict=True)
            ),
            earlier_tokens=round(smallest + grown_share * max(0.0, largest - smallest)),
        )
        if _starts_subagents(shape, number, turns):
            script = _with_subagents(script, shape, window_tokens)
        sessions.append(fitted(script, shape, window_tokens))
    return tuple(sessions)


@cache
def typical_tokens(shape: SessionShape, window_tokens: int) -> int:
    """Return the tokens of a prompt with its answer, on average over the sessions of a plan."""
    sessions = steady_sessions(shape, 32, window_tokens=window_tokens)
    prompts = [prompt for session in sessions for prompt in session.prompts()]
    return round(sum(prompts) / len(prompts) + mean_of(shape.output_tokens))


@cache
def mean_of(quantity: Varying) -> float:
    return sum(quantity.at((place + 0.5) / 100) for place in range(100)) / 100


def _growth_of(shape: SessionShape) -> float:
    """Return the tokens that a session of the usual number of turns adds to its first ones."""
    return shape.turns.median * (mean_of(shape.growth_tokens) + mean_of(shape.output_tokens))


def _strata(quantity: Varying, count: int) -> list[float]:
    """Return `count` values at evenly spaced quantiles, scaled to the mean of the distribution."""
    values = [quantity.at((place + 0.5) / count) for place in range(count)]
    scale = mean_of(quantity) * count / sum(values)
    return [value * scale for value in values]


def _shuffled(values: Sequence[float], rng: Random) -> list[float]:
    return sorted(values, key=lambda _: rng.random())


def _starts_subagents(shape: SessionShape, number: int, turns: int) -> bool:
    """Return whether this session is one of those that start sub-agents in these turns."""
    share = min(1.0, shape.subagent_share * turns / shape.turns.median)
    return int((number + 1) * share) > int(number * share)


def _with_subagents(
    script: SessionScript, shape: SessionShape, window_tokens: int
) -> SessionScript:
    rng = Random(len(script.turns))
    count = round(mean_of(shape.subagents))
    children = tuple(_draw_subagent(shape, rng, window_tokens) for _ in range(count))
    first = msgspec.structs.replace(script.turns[0], subagents=children)
    return msgspec.structs.replace(script, turns=(first, *script.turns[1:]))


class PromptTotals(msgspec.Struct, frozen=True):
    """The prompt tokens of some sessions, and how many of them a cache of any size would hold."""

    prompt_tokens: int
    possible_tokens: int

    @property
    def possible_share(self) -> float:
        return self.possible_tokens / self.prompt_tokens if self.prompt_tokens else 0.0


def prompt_totals(scripts: Sequence[SessionScript]) -> PromptTotals:
    """Return the prompt tokens, and those that a cache that forgets nothing would hold: all but
    the new tokens of each turn and one copy of each shared beginning.
    """
    prompt_tokens = 0
    computed_tokens = 0
    shared: dict[str, int] = {}
    pending = list(scripts)
    while pending:
        script = pending.pop()
        prompt_tokens += sum(script.prompts())
        computed_tokens += sum(turn.new_tokens for turn in script.turns)
        if not script.earlier_tokens:  # else the shared beginning was sent before, too
            longest = max(shared.get(script.shared_name, 0), script.shared_tokens)
            shared[script.shared_name] = longest
        pending += [child for turn in script.turns for child in turn.subagents]
    return PromptTotals(prompt_tokens, prompt_tokens - computed_tokens - sum(shared.values()))
