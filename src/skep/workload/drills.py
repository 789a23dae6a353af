"""Drills: small tasks made by a generator, each with one right answer, graded from 1 (very easy)
to 5.

Short prompts after worked examples, answers of one line; no question comes twice. The same seed
gives the same drills for ever; an id names the same drill however many are asked for, of one grade
or of all."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from itertools import islice, pairwise
from random import Random
from typing import Any, TypeVar

import msgspec

from skep.errors import UserError
from skep.workload.filling import pick, read_data, shuffled
from skep.workload.items import Checker, Item

WORDS, NAMES, DAYS, MONTHS = (
    tuple(str(read_data("words.toml")[name]).split())
    for name in ("words", "names", "days", "months")
)
_LETTERS = "abcdefghijklmnopqrstuvwxyz"

_T = TypeVar("_T")


class Drill(msgspec.Struct, frozen=True):
    question: str
    answer: str
    checker: Checker


Maker = Callable[..., Drill]  # of chance, a grade, and what the file says of that grade


class DrillFamily(msgspec.Struct, frozen=True):
    """Tasks of one kind, as `drills.toml` describes them; `maker` draws one."""

    name: str
    says: str | Mapping[str, str]
    grades: Mapping[int, Sequence[Any]]
    maker: Maker
    tokens: int

    def make(self, rng: Random, grade: int) -> Drill:
        return self.maker(rng, grade, *self.grades[grade])

    def asks(self, grade: int, task: Drill) -> dict[str, str]:
        if isinstance(self.says, str):
            instruction = self.says
        else:
            instruction = self.says[str(grade)]
        return {"role": "user", "content": f"{instruction}\n{task.question}"}


def between(rng: Random, low: int, high: int) -> int:
    """Both ends included."""
    return low + int(rng.random() * (high - low + 1))


def some(rng: Random, items: Sequence[_T], count: int) -> list[_T]:
    """Different ones, in any order."""
    return [items[place] for place in some_numbers(rng, count, 0, len(items) - 1)]


@cache
def _words(shortest: int, longest: int) -> tuple[str, ...]:
    return tuple(word for word in WORDS if shortest <= len(word) <= longest)


def some_words(rng: Random, count: int, *, longest: int = 99, shortest: int = 1) -> list[str]:
    return some(rng, _words(shortest, longest), count)


def some_numbers(rng: Random, count: int, low: int, high: int) -> list[int]:
    """Different ones."""
    drawn: dict[int, None] = {}
    while len(drawn) < count:
        drawn[between(rng, low, high)] = None
    return list(drawn)


def coin(rng: Random) -> bool:
    return rng.random() < 0.5


def exact(question: str, answer: str, **values: bool) -> Drill:
    return Drill(question, answer, Checker("exact", {"answer": answer, **values}))


def number(question: str, answer: int) -> Drill:
    return Drill(question, str(answer), Checker("number", {"answer": answer}))


def choice(question: str, answer: str, *options: str) -> Drill:
    return Drill(question, answer, Checker("choice", {"answer": answer, "options": list(options)}))


def listed(items: Sequence[object]) -> str:
    return ", ".join(map(str, items))


def _add(rng: Random, _grade: int, count: int, low: int, high: int) -> Drill:
    numbers = [between(rng, low, high) for _ in range(count)]
    return number(" + ".join(map(str, numbers)) + " = ?", sum(numbers))


def _subtract(rng: Random, _grade: int, low: int, high: int) -> Drill:
    subtrahend = between(rng, low, high)
    rest = between(rng, low, high)
    return number(f"{subtrahend + rest} - {subtrahend} = ?", rest)


def _multiply(rng: Random, _grade: int, a: int, b: int, c: int, d: int) -> Drill:
    x = between(rng, a, b)
    y = between(rng, c, d)
    return number(f"{x} * {y} = ?", x * y)


def _larger(rng: Random, grade: int, count: int, low: int, high: int) -> Drill:
    numbers = some_numbers(rng, count, low, high)
    return number(listed(numbers), sorted(numbers)[-2 if grade == 5 else -1])


def _parity(rng: Random, _grade: int, low: int, high: int) -> Drill:
    value = between(rng, low, high)
    return choice(f"Is {value} even or odd?", "odd" if value % 2 else "even", "even", "odd")


def _sequence(rng: Random, grade: int) -> Drill:
    start = between(rng, 1, 94)  # with its step of 1, all below 100
    if grade == 5:  # each the sum of the two before it
        terms = [between(rng, 1, 19), between(rng, 1, 19)]
        while len(terms) < 7:
            terms.append(terms[-1] + terms[-2])
    elif grade == 4:  # steps that grow by one
        step = between(rng, 1, 5)
        terms = [start]
        for place in range(6):
            terms.append(terms[-1] + step + place)
    else:
        step = (1, pick(rng, (2, 5, 10)), pick(rng, (3, 4, 6, 7, 8, 9)))[grade - 1]
        start = step * start if grade == 2 else start
        terms = [start + step * place for place in range(6)]
    return number(f"{listed(terms[:-1])}, ?", terms[-1])


def _rule(rng: Random, grade: int, count: int, highest: int) -> Drill:
    numbers = some_numbers(rng, count, 1, highest)
    if grade == 3:
        results = [value + 1 for value in numbers]
    elif grade == 4:
        numbers[0] += numbers[0] % 2  # at least one is even
        results = [value for value in numbers if value % 2 == 0]
    else:
        results = [value // 2 if value % 2 == 0 else value + 1 for value in numbers]
    return exact(listed(numbers), listed(results))


def _trace(rng: Random, grade: int, *lines: str) -> Drill:
    a = between(rng, 2, 9)
    b = between(rng, 2, 9)
    c = between(rng, 2, 5)
    end = a + b + 3
    printed = {
        1: 10 * b + c,
        2: a + b,
        3: (a + b) * c - (a + b),
        4: a + b * sum(range(c)),
        5: sum(i if i % c else -1 for i in range(a, end)),
    }
    return number("\n".join(lines).format(a=a, b=b, c=c, end=end), printed[grade])


def _copy(rng: Random, _grade: int, count: int) -> Drill:
    words = " ".join(some_words(rng, count))
    return exact(words, words)


def _upper(rng: Random, _grade: int, count: int) -> Drill:
    words = " ".join(some_words(rng, count))
    return exact(words, words.upper(), ignore_case=False)


def _pick(rng: Random, grade: int, count: int) -> Drill:
    """Return the first or the last; later ones by their number, at last from behind."""
    words = some_words(rng, count)
    ordinals = _DATA["ordinals"]
    if grade <= 2:
        place, position = (0, "first") if coin(rng) else (-1, "last")
    elif grade <= 4:
        place = between(rng, 1, len(words) - 2)
        position = ordinals[place]
    else:
        back = between(rng, 2, len(words) - 2)
        place = -back
        position = f"{ordinals[back - 1]} from the end"
    return exact(f"{listed(words)}. Which word is {position}?", words[place])


def _count_words(rng: Random, _grade: int, low: int, high: int) -> Drill:
    count = between(rng, low, high)
    return number(listed(some_words(rng, count)), count)


def _count_letter(rng: Random, _grade: int, max_count: int, length: int) -> Drill:
    """Return how often a letter occurs: each number as often as the others."""
    count = between(rng, 1, max_count)
    letter = pick(rng, "aeort")
    others = [pick(rng, _LETTERS.replace(letter, "")) for _ in range(length - count)]
    return number(
        f"How often is {letter} in {''.join(shuffled(rng, [letter] * count + others))}?", count
    )


def _member(rng: Random, _grade: int, count: int) -> Drill:
    words = some_words(rng, count + 1)
    word = pick(rng, words[1:]) if coin(rng) else words[0]
    return choice(
        f"{listed(words[1:])}. Is {word} in the list?",
        "yes" if word in words[1:] else "no",
        "yes",
        "no",
    )


def _reverse(rng: Random, _grade: int, count: int, longest: int = 0) -> Drill:
    if longest:
        parts: Sequence[str] = some_words(rng, 1, shortest=count, longest=longest)[0]
    else:
        parts = some_words(rng, count)
    return exact(" ".join(parts), " ".join(reversed(parts)))


def _sort(rng: Random, _grade: int, count: int) -> Drill:
    words = some_words(rng, count)
    return exact(" ".join(words), " ".join(sorted(words)))


def _calendar(rng: Random, grade: int, low: int, high: int) -> Drill:
    """Return the next one, then the one before: there are only so many days, and no grade asks
    what another does.
    """
    names, unit = (DAYS, "day") if coin(rng) else (MONTHS, "month")
    start = between(rng, 0, len(names) - 1)
    step = between(rng, low, high)
    back = grade > 1 and (grade == 2 or coin(rng))
    answer = names[(start - step if back else start + step) % len(names)]
    where = "before" if back else "after"
    if step == 1:
        return exact(f"Which {unit} comes {where} {names[start]}?", answer)
    return exact(f"Which {unit} is {step} {unit}s {where} {names[start]}?", answer)


def _json(rng: Random, grade: int, key_count: int, name_count: int) -> Drill:
    keys = some(rng, _DATA["keys"], key_count)
    values = [between(rng, 2, 99) for _ in keys]
    if not name_count:
        key = pick(rng, keys)
        table = dict(zip(keys, values, strict=True))
        return number(f"{json.dumps(table)}\nWhat is {key}?", table[key])
    names = some(rng, NAMES, name_count)
    tables = {name: {key: between(rng, 2, 99) for key in keys} for name in names}
    name = pick(rng, names)
    key = pick(rng, keys)
    if grade < 5:
        return number(f"{json.dumps(tables)}\nWhat is the {key} of {name}?", tables[name][key])
    for place, person in enumerate(
        shuffled(rng, names)
    ):  # no two alike, so that one is the largest
        tables[person][key] = 10 * (place + 1) + between(rng, 0, 9)
    return exact(
        f"{json.dumps(tables)}\nWho has the largest {key}?",
        max(names, key=lambda name: tables[name][key]),
    )


def _edit(rng: Random, grade: int) -> Drill:
    (word,) = some_words(rng, 1, shortest=4)
    edited = {
        1: f"{word}s",
        2: f"{word}-{word}",
        3: word[1:],
        4: word[-1] + word[1:-1] + word[0],
        5: "".join(letter for letter in word if letter not in "aeiou"),
    }
    return exact(word, edited[grade])


def _caesar(rng: Random, _grade: int, shift: int) -> Drill:
    (word,) = some_words(rng, 1, shortest=4, longest=6)
    return exact(word, "".join(_LETTERS[(_LETTERS.index(letter) + shift) % 26] for letter in word))


def _order(rng: Random, grade: int, count: int) -> Drill:
    """A chain of comparisons, told in any order from grade 3 up."""
    tallest = grade == 1 or coin(rng)
    names = some(rng, NAMES, count)
    if tallest and grade <= 2:  # these grades share no question
        while sum(map(NAMES.index, names)) % 2 == (grade == 1):
            names = some(rng, NAMES, 2)
    facts = [f"{tall} is taller than {short}." for tall, short in pairwise(names)]
    facts = facts if grade < 3 else shuffled(rng, facts)
    superlative, answer = ("tallest", names[0]) if tallest else ("shortest", names[-1])
    return exact(f"{' '.join(facts)} Who is {superlative}?", answer)


_DATA = read_data("drills.toml")
_MAKERS: tuple[Maker, ...] = (
    *(_copy, _upper, _pick, _count_words, _count_letter, _member, _reverse, _sort),
    *(_calendar, _json, _edit, _caesar, _order),
    *(_add, _subtract, _multiply, _larger, _parity, _sequence, _rule, _trace),
)


def _family(maker: Maker) -> DrillFamily:
    name = maker.__name__.strip("_").replace("_", "-")  # as its function is called
    description = _DATA[name]
    grades = {int(grade): values for grade, values in description["grades"].items()}
    return DrillFamily(name, description["says"], grades, maker, description.get("tokens", 24))


VERSION = 1  # raised whenever the same seed gives other drills than before
GRADES = (1, 2, 3, 4, 5)
FAMILIES = tuple(_family(maker) for maker in _MAKERS)
MOST = 100_000

_EXAMPLES = 2  # of a task, before it is asked
_TRIES = 200  # that find no new question: the family has run out


def drills(
    seed: int,
    count: int,
    difficulty: int | None = None,
    families: Sequence[DrillFamily] = FAMILIES,
) -> list[Item]:
    """`count` of them; all grades in turn, or of one `difficulty`.

    More of them begin with the same ones.
    """
    if difficulty is not None and difficulty not in GRADES:
        raise UserError(
            f"there are no drills of difficulty `{difficulty}`", hint="from 1, very easy, to 5"
        )
    if not 1 <= count <= MOST:
        raise UserError(f"`{count}` drills are not possible", hint=f"from 1 to {MOST}")
    grades = GRADES if difficulty is None else (difficulty,)
    rows = []
    for place, grade in enumerate(grades):
        drill_count = len(range(place, count, len(grades)))
        rows.append(list(islice(_graded(seed, grade, families), drill_count)))
        if len(rows[-1]) < drill_count:
            there_are = f"there are only {len(rows[-1])} different drills of grade {grade}"
            raise UserError(
                f"{there_are}, not {drill_count}", hint="ask for fewer, or for another grade"
            )
    return [rows[place % len(rows)][place // len(rows)] for place in range(count)]


def _graded(seed: int, grade: int, families: Sequence[DrillFamily]) -> Iterator[Item]:
    """Each family once before any comes again.

    Examples are turns that went before: small models follow those.
    """
    rng = Random(f"drills/{VERSION}/{seed}/{grade}")
    remaining = [family for family in families if grade in family.grades]
    used_questions: set[str] = set()
    place = grade - 1
    while remaining:
        for family in shuffled(rng, remaining):
            task = next(_new_tasks(rng, family, grade, used_questions), None)
            if task is None:
                remaining.remove(family)
                continue
            turns = []
            for example in _examples(rng, family, grade, task):
                turns += [
                    family.asks(grade, example),
                    {"role": "assistant", "content": example.answer},
                ]
            messages = (*turns, family.asks(grade, task))
            name = f"drills-{seed}/{family.name}/{place}"
            yield Item(
                name, messages, task.checker, family.tokens, family=family.name, difficulty=grade
            )
            place += len(GRADES)


def _new_tasks(
    rng: Random, family: DrillFamily, grade: int, used_questions: set[str]
) -> Iterator[Drill]:
    """Those that were not asked before.

    After many draws no more: the family has no others, or hardly any.
    """
    for _ in range(_TRIES):
        task = family.make(rng, grade)
        question = family.asks(grade, task)["content"]
        if question not in used_questions:
            used_questions.add(question)
            yield task


def _examples(rng: Random, family: DrillFamily, grade: int, task: Drill) -> list[Drill]:
    """Other questions than the one that is asked.

    Choices in equal numbers, so that the examples favour none.
    """
    options = task.checker.values.get("options", ())
    room = {option: _EXAMPLES // len(options) for option in options}
    drills: list[Drill] = []
    for new_task in _new_tasks(rng, family, grade, {family.asks(grade, task)["content"]}):
        if room.get(new_task.answer, 1) > 0:
            room[new_task.answer] = room.get(new_task.answer, _EXAMPLES) - 1
            drills.append(new_task)
        if len(drills) == _EXAMPLES:
            break
    return drills
