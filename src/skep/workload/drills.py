"""Drills: small tasks made by a generator, each with one right answer, graded from 1 (very easy) to 5.

For a number with statistical weight on a small model: short prompts after worked examples, answers of one line. The
same seed gives the same drills for ever; an id names the same drill however many are asked for, of one grade or of all.
No question comes twice: two answers to one question are not two items, whatever examples went before it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
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
_TRIES = 200  # that find no new question: the family has run out


def drills(seed: int, count: int, difficulty: int | None = None, families: Sequence[Family] = FAMILIES) -> list[Item]:
    """`count` of them; all grades in turn, or of one `difficulty`. More of them begin with the same ones."""
    if difficulty is not None and difficulty not in GRADES:
        raise UserError(f"there are no drills of difficulty `{difficulty}`", hint="from 1, very easy, to 5")
    if not 1 <= count <= MOST:
        raise UserError(f"`{count}` drills are not possible", hint=f"from 1 to {MOST}")
    grades = GRADES if difficulty is None else (difficulty,)
    rows = [
        _some_of(seed, grade, len(range(place, count, len(grades))), families) for place, grade in enumerate(grades)
    ]
    return [rows[place % len(rows)][place // len(rows)] for place in range(count)]


def _some_of(seed: int, grade: int, count: int, families: Sequence[Family]) -> list[Item]:
    found = list(islice(_graded(seed, grade, families), count))
    if len(found) < count:
        raise UserError(
            f"there are only {len(found)} different drills of grade {grade}, not {count}",
            hint="ask for fewer, or for another grade",
        )
    return found


def _graded(seed: int, grade: int, families: Sequence[Family]) -> Iterator[Item]:
    """Each family of the grade once before any comes again, until it has run out of questions."""
    rng = Random(f"drills/{VERSION}/{seed}/{grade}")
    left = [family for family in families if grade in family.grades]
    asked: set[str] = set()
    place = grade - 1
    while left:
        for family in shuffled(rng, left):
            task = _new_task(rng, family, grade, asked)
            if task is None:
                left.remove(family)
                continue
            name = f"drills-{seed}/{family.name}/{place}"
            messages = tuple(_messages(rng, family, grade, task))
            yield Item(name, messages, task.checker, family.tokens, family=family.name, difficulty=grade)
            place += len(GRADES)


def _new_task(rng: Random, family: Family, grade: int, asked: set[str]) -> Task | None:
    """One that was not asked before. None: many draws gave none, so the family has no others, or hardly any."""
    for _ in range(_TRIES):
        task = family.make(rng, grade)
        question = _asks(family, grade, task)["content"]
        if question not in asked:
            asked.add(question)
            return task
    return None


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
    room = {option: _EXAMPLES // len(task.options) for option in task.options}
    found: list[Task] = []
    seen = {task.question}
    for _ in range(_TRIES):
        one = family.make(rng, grade)
        if one.question in seen or room.get(one.answer, 1) < 1:
            continue
        seen.add(one.question)
        if one.answer in room:
            room[one.answer] -= 1
        found.append(one)
        if len(found) == _EXAMPLES:
            break
    return found
