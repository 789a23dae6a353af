"""Lengths in tokens: pieces, calibration and mending,
against tokenizers made up for the purpose.
"""

import ast
import random
import re
from itertools import islice

import pytest

from skep.errors import UserError
from skep.workload.filling import CHARS_PER_PIECE, pieces
from skep.workload.prompts import KINDS, calibrate, coding_prompts, sample_prompts


def some(n, *, seed=1, **options):
    return list(islice(coding_prompts(random.Random(seed), **options), n))


def sample_texts(**options):
    return [prompt.text for prompt in sample_prompts(random.Random(3), **options)]


def coarse(text: str) -> int:
    """A tokenizer unlike the pieces: long words fall apart, signs count singly, indentation is
    free.
    """
    words = re.findall(r"[A-Za-z]+", text)
    return (
        sum(1 + (len(word) - 1) // 6 for word in words)
        + len(re.findall(r"[^\sA-Za-z]", text))
        + text.count("\n")
    )


def test_pieces_are_words_digits_signs_and_line_breaks():
    """One each, whatever the indentation."""
    assert pieces("def f(x_1):\n    return -42.5") == 3 + 1 + 1 + 2 + 1 + 1 + 3 + 1 + 1
    assert pieces("") == pieces("  ") == 0


@pytest.mark.parametrize("tokens", [30, 40, 79, 80, 150, 170, 300, 1000, 8192])
def test_prompts_have_the_length_asked_for_of_which_the_templates_overhead_is_a_part(tokens):
    """By the measure they are composed with, to two pieces; all kinds alike."""
    prompts = some(10, tokens=tokens, chars_per_token=CHARS_PER_PIECE)
    assert all(abs(pieces(prompt.text) - tokens) <= 2 for prompt in prompts)
    assert {prompt.kind for prompt in prompts} == set(KINDS)
    assert len({prompt.text for prompt in prompts}) == 10
    assert (
        some(2, tokens=tokens + 25, chars_per_token=CHARS_PER_PIECE, overhead_tokens=25)
        == prompts[:2]
    )


def test_long_prompts_are_python_with_distinct_functions():
    """A large module is context, not the same lines again and again."""
    for prompt in some(2, tokens=30_000):
        blocks = re.findall(r"```python\n(.*?)\n```", prompt.user, re.DOTALL)
        names = [getattr(node, "name", "") for node in ast.parse(blocks[-1]).body]
        assert len(names) > 250
        assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    ("tokens", "overhead", "min_tokens"), [(10, 0, "28"), (40, 30, "58"), (-5, 0, "28")]
)
def test_too_few_tokens_are_refused_with_the_least_that_works_and_far_too_many_too(
    tokens, overhead, min_tokens
):
    """Before the first prompt is taken; and the min_tokens does work.

    A typing mistake must not fill the memory.
    """
    options = {"chars_per_token": CHARS_PER_PIECE, "overhead_tokens": overhead}
    with pytest.raises(UserError, match=f"`{tokens}` tokens are too few") as caught:
        some(0, tokens=tokens, **options)
    assert min_tokens in caught.value.hint
    assert some(1, tokens=int(min_tokens), **options)
    with pytest.raises(UserError, match="too many"):
        some(0, tokens=10**9)


@pytest.mark.parametrize("overhead", [0, 13, 70])
@pytest.mark.parametrize("scale", [0.6, 1.0, 1.7])
def test_calibration_finds_ratio_and_overhead(scale, overhead):
    """Of a tokenizer that is nothing but pieces, exactly."""
    calibration = calibrate(
        (text, round(overhead + scale * pieces(text))) for text in sample_texts()
    )
    assert calibration.chars_per_token == pytest.approx(CHARS_PER_PIECE / scale, rel=0.005)
    assert calibration.overhead_tokens == pytest.approx(overhead, abs=1)
    assert calibration.error < 0.01
    assert calibration.samples == 12


def test_calibration_survives_a_few_wrong_counts():
    """A cached prompt or a server that counts nothing: two of twelve."""
    counted = [[text, pieces(text) + 20] for text in sample_texts()]
    counted[1][1], counted[6][1] = 1, 5000
    calibration = calibrate(map(tuple, counted))
    assert calibration.chars_per_token == pytest.approx(CHARS_PER_PIECE, rel=0.02)
    assert calibration.overhead_tokens == pytest.approx(20, abs=2)
    assert calibration.worst > 1


def test_one_length_cannot_tell_the_overhead():
    """It is in the ratio then, and right for that length."""
    texts = [prompt.text for prompt in some(5, tokens=300)]
    calibration = calibrate((text, pieces(text) + 30) for text in texts)
    assert calibration.overhead_tokens == 0
    assert calibration.tokens(texts[0]) == pytest.approx(pieces(texts[0]) + 30, rel=0.005)


@pytest.mark.parametrize("counted", [[], [("text", 0)], [("", 5)]])
def test_nothing_counted_is_an_error(counted):
    """Rather than a made-up ratio."""
    with pytest.raises(UserError, match="no text was counted"):
        calibrate(counted)


@pytest.mark.parametrize("tokens", [40, 100, 150, 300, 1000, 4000])
def test_calibrated_prompts_are_right_on_average(tokens):
    """Within 3 % on a tokenizer that counts otherwise, from samples around the target."""
    calibration = calibrate((text, coarse(text)) for text in sample_texts(tokens=tokens, count=24))
    options = {
        "chars_per_token": calibration.chars_per_token,
        "overhead_tokens": calibration.overhead_tokens,
    }
    counts = [coarse(prompt.text) for prompt in some(40, tokens=tokens, **options)]
    assert sum(counts) / len(counts) == pytest.approx(tokens, rel=0.03)


def test_samples_stay_short():
    """Counting by `usage` costs a prefill each."""
    for tokens in (None, 30, 500, 200_000):
        assert all(
            pieces(prompt.text) <= 1700
            for prompt in sample_prompts(random.Random(1), tokens=tokens)
        )
