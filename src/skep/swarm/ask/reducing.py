"""From many answers to one: what fits together, whether a merge can be used, and what stands in for it. Pure.

Nothing is lost here: where a merge cannot be used, its parts stand one after the other, under their headings.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from skep.workload.extraction import spoken

MARKS_CHARS = 24  # that a part's marks take in a prompt
SLACK_CHARS = 400  # that a merge of short parts may be longer than they
LEAST_UNITS = 6  # lines or sentences, below which repeating is no babble
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+")
_MARK = re.compile(r"^(?:<<< (?:file |given|result of |fault of ).*|>>>)$\n?", re.MULTILINE)  # of our own prompts
_SPACES = re.compile(r"\s+")
LEAST_WORDS = 4  # that only one part has, below which nothing can be said of it
_WORD = re.compile(r"[a-z\u00df-\u024f\u0370-\u052f]{4,}")  # of scripts that put spaces between words
_EDGES = " \t\n.,;:!?\"'`*_()[]"


@dataclass(frozen=True, slots=True)
class Part:
    """An answer, or several that were put together."""

    id: str
    heading: str
    text: str
    merged: bool = False  # by a model
    fallback: bool = False  # parts that stand one after the other, with headings of their own


def tidy(text: str) -> str:
    """Without thinking, marks of the prompt, and what it has said before: lines, and sentences, that come again."""
    said = _MARK.sub("", spoken(text, None).text).strip()
    seen: set[str] = set()
    kept: list[str] = []
    fenced = False
    for line in said.split("\n"):
        if line.lstrip().startswith(("```", "~~~")):
            fenced = not fenced
        fresh = line if fenced or line.lstrip().startswith(("```", "~~~")) else _new_sentences(line, seen)
        if fresh is not None:
            kept.append(fresh.rstrip())
    return re.sub(r"\n{3,}", "\n\n", "\n".join(kept)).strip()


def without_echo(answer: str, asked: str) -> str:
    """Without the lines of the prompt that a small model begins with; all of it, where there is nothing else."""
    given = {line.strip() for line in asked.split("\n")}
    lines = answer.split("\n")
    start = 0
    while start < len(lines) and lines[start].strip() in given | {""}:
        start += 1
    return "\n".join(lines[start:]) if start < len(lines) else answer


def _new_sentences(line: str, seen: set[str]) -> str | None:
    """None: all of it was said before. Short ones may come again: an empty line, a `---`, a `yes`."""
    sentences = _SENTENCE_END.split(line)
    fresh: list[str] = []
    for sentence in sentences:
        key = _key(sentence)
        if len(key) < 20 or key not in seen:
            fresh.append(sentence)
        seen.add(key)
    if len(fresh) == len(sentences):
        return line
    return " ".join(fresh) if fresh else None


def repeats_itself(text: str) -> bool:
    """More than half of its sentences or lines were said before: a small model that has lost the thread."""
    units = [key for line in text.split("\n") for one in _SENTENCE_END.split(line) if len(key := _key(one)) >= 8]
    return len(units) >= LEAST_UNITS and len(set(units)) * 2 < len(units)


def grouped(parts: Sequence[Part], most_chars: int) -> list[list[Part]]:
    """Neighbours together, as many as fit, groups about equally large. One that fits with no other stays alone."""
    sizes = [len(part.text) + len(part.heading) + MARKS_CHARS for part in parts]
    groups: list[list[Part]] = []
    current: list[Part] = []
    size = 0
    for part, own in zip(parts, sizes, strict=True):
        if current and size + own > most_chars:
            groups.append(current)
            current, size = [], 0
        current.append(part)
        size += own
    return [*groups, current] if current else groups


def why_unused(answer: str | None, finish_reason: str | None, inputs: Sequence[Part]) -> str | None:
    """None: the merge can be used."""
    text = tidy(answer or "")
    if not text:
        return "it is empty"
    if finish_reason == "length":
        return "it was cut at its limit"
    if repeats_itself(answer or ""):
        return "it repeats itself"
    whole = sum(len(part.text) for part in inputs)
    if len(text) > whole + SLACK_CHARS:
        return f"it is longer ({len(text):,} characters) than all that it was made of ({whole:,})"
    return None


def left_out(text: str, inputs: Sequence[Part]) -> list[Part]:
    """Parts of which a merge says nothing: none of the words that they alone have is in it.

    A part with too few such words is let be: what it says may well be said in the others' words. So is a merge that
    has no word of any part: it counts or judges, as it was asked to.
    """
    words = [set(_WORD.findall(part.text.casefold())) for part in inputs]
    counts = Counter(word for own in words for word in own)
    said = set(_WORD.findall(text.casefold()))
    dropped: list[Part] = []
    for part, own in zip(inputs, words, strict=True):
        only = {word for word in own if counts[word] == 1}
        if len(only) >= LEAST_WORDS and not only & said:
            dropped.append(part)
    return dropped if len(dropped) < len(inputs) else []


def joined(parts: Sequence[Part]) -> str:
    """One after the other under their headings; what an earlier one says in the same words is left out."""
    seen: dict[str, str] = {}
    blocks: list[str] = []
    for part in parts:
        key = _key(part.text)
        if part.fallback:
            blocks.append(part.text)
        elif key in seen:
            blocks.append(f"## {part.heading}\n\nThe same as {seen[key]}.")
        else:
            seen[key] = part.heading
            blocks.append(f"## {part.heading}\n\n{part.text}")
    return "\n\n".join(blocks)


@dataclass(frozen=True, slots=True)
class Vote:
    text: str
    votes: int
    of: int


def vote(answers: Sequence[tuple[str, Any]]) -> Vote | None:
    """The commonest answer, of equals the first; `answers`: text and, where there was a schema, its value."""
    keys = [_key(text) if value is None else json.dumps(value, sort_keys=True) for text, value in answers]
    if not keys:
        return None
    counts = Counter(keys)
    winner = max(counts, key=lambda key: (counts[key], -keys.index(key)))
    return Vote(answers[keys.index(winner)][0], counts[winner], len(keys))


def _key(text: str) -> str:
    return _SPACES.sub(" ", text).strip(_EDGES).casefold()
