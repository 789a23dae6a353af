"""Coding prompts: distinct, of one length, the same for the same seed everywhere."""

import ast
import hashlib
import random
import re
from itertools import islice

import pytest

from skep.workload.filling import FIELDS, FULL_IDEAS, THINGS, TINY_IDEAS
from skep.workload.prompts import (
    KINDS,
    SHORT_CHARACTERS,
    VERSION,
    Prompt,
    coding_prompts,
    conversations,
    shared_prefix,
)

sizes = pytest.mark.parametrize("tokens", [None, 250, 1000])


def some(n: int, *, seed: int = 1, **options) -> list[Prompt]:
    return list(islice(coding_prompts(random.Random(seed), **options), n))


def digest() -> str:
    texts = (prompt.text for prompt in some(40, seed=0))
    return hashlib.sha256("".join(texts).encode()).hexdigest()


def digest_of_the_others() -> str:
    """Prompts in tokens, conversations and shared prefixes."""
    texts = [
        prompt.text
        for tokens in (30, 60, 120, 500, 3000)
        for prompt in some(10, seed=0, tokens=tokens)
    ]
    texts += [
        text
        for script in islice(conversations(random.Random(0)), 10)
        for text in (script.system, *script.turns)
    ]
    texts += [prompt.text for prompt in islice(shared_prefix(random.Random(0)), 5)]
    return hashlib.sha256("".join(texts).encode()).hexdigest()


def test_four_thousand_prompts_without_a_repeat():
    """No cache of whole prompts helps, and hardly any task is set twice."""
    prompts = some(4000, tokens=None)
    assert len({prompt.text for prompt in prompts}) == 4000
    assert len({prompt.user for prompt in prompts}) > 3_990


@sizes
def test_prompts_part_ways_at_the_first_word(tokens):
    """A prefix cache has nothing to share: the first words of all system messages differ."""
    prompts = some(400, tokens=tokens)
    assert len({prompt.system.split()[0] for prompt in prompts}) == 400
    assert len({prompt.system[:6] for prompt in prompts}) > 395


@pytest.mark.parametrize("seed", [1, 2])
def test_short_prompts_are_of_one_length(seed):
    """Levels differ in concurrency, not in prompt length: within 15 % of the target, alike on
    average.
    """
    prompts = some(300, seed=seed)
    assert all(abs(len(prompt.text) / SHORT_CHARACTERS - 1) < 0.15 for prompt in prompts)
    for kind in KINDS:
        lengths = [len(prompt.text) for prompt in prompts if prompt.kind == kind]
        assert sum(lengths) / len(lengths) == pytest.approx(SHORT_CHARACTERS, rel=0.03)


@sizes
def test_kinds_take_turns_in_an_order_that_comes_from_the_seed(tokens):
    """Any five prompts in a row hold each kind once; not every run starts with the same kind."""
    kinds = [prompt.kind for prompt in some(40, tokens=tokens)]
    assert all(set(kinds[start : start + 5]) == set(KINDS) for start in range(36))
    assert len({some(1, seed=seed, tokens=tokens)[0].kind for seed in range(40)}) == 5


def test_changed_prompts_need_a_new_version():
    """Runs are compared by fingerprint: whoever changes a word here raises VERSION and these
    digests together.
    """
    assert (VERSION, digest()[:16], digest_of_the_others()[:16]) == (
        "coding-2",
        "e8a8dbbd6732a871",
        "6ab6e97fcbfd2e17",
    )


@pytest.mark.parametrize("idea", [*TINY_IDEAS, *FULL_IDEAS], ids=lambda idea: idea.name)
def test_code_is_python_whatever_the_names(idea):
    """Each idea, right and broken, parses with every thing and every field,
    and the bug is there.
    """
    for (noun, plural), field in [(pair, FIELDS[0]) for pair in THINGS] + [
        (THINGS[0], f) for f in FIELDS
    ]:
        names = {
            "thing": noun,
            "things": plural,
            "Thing": noun.title(),
            "field": field,
            "number": "7",
        }
        right = idea.code.format_map(names)
        broken = idea.code.replace(*idea.bug, 1).format_map(names)
        ast.parse(right)
        ast.parse(broken)
        assert right != broken
        assert "{" not in idea.summary.format_map(names)


@sizes
def test_prompts_hold_the_code_they_speak_of(tokens):
    """What is to be tested, mended or documented is in the message, and all code in it parses."""
    for prompt in some(60, tokens=tokens):
        assert "{thing" not in prompt.user
        blocks = re.findall(r"```python\n(.*?)\n```", prompt.user, re.DOTALL)
        for block in blocks:
            ast.parse(block)
        if prompt.kind == "implement":
            assert "Write a Python function `" in prompt.user
        else:
            assert "def " in prompt.user
        assert bool(blocks) == (tokens is not None)


def test_vocabulary_has_no_repeats():
    """A word listed twice would be drawn twice as often."""
    assert len(set(THINGS)) == len(THINGS)
    assert len(set(FIELDS)) == len(FIELDS)
