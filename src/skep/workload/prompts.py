"""Unlimited distinct coding prompts of one length, and conversations about one piece of code, from a seed.

Each prompt begins with a tag of its own, so that no prefix cache helps: every request pays for its prompt. Prompts of
one size differ little in length, so that the levels of a sweep are comparable. A conversation begins with a coding
prompt and goes on with written follow-ups; its context grows by whatever the model answers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from random import Random
from typing import Literal, Unpack

import msgspec

from skep.errors import UserError
from skep.workload import filling
from skep.workload.filling import FULL, TINY, Budget, Idea, Lengths, Names, pick, pieces, read_data, room_for, shuffled

Kind = Literal["implement", "test", "fix", "refactor", "document"]
Size = Literal["short", "medium", "long"]
KINDS: tuple[Kind, ...] = ("implement", "test", "fix", "refactor", "document")

# In characters, system and user message together: about 50, 250 and 1000 tokens, fewer or more by tokenizer.
TARGETS: Mapping[Size, int] = {"short": 155, "medium": 900, "long": 3600}
FEWEST_PIECES = 28
_PIECES_FOR_CODE = 80
_PIECES_FOR_FULL_IDEAS = 170
_FOR_REQUIREMENTS = 24  # pieces, kept free by the module

_TASKS: Mapping[Kind, str] = read_data("words.toml")["tasks"]
_WITHOUT_CODE: Mapping[Kind, str] = read_data("words.toml")["tasks_without_code"]
_LEAD = "It belongs to this module:"
_BETWEEN = "\n\n"  # system and user message, as `Prompt.text` joins them

Form = Literal["bare", "plain", "full"]  # without code; a few lines of code; a function or class and its module


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
    rng: Random, *, size: Size = "medium", tokens: int | None = None, **lengths: Unpack[Lengths]
) -> Iterator[Prompt]:
    """Endless; any five in a row hold each kind. `tokens`, if given, asks for so many tokens instead of a size."""
    if tokens is not None:
        budget, form = token_budget(tokens, **lengths)
    else:
        budget, form = Budget(len, TARGETS[size]), "plain" if size == "short" else "full"
    order = shuffled(rng, KINDS)
    return (compose(rng, order[serial % len(order)], serial, budget, form)[0] for serial in count())


def token_budget(tokens: int, **lengths: Unpack[Lengths]) -> tuple[Budget, Form]:
    room = room_for("a coding prompt", tokens, FEWEST_PIECES, **lengths)
    return Budget(pieces, room), form_for(room)


def form_for(room: int) -> Form:
    return "bare" if room < _PIECES_FOR_CODE else "plain" if room < _PIECES_FOR_FULL_IDEAS else "full"


def tag(rng: Random, serial: int) -> str:
    """Return what a message begins with so that no other begins like it. In digits: tokenizers agree on those."""
    return f"{rng.getrandbits(32) % 10_000_000:07d}-{serial}"


def compose(rng: Random, kind: Kind, serial: int, budget: Budget, form: Form) -> tuple[Prompt, Names]:
    """Return one prompt, with the names that it speaks of."""
    system = tag(rng, serial) if form == "bare" else f"{tag(rng, serial)} You write Python."
    names = filling.draw_names(rng)
    exact = budget.measure is pieces
    before = (system, _BETWEEN) if exact else (system,)
    tasks = [_task(kind, idea, names, form) for idea in (FULL if form == "full" else TINY)]
    user = pick(rng, [task for task in tasks if budget.left(*before, task) >= 0] or [min(tasks, key=budget.measure)])
    if form == "full":
        kept_free = _FOR_REQUIREMENTS if exact else 0
        user += filling.module(rng, budget.measure, budget.left(*before, user) - kept_free, _LEAD)
    glue = " " if form == "bare" else "\n\n"
    room = budget.left(*before, user) - (budget.measure(glue) if exact else 0)
    said = filling.draw_requirements(rng, names, budget.measure, room, exact=exact)
    return Prompt(kind, system, f"{user}{glue}{said}" if said else user), names


def _task(kind: Kind, idea: Idea, names: Names, form: Form) -> str:
    code = (idea.code.replace(*idea.bug, 1) if kind == "fix" else idea.code).format_map(names)
    code = filling.fenced(code) if form == "full" else code
    name, summary = idea.name.format_map(names), idea.summary.format_map(names)
    return (_WITHOUT_CODE if form == "bare" else _TASKS)[kind].format(name=name, summary=summary, code=code)


FEWEST_SYSTEM_PIECES = 60
PREFILL_TOKENS = 8192
_ABOUT = "{tag} You write Python for a project of many people. Keep to the style of its code and to its conventions."
_SHARED_LEAD = "This is what there is so far:"
_SHORT_ANSWER = "Answer in one line."
_TASK_PIECES = 50


def shared_prefix(
    rng: Random, *, tokens: int = 4096, task_tokens: int = 60, **lengths: Unpack[Lengths]
) -> Iterator[Prompt]:
    """Endless tasks behind one system message of `tokens` tokens that no other seed has; a template counts as task."""
    task_room = room_for("a task", task_tokens, FEWEST_PIECES, **lengths)
    lengths["overhead_tokens"] = 0.0
    room = room_for("a shared system prompt", tokens, FEWEST_SYSTEM_PIECES, **lengths)
    system = _system(rng, 0, room)
    kinds = shuffled(rng, KINDS)
    return (_with_system(rng, system, serial, kinds, task_room) for serial in count())


def prefill_heavy(rng: Random, *, tokens: int = PREFILL_TOKENS, **lengths: Unpack[Lengths]) -> Iterator[Prompt]:
    """Endless prompts of `tokens` tokens, nearly all in a system message never sent before, for a short answer."""
    fewest = FEWEST_SYSTEM_PIECES + _TASK_PIECES
    room = room_for("a prompt with a system message of its own", tokens, fewest, **lengths)
    kinds = shuffled(rng, KINDS)

    def prompt(serial: int) -> Prompt:
        system = _system(rng, serial, room - _TASK_PIECES)
        return _with_system(rng, system, serial, kinds, _TASK_PIECES, _SHORT_ANSWER)

    return map(prompt, count())


def _system(rng: Random, serial: int, room: int) -> str:
    text = _ABOUT.format(tag=tag(rng, serial))
    text += filling.module(rng, pieces, room - pieces(text) - _FOR_REQUIREMENTS, _SHARED_LEAD)
    left = room - pieces(text) - pieces("\n\n")
    said = filling.draw_requirements(rng, filling.draw_names(rng), pieces, left, exact=True)
    return f"{text}\n\n{said}" if said else text


def _with_system(rng: Random, system: str, serial: int, kinds: Sequence[Kind], room: int, last: str = "") -> Prompt:
    """The task, its own tag first, is the user message: agents part ways at its first token."""
    left = room - pieces(last)
    kind = kinds[serial % len(kinds)]
    task, _ = compose(rng, kind, serial, Budget(pieces, left), form_for(left))
    return Prompt(kind, system, f"{task.text} {last}" if last else task.text)


FEWEST_TURN_PIECES = 12
MOST_TURNS = 1000
_PIECES_FOR_CODE_AROUND = 120
_CALLER = "This is the code around it:"

FOLLOW_UPS: tuple[str, ...] = tuple(read_data("words.toml")["follow_ups"])


class ConversationScript(msgspec.Struct, frozen=True):
    """What one agent says, turn by turn. `think_s[i]` passes between the answer to turn i and turn i + 1."""

    kind: Kind
    system: str
    turns: tuple[str, ...]
    think_s: tuple[float, ...]

    def messages(self, turn: int, answers: Sequence[str]) -> list[dict[str, str]]:
        """Return what is sent for turn 0, 1, ...: everything said so far, with the answers to the turns before."""
        said = [{"role": "system", "content": self.system}]
        for asked, answer in zip(self.turns[:turn], answers, strict=True):
            said += [{"role": "user", "content": asked}, {"role": "assistant", "content": answer}]
        return [*said, {"role": "user", "content": self.turns[turn]}]


def conversations(
    rng: Random,
    *,
    turns: int = 4,
    tokens_first: int = 250,
    tokens_turn: int = 40,
    think_s: float = 5.0,
    **lengths: Unpack[Lengths],
) -> Iterator[ConversationScript]:
    """Endless. Think times: exponential with that mean, at most about 5 times it. `tokens_turn`: without template."""
    if not 1 <= turns <= MOST_TURNS:
        raise UserError(f"a conversation of `{turns}` turns is not possible", hint=f"from 1 to {MOST_TURNS}")
    if not 0 <= think_s < math.inf:
        raise UserError(f"`{think_s}` is not a think time", hint="give seconds, 0 or more")
    budget, form = token_budget(tokens_first, **lengths)
    lengths["overhead_tokens"] = 0.0
    room = room_for("a further turn", tokens_turn, FEWEST_TURN_PIECES, **lengths)
    order = shuffled(rng, KINDS)

    def script(serial: int) -> ConversationScript:
        prompt, names = compose(rng, order[serial % len(order)], serial, budget, form)
        pauses = tuple(filling.capped_exponential(rng, think_s) for _ in range(turns - 1))
        said = (prompt.user, *_further(rng, names, turns - 1, room))
        return ConversationScript(prompt.kind, prompt.system, said, pauses)

    return map(script, count())


def _further(rng: Random, names: Names, number: int, room: int) -> Iterator[str]:
    """Each follow-up once before any comes again; then it is about other figures."""
    leads: list[str] = []
    for _ in range(number):
        if not leads:
            leads = shuffled(rng, FOLLOW_UPS)
        lead, own = leads.pop(), {**names, "number": filling.draw_names(rng)["number"]}
        text = lead.format_map(own)
        if pieces(text) > room:  # too long for so short a turn: one that is not
            text = pick(rng, [short for short in FOLLOW_UPS if "{" not in short and pieces(short) <= room])
        if room >= _PIECES_FOR_CODE_AROUND:
            text += filling.module(rng, pieces, room - pieces(text) - _FOR_REQUIREMENTS, _CALLER)
        glue = "\n\n" if "\n" in text else " "
        said = filling.draw_requirements(rng, own, pieces, room - pieces(text) - pieces(glue), exact=True)
        yield f"{text}{glue}{said}" if said else text
