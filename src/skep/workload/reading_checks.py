r"""Answers judged by reading them: exact texts, choices, numbers, and texts that must occur.

Tolerant of form, not of content: quotes, emphasis, a final period and "the answer is" are taken
away, but an answer that settles on nothing, or on two things, is wrong. Every function here takes
time in proportion to the text.

A user's regular expression may backtrack for ever, so it is searched for in the sandbox, where
time is bounded."""

from __future__ import annotations

import re
import unicodedata
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Context, Decimal
from typing import Any, NamedTuple

from skep.workload.items import Checker

# Nothing raises, and a difference is zero only of equal numbers.
DECIMAL_CONTEXT = Context(prec=40, traps=[])

_FRACTION = re.compile(r"\\[dt]?frac\{(-?\d{1,40})\}\{(\d{1,40})\}")
# A sign counts where it cannot be a dash: `5-3` ends with 3. Digits glued to a letter before them
# belong to a name (`m2`, `x1`) and are not a number that is said.
_NUMBER = re.compile(
    r"(?P<sign>(?<![\w)\]])[-+])?"
    r"(?<![^\W_])"
    r"(?:(?<!/)(?P<over>\d{1,40})/(?P<under>\d{1,40})(?![/\d])"
    r"|(?P<whole>\d{1,3}(?:[,\u00a0\u202f]\d{3})+(?!\d)|\d+(?:_\d{3})*)(?P<part>\.\d+)?"
    r"|(?<!\d\.)(?P<bare>\.\d+))"
    r"(?P<power>[eE][-+]?\d{1,4}(?!\w))?"
    r"(?P<percent>[ \u00a0\u202f]?\\?%)?"
)
_BOXED = re.compile(r"\\boxed\{([^{}]*)\}")
_DIVIDERS = re.compile(r"[,_\u00a0\u202f]")


class StatedNumber(NamedTuple):
    value: Decimal
    percent: bool
    text: str  # as it was written


def last_number(text: str) -> StatedNumber | None:
    """Return the last number of the last `\\boxed{}`, or of the text; None: there is none."""
    plain_text = text.replace("\u2212", "-").replace("{,}", ",")
    plain_text = _FRACTION.sub(r"\1/\2", plain_text)
    boxed = last_boxed(plain_text) or ""
    match = _last(_NUMBER, boxed) or _last(_NUMBER, plain_text)
    if match is None:
        return None
    return _stated_number(match)


def last_boxed(text: str) -> str | None:
    """Return what the last `\\boxed{}` holds: so models that were trained on mathematics mark
    their answer.
    """
    match = _last(_BOXED, text)
    if match is None:
        return None
    return match.group(1)


def _last(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    matches = deque(pattern.finditer(text), maxlen=1)
    return next(iter(matches), None)


def value_of(given: Any) -> Decimal | None:
    """Return the value of an item's answer: a number, or a text that is one, such as `1/3`; None:
    it is none.
    """
    if isinstance(given, bool):
        return None
    if isinstance(given, int | float):
        value = Decimal(repr(given))
        return value if value.is_finite() else None
    written = str(given).strip().replace("\u2212", "-")
    match = _NUMBER.fullmatch(written)
    if match is None:
        return None
    return _stated_number(match).value


def _stated_number(match: re.Match[str]) -> StatedNumber:
    parts = match.groupdict(default="")
    if parts["over"]:  # over zero: not a number, and equal to none
        over = Decimal(parts["over"])
        under = Decimal(parts["under"])
        value = DECIMAL_CONTEXT.divide(over, under)
    else:
        whole = _DIVIDERS.sub("", parts["whole"] or "0")
        fraction = parts["part"] or parts["bare"]
        value = Decimal(whole + fraction + parts["power"])
    if parts["sign"] == "-":
        value = value.copy_negate()
    return StatedNumber(
        value=value,
        percent=parts["percent"] != "",
        text=match.group().strip(),
    )


LONGEST_READ = 100_000  # characters, from the end: an answer is settled there

_EDGES = " \t\r\n*_`\"'“”‘’«»„.。!"
_FENCE_LINE = re.compile(r"^[ \t]*(?:```|~~~)\w*[ \t]*$", re.MULTILINE)
_LABEL = re.compile(
    r"^\W{0,4}(?:(?:the |my )?(?:final |correct |right )?(?:answer|result|output)(?: is)?"
    r"(?>(?:\s*+[:=])?)|a[:=])\s++(?=\S)",
    re.IGNORECASE,
)
_STATED = re.compile(
    r"\b(?:answer|choice|option|choose|pick|select)\b"
    r"(?:\s+(?:is|was|would be|must be|should be|option|choice|answer)\b)*\s*[:=]?",
    re.IGNORECASE,
)


def read_check(checker: Checker, text: str) -> tuple[bool, str]:
    """Return whether the answer is right, and one line that says why."""
    check = _CHECKS[checker.kind]
    return check(checker.values, text[-LONGEST_READ:])


def _exact(values: Mapping[str, Any], text: str) -> tuple[bool, str]:
    expected = str(values["answer"])
    fold = bool(values.get("ignore_case", True))
    unfenced = _FENCE_LINE.sub("", text)
    lines = [line for line in unfenced.split("\n") if line.strip()]
    if not lines:
        return False, "the answer is empty"
    last_line = lines[-1]
    for part in (text, last_line):
        unlabelled = _LABEL.sub("", part)
        if _is_same(part, expected, fold) or _is_same(unlabelled, expected, fold):
            return True, f"said {_shown(expected)}"
    return False, f"said {_shown(last_line)}, not {_shown(expected)}"


def _is_same(text: str, expected: str, fold: bool) -> bool:
    """Return whether two texts are the same but for white space, and for signs around them."""
    if _plain(text, fold) == _plain(expected, fold):
        return True
    bare_expected = _plain(expected.strip(_EDGES), fold)
    if not bare_expected:
        return False
    bare_text = _plain(text.strip(_EDGES), fold)
    return bare_text == bare_expected


def _plain(text: str, fold: bool) -> str:
    composed = unicodedata.normalize("NFC", text)
    plain = " ".join(composed.split())
    if fold:
        return plain.casefold()
    return plain


def _contains(values: Mapping[str, Any], text: str) -> tuple[bool, str]:
    folded: Callable[[str], str] = str
    if values.get("ignore_case", True):
        folded = str.casefold
    folded_text = folded(text)
    expected_texts = map(str, values["all"])
    missing = [expected for expected in expected_texts if folded(expected) not in folded_text]
    if missing:
        return False, f"not there: {_listed(missing)}"
    return True, "all of it is there"


def _number(values: Mapping[str, Any], text: str) -> tuple[bool, str]:
    answer = values["answer"]
    value = value_of(answer)
    tolerance = value_of(values.get("tolerance", 0))
    if value is None or tolerance is None or not value.is_finite():
        raise ValueError(f"`{answer}` is not a number")
    stated = last_number(text)
    unlike = f"not {_shown(str(answer))}"
    if stated is None:
        return False, f"no number, {unlike}"
    said = f"said {_shown(stated.text)}"
    candidates = [stated.value]
    if stated.percent:
        share = DECIMAL_CONTEXT.divide(stated.value, Decimal(100))
        candidates.append(share)
    is_number = not stated.value.is_nan()  # `0/0` is none
    misses = [
        DECIMAL_CONTEXT.abs(DECIMAL_CONTEXT.subtract(candidate, value)) for candidate in candidates
    ]
    if is_number and any(DECIMAL_CONTEXT.compare(miss, tolerance) <= 0 for miss in misses):
        return True, said
    return False, f"{said}, {unlike}"


def _choice(values: Mapping[str, Any], text: str) -> tuple[bool, str]:
    expected = str(values["answer"])
    options = [str(option) for option in values["options"]]
    settled = settled_on(options, text)
    if not settled:
        return False, f"none of the options, not {_shown(expected)}"
    if len(settled) > 1:
        return False, f"settled on nothing: {_listed(settled[:4])}"
    (option,) = settled
    said = f"said {_shown(option)}"
    if option.casefold() == expected.casefold():
        return True, said
    return False, f"{said}, not {_shown(expected)}"


def settled_on(options: Sequence[str], text: str) -> tuple[str, ...]:
    """Return the options that the text may mean: one; none; or several, where it does not settle.

    In this order: the whole text, or the last `\\boxed{}`; the last "the answer is ..."; a first
    or last line that begins with an option and a sign, such as `B) Paris`; whatever is mentioned
    at all."""
    choices = _ChoiceOptions(options)
    for whole in (text, last_boxed(text)):
        option = choices.is_one(whole) if whole else None
        if option:
            return (option,)
    stated: tuple[str, ...] = ()
    for match in _STATED.finditer(text):
        alternatives = choices.alternatives(text, match.end())
        if alternatives:
            stated = alternatives
    if stated:
        return stated
    lines = [line for line in text.split("\n") if line.strip(_EDGES)]
    outer_lines = lines[:1] + lines[-1:]
    leads = [choices.lead(line) for line in outer_lines]
    settled = dict.fromkeys(option for option in leads if option)
    return tuple(settled) or choices.mentioned(text)


class _ChoiceOptions:
    """Finds options in a text. A letter is looked at twice: a lower-case `a` or the `A` of a
    sentence is not yet a choice.
    """

    def __init__(self, options: Sequence[str]) -> None:
        self._spelled = {option.casefold(): option for option in options}
        longest_first = sorted(options, key=len, reverse=True)
        alternatives = "|".join(map(re.escape, longest_first))
        option = rf"(?:{alternatives})(?!\w)"
        self._anywhere = re.compile(rf"(?<!\w){option}", re.IGNORECASE)
        self._at_start = re.compile(rf"[\s*_`\"'“‘(\[]{{0,8}}({option})", re.IGNORECASE)
        self._separator = re.compile(
            r"[\s*_`\"'”’)\]]{0,8}(?:,|/|&|\bor\b|\band\b){1,2}\s{0,4}", re.IGNORECASE
        )

    def is_one(self, text: str) -> str | None:
        """Return the option that the text is, as it is spelled."""
        bare = text.strip(_EDGES + "()[],:;")
        return self._spelled.get(bare.casefold())

    def alternatives(self, text: str, start: int) -> tuple[str, ...]:
        """Return the options of `(B)` or `A or B`, beginning right there."""
        options: list[str] = []
        match = self._at_start.match(text, start)
        while match:
            option = match.group(1)
            end = match.end()
            if not options and not self._is_meant(option, text, end):
                return ()
            options.append(self._spelling(option))
            separator = self._separator.match(text, end)
            if separator is None:
                break
            match = self._at_start.match(text, separator.end())
        return tuple(dict.fromkeys(options))

    def lead(self, line: str) -> str | None:
        """Return the option that a line begins with, where a sign or nothing follows it."""
        text = line.lstrip("-•># ")
        match = self._at_start.match(text)
        if match is None:
            return None
        option = match.group(1)
        rest = text[match.end() :].lstrip("*_`\"'”’")
        signs = ").:],;"
        if len(option) == 1:
            signs = ").:]"
        if not rest.strip() or rest[0] in signs:
            return self._spelling(option)
        return None

    def mentioned(self, text: str) -> tuple[str, ...]:
        """Return the options that the text speaks of, in its order."""
        options: list[str] = []
        for match in self._anywhere.finditer(text):
            option = match.group()
            if self._is_meant(option, text, match.end()):
                options.append(self._spelling(option))
        return tuple(dict.fromkeys(options))

    def _spelling(self, option: str) -> str:
        """Return an option of a text as it is spelled in the question."""
        return self._spelled[option.casefold()]

    def _is_meant(self, option: str, text: str, end: int) -> bool:
        """Return whether the option that ends there stands for itself, not for a word."""
        if len(option) > 1 or not option.isalpha():
            return True
        after = text[end : end + 6]
        if option.islower():
            return after[:1] in (")", "]")
        if option not in "AI":
            return True
        begins_sentence = re.match(r"\s+(?!(?:or|and|is)\b)[a-z]|['’]", after)
        return begins_sentence is None


def _shown(text: str) -> str:
    line = " ".join(text.split())
    if len(line) > 40:
        return f"`{line[:40]}…`"
    return f"`{line}`"


def _listed(texts: Iterable[str]) -> str:
    return ", ".join(map(_shown, texts))


_CHECKS = {"exact": _exact, "choice": _choice, "number": _number, "contains": _contains}
