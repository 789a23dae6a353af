"""The sentences about drift, cache, clocks and turning points say what is known and nothing
else.
"""

import pytest
from msgspec.structs import replace

from skep.bench.metrics import SweepSummary
from skep.report import sweep_text
from skep.report.comparison import comparison_page
from skep.report.sweep import check_sentences, sweep_page
from skep.stats.turning import Turning
from skep.units import Interval


@pytest.mark.parametrize(
    ("drift", "words"),
    [
        (Interval(0.96, 0.98, 1.01), "0.98 (0.96..1.01) of the beginning: no drift."),
        (
            Interval(0.88, 0.9, 0.93),
            "0.90 (0.88..0.93) of the beginning: the machine became slower during the run.",
        ),
        (
            Interval(1.02, 1.1, 1.2),
            "1.10 (1.02..1.20) of the beginning: the machine became faster during the run.",
        ),
    ],
)
def test_drift_is_told_with_its_interval(summary, drift, words):
    """An interval around one is no drift, wherever its middle is."""
    assert (
        sweep_text.drift_sentence(replace(summary, drift=drift)) == f"C=1 at the end was {words}"
    )


@pytest.mark.parametrize(
    ("shares", "words"),
    [
        ([0.03] * 4, "held 3 % of the prompts' tokens: the prompts were cold"),
        ([0.3] * 4, "not all prompts"),
        ([0.03, 0.03, 0.03, 0.5], "(50 % at C = 16): not all prompts"),
    ],
)
def test_cache_is_told_in_words(complete, shares, words):
    """Whether a TTFT is of cold prompts decides what it is worth; one warm level must not hide
    behind the mean.
    """
    levels = [
        replace(level, cached_prompt_share=share)
        for level, share in zip(complete.levels, shares, strict=True)
    ]
    assert words in sweep_text.cache_sentence(levels)


def test_clocks_that_differ_are_listed_with_their_cause(run, complete, rows):
    """And the levels at which they agree are named."""
    section = sweep_page(run, complete, rows).partition("Client and engine clocks")[2]
    for words in (
        "time to first token",
        "498 ms",
        "210 ms",
        "+137 %",
        "gateway",
        "At C = 1, 4, 8 the two clocks",
    ):
        assert words in section


def test_clocks_that_agree_are_said_to_agree(run, summary, levels, rows):
    """Only where the engine told something of itself."""
    assert "client and engine agree at every level." in sweep_page(
        run, replace(summary, levels=levels), rows
    )
    silent = replace(summary, levels=tuple(replace(level, engine_tok_s=None) for level in levels))
    assert "Client and engine clocks" not in sweep_page(run, silent, rows)


NO_CLIFF = (None, None, None)


@pytest.mark.parametrize(
    ("turning", "sentence"),
    [
        (
            Turning(None, None, *NO_CLIFF, sure=True),
            "No knee: effective tok/s still grows at the largest level.",
        ),
        (
            Turning(8, (4, 8), 16, (16, 32), 24.0, sure=True),
            (
                "Tok/s no longer grow above C = 8 (the knee lies between C = 4 and C = 8); "
                "above C = 16 tok/s fall by 24 % "
                "(the cliff lies between C = 16 and C = 32)."
            ),
        ),
        (Turning(1, (0, 1), *NO_CLIFF, sure=True), "Tok/s no longer grow above C = 1 (the knee)."),
        (
            Turning(None, None, *NO_CLIFF, sure=False, unclear=(1, 2, 4)),
            (
                "C=1, C=2, C=4 cannot be told apart: their runs differ too much; measure "
                "more runs of each level "
                "(--runs 5)."
            ),
        ),
        (
            Turning(4, (2, 4), *NO_CLIFF, sure=False, unclear=(8, 16)),
            (
                "Tok/s no longer grow above C = 4 (the knee lies between C = 2 and C = 4); "
                "C=8, C=16 cannot be told apart: "
                "their runs differ too much; measure more runs of each level (--runs 5)."
            ),
        ),
        (
            Turning(None, None, *NO_CLIFF, sure=False),
            (
                "Knee and cliff are not known: no level was run twice, measure each three times "
                "or more (--runs 3)."
            ),
        ),
    ],
)
def test_turning_points_are_told_in_words(turning, sentence):
    """With brackets where they are known, and how sure they are."""
    assert sweep_text.turning_sentence(turning) == sentence


def test_nothing_known_makes_no_list(levels, summary):
    """An old run has no empty section; a silent engine makes no sentence about its cache."""
    bare = tuple(replace(level, cached_prompt_share=None) for level in levels)
    assert check_sentences(replace(summary, levels=bare)) == []


def test_a_run_that_is_left_out_is_told_on_every_page(run, complete):
    """A reader of the table alone saw one run where two had been made, and the slower one was
    gone.
    """
    first, level, *rest = complete.levels
    slow = replace(
        level.repeats[1],
        effective_tok_s=98.4,
        counted=False,
        client_limited=True,
        why="event loop lag",
    )
    levels = (first, replace(level, repeats=(level.repeats[0], slow)), *rest)
    line = "left out: C=4 run 2, 98.4 tok/s: the client was the limit (event loop lag)"
    assert sweep_text.left_out_sentences(levels) == [line]
    page = sweep_page(run, replace(complete, levels=levels), [])
    assert line in page
    assert "1 of 2" in page
    both = comparison_page([(run, replace(complete, levels=levels)), (run, complete)])
    assert "A C=4 run 2, 98.4 tok/s: the client was the limit" in both
    places = tuple(
        replace(level, concurrency=place) for place, level in enumerate(levels, start=1)
    )
    rates = replace(run, kind="open", config={"rates": [1.0, 2.5, 4.0, 8.0]})
    timed = sweep_page(rates, SweepSummary("r", places, client_limited=False), [])
    assert "left out: 2.5 requests/s run 2, 98.4 tok/s" in timed
