"""Drills about words, lists and order: copying, picking, counting, sorting, spelling, days, small logic."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from random import Random

from skep.workload.chance import pick, shuffled
from skep.workload.drill_tasks import Family, Task, between, choice, coin, listed, number, some, some_words
from skep.workload.drill_words import DAYS, MONTHS, NAMES

_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth")
_KEYS = ("age", "weight", "price", "height", "score", "size", "count", "width", "depth", "speed")


def _copy(rng: Random, grade: int) -> Task:
    words = some_words(rng, (0, 2, 5, 9)[grade])
    return Task(" ".join(words), " ".join(words))


def _upper(rng: Random, grade: int) -> Task:
    words = some_words(rng, (0, 1, 2, 4)[grade])
    return Task(" ".join(words), " ".join(words).upper(), ignore_case=False)


def _pick_word(rng: Random, grade: int) -> Task:
    """The first or the last; later ones by their number, at last from behind."""
    words = some_words(rng, (0, 3, 5, 6, 8, 8)[grade])
    if grade <= 2:
        place, said = (0, "first") if coin(rng) else (-1, "last")
    elif grade <= 4:
        place = between(rng, 1, len(words) - 2)
        said = _ORDINALS[place]
    else:
        back = between(rng, 2, len(words) - 2)
        place, said = -back, f"{_ORDINALS[back - 1]} from the end"
    return Task(f"{listed(words)}. Which word is {said}?", words[place])


def _count_words(rng: Random, grade: int) -> Task:
    low, high = {3: (2, 6), 4: (5, 14)}[grade]
    count = between(rng, low, high)
    return number(listed(some_words(rng, count)), count)


def _count_letter(rng: Random, grade: int) -> Task:
    """How often a letter occurs: each number as often as the others."""
    most, length = {3: (4, 8), 4: (5, 10), 5: (6, 14)}[grade]
    count, letter = between(rng, 1, most), pick(rng, "aeort")
    others = [pick(rng, _LETTERS.replace(letter, "")) for _ in range(length - count)]
    return number(f"How often is {letter} in {''.join(shuffled(rng, [letter] * count + others))}?", count)


def _member(rng: Random, grade: int) -> Task:
    count = (0, 3, 6, 10, 16)[grade]
    words = some_words(rng, count + 1)
    asked = pick(rng, words[1:]) if coin(rng) else words[0]
    return choice(f"{listed(words[1:])}. Is {asked} in the list?", "yes" if asked in words[1:] else "no", ("yes", "no"))


def _reverse(rng: Random, grade: int) -> Task:
    if grade <= 3:
        words = some_words(rng, grade)
        return Task(" ".join(words), " ".join(reversed(words)))
    (word,) = some_words(rng, 1, shortest=(4, 6)[grade - 4], longest=(4, 8)[grade - 4])
    return Task(" ".join(word), " ".join(reversed(word)))


def _sort_words(rng: Random, grade: int) -> Task:
    words = some_words(rng, (0, 0, 2, 3, 5, 8)[grade])
    return Task(" ".join(words), " ".join(sorted(words)))


def _calendar(rng: Random, grade: int) -> Task:
    """The next one, then the one before: there are only so many days, and no grade asks what another does."""
    names, what = (DAYS, "day") if coin(rng) else (MONTHS, "month")
    start = between(rng, 0, len(names) - 1)
    low, high = ((0, 0), (1, 1), (1, 1), (2, 3), (4, 6), (15, 40))[grade]
    step, back = between(rng, low, high), grade > 1 and (grade == 2 or coin(rng))
    answer = names[(start - step if back else start + step) % len(names)]
    where = "before" if back else "after"
    if step == 1:
        return Task(f"Which {what} comes {where} {names[start]}?", answer)
    return Task(f"Which {what} is {step} {what}s {where} {names[start]}?", answer)


def _json(rng: Random, grade: int) -> Task:
    keys = some(rng, _KEYS, (0, 2, 4, 4, 3, 4)[grade])
    values = [between(rng, 2, 99) for _ in keys]
    if grade <= 2:
        asked = pick(rng, keys)
        return number(
            f"{json.dumps(dict(zip(keys, values, strict=True)))}\nWhat is {asked}?", values[keys.index(asked)]
        )
    names = some(rng, NAMES, (0, 0, 0, 2, 3, 4)[grade])
    table = {name: {key: between(rng, 2, 99) for key in keys} for name in names}
    name, asked = pick(rng, names), pick(rng, keys)
    if grade < 5:
        return number(f"{json.dumps(table)}\nWhat is the {asked} of {name}?", table[name][asked])
    for place, one in enumerate(shuffled(rng, names)):  # no two alike, so that one is the largest
        table[one][asked] = 10 * (place + 1) + between(rng, 0, 9)
    best = max(names, key=lambda one: table[one][asked])
    return Task(f"{json.dumps(table)}\nWho has the largest {asked}?", best)


def _edit(rng: Random, grade: int) -> Task:
    (word,) = some_words(rng, 1, shortest=4)
    if grade == 1:
        return Task(word, f"{word}s")
    if grade == 2:
        return Task(word, f"{word}-{word}")
    if grade == 3:
        return Task(word, word[1:])
    if grade == 4:
        return Task(word, word[-1] + word[1:-1] + word[0])
    return Task(word, "".join(letter for letter in word if letter not in "aeiou"))


def _caesar(rng: Random, grade: int) -> Task:
    (word,) = some_words(rng, 1, shortest=4, longest=6)
    shift = 1 if grade == 4 else 3
    return Task(word, "".join(_LETTERS[(_LETTERS.index(letter) + shift) % 26] for letter in word))


def _taller(rng: Random, grade: int) -> Task:
    """A chain of comparisons, told in any order from grade 3 up."""
    tallest = grade == 1 or coin(rng)
    names = some(rng, NAMES, (0, 2, 2, 3, 4, 6)[grade])
    while tallest and grade <= 2 and _is_even(names) != (grade == 1):  # grades 1 and 2 share no question
        names = some(rng, NAMES, 2)
    facts = [f"{tall} is taller than {short}." for tall, short in pairwise(names)]
    facts = facts if grade < 3 else shuffled(rng, facts)
    return Task(f"{' '.join(facts)} Who is {'tallest' if tallest else 'shortest'}?", names[0] if tallest else names[-1])


def _is_even(names: Sequence[str]) -> bool:
    return sum(map(NAMES.index, names)) % 2 == 0


TEXTS = (
    Family("copy", (1, 2), "Repeat the words exactly.", _copy, 32),
    Family("upper", (1, 2, 3), "Write it in capital letters.", _upper, 32),
    Family("pick", (1, 2, 3, 4, 5), "Answer with one word from the list.", _pick_word),
    Family("count-words", (3, 4), "How many words are there? Answer with a number.", _count_words),
    Family("count-letter", (3, 4, 5), "Answer with a number.", _count_letter),
    Family("member", (1, 2, 3, 4), "Answer yes or no.", _member),
    Family(
        "reverse",
        (2, 3, 4, 5),
        {2: "Swap the two words.", 3: "Write the words in reverse order.", 4: "Write the letters in reverse order.",
         5: "Write the letters in reverse order."},
        _reverse,
        40,
    ),
    Family("sort", (2, 3, 4, 5), "Write the words in alphabetical order.", _sort_words, 48),
    Family("calendar", (1, 2, 3, 4, 5), "Answer with one word.", _calendar),
    Family(
        "json",
        (1, 2, 3, 4, 5),
        {**dict.fromkeys((1, 2, 3, 4), "Answer with a number."), 5: "Answer with a name."},
        _json,
    ),
    Family(
        "edit",
        (1, 2, 3, 4, 5),
        {1: "Add the letter s at the end.", 2: "Write the word twice, with a dash between.",
         3: "Remove the first letter.", 4: "Swap the first and the last letter.",
         5: "Remove the letters a, e, i, o and u."},
        _edit,
    ),
    Family(
        "caesar",
        (4, 5),
        {4: "Replace each letter by the next one in the alphabet, z by a.",
         5: "Replace each letter by the one three places later in the alphabet; after z comes a."},
        _caesar,
    ),
    Family("order", (1, 2, 3, 4, 5), "Answer with one name.", _taller),
)  # fmt: skip
