"""Drills: small tasks made by a generator, each with one right answer, graded from 1 (very easy)
to 5.

Short prompts after worked examples, answers of one line; no question comes twice. The same seed
gives the same drills for ever; an id names the same drill however many are asked for, of one grade
or of all."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from itertools import accumulate, islice, pairwise
from random import Random
from typing import Any, TypeVar

import msgspec

from skep.errors import UserError
from skep.workload.filling import pick, read_data, shuffled
from skep.workload.items import Checker, Item


def _read_words(name: str) -> tuple[str, ...]:
    return tuple(str(read_data("words.toml")[name]).split())


WORDS = _read_words("words")
NAMES = _read_words("names")
DAYS = _read_words("days")
MONTHS = _read_words("months")
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
    says: str | Mapping[str, str]  # the instruction, of all grades or by grade
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
        content = f"{instruction}\n{task.question}"
        return {"role": "user", "content": content}


def between(rng: Random, low: int, high: int) -> int:
    """Draw a whole number; both ends are included."""
    values = high - low + 1
    return low + int(rng.random() * values)


def some(rng: Random, items: Sequence[_T], count: int) -> list[_T]:
    """Draw different items, in any order."""
    places = some_numbers(rng, count, 0, len(items) - 1)
    return [items[place] for place in places]


@cache
def _words(shortest: int, longest: int) -> tuple[str, ...]:
    return tuple(word for word in WORDS if shortest <= len(word) <= longest)


def some_words(rng: Random, count: int, *, longest: int = 99, shortest: int = 1) -> list[str]:
    return some(rng, _words(shortest, longest), count)


def some_numbers(rng: Random, count: int, low: int, high: int) -> list[int]:
    """Draw different numbers, in any order."""
    drawn: dict[int, None] = {}
    while len(drawn) < count:
        drawn[between(rng, low, high)] = None
    return list(drawn)


def coin(rng: Random) -> bool:
    return rng.random() < 0.5


def exact(question: str, answer: str, **values: bool) -> Drill:
    checker = Checker("exact", {"answer": answer, **values})
    return Drill(question, answer, checker)


def number(question: str, answer: int) -> Drill:
    checker = Checker("number", {"answer": answer})
    return Drill(question, str(answer), checker)


def choice(question: str, answer: str, *options: str) -> Drill:
    checker = Checker("choice", {"answer": answer, "options": list(options)})
    return Drill(question, answer, checker)


def listed(items: Sequence[object]) -> str:
    return ", ".join(map(str, items))


def _add(rng: Random, _grade: int, count: int, low: int, high: int) -> Drill:
    numbers = [between(rng, low, high) for _ in range(count)]
    terms = " + ".join(map(str, numbers))
    return number(
        question=f"{terms} = ?",
        answer=sum(numbers),
    )


def _subtract(rng: Random, _grade: int, low: int, high: int) -> Drill:
    subtrahend = between(rng, low, high)
    rest = between(rng, low, high)
    return number(
        question=f"{subtrahend + rest} - {subtrahend} = ?",
        answer=rest,
    )


def _multiply(rng: Random, _grade: int, a: int, b: int, c: int, d: int) -> Drill:
    x = between(rng, a, b)
    y = between(rng, c, d)
    return number(
        question=f"{x} * {y} = ?",
        answer=x * y,
    )


def _larger(rng: Random, grade: int, count: int, low: int, high: int) -> Drill:
    """Ask for the largest number; in grade 5 for the second largest."""
    numbers = some_numbers(rng, count, low, high)
    ascending = sorted(numbers)
    answer = ascending[-1]
    if grade == 5:
        answer = ascending[-2]
    return number(listed(numbers), answer)


def _parity(rng: Random, _grade: int, low: int, high: int) -> Drill:
    value = between(rng, low, high)
    answer = "even"
    if value % 2:
        answer = "odd"
    return choice(f"Is {value} even or odd?", answer, "even", "odd")


def _sequence(rng: Random, grade: int) -> Drill:
    """Ask for the term that comes next.

    Up to grade 3 all steps are the same, in grade 4 each is longer by one than the step before. In
    grade 5 each term is the sum of the two before it.
    """
    start = between(rng, 1, 94)  # with its step of 1, all below 100
    if grade == 5:
        terms = _sums_of_two(rng, 7)
    elif grade == 4:
        step = between(rng, 1, 5)
        steps = range(step, step + 6)
        terms = list(accumulate(steps, initial=start))
    else:
        easy_step = pick(rng, (2, 5, 10))
        hard_step = pick(rng, (3, 4, 6, 7, 8, 9))
        step = (1, easy_step, hard_step)[grade - 1]
        if grade == 2:
            start = step * start
        terms = [start + step * place for place in range(6)]
    *asked_terms, answer = terms
    return number(f"{listed(asked_terms)}, ?", answer)


def _sums_of_two(rng: Random, count: int) -> list[int]:
    """Draw two numbers; return them and the next ones, each the sum of the two before it."""
    first = between(rng, 1, 19)
    second = between(rng, 1, 19)
    terms = [first, second]
    while len(terms) < count:
        following = terms[-1] + terms[-2]
        terms.append(following)
    return terms


def _rule(rng: Random, grade: int, count: int, highest: int) -> Drill:
    """Ask to add 1; in grade 4 to keep even numbers, in grade 5 to halve these and add 1 to odd
    ones.
    """
    numbers = some_numbers(rng, count, 1, highest)
    if grade == 3:
        results = [value + 1 for value in numbers]
    elif grade == 4:
        numbers[0] += numbers[0] % 2  # at least one is even
        results = [value for value in numbers if value % 2 == 0]
    else:
        results = [_halved_or_next(value) for value in numbers]
    return exact(
        question=listed(numbers),
        answer=listed(results),
    )


def _halved_or_next(value: int) -> int:
    if value % 2 == 0:
        return value // 2
    return value + 1


def _trace(rng: Random, grade: int, *lines: str) -> Drill:
    a = between(rng, 2, 9)
    b = between(rng, 2, 9)
    c = between(rng, 2, 5)
    total = a + b
    end = total + 3
    terms = [i if i % c else -1 for i in range(a, end)]
    printed = {
        1: 10 * b + c,
        2: total,
        3: total * c - total,
        4: a + b * sum(range(c)),
        5: sum(terms),
    }
    program = "\n".join(lines)
    return number(
        question=program.format(a=a, b=b, c=c, end=end),
        answer=printed[grade],
    )


def _copy(rng: Random, _grade: int, count: int) -> Drill:
    words = " ".join(some_words(rng, count))
    return exact(words, words)


def _upper(rng: Random, _grade: int, count: int) -> Drill:
    words = " ".join(some_words(rng, count))
    return exact(words, words.upper(), ignore_case=False)


def _pick(rng: Random, grade: int, count: int) -> Drill:
    """Ask for the first or the last word; in higher grades by its number, at last from the end."""
    words = some_words(rng, count)
    ordinals = _DATA["ordinals"]
    highest = len(words) - 2
    if grade <= 2 and coin(rng):
        place = 0
        position = "first"
    elif grade <= 2:
        place = -1
        position = "last"
    elif grade <= 4:
        place = between(rng, 1, highest)
        position = ordinals[place]
    else:
        back = between(rng, 2, highest)
        place = -back
        position = f"{ordinals[back - 1]} from the end"
    return exact(
        question=f"{listed(words)}. Which word is {position}?",
        answer=words[place],
    )


def _count_words(rng: Random, _grade: int, low: int, high: int) -> Drill:
    count = between(rng, low, high)
    words = some_words(rng, count)
    return number(listed(words), count)


def _count_letter(rng: Random, _grade: int, max_count: int, length: int) -> Drill:
    """Ask how often a letter occurs; every number up to the largest is as likely."""
    count = between(rng, 1, max_count)
    letter = pick(rng, "aeort")
    other_letters = _LETTERS.replace(letter, "")
    others = [pick(rng, other_letters) for _ in range(length - count)]
    letters = [letter] * count + others
    word = "".join(shuffled(rng, letters))
    return number(f"How often is {letter} in {word}?", count)


def _member(rng: Random, _grade: int, count: int) -> Drill:
    absent, *words = some_words(rng, count + 1)
    if coin(rng):
        word = pick(rng, words)
        answer = "yes"
    else:
        word = absent
        answer = "no"
    return choice(f"{listed(words)}. Is {word} in the list?", answer, "yes", "no")


def _reverse(rng: Random, _grade: int, count: int, longest: int = 0) -> Drill:
    parts: Sequence[str]
    if longest:
        (parts,) = some_words(rng, 1, shortest=count, longest=longest)
    else:
        parts = some_words(rng, count)
    return exact(
        question=" ".join(parts),
        answer=" ".join(reversed(parts)),
    )


def _sort(rng: Random, _grade: int, count: int) -> Drill:
    words = some_words(rng, count)
    return exact(
        question=" ".join(words),
        answer=" ".join(sorted(words)),
    )


def _calendar(rng: Random, grade: int, low: int, high: int) -> Drill:
    """Ask for the next day or month, in grade 2 for the one before: there are only so many, and no
    grade asks what another does.
    """
    if coin(rng):
        names = DAYS
        unit = "day"
    else:
        names = MONTHS
        unit = "month"
    count = len(names)
    start = between(rng, 0, count - 1)
    step = between(rng, low, high)
    if grade > 1 and (grade == 2 or coin(rng)):
        where = "before"
        place = start - step
    else:
        where = "after"
        place = start + step
    question = f"Which {unit} is {step} {unit}s {where} {names[start]}?"
    if step == 1:
        question = f"Which {unit} comes {where} {names[start]}?"
    return exact(question, names[place % count])


def _json(rng: Random, grade: int, key_count: int, name_count: int) -> Drill:
    """Ask for a value of an object, or of an object in one; in grade 5 for whose value is the
    largest.
    """
    keys = some(rng, _DATA["keys"], key_count)
    values = [between(rng, 2, 99) for _ in keys]
    if not name_count:
        table = dict(zip(keys, values, strict=True))
        key = pick(rng, keys)
        return number(
            question=f"{json.dumps(table)}\nWhat is {key}?",
            answer=table[key],
        )
    names = some(rng, NAMES, name_count)
    tables = {name: {key: between(rng, 2, 99) for key in keys} for name in names}
    name = pick(rng, names)
    key = pick(rng, keys)
    if grade < 5:
        return number(
            question=f"{json.dumps(tables)}\nWhat is the {key} of {name}?",
            answer=tables[name][key],
        )
    # No two alike, so that one is the largest.
    for place, person in enumerate(shuffled(rng, names), start=1):
        tables[person][key] = 10 * place + between(rng, 0, 9)
    return exact(
        question=f"{json.dumps(tables)}\nWho has the largest {key}?",
        answer=max(names, key=lambda name: tables[name][key]),
    )


def _edit(rng: Random, grade: int) -> Drill:
    (word,) = some_words(rng, 1, shortest=4)
    consonants = [letter for letter in word if letter not in "aeiou"]
    edited = {
        1: f"{word}s",
        2: f"{word}-{word}",
        3: word[1:],
        4: word[-1] + word[1:-1] + word[0],
        5: "".join(consonants),
    }
    return exact(word, edited[grade])


def _caesar(rng: Random, _grade: int, shift: int) -> Drill:
    (word,) = some_words(rng, 1, shortest=4, longest=6)
    places = [_LETTERS.index(letter) + shift for letter in word]
    moved_letters = [_LETTERS[place % 26] for place in places]
    return exact(word, "".join(moved_letters))


def _order(rng: Random, grade: int, count: int) -> Drill:
    """Ask who is tallest or shortest, after a chain of comparisons that is in any order from grade
    3 up.
    """
    asks_tallest = grade == 1 or coin(rng)
    names = some(rng, NAMES, count)
    if asks_tallest and grade <= 2:  # these grades share no question
        while _is_odd_pair(names) == (grade == 1):
            names = some(rng, NAMES, 2)
    facts = [f"{tall} is taller than {short}." for tall, short in pairwise(names)]
    if grade >= 3:
        facts = shuffled(rng, facts)
    told_facts = " ".join(facts)
    if asks_tallest:
        return exact(
            question=f"{told_facts} Who is tallest?",
            answer=names[0],
        )
    return exact(
        question=f"{told_facts} Who is shortest?",
        answer=names[-1],
    )


def _is_odd_pair(names: Sequence[str]) -> bool:
    """Return whether the places of two names in the list of all add up to an odd number."""
    places = map(NAMES.index, names)
    return sum(places) % 2 == 1


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
    return DrillFamily(
        name=name,
        says=description["says"],
        grades=grades,
        maker=maker,
        tokens=description.get("tokens", 24),
    )


VERSION = 1  # raised whenever the same seed gives other drills than before
GRADES = (1, 2, 3, 4, 5)
FAMILIES = tuple(_family(maker) for maker in _MAKERS)
MOST_DRILLS = 100_000

_EXAMPLES = 2  # of a task, before it is asked
_TRIES = 200  # that find no new question: the family has run out


def drills(
    seed: int,
    count: int,
    difficulty: int | None = None,
    families: Sequence[DrillFamily] = FAMILIES,
) -> list[Item]:
    """Return `count` drills, of all grades in turn or of one `difficulty`.

    A larger count begins with the same drills.
    """
    if difficulty is not None and difficulty not in GRADES:
        raise UserError(
            f"there are no drills of difficulty `{difficulty}`", hint="from 1, very easy, to 5"
        )
    if not 1 <= count <= MOST_DRILLS:
        raise UserError(f"`{count}` drills are not possible", hint=f"from 1 to {MOST_DRILLS}")
    grades = GRADES if difficulty is None else (difficulty,)
    rows = []
    for place, grade in enumerate(grades):
        drill_count = len(range(place, count, len(grades)))
        row = list(islice(_graded(seed, grade, families), drill_count))
        if len(row) < drill_count:
            there_are = f"there are only {len(row)} different drills of grade {grade}"
            raise UserError(
                f"{there_are}, not {drill_count}", hint="ask for fewer, or for another grade"
            )
        rows.append(row)
    items = []
    for place in range(count):
        turn, column = divmod(place, len(rows))
        items.append(rows[column][turn])
    return items


def _graded(seed: int, grade: int, families: Sequence[DrillFamily]) -> Iterator[Item]:
    """Yield endless items, each family once before any comes again."""
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
            yield Item(
                id=f"drills-{seed}/{family.name}/{place}",
                messages=_conversation(rng, family, grade, task),
                checker=task.checker,
                max_tokens=family.tokens,
                family=family.name,
                difficulty=grade,
            )
            place += len(GRADES)


def _conversation(
    rng: Random,
    family: DrillFamily,
    grade: int,
    task: Drill,
) -> tuple[dict[str, str], ...]:
    """Return the messages of a drill.

    Examples are earlier turns of the conversation: small models follow those.
    """
    messages = []
    for example in _examples(rng, family, grade, task):
        messages += [
            family.asks(grade, example),
            {"role": "assistant", "content": example.answer},
        ]
    messages.append(family.asks(grade, task))
    return tuple(messages)


def _new_tasks(
    rng: Random,
    family: DrillFamily,
    grade: int,
    used_questions: set[str],
) -> Iterator[Drill]:
    """Yield drills whose questions were not used before, and add these.

    Ends after many draws without one: the family has no others, or hardly any.
    """
    for _ in range(_TRIES):
        task = family.make(rng, grade)
        question = family.asks(grade, task)["content"]
        if question not in used_questions:
            used_questions.add(question)
            yield task


def _examples(rng: Random, family: DrillFamily, grade: int, task: Drill) -> list[Drill]:
    """Draw examples with other questions than the task's.

    Each choice is the answer equally often, so that the examples favour none.
    """
    options = task.checker.values.get("options", ())
    room = {option: _EXAMPLES // len(options) for option in options}
    question = family.asks(grade, task)["content"]
    used_questions = {question}
    examples: list[Drill] = []
    for example in _new_tasks(rng, family, grade, used_questions):
        answer = example.answer
        if room.get(answer, 1) > 0:
            room[answer] = room.get(answer, _EXAMPLES) - 1
            examples.append(example)
        if len(examples) == _EXAMPLES:
            break
    return examples
