"""Compose, count, mend: a prompt that an engine has counted is made longer or shorter by what it missed.

Only for runs that need every single prompt exact: composed with a calibration, they are right on average.
"""

from __future__ import annotations

import re
from dataclasses import replace
from random import Random

from skep.workload.filling import BETWEEN_FUNCTIONS, draw_names, functions, wishes
from skep.workload.lengths import TYPICAL_CHARS_PER_TOKEN, pieces, pieces_for
from skep.workload.prompts import Prompt

_FENCE = "\n```"
_OPEN_END = " Please"  # the one closing that no sentence can follow
_FOR_SENTENCES = 40  # pieces; more than that is made up with code, where there is a module
_SENTENCE_END = re.compile(r"(?<=\.) ")


def fit_to(prompt: Prompt, tokens: int, counted: int, *, chars_per_token: float = TYPICAL_CHARS_PER_TOKEN) -> Prompt:
    """The prompt that was counted, of about so many tokens. The result may be counted and mended again.

    It grows by sentences at its end and functions of its module, and shrinks by the last of either; its task stays.
    """
    missing = tokens - counted
    if abs(missing) > _FOR_SENTENCES:  # sentences are of common words, a token to a piece in any vocabulary
        missing = pieces_for(missing, chars_per_token)
    if not missing:
        return prompt
    target = pieces(prompt.user) + missing
    user = _shorter(prompt.user, target) if missing < 0 else prompt.user
    return replace(prompt, user=_longer(user, target, Random(f"{prompt.system}/{target}")))


def _shorter(text: str, target: int) -> str:
    """At most the target, or as near to it as the task allows."""
    surplus = pieces(text) - target
    start, sentences = _last_sentences(text)
    if surplus > sum(map(pieces, sentences)):
        text = _fewer_functions(text, target)
        start, sentences = _last_sentences(text)
    left = pieces(text)
    kept_at_least = 0 if start else 1  # a prompt of one paragraph begins with its task
    while left > target and len(sentences) > kept_at_least:
        left -= pieces(sentences.pop())
    return (text[:start] + " ".join(sentences)).rstrip()


def _fewer_functions(text: str, target: int) -> str:
    end = text.rfind(_FENCE)
    if end < 0:
        return text
    left, kept = pieces(text), end
    while left > target:
        previous = text.rfind(BETWEEN_FUNCTIONS, 0, kept)
        if previous < 0:
            break
        left -= pieces(text[previous:kept])
        kept = previous
    return text[:kept] + text[end:]


def _longer(text: str, target: int, rng: Random) -> str:
    missing = target - pieces(text)
    end = text.rfind(_FENCE)
    if missing > _FOR_SENTENCES and BETWEEN_FUNCTIONS in text and end > 0:
        code = functions(rng, pieces, missing - _FOR_SENTENCES // 2).rstrip()
        text = text[:end] + (BETWEEN_FUNCTIONS + code if code else "") + text[end:]
        missing = target - pieces(text)
    if missing > 0 and text.endswith(_OPEN_END):
        text = text.removesuffix(_OPEN_END)
        missing += 1
    glue = " " if _last_sentences(text)[1] else "\n\n"
    more = wishes(rng, draw_names(rng), pieces, missing - pieces(glue), exact=True, said=text[-4000:])
    return f"{text}{glue}{more}" if more else text


def _last_sentences(text: str) -> tuple[int, list[str]]:
    """Where the last paragraph starts, and its sentences; none where it is code."""
    start = text.rfind("\n\n") + 2 if "\n\n" in text else 0
    last = text[start:]
    return (start, _SENTENCE_END.split(last)) if last and "\n" not in last else (len(text), [])
