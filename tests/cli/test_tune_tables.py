"""A tuning in the terminal, from values made by hand: nothing is measured here."""

import pytest
from msgspec.structs import replace

from sample_tuning import BASELINE, KNOBS, sample_stages, sample_tuning
from skep.cli import tune_run as tables
from skep.errors import UserError
from skep.report import tuning as tuning_report
from skep.report.liveview import Page
from skep.report.tuning import stage_columns
from skep.tuner.records import BenchProgress, MeasurementRound, MeasureRequest
from skep.tuner.setup import choose_knobs
from skep.tuner.store import TuningRecord, TuningState
from skep.tuner.summary import missed_slo, stage_words

STAGES = sample_stages()


def cells(tuning, stages=STAGES):
    return {column.key: column.cell(tuning) for column in stage_columns(sample_tuning(), stages)}


def test_a_row_has_figure_interval_ratio_foresight_and_decision():
    assert list(cells(STAGES[2]).values()) == [
        "2",
        "graphs off → on",
        "accepted",
        "43.2",
        "42.3–44.0",
        "1.72×",
        "1.69–1.75",
        "1.90×",
        "21 ms",
        "1.4 s",
        "better with 95 % confidence over 2 starts",
        "2",
        "8",
        "10 min 40 s",
    ]
    stages = [*STAGES[:3], replace(STAGES[1], number=3, config=STAGES[2].config)]
    assert cells(stages[2], stages)["decision"] == "accepted, died later"


def test_a_tuning_is_told_in_its_first_line_and_each_stage_in_one(capsys):
    tuning_report.print_tuning(
        TuningRecord(sample_tuning(), TuningState.ENDED, 1, 1, 60.0, 0.0, stages=(*STAGES,))
    )
    out = capsys.readouterr().out
    assert out.replace("\xa0", " ").startswith(
        "SIMULATED: qwen3.6-27b (vllm) on 2x rtx-3090: From 25.1 to 190 tok/s at C = 4 in 4 "
        "steps: 7.57×"
    )
    assert (
        "step 1 ran out of memory: the cards' memory was too small for the graphs "
        "(torch.OutOfMemoryError"
    ) in out
    assert "memory_share 0.92 → 0.83 leaves room" in out
    status = tuning_report.TuneStatus(sample_tuning())
    with tables.tuning_view(status) as on_event:
        on_event(MeasureRequest((BASELINE,), 2, "baseline", "the baseline"))
        on_event(STAGES[0])
        on_event(MeasurementRound((), 12.0))
    assert capsys.readouterr().err == f"{stage_words(STAGES[0], 'tok/s')}\n"
    assert status.spent_s == 12.0


def test_the_picture_fits_its_page_and_shows_what_happens_now():
    status = tuning_report.TuneStatus(sample_tuning(budget_s=600.0), 60.0, [*STAGES] * 10)
    status.request = MeasureRequest((BASELINE,), 4, "confirm", "graphs off → on, start 2")
    status.progress = BenchProgress(BASELINE, "measuring", 2, 4, 51.2)
    lines = tuning_report.status_lines(status, Page(60, 20), 30.0)
    text = ["".join(part for part, _ in line) for line in lines]
    assert len(lines) <= 20
    assert all(len(line) <= 60 for line in text[5:])
    assert "90.0 s of 10 min 00 s, 8 min 30 s left" in text[2]
    assert "graphs off → on, start 2: measuring 2/4, 51.2 tok/s" in text[3]


def test_knobs_are_chosen_by_name_and_a_missed_slo_is_told_with_the_nearest():
    assert choose_knobs(KNOBS, None, None) == KNOBS
    assert [knob.name for knob in choose_knobs(KNOBS, "mtp, slots", "mtp")] == [
        "slots",
        "memory_share",
    ]
    assert [knob.name for knob in choose_knobs(KNOBS, "slots", "memory_share")] == ["slots"]
    with pytest.raises(UserError, match="`slot` is not a knob here") as raised:
        choose_knobs(KNOBS, "slot", None)
    assert "slots" in raised.value.hint
    with pytest.raises(UserError, match="no knob is left"):
        choose_knobs(KNOBS, "mtp", "mtp")
    late = [STAGES[0], replace(STAGES[2], number=1, over_limit=1.5)]
    assert (
        "closest came step 1 with 1.50 times the limit"
        in missed_slo(sample_tuning(), late).message
    )
    assert missed_slo(sample_tuning(), STAGES) is None
