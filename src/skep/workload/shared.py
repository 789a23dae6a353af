"""Prompts whose weight lies in the system message: one for all agents, or a cold one for every request."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count
from random import Random

from skep.workload.chance import shuffled
from skep.workload.filling import draw_names, module, wishes
from skep.workload.lengths import TYPICAL_CHARS_PER_TOKEN, Budget, pieces, room_for
from skep.workload.prompts import FEWEST_PIECES, KINDS, Kind, Prompt, compose, form_for, tag

FEWEST_SYSTEM_PIECES = 60
PREFILL_TOKENS = 8192
_ABOUT = "{tag} You write Python for a project of many people. Keep to the style of its code and to its conventions."
_LEAD = "This is what there is so far:"
_SHORT_ANSWER = "Answer in one line."
_FOR_WISHES = 24
_TASK_PIECES = 50


def shared_prefix(
    rng: Random,
    *,
    tokens: int = 4096,
    task_tokens: int = 60,
    chars_per_token: float = TYPICAL_CHARS_PER_TOKEN,
    overhead_tokens: float = 0.0,
) -> Iterator[Prompt]:
    """Endless tasks, each of its own, behind one system message of `tokens` tokens that no other seed has.

    The first request pays for the system message; the others can be served from a cache. What the chat template adds
    counts with the task's tokens.
    """
    room = room_for("a shared system prompt", tokens, chars_per_token, 0.0, FEWEST_SYSTEM_PIECES)
    task_room = room_for("a task", task_tokens, chars_per_token, overhead_tokens, FEWEST_PIECES)
    system = _system(rng, 0, room)
    kinds = shuffled(rng, KINDS)
    return (_with_system(rng, system, serial, kinds, task_room) for serial in count())


def prefill_heavy(
    rng: Random,
    *,
    tokens: int = PREFILL_TOKENS,
    chars_per_token: float = TYPICAL_CHARS_PER_TOKEN,
    overhead_tokens: float = 0.0,
) -> Iterator[Prompt]:
    """Endless prompts of `tokens` tokens in all, nearly all of them in a system message that was never sent before.

    Each asks for a short answer, so that reading the prompt is what takes the time.
    """
    fewest = FEWEST_SYSTEM_PIECES + _TASK_PIECES
    room = room_for("a prompt with a system message of its own", tokens, chars_per_token, overhead_tokens, fewest)
    kinds = shuffled(rng, KINDS)

    def prompt(serial: int) -> Prompt:
        system = _system(rng, serial, room - _TASK_PIECES)
        return _with_system(rng, system, serial, kinds, _TASK_PIECES, _SHORT_ANSWER)

    return map(prompt, count())


def _system(rng: Random, serial: int, room: int) -> str:
    text = _ABOUT.format(tag=tag(rng, serial))
    text += module(rng, pieces, room - pieces(text) - _FOR_WISHES, _LEAD)
    said = wishes(rng, draw_names(rng), pieces, room - pieces(text) - pieces("\n\n"), exact=True)
    return f"{text}\n\n{said}" if said else text


def _with_system(rng: Random, system: str, serial: int, kinds: Sequence[Kind], room: int, last: str = "") -> Prompt:
    """The task, its own tag first, is the user message: agents part ways at its first token."""
    left = room - pieces(last)
    kind = kinds[serial % len(kinds)]
    task, _ = compose(rng, kind, serial, Budget(pieces, left), form_for(left))
    return Prompt(kind, system, f"{task.text} {last}" if last else task.text)
