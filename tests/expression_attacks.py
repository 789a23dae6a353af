"""Texts that make a regular expression slow, and whether its time grows worse than in proportion
to them.

The texts are made of the expression itself: what its repeated parts match, again and again, after
what leads there, and ended by what fits nowhere. Time is the processor's, so that others on the
machine do not count."""

import re
import time
from re import _constants as codes
from re import _parser as parser

REPEATS = (codes.MAX_REPEAT, codes.MIN_REPEAT, codes.POSSESSIVE_REPEAT)
ALPHABET = "a0 \n\t\"'-_.:/[({<>=`,;x|"
ENDS = ("", "\0", "\n", "\n\0")  # nothing, what most classes do not hold, and line ends before it
MANY = 6  # a part that may be there more often than so is taken for a repeated one
CHARACTERS = 6  # that most of the repeated parts share
SHORT = 18  # characters, for expressions whose time doubles with each one
SIZES = (SHORT, 256, 2048)
MEASURABLE_S = 0.001
TRIES = 5
WORST_COST = (
    100  # times as long as finding each letter of the same text: cubic ones are above a thousand
)
WORST_GROWTH = 9.0  # of the time, for four times the text: in proportion is 4, quadratic is 16
CATEGORIES = {
    codes.CATEGORY_DIGIT: str.isdigit,
    codes.CATEGORY_SPACE: str.isspace,
    codes.CATEGORY_WORD: lambda char: char.isalnum() or char == "_",
    codes.CATEGORY_NOT_DIGIT: lambda char: not char.isdigit(),
    codes.CATEGORY_NOT_SPACE: lambda char: not char.isspace(),
    codes.CATEGORY_NOT_WORD: lambda char: not (char.isalnum() or char == "_"),
}


def slow_text(expression, methods, longest=SIZES[-1]):
    """Return the beginning, the repeated part and the end of a text on which its time grows too
    fast, else None.
    """
    for attack in attacks(expression):
        for method in methods:
            if grows_too_fast(expression, method, attack, longest):
                return method, *attack
    return None


def costly_text(expression, methods, longest):
    """Return the text of that many characters on which it takes long for texts so short, else
    None.
    """
    usual = worker(re.compile(r"\w"), "findall")
    for attack in attacks(expression):
        text = text_of_size(expression, attack, longest)
        short = text_of_size(expression, attack, SHORT)
        for work in (worker(expression, method) for method in methods):
            if spent(work, short) > MEASURABLE_S:
                return attack
            if spent(work, text) > MEASURABLE_S:
                times = (
                    min(spent(work, text) for _ in range(TRIES)),
                    min(spent(usual, text) for _ in range(TRIES)),
                )
                if times[0] > WORST_COST * times[1]:
                    return attack
    return None


def grows_too_fast(expression, method, attack, longest):
    work = worker(expression, method)
    for size in sorted({*(size for size in SIZES if size < longest), longest}):
        large = text_of_size(expression, attack, size)
        slow = spent(work, large)
        if slow < MEASURABLE_S:
            continue
        if size == SHORT:
            return True
        small = text_of_size(expression, attack, size // 4)
        # It may be chance: once more, and the best of several tries.
        if slow > WORST_GROWTH * spent(work, small):
            quick = min(spent(work, small) for _ in range(TRIES))
            slow = min(spent(work, large) for _ in range(TRIES))
            if slow > WORST_GROWTH * quick:
                return True
    return False


def worker(expression, method):
    """Return a function that does to a text what the tree does with this method."""
    if method in ("match", "fullmatch", "search"):
        return getattr(expression, method)
    return lambda text: sum(1 for _ in expression.finditer(text))


def spent(work, text):
    began = time.thread_time()
    work(text)
    return time.thread_time() - began


def text_of_size(expression, attack, size):
    begin, part, end = attack
    text = begin + part * max(1, (size - len(begin) - len(end)) // len(part)) + end
    if isinstance(expression.pattern, bytes):
        return text.encode("latin-1", "replace")
    return text


def attacks(expression):
    """Return what to begin with, what to repeat and what to end with: each once."""
    tree = list(parser.parse(expression.pattern, expression.flags & ~re.DEBUG))
    if not any(repeats_in(tree)):
        return []
    shared = shared_characters(tree)
    pairs = dict.fromkeys(pair for pair in repeated_parts(tree, "", shared) if pair[1])
    return [(begin, part, end) for begin, part in pairs for end in ENDS]


def repeated_parts(items, before, shared):
    """Yield the text before each repeated part, and the texts that it may be made of."""
    for place, (code, value) in enumerate(items):
        if code in REPEATS and value[1] > MANY:
            body = list(value[2])
            texts = [sample(body, shared), *(char for char in shared if is_one(body, char))]
            for text in texts:
                yield before, text
                yield "", before + text
            follower = sample(items[place + 1 : place + 2], shared)
            yield before, sample(body, shared) + follower
        for inner in inner_sequences(code, value):
            yield from repeated_parts(inner, before, shared)
        before += sample([(code, value)], shared)
        if code not in (codes.LITERAL, codes.AT) or place == len(items) - 1:
            yield "", before


def inner_sequences(code, value):
    if code in REPEATS:
        return [list(value[2])]
    if code is codes.SUBPATTERN:
        return [list(value[-1])]
    if code is codes.BRANCH:
        return [list(branch) for branch in value[1]]
    if code is codes.ATOMIC_GROUP:
        return [list(value)]
    if code in (codes.ASSERT, codes.ASSERT_NOT):
        return [list(value[1])]
    return []


def sample(items, shared):
    """Return a text that the items match, each repeated part as rarely as it may be, but once."""
    text = ""
    for code, value in items:
        if code in REPEATS:
            text += sample(list(value[2]), shared) * max(1, min(value[0], 2 * MANY))
        elif is_class(code):
            text += next(
                (char for char in candidates(code, value, shared) if holds(code, value, char)), ""
            )
        elif code is codes.BRANCH:
            text += sample(list(value[1][0]), shared)
        elif code in (codes.SUBPATTERN, codes.ATOMIC_GROUP):
            text += sample(list(value[-1] if code is codes.SUBPATTERN else value), shared)
    return text


def candidates(code, value, shared):
    literal = [chr(value)] if code is codes.LITERAL else []
    if code is codes.IN:
        listed = [chr(node[1]) for node in value if node[0] is codes.LITERAL]
    else:
        listed = []
    if code is codes.IN:
        ranges = [chr(node[1][0]) for node in value if node[0] is codes.RANGE]
    else:
        ranges = []
    return [*literal, *shared, *ALPHABET, *listed, *ranges, "\u00e9", "\0"]


def shared_characters(tree):
    """Return the characters that most of the repeated classes hold."""
    classes = list(classes_in(tree))
    literals = [chr(value) for code, value in literals_in(tree)]
    score = {
        char: sum(holds(code, value, char) for code, value in classes)
        for char in [*ALPHABET, *literals]
    }
    return sorted(score, key=lambda char: -score[char])[:CHARACTERS]


def repeats_in(items):
    for code, value in items:
        if code in REPEATS and value[1] > MANY:
            yield code
        for inner in inner_sequences(code, value):
            yield from repeats_in(inner)


def classes_in(items):
    for code, value in items:
        if code in REPEATS and value[1] > MANY:
            yield from (item for item in value[2] if is_class(item[0]))
        for inner in inner_sequences(code, value):
            yield from classes_in(inner)


def literals_in(items):
    for code, value in items:
        if code is codes.LITERAL:
            yield code, value
        for inner in inner_sequences(code, value):
            yield from literals_in(inner)


def is_class(code):
    return code in (codes.LITERAL, codes.NOT_LITERAL, codes.ANY, codes.IN)


def is_one(body, char):
    return len(body) == 1 and is_class(body[0][0]) and holds(*body[0], char)


def holds(code, value, char):
    if code is codes.ANY:
        return char != "\n"
    if code is codes.LITERAL:
        return ord(char) == value
    if code is codes.NOT_LITERAL:
        return ord(char) != value
    negated = bool(value) and value[0][0] is codes.NEGATE
    return (
        any(holds_part(*part, char) for part in value if part[0] is not codes.NEGATE)
        is not negated
    )


def holds_part(code, value, char):
    if code is codes.RANGE:
        return value[0] <= ord(char) <= value[1]
    if code is codes.CATEGORY:
        return CATEGORIES[value](char)
    return ord(char) == value
