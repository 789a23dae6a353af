"""The page of a tuning, and its picture: what was gained, what was not kept,
and how sure that is.
"""

import json
import math
import re

import pytest
from msgspec.structs import replace
from reading import Outline

from sample_tuning import sample_stages, sample_tuning
from skep.report.tuning import ladder_chart, tuning_page
from skep.tuner.records import ConfigFailure, StageDecision
from skep.tuner.summary import accepted, best_of, headline, ratio_range, ratio_words, total_gain
from skep.units import Interval


def test_the_page_says_what_was_tuned_and_how():
    page = tuning_page(sample_tuning(), sample_stages())
    assert "From 25.1 to 190 tok/s at C = 4 in 4 steps: 7.57× (95 %: 7.34–7.80)." in page.replace(
        "\xa0", " "
    )
    for sentence in (
        "No model ran",
        "1,024 tokens in, 1,024 out, 4 agents at once",
        "How this was measured",
        "torch.OutOfMemoryError: CUDA out of memory",
        "memory_share 0.92 → 0.83 leaves room",
    ):
        assert sentence in page


def test_the_gain_is_the_product_of_what_stood_side_by_side_with_its_interval():
    """Not the quotient of two figures that were taken hours apart."""
    stages = sample_stages()
    gain = total_gain(stages)
    assert gain.estimate == pytest.approx(
        math.prod(stage.ratio.estimate for stage in accepted(stages))
    )
    widest = max(math.log(stage.ratio.high / stage.ratio.estimate) for stage in accepted(stages))
    assert widest < math.log(gain.high / gain.estimate) < 4 * widest
    drifted = [replace(stage, figure=Interval(1, 2, 3)) for stage in stages]
    assert total_gain(drifted) == gain


def test_a_gain_without_all_its_ratios_is_not_told():
    stages = sample_stages()
    assert total_gain(stages[:1]) is None
    assert (
        total_gain(
            [replace(stage, ratio=None) if stage.number == 4 else stage for stage in stages]
        )
        is None
    )
    open_ended = [replace(stage, ratio=Interval(0.0, 2.0, math.inf)) for stage in stages]
    assert ratio_range(total_gain(open_ended)) == "–"


def test_a_step_that_died_later_is_no_part_of_the_best():
    stages = sample_stages()
    crash = ConfigFailure("crash-under-load", "it died")
    stages.append(replace(stages[10], number=12, decision=StageDecision.FAILED, failure=crash))
    assert best_of(stages).number == 7
    assert "accepted, died later" in tuning_page(sample_tuning(), stages)
    bars = ladder_chart(sample_tuning(), stages)["layer"][0]["data"]["values"]
    assert bars[-1]["label"] == "190, 1.11×, died later"


def test_ratios_have_as_many_digits_as_their_interval_allows():
    assert ratio_words(Interval(1.1, 1.2, 1.3)) == "1.20×"
    assert ratio_words(Interval(1.002, 1.0045, 1.007)) == "1.004×"
    assert ratio_words(Interval(10.8, 11.31, 11.9)) == "11.3×"
    assert (ratio_words(None), ratio_words(Interval(0, math.nan, 1))) == ("–", "–")


def test_the_picture_has_a_bar_as_long_as_its_figure_for_each_step_that_was_kept():
    spec = ladder_chart(sample_tuning(), sample_stages())
    rows = spec["layer"][0]["data"]["values"]
    assert [(row["name"], row["value"]) for row in rows] == [
        (f"{sample_stage.number}. {sample_stage.title}", sample_stage.figure.estimate)
        for sample_stage in sample_stages()
        if sample_stage.decision.value in ("baseline", "accepted")
    ]
    assert spec["encoding"]["x"]["scale"]["domain"][0] == 0
    assert rows[-1]["label"] == "190, 1.11×, best"


def test_a_path_of_the_machine_is_not_passed_on():
    page = tuning_page(
        sample_tuning(model="/home/somebody/m.gguf", host={"hostname": "box-7"}), sample_stages()
    )
    assert "/home/somebody" not in page
    assert "m.gguf" in page
    assert "box-7" not in page


@pytest.mark.parametrize("state", [None, "running", "interrupted"])
def test_a_tuning_without_stages_has_a_page(state):
    page = tuning_page(sample_tuning(), [], state=state)
    assert "Nothing is measured yet" in page
    assert ladder_chart(sample_tuning(), []) is None
    assert ("incomplete" in page.partition("<body>")[2]) == (state == "interrupted")


def test_a_baseline_that_does_not_start_is_told_with_its_log_line():
    failure = ConfigFailure(
        "no-start", "the weights are not there", "FileNotFoundError: weights", "skep pull"
    )
    changes = {
        "decision": StageDecision.FAILED,
        "figure": None,
        "failure": failure,
        "why": "it did not start",
    }
    stage = replace(sample_stages()[0], **changes)
    assert headline(sample_tuning(), [stage]) == "Nothing could be measured: it did not start"
    assert "FileNotFoundError: weights" in tuning_page(sample_tuning(), [stage])


def test_the_headline_claims_no_product_of_one_step():
    words = headline(sample_tuning(), sample_stages()[:4]).replace("\xa0", " ")
    assert words == "From 25.1 to 43.2 tok/s at C = 4 in one step: 1.72× (95 %: 1.69–1.75)"


def test_the_headline_claims_no_gain_where_nothing_was_better():
    stages = [stage for stage in sample_stages() if stage.decision is not StageDecision.ACCEPTED]
    assert headline(sample_tuning(), stages).endswith("none of 7 changes was shown to be better")
    assert "no change was shown to be better" in tuning_page(sample_tuning(), stages)


def test_what_was_not_kept_is_folded_away():
    page = tuning_page(sample_tuning(), sample_stages())
    Outline(page)
    assert "<b>7 not kept</b>: 1 worse, 1 not distinguishable, 2 failed, 1 over the SLO" in page


def test_intervals_without_an_end_are_drawn_without_one():
    endless = [
        sample_stage.figure and Interval(0.0, sample_stage.figure.estimate, math.inf)
        for sample_stage in sample_stages()
    ]
    stages = [
        replace(stage, figure=figure)
        for stage, figure in zip(sample_stages(), endless, strict=True)
    ]
    assert not re.search(
        "inf|nan", json.dumps(ladder_chart(sample_tuning(), stages)), re.IGNORECASE
    )
