"""Drills: small tasks made by a generator, each with one right answer, graded from 1 (very easy) to 5.

For a number with statistical weight on a small model: short prompts after worked examples, answers of one line. The
same seed gives the same drills for ever; an id names the same drill however many are asked for, of one grade or of all.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count, islice
from random import Random

from skep.errors import UserError
from skep.workload.chance import shuffled
from skep.workload.drill_figures import FIGURES
from skep.workload.drill_tasks import Family, Task
from skep.workload.drill_texts import TEXTS
from skep.workload.items import Item

VERSION = 1  # raised whenever the same seed gives other drills than before
GRADES = (1, 2, 3, 4, 5)
FAMILIES: tuple[Family, ...] = (*TEXTS, *FIGURES)
MOST = 100_000

_EXAMPLES = 2  # of a task, before it is asked
_TRIES = 50


def drills(seed: int, count: int, difficulty: int | None = None) -> list[Item]:
    """`count` of them; all grades in turn, or of one `difficulty`. More of them begin with the same ones."""
    if difficulty is not None and difficulty not in GRADES:
        raise UserError(f"there are no drills of difficulty `{difficulty}`", hint="from 1, very easy, to 5")
    if not 1 <= count <= MOST:
        raise UserError(f"`{count}` drills are not possible", hint=f"from 1 to {MOST}")
    if difficulty is not None:
        return list(islice(_graded(seed, difficulty), count))
    graded = [_graded(seed, grade) for grade in GRADES]
    return [next(graded[place % len(GRADES)]) for place in range(count)]


def _graded(seed: int, grade: int) -> Iterator[Item]:
    """Endless: each family of the grade once before any comes again."""
    rng = Random(f"drills/{VERSION}/{seed}/{grade}")
    families = [family for family in FAMILIES if grade in family.grades]
    asked: set[str] = set()
    place = grade - 1
    while True:
        for family in shuffled(rng, families):
            yield _item(rng, family, grade, f"drills-{seed}/{family.name}/{place}", asked)
            place += len(GRADES)


def _item(rng: Random, family: Family, grade: int, name: str, asked: set[str]) -> Item:
    """A question that was not asked before; where a family has run out of them, one with other examples."""
    for tried in count():
        task = family.make(rng, grade)
        question = f"{family.name}/{task.question}"
        if question in asked and tried < _TRIES:
            continue
        messages = _messages(rng, family, grade, task)
        if (whole := repr(messages)) not in asked:
            break
    asked.update((question, whole))
    return Item(name, tuple(messages), task.checker, family.tokens, family=family.name, difficulty=grade)


def _messages(rng: Random, family: Family, grade: int, task: Task) -> list[dict[str, str]]:
    """The examples are turns that went before: a small model follows those, but only talks about a list of them."""
    said = []
    for one in _examples(rng, family, grade, task):
        said += [_asks(family, grade, one), {"role": "assistant", "content": one.answer}]
    return [*said, _asks(family, grade, task)]


def _asks(family: Family, grade: int, task: Task) -> dict[str, str]:
    return {"role": "user", "content": f"{family.instruction(grade)}\n{task.question}"}


def _examples(rng: Random, family: Family, grade: int, task: Task) -> list[Task]:
    """Other questions than the one that is asked. Choices in equal numbers, so that the examples favour none."""
    wanted = _EXAMPLES
    room = {option: wanted // len(task.options) for option in task.options}
    found: list[Task] = []
    seen = {task.question}
    for _ in range(_TRIES * wanted):
        one = family.make(rng, grade)
        if len(found) == wanted:
            break
        if one.question in seen or room.get(one.answer, 1) < 1:
            continue
        seen.add(one.question)
        if one.answer in room:
            room[one.answer] -= 1
        found.append(one)
    return found
