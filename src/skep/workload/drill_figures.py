"""Drills about numbers: arithmetic, size, sequences, rules on a list, and what a small program prints."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from skep.workload.chance import pick
from skep.workload.drill_tasks import Family, Task, between, choice, listed, number, some_numbers


def _add(rng: Random, grade: int) -> Task:
    low, high = ((0, 0), (1, 9), (10, 49), (100, 499), (1000, 9999), (10_000, 99_999))[grade]
    numbers = [between(rng, low, high) for _ in range(3 if grade == 5 else 2)]
    return number(" + ".join(map(str, numbers)) + " = ?", sum(numbers))


def _subtract(rng: Random, grade: int) -> Task:
    low, high = {2: (1, 9), 3: (10, 49), 4: (100, 999), 5: (1000, 9999)}[grade]
    less, rest = between(rng, low, high), between(rng, low, high)
    return number(f"{less + rest} - {less} = ?", rest)


def _multiply(rng: Random, grade: int) -> Task:
    (a, b), (c, d) = {2: ((2, 9), (2, 9)), 3: ((11, 19), (3, 9)), 4: ((21, 99), (11, 99)), 5: ((111, 999), (21, 99))}[
        grade
    ]
    x, y = between(rng, a, b), between(rng, c, d)
    return number(f"{x} * {y} = ?", x * y)


def _larger(rng: Random, grade: int) -> Task:
    count, low, high = ((0, 0, 0), (2, 1, 99), (3, 1, 99), (5, 1, 999), (8, 1000, 9999), (12, 10_000, 99_999))[grade]
    numbers = some_numbers(rng, count, low, high)
    if grade == 5:
        return number(listed(numbers), sorted(numbers)[-2])
    return number(listed(numbers), max(numbers))


def _parity(rng: Random, grade: int) -> Task:
    low, high = ((0, 0), (0, 0), (1, 99), (100, 9999))[grade]
    value = between(rng, low, high)
    return choice(f"Is {value} even or odd?", "odd" if value % 2 else "even", ("even", "odd"))


def _sequence(rng: Random, grade: int) -> Task:
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
        step = (1, 1, pick(rng, (2, 5, 10)), pick(rng, (3, 4, 6, 7, 8, 9)))[grade]
        start = step * start if grade == 2 else start
        terms = [start + step * place for place in range(6)]
    return number(f"{listed(terms[:-1])}, ?", terms[-1])


def _rule(rng: Random, grade: int) -> Task:
    count, highest = {3: (3, 9), 4: (6, 30), 5: (8, 60)}[grade]
    numbers = some_numbers(rng, count, 1, highest)
    if grade == 3:
        made = [value + 1 for value in numbers]
    elif grade == 4:
        numbers[0] += numbers[0] % 2  # at least one is even
        made = [value for value in numbers if value % 2 == 0]
    else:
        made = [value // 2 if value % 2 == 0 else value + 1 for value in numbers]
    return Task(listed(numbers), listed(made))


def _trace(rng: Random, grade: int) -> Task:
    a, b, c = between(rng, 2, 9), between(rng, 2, 9), between(rng, 2, 5)
    lines, printed = _PROGRAMS[grade](a, b, c)
    return number("\n".join(lines), printed)


def _assigned(a: int, b: int, c: int) -> tuple[list[str], int]:
    return [f"a = {a}", f"b = {10 * b + c}", "print(b)"], 10 * b + c


def _added(a: int, b: int, _c: int) -> tuple[list[str], int]:
    return [f"a = {a}", f"b = {b}", "print(a + b)"], a + b


def _chained(a: int, b: int, c: int) -> tuple[list[str], int]:
    return [f"a = {a}", f"b = a + {b}", f"a = b * {c}", "print(a - b)"], (a + b) * c - (a + b)


def _looped(a: int, b: int, c: int) -> tuple[list[str], int]:
    return [f"x = {a}", f"for i in range({c}):", f"    x = x + i * {b}", "print(x)"], a + b * sum(range(c))


def _branched(a: int, b: int, c: int) -> tuple[list[str], int]:
    x = 0
    for i in range(a, a + b + 3):
        x = x + i if i % c else x - 1
    lines = [
        "x = 0",
        f"for i in range({a}, {a + b + 3}):",
        f"    if i % {c}:",
        "        x += i",
        "    else:",
        "        x -= 1",
    ]
    return [*lines, "print(x)"], x


_PROGRAMS: dict[int, Callable[[int, int, int], tuple[list[str], int]]] = {
    1: _assigned, 2: _added, 3: _chained, 4: _looped, 5: _branched,
}  # fmt: skip

FIGURES = (
    Family("add", (1, 2, 3, 4, 5), "Answer with a number.", _add),
    Family("subtract", (2, 3, 4, 5), "Answer with a number.", _subtract),
    Family("multiply", (3, 4, 5), "Answer with a number.", _multiply),
    Family(
        "larger",
        (1, 2, 3, 4, 5),
        {1: "Which number is larger?", **dict.fromkeys((2, 3, 4), "Which number is the largest?"),
         5: "Which number is the second largest?"},
        _larger,
    ),
    Family("parity", (2, 3), "Answer even or odd.", _parity),
    Family("sequence", (1, 2, 3, 4, 5), "Which number comes next? Answer with a number.", _sequence),
    Family(
        "rule",
        (3, 4, 5),
        {3: "Add 1 to each number.", 4: "Keep the even numbers only.",
         5: "Halve each even number and add 1 to each odd number."},
        _rule,
        48,
    ),
    Family("trace", (1, 2, 3, 4, 5), "What does this program print? Answer with a number.", _trace),
)  # fmt: skip
