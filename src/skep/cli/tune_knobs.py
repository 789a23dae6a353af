"""Knobs as they are typed: which are turned, and where they begin. Knows their names and values, nothing of engines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from difflib import get_close_matches

from skep.catalog.names import did_you_mean
from skep.errors import UserError
from skep.tunings import Config, Knob, Value, value_words

_WORDS: dict[str, Value] = {"on": True, "true": True, "off": False, "false": False, "auto": None, "none": None}


def chosen(knobs: Sequence[Knob], only: str | None, skip: str | None) -> tuple[Knob, ...]:
    """Those of `--knobs`, all where it is not given, without those of `--skip`."""
    wanted = _names("--knobs", only, knobs)
    left_out = _names("--skip", skip, knobs)
    kept = tuple(knob for knob in knobs if (not wanted or knob.name in wanted) and knob.name not in left_out)
    if not kept:
        names = ", ".join(knob.name for knob in knobs)
        raise UserError("no knob is left to turn", hint=f"there are {names}" if names else "this engine has none")
    return kept


def begun(config: Config, knobs: Sequence[Knob], pairs: Sequence[str]) -> tuple[Config, tuple[Knob, ...]]:
    """With what `--set` says. A number that is not on a knob's ladder becomes a rung of it."""
    by_name = {knob.name: knob for knob in knobs}
    for pair in (part.strip() for text in pairs for part in text.split(",")):
        name, equals, text = pair.partition("=")
        if not equals or not text:
            raise UserError(f"--set `{pair}` has no value", hint="write it as --set slots=1")
        knob = by_name[_known("--set", name.strip(), knobs)]
        value = value_of(knob, text.strip())
        if value not in knob.values:
            by_name[knob.name] = replace(knob, values=_with_rung(knob.values, value))
        config = config.turned({knob.name: value})
    return config, tuple(by_name[knob.name] for knob in knobs)


def value_of(knob: Knob, text: str) -> Value:
    """As the knob has it: by its own words first, then as a number on a ladder."""
    for value in knob.values:
        if text.lower() in (value_words(value).lower(), str(value).lower()):
            return value
    if text.lower() in _WORDS and any(value is _WORDS[text.lower()] for value in knob.values):
        return _WORDS[text.lower()]
    numbers = [value for value in knob.values if isinstance(value, int | float) and not isinstance(value, bool)]
    if knob.ordered and numbers:
        whole = all(isinstance(value, int) for value in numbers)
        try:
            number = int(text) if whole else float(text)
        except ValueError:
            number = -1
        if number > 0:
            return number
    known = ", ".join(map(value_words, knob.values))
    raise UserError(f"--set {knob.name}={text}: `{text}` is no value of it", hint=f"known: {known}")


def _with_rung(values: tuple[Value, ...], value: Value) -> tuple[Value, ...]:
    """In its place among the numbers; None stays where it stands, in front."""
    numbers = sorted(v for v in (*values, value) if isinstance(v, int | float) and not isinstance(v, bool))
    return (*(v for v in values if v is None), *numbers)


def _names(option: str, text: str | None, knobs: Sequence[Knob]) -> frozenset[str]:
    words = [word.strip() for word in (text or "").split(",") if word.strip()]
    return frozenset(_known(option, word, knobs) for word in words)


def _known(option: str, word: str, knobs: Sequence[Knob]) -> str:
    names = [knob.name for knob in knobs]
    if word in names:
        return word
    hint = did_you_mean(get_close_matches(word.lower(), names, n=1), "")
    listed = f"this engine has {', '.join(names)}"
    raise UserError(f"{option} `{word}` is no knob here", hint=f"{hint} {listed}".strip())
