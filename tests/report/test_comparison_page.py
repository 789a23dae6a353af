"""Several runs in one picture: told apart without colour, and never taken for more alike than they
are.
"""

import pytest
from msgspec.structs import replace
from reading import plain

from skep.bench.compare import differing
from skep.bench.metrics import Comparison, SweepSummary
from skep.report.comparison import MOST_RUNS, comparison_page, overlay, series_of
from skep.stats.versus import Judgement
from skep.store.records import RunState
from skep.units import Interval


@pytest.fixture
def second(run):
    return replace(run, id="02", created_at=1_763_186_400.0)


def text_of(run, second, summary, *comparisons, **options):
    return plain(comparison_page([(run, summary), (second, summary)], *comparisons, **options))


def test_runs_are_called_by_model_and_time_or_by_their_labels(run, second, summary):
    assert "Qwen/Qwen3-30B-A3B-Instruct-AWQ @ 2025-11-15 06:00:00 UTC" in text_of(
        run, second, summary
    )
    assert "A NVLink B PCIe" in text_of(run, second, summary, labels=["NVLink", "PCIe"])


def test_runs_of_the_same_second_are_told_apart_by_their_id(run, summary):
    """Two names alike in a legend are worse than long ones."""
    names = [
        series.name for series in series_of([(run, summary), (replace(run, id="02"), summary)])
    ]
    assert [name.rpartition(" ")[2] for name in names] == ["(01JCR8Z7)", "(02)"]


def test_every_run_has_its_own_look(run, summary):
    """Colour is never alone: letter, and dash with shape, differ too."""
    runs = series_of([(replace(run, id=str(i)), summary) for i in range(MOST_RUNS)])
    assert len({run.colour for run in runs}) == len({run.letter for run in runs}) == MOST_RUNS
    assert len({(run.dash, run.shape) for run in runs}) == MOST_RUNS


def test_runs_that_are_not_plain_measurements_have_banners(run, second, summary):
    """Simulated, broken off or limited by its client: each with its letter, above the pictures."""
    odd = replace(second, simulated=True, state=RunState.FAILED)
    text = text_of(run, odd, summary)
    for words in ("Incomplete B:", "Simulated B:", "Client-limited A at C = 16; B at C = 16:"):
        assert text.index(words) < text.index("All runs on the same axes")


def test_other_work_is_named_key_by_key(run, second, summary):
    """Nested keys too; what may differ between repeats is no difference, and equal fingerprints
    need no banner.
    """

    def with_config(run, fingerprint, seed, tokens):
        load = {"max_tokens": tokens, "shape": "steady"}
        return replace(
            run, fingerprint=fingerprint, config={"tasks": 24, "seed": seed, "workload": load}
        )

    text = text_of(with_config(run, "1", 1, 256), with_config(second, "2", 2, 512), summary)
    assert "Not alike These settings differ: workload.max_tokens 256 (A), 512 (B)." in text
    assert "differ" not in text_of(run, second, summary).partition("The same figures")[0]


def test_same_work_on_another_engine_is_no_other_workload(run, second, summary):
    """That is what comparisons are made for; it is said all the same, and so is a key that one
    does not have.
    """
    text = text_of(
        run, replace(second, fingerprint="2", engine={**run.engine, "version": "0.12.0"}), summary
    )
    assert "Not alike These settings differ: engine.version 0.11.0 (A), 0.12.0 (B)." in text
    assert differing([run, replace(second, fingerprint="2", config={**run.config, "x": 1})]) == {
        "x": ["–", "1"]
    }


def test_judgements_stand_in_words(run, second, summary):
    """With the ratio, its interval, and the reason where there is none."""
    comparisons = [
        Comparison(
            4, "effective tok/s", 127.0, 152.4, Interval(1.16, 1.2, 1.24), Judgement.BETTER
        ),
        Comparison(4, "TTFT p95", 1305.0, 1400.0, Interval(0.99, 1.07, 1.16), Judgement.SAME),
        Comparison(
            16, "TTFT p50", 498.0, None, None, Judgement.UNKNOWN, "the client was the limit in B"
        ),
    ]
    text = text_of(run, second, summary, comparisons)
    assert "4 effective tok/s 127 152 1.200 1.16..1.24 better" in text
    assert "4 TTFT p95 1,305 ms 1,400 ms 1.070 0.99..1.16 not distinguishable" in text
    assert "16 TTFT p50 498 ms – – – not comparable: the client was the limit in B" in text
    assert "B against A" not in text_of(run, second, summary)


def test_run_without_figures_still_stands_beside_the_others(run, second, summary):
    """It has no curve and no zero, but its place in the legend and the table."""
    empty = SweepSummary("02", (), client_limited=False)
    text = plain(
        comparison_page([(run, summary), (replace(second, state=RunState.FAILED), empty)])
    )
    assert "Incomplete B:" in text
    assert overlay(series_of([(run, empty)]), "effective_tok_s", "tok/s") is None
