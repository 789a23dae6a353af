"""From stored rows to what may be claimed: hand-made rows, known figures."""

import pytest
from msgspec.structs import replace

from skep.quality.trial_figures import (
    CUT_SHORT,
    PAIRED_WITH,
    WHOLE_BLOCK,
    discordance_of,
    quality_summary,
    summary_of_run,
)
from skep.stats.noninferiority import ASSUMED_DISCORDANCE, Claim, paired_difference
from skep.store.records import EngineTimings, LevelFact, Request, RunState, StoredRun
from skep.store.verdicts import Verdict, VerdictOutcome
from skep.workload.items import Checker, Item


class Made:
    """A run by hand: passes of so many items, each lasting as long as is said."""

    def __init__(self, count):
        self.items = [
            Item(f"i{n}", ({"role": "user", "content": f"{n}?"},), Checker("exact"))
            for n in range(count)
        ]
        self.rows = []
        self.verdicts = []
        self.facts = []
        self.clock = 0.0

    def passes(
        self,
        level,
        repeat,
        arm,
        outcomes,
        *,
        blocks=None,
        tokens=10,
        seconds=1.0,
        base=None,
        answer="yes",
    ):
        """`outcomes`: one for all items, or one each; `blocks`: those that are whole."""
        if isinstance(outcomes, VerdictOutcome):
            outcomes = [outcomes] * len(self.items)
        for index, outcome in enumerate(outcomes):
            begin = self.clock + index * seconds / level
            times = {"first_token_s": begin + 0.1 * level, "last_token_s": begin + seconds}
            fields = {
                "prompt_tokens": 20,
                "output_tokens": tokens,
                "answer": answer,
                "traffic": arm,
            }
            place = (level, repeat, index, self.items[index].id, begin, begin + seconds)
            self.rows.append(
                Request(*place, **times, **fields, engine=EngineTimings(cached_tokens=0))
            )
            self.verdicts.append(Verdict(level, repeat, index, self.items[index].id, outcome))
        self.clock += len(outcomes) * seconds / level + seconds + 100.0  # another arm in between
        if base is not None:
            self.facts.append(LevelFact(level, repeat, PAIRED_WITH, {"level": 1, "repeat": base}))
        for begin, end in blocks or [(0, len(self.items))]:
            self.facts.append(LevelFact(level, repeat, WHOLE_BLOCK, {"begin": begin, "end": end}))
        return self

    def summary(self, **how):
        options = {"bank": "b", "delta": 0.03, "levels": (4, 8), **how}
        return quality_summary("r", self.rows, self.verdicts, self.facts, self.items, **options)


def some(count, failing, outcome=VerdictOutcome.WRONG, begin=0):
    """`failing` of them, from `begin` on, did not pass."""
    return [
        outcome if begin <= n < begin + failing else VerdictOutcome.PASSED for n in range(count)
    ]


RESTARTED = [VerdictOutcome.FAILED] * 60 + [VerdictOutcome.PASSED] * 140
EVERY_FIFTH = [VerdictOutcome.PASSED if n % 5 else VerdictOutcome.WRONG for n in range(200)]


@pytest.mark.parametrize(
    ("base", "load", "claim", "lost"),
    [
        (some(400, 100), some(400, 100), Claim.HOLDS, 0),
        (some(400, 100), some(400, 140), Claim.LOST, 40),
        (some(40, 10), some(40, 10, begin=1), Claim.UNSHOWN, 1),
        (some(400, 395), some(400, 395), Claim.UNSHOWN, 0),
        (RESTARTED, EVERY_FIFTH, Claim.LOST, 40),
    ],
    ids=[
        "the same",
        "a loss",
        "too few items",
        "too hard to lose anything",
        "failures one at a time are no proof",
    ],
)
def test_what_may_be_claimed_of_a_level(base, load, claim, lost):
    """Nobody may call it quality that holds if nothing passed before either; too few items say how
    many would do.
    """
    trial = Made(len(base)).passes(1, 0, "base", base).passes(4, 0, "load", load, base=0)
    summary = trial.summary()
    (level,) = summary.levels
    assert (level.concurrency, level.claim, level.difference.lost) == (4, claim, lost)
    assert level.difference.items == len(base)
    assert (summary.holds_up_to, summary.skipped) == (4 if claim is Claim.HOLDS else None, (8,))
    assert level.needed_items > 40 if len(base) == 40 else level.needed_items is None


def test_time_outs_truncation_and_errors_are_failures_and_counted_apart():
    base = some(400, 0)
    load = (
        [VerdictOutcome.TIMED_OUT] * 3
        + [VerdictOutcome.TRUNCATED] * 4
        + [VerdictOutcome.FAILED] * 5
        + base[12:]
    )
    (level,) = (
        Made(400).passes(1, 0, "base", base).passes(4, 0, "load", load, base=0).summary().levels
    )
    assert level.difference.lost == 12
    assert level.load.outcomes == (
        ("passed", 388),
        ("truncated", 4),
        ("timed out", 3),
        ("failed", 5),
    )
    assert level.base.outcomes == (("passed", 400),)


def test_latency_leaves_out_the_time_of_the_other_arm_between_two_blocks():
    halves = [(0, 50), (50, 100)]
    trial = Made(100).passes(1, 0, "base", VerdictOutcome.PASSED, blocks=halves)
    trial.rows[50:] = [
        replace(
            row,
            started_s=row.started_s + 500,
            ended_s=row.ended_s + 500,
            first_token_s=row.first_token_s + 500,
            last_token_s=row.last_token_s + 500,
        )
        for row in trial.rows[50:]
    ]
    (level,) = (
        trial.passes(4, 0, "load", VerdictOutcome.PASSED, base=0, seconds=2.0).summary().levels
    )
    assert (level.base.ttft_p50_ms, level.load.ttft_p50_ms) == pytest.approx((100, 400))
    assert (level.base.total_p50_s, level.load.total_p50_s) == pytest.approx((1.0, 2.0))
    assert (level.base.effective_tok_s, level.load.effective_tok_s) == pytest.approx(
        (10, 1000 / (99 * 0.5 + 2.0))
    )
    assert level.load.cached_share == 0.0


def test_the_noise_is_what_changes_between_two_passes_of_one_at_a_time():
    """Base passes of further levels are further noise; a level is held against its own."""
    trial = Made(200).passes(1, 0, "base", some(200, 20))
    trial.passes(1, 1, "again", some(200, 20, begin=4), base=0, answer="y").passes(
        4, 0, "load", some(200, 20), base=0
    )
    summary = trial.summary()
    assert (summary.noise.pairs, summary.noise.lost, summary.noise.gained) == (200, 4, 4)
    assert (summary.noise_texts_changed, summary.levels[0].texts_changed) == (1.0, 0.0)
    trial.passes(1, 2, "base", some(200, 22)).passes(8, 0, "load", some(200, 22), base=2)
    summary = trial.summary()
    assert (summary.noise.items, summary.noise.pairs, summary.noise.lost) == (200, 400, 4 + 2)
    assert summary.levels[1].difference.lost == 0
    trial.verdicts.clear()  # what was not judged makes no level
    summary = trial.summary()
    assert (summary.levels, summary.noise, summary.holds_up_to, summary.skipped) == (
        (),
        None,
        None,
        (4, 8),
    )


def test_a_block_or_a_repeat_that_was_broken_off_does_not_count():
    """The answers that had come by then are the quick ones."""
    trial = Made(128)
    trial.passes(1, 0, "base", VerdictOutcome.PASSED, blocks=[(0, 64)])
    trial.passes(4, 0, "load", some(128, 64, begin=64), blocks=[(0, 64)], base=0)
    (level,) = trial.summary().levels
    assert (level.difference.items, level.difference.lost, level.load.requests) == (64, 0, 64)
    trial = (
        Made(128)
        .passes(1, 0, "base", VerdictOutcome.PASSED)
        .passes(4, 0, "load", VerdictOutcome.PASSED, base=0)
    )
    trial.passes(1, 1, "base", VerdictOutcome.PASSED, blocks=[(0, 64)])
    trial.passes(4, 1, "load", VerdictOutcome.WRONG, blocks=[(0, 64)], base=1)
    (level,) = trial.summary().levels
    assert (level.difference.pairs, level.difference.lost) == (128, 0)


def test_a_stored_run_gives_its_summary_and_why_it_ended():
    trial = (
        Made(400)
        .passes(1, 0, "base", VerdictOutcome.PASSED)
        .passes(4, 0, "load", VerdictOutcome.PASSED, base=0)
    )
    config = {"bank": "drills:1", "delta": 0.05, "concurrency": [1, 4, 8]}
    run = StoredRun(
        "r",
        "quality",
        RunState.FAILED,
        0.0,
        1.0,
        "m",
        "u",
        "f",
        config,
        {},
        {},
        simulated=False,
        skep_version="0",
        error="interrupted",
    )
    summary = summary_of_run(run, trial.rows, trial.verdicts, trial.facts, trial.items)
    assert (summary.bank, summary.delta, summary.incomplete, summary.skipped) == (
        "drills:1",
        0.05,
        "interrupted",
        (8,),
    )
    trial.facts.append(LevelFact(4, 0, CUT_SHORT, {"why": "the budget ended"}))
    done = replace(run, state=RunState.DONE, error=None)
    assert (
        summary_of_run(done, trial.rows, trial.verdicts, trial.facts, trial.items).incomplete
        == "the budget ended"
    )


def test_a_few_pairs_without_a_change_count_as_no_more_noise_than_assumed():
    def share(pairs, changed):
        answers = [(True, n >= changed) for n in range(pairs)]
        return discordance_of(
            paired_difference({str(n): [pair] for n, pair in enumerate(answers)})
        )

    assert share(12, 0) == ASSUMED_DISCORDANCE
    assert share(400, 0) == pytest.approx(1 / 400)
    assert share(400, 40) == pytest.approx(0.1)
